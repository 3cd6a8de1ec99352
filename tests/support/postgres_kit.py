"""What tests of the PostgreSQL door share: a caller's bytes, and its side of SCRAM."""

import base64
import hashlib
import hmac
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from doors_kit import KeptRows

from upriver.doors.postgres.scram import MECHANISM, TokenVerifiers
from upriver.doors.postgres.session import PostgresSession

PASSWORD = "s3cret-t0ken"
VERIFIERS = TokenVerifiers({"operator": PASSWORD, "reader": "another"})
NONCE = "abcdefgh"


@contextmanager
def asking_to_cancel(connection: "psycopg.Connection[Any]") -> Iterator[None]:
    """Meanwhile, other connections ask again and again that this one's query be cancelled."""
    stop = threading.Event()

    def ask() -> None:
        while not stop.wait(0.05):
            connection.cancel_safe()

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        yield
    finally:
        stop.set()
        asking.join()


def framed(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack("!i", len(body) + 4) + body


def startup(**told: str) -> bytes:
    pairs = b"".join(f"{name}\0{value}\0".encode() for name, value in ({"user": "reader"} | told).items())
    return framed(b"", struct.pack("!i", 3 << 16) + pairs + b"\0")


def first_proof() -> bytes:
    data = f"n,,n=,r={NONCE}".encode()
    return framed(b"p", MECHANISM.encode() + b"\0" + struct.pack("!i", len(data)) + data)


def last_proof(challenge: str, password: str = PASSWORD) -> bytes:
    """challenge: the server's first message."""
    told = dict(part.split("=", 1) for part in challenge.split(","))
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), base64.b64decode(told["s"]), int(told["i"]))
    client_key = hmac.digest(salted, b"Client Key", "sha256")
    bare = f"c=biws,r={told['r']}"
    signed = f"n=,r={NONCE},{challenge},{bare}".encode()
    signature = hmac.digest(hashlib.sha256(client_key).digest(), signed, "sha256")
    proof = base64.b64encode(bytes(a ^ b for a, b in zip(client_key, signature, strict=True)))
    return framed(b"p", bare.encode() + b",p=" + proof)


def messages_in(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The server's messages."""
    place = 0
    while place < len(data):
        (length,) = struct.unpack_from("!i", data, place + 1)
        yield data[place : place + 1], data[place + 5 : place + 1 + length]
        place += 1 + length


def said(session: PostgresSession, data: bytes) -> list[tuple[bytes, bytes]]:
    """What the session answers to these bytes."""
    return list(messages_in(b"".join(session.receive(data))))


def kinds(answers: list[tuple[bytes, bytes]]) -> str:
    return b"".join(kind for kind, _ in answers).decode()


def new_session(rows: KeptRows | None = None) -> PostgresSession:
    return PostgresSession(rows or KeptRows(), VERIFIERS, 7, 11)


def trusted_session(rows: KeptRows | None = None) -> PostgresSession:
    """A session after its handshake."""
    session = new_session(rows)
    said(session, startup())
    ((_, challenge),) = said(session, first_proof())
    answers = said(session, last_proof(challenge[4:].decode()))
    assert kinds(answers).startswith("RR")
    assert kinds(answers).endswith("KZ")
    return session
