"""One end of a plain socket, as bytes: what is read comes in pieces of any size."""

import socket
import time
from contextlib import suppress

BUFFER_BYTES = 1 << 16
"""Bytes that are read at a time, if they are there: nearly always a whole frame."""
SECONDS_MIN = 0.001
"""Seconds that are waited for bytes when there is no time left: none would mean that a socket is never waited for."""

_AT_ONCE = getattr(socket, "MSG_DONTWAIT", 0)
"""Flag of a call that takes what fits and waits for nothing; 0 where the system has none."""


class ByteStream:
    """One thread at a time writes, one reads; any may ``cut``. A socket's own errors are raised as OSError."""

    def __init__(self, connected: socket.socket) -> None:
        connected.settimeout(None)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = connected
        self._held = b""
        """Read, and not taken yet."""
        host, port = connected.getpeername()[:2]
        self.peer = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        """Who is at the other end, for messages."""

    def read(self, size: int, give_up_at: float) -> bytes:
        """So many bytes; fewer if the other end has closed the stream. give_up_at: monotonic; there is one time for
        all of them, however they come. Raises TimeoutError, and keeps what has come."""
        while len(self._held) < size:
            self._socket.settimeout(max(SECONDS_MIN, give_up_at - time.monotonic()))
            more = self._socket.recv(BUFFER_BYTES)
            if not more:
                break
            self._held += more
        self._socket.settimeout(None)
        return self._take(size)

    def is_at_end(self) -> bool:
        """Wait until something comes, unless it is there already; whether the other end has closed the stream."""
        if not self._held:
            self._held = self._socket.recv(BUFFER_BYTES)
        return not self._held

    def take(self, size: int) -> bytes | bytearray:
        """So many bytes; what is large is read to where it stays. Raises ConnectionError if the stream ends before."""
        if size > BUFFER_BYTES:
            return self._take_large(size)
        while len(self._held) < size:
            more = self._socket.recv(BUFFER_BYTES)
            if not more:
                raise _cut_short()
            self._held += more
        return self._take(size)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Write all of it; waits while the other end does not keep up."""
        self._socket.sendall(data)

    def write_at_once(self, data: bytes) -> int:
        """Write as much of it as fits without waiting; how many bytes that was."""
        if not _AT_ONCE:
            return 0
        try:
            return self._socket.send(data, _AT_ONCE)
        except BlockingIOError:
            return 0

    def cut(self) -> None:
        """End the stream: whoever waits at either end sees it closed."""
        with suppress(OSError):  # the other end was faster
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Cut, and give the socket back; nobody may use the stream any more."""
        self.cut()
        self._socket.close()

    def _take(self, size: int) -> bytes:
        data, self._held = self._held[:size], self._held[size:]
        return data

    def _take_large(self, size: int) -> bytearray:
        data = bytearray(size)
        begun, rest = self._take(size), memoryview(data)
        rest[: len(begun)] = begun
        rest = rest[len(begun) :]
        while rest:
            count = self._socket.recv_into(rest)
            if not count:
                raise _cut_short()
            rest = rest[count:]
        return data


def _cut_short() -> ConnectionError:
    return ConnectionError("closed in the midst of a frame")
