"""Ends queries whose callers cancel them or hang up, also while a query waits for rows, for its turn or for DuckDB."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from typing import TypeVar

from upriver.errors import Busy, QueryCancelled

LOOK_S = 0.1
"""Seconds between two looks whether the caller of a query still wants it."""
READS_MAX = 8
"""Reads of rows under way at a time, among them those of queries that have ended: a lookup cannot be ended early."""
_Read = TypeVar("_Read")


class Cancellation:
    """Whether a caller still wants its query. Usable by many threads.

    has_gone: whether the caller has hung up; asked at least every ``LOOK_S`` seconds while a query is under way, and at
    no other time."""

    def __init__(self, has_gone: Callable[[], bool] = lambda: False) -> None:
        self._has_gone = has_gone
        self._lock = threading.Lock()
        self._is_under_way = self._is_requested = False

    def request(self) -> None:
        """End the query under way, if there is one."""
        with self._lock:
            self._is_requested = self._is_under_way

    @contextmanager
    def covers(self) -> Iterator[None]:
        """A query is under way."""
        with self._lock:
            self._is_under_way, self._is_requested = True, False
        try:
            yield
        finally:
            with self._lock:
                self._is_under_way = False

    @property
    def is_requested(self) -> bool:
        """Whether the query is to end, or was."""
        with self._lock:
            looks = self._is_under_way and not self._is_requested
        if looks and self._has_gone():
            self.request()
        with self._lock:
            return self._is_requested

    def check(self) -> None:
        """Raise QueryCancelled if the query is to end."""
        if self.is_requested:
            raise QueryCancelled("the query was cancelled by its caller")

    def acquire(self, turns: threading.Semaphore, seconds: float) -> bool:
        """Take a turn; false if there is none in so many seconds. Raises QueryCancelled."""
        give_up_at = time.monotonic() + seconds
        while not turns.acquire(timeout=min(LOOK_S, seconds)):
            self.check()
            if time.monotonic() >= give_up_at:
                return False
        return True


class RowReads:
    """Reads rows on threads of their own, so that a caller that goes need not wait for them."""

    def __init__(self, reads_max: int = READS_MAX, wait_s_max: float = 60.0) -> None:
        """wait_s_max: seconds that a read waits for its turn."""
        self._reads_max, self._wait_s_max = reads_max, wait_s_max
        self._turns = threading.BoundedSemaphore(reads_max)

    def read(self, fetch: Callable[[Callable[[], bool]], _Read], cancellation: Cancellation) -> _Read:
        """What ``fetch`` gives or raises. Its argument says whether the rows are still wanted: it may end early if not.

        Raises QueryCancelled, and Busy if too many reads are under way."""
        if not cancellation.acquire(self._turns, self._wait_s_max):
            raise Busy(f"{self._reads_max} queries read rows already: try again soon")
        found: Future[_Read] = Future()
        ended = threading.Event()

        def run() -> None:
            try:
                found.set_result(fetch(lambda: not ended.is_set()))
            except BaseException as error:
                found.set_exception(error)
            finally:
                self._turns.release()

        threading.Thread(target=run, name="upriver-query-read", daemon=True).start()
        try:
            while not wait((found,), LOOK_S).done:
                cancellation.check()
            return found.result()
        finally:
            ended.set()
