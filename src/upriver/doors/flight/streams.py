"""The streams of rows that the Flight door sends: few at a time, and each only as long as its caller reads."""

import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Self

import pyarrow as pa

from upriver.doors.flight.errors import flight_errors
from upriver.errors import Busy, WaitTimeout

STREAMS_MAX = 32
"""Streams of rows at a time."""
STALL_S_MAX = 60.0
"""Seconds after which a caller that does not read loses its place, if another caller wants it."""


class RowStreams:
    """The streams of one door. clock: monotonic seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self._lock = threading.RLock()
        self._open: weakref.WeakSet[RowStream] = weakref.WeakSet()
        """gRPC never pulls from a stream whose caller went at once, and drops it."""

    def open(self) -> "RowStream":
        """A place for a stream, in the place of one that stalls if all are taken. Raises Flight's error for Busy."""
        with flight_errors(), self._lock:
            if len(self._open) >= STREAMS_MAX:
                stalled = next((stream for stream in list(self._open) if stream.is_stalled), None)
                if stalled is None:
                    raise Busy(f"{STREAMS_MAX} streams are under way already: try again soon")
                stalled.drop()
                self._open.discard(stalled)
            stream = RowStream(self)
            self._open.add(stream)
            return stream

    def forget(self, stream: "RowStream") -> None:
        """A stream has ended."""
        with self._lock:
            self._open.discard(stream)


class RowStream:
    """The batches of one stream, as gRPC pulls them; it waits between two pulls until the caller has read."""

    def __init__(self, streams: RowStreams) -> None:
        self._streams = streams
        self._batches: Iterator[pa.RecordBatch] | None = None
        self._waits_since: float | None = None
        """For the caller; ``None`` while the door is at work."""
        self._is_dropped = False
        self._errors: Callable[[], AbstractContextManager[None]] = flight_errors

    def begin(
        self,
        batches: Iterator[pa.RecordBatch],
        errors: Callable[[], AbstractContextManager[None]] = flight_errors,
    ) -> Self:
        """Now the caller's turn begins. errors: as the caller knows them."""
        self._errors = errors
        self._batches, self._waits_since = batches, self._streams.clock()
        return self

    @property
    def is_stalled(self) -> bool:
        """Whether the caller has not read for too long."""
        since = self._waits_since
        return since is not None and self._streams.clock() - since >= STALL_S_MAX

    def drop(self) -> None:
        """Let go of the rows: the caller is told when it reads on."""
        self._is_dropped, self._batches = True, None

    def close(self) -> None:
        """End the stream. A second call does nothing."""
        self._batches = None
        self._streams.forget(self)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> pa.RecordBatch:
        self._waits_since = None
        batches = self._batches
        batch: pa.RecordBatch | None = None
        try:
            with self._errors():
                if self._is_dropped:
                    raise WaitTimeout(
                        f"the stream was not read for {STALL_S_MAX:g} s, and its place was taken: ask again"
                    )
                batch = None if batches is None else next(batches, None)
        finally:
            if batch is None:
                self.close()
        if batch is None:
            raise StopIteration
        self._waits_since = self._streams.clock()
        return batch
