"""Queries whose callers cancel them or hang up: they end at once, whatever they wait for."""

import queue
import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field

import pyarrow as pa
import pytest
from doors_kit import ENDLESS, KeptRows
from server_kit import SECONDS_MAX

from upriver.client.scans import ScanReader
from upriver.doors.cancellation import Cancellation, RowReads
from upriver.doors.execution import execute
from upriver.doors.queries import ViewQuery
from upriver.doors.query_processes import QUERIES_MAX, QueryProcesses
from upriver.doors.shares import Bounds, QueryCaller
from upriver.errors import Busy, QueryCancelled


@dataclass
class SlowRows(KeptRows):
    """Rows that the caller's end comes before. begun: reading them has begun. go_on: it may end."""

    begun: threading.Event = field(default_factory=threading.Event)
    go_on: threading.Event = field(default_factory=threading.Event)

    def lookup(self, view: str, keys: pa.Table) -> pa.Table:
        self.begun.set()
        assert self.go_on.wait(6 * SECONDS_MAX)
        return super().lookup(view, keys)

    def scan(self, view: str) -> ScanReader:
        self.begun.set()
        return super().scan(view)


@pytest.mark.parametrize("sql", [ENDLESS, "SELECT * FROM totals WHERE customer = 'ada'"])
def test_a_query_of_a_caller_that_hangs_up_leaves_its_place(sql: str) -> None:
    rows, processes = SlowRows(), QueryProcesses()
    try:
        with pytest.raises(QueryCancelled, match="by its caller"):
            execute(
                ViewQuery.parse(sql, "postgres", rows.routes()),
                rows,
                cancellation=Cancellation(rows.begun.is_set),
                processes=processes,
            )
        with ExitStack() as places:
            callers = [Cancellation(caller=QueryCaller(str(number))) for number in range(QUERIES_MAX)]
            assert len([places.enter_context(processes.process(each)) for each in callers]) == QUERIES_MAX
            gone = Cancellation(lambda: True)
            with gone.covers(), pytest.raises(QueryCancelled), processes.process(gone):
                pass  # it waits for its turn
    finally:
        rows.go_on.set()
        processes.close()


def test_reads_whose_callers_have_gone_are_few_and_may_end_early() -> None:
    reads, gone, go_on = RowReads(Bounds(2, 2, 2), wait_s_max=0.0), Cancellation(lambda: True), threading.Event()
    wanted: queue.Queue[bool] = queue.Queue()

    def fetch(is_wanted: Callable[[], bool]) -> None:
        assert go_on.wait(6 * SECONDS_MAX)
        wanted.put(is_wanted())

    with gone.covers():
        for _ in range(2):
            with pytest.raises(QueryCancelled):
                reads.read(fetch, gone)
    with pytest.raises(Busy, match="waited 0 s for its turn: 2 have one at a time, 2 of one caller: try again soon"):
        reads.read(lambda _: 1, Cancellation())
    go_on.set()
    assert [wanted.get(timeout=SECONDS_MAX) for _ in range(2)] == [False, False]
    assert RowReads().read(lambda is_wanted: is_wanted(), Cancellation())
    with pytest.raises(ZeroDivisionError):
        RowReads().read(lambda _: 1 // 0, Cancellation())
