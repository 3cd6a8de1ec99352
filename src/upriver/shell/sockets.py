"""Cutting this process's own connections, where pyarrow offers no way to end a call from the server's side."""

import ipaddress
import os
import socket
from urllib.parse import unquote


def cut_connections(port: int, peer: str | None = None) -> int:
    """Cut this process's connections that came in on ``port``: all, or only ``peer``'s. Returns how many.

    peer: as ``ServerCallContext.peer`` gives it. What was using a connection sees it closed, as if the network had
    failed; the descriptors stay with their owner. Does nothing where the system has no ``/dev/fd``.
    """
    if not os.path.isdir("/dev/fd"):
        return 0
    wanted = None if peer is None else _parse_peer(peer)
    return sum(_cut_if(int(name), port, wanted) for name in os.listdir("/dev/fd"))


def _cut_if(descriptor: int, port: int, wanted: tuple[str, int] | None) -> bool:
    try:
        duplicate = os.dup(descriptor)
    except OSError:
        return False  # closed since it was listed
    try:
        candidate = socket.socket(fileno=duplicate)
    except OSError:
        os.close(duplicate)
        return False  # not a socket
    with candidate:
        try:
            if candidate.family not in (socket.AF_INET, socket.AF_INET6) or candidate.getsockname()[1] != port:
                return False
            host, remote_port = candidate.getpeername()[:2]
            if wanted is not None and wanted != (_plain_host(host), remote_port):
                return False
            candidate.shutdown(socket.SHUT_RDWR)
        except OSError:
            return False  # the listening socket, or one that has just gone
        return True


def _parse_peer(peer: str) -> tuple[str, int]:
    """``ipv4:1.2.3.4:5`` or ``ipv6:[::1]:5`` (perhaps percent-encoded) as host and port."""
    host, _, port = unquote(peer).partition(":")[2].rpartition(":")
    return _plain_host(host.strip("[]")), int(port)


def _plain_host(host: str) -> str:
    address = ipaddress.ip_address(host.partition("%")[0])
    mapped = getattr(address, "ipv4_mapped", None)
    return str(mapped or address)
