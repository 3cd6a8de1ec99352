"""Aggregate against plain Python: every function over every type, however keys are made and batches are cut."""

import math
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from aggregate_kit import assert_rows, calls_of, expected, truth_of
from hypothesis import given
from hypothesis import strategies as st
from state_kit import (
    MANY,
    TYPES,
    Row,
    batch_of,
    column_values,
    decimal_of,
    keys_of,
    pieces,
    plain_rows,
    plainly,
)

from upriver.engine.operators.aggregate import Aggregate
from upriver.errors import ProtocolError, RowError
from upriver.hashing import Hashes
from upriver.plan.plan import AggregateCall, AggregatePlan


def answer(aggregate: Aggregate, slots: np.ndarray[Any, Any]) -> list[Row]:
    columns = [aggregate.column(name, slots) for name in aggregate.schema.names]
    for column in columns:
        column.validate(full=True)
    return plain_rows(pa.RecordBatch.from_arrays(columns, schema=aggregate.schema))


def schema_of(group: Sequence[pa.DataType], arguments: Sequence[pa.DataType]) -> pa.Schema:
    fields = [(f"k{place}", type) for place, type in enumerate(group)]
    return pa.schema(fields + [(f"a{place}", type) for place, type in enumerate(arguments)])


def plan_of(schema: pa.Schema, width: int, retracts: bool = False) -> AggregatePlan:
    """All functions over all columns after the first ``width``, which are the group."""
    calls = calls_of(list(schema)[width:])
    return AggregatePlan(tuple(schema.names[:width]), calls, retracts)


def built(schema: pa.Schema, width: int, routing: int, **options: Any) -> Aggregate:
    """An aggregate of that plan; the first columns of the group are the routing key."""
    return Aggregate(plan_of(schema, width), schema, schema.names[:routing], **options)


def check(aggregate: Aggregate, schema: pa.Schema, rows: Sequence[Row], width: int, routing: int) -> None:
    """Compare all groups, and those of each routing key, with the oracle's."""
    plan = plan_of(schema, width)
    truth = truth_of(plan, schema, rows)
    assert_rows(plan, answer(aggregate, aggregate.by_hash()), truth.values())
    assert aggregate.held == aggregate.rows == len(truth)
    assert aggregate.keys == len({key[:routing] for key in truth})
    routing_schema = pa.schema([schema.field(place) for place in range(routing)])
    for routed in {row[:routing] for row in rows}:
        hashes, keys = keys_of(routing_schema, [routed])
        found = answer(aggregate, aggregate.find(hashes, keys.columns)[1])
        wanted = [row for row in truth.values() if row[:routing] == tuple(map(plainly, routed))]
        assert_rows(plan, found, wanted)


def drawn_rows(data: st.DataObject, schema: pa.Schema, most: int = 40) -> list[Row]:
    size = data.draw(st.integers(0, most))
    return list(zip(*(data.draw(column_values(field.type, size=size)) for field in schema), strict=True))


def _constant(columns: Sequence[pa.Array]) -> Hashes:
    return np.full(len(columns[0]), 7, np.uint64)


@MANY
@given(st.data(), st.lists(TYPES, min_size=1, max_size=3), st.booleans())
def test_groups_of_any_key_at_or_below_any_routing_key(
    data: st.DataObject, group: list[pa.DataType], collide: bool
) -> None:
    routing = data.draw(st.integers(1, len(group)))
    schema = schema_of(group, [pa.int32(), pa.string()])
    rows, aggregate = drawn_rows(data, schema), built(schema, len(group), routing)
    if collide:
        aggregate = built(schema, len(group), routing, hasher=_constant)
    for batch in pieces(batch_of(schema, rows, schema.names[:routing]), data.draw(st.lists(st.integers(0, 50)))):
        aggregate.apply(batch)
    check(aggregate, schema, rows, len(group), routing)


def test_a_row_of_weight_zero_is_no_row() -> None:
    schema = schema_of([pa.int32()], [pa.int32()])
    aggregate = built(schema, 1, 1)
    aggregate.apply(batch_of(schema, [(1, 5), (2, 6)], ["k0"], [0, 1]))
    assert [row[0] for row in answer(aggregate, aggregate.by_hash())] == [2]


def test_rows_count_as_often_as_their_weight_says() -> None:
    schema = schema_of([pa.int32()], [pa.float64()])
    once, often = built(schema, 1, 1), built(schema, 1, 1)
    once.apply(batch_of(schema, [(1, 2.5), (1, 2.5), (1, None), (1, 0.5)], ["k0"]))
    often.apply(batch_of(schema, [(1, 2.5), (1, None), (1, 0.5)], ["k0"], [2, 1, 1]))
    assert answer(once, once.by_hash()) == answer(often, often.by_hash())


def test_rows_that_only_ever_come_are_not_retracted() -> None:
    schema = schema_of([pa.int32()], [pa.int32()])
    aggregate = built(schema, 1, 1)
    aggregate.apply(batch_of(schema, [(1, 5)], ["k0"]))
    with pytest.raises(ProtocolError, match="whose rows only ever come"):
        aggregate.apply(batch_of(schema, [(1, 5)], ["k0"], [-1]))


