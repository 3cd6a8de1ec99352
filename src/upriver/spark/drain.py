"""How far a streaming query has read its source: the moment up to which all of the source's rows are committed.

Spark's own ``processAllAvailable`` waits for a moment at which the source has nothing new; with a source that never
pauses it waits forever. But a query has also read its source as of the moment at which it planned a batch that is now
committed, unless the source may have held rows back from that batch.
"""

import threading
import time
from collections.abc import Callable
from datetime import datetime

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql.streaming.listener import StreamingQueryProgress
from pyspark.sql.streaming.query import StreamingQuery

POLL_S = 0.05
"""Seconds between two checks of a query's progress while a thread waits."""
IDLE_S = 5.0
"""Seconds after which the thread that waits for pauses ends without another request."""
STOP_S_MAX = 5.0
"""Seconds in which Spark tells the thread that waits for pauses that the query is over."""
_FILES = "FileStreamSource"
"""The one source that may take a bounded share of its rows and does not report how many there are."""
_UNTOLD = (None, "null", "None")
"""What stands for an offset that a source does not report; the last one before Spark 4.2."""


class Drain:
    """The progress of one query. Usable by many threads."""

    def __init__(self, query: StreamingQuery, *, takes_all_files: bool = False) -> None:
        """takes_all_files: each batch takes all files that are there when it is planned."""
        self._query = query
        self._takes_all_files = takes_all_files
        self._first_batch: int | None = None
        """The first batch whose progress was seen. An earlier run of the query may have planned it, which its progress
        does not tell; so it says nothing of the files that came since."""
        self._changed = threading.Condition()
        """Guards and announces all fields below."""
        self._read_through: float | None = None
        self._is_pause_wanted = False
        self._is_over = False
        self._pauses: threading.Thread | None = None
        """The thread that waits for pauses, while it runs. There is one, because each occupies a thread of the JVM."""

    def wait(self, since: float, seconds_left: Callable[[], float]) -> bool:
        """Wait until all that the source had at a moment, in seconds since 1970, is committed; ``False`` if the seconds
        run out before.

        Returns ``True`` at once if the query has ended; the caller checks whether it has failed.
        """
        while self._query.isActive:
            if (self.read_through() or 0.0) >= since:
                return True
            left = seconds_left()
            if left <= 0:
                return False
            with self._changed:
                self._changed.wait_for(lambda: (self._read_through or 0.0) >= since, min(POLL_S, left))
        return True

    def read_through(self) -> float | None:
        """The latest known moment, in seconds since 1970, up to which all of the source's rows are committed; ``None``
        if none is known. Returns at once; with repeated calls it keeps up with the query."""
        if self._query.isActive:
            self._want_pause()
        progress = self._query.lastProgress
        if progress is not None and self._took_all(progress):
            self._is_read_through(datetime.fromisoformat(progress.timestamp).timestamp())
        return self._read_through

    def _took_all(self, progress: StreamingQueryProgress) -> bool:
        """Whether no source held rows back from the batch."""
        if self._first_batch is None:
            self._first_batch = progress.batchId
        takes_files = self._takes_all_files and progress.batchId > self._first_batch
        return all(
            source.endOffset == source.latestOffset
            if source.latestOffset not in _UNTOLD
            else takes_files or _FILES not in source.description
            for source in progress.sources
        )

    def _is_read_through(self, until: float) -> None:
        with self._changed:
            self._read_through = max(until, self._read_through or until)
            self._changed.notify_all()

    def _want_pause(self) -> None:
        with self._changed:
            self._is_pause_wanted = True
            if self._pauses is None and not self._is_over:
                self._pauses = threading.Thread(target=self._await_pauses, name="upriver-pauses", daemon=True)
                self._pauses.start()
            self._changed.notify_all()

    def stop(self) -> None:
        """End the thread that waits for pauses. The query is over."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()
            pauses = self._pauses
        if pauses is not None:
            pauses.join(STOP_S_MAX)

    def _await_pauses(self) -> None:
        try:
            while self._next_pause_is_wanted():
                since = time.time()
                self._query.processAllAvailable()
                if not self._query.isActive:
                    break
                self._is_read_through(since)
        except (PySparkException, Py4JError):
            pass  # the query has failed or Spark has stopped; callers see that at the query itself
        finally:
            with self._changed:
                self._pauses = None

    def _next_pause_is_wanted(self) -> bool:
        with self._changed:
            is_wanted = self._changed.wait_for(lambda: self._is_pause_wanted or self._is_over, IDLE_S)
            self._is_pause_wanted = False
            return is_wanted and not self._is_over
