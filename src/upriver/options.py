"""An app's options that belong together. Each group checks what it is given, and holds plain values."""

import os
import secrets
import ssl
import time
from dataclasses import InitVar, dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Self

from upriver.arguments import at_least, flag, more_than_none, seconds, some_text
from upriver.errors import DeclarationError
from upriver.lake.collection import GRACE_S
from upriver.logs import warn_caller
from upriver.net.remote import check_token
from upriver.net.server import listen_at
from upriver.net.tls import TlsIdentity, is_content
from upriver.plan.retention import interval_us

CHECKPOINT_INTERVAL_S = 60.0
"""Seconds from one checkpoint to the next, unless the user says otherwise."""
CHANGES_RETENTION = "7 days"
"""How long the versions of views' changes are kept, unless the user says otherwise."""
TOKEN_BYTES = 32
"""Random bytes of a generated token."""
TOKEN_FILE_BYTES_MAX = 1 << 16
"""Bytes of a file that has a token."""
EXPIRES_SOON_S = 14 * 86_400.0
"""Seconds before a certificate expires in which a warning says so."""

FilePath = str | os.PathLike[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Standbys:
    """Copies of the state of full views. Raises DeclarationError.

    replicas: of each worker's state, each on an executor of its own; one takes over at once when a worker is lost. For
    rescales by ``learner``: warmup_replicas: vnodes that are learned at a time. partial_rebalance: take over learned
    vnodes at once, not all together. leave_timeout_ms: milliseconds to wait for workers that leave; ``None``: no limit.
    """

    replicas: int = 0
    warmup_replicas: int = 2
    partial_rebalance: bool = True
    leave_timeout_ms: int | None = None

    def __post_init__(self) -> None:
        at_least("Standbys: replicas", self.replicas, 0)
        at_least("Standbys: warmup_replicas", self.warmup_replicas, 1)
        flag("Standbys: partial_rebalance", self.partial_rebalance)
        if self.leave_timeout_ms is not None:
            at_least("Standbys: leave_timeout_ms", self.leave_timeout_ms, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoints:
    """How often the state of the views is written to the lake. Raises DeclarationError.

    interval_s, interval_epochs: seconds, and epochs, from one checkpoint to the next. A worker that replaces a lost
    one, or an app that is started again, reads the checkpoint and the epochs since. ``None`` for both: only
    :meth:`.App.checkpoint` takes one, and it is dropped 256 epochs later, because it keeps younger epochs from being
    compacted with older ones.
    """

    interval_s: float | None = CHECKPOINT_INTERVAL_S
    interval_epochs: int | None = None

    def __post_init__(self) -> None:
        if self.interval_s is not None:
            more_than_none("Checkpoints: interval_s", self.interval_s, "seconds, or None")
        if self.interval_epochs is not None:
            at_least("Checkpoints: interval_epochs", self.interval_epochs, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Compaction:
    """What becomes of old files in the lake. Raises DeclarationError.

    enabled: merge the files of old epochs in the background, so that no cost grows with the app's age. grace_s: seconds
    for which files stay that larger ones have replaced: a read of the lake by Spark may last so long.
    changes_retention: how long each version of the views' changes can be read, as a text or a timedelta; ``None``: for
    good. Versions that are older become one (docs/guide/changes.md).
    """

    enabled: bool = True
    grace_s: float = GRACE_S
    changes_retention: str | timedelta | None = CHANGES_RETENTION

    def __post_init__(self) -> None:
        flag("Compaction: enabled", self.enabled)
        seconds("Compaction: grace_s", self.grace_s)
        if (kept_s := self.changes_retention_s) is not None and kept_s <= 0:
            raise DeclarationError(
                f"Compaction(changes_retention={self.changes_retention!r}): give an interval above 0, or None to keep "
                f"all versions"
            )

    @property
    def changes_retention_s(self) -> float | None:
        """``changes_retention`` in seconds."""
        if self.changes_retention is None:
            return None
        return interval_us(f"Compaction(changes_retention={self.changes_retention!r})", self.changes_retention) / 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """The certificate that an app shows wherever it listens (docs/guide/security.md). Raises DeclarationError if the
    files cannot be used.

    certificate: the file with the certificate, and those between it and a root, as PEM. key: the file with its private
    key, without a password. roots: the file with the certificates that the app's own processes trust when they call
    each other; ``None``: this certificate alone.
    """

    certificate: FilePath
    key: FilePath
    roots: FilePath | None = None

    def __post_init__(self) -> None:
        self.context()
        identity = self.identity()
        by_roots = ""
        if self.roots is not None:
            by_roots = f" by roots={str(self.roots)!r}"
            try:
                identity.client_trust.context()
            except (OSError, ValueError):
                raise DeclarationError(f"Tls(roots={str(self.roots)!r}): it has no certificates as PEM") from None
        try:
            expires_at = identity.check()
        except (OSError, ValueError) as error:
            why = getattr(error, "verify_message", None) or getattr(error, "reason", None) or error
            raise DeclarationError(
                f"Tls(certificate={str(self.certificate)!r}): the app's processes show each other this certificate, "
                f"and would not trust it{by_roots}: {why}. Give one that is valid now, and roots= that have issued it "
                f"for servers and clients, or none"
            ) from None
        if expires_at < time.time() + EXPIRES_SOON_S:
            on = time.strftime("%Y-%m-%d", time.gmtime(expires_at))
            warn_caller(f"Tls(certificate={str(self.certificate)!r}): it expires on {on}; nothing connects after that")

    def identity(self) -> TlsIdentity:
        """What the files have now. Raises DeclarationError if one cannot be read."""
        chain, key = _file("Tls: certificate", self.certificate), _file("Tls: key", self.key)
        roots = None if self.roots is None else _file("Tls: roots", self.roots).read_bytes()
        return TlsIdentity(chain.read_bytes(), key.read_bytes(), roots)

    def context(self) -> ssl.SSLContext:
        """For the server of a door. Raises DeclarationError."""
        chain, key = _file("Tls: certificate", self.certificate), _file("Tls: key", self.key)
        made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        made.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            made.load_cert_chain(chain, key, password=self._refuse_password)
        except (ssl.SSLError, OSError) as error:
            reason = getattr(error, "reason", None)
            lacks = [
                f"{file} has no {what} as PEM"
                for what, file in (("certificate", chain), ("private key", key))
                if f"{what.upper()}-----".encode() not in file.read_bytes()
            ]
            if lacks:
                why = " and ".join(lacks)
            elif reason == "KEY_VALUES_MISMATCH":
                why = f"the key does not belong to the first certificate of {chain}"
            elif str(reason).endswith("KEY_TOO_SMALL"):
                why = f"the key of {chain} is too short: make an elliptic one, or one of RSA with 2,048 bits or more"
            else:
                why = f"{chain} and {key} are not a certificate and a private key as PEM ({reason or error})"
            raise DeclarationError(f"Tls(certificate=, key=): {why}") from None
        return made

    def _refuse_password(self) -> str:
        """OpenSSL would ask at the terminal."""
        raise DeclarationError(
            f"Tls(key={str(self.key)!r}): the key has a password: give one without, in a file that only the app's user "
            f"can read"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Doors:
    """Where an app answers besides its own address: ``host:port``; port 0 takes a free one; ``None``: nowhere.

    http: HTTP with the page (docs/guide/http.md); it needs the extra ``http``. postgres, flight: PostgreSQL's wire and
    Arrow Flight (docs/guide/queries.md). At each of them a caller shows a token of the app. With ``App(tls=...)`` they
    serve nothing without TLS. tls: is the app's now, and is refused. Raises DeclarationError.
    """

    http: str | None = None
    postgres: str | None = None
    flight: str | None = None
    tls: InitVar[Tls | None] = None

    def __post_init__(self, tls: Tls | None) -> None:
        if tls is not None:
            raise DeclarationError("Doors: tls= is App(tls=...) now, and is for everything that the app listens on")
        for door, address in self.addresses.items():
            listen_at(f"Doors: {door}", address)

    @property
    def addresses(self) -> dict[str, str]:
        """By door, those that are given."""
        given = {"http": self.http, "postgres": self.postgres, "flight": self.flight}
        return {door: address for door, address in given.items() if address is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """What clients and callers at the doors must show; none is ever printed. Raises UserError for a malformed one.

    operator: opens everything; by default a random one, ``app.token``. reader: opens lookups, scans, queries, changes,
    status and explain; ``None``: there is none (docs/guide/security.md).
    """

    operator: str = field(default_factory=lambda: secrets.token_hex(TOKEN_BYTES), repr=False)
    reader: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        for given in (self.operator, *([] if self.reader is None else [self.reader])):
            check_token(given)
        if self.operator == self.reader:
            raise DeclarationError("the reader's token is the operator's, so readers could do all: give two tokens")

    @classmethod
    def of_files(cls, operator: FilePath, reader: FilePath | None = None) -> Self:
        """From files that have a token each, and nothing else but blanks around it."""
        return cls(operator=token_in(operator), reader=None if reader is None else token_in(reader))

    @classmethod
    def of_environment(cls, operator: str = "UPRIVER_TOKEN", reader: str = "UPRIVER_READER_TOKEN") -> Self:
        """From variables of the environment. The reader's may be missing."""
        if not (token := os.environ.get(operator)):
            raise DeclarationError(f"the environment has no {operator}, which is to have the operator's token")
        return cls(operator=token, reader=os.environ.get(reader) or None)


def token_in(path: FilePath) -> str:
    """The token in a file. Raises DeclarationError, without what the file has."""
    file = _file("a token's file", path)
    with open(file, "rb") as opened:
        content = opened.read(TOKEN_FILE_BYTES_MAX)
    token = content.decode("ascii", "replace").strip()
    if not token.isascii() or token.split() != [token]:
        raise DeclarationError(f"{str(path)!r} is to have one token of ASCII characters, and nothing else")
    return token


def _file(what: str, given: FilePath) -> Path:
    """An absolute path of a file that can be read."""
    if is_content(given):
        raise DeclarationError(f"{what}: give the path of the file, not what the file has")
    path = Path(some_text(what, os.fspath(given)) if isinstance(given, str | os.PathLike) else some_text(what, given))
    try:
        path.open("rb").close()
    except OSError as error:
        raise DeclarationError(f"{what}: {str(given)!r} cannot be read: {error.strerror or error}") from None
    return path.absolute()
