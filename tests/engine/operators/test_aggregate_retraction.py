"""Aggregates whose rows may go again: what has gone leaves no trace."""

import math
from collections.abc import Sequence
from decimal import Decimal
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from aggregate_kit import MOMENTS, assert_rows, calls_of, truth_of
from state_kit import Row, batch_of, plain_rows

from upriver.engine.batch import Batch
from upriver.engine.operators.aggregate import Aggregate
from upriver.engine.operators.compacted import FORGOTTEN_MIN
from upriver.engine.operators.view import CompactedViewStore, Store
from upriver.errors import ProtocolError
from upriver.plan.plan import AggregateCall, AggregatePlan

ROUTING = ("k0",)


def schema_of(type: pa.DataType) -> pa.Schema:
    return pa.schema([("k0", pa.int8()), ("k1", pa.string()), ("a", type), ("w", pa.bool_())])


def plan_of(type: pa.DataType, group: Sequence[str] = ("k0",)) -> AggregatePlan:
    """All functions, some of distinct values too, and all of those rows for which ``w`` is true."""
    fields = [schema_of(type).field("a")]
    distinct = calls_of(fields, ("count", "sum", "avg", "max", "bool_and", "var_samp"), distinct=True)
    some = calls_of(fields, where="w") + calls_of(fields, ("count", "sum"), distinct=True, where="w")
    return AggregatePlan(tuple(group), calls_of(fields) + distinct + some, retracts=True)


def answer(store: Store) -> list[Row]:
    slots = store.by_hash()
    columns = [store.column(name, slots) for name in store.schema.names]
    for column in columns:
        column.validate(full=True)
    return plain_rows(pa.RecordBatch.from_arrays(columns, schema=store.schema))


def test_the_form_of_state_depends_on_the_plan_only() -> None:
    schema, plan = schema_of(pa.float64()), plan_of(pa.float64())
    empty, full = Aggregate(plan, schema, ROUTING), Aggregate(plan, schema, ROUTING)
    batch = batch_of(schema, [(1, "", math.nan, True), (2, "", 0.1, None), (2, "", None, False)], ROUTING)
    full.apply(batch)
    nothing, something = empty.collect(np.empty(0, np.uint64)), full.collect(np.unique(batch.hash64))
    assert [part.schema for part in nothing] == [part.schema for part in something]
    empty.install(nothing)
    assert empty.rows == 0


# Extremes ---------------------------------------------------------------------------------------------------------


def _extremes(type: pa.DataType) -> AggregatePlan:
    calls = calls_of([schema_of(type).field("a")], ("min", "max", "any_value"))
    return AggregatePlan(("k0",), calls, retracts=True)


@pytest.mark.parametrize(
    ("type", "values"),
    [
        (pa.int64(), [5, -7, 2**62, 0, 5]),
        (pa.string(), ["x", "", "a\u00e9", "z", "x"]),
        (pa.decimal128(28, 6), [Decimal("1.25"), Decimal("-3"), Decimal("9999999"), Decimal(0), Decimal("1.25")]),
        (pa.float64(), [math.nan, -math.inf, 1e-300, 0.5, math.nan]),
    ],
    ids=str,
)
@pytest.mark.parametrize("descending", [False, True])
def test_extremes_go_one_by_one_and_the_next_is_known(type: pa.DataType, values: list[Any], descending: bool) -> None:
    schema, plan = schema_of(type), _extremes(type)
    aggregate = Aggregate(plan, schema, ROUTING)
    rows = [(key, "", value, None) for key in (1, 2) for value in values]
    aggregate.apply(batch_of(schema, rows, ROUTING))
    left = sorted(rows, key=lambda row: (math.nan if row[2] is None else 0, repr(row[2])), reverse=descending)
    while left:
        assert_rows(plan, answer(aggregate), truth_of(plan, schema, left).values())
        aggregate.apply(batch_of(schema, [left.pop(0)], ROUTING, [-1]))
    assert (aggregate.rows, aggregate.held) == (0, 0)


@pytest.mark.parametrize("type", [pa.int32(), pa.string()], ids=str)
def test_extremes_of_large_groups_of_which_most_has_gone(type: pa.DataType) -> None:
    """So many values that they lie in several levels; each batch takes the least and the greatest of those left."""
    schema, plan, rng = schema_of(type), _extremes(type), np.random.default_rng(7)
    numbers = rng.permutation(20_000)
    kept = numbers.tolist() if type == pa.int32() else [f"{number:05}" for number in numbers.tolist()]
    aggregate = Aggregate(plan, schema, ROUTING)
    for start in range(0, len(kept), 4000):
        rows = [(place % 3, "", value, None) for place, value in enumerate(kept[start : start + 4000], start)]
        aggregate.apply(batch_of(schema, rows, ROUTING))
    left = [sorted((value, place % 3) for place, value in enumerate(kept) if place % 3 == key) for key in range(3)]
    while len(left[0]) > 600:
        gone = [row for one in left for row in (*one[:300], *one[-250:])]
        left = [one[300:-250] for one in left]
        rows = [(key, "", value, None) for value, key in gone]
        aggregate.apply(batch_of(schema, rows, ROUTING, [-1] * len(rows)))
        found = {row[0]: row[1:] for row in answer(aggregate)}
        assert found == {key: (one[0][0], one[-1][0], one[0][0]) for key, one in enumerate(left)}


