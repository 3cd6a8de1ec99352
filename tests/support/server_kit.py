"""What tests of servers share: an app's keys, and both kinds of callers."""

import os
import socket
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from upriver.net.handshake import HandshakeKeys, Purpose, Session
from upriver.net.remote import Remote
from upriver.net.server import Action, Calls, Get, Listen, Piece, Server

TOKEN = "s3cret-t0ken"
SECRET = bytes(range(32))
KEYS = HandshakeKeys(TOKEN, SECRET)
SESSION = Session(b"one way", b"the other way")
SECONDS_MAX = 10.0
"""Seconds that a test waits for what must come at once."""

_NOTHING: Mapping[str, Any] = MappingProxyType({})


def client_of(address: str) -> Remote:
    """A server, for a caller with the token."""
    return Remote.parse(address, TOKEN)


def peer_of(address: str) -> Remote:
    """A server, for a caller with the cluster's secret."""
    return Remote(address, SECRET)


def calls_server(
    actions: Mapping[str, Action] = _NOTHING,
    gets: Mapping[str, Get] = _NOTHING,
    pieces: Mapping[str, Piece] = _NOTHING,
    port: int = 0,
) -> Server:
    """A server that is called and nothing else."""
    return Server(KEYS, {Purpose.CALLS: Calls(actions, gets, pieces=pieces)}, listen=Listen(port=port))


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
