"""Shares of callers: turns, answers, and the time of a query."""

import random
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial

import pyarrow as pa
import pytest
from doors_kit import ENDLESS, FREED_S_MAX, KeptRows, WatchedRows

from upriver.client.scans import ScanReader
from upriver.doors.cancellation import Cancellation, RowReads
from upriver.doors.execution import HeldAnswers, execute
from upriver.doors.queries import ViewQuery
from upriver.doors.query_processes import (
    CALLER_QUERIES_MAX,
    CALLER_WAITING_MAX,
    HOST_QUERIES_MAX,
    QUERIES_MAX,
    QueryProcesses,
)
from upriver.doors.shares import Bounds, FairTurns, QueryCaller, TurnQueue
from upriver.errors import Busy, QueryCancelled, WaitTimeout

TURNS, WAITING = Bounds(4, 3, 2), Bounds(12, 8, 4)
CALLERS = [QueryCaller(host, name) for host in ("h1", "h2", "h3") for name in ("a", "b", "c")]


def counted(tickets: dict[int, QueryCaller]) -> Counter[object]:
    """How many are of each caller, of each host, and in all."""
    return Counter(whose for caller in tickets.values() for whose in (caller, caller.host, None))


def has_room(counts: Counter[object], caller: QueryCaller, bounds: Bounds) -> bool:
    return counts[caller] < bounds.caller and counts[caller.host] < bounds.group and counts[None] < bounds.total


@pytest.mark.parametrize("seed", range(20))
def test_no_bound_is_passed_and_no_turn_is_idle_that_a_caller_may_have(seed: int) -> None:
    choice = random.Random(seed)
    queue = TurnQueue(TURNS, WAITING)
    held: dict[int, QueryCaller] = {}
    waits: dict[int, QueryCaller] = {}
    refused = 0
    for _ in range(2_000):
        if choice.random() < 0.55:
            caller = choice.choice(CALLERS if choice.random() < 0.5 else CALLERS[:2])
            try:
                ticket, has_begun = queue.request(caller)
            except Busy:
                refused += 1
                assert not has_room(counted(waits), caller, WAITING)
                continue
            (held if has_begun else waits)[ticket] = caller
        elif held or waits:
            ended = choice.choice([*held, *waits])
            held.pop(ended, None)
            waits.pop(ended, None)
            for ticket in queue.end(ended):
                before = counted(held)
                least = min(
                    (before[caller.host], before[caller])
                    for caller in waits.values()
                    if has_room(before, caller, TURNS)
                )
                held[ticket] = waits.pop(ticket)
                assert (before[held[ticket].host], before[held[ticket]]) == least
        for tickets, bounds in ((held, TURNS), (waits, WAITING)):
            counts = counted(tickets)
            assert counts[None] <= bounds.total
            assert all(counts[caller] <= bounds.caller for caller in CALLERS)
            assert all(counts[host] <= bounds.group for host in ("h1", "h2", "h3"))
        assert not any(has_room(counted(held), caller, TURNS) for caller in waits.values())
    assert refused > 50


def test_a_turn_is_waited_for_no_longer_than_the_limit_and_not_by_callers_that_have_gone() -> None:
    turns = FairTurns(Bounds(1, 1, 1), Bounds(1, 1, 1), wait_s_max=0.1)
    one = QueryCaller("h", "a")
    ticket = turns.take(one, lambda: None)
    with pytest.raises(Busy, match=r"waited 0\.1 s for its turn: 1 have one at a time, 1 of one caller"):
        turns.take(one, lambda: None)
    gone = Cancellation(lambda: True)
    with gone.covers(), pytest.raises(QueryCancelled):
        turns.take(one, gone.check)
    turns.end(ticket)
    turns.end(turns.take(one, lambda: None))  # those that left have left no trace


@pytest.fixture
def processes() -> Iterator[QueryProcesses]:
    made = QueryProcesses()
    yield made
    made.close()


def test_long_queries_of_one_caller_do_not_hold_up_another_s(processes: QueryProcesses) -> None:
    rows, ended = WatchedRows(), threading.Event()
    endless = ViewQuery.parse(ENDLESS, "postgres", rows.routes())
    short = ViewQuery.parse("SELECT count(*) AS n FROM totals", "postgres", rows.routes())

    def ask(asked: ViewQuery, host: str, name: str) -> pa.Table:
        cancellation = Cancellation(ended.is_set, QueryCaller(host, name))
        return execute(asked, rows, cancellation=cancellation, processes=processes)

    with ThreadPoolExecutor(2 * QUERIES_MAX) as threads:
        greedy = [threads.submit(ask, endless, "h1", "greedy") for _ in range(QUERIES_MAX)]
        try:
            assert all(rows.begun.acquire(timeout=FREED_S_MAX) for _ in range(CALLER_QUERIES_MAX))
            for host, name in (("h1", "other"), ("h2", "greedy"), ("h2", "other")):  # one after the other
                found = threads.submit(ask, short, host, name).result(timeout=FREED_S_MAX)
                assert found.to_pylist() == [{"n": 4}]
                assert rows.begun.acquire(timeout=FREED_S_MAX)
            greedy.append(threads.submit(ask, endless, "h1", "second"))  # the host's last turn
            assert rows.begun.acquire(timeout=FREED_S_MAX)
            assert threads.submit(ask, short, "h2", "a").result(timeout=FREED_S_MAX).to_pylist() == [{"n": 4}]
            assert not any(each.done() for each in greedy)
        finally:
            ended.set()
        for each in greedy:
            assert isinstance(each.exception(timeout=FREED_S_MAX), QueryCancelled)
    assert CALLER_QUERIES_MAX < HOST_QUERIES_MAX < QUERIES_MAX


