"""The first bytes of a connection: both ends prove that they know one key, and the key never crosses the wire.

::

    server   GREETING   magic, nonce
    caller   HELLO      magic, purpose, nonce, proof
    server   ANSWER     verdict, number, proof

All three have a fixed size, so nothing that a stranger sends is parsed. A proof is an HMAC-SHA256 of its maker's role,
the purpose and both nonces, under the key that the purpose needs: the app's token for what clients ask, the cluster's
secret for channels. Both ends derive from the same key and nonces a session key for each direction; a channel seals
its frames with them (:mod:`.frames`).
"""

import hmac
import secrets
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from types import MappingProxyType

MAGIC = b"upriver1"
"""Also the version of all that follows on the connection."""
NONCE_BYTES = 32
PROOF_BYTES = 32
GREETING = struct.Struct(f"<{len(MAGIC)}s{NONCE_BYTES}s")
HELLO = struct.Struct(f"<{len(MAGIC)}s8s{NONCE_BYTES}s{PROOF_BYTES}s")
ANSWER = struct.Struct(f"<BI{PROOF_BYTES}s")


class Identity(StrEnum):
    """What a caller has proved to be."""

    CLIENT = "client"
    CLUSTER = "cluster"


class Purpose(StrEnum):
    """What a connection is for; at most 8 letters."""

    LOOKUPS = "lookups"
    CALLS = "calls"
    CHANNEL = "channel"

    @property
    def needs(self) -> Identity:
        """The identity that opens it."""
        return Identity.CLUSTER if self is Purpose.CHANNEL else Identity.CLIENT


class Verdict(IntEnum):
    """A server's answer to a hello."""

    WELCOME = 0
    WRONG_KEY = 1
    FULL = 2
    """``number`` tells how many connections of this kind the server takes."""
    NOT_SERVED = 3


@dataclass(frozen=True, slots=True)
class HandshakeKeys:
    """What a server holds the proofs of its callers against. token: clients know it. secret: only the cluster does."""

    token: str = field(repr=False)
    secret: bytes = field(repr=False)

    def of(self, identity: Identity) -> bytes:
        return self.secret if identity is Identity.CLUSTER else self.token.encode()


@dataclass(frozen=True, slots=True)
class Session:
    """What one end of a connection seals its frames with, and those of the other end."""

    sends: bytes = field(repr=False)
    hears: bytes = field(repr=False)


_PURPOSES: Mapping[bytes, Purpose] = MappingProxyType(
    {purpose.encode().ljust(8, b"\0"): purpose for purpose in Purpose}
)


@dataclass(frozen=True, slots=True)
class Exchange:
    """One handshake, with the nonces of both ends."""

    purpose: Purpose
    server_nonce: bytes
    caller_nonce: bytes

    def derived(self, key: bytes, label: bytes) -> bytes:
        """32 bytes that only an end with the key can make."""
        purpose = self.purpose.encode().ljust(8, b"\0")
        return hmac.digest(key, b"".join((MAGIC, label, purpose, self.server_nonce, self.caller_nonce)), "sha256")

    def proof_of_caller(self, key: bytes) -> bytes:
        return self.derived(key, b"caller proves")

    def proof_of_server(self, key: bytes) -> bytes:
        return self.derived(key, b"server proves")

    def session_of_server(self, key: bytes) -> Session:
        return Session(self.derived(key, b"server sends"), self.derived(key, b"caller sends"))

    def session_of_caller(self, key: bytes) -> Session:
        server = self.session_of_server(key)
        return Session(server.hears, server.sends)


def nonce() -> bytes:
    return secrets.token_bytes(NONCE_BYTES)


def greeting(server_nonce: bytes) -> bytes:
    """What a server sends first."""
    return GREETING.pack(MAGIC, server_nonce)


def read_hello(hello: bytes, server_nonce: bytes) -> tuple[Exchange, bytes] | None:
    """The exchange that a hello belongs to, and its proof, which is unchecked; ``None`` for what is no hello."""
    magic, purpose, caller_nonce, proof = HELLO.unpack(hello)
    if magic != MAGIC or purpose not in _PURPOSES:
        return None
    return Exchange(_PURPOSES[purpose], server_nonce, caller_nonce), proof


def hello(exchange: Exchange, key: bytes) -> bytes:
    """What a caller sends."""
    purpose = exchange.purpose.encode().ljust(8, b"\0")
    return HELLO.pack(MAGIC, purpose, exchange.caller_nonce, exchange.proof_of_caller(key))


def is_same(proof: bytes, expected: bytes) -> bool:
    """Compare in constant time."""
    return hmac.compare_digest(proof, expected)
