"""TLS of the native port: what the processes of an app show and trust, and a connection with the methods of a socket.

Python's own encrypted socket must not be read and written by two threads at once; a :class:`.ByteStream` is. So
:class:`TlsSocket` encrypts in memory under a lock, which it never holds while it waits for the network. The socket
below keeps its own time limits and its mode, blocking or not. TLS 1.3 is the only version, so nothing is renegotiated.

All processes of an app show the same certificate. Among themselves they trust the app's ``roots``, whatever host a
process runs on; by default the roots are the certificate itself. A client trusts the roots that it was given, and the
certificate must name the host that the client was given (net.certificates_are_checked).
"""

import hashlib
import os
import re
import socket
import ssl
import struct
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, Self, TypeAlias

from upriver.errors import UserError

RECEIVE_BYTES = 1 << 18
"""Bytes that are received at a time, at most."""
PLAIN_BYTES = 1 << 14
"""Bytes of a record of TLS before it is encrypted, at most."""
RECORD_BYTES = PLAIN_BYTES + 512
"""Bytes of a record, at most; as many are received at a time, at least."""
ENCRYPT_BYTES = 1 << 16
"""Bytes that are encrypted at a time: the lock is held for no longer."""
HANDSHAKE_BYTES_MAX = 1 << 16
"""Encrypted bytes of a caller before it has proved what it is, and of a server's handshake."""
UNANSWERED_BYTES_MAX = 1 << 14
"""Bytes that TLS itself wants to answer, while this end writes nothing."""
CONTEXTS_MAX = 32
"""Contexts of callers that a process keeps: one for each app that it calls."""

_HANDSHAKE = 0x16
"""The first byte of a TLS caller."""
_PLAIN_GREETING = b"upriver"
"""The first bytes of a server without TLS."""
_PEM = "-----BEGIN "
_CERTIFICATE = re.compile(
    rb"-----BEGIN (?:X509 |TRUSTED )?CERTIFICATE-----.*?(?:-----END [A-Z0-9 ]*-----|\Z)", re.DOTALL
)
_TIME = struct.Struct("ll")
_ANY_PURPOSE = bytes.fromhex("3016 3014 06082b06010505070301 06082b06010505070302")
"""What OpenSSL takes behind a certificate that it is to trust at both ends, whatever purposes the certificate names."""


Bytes: TypeAlias = bytes | bytearray | memoryview


class PlainCaller(OSError):
    """The caller does not speak TLS."""


class PlainServer(OSError):
    """The server is an app's, and does not speak TLS."""


@dataclass(frozen=True)
class TlsIdentity:
    """What every process of an app shows, as PEM. It is in no ``repr``, and reaches workers as the secret does.

    chain: the certificate, and those between it and a root. key: its private key. roots: what the app's processes
    trust among themselves; ``None``: this certificate alone.
    """

    chain: bytes = field(repr=False)
    key: bytes = field(repr=False)
    roots: bytes | None = field(default=None, repr=False)

    @cached_property
    def certificate(self) -> bytes:
        """The certificate in DER. Raises ValueError if there is none."""
        return certificate_in(self.chain)

    @property
    def trust(self) -> "TlsTrust":
        """How the app's processes call each other."""
        return TlsTrust(self._trusted, None, self)

    @property
    def client_trust(self) -> "TlsTrust":
        """The same for those that need no certificate of their own. It has no key."""
        return TlsTrust(self._trusted, None)

    def check(self) -> float:
        """When the certificate expires, in seconds since 1970. Raises OSError or ValueError unless the app's processes
        would trust each other now."""
        to_server, to_caller = ssl.MemoryBIO(), ssl.MemoryBIO()
        server = self.server_context().wrap_bio(to_server, to_caller, server_side=True)
        caller = self.trust.context().wrap_bio(to_caller, to_server)
        for end in (caller, server, caller, server):
            with suppress(ssl.SSLWantReadError):
                end.do_handshake()
        shown = caller.getpeercert() or {}
        return float(ssl.cert_time_to_seconds(str(shown["notAfter"])))

    def server_context(self) -> ssl.SSLContext:
        """For the native port: it asks callers for a certificate, which they may lack. Raises OSError."""
        context = _context(ssl.PROTOCOL_TLS_SERVER)
        self.load(context)
        context.num_tickets = 0  # no session is resumed
        context.verify_mode = ssl.CERT_OPTIONAL
        _trust(context, self._trusted)
        return context

    def load(self, context: ssl.SSLContext) -> None:
        """Have a context show the certificate."""
        with _file_of(self.chain) as chain, _file_of(self.key) as key:
            context.load_cert_chain(chain, key)

    @property
    def _trusted(self) -> bytes:
        if self.roots is not None:
            return _certificates(self.roots)
        # A certificate that names servers alone, as public authorities issue them, is shown by callers, too.
        trusted = ssl.DER_cert_to_PEM_cert(self.certificate + _ANY_PURPOSE)
        return trusted.replace(" CERTIFICATE-", " TRUSTED CERTIFICATE-").encode()


