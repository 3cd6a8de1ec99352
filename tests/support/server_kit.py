"""What tests of servers share: an app's keys, and both kinds of callers."""

import os
import socket
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from upriver.net.handshake import HandshakeKeys, Purpose, Session
from upriver.net.remote import Remote
from upriver.net.server import Action, Calls, Get, Listen, Piece, Server
from upriver.net.tls import TlsIdentity

TOKEN = "s3cret-t0ken"
SECRET = bytes(range(32))
KEYS = HandshakeKeys(TOKEN, SECRET)
SESSION = Session(b"one way", b"the other way")
SECONDS_MAX = 10.0
"""Seconds that a test waits for what must come at once."""

_NOTHING: Mapping[str, Any] = MappingProxyType({})


def keys_of(tls: TlsIdentity | None) -> HandshakeKeys:
    """The keys, and what the server shows."""
    return replace(KEYS, tls=tls)


def client_of(address: str, tls: TlsIdentity | None = None) -> Remote:
    """A server, for a caller with the token. tls: what the server shows."""
    return Remote.parse(address, TOKEN, None if tls is None else tls.client_trust)


def peer_of(address: str, tls: TlsIdentity | None = None) -> Remote:
    """A server, for a caller with the cluster's secret. tls: what both show."""
    return Remote(address, SECRET, None if tls is None else tls.trust)


def calls_server(
    actions: Mapping[str, Action] = _NOTHING,
    gets: Mapping[str, Get] = _NOTHING,
    pieces: Mapping[str, Piece] = _NOTHING,
    port: int = 0,
    tls: TlsIdentity | None = None,
) -> Server:
    """A server that is called and nothing else. tls: what it shows."""
    return Server(keys_of(tls), {Purpose.CALLS: Calls(actions, gets, pieces=pieces)}, listen=Listen(port=port))


def cut_connections(port: int) -> int:
    """Cut this process's connections that came in on ``port``, as a network may. Returns how many."""
    return sum(_cut_if(int(name), port) for name in os.listdir("/dev/fd"))


def _cut_if(descriptor: int, port: int) -> bool:
    try:
        copy = os.dup(descriptor)
    except OSError:
        return False  # closed since it was listed
    try:
        candidate = socket.socket(fileno=copy)
    except OSError:
        os.close(copy)
        return False  # no socket
    with candidate:
        try:
            if candidate.family not in (socket.AF_INET, socket.AF_INET6) or candidate.getsockname()[1] != port:
                return False
            candidate.getpeername()
            candidate.shutdown(socket.SHUT_RDWR)
        except OSError:
            return False  # the listening socket, or one that has just gone
        return True
