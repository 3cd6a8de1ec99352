"""Lookups of many threads, asked as one: what each is given is what it would be given by itself."""

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rows_kit import rows_of

from upriver.client.keys import KeyColumns, key_columns
from upriver.client.lookups import (
    ANSWER_GRACE_S,
    APART_S,
    BATCH_LOOKUPS_MAX,
    FREE_LOOKUPS_MAX,
    LOOKUP_KEYS_MAX,
    Found,
    FoundRows,
    JoinedKeys,
    KeySet,
    Lookup,
    LookupBatches,
)
from upriver.errors import UnknownView, WaitTimeout
from upriver.plan.schemas import EVERYTHING_KEY
from upriver.protocol.lookups import Answered, ViewRoute

SECONDS_MAX = 10.0
"""Seconds for what must come at once."""
ROUTE = ViewRoute(("k",), pa.schema([("k", pa.int64()), ("row", pa.int64())]))
KEYS = st.lists(st.lists(st.one_of(st.none(), st.integers(0, 30)), min_size=1), min_size=1)


def rows_of_key(key: int | None) -> int:
    """Some keys have no row, most have one, some several."""
    return (1, 0, 1, 3, 1)[(key or 0) % 5]


def expected(keys: Sequence[int | None]) -> list[tuple[int | None, int]]:
    return [(key, row) for key in dict.fromkeys(keys) for row in range(rows_of_key(key))]


def columns_of(keys: Sequence[int | None], view: str = "v") -> KeyColumns:
    return key_columns(view, ROUTE.key_schema, keys)


def found_by(asked: KeySet, workers: int = 2, epoch: int = 7, held_up: bool = False) -> list[Found]:
    """The rows as workers give them: each those of its keys."""
    parts = []
    for _, keys in asked.split((asked.hash64 % np.uint64(workers)).astype(np.int64)):
        rows = [row for key in keys.keys.column(0).to_pylist() for row in expected([key])]
        columns = [pa.array([row[place] for row in rows], pa.int64()) for place in range(2)]
        answered = Answered(pa.RecordBatch.from_arrays(columns, schema=ROUTE.schema), epoch, 1, False, held_up)
        parts.append(Found(keys, answered, keys.places_of(answered.rows.select(["k"]))))
    return parts


def test_all_rows_of_a_view_without_a_key_are_of_the_one_key_that_it_has() -> None:
    asked = KeySet.of(pa.RecordBatch.from_arrays(key_columns("v", EVERYTHING_KEY, [()]), schema=EVERYTHING_KEY))
    rows = pa.record_batch({"n": [1, 2, 3]})
    assert asked.places_of(rows.select([])).tolist() == [0, 0, 0]


# Keys put together, rows dealt out


@given(KEYS, st.integers(1, 3))
def test_each_lookup_has_the_rows_of_its_keys_in_their_order(lookups: list[list[int | None]], workers: int) -> None:
    together = JoinedKeys.of([columns_of(keys) for keys in lookups], ROUTE.key_schema)
    assert together is not None
    asked = together.asked.keys.column(0).to_pylist()
    assert sorted(asked, key=str) == sorted({key for keys in lookups for key in keys}, key=str)
    dealt = together.deal(found_by(together.asked, workers), ROUTE.schema)
    assert [rows_of(rows) for rows in dealt] == [expected(keys) for keys in lookups]
    assert {str(rows.schema) for rows in dealt} == {str(ROUTE.schema)}


def test_keys_that_are_not_equal_to_themselves_are_not_put_together() -> None:
    keys, schema = pa.array([1.0, math.nan]), pa.schema([("k", pa.float64())])
    assert JoinedKeys.of([[keys.slice(0, 1)]] * 2, schema) is not None
    assert JoinedKeys.of([[keys]] * 2, schema) is None


# Batches


@dataclass
class Workers:
    """Answer each question when they are let, and remember what they were asked."""

    calls: list[list[int | None]] = field(default_factory=list)
    came: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    """One for each question."""
    let: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    """One for each answer."""
    held_up: bool = False
    error: Callable[[KeySet], BaseException | None] = lambda asked: None

    def ask(self, lookup: Lookup, asked: KeySet) -> list[Found]:
        self.calls.append(asked.keys.column(0).to_pylist())
        self.came.release()
        assert self.let.acquire(timeout=SECONDS_MAX)
        error = self.error(asked)
        if error is not None:
            raise error
        return found_by(asked, held_up=self.held_up)

    def were_asked(self, times: int) -> None:
        for _ in range(times):
            assert self.came.acquire(timeout=SECONDS_MAX)

    def let_all(self) -> None:
        self.let.release(1_000)


