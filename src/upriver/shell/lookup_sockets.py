"""Where a worker listens for lookups.

A worker that listens on loopback is looked up from its own machine alone. There, where the system has them (Linux), a
socket with a name takes half the time of one of the network (``docs/design/lookups.md``).
"""

import ipaddress
import secrets
import socket
import sys
from typing import TypeAlias

Place: TypeAlias = int | str
"""A port of the worker's host, or the name of a socket of its machine, without the zero byte that it begins with."""

NAME_BYTES = 16
"""Of a name, beside its beginning: drawn at random, for there is one space of names for a whole machine."""
CALLERS_MAX = 1024
"""Callers of a socket with a name that wait to be taken; one more is turned away, and may call again."""


def listener(host: str) -> socket.socket:
    """Listens on a place of its own. host: name or address of the interface. Raises OSError."""
    family, _, _, _, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
    if sys.platform == "linux" and ipaddress.ip_address(address[0]).is_loopback:
        named = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        named.bind(f"\0upriver-{secrets.token_hex(NAME_BYTES)}")
        named.listen(CALLERS_MAX)
        return named
    return socket.create_server((host, 0), family=family)


def place_of(listening: socket.socket) -> Place:
    """Of what :func:`listener` gives: what a client must be told besides the host."""
    name = listening.getsockname()
    return name.decode()[1:] if isinstance(name, bytes) else int(name[1])


def connected_to(host: str, place: Place, timeout: float) -> socket.socket:
    """A connection to a worker's place. timeout: seconds, for each thing it does. Raises OSError."""
    if isinstance(place, int):
        return socket.create_connection((host, place), timeout)
    named = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        named.settimeout(timeout)
        named.connect(f"\0{place}")
    except BaseException:
        named.close()
        raise
    return named
