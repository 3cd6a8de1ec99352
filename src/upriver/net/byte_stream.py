"""ByteStream: one end of a socket, encrypted or not, as bytes that come in pieces of any size.

``Watch``: time limits for calls that have none, since a read of a socket ends only when bytes come or it is cut.

``Latch``: one thread waits until another opens it. An Event or a Future would do; this costs a tenth of one.
"""

import socket
import struct
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import inf

import numpy as np

from upriver.net.tls import TlsSocket

BUFFER_BYTES = 1 << 16
"""Bytes that are read at a time, if they are there: nearly always a whole frame."""
GROWTH_BYTES = 4 << 20
"""Bytes that a server allocates at first for a larger read from a client; then twice as many as have come."""
ALLOCATED_BYTES_MAX = 256 << 20
"""Bytes that a client allocates at first for a larger read from a server; then twice as many as have come."""
SECONDS_MIN = 0.001
"""Seconds that a call waits for bytes when no time is left: 0 would make the socket non-blocking."""
PROBE_AFTER_S, PROBE_EVERY_S, PROBES_MAX = 60, 15, 4
"""Seconds of silence after which the system probes whether the other host is there, and seconds between two probes. So
many probes without an answer end the connection."""

_AT_ONCE = getattr(socket, "MSG_DONTWAIT", 0)
"""Flag of a call that does not wait; 0 where the system has none."""