@dataclass(frozen=True)
class TlsTrust:
    """Which servers a caller trusts. roots: as PEM; ``None``: the system's. host: that the certificate must name;
    ``None``: any. identity: what the caller shows; ``None``: nothing, as clients do."""

    roots: bytes | None = field(repr=False)
    host: str | None
    identity: TlsIdentity | None = field(default=None, repr=False)

    @classmethod
    def of_client(cls, given: object, host: str) -> Self:
        """As ``connect(tls=...)`` takes it: PEM, a path of a file with it, or True for the system's roots; the text
        ``true`` stands for True. host: of the app's address. Raises UserError."""
        roots = _given_roots(given)
        trust = cls(None if roots is None else _certificates(roots), host.strip("[]").partition("%")[0])
        try:
            trust.context()
        except (OSError, ValueError):
            raise UserError(f"tls={_short(given)}: there are no certificates as PEM in it") from None
        return trust

    def context(self) -> ssl.SSLContext:
        """Made once for all connections. Raises OSError, ValueError for roots that are none."""
        return _caller_context(self)


def _given_roots(given: object) -> bytes | None:
    if given is True or given == "true":
        return None
    if isinstance(given, bytes):
        return given
    if isinstance(given, str) and given.lstrip().startswith(_PEM):
        return given.encode()
    if not isinstance(given, str | os.PathLike) or not os.fspath(given):
        raise UserError(
            f"tls={_short(given)}: give the file with the certificates to trust, their PEM, or True for those of the "
            "system; without TLS leave it out"
        )
    try:
        with open(os.path.expanduser(given), "rb") as file:
            return file.read()
    except (OSError, ValueError) as error:
        raise UserError(f"tls={_short(given)}: cannot be read: {getattr(error, 'strerror', None) or error}") from None


def is_content(given: object) -> bool:
    """Whether that is what a file has, in place of its path. It may be a private key, so no message repeats it."""
    return isinstance(given, bytes | bytearray) or _PEM in repr(given)


def _short(given: object) -> str:
    if is_content(given):
        return "<bytes>" if isinstance(given, bytes | bytearray) else "<PEM>"
    return f"{os.fspath(given) if isinstance(given, os.PathLike) else given!r:.200}"


def certificate_in(pem: bytes) -> bytes:
    """The first certificate of a text, in DER. Raises ValueError if there is none."""
    begin, end = (f"-----{word} CERTIFICATE-----" for word in ("BEGIN", "END"))
    _, found, rest = pem.decode("ascii", "replace").partition(begin)
    body, ended, _ = rest.partition(end)
    if not (found and ended):
        raise ValueError("there is no certificate")
    return ssl.PEM_cert_to_DER_cert(begin + body + end)


def _certificates(pem: bytes) -> bytes:
    """The certificates of a text alone: what is trusted goes to Spark as an option, where no private key that stands
    beside them may be, and where all is text. A certificate that is cut short stays, so that OpenSSL refuses it."""
    return b"\n".join(_CERTIFICATE.findall(pem)) + b"\n"


def binding_of(certificate: bytes) -> bytes:
    """What both ends' proofs cover of the server's certificate, given in DER; nothing without one."""
    return hashlib.sha256(certificate).digest() if certificate else b""


