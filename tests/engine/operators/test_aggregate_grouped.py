"""Grouped: the changes that it puts out add up to the groups of the rows that are there, wherever its state is."""

from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from aggregate_kit import assert_rows, calls_of, truth_of
from fleet_kit import Fleet, changes_batch, changes_of, drawn_changes, plain_row
from hypothesis import given, settings
from hypothesis import strategies as st
from soak import examples
from state_kit import EAGER, MANY, TYPES, VALUES, Row, table_batch

from upriver.engine.batch import Batch
from upriver.engine.operators.aggregate import Grouped
from upriver.engine.operators.compacted import CompactionPace
from upriver.errors import ProtocolError, RowError
from upriver.hashing import HASH_SEED, hash64
from upriver.plan.plan import AggregateCall, AggregatePlan

SCHEMA = pa.schema([("k", pa.int8()), ("g", pa.string()), ("x", pa.int64()), ("f", pa.float32()), ("w", pa.bool_())])
CALLS = (
    *calls_of([SCHEMA.field("x")], ("count_star", "count", "sum", "avg", "min", "max", "any_value", "stddev_samp")),
    *calls_of([SCHEMA.field("f")], ("sum", "max", "var_pop")),
    *calls_of([SCHEMA.field("x")], ("count", "sum"), distinct=True),
    *calls_of([SCHEMA.field("w")], ("bool_and", "count"), where="w"),
)
PLANS = {
    "by the key": AggregatePlan(("k",), CALLS, True),
    "finer": AggregatePlan(("k", "g"), CALLS, True),
    "the key behind": AggregatePlan(("g", "k"), CALLS[:3], True),
    "distinct": AggregatePlan(tuple(SCHEMA.names), (), True),
    "rows that only come": AggregatePlan(("k", "g"), CALLS),
}


@pytest.mark.parametrize("type", VALUES, ids=str)
@settings(MANY, max_examples=examples(15))
@given(data=st.data(), retracts=st.booleans(), collide=st.booleans())
def test_changes_add_up_to_the_groups_that_are_there(
    type: pa.DataType, data: st.DataObject, retracts: bool, collide: bool
) -> None:
    """Every function, over all values, the different ones and those that are picked; groups of any types."""
    group = data.draw(st.lists(TYPES, min_size=1, max_size=2))
    schema = pa.schema([*((f"k{place}", of) for place, of in enumerate(group)), ("a", type), ("w", pa.bool_())])
    routing = schema.names[: data.draw(st.integers(1, len(group)))]
    plan = AggregatePlan(tuple(data.draw(st.permutations(schema.names[: len(group)]))), calls_over(type), retracts)
    build = partial(Grouped, plan, schema, routing, pace=EAGER)
    fleet = Fleet(schema, () if collide else routing, build, in_order=not collide)
    few = [data.draw(st.lists(st.none() | VALUES[of], min_size=1, max_size=2)) for of in group]
    values = st.none() | (VALUES[type].map(lambda value: value >> 8) if type == pa.int64() else VALUES[type])
    rows = st.lists(st.tuples(*map(st.sampled_from, few), values, st.none() | st.booleans()), max_size=8)
    present: list[Row] = []
    for _ in range(data.draw(st.integers(1, 4))):
        coming = data.draw(rows)
        changes = drawn_changes(data, present, coming) if retracts else [(row, 1) for row in coming]
        present += coming
        for row in (row for row, weight in changes if weight < 0):
            present.remove(row)
        fleet.apply(changes)
        if data.draw(st.booleans()):
            fleet.move_some(data)
    assert set(fleet.there().values()) <= {1}
    assert_rows(plan, fleet.there(), truth_of(plan, schema, present).values())


def calls_over(type: pa.DataType) -> tuple[AggregateCall, ...]:
    fields = [pa.field("a", type)]
    distinct = calls_of(fields, ("count", "sum", "avg", "max", "bool_and", "var_samp"), distinct=True)
    picked = calls_of(fields, where="w") + calls_of(fields, ("count", "sum"), distinct=True, where="w")
    return calls_of(fields) + distinct + picked


def grouped(plan: AggregatePlan, routing: tuple[str, ...] = ("k",)) -> Grouped:
    return Grouped(plan, SCHEMA, routing, pace=EAGER)