class Asking:
    """Lookups on threads of their own. The clock is asked whenever a lookup may have to wait: that is how a test knows
    that one is there."""

    def __init__(self, workers: Workers, wait_s_max: float = SECONDS_MAX) -> None:
        self.rounds = LookupBatches(workers.ask, wait_s_max=wait_s_max, clock=self._clock)
        self.now = 0.0
        self._asked = threading.Semaphore(0)
        self._threads = ThreadPoolExecutor(BATCH_LOOKUPS_MAX + 10)

    def _clock(self) -> float:
        self._asked.release()
        return self.now

    def begin(
        self, *keys: int | None, view: str = "v", at_least: int | None = None, give_up_at: float = math.inf
    ) -> "Future[FoundRows]":
        lookup = Lookup(view, ROUTE, at_least, len(keys) > 1, SECONDS_MAX, give_up_at)
        return self._threads.submit(self.rounds.look_up, lookup, columns_of(keys))

    def wait_for(self, lookups: int) -> None:
        """Until so many more have come that may have to wait."""
        for _ in range(lookups):
            assert self._asked.acquire(timeout=SECONDS_MAX)

    def forget(self) -> None:
        """Those that have come so far."""
        while self._asked.acquire(blocking=False):
            pass

    def close(self) -> None:
        self._threads.shutdown()


@pytest.fixture
def workers() -> Workers:
    return Workers()


@pytest.fixture
def asking(workers: Workers) -> Iterator[Asking]:
    running = Asking(workers)
    yield running
    workers.let_all()
    running.close()


def busy(workers: Workers, asking: Asking) -> "list[Future[FoundRows]]":
    """As many lookups as do not wait, and a batch."""
    running = [asking.begin(-1 - number) for number in range(FREE_LOOKUPS_MAX)]
    workers.were_asked(FREE_LOOKUPS_MAX)
    running.append(asking.begin(-1 - FREE_LOOKUPS_MAX))
    asking.wait_for(1)
    workers.were_asked(1)
    return running


def test_a_few_lookups_do_not_wait(workers: Workers, asking: Asking) -> None:
    running = busy(workers, asking)
    assert {call[0] for call in workers.calls} == {-1 - number for number in range(FREE_LOOKUPS_MAX + 1)}
    assert len(workers.calls) == FREE_LOOKUPS_MAX + 1
    workers.let_all()
    assert [rows_of(lookup.result(SECONDS_MAX)[0]) for lookup in running] == [
        expected([-1 - number]) for number in range(FREE_LOOKUPS_MAX + 1)
    ]


def test_lookups_that_come_while_a_round_is_under_way_are_the_next_one(workers: Workers, asking: Asking) -> None:
    busy(workers, asking)
    lookups: list[list[int | None]] = [[3, 8, 3], [8, 13], [1, 5], [None, 3]]
    waiting = [asking.begin(*keys) for keys in lookups]
    asking.wait_for(len(lookups))
    workers.let_all()
    for keys, lookup in zip(lookups, waiting, strict=True):
        rows, epoch, _ = lookup.result(SECONDS_MAX)
        assert (rows_of(rows), epoch) == (expected(keys), 7)
    assert len(workers.calls) == FREE_LOOKUPS_MAX + 2
    assert set(workers.calls[-1]) == {3, 8, 13, 1, 5, None}


def test_lookups_of_another_view_and_of_single_keys_are_rounds_of_their_own(workers: Workers, asking: Asking) -> None:
    busy(workers, asking)
    waiting = [asking.begin(1, 2), asking.begin(3, 4, view="w"), asking.begin(5), asking.begin(6), asking.begin(7, 8)]
    asking.wait_for(len(waiting))
    workers.let_all()
    assert [len(rows_of(lookup.result(SECONDS_MAX)[0])) for lookup in waiting] == [1, 4, 1, 0, 4]
    calls = [sorted(call, key=str) for call in workers.calls[FREE_LOOKUPS_MAX + 1 :]]
    assert sorted(calls, key=str) == [[1, 2, 7, 8], [3, 4], [5, 6]]


def test_more_lookups_than_a_round_has_room_for_are_two(workers: Workers, asking: Asking) -> None:
    busy(workers, asking)
    waiting = [asking.begin(2 * number, 2 * number + 1) for number in range(BATCH_LOOKUPS_MAX + 3)]
    asking.wait_for(len(waiting))
    workers.let_all()
    for number, lookup in enumerate(waiting):
        assert rows_of(lookup.result(SECONDS_MAX)[0]) == expected([2 * number, 2 * number + 1])
    assert sorted(map(len, workers.calls))[-2:] == [2 * 3, 2 * BATCH_LOOKUPS_MAX]


