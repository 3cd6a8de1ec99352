"""Grouped: the changes that it puts out add up to the groups of the rows that are there, wherever its state is."""

from collections import Counter
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from aggregate_kit import assert_rows, calls_of, truth_of
from hypothesis import given, settings
from hypothesis import strategies as st
from soak import examples
from state_kit import EAGER, MANY, VALUES, Row, plain_rows, table_batch, through_the_wire

from upriver.engine.batch import Batch
from upriver.engine.operators.aggregate import Grouped
from upriver.engine.operators.compacted import CompactionPace
from upriver.errors import ProtocolError, RowError
from upriver.hashing import hash64
from upriver.plan.plan import AggregateCall, AggregatePlan

SCHEMA = pa.schema([("k", pa.int8()), ("g", pa.string()), ("x", pa.int64()), ("f", pa.float32()), ("w", pa.bool_())])
CALLS = (
    *calls_of([SCHEMA.field("x")], ("count_star", "count", "sum", "avg", "min", "max", "any_value", "stddev_samp")),
    *calls_of([SCHEMA.field("f")], ("sum", "max", "var_pop")),
    *calls_of([SCHEMA.field("x")], ("count", "sum"), distinct=True),
    *calls_of([SCHEMA.field("w")], ("bool_and", "count"), where="w"),
)
ROW = st.tuples(
    st.sampled_from([1, 2, None]),
    st.sampled_from(["", "b", None]),
    st.none() | st.integers(-3, 3),
    st.none() | VALUES[pa.float32()],
    st.none() | st.booleans(),
)
PLANS = {
    "by the key": AggregatePlan(("k",), CALLS, True),
    "finer": AggregatePlan(("k", "g"), CALLS, True),
    "the key behind": AggregatePlan(("g", "k"), CALLS[:3], True),
    "distinct": AggregatePlan(tuple(SCHEMA.names), (), True),
    "rows that only come": AggregatePlan(("k", "g"), CALLS),
}


class Fleet:
    """Instances that share the routing keys, and what they put out in all."""

    def __init__(self, plan: AggregatePlan, routing: tuple[str, ...] = ("k",)) -> None:
        build = partial(Grouped, plan, SCHEMA, routing)
        self.plan, self.routing = plan, routing
        self.operators = [build(), build(pace=EAGER)]
        self.homes: dict[int, int] = {}
        self.output: Counter[Row] = Counter()

    def apply(self, rows: list[Row], weight: list[int] | None) -> list[tuple[Row, int]]:
        batch = table_batch(SCHEMA, rows, self.routing, lambda columns: hash64(columns, len(rows)), weight)
        homes = np.array([self.homes.setdefault(key, key % 2) for key in batch.hash64.tolist()], np.int64)
        changes = []
        for place, operator in enumerate(self.operators):
            changes += self._put_out(operator.apply(0, batch.filtered(homes == place)))
        for row, times in changes:
            self.output[row] += times
        return changes

    def move(self, keys: set[int], source: int) -> None:
        moving = np.array(sorted(key for key in keys if self.homes[key] == source), np.uint64)
        state = self.operators[source].collect(moving)
        assert len(state) == self.operators[source].parts
        self.operators[1 - source].install(through_the_wire(state))
        self.operators[source].drop(moving)
        self.homes |= dict.fromkeys(moving.tolist(), 1 - source)
        kept = self.operators[source].hashes_between(0, 2**64 - 1)
        assert not set(kept.tolist()) & set(moving.tolist())

    def rows(self) -> list[Row]:
        """What is there by the changes put out; none of it more than once, or less than not at all."""
        assert set(self.output.values()) <= {0, 1}
        return [row for row, times in self.output.items() if times]

    def _put_out(self, changes: Batch) -> list[tuple[Row, int]]:
        assert changes.rows.schema == self.operators[0].schema
        columns = [changes.rows.column(name) for name in self.routing]
        assert changes.hash64.tolist() == hash64(columns, len(changes)).tolist()
        weight = [1] * len(changes) if changes.weight is None else changes.weight.tolist()
        return list(zip(plain_rows(changes.rows), weight, strict=True))


@pytest.mark.parametrize("name", PLANS)
@settings(MANY, max_examples=examples(20))
@given(data=st.data())
def test_changes_add_up_to_the_groups_that_are_there(name: str, data: st.DataObject) -> None:
    plan, present = PLANS[name], list[Row]()
    fleet = Fleet(plan)
    for _ in range(data.draw(st.integers(1, 5))):
        coming = data.draw(st.lists(ROW, max_size=6))
        present += coming
        changes = [(row, 1) for row in coming]
        for _ in range(data.draw(st.integers(0, len(present) if plan.retracts else 0))):
            changes.append((present.pop(data.draw(st.integers(0, len(present) - 1))), -1))
        changes = data.draw(st.permutations(changes)) if plan.retracts else changes
        fleet.apply([row for row, _ in changes], [weight for _, weight in changes])
        if len(fleet.homes) > 0 and data.draw(st.booleans()):
            fleet.move(data.draw(st.sets(st.sampled_from(sorted(fleet.homes)))), data.draw(st.integers(0, 1)))
    assert_rows(plan, fleet.rows(), truth_of(plan, SCHEMA, present).values())


