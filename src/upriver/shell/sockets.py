"""Cutting this process's own connections, where pyarrow offers no way to end a call from the server's side."""

import os
import socket


def cut_connections(port: int) -> int:
    """Cut this process's connections that came in on ``port``. Returns how many.

    What was using a connection sees it closed, as if the network had failed; the descriptors stay with their owner.
    Does nothing where the system has no ``/dev/fd``.
    """
    if not os.path.isdir("/dev/fd"):
        return 0
    return sum(_cut_if(int(name), port) for name in os.listdir("/dev/fd"))


def _cut_if(descriptor: int, port: int) -> bool:
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
            candidate.getpeername()
            candidate.shutdown(socket.SHUT_RDWR)
        except OSError:
            return False  # the listening socket, or one that has just gone
        return True