def test_few_queries_of_a_caller_wait_and_one_more_is_told_why() -> None:
    processes = QueryProcesses(wait_s_max=FREED_S_MAX)
    ended = threading.Event()

    def wait_in_vain(cancellation: Cancellation) -> None:
        with cancellation.covers(), processes.process(cancellation):
            raise AssertionError("there was no turn")

    caller = QueryCaller("h", "a")
    try:
        with ExitStack() as turns, ThreadPoolExecutor(CALLER_WAITING_MAX) as threads:
            for _ in range(CALLER_QUERIES_MAX):
                turns.enter_context(processes.process(Cancellation(caller=caller)))
            seen = [threading.Event() for _ in range(CALLER_WAITING_MAX)]

            def has_gone(looked: threading.Event) -> bool:
                looked.set()
                return ended.is_set()

            waiting = [threads.submit(wait_in_vain, Cancellation(partial(has_gone, looked), caller)) for looked in seen]
            try:
                assert all(looked.wait(FREED_S_MAX) for looked in seen)  # they look while they wait
                with pytest.raises(Busy, match="32 queries of this caller wait for a turn already"):
                    turns.enter_context(processes.process(Cancellation(caller=caller)))
                turns.enter_context(processes.process(Cancellation(caller=QueryCaller("h", "b"))))
            finally:
                ended.set()
            for each in waiting:
                assert isinstance(each.exception(timeout=FREED_S_MAX), QueryCancelled)
    finally:
        processes.close()


class StuckRows(KeptRows):
    """Rows that do not come."""

    def __init__(self) -> None:
        super().__init__()
        self.go_on = threading.Event()

    def scan(self, view: str) -> ScanReader:
        assert self.go_on.wait(FREED_S_MAX)
        return super().scan(view)


@pytest.mark.parametrize("is_stuck", [False, True])
def test_a_query_that_takes_too_long_is_ended_wherever_it_is(is_stuck: bool, processes: QueryProcesses) -> None:
    stuck = StuckRows()
    rows = stuck if is_stuck else KeptRows()
    query = ViewQuery.parse("SELECT count(*) FROM totals" if is_stuck else ENDLESS, "postgres", rows.routes())
    try:
        with pytest.raises(WaitTimeout, match=r"the query took longer than 0\.5 s: name keys, or read fewer rows"):
            execute(query, rows, processes=processes, seconds=0.5)
    finally:
        stuck.go_on.set()
    short = ViewQuery.parse("SELECT count(*) AS n FROM totals", "postgres", rows.routes())
    assert execute(short, KeptRows(), processes=processes).to_pylist() == [{"n": 4}]


def test_reads_of_one_caller_do_not_hold_up_another_s() -> None:
    reads, go_on = RowReads(Bounds(3, 2, 1)), threading.Event()
    begun = threading.Semaphore(0)

    def wait_long(_: object) -> bool:
        begun.release()
        return go_on.wait(FREED_S_MAX)

    with ThreadPoolExecutor(4) as threads:
        greedy = [threads.submit(reads.read, wait_long, Cancellation(caller=QueryCaller("h", "a"))) for _ in range(3)]
        assert begun.acquire(timeout=FREED_S_MAX)
        assert reads.read(lambda _: 7, Cancellation(caller=QueryCaller("h", "b"))) == 7
        go_on.set()
        assert [each.result(timeout=FREED_S_MAX) for each in greedy] == [True] * 3


def test_unread_answers_of_one_caller_leave_room_for_another_s() -> None:
    answers = HeldAnswers(Bounds(4_000_000, 3_000_000, 2_000_000))
    large = [pa.table({"x": pa.array(range(150_000), pa.int64())}) for _ in range(5)]
    one, two, away = QueryCaller("h", "a"), QueryCaller("h", "b"), QueryCaller("away")
    kept = [answers.held(large[0], one)]
    with pytest.raises(Busy, match="answers of this caller of 1 MiB wait until they are read, and 1 MiB are the most"):
        answers.held(large[1], one)
    kept.append(answers.held(large[1], two))
    with pytest.raises(Busy, match="answers of this host of 2 MiB wait"):
        answers.held(large[2], QueryCaller("h", "c"))
    kept.append(answers.held(large[2], away))
    with pytest.raises(Busy, match="answers of all callers of 3 MiB wait"):
        answers.held(large[3], QueryCaller("third"))
    kept.clear()
    del large[0]
    assert answers.held(large[-1], one) is large[-1]