def _max_plan(retracts: bool = True) -> AggregatePlan:
    return AggregatePlan(("k",), (AggregateCall("max", "x", "most", pa.int64()),), retracts)


def _row(key: int | None, number: int | None) -> Row:
    return (key, "", number, None, None)


def test_a_group_puts_out_its_old_row_and_its_new_one() -> None:
    fleet = Fleet(_max_plan())
    assert fleet.apply([_row(1, 5), _row(1, 3)], None) == [((1, 5), 1)]
    assert fleet.apply([_row(1, 9)], None) == [((1, 5), -1), ((1, 9), 1)]
    assert fleet.apply([_row(1, 9)], [-1]) == [((1, 9), -1), ((1, 5), 1)]
    assert fleet.apply([_row(1, 5), _row(1, 3)], [-1, -1]) == [((1, 5), -1)]


@pytest.mark.parametrize("retracts", [False, True])
def test_nothing_is_put_out_of_a_group_that_is_as_before(retracts: bool) -> None:
    fleet = Fleet(_max_plan(retracts))
    fleet.apply([_row(1, 5), _row(2, None)], None)
    assert fleet.apply([_row(1, 3), _row(1, None), _row(2, None)], None) == []
    assert fleet.apply([], None) == []


def test_nan_is_as_before_whatever_its_bits() -> None:
    fleet = Fleet(AggregatePlan(("k",), calls_of([SCHEMA.field("f")], ("sum",)), True))
    rows = [(1, "", None, value, None) for value in (np.inf, -np.inf, np.nan, -np.nan)]
    assert fleet.apply(rows[:2], None) == [((1, "NaN"), 1)]
    assert fleet.apply(rows[2:], None) == []
    assert fleet.apply(rows[:2], [-1, -1]) == []


def test_rows_that_come_and_go_in_one_batch_leave_nothing() -> None:
    fleet = Fleet(PLANS["finer"])
    assert fleet.apply([_row(1, 5), _row(1, 5), _row(2, 1)], [-1, 1, 0]) == []
    assert [operator.held for operator in fleet.operators] == [0, 0]


def test_distinct_puts_out_each_row_once() -> None:
    fleet = Fleet(AggregatePlan(("k", "g"), (), True))
    rows = [(1, "a", 1, None, None), (1, "a", 2, None, None), (None, None, 3, None, None)]
    assert sorted(fleet.apply(rows, None), key=repr) == [((1, "a"), 1), ((None, None), 1)]
    assert fleet.apply(rows[:1], [-1]) == []
    assert fleet.apply(rows[1:2], [-1]) == [((1, "a"), -1)]


def test_one_group_of_all_rows() -> None:
    plan = AggregatePlan((), calls_of([SCHEMA.field("x")], ("count_star", "sum")), True)
    fleet = Fleet(plan, ())
    assert fleet.apply([_row(1, 5), _row(2, 7)], None) == [((2, 12), 1)]
    assert fleet.apply([_row(1, 5)], [-1]) == [((2, 12), -1), ((1, 7), 1)]
    fleet.move(set(fleet.homes), next(iter(fleet.homes.values())))
    assert fleet.apply([_row(2, 7)], [-1]) == [((1, 7), -1)]


def test_a_sum_that_overflows_is_an_error() -> None:
    call = AggregateCall("sum", "x", "total", pa.int64())
    grouped = Grouped(AggregatePlan(("k",), (call,)), SCHEMA, ("k",))
    batch = table_batch(SCHEMA, [_row(1, 2**62), _row(1, 2**62)], ("k",), hash64)
    with pytest.raises(RowError, match=r"total does not fit BIGINT for k = 1\. sum\(CAST"):
        grouped.apply(0, batch)


def test_rows_that_only_come_are_not_retracted() -> None:
    fleet = Fleet(_max_plan(retracts=False))
    fleet.apply([_row(1, 5)], None)
    with pytest.raises(ProtocolError, match="whose rows only ever come"):
        fleet.apply([_row(1, 5)], [-1])


def test_memory_of_groups_that_have_gone_comes_back() -> None:
    grouped = Grouped(PLANS["finer"], SCHEMA, ("k",), pace=CompactionPace(100, 10))
    most, before = 0, 0
    for turn in range(60):
        rows: list[Row] = [(place % 100, f"{turn}", place, None, True) for place in range(200)]
        batch = table_batch(SCHEMA, rows, ("k",), hash64)
        grouped.apply(0, batch)
        grouped.apply(0, Batch(batch.rows, batch.hash64, np.full(len(batch), -1)))
        most, before = max(most, grouped.nbytes), before or grouped.nbytes
    assert grouped.held == 0
    assert most < 10 * before


def test_the_form_of_state_depends_on_the_plan_only() -> None:
    for plan in PLANS.values():
        empty, full = Grouped(plan, SCHEMA, ("k",)), Grouped(plan, SCHEMA, ("k",), pace=EAGER)
        rows: list[Any] = [(1, "", 3, 0.5, True), (2, None, None, None, None)]
        batch = table_batch(SCHEMA, rows, ("k",), hash64)
        full.apply(0, batch)
        nothing, something = empty.collect(np.empty(0, np.uint64)), full.collect(np.unique(batch.hash64))
        assert [part.schema for part in nothing] == [part.schema for part in something]
        assert all(part.column(0).type == pa.uint64() for part in something)
