"""Waiting until a streaming query has taken what its source had.

Spark's own ``processAllAvailable`` waits for a moment at which the source has nothing new; beside a source that never
pauses it waits for ever. So a query also counts as drained once it has committed a batch that was planned after the
call, unless its source may have held rows back from that batch.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime

from pyspark.errors import PySparkException
from pyspark.sql.streaming.listener import StreamingQueryProgress
from pyspark.sql.streaming.query import StreamingQuery

POLL_S = 0.05
"""Seconds between two looks at a query's progress."""
_HOLDS_BACK = "FileStreamSource"
"""The one source that takes a bounded share of what there is and does not report how much there is."""


@dataclass(frozen=True, slots=True)
class _Watch:
    """A thread that waits for the source's next pause; it has begun at ``since`` (seconds of the epoch)."""

    since: float
    paused: threading.Event = field(default_factory=threading.Event)


class Drain:
    """Drains one query; any number of times, from any thread."""

    def __init__(self, query: StreamingQuery) -> None:
        self._query = query
        self._lock = threading.Lock()
        self._watch: _Watch | None = None

    def wait(self, seconds_left: Callable[[], float]) -> bool:
        """Wait until all that the source had at the call is committed; ``False`` if no seconds are left before.

        Returns ``True`` at once if the query has ended; whether it has failed is for the caller to see.
        """
        called = time.time()
        watch = self._watching()
        while self._query.isActive:
            if watch.paused.wait(min(POLL_S, max(0.0, seconds_left()))):
                if watch.since >= called:
                    return True
                watch = self._watching()
            progress = self._query.lastProgress
            if progress is not None and _took_all(progress, called):
                return True
            if seconds_left() <= 0:
                return False
        return True

    def _watching(self) -> _Watch:
        """The watch that is on, or a new one. One thread at a time waits for a pause."""
        with self._lock:
            if self._watch is None or self._watch.paused.is_set():
                self._watch = _Watch(time.time())
                threading.Thread(target=self._await_pause, args=(self._watch,), daemon=True).start()
            return self._watch

    def _await_pause(self, watch: _Watch) -> None:
        try:
            self._query.processAllAvailable()
        except PySparkException:
            pass  # the query has failed, which the caller sees at the query itself
        finally:
            watch.paused.set()


def _took_all(progress: StreamingQueryProgress, called: float) -> bool:
    """Whether the batch was planned after ``called`` and no source held rows back from it."""
    if datetime.fromisoformat(progress.timestamp).timestamp() < called:
        return False
    return all(
        source.endOffset == source.latestOffset
        if source.latestOffset not in (None, "null")
        else _HOLDS_BACK not in source.description
        for source in progress.sources
    )