class ByteStream:
    """One thread at a time writes, one reads; any may ``cut``. A socket's own errors are raised as OSError."""

    def __init__(self, connected: socket.socket | TlsSocket) -> None:
        connected.settimeout(None)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        keep_alive(connected)
        self._socket = connected
        self._held = b""
        """Bytes that were read, and not taken yet."""
        host, port = connected.getpeername()[:2]
        self.peer = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        """Address of the other end, for messages."""

    def limit(self, send_s: float, idle_s: float) -> None:
        """From now on a write that makes no progress for ``send_s``, and a read to which nothing comes for ``idle_s``,
        raises OSError. The system keeps these limits: they cost no call."""
        for option, seconds in ((socket.SO_SNDTIMEO, send_s), (socket.SO_RCVTIMEO, idle_s)):
            whole = int(seconds)
            self._socket.setsockopt(
                socket.SOL_SOCKET, option, struct.pack("ll", whole, int((seconds - whole) * 1_000_000))
            )

    def wait_at_most(self, seconds: float | None) -> None:
        """From now on a read or write that takes longer raises TimeoutError; with ``None``, none does."""
        self._socket.settimeout(None if seconds is None else max(SECONDS_MIN, seconds))

    def read(self, size: int, give_up_at: float) -> bytes:
        """So many bytes; fewer if the other end has closed the stream. give_up_at: monotonic, for all bytes together.
        Raises TimeoutError, and keeps the bytes that have come."""
        while len(self._held) < size:
            self._socket.settimeout(max(SECONDS_MIN, give_up_at - time.monotonic()))
            more = self._socket.recv(BUFFER_BYTES)
            if not more:
                break
            self._held += more
        self._socket.settimeout(None)
        return self._take(size)

    def is_at_end(self) -> bool:
        """Wait until bytes come, unless some are there; returns whether the other end has closed the stream."""
        if not self._held:
            self._held = self._socket.recv(BUFFER_BYTES)
        return not self._held

    def is_quiet(self) -> bool:
        """Whether the stream is open and nothing has come: true of a stream that waits for its next question."""
        if self._held or not _AT_ONCE:
            return not self._held
        try:
            self._socket.recv(1, _AT_ONCE | socket.MSG_PEEK)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False  # closed, or something came unasked

    def take(self, size: int, came: Callable[[int], object] | None = None) -> bytes | bytearray | memoryview:
        """So many bytes; a large read goes straight into its own buffer.

        came: told how many bytes of a large read have come, each time; may raise. Memory is allocated as bytes come,
        with ``came`` from fewer bytes on. Raises ConnectionError if the stream ends before.
        """
        if size > BUFFER_BYTES:
            return self._take_large(size, came)
        while len(self._held) < size:
            more = self._socket.recv(BUFFER_BYTES)
            if not more:
                raise _cut_short()
            self._held += more
        return self._take(size)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Write all of it; waits while the other end does not keep up."""
        self._socket.sendall(data)

    def write_together(self, parts: Sequence[bytes | memoryview]) -> None:
        """Write all parts, one behind the other, without joining them first."""
        sent = self._socket.sendmsg(parts)
        for part in parts:
            if sent < len(part):
                self._socket.sendall(memoryview(part)[sent:])
            sent = max(0, sent - len(part))

    def write_at_once(self, data: bytes | memoryview) -> int:
        """Write as much of it as fits without waiting; returns how many bytes that was."""
        if not _AT_ONCE:
            return 0
        try:
            return self._socket.send(data, _AT_ONCE)
        except BlockingIOError:
            return 0

    def unblock(self) -> None:
        """From now on the caller uses ``read_at_once`` and ``write_at_once`` alone, and waits by ``fileno``."""
        self._socket.setblocking(False)

    @property
    def fileno(self) -> int:
        """The socket's descriptor; -1 once it is closed."""
        return self._socket.fileno()

    def read_at_once(self, bytes_max: int) -> bytes | None:
        """What has come; nothing if the other end has closed the stream, ``None`` if nothing has come: at once after
        ``unblock``, else in the time that ``limit`` has given reads."""
        if self._held:
            return self._take(len(self._held))
        try:
            return self._socket.recv(bytes_max)
        except BlockingIOError:
            return None

    def end_writing(self) -> None:
        """Tell the other end that nothing more comes; it may go on."""
        self._socket.shutdown(socket.SHUT_WR)

    def cut(self) -> None:
        """End the stream: a thread that waits at either end sees it closed."""
        with suppress(OSError):  # the other end cut it first
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Cut, and give the socket back; the stream is of no more use."""
        self.cut()
        self._socket.close()

    def detach(self, last: bytes) -> tuple[socket.socket, bytes]:
        """The socket, for a process that writes ``last`` to it, and nothing else; and the bytes that it must write. To
        close the socket leaves the connection to other processes that hold it."""
        if isinstance(self._socket, TlsSocket):
            return self._socket.detach(last)
        return self._socket, last

    def _take(self, size: int) -> bytes:
        data, self._held = self._held[:size], self._held[size:]
        return data

    def _take_large(self, size: int, came: Callable[[int], object] | None) -> bytearray | memoryview:
        begun = self._take(size)
        if came is None:
            return self._filled(size, begun)
        data = bytearray(min(size, GROWTH_BYTES))
        data[: len(begun)] = begun
        filled = len(begun)
        while filled < size:
            if filled == len(data):
                data.extend(bytes(min(size - filled, filled)))
            with memoryview(data) as whole:
                count = self._socket.recv_into(whole[filled:])
            if not count:
                raise _cut_short()
            came(count)
            filled += count
        return data

    def _filled(self, size: int, begun: bytes) -> memoryview:
        data = np.empty(min(size, ALLOCATED_BYTES_MAX), np.uint8)  # filling it with zeros first would take time
        data[: len(begun)] = np.frombuffer(begun, np.uint8)
        filled = len(begun)
        while filled < size:
            if filled == len(data):
                data = np.concatenate((data, np.empty(min(size - filled, filled), np.uint8)))
            count = self._socket.recv_into(data.data[filled:])
            if not count:
                raise _cut_short()
            filled += count
        return data.data


def keep_alive(connected: socket.socket | TlsSocket) -> None:
    """Make the system notice a host that has gone without closing the connection."""
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", PROBE_AFTER_S),
        ("TCP_KEEPINTVL", PROBE_EVERY_S),
        ("TCP_KEEPCNT", PROBES_MAX),
    ):
        if (option := getattr(socket, name, None)) is not None:
            connected.setsockopt(socket.IPPROTO_TCP, option, value)


def _cut_short() -> ConnectionError:
    return ConnectionError("closed in the middle of a frame")


@dataclass(eq=False, slots=True)
class Limit:
    """The limit of a block: ``call`` is called if the block lasts until ``due_at``, and ``again_after`` seconds later
    again."""

    watch: "Watch"
    due_at: float
    again_after: float | None
    call: Callable[[], None]

    def __enter__(self) -> None:
        self.watch.begin(self)

    def __exit__(self, *_: object) -> None:
        self.watch.end(self)


class Watch:
    """Calls back when time is up, on one thread of its own that starts with the first use.

    The thread sleeps until the earliest time that it was given, even if that limit has ended. So a use costs a few
    microseconds, and hardly ever wakes it.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        """Guards all that follows."""
        self._due: dict[Limit, float] = {}
        """By limit, when it is due."""
        self._wakes_at = inf
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def limit(self, due_at: float, call: Callable[[], None]) -> "Limit":
        """Call ``call`` if the block lasts until ``due_at``, in seconds of ``time.monotonic``.

        ``call`` must return at once. It never runs after the block.
        """
        return Limit(self, due_at, None, call)

    def every(self, seconds: float, call: Callable[[], None]) -> "Limit":
        """Call ``call`` every so many seconds while the block lasts; otherwise as :meth:`limit`."""
        return Limit(self, time.monotonic() + seconds, seconds, call)

    def begin(self, limit: "Limit") -> None:
        """Watch a limit from now on."""
        with self._changed:
            self._due[limit] = limit.due_at
            if limit.due_at < self._wakes_at:
                self._wakes_at = limit.due_at
                self._wake()

    def end(self, limit: "Limit") -> None:
        """Forget a limit."""
        with self._changed:
            self._due.pop(limit, None)

    def _wake(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="upriver-watch", daemon=True)
            self._thread.start()
        self._changed.notify()

    def close(self) -> None:
        """End the thread."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        with self._changed:
            while not self._is_closed:
                now = time.monotonic()
                for limit in [limit for limit, due_at in self._due.items() if due_at <= now]:
                    del self._due[limit]
                    if limit.again_after is not None:
                        self._due[limit] = now + limit.again_after
                    limit.call()
                self._wakes_at = min(self._due.values(), default=inf)
                self._changed.wait(None if self._wakes_at == inf else self._wakes_at - now)


class Latch:
    """Shut until any thread opens it, once. One thread waits for that."""

    __slots__ = ("_shut",)

    def __init__(self) -> None:
        self._shut = threading.Lock()
        self._shut.acquire()

    def open(self) -> None:
        """Let the waiting thread go on."""
        self._shut.release()

    def wait(self, seconds: float = threading.TIMEOUT_MAX) -> bool:
        """Whether it was opened in so many seconds. Do not call this again after it was."""
        return self._shut.acquire(timeout=min(max(0.0, seconds), threading.TIMEOUT_MAX))