def put_out(
    operator: Grouped, rows: list[Row], weight: list[int] | None = None, routing: Sequence[str] = ("k",)
) -> list[tuple[Row, int]]:
    """What the operator makes of these rows."""
    changes = list(zip(rows, weight or [1] * len(rows), strict=True))
    return [
        (plain_row(row), times) for row, times in changes_of(operator.apply(0, changes_batch(SCHEMA, routing, changes)))
    ]


def _max_plan(retracts: bool = True) -> AggregatePlan:
    return AggregatePlan(("k",), (AggregateCall("max", "x", "most", pa.int64()),), retracts)


def _row(key: int | None, number: int | None) -> Row:
    return (key, "", number, None, None)


def test_a_group_puts_out_its_old_row_and_its_new_one() -> None:
    operator = grouped(_max_plan())
    assert put_out(operator, [_row(1, 5), _row(1, 3)]) == [((1, 5), 1)]
    assert put_out(operator, [_row(1, 9)]) == [((1, 5), -1), ((1, 9), 1)]
    assert put_out(operator, [_row(1, 9)], [-1]) == [((1, 9), -1), ((1, 5), 1)]
    assert put_out(operator, [_row(1, 5), _row(1, 3)], [-1, -1]) == [((1, 5), -1)]


@pytest.mark.parametrize("retracts", [False, True])
def test_nothing_is_put_out_of_a_group_that_is_as_before(retracts: bool) -> None:
    operator = grouped(_max_plan(retracts))
    put_out(operator, [_row(1, 5), _row(2, None)])
    assert put_out(operator, [_row(1, 3), _row(1, None), _row(2, None)]) == []
    assert put_out(operator, []) == []


def test_nan_is_as_before_whatever_its_bits() -> None:
    operator = grouped(AggregatePlan(("k",), calls_of([SCHEMA.field("f")], ("sum",)), True))
    rows = [(1, "", None, value, None) for value in (np.inf, -np.inf, np.nan, -np.nan)]
    assert put_out(operator, rows[:2]) == [((1, "NaN"), 1)]
    assert put_out(operator, rows[2:]) == []
    assert put_out(operator, rows[:2], [-1, -1]) == []


def test_rows_that_come_and_go_in_one_batch_leave_nothing() -> None:
    operator = grouped(PLANS["finer"])
    assert put_out(operator, [_row(1, 5), _row(1, 5), _row(2, 1)], [-1, 1, 0]) == []
    assert operator.held == 0


def test_distinct_puts_out_each_row_once() -> None:
    operator = grouped(AggregatePlan(("k", "g"), (), True))
    rows = [(1, "a", 1, None, None), (1, "a", 2, None, None), (None, None, 3, None, None)]
    assert sorted(put_out(operator, rows), key=repr) == [((1, "a"), 1), ((None, None), 1)]
    assert put_out(operator, rows[:1], [-1]) == []
    assert put_out(operator, rows[1:2], [-1]) == [((1, "a"), -1)]


def test_one_group_of_all_rows() -> None:
    plan = AggregatePlan((), calls_of([SCHEMA.field("x")], ("count_star", "sum")), True)
    fleet = Fleet(SCHEMA, (), partial(Grouped, plan, SCHEMA, ()))
    for change, there in (((_row(1, 5), 1), (1, 5)), ((_row(2, 7), 1), (2, 12)), ((_row(1, 5), -1), (1, 7))):
        fleet.apply([change])
        fleet.check(Counter({there: 1}))
        fleet.move([int(HASH_SEED)], 1)
    fleet.apply([(_row(2, 7), -1)])
    fleet.check(Counter())


def test_a_sum_that_overflows_is_an_error() -> None:
    call = AggregateCall("sum", "x", "total", pa.int64())
    grouped = Grouped(AggregatePlan(("k",), (call,)), SCHEMA, ("k",))
    batch = table_batch(SCHEMA, [_row(1, 2**62), _row(1, 2**62)], ("k",), hash64)
    with pytest.raises(RowError, match=r"total does not fit BIGINT for k = 1\. sum\(CAST"):
        grouped.apply(0, batch)


def test_rows_that_only_come_are_not_retracted() -> None:
    operator = grouped(_max_plan(retracts=False))
    put_out(operator, [_row(1, 5)])
    with pytest.raises(ProtocolError, match="whose rows only ever come"):
        put_out(operator, [_row(1, 5)], [-1])


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
