"""SCRAM-SHA-256 (RFC 5802, RFC 7677), the server's side: the caller proves that it knows a token, and never sends it.

The user's name is not looked at: the token alone decides the role. So the proof is tried with each token of the app,
all of them every time.
"""

import base64
import binascii
import hashlib
import hmac
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from upriver.errors import AccessDenied

MECHANISM = "SCRAM-SHA-256"
ITERATIONS = 4_096
"""Of PBKDF2, as PostgreSQL does it. A random token needs none; a weak one is guessed in spite of them."""
SALT_BYTES = 16
NONCE_BYTES = 18
"""Random bytes of a nonce."""


@dataclass(frozen=True, slots=True)
class ScramVerifier:
    """What the server keeps of a token."""

    stored_key: bytes
    server_key: bytes

    @classmethod
    def of(cls, token: str, salt: bytes) -> Self:
        salted = hashlib.pbkdf2_hmac("sha256", token.encode(), salt, ITERATIONS)
        client_key = hmac.digest(salted, b"Client Key", "sha256")
        return cls(hashlib.sha256(client_key).digest(), hmac.digest(salted, b"Server Key", "sha256"))

    def proves(self, message: bytes, proof: bytes) -> bool:
        """Whether the proof is that of a caller that knows the token. Takes as long for a wrong proof."""
        signature = hmac.digest(self.stored_key, message, "sha256")
        client_key = bytes(a ^ b for a, b in zip(signature, proof.ljust(len(signature), b"\0"), strict=False))
        is_right = hmac.compare_digest(hashlib.sha256(client_key).digest(), self.stored_key)
        return is_right and len(proof) == len(signature)


class TokenVerifiers:
    """The verifiers of an app's tokens, by any name."""

    def __init__(self, tokens: Mapping[str, str]) -> None:
        self.salt = secrets.token_bytes(SALT_BYTES)
        self._verifiers = {name: ScramVerifier.of(token, self.salt) for name, token in tokens.items()}

    def find(self, message: bytes, proof: bytes) -> tuple[str, ScramVerifier] | None:
        """The token that the caller knows; all are tried, so that the time tells nothing."""
        found = [(name, each) for name, each in self._verifiers.items() if each.proves(message, proof)]
        return found[0] if found else None


class ScramExchange:
    """One caller's exchange: ``first``, then ``final``."""

    def __init__(self, verifiers: TokenVerifiers, nonce: str | None = None) -> None:
        self._verifiers = verifiers
        self._nonce = nonce or base64.b64encode(secrets.token_bytes(NONCE_BYTES)).decode()
        self._header = ""
        self._messages = ""

    def first(self, message: bytes) -> bytes:
        """The server's first message. Raises AccessDenied."""
        flag, _, rest = _text(message).partition(",")
        name, _, bare = rest.partition(",")
        if flag not in ("n", "y"):
            raise AccessDenied("channel binding needs TLS, which this server does not have")
        self._header = f"{flag},{name},"
        self._nonce = _attributes(bare).get("r", "") + self._nonce
        if not _attributes(bare).get("r"):
            raise AccessDenied("the SCRAM message has no nonce")
        salt = base64.b64encode(self._verifiers.salt).decode()
        answer = f"r={self._nonce},s={salt},i={ITERATIONS}"
        self._messages = f"{bare},{answer}"
        return answer.encode()

    def final(self, message: bytes) -> tuple[str, bytes]:
        """The name of the token that the caller knows, and the server's own proof. Raises AccessDenied."""
        text = _text(message)
        without_proof, _, _ = text.rpartition(",p=")
        told = _attributes(text)
        try:
            header, proof = (base64.b64decode(told.get(part, ""), validate=True) for part in ("c", "p"))
        except binascii.Error:
            raise AccessDenied("the SCRAM message is malformed") from None
        signed = f"{self._messages},{without_proof}".encode()
        found = self._verifiers.find(signed, proof)
        if found is None or told.get("r") != self._nonce or header != self._header.encode():
            raise AccessDenied("the password is none of the app's tokens")
        name, verifier = found
        return name, b"v=" + base64.b64encode(hmac.digest(verifier.server_key, signed, "sha256"))


def _text(message: bytes) -> str:
    try:
        return message.decode()
    except UnicodeDecodeError:
        raise AccessDenied("the SCRAM message is malformed") from None


def _attributes(text: str) -> dict[str, str]:
    """``a=b,c=d``; the value of each letter."""
    return {part[0]: part[2:] for part in text.split(",") if part[1:2] == "="}
