"""What waits to be written to a channel: many threads put, one iterates, and no more waits than may.

While nothing waits, who puts a small frame writes it, as far as that goes without waiting: another thread would have to
be woken for it, and would then want the interpreter's lock of whoever has just sent something and goes on.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterator

import pyarrow as pa

from upriver.net.frames import Chunk, Seals, chunks, joined

AT_ONCE_BYTES_MAX = 1 << 16
"""Bytes of a frame that its sender writes itself; a larger one would keep it."""


class Full(Exception):
    """More waits in an outbox than may."""


class Shut(Exception):
    """Nothing more is taken by an outbox."""


class Outbox:
    """Frames that wait to be written: many put, one thread iterates over what to write. That ends after the last frame.

    messages_max, bytes_max: while as much waits, no more is taken; so a frame of any size fits behind small ones.
    seals: of this direction; a frame is sealed when it is written, so seals are in the order of the wire.
    """

    def __init__(self, messages_max: int, bytes_max: int, seals: Seals) -> None:
        self._messages_max = messages_max
        self._bytes_max = bytes_max
        self._seals = seals
        self._write_at_once: Callable[[bytes], int] | None = None
        self._waiting: deque[tuple[int, Iterator[Chunk]]] = deque()
        """What is to be written of each frame, and how many bytes that is."""
        self._bytes = 0
        self._is_shut = self._is_writing = False
        self._changed = threading.Condition()

    def open(self, write_at_once: Callable[[bytes], int]) -> None:
        """From now on, who puts may write. write_at_once: waits for nothing, and says how many bytes it has written;
        raises OSError if the other end is gone, which is for others to notice."""
        with self._changed:
            self._write_at_once = write_at_once

    def put(self, frame: pa.Buffer) -> None:
        """Raises Full if this were more than fits, Shut after ``shut`` or ``drop``."""
        with self._changed:
            if self._is_shut:
                raise Shut
            if self._bytes >= self._bytes_max:
                raise Full(f"{self._bytes} bytes")
            if len(self._waiting) >= self._messages_max:
                raise Full(f"{len(self._waiting)} messages")
            goes_now = self._write_at_once is not None and not (self._waiting or self._is_writing)
            if goes_now and frame.size <= AT_ONCE_BYTES_MAX:
                self._write(joined(frame, self._seals))
            else:
                self._push(frame.size, chunks(frame, self._seals))

    def shut(self, last: pa.Buffer) -> None:
        """Take one last frame, and nothing after it. Only the first call counts."""
        with self._changed:
            if not self._is_shut:
                self._is_shut = True
                self._push(last.size, chunks(last, self._seals))

    def drop(self) -> None:
        """Forget what waits and take nothing more."""
        with self._changed:
            self._is_shut = True
            self._waiting.clear()
            self._bytes = 0
            self._changed.notify()

    def _write(self, data: bytes) -> None:
        assert self._write_at_once is not None
        try:
            written = self._write_at_once(data)
        except OSError:
            self.drop()
            return
        if written < len(data):
            self._push(len(data) - written, iter((data[written:],)))

    def _push(self, size: int, waiting: Iterator[Chunk]) -> None:
        self._waiting.append((size, waiting))
        self._bytes += size
        self._changed.notify()

    def __iter__(self) -> Iterator[Chunk]:
        while True:
            with self._changed:
                self._is_writing = False
                self._changed.wait_for(lambda: self._waiting or self._is_shut)
                if not self._waiting:
                    return
                size, waiting = self._waiting.popleft()
                self._bytes -= size
                self._is_writing = True
            yield from waiting