def test_any_value_of_nested_values() -> None:
    schema = schema_of([pa.int32()], [pa.list_(pa.int32())])
    call = AggregateCall("any_value", "a0", "some", pa.list_(pa.int32()))
    aggregate = Aggregate(AggregatePlan(("k0",), (call,)), schema, ["k0"])
    aggregate.apply(batch_of(schema, [(1, None), (2, None)], ["k0"]))
    aggregate.apply(batch_of(schema, [(1, [1, None]), (1, [])], ["k0"]))
    assert sorted(aggregate.column("some", aggregate.by_hash()).to_pylist(), key=repr) == [None, [1, None]]


# Overflow ---------------------------------------------------------------------------------------------------------

BIG = 2**63 - 1


@pytest.mark.parametrize(
    ("type", "fits", "too_many"),
    [
        (pa.int64(), [BIG, -BIG, -BIG, -1], [-1]),
        (pa.int64(), [BIG - 5, 3, 2], [1]),
        (pa.int64(), [2**62, 2**62 - 1], [2**62, 2**62, 2**62]),
        (pa.decimal128(38, 0), [Decimal(10**38 - 1), Decimal(-5), Decimal(5)], [Decimal(1)]),
        (pa.decimal128(38, 2), [decimal_of(1 - 10**38, 2)], [Decimal("-0.01")]),
    ],
)
@pytest.mark.parametrize("one_by_one", [True, False])
def test_a_sum_that_leaves_its_type_is_an_error(
    type: pa.DataType, fits: list[Any], too_many: list[Any], one_by_one: bool
) -> None:
    schema = schema_of([pa.string()], [type])
    call = AggregateCall("sum", "a0", "total", type)
    aggregate = Aggregate(AggregatePlan(("k0",), (call,)), schema, ["k0"])
    batch = batch_of(schema, [("a", value) for value in fits] + [("b", fits[0])], ["k0"])
    for piece in pieces(batch, range(len(batch)) if one_by_one else []):
        aggregate.apply(piece)
    found: dict[Any, Any] = dict(answer(aggregate, aggregate.by_hash()))
    assert found == {"a": expected(call, fits, retracts=False), "b": fits[0]}
    with pytest.raises(RowError, match=r"total does not fit (BIGINT|DECIMAL.*) for k0 = a"):
        aggregate.apply(batch_of(schema, [("a", value) for value in too_many], ["k0"]))


def test_an_average_that_has_no_room_for_its_scale_is_an_error() -> None:
    type = pa.decimal128(38, 0)
    schema = schema_of([pa.int32()], [type])
    call = AggregateCall("avg", "a0", "mean", pa.decimal128(38, 4))
    aggregate = Aggregate(AggregatePlan(("k0",), (call,)), schema, ["k0"])
    aggregate.apply(batch_of(schema, [(1, Decimal(10**34 - 1)), (2, Decimal(10**34))], ["k0"]))
    keys = pa.array([1, 2], pa.int32())
    hashes, _ = keys_of(pa.schema([("k0", pa.int32())]), [(1,), (2,)])
    assert answer(aggregate, aggregate.find(hashes[:1], [keys[:1]])[1]) == [(1, Decimal(10**34 - 1))]
    with pytest.raises(RowError, match=r"mean does not fit DECIMAL\(38,4\) for k0 = 2"):
        answer(aggregate, aggregate.by_hash())


@pytest.mark.parametrize("function", ["sum", "avg"])
def test_floats_overflow_to_infinity(function: str) -> None:
    schema = schema_of([pa.int32()], [pa.float64()])
    call = AggregateCall(function, "a0", "x", pa.float64())
    aggregate = Aggregate(AggregatePlan(("k0",), (call,)), schema, ["k0"])
    aggregate.apply(batch_of(schema, [(1, 1e308), (1, 1e308), (2, math.inf), (2, -math.inf)], ["k0"]))
    assert dict(answer(aggregate, aggregate.by_hash())) == {1: math.inf, 2: "NaN"}


@pytest.mark.parametrize(
    ("function", "argument", "type"),
    [
        ("sum", pa.int32(), pa.int32()),
        ("sum", pa.string(), pa.float64()),
        ("sum", pa.decimal128(5, 2), pa.decimal128(14, 2)),
        ("avg", pa.date32(), pa.float64()),
        ("min", pa.int32(), pa.int64()),
        ("median", pa.int32(), pa.float64()),
        ("any_value", pa.int32(), pa.int64()),
        ("var_pop", pa.string(), pa.float64()),
        ("stddev_samp", pa.float32(), pa.float32()),
        ("bool_and", pa.int32(), pa.bool_()),
    ],
)
@pytest.mark.parametrize("retracts", [False, True])
def test_a_call_that_spark_would_not_make_is_refused(
    function: str, argument: pa.DataType, type: pa.DataType, retracts: bool
) -> None:
    schema = schema_of([pa.int32()], [argument])
    plan = AggregatePlan(("k0",), (AggregateCall(function, "a0", "x", type),), retracts)
    with pytest.raises(ProtocolError, match=f"^{function} of "):
        Aggregate(plan, schema, ["k0"])