@pytest.mark.parametrize("keys", [range(LOOKUP_KEYS_MAX + 1), ()])
def test_large_lookups_and_those_of_no_keys_do_not_wait(workers: Workers, asking: Asking, keys: Sequence[int]) -> None:
    busy(workers, asking)
    asking.begin(*keys)
    workers.were_asked(1)
    assert len(workers.calls[-1]) == len(keys)


def test_neither_do_those_for_an_epoch(workers: Workers, asking: Asking) -> None:
    busy(workers, asking)
    asking.begin(1, at_least=9)
    workers.were_asked(1)
    assert workers.calls[-1] == [1]


def test_a_lookup_that_has_waited_in_vain_leads_a_round_of_all_that_wait(workers: Workers) -> None:
    asking = Asking(workers, wait_s_max=0.0)
    busy(workers, asking)
    late = asking.begin(4)
    workers.were_asked(1)  # no lookup was let yet
    assert workers.calls[-1] == [4]
    workers.let_all()
    assert rows_of(late.result(SECONDS_MAX)[0]) == expected([4])
    asking.close()


def test_a_lookup_that_is_told_nothing_in_its_time_asks_by_itself(workers: Workers) -> None:
    """As if an interrupt had ended the one that leads: the lookups that wait for it have their rows all the same."""
    asking, gone = Asking(workers, wait_s_max=0.1), threading.Event()
    workers.error = lambda asked: None if len(asked.hash64) <= 2 or gone.wait(SECONDS_MAX) else TimeoutError()
    busy(workers, asking)
    lookups = [[1, 2], [3, 4]]
    waiting = [asking.begin(*keys, give_up_at=-ANSWER_GRACE_S) for keys in lookups]
    asking.wait_for(len(waiting))
    workers.let_all()
    assert wait(waiting, SECONDS_MAX, FIRST_COMPLETED).done
    gone.set()
    assert [rows_of(lookup.result(SECONDS_MAX)[0]) for lookup in waiting] == [expected(keys) for keys in lookups]
    asking.close()


def test_after_one_was_held_up_none_waits_for_a_while(workers: Workers, asking: Asking) -> None:
    workers.held_up = True
    first = busy(workers, asking)
    workers.let.release(len(first))
    for lookup in first:
        lookup.result(SECONDS_MAX)
    workers.held_up = False
    for _ in range(2):
        asking.now += APART_S / 2
        before = len(workers.calls)
        running = [asking.begin(number) for number in range(FREE_LOOKUPS_MAX + 4)]
        workers.were_asked(len(running))  # each by itself, while none is answered
        assert len(workers.calls) == before + len(running)
        workers.let.release(len(running))
        assert [rows_of(lookup.result(SECONDS_MAX)[0]) for lookup in running] == [
            expected([number]) for number in range(FREE_LOOKUPS_MAX + 4)
        ]
    asking.now += 0.001
    asking.forget()
    busy(workers, asking)
    waiting = [asking.begin(1), asking.begin(2)]
    asking.wait_for(2)
    workers.let_all()
    assert [rows_of(lookup.result(SECONDS_MAX)[0]) for lookup in waiting] == [expected([1]), expected([2])]
    assert sorted(workers.calls[-1], key=str) == [1, 2]


@pytest.mark.parametrize("error", [WaitTimeout("too late"), UnknownView("dropped"), ZeroDivisionError(), SystemExit()])
def test_the_error_of_a_round_is_no_answer_to_its_lookups(
    workers: Workers, asking: Asking, error: BaseException
) -> None:
    """The thread that led it may have been interrupted: that is its own affair."""
    workers.error = lambda asked: error if len(asked.hash64) > 2 or 13 in asked.keys.column(0).to_pylist() else None
    busy(workers, asking)
    bad, *good = [asking.begin(13, 14), asking.begin(8, 9), asking.begin(3, 4)]
    asking.wait_for(3)
    workers.let_all()
    with pytest.raises(type(error)):
        bad.result(SECONDS_MAX)
    outcomes = [lookup.exception(SECONDS_MAX) or rows_of(lookup.result()[0]) for lookup in good]
    if isinstance(error, Exception):
        assert outcomes == [expected([8, 9]), expected([3, 4])]
    else:  # the lookup that led it
        assert sum(outcome is error for outcome in outcomes) <= 1
        assert all(outcome in (error, expected([8, 9]), expected([3, 4])) for outcome in outcomes)