def test_an_extreme_that_is_there_twice_stays_when_one_goes() -> None:
    schema, plan = schema_of(pa.int64()), _extremes(pa.int64())
    aggregate = Aggregate(plan, schema, ROUTING)
    aggregate.apply(batch_of(schema, [(1, "", 3, None), (1, "", 9, None)], ROUTING, [2, 3]))
    aggregate.apply(batch_of(schema, [(1, "", 3, None), (1, "", 9, None)], ROUTING, [-1, -2]))
    assert answer(aggregate) == [(1, 3, 9, 3)]
    aggregate.apply(batch_of(schema, [(1, "", 3, None), (1, "", 4, None)], ROUTING, [-1, 1]))
    assert answer(aggregate) == [(1, 4, 9, 4)]


def test_any_value_and_distinct_of_nested_values() -> None:
    type = pa.list_(pa.int32())
    schema = schema_of(type)
    calls = calls_of([schema.field("a")], ("any_value",)) + calls_of([schema.field("a")], ("count",), distinct=True)
    aggregate = Aggregate(AggregatePlan(("k0",), calls, retracts=True), schema, ROUTING)
    rows = [(1, "", value, None) for value in ([1, None], [], [1, None], None)]
    aggregate.apply(batch_of(schema, rows, ROUTING))
    aggregate.apply(batch_of(schema, rows[:1], ROUTING, [-1]))
    assert answer(aggregate)[0][2] == 2
    aggregate.apply(batch_of(schema, rows[:1], ROUTING, [-1]))
    assert answer(aggregate) == [(1, [], 1)]
    aggregate.apply(batch_of(schema, rows[1:2], ROUTING, [-1]))
    assert answer(aggregate) == [(1, None, 0)]


# Sums -------------------------------------------------------------------------------------------------------------


def _of_floats(*functions: str) -> Aggregate:
    schema = schema_of(pa.float64())
    return Aggregate(AggregatePlan(("k0",), calls_of([schema.field("a")], functions), True), schema, ROUTING)


def _apply(aggregate: Aggregate, values: Sequence[float | None], weight: int) -> None:
    rows = [(1, "", value, None) for value in values]
    aggregate.apply(batch_of(schema_of(pa.float64()), rows, ROUTING, [weight] * len(rows)))


def test_nothing_of_a_large_float_stays_when_it_goes() -> None:
    aggregate = _of_floats("sum", "avg", *MOMENTS)
    large = [1e300, -1e280, 1.7e308, 1.7e308, math.inf, -math.inf, math.nan, 5e-324]
    _apply(aggregate, [*large, 0.1, 0.2], 1)
    assert answer(aggregate) == [(1, *["NaN"] * 6)]
    _apply(aggregate, large, -1)
    assert answer(aggregate) == [(1, 0.1 + 0.2, (0.1 + 0.2) / 2, *answer(_small())[0][3:])]


def _small() -> Aggregate:
    aggregate = _of_floats("sum", "avg", *MOMENTS)
    _apply(aggregate, [0.1, 0.2], 1)
    return aggregate


@pytest.mark.parametrize(
    ("values", "total"),
    [
        ([math.inf, 1.0], math.inf),
        ([-math.inf, 1.0], -math.inf),
        ([math.inf, -math.inf], "NaN"),
        ([1.7e308, 1.7e308], math.inf),
        ([1.7e308, 1.7e308, -1.7e308], 1.7e308),
        ([5e-324, 5e-324, -5e-324], 5e-324),
        ([1.0, 2.0**-53, 2.0**-110], 1.0 + 2.0**-52),
        ([-1e-320, 1e308], 1e308),
    ],
)
def test_sums_of_floats_are_rounded_once(values: list[float], total: Any) -> None:
    aggregate = _of_floats("sum")
    for value in values:
        _apply(aggregate, [value], 1)
    assert answer(aggregate) == [(1, total)]


