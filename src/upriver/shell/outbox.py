"""What waits to be written to a channel: many threads put, one iterates, and no more waits than may."""

import threading
from collections import deque
from collections.abc import Iterator

import pyarrow as pa


class Full(Exception):
    """More waits in an outbox than may."""


class Shut(Exception):
    """Nothing more is taken by an outbox."""


class Outbox:
    """Frames that wait to be written: many put, one thread iterates. Iteration ends after the last frame.

    messages_max, bytes_max: while as much waits, no more is taken; so a frame of any size fits behind small ones.
    """

    def __init__(self, messages_max: int, bytes_max: int) -> None:
        self._messages_max = messages_max
        self._bytes_max = bytes_max
        self._frames: deque[pa.Buffer] = deque()
        self._bytes = 0
        self._is_shut = False
        self._changed = threading.Condition()

    def put(self, frame: pa.Buffer) -> None:
        """Raises Full if this were more than fits, Shut after ``shut`` or ``drop``."""
        with self._changed:
            if self._is_shut:
                raise Shut
            if self._bytes >= self._bytes_max:
                raise Full(f"{self._bytes} bytes")
            if len(self._frames) >= self._messages_max:
                raise Full(f"{len(self._frames)} messages")
            self._push(frame)

    def shut(self, last: pa.Buffer) -> None:
        """Take one last frame, and nothing after it. Only the first call counts."""
        with self._changed:
            if not self._is_shut:
                self._is_shut = True
                self._push(last)

    def drop(self) -> None:
        """Forget what waits and take nothing more."""
        with self._changed:
            self._is_shut = True
            self._frames.clear()
            self._bytes = 0
            self._changed.notify()

    def _push(self, frame: pa.Buffer) -> None:
        self._frames.append(frame)
        self._bytes += frame.size
        self._changed.notify()

    def __iter__(self) -> Iterator[pa.Buffer]:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._frames or self._is_shut)
                if not self._frames:
                    return
                frame = self._frames.popleft()
                self._bytes -= frame.size
            yield frame
