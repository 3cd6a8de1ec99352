"""The first bytes of a connection: both ends prove that they know one key, and the key never crosses the wire
(net.both_ends_prove_the_key, net.keys_stay_home).

::

    server   GREETING   magic, nonce
    caller   HELLO      magic, purpose, nonce, proof
    server   ANSWER     verdict, number, proof

All three have a fixed size, so the server parses nothing that an unauthenticated caller sends. A proof is an HMAC-
SHA256 of its maker's side, the purpose and both nonces, under the key that the purpose needs: a token of the app for
clients, the cluster's secret for channels. The token with which a client made its proof decides its role. Both ends
derive a session key for each direction from the same key and nonces, and seal all frames with them (:mod:`.frames`).

A caller sends the magic of its hello at once, and the rest after the greeting. So a server with TLS tells a caller
without it at once, and greets it with another magic.

Over TLS, proofs and session keys also cover the certificate that the server has shown. A server that has another
certificate, and passes all on to the app, fails the proof, however good that certificate is
(net.proofs_cover_the_certificate).
"""

import hmac
import secrets
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from types import MappingProxyType

from upriver.net.tls import TlsIdentity, binding_of

MAGIC = b"upriver2"
"""Also the version of the protocol on the connection."""
TLS_ONLY = b"give tls"
"""The magic with which a server with TLS greets a caller without it."""
NONCE_BYTES = 32
PROOF_BYTES = 32
GREETING = struct.Struct(f"<{len(MAGIC)}s{NONCE_BYTES}s")
HELLO = struct.Struct(f"<{len(MAGIC)}s8s{NONCE_BYTES}s{PROOF_BYTES}s")
ANSWER = struct.Struct(f"<BI{PROOF_BYTES}s")


class Identity(StrEnum):
    """What a caller has proved that it is."""

    CLIENT = "client"
    CLUSTER = "cluster"


class Role(IntEnum):
    """What the holder of a token may do. An operator may do all that a reader may."""

    READER = 1
    OPERATOR = 2


class Purpose(StrEnum):
    """The purpose of a connection; at most 8 letters."""

    LOOKUPS = "lookups"
    CALLS = "calls"
    CHANNEL = "channel"
    EXIT = "exit"

    @property
    def needs(self) -> Identity:
        """The identity that a caller needs for it."""
        return Identity.CLUSTER if self in (Purpose.CHANNEL, Purpose.EXIT) else Identity.CLIENT


class Verdict(IntEnum):
    """A server's answer to a hello."""

    WELCOME = 0
    WRONG_KEY = 1
    FULL = 2
    """``number`` says how many connections of this kind the server takes."""
    NOT_SERVED = 3
    NO_CERTIFICATE = 4
    """Over TLS, the cluster's own connections need one that the app's roots verify."""


@dataclass(frozen=True, slots=True)
class HandshakeKeys:
    """The keys that a server checks its callers' proofs with. token: known to operators. secret: only to the cluster.
    reader_token: known to clients that may only read; ``None``: there are none. tls: what the server shows; ``None``:
    it does not encrypt."""

    token: str = field(repr=False)
    secret: bytes = field(repr=False)
    reader_token: str | None = field(default=None, repr=False)
    tls: TlsIdentity | None = field(default=None, repr=False)

    def proved(self, exchange: "Exchange", proof: bytes) -> "ProvedKey | None":
        """The key that the caller has proved to know, of those that open its purpose; ``None`` if it is none of them.

        Compares with each of these keys, in constant time, so the time tells nothing of a key.
        """
        if exchange.purpose.needs is Identity.CLUSTER:
            candidates = [ProvedKey(self.secret, None)]
        else:
            candidates = [ProvedKey(self.token.encode(), Role.OPERATOR)]
            if self.reader_token is not None:
                candidates.append(ProvedKey(self.reader_token.encode(), Role.READER))
        found = [known for known in candidates if is_same(proof, exchange.proof_of_caller(known.key))]
        return found[0] if found else None


@dataclass(frozen=True, slots=True)
class ProvedKey:
    """A key that a caller knows, and the role that this gives it; the cluster has none."""

    key: bytes = field(repr=False)
    role: Role | None


@dataclass(frozen=True, slots=True)
class Session:
    """The session keys of one end: for the seals of its own frames, and of the other end's."""

    sends: bytes = field(repr=False)
    hears: bytes = field(repr=False)


_PURPOSES: Mapping[bytes, Purpose] = MappingProxyType(
    {purpose.encode().ljust(8, b"\0"): purpose for purpose in Purpose}
)


@dataclass(frozen=True, slots=True)
class Exchange:
    """One handshake, with the nonces of both ends. certificate: the server's, in DER; empty without TLS."""

    purpose: Purpose
    server_nonce: bytes
    caller_nonce: bytes
    certificate: bytes = b""

    def derived(self, key: bytes, label: bytes) -> bytes:
        """32 bytes that only an end with the key can make."""
        purpose = self.purpose.encode().ljust(8, b"\0")
        covered = (MAGIC, label, purpose, self.server_nonce, self.caller_nonce, binding_of(self.certificate))
        return hmac.digest(key, b"".join(covered), "sha256")

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
    """The first message of a server."""
    return GREETING.pack(MAGIC, server_nonce)


def greeting_of_tls() -> bytes:
    """What a server with TLS sends a caller without it."""
    return GREETING.pack(TLS_ONLY, bytes(NONCE_BYTES))


def read_hello(hello: bytes, server_nonce: bytes, certificate: bytes = b"") -> tuple[Exchange, bytes] | None:
    """The exchange that a hello belongs to, and its unchecked proof; ``None`` if it is no hello."""
    magic, purpose, caller_nonce, proof = HELLO.unpack(hello)
    if magic != MAGIC or purpose not in _PURPOSES:
        return None
    return Exchange(_PURPOSES[purpose], server_nonce, caller_nonce, certificate), proof


def hello(exchange: Exchange, key: bytes) -> bytes:
    """The message of a caller."""
    purpose = exchange.purpose.encode().ljust(8, b"\0")
    return HELLO.pack(MAGIC, purpose, exchange.caller_nonce, exchange.proof_of_caller(key))


def is_same(proof: bytes, expected: bytes) -> bool:
    """Compare in constant time."""
    return hmac.compare_digest(proof, expected)