@lru_cache(CONTEXTS_MAX)
def _caller_context(trust: TlsTrust) -> ssl.SSLContext:
    context = _context(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = trust.host is not None
    if trust.identity is not None:
        trust.identity.load(context)
    if trust.roots is None:
        context.load_default_certs()
    else:
        _trust(context, trust.roots)
    return context


def _context(protocol: int) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.options |= ssl.OP_IGNORE_UNEXPECTED_EOF  # it is the end of what comes alone: this end may go on to write
    return context


def _trust(context: ssl.SSLContext, roots: bytes) -> None:
    with _file_of(roots) as file:
        context.load_verify_locations(file)
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # each of them, also one that another has issued


@contextmanager
def _file_of(pem: bytes) -> Iterator[str]:
    """A path for OpenSSL, which reads files alone. On Linux this is memory, elsewhere a file without a name."""
    has_memory = hasattr(os, "memfd_create")
    with os.fdopen(os.memfd_create("upriver"), "wb") if has_memory else tempfile.TemporaryFile() as file:
        file.write(pem)
        file.flush()
        file.seek(0)
        yield f"/dev/fd/{file.fileno()}"


class TlsSocket:
    """A connection over TLS. As of a ByteStream, one thread at a time writes, one reads; any may shut it down.

    A record that ``send`` has encrypted, and that the network has not taken whole, does not count as sent. Its bytes
    must be the beginning of what is written next.
    """

    def __init__(self, connected: socket.socket, context: ssl.SSLContext, host: str | None, *, is_server: bool) -> None:
        """Use ``of_server`` or ``of_caller``."""
        self._socket = connected
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=is_server, server_hostname=host)
        self._lock = threading.Lock()
        """Guards these three."""
        self._unsent = memoryview(b"")
        """Encrypted bytes that the network has not taken. The writer's."""
        self._encrypted_ahead = 0
        """How many bytes of the next write they are. The writer's."""
        self._idle_s: float | None = None
        """Seconds that a read waits, if the system's own limit says so."""
        self.heard_bytes = 0
        """Encrypted bytes that have come."""

    # The handshake

    @classmethod
    def of_server(cls, connected: socket.socket, context: ssl.SSLContext) -> Self:
        """A caller's connection before its handshake: call ``shake_hands``. It must not block."""
        return cls(connected, context, None, is_server=True)

    @classmethod
    def of_caller(cls, connected: socket.socket, trust: TlsTrust, give_up_at: float) -> Self:
        """The connection to a server, after the handshake. give_up_at: by the monotonic clock.

        Raises ssl.SSLCertVerificationError for a server that is not trusted, PlainServer, TimeoutError, OSError.
        """
        made = cls(connected, trust.context(), trust.host, is_server=False)
        while not made._goes_on():
            if (left := give_up_at - time.monotonic()) <= 0:  # also of a server that always says a little more
                raise TimeoutError
            connected.settimeout(left)
            made._hear_handshake(connected.recv(RECORD_BYTES))
        return made

    def shake_hands(self) -> bool:
        """Go on with the handshake as far as that goes without waiting; returns whether it is over. Until then, wait
        for bytes, and if something is ``unsent`` until the socket takes it. Raises PlainCaller, OSError."""
        while not (is_over := self._goes_on()):
            try:
                self._hear_handshake(self._socket.recv(RECORD_BYTES))
            except BlockingIOError:
                break
        return is_over and not self._unsent

    @property
    def unsent(self) -> int:
        """Encrypted bytes that the network has not taken yet."""
        return len(self._unsent)

    def other_certificate(self) -> bytes | None:
        """The other end's, in DER, if it has shown one; it has been checked."""
        return self._tls.getpeercert(binary_form=True)

    def _hear_handshake(self, came: bytes) -> None:
        if not came:
            raise ConnectionError("closed in the handshake of TLS")
        if not self.heard_bytes:
            if self._tls.server_side and came[0] != _HANDSHAKE:
                raise PlainCaller("it does not speak TLS")
            if not self._tls.server_side and came.startswith(_PLAIN_GREETING):
                raise PlainServer("it does not speak TLS")
        self.heard_bytes += len(came)
        if self.heard_bytes > HANDSHAKE_BYTES_MAX:
            raise ConnectionError(f"a handshake of TLS of more than {HANDSHAKE_BYTES_MAX:,} bytes")
        self._incoming.write(came)

    def _goes_on(self) -> bool:
        """Take a step; returns whether the handshake is over."""
        try:
            self._tls.do_handshake()
            is_over = True
        except ssl.SSLWantReadError:
            is_over = False
        except OSError:
            with suppress(OSError):  # it says why, if that can be said at once
                self._socket.send(self._outgoing.read())
            raise
        self._unsent = memoryview(bytes(self._unsent) + self._outgoing.read())
        with suppress(BlockingIOError):
            self._send_on()
        return is_over

    # Writing

    def send(self, data: Bytes, flags: int = 0) -> int:
        """Write as much of it as the network takes at once; returns how many bytes. Raises BlockingIOError if none.
        flags: of the socket below, so that it does not block."""
        view = memoryview(data).cast("B")
        written = self._encrypted_ahead
        self._send_on(flags)
        while written < len(view):
            part = view[written : written + PLAIN_BYTES]
            self._unsent, self._encrypted_ahead = self._encrypted(part), len(part)
            try:
                self._send_on(flags)
            except BlockingIOError:
                if not written:
                    raise
                break
            written += len(part)
        return written

    def sendall(self, data: Bytes) -> None:
        self.sendmsg((data,))

    def sendmsg(self, parts: Sequence[Bytes]) -> int:
        """Write all parts, one behind the other, small ones together; returns how many bytes they have."""
        ahead = self._encrypted_ahead
        self._send_on()
        count, waiting, waiting_bytes = 0, list[memoryview](), 0
        for part in parts:
            view = memoryview(part).cast("B")
            count += len(view)
            skipped = min(ahead, len(view))
            ahead -= skipped
            for start in range(skipped, len(view), ENCRYPT_BYTES):
                waiting.append(view[start : start + ENCRYPT_BYTES])
                waiting_bytes += len(waiting[-1])
                if waiting_bytes >= ENCRYPT_BYTES:
                    self._socket.sendall(self._encrypted(*waiting))
                    waiting, waiting_bytes = [], 0
        if waiting:
            self._socket.sendall(self._encrypted(*waiting))
        return count

    def _encrypted(self, *parts: memoryview) -> memoryview:
        with self._lock:
            for part in parts:
                while part:
                    part = part[self._tls.write(part) :]
            return memoryview(self._outgoing.read())

    def _send_on(self, flags: int = 0) -> None:
        """Send what is left of before. Raises BlockingIOError if the socket takes no more, and does not block."""
        while self._unsent:
            self._unsent = self._unsent[self._socket.send(self._unsent, flags) :]
        self._encrypted_ahead = 0

    # Reading

    def recv(self, bytes_max: int, flags: int = 0) -> bytes:
        """What has come, at most so many bytes; waits as the socket below does; nothing at the end. Of
        ``RECEIVE_BYTES`` or more it leaves nothing decrypted behind, so the descriptor says whether more comes. flags:
        those of ``is_quiet``, to see whether anything is there."""
        if flags & socket.MSG_PEEK:
            return b"\0" if self._has_some() else self._socket.recv(1, flags)
        data = self._decrypted(bytes_max)
        if data is None:
            began = time.monotonic()
            while (data := self._decrypted_of(self._receive(bytes_max), bytes_max)) is None:
                self._check_time(began)
        return data

    def recv_into(self, buffer: memoryview) -> int:
        """As ``recv``, into this buffer; returns how many bytes."""
        data = self.recv(min(len(buffer), RECEIVE_BYTES))
        buffer[: len(data)] = data
        return len(data)

    def _receive(self, bytes_max: int) -> bytes:
        """Wait for bytes. This takes no more of them than the reader has room for, or than a record has."""
        return self._socket.recv(max(RECORD_BYTES, min(bytes_max, RECEIVE_BYTES) - self._incoming.pending))

    def _decrypted_of(self, came: bytes, bytes_max: int) -> bytes | None:
        self.heard_bytes += len(came)
        with self._lock:
            if came:
                self._incoming.write(came)
            else:
                self._incoming.write_eof()
        return self._decrypted(bytes_max)

    def _decrypted(self, bytes_max: int) -> bytes | None:
        """``None``: more must come first."""
        parts: list[bytes] = []
        left = bytes_max
        with self._lock:
            while left and self._has_some():
                try:
                    part = self._tls.read(min(left, RECORD_BYTES))
                except ssl.SSLWantReadError:
                    break
                except (ssl.SSLEOFError, ssl.SSLZeroReturnError):
                    part = b""
                if not part:
                    return b"".join(parts)
                parts.append(part)
                left -= len(part)
            if self._outgoing.pending > UNANSWERED_BYTES_MAX:  # the next write takes them along
                raise ConnectionError("it asks for new keys of TLS without end")
        return parts[0] if len(parts) == 1 else b"".join(parts) if parts else None

    def _has_some(self) -> bool:
        return bool(self._tls.pending() or self._incoming.pending or self._incoming.eof)

    def _check_time(self, began: float) -> None:
        """A part of a record has come, or records without content: the reader's time does not begin anew, and a reader
        that does not wait does not read on either, since the other end can send those as fast as this one reads."""
        limit = self._socket.gettimeout()
        if limit == 0:
            raise BlockingIOError("no content has come yet")
        if limit and time.monotonic() > began + limit:
            raise TimeoutError("no whole record of TLS has come in time")
        if self._idle_s is not None and time.monotonic() > began + self._idle_s:
            raise BlockingIOError("no whole record of TLS has come in time")

    # As of a socket

    def setsockopt(self, level: int, option: int, value: int | bytes) -> None:
        if option == socket.SO_RCVTIMEO and level == socket.SOL_SOCKET and isinstance(value, bytes):
            whole, micros = _TIME.unpack(value)
            self._idle_s = whole + micros / 1_000_000
        self._socket.setsockopt(level, option, value)

    def settimeout(self, seconds: float | None) -> None:
        self._socket.settimeout(seconds)

    def setblocking(self, is_blocking: bool) -> None:
        self._socket.setblocking(is_blocking)

    def getpeername(self) -> Any:
        return self._socket.getpeername()

    def fileno(self) -> int:
        return self._socket.fileno()

    def shutdown(self, how: int) -> None:
        """The other end sees the end without a word of TLS: the frames say where a conversation may end."""
        self._socket.shutdown(how)

    def close(self) -> None:
        self._socket.close()

    def detach(self, last: bytes) -> tuple[socket.socket, bytes]:
        """The socket below, and the bytes that another process must write to it so that ``last`` arrives."""
        return self._socket, bytes(self._encrypted(memoryview(last)))