@pytest.mark.parametrize(
    ("type", "value", "other"),
    [
        (pa.int64(), 2**62, -(2**62)),
        (pa.decimal128(28, 6), Decimal("9999999999999999999999.999999"), Decimal("-9999999999999999999999.999998")),
    ],
)
def test_a_row_may_be_there_very_often(type: pa.DataType, value: Any, other: Any) -> None:
    """As after a skewed join. Weights are so great that what limbs hold would overflow."""
    schema, often = schema_of(type), 2**33
    aggregate = Aggregate(
        AggregatePlan(("k0",), calls_of([schema.field("a")], ("count", "sum")), True), schema, ROUTING
    )
    aggregate.apply(batch_of(schema, [(1, "", value, None), (1, "", other, None)], ROUTING, [often, often]))
    assert answer(aggregate) == [(1, 2 * often, (value + other) * often)]


# Faults -----------------------------------------------------------------------------------------------------------


def test_more_retracted_than_added_is_our_fault() -> None:
    schema = schema_of(pa.int64())
    for plan in (plan_of(pa.int64()), AggregatePlan(("k0",), calls_of([schema.field("a")], ("sum",)), True)):
        aggregate = Aggregate(plan, schema, ROUTING)
        aggregate.apply(batch_of(schema, [(1, "", None, True)], ROUTING))
        with pytest.raises(ProtocolError, match="more rows were retracted"):
            aggregate.apply(batch_of(schema, [(1, "", 1, True)] * 2, ROUTING, [-1, -1]))
        aggregate = Aggregate(plan, schema, ROUTING)
        aggregate.apply(batch_of(schema, [(1, "", None, True)], ROUTING))
        with pytest.raises(ProtocolError, match="more values were retracted"):
            aggregate.apply(batch_of(schema, [(1, "", 1, True)], ROUTING, [-1]))


def test_a_value_that_is_not_there_cannot_be_retracted() -> None:
    schema, plan = schema_of(pa.int64()), _extremes(pa.int64())
    aggregate = Aggregate(plan, schema, ROUTING)
    aggregate.apply(batch_of(schema, [(1, "", 5, None), (1, "", 6, None)], ROUTING))
    with pytest.raises(ProtocolError, match="more rows were retracted"):
        aggregate.apply(batch_of(schema, [(1, "", 7, None)], ROUTING, [-1]))


def test_a_group_that_comes_and_goes_in_one_batch_was_never_there() -> None:
    schema, plan = schema_of(pa.int64()), plan_of(pa.int64(), ("k0", "k1"))
    aggregate, other = Aggregate(plan, schema, ROUTING), Aggregate(plan, schema, ROUTING)
    batch = batch_of(schema, [(1, "b", 5, True)] * 2, ROUTING, [-1, 1])
    aggregate.apply(batch)
    assert (aggregate.rows, aggregate.keys, aggregate.held, answer(aggregate)) == (0, 0, 0, [])
    assert not len(aggregate.find(batch.hash64[:1], [batch.rows.column("k0")[:1]])[1])
    other.apply(batch_of(schema, [(1, "b", 5, True)], ROUTING))
    aggregate.install(other.collect(batch.hash64[:1]))
    assert answer(aggregate) == answer(other)


# Memory -----------------------------------------------------------------------------------------------------------


def test_memory_of_values_that_have_gone_comes_back() -> None:
    """Few groups whose values are others in each batch."""
    schema, plan = schema_of(pa.int64()), _extremes(pa.int64())
    store = CompactedViewStore(partial(Aggregate, plan, schema, ROUTING))
    most, last = 0, None
    for turn in range(30):
        batch = batch_of(schema, [(place % 50, "", 1000 * turn + place, None) for place in range(1000)], ROUTING)
        store.apply(batch)
        if last is not None:
            store.apply(Batch(last.rows, last.hash64, np.full(len(last), -1)))
        last, most = batch, max(most, store.slots)
    assert (store.rows, store.held) == (50, 1050)
    assert most < 2 * (FORGOTTEN_MIN + 2050)
    assert sorted(answer(store)) == [(key, 29_000 + key, 29_950 + key, 29_000 + key) for key in range(50)]


def test_no_value_is_left_of_a_key_that_was_dropped() -> None:
    schema = schema_of(pa.string())
    aggregate = Aggregate(plan_of(pa.string(), ("k0", "k1")), schema, ROUTING)
    batch = batch_of(schema, [(key, "", f"{place}", True) for place in range(9) for key in (1, 2)], ROUTING)
    for _ in range(2):
        aggregate.apply(batch)
        aggregate.drop(np.unique(batch.hash64))
        assert (aggregate.rows, aggregate.held, answer(aggregate)) == (0, 0, [])


def test_distinct_values_of_rows_that_only_ever_come() -> None:
    schema = schema_of(pa.string())
    calls = (AggregateCall("count", "a", "n", pa.int64(), distinct=True),)
    aggregate = Aggregate(AggregatePlan(("k0",), calls), schema, ROUTING)
    for values in (["a", "b", None, "a"], ["b", "c"]):
        aggregate.apply(batch_of(schema, [(1, "", value, None) for value in values], ROUTING))
    assert answer(aggregate) == [(1, 3)]
