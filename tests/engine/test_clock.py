"""When rows pass tests of the clock, against the clock's function itself."""

import operator
from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from upriver.engine.batch import Batch
from upriver.engine.clock import Passing, shown
from upriver.engine.operators.clock_tests import ClockTests
from upriver.plan.clock import ClockOp, ClockStep, ClockStepKind, ClockTest, Comparison

K = ClockStepKind
DAY = 86_400_000_000
HOUR = DAY // 24
FAR = 8 * 10**18
NOW = 1_700_000_000_000_000
FUNCTIONS = {
    "an hour ago": [(K.MOVED, -HOUR)],
    "some days ago": [(K.DAY, 0), (K.MOVED, -3)],
    "midnight": [(K.DAY, 0), (K.MIDNIGHT, 0)],
    "the day a month ago": [(K.DAY, 0), (K.MONTHS, -1)],
    "the day in months": [(K.DAY, 0), (K.MONTHS, 7), (K.MOVED, 2)],
    "the quarter": [(K.DAY, 0), (K.MONTH_OF, 3)],
    "the week": [(K.DAY, 0), (K.WEEK_OF, 0), (K.MIDNIGHT, 0)],
    "the year": [(K.DAY, 0), (K.YEAR, 0)],
    "seconds": [(K.DIVIDED, 1_000_000), (K.MOVED, -60)],
    "the hour": [(K.DIVIDED, HOUR), (K.TIMES, HOUR)],
}
COMPARED: dict[Comparison, Callable[[Any, Any], Any]] = {
    Comparison.LESS: operator.lt,
    Comparison.AT_MOST: operator.le,
    Comparison.EQUAL: operator.eq,
    Comparison.UNEQUAL: operator.ne,
    Comparison.AT_LEAST: operator.ge,
    Comparison.MORE: operator.gt,
}


def clock_test(comparison: Comparison, function: str, zone: str = "UTC") -> ClockTest:
    steps = tuple(ClockStep(kind, amount) for kind, amount in FUNCTIONS[function])
    return ClockTest("x", comparison, steps, zone, "passes", "")


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "America/New_York"])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_rows_pass_between_two_instants(function: str, zone: str) -> None:
    rng = np.random.default_rng(1)
    clocks = NOW + rng.integers(-400, 400, 300) * DAY + rng.integers(0, DAY, 300)
    clocks[:100] = clocks[:100] // DAY * DAY - rng.integers(-2, 3, 100) * HOUR
    for comparison, compared in COMPARED.items():
        test = clock_test(comparison, function, zone)
        values = shown(test, clocks)
        values = np.concatenate([rng.permutation(values)[:150], values[150:] + rng.integers(-1, 2, 150)])
        passing = Passing.of(test, pa.array(values))
        for bound in (passing.begin, passing.end):
            at = np.where((bound > -FAR) & (bound < FAR), bound, clocks)
            for instants in (clocks, at, at - 1):
                assert (passing.at(instants) == compared(values, shown(test, instants))).all(), comparison


def test_null_and_what_is_beyond_all_clocks() -> None:
    far = [None, -(2**63), 2**63 - 1]
    for function in FUNCTIONS:
        passing = Passing.of(clock_test(Comparison.MORE, function), pa.array(far, pa.int64()))
        assert passing.column(np.full(3, NOW)).to_pylist() == [None, False, True]
        assert (passing.following(np.full(3, NOW))[[0, 1]] == 2**63 - 1).all()


# The operator ---------------------------------------------------------------------------------------------------------

SCHEMA = pa.schema([("x", pa.int64())])
OUTPUT = pa.schema([*SCHEMA, ("passes", pa.bool_())])
SECONDS = ClockTest("x", Comparison.AT_LEAST, (ClockStep(K.DIVIDED, 1_000_000),), "UTC", "passes", "")
"""Whether x seconds have not gone by."""


def made_of_seconds() -> ClockTests:
    return ClockTests(ClockOp((SECONDS,)), SCHEMA, OUTPUT)


def come(rows: list[int], weight: int = 1) -> Batch:
    hashes = np.array(rows, np.uint64) % 3
    return Batch(pa.record_batch({"x": pa.array(rows, pa.int64())}), hashes, np.full(len(rows), weight))


def changes(batch: Batch) -> list[tuple[int, bool, int]]:
    assert batch.weight is not None or not len(batch)
    weights = [] if batch.weight is None else batch.weight.tolist()
    columns = [column.to_pylist() for column in batch.rows.columns]
    return sorted((x, passes, weight) for x, passes, weight in zip(*columns, weights, strict=True))


def test_a_row_is_put_out_anew_when_its_time_has_come() -> None:
    made = made_of_seconds()
    made.advance(5_000_000)
    assert changes(made.apply(0, come([4, 5, 6, 6]))) == [(4, False, 1), (5, True, 1), (6, True, 1), (6, True, 1)]
    assert made.held == 2
    assert made.due(6_000_000).tolist() == [2]
    assert changes(made.advance(6_000_000)) == [(5, False, 1), (5, True, -1)]
    assert changes(made.advance(6_500_000)) == []
    assert changes(made.apply(0, come([6], -1))) == [(6, True, -1)]
    assert changes(made.advance(9_000_000)) == [(6, False, 1), (6, True, -1)]
    assert made.held == 0


def test_the_clock_never_goes_back() -> None:
    made = made_of_seconds()
    made.advance(9_000_000)
    made.advance(1_000_000)
    assert changes(made.apply(0, come([5]))) == [(5, False, 1)]


def test_a_row_that_has_left_is_not_taken_back_once_more_where_its_key_goes() -> None:
    ahead, behind = made_of_seconds(), made_of_seconds()
    ahead.advance(1_000_000)
    behind.advance(1_000_000)
    ahead.apply(0, come([5, 8]))  # one key
    ahead.advance(6_000_000)
    behind.install(ahead.collect(np.array([2], np.uint64)))
    assert changes(behind.apply(0, come([5], -1))) == [(5, False, -1)]
    assert changes(behind.apply(0, come([3]))) == [(3, True, 1)]  # another key is as of the region's clock
    assert changes(behind.advance(6_000_000)) == [(3, False, 1), (3, True, -1)]
    assert changes(behind.advance(9_000_000)) == [(8, False, 1), (8, True, -1)]


def test_a_key_from_a_worker_that_is_behind_catches_up() -> None:
    behind, ahead = made_of_seconds(), made_of_seconds()
    behind.advance(1_000_000)
    behind.apply(0, come([5, 8]))
    ahead.advance(6_000_000)
    ahead.install(behind.collect(np.array([2], np.uint64)))
    assert changes(ahead.advance(6_000_000)) == [(5, False, 1), (5, True, -1)]


def test_state_is_small_after_many_rows_have_come_and_gone() -> None:
    made, rng = made_of_seconds(), Random(1)
    for second in range(300):
        made.advance(second * 1_000_000)
        made.apply(0, come([second + rng.randint(0, 5) for _ in range(40)]))
    assert made.held < 300
    assert made.live_nbytes <= made.nbytes < 200_000
