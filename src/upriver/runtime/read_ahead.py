"""How the worker's loop gets what a flow reads of the lake: the loop reads by itself, or a thread reads ahead of it.

From a local directory the loop reads by itself: the rows are in the page cache, and a hand-over costs more than such a
read. A store behind a network may take seconds. So a thread reads ahead there, and the loop does other work meanwhile.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Protocol

from upriver.protocol.worker_events import AllStateRead, EpochRead, RowsRead, StateRead, StateUnread

Piece = RowsRead | EpochRead | StateRead | AllStateRead | StateUnread

READ_AHEAD_BYTES_MAX = 16 << 20
"""Bytes that a thread has read for one flow, and the loop has not taken in. With as many, the thread reads no further.
The last batch, or chunk of state, may exceed them."""


class Reading(Protocol):
    """One read under way, of an epoch or of checkpoints."""

    @property
    def is_ready(self) -> bool:
        """Whether :meth:`next` has a piece."""

    def next(self) -> Piece:
        """Take the next piece. Raises the error with which the read has failed."""

    def stop(self) -> bool:
        """The loop takes no further piece. Returns whether a thread may still be reading."""


class ReadNow:
    """The loop reads each piece when it takes it."""

    is_ready = True

    def __init__(self, pieces: Iterator[Piece]) -> None:
        self._pieces = pieces

    def next(self) -> Piece:
        return next(self._pieces)

    def stop(self) -> bool:
        return False


class ReadAhead:
    """One thread at a time reads; the loop calls all public methods."""

    def __init__(
        self, pieces: Iterator[Piece], do: Callable[[Callable[[], None]], None], wake: Callable[[], None]
    ) -> None:
        """do: calls a function on a thread, once. wake: wakes the loop to take a piece; called by the thread."""
        self._pieces = pieces
        self._do = do
        self._wake = wake
        self._lock = threading.Lock()
        self._ready: deque[tuple[Piece | BaseException, int]] = deque()
        """Pieces that were read, or the error after them; each with its bytes."""
        self._bytes = 0
        """Of all that is ready; at most about ``READ_AHEAD_BYTES_MAX``."""
        self._is_over = False
        """Everything was read, the read has failed, or the loop has stopped it."""
        self._is_reading = True
        """A thread reads, or will."""
        do(self._read)

    @property
    def is_ready(self) -> bool:
        return bool(self._ready)

    def next(self) -> Piece:
        with self._lock:
            piece, nbytes = self._ready.popleft()
            self._bytes -= nbytes
            goes_on = not self._is_reading and not self._is_over and self._has_room
            self._is_reading |= goes_on
        if goes_on:
            self._do(self._read)
        if isinstance(piece, BaseException):
            raise piece
        return piece

    def stop(self) -> bool:
        with self._lock:
            self._is_over = True
            return self._is_reading

    @property
    def _has_room(self) -> bool:
        return self._bytes < READ_AHEAD_BYTES_MAX

    def _read(self) -> None:
        """Read until there is no room, or nothing to read."""
        goes_on = True
        while goes_on:
            try:
                piece: Piece | BaseException | None = None if self._is_over else next(self._pieces, None)
            except BaseException as error:  # the loop raises it
                piece = error
            nbytes = _bytes_of(piece)
            with self._lock:
                self._is_over |= piece is None or isinstance(piece, BaseException)
                if piece is not None:
                    self._ready.append((piece, nbytes))
                    self._bytes += nbytes
                # Once there is no room, the loop may ask another thread to read on before this one is at the end.
                goes_on = self._is_reading = not self._is_over and self._has_room
                is_first = len(self._ready) == 1
            if is_first and piece is not None:
                self._wake()


def _bytes_of(piece: Piece | BaseException | None) -> int:
    match piece:
        case RowsRead(batch=batch):
            return int(batch.rows.nbytes + batch.hash64.nbytes)
        case StateRead(chunk=chunk):
            return chunk.nbytes
    return 0
