"""Ends queries that take too long, or whose callers cancel them or hang up, also while a query waits for rows, for its
turn or for DuckDB."""

import math
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from typing import TypeVar

from upriver.doors.shares import LOOK_S, OWN_CALLER, Bounds, FairTurns, QueryCaller
from upriver.errors import QueryCancelled, WaitTimeout

READS_MAX = 8
"""Reads of rows under way at a time, among them those of queries that have ended: a lookup cannot be ended early."""
HOST_READS_MAX = 6
"""Of them, those for callers of one host."""
CALLER_READS_MAX = 4
"""Of them, those for one caller."""
READS_WAITING_MAX = 128
"""Reads that wait for their turn; half of them for callers of one host, a quarter for one caller."""
_READ_BOUNDS = Bounds(READS_MAX, HOST_READS_MAX, CALLER_READS_MAX)
_Read = TypeVar("_Read")


class Cancellation:
    """Whether a caller still wants its query. Usable by many threads.

    has_gone: whether the caller has hung up; asked at least every ``LOOK_S`` seconds while a query is under way, and at
    no other time. caller: whose share its queries take."""

    def __init__(self, has_gone: Callable[[], bool] = lambda: False, caller: QueryCaller = OWN_CALLER) -> None:
        self.caller = caller
        self._has_gone = has_gone
        self._limit_s = self._ends_at = math.inf
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
            self._limit_s = self._ends_at = math.inf
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

    def limit(self, seconds: float) -> None:
        """From now on, the query under way has so many seconds."""
        self._limit_s, self._ends_at = seconds, time.monotonic() + seconds

    @property
    def seconds_left(self) -> float:
        """Of the query under way; less than 0 if it is late."""
        return self._ends_at - time.monotonic()

    def check(self) -> None:
        """Raise QueryCancelled or WaitTimeout if the query is to end."""
        if self.is_requested:
            raise QueryCancelled("the query was cancelled by its caller")
        if self.seconds_left <= 0:
            raise self.late()

    def late(self) -> WaitTimeout:
        """The error of a query that takes too long."""
        return WaitTimeout(f"the query took longer than {self._limit_s:g} s: name keys, or read fewer rows")


class RowReads:
    """Reads rows on threads of their own, so that a caller that goes need not wait for them."""

    def __init__(self, reads: Bounds = _READ_BOUNDS, wait_s_max: float = 60.0) -> None:
        """reads: under way at a time. wait_s_max: seconds that a read waits for its turn."""
        waiting = Bounds(READS_WAITING_MAX, READS_WAITING_MAX // 2, READS_WAITING_MAX // 4)
        self._turns = FairTurns(reads, waiting, wait_s_max)

    def read(self, fetch: Callable[[Callable[[], bool]], _Read], cancellation: Cancellation) -> _Read:
        """What ``fetch`` gives or raises. Its argument says whether the rows are still wanted: it may end early if not.

        Raises QueryCancelled, WaitTimeout, and Busy if too many reads are under way."""
        turn = self._turns.take(cancellation.caller, cancellation.check)
        found: Future[_Read] = Future()
        ended = threading.Event()

        def run() -> None:
            try:
                found.set_result(fetch(lambda: not ended.is_set()))
            except BaseException as error:
                found.set_exception(error)
            finally:
                self._turns.end(turn)

        threading.Thread(target=run, name="upriver-query-read", daemon=True).start()
        try:
            while not wait((found,), LOOK_S).done:
                cancellation.check()
            return found.result()
        finally:
            ended.set()
