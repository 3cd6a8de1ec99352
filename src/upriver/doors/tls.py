"""TLS of the doors: one certificate and its key, which all doors of an app show."""

import os
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from upriver.errors import DeclarationError

HANDSHAKE_S_MAX = 5.0
"""Seconds that a caller may take for the handshake of TLS."""


@dataclass(frozen=True, slots=True)
class DoorCertificate:
    """chain: the file with the certificate, and those between it and a root, as PEM. key: the file with its private
    key, without a password."""

    chain: Path
    key: Path

    @classmethod
    def of(cls, chain: str | os.PathLike[str] | None, key: str | os.PathLike[str] | None) -> Self | None:
        """From an app's arguments ``tls_certificate`` and ``tls_key``; ``None`` if neither is given. Raises
        DeclarationError if only one is, or if the two cannot be used."""
        if chain is None and key is None:
            return None
        if chain is None or key is None:
            lacking = "tls_certificate" if chain is None else "tls_key"
            raise DeclarationError(f"{lacking}= is missing: give the files of the certificate and of its key, as PEM")
        made = cls(_file("tls_certificate", chain), _file("tls_key", key))
        made.context()
        return made

    def context(self) -> ssl.SSLContext:
        """For a server. Raises DeclarationError."""
        made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        made.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            made.load_cert_chain(self.chain, self.key, password=self._refuse_password)
        except (ssl.SSLError, OSError) as error:
            reason = getattr(error, "reason", None)
            if reason == "KEY_VALUES_MISMATCH":
                why = f"the key does not belong to the first certificate of {self.chain}"
            else:
                why = f"{self.chain} and {self.key} are not a certificate and a private key as PEM ({reason or error})"
            raise DeclarationError(f"tls_certificate=, tls_key=: {why}") from None
        return made

    def _refuse_password(self) -> str:
        """OpenSSL would ask at the terminal."""
        raise DeclarationError(
            f"tls_key={str(self.key)!r}: the key has a password: give one without, in a file that only the app's user "
            f"can read"
        )


def _file(what: str, given: str | os.PathLike[str]) -> Path:
    if not isinstance(given, str | os.PathLike):
        raise DeclarationError(f"{what}={given!r}: give the path of a file")
    path = Path(given).absolute()
    try:
        path.read_bytes()
    except OSError as error:
        raise DeclarationError(f"{what}={str(given)!r} cannot be read: {error.strerror or error}") from None
    return path
