"""Aggregate against plain Python: every function over every type, however keys are made and batches are cut."""

import math
from collections import defaultdict
from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from state_kit import (
    MANY,
    TYPES,
    VALUES,
    Row,
    batch_of,
    column_values,
    comings_and_goings,
    decimal_of,
    keys_of,
    order_of,
    pieces,
    plain_rows,
    plainly,
)

from upriver.dataflow.batch import Hashes
from upriver.dataflow.operators.aggregate import Aggregate
from upriver.dataflow.plan import AggregateCall, AggregatePlan
from upriver.errors import ProtocolError, RowError
from upriver.hashing import HASH_SEED

FUNCTIONS = ("count_star", "count", "sum", "avg", "min", "max")
INTEGERS = (pa.int8(), pa.int16(), pa.int32(), pa.int64())
FLOATS = (pa.float32(), pa.float64())


def result_type(function: str, type: pa.DataType) -> pa.DataType | None:
    """What Spark gives; ``None`` if the function does not take the type."""
    if function in ("count_star", "count"):
        return pa.int64()
    if function in ("min", "max"):
        return type
    if pa.types.is_decimal(type):
        more = (10, 0) if function == "sum" else (4, 4)
        return pa.decimal128(min(38, type.precision + more[0]), type.scale + more[1])
    if type in FLOATS or (type in INTEGERS and function == "avg"):
        return pa.float64()
    return pa.int64() if type in INTEGERS else None


def calls_of(columns: Sequence[tuple[str, pa.DataType]]) -> tuple[AggregateCall, ...]:
    """Every function of every column that it takes."""
    calls = [AggregateCall("count_star", None, "n", pa.int64())]
    for function in FUNCTIONS[1:]:
        for name, type in columns:
            result = result_type(function, type)
            if result is not None:
                calls.append(AggregateCall(function, name, f"{function}_{name}", result))
    return tuple(calls)


def half_up(value: Fraction, scale: int) -> Decimal:
    magnitude = math.floor(abs(value) * 10**scale + Fraction(1, 2))
    return decimal_of(magnitude if value >= 0 else -magnitude, scale)


def expected(call: AggregateCall, values: list[Any]) -> Any:
    """The call's result over a group's values, nulls among them, in order of arrival."""
    if call.function == "count_star":
        return len(values)
    present = [value for value in values if value is not None]
    if call.function == "count":
        return len(present)
    if not present:
        return None
    if call.function in ("min", "max"):
        return plainly((min if call.function == "min" else max)(present, key=order_of))
    if pa.types.is_decimal(call.type):
        exact = sum(map(Fraction, present), Fraction())
        return half_up(exact / (len(present) if call.function == "avg" else 1), call.type.scale)
    total: Any = 0.0 if call.type == pa.float64() else 0
    for value in present:
        total += value
    return plainly(total / len(present) if call.function == "avg" else total)


def grouped(rows: Sequence[Row], width: int) -> dict[Row, list[Row]]:
    """The rows of each group, in order; the first ``width`` values are the group's key."""
    groups = defaultdict(list)
    for row in rows:
        groups[tuple(map(plainly, row[:width]))].append(row)
    return groups


def answer(aggregate: Aggregate, slots: np.ndarray[Any, Any]) -> list[Row]:
    columns = [aggregate.column(name, slots) for name in aggregate.schema.names]
    for column in columns:
        column.validate(full=True)
    return plain_rows(pa.RecordBatch.from_arrays(columns, schema=aggregate.schema))


def schema_of(group: Sequence[pa.DataType], arguments: Sequence[pa.DataType]) -> pa.Schema:
    fields = [(f"k{place}", type) for place, type in enumerate(group)]
    return pa.schema(fields + [(f"a{place}", type) for place, type in enumerate(arguments)])


def built(schema: pa.Schema, width: int, routing: int, **options: Any) -> Aggregate:
    """All functions over all columns after the first ``width``, which are the group; the first are the routing key."""
    plan = AggregatePlan(tuple(schema.names[:width]), calls_of([(field.name, field.type) for field in schema][width:]))
    return Aggregate(plan, schema, schema.names[:routing], **options)


def check(aggregate: Aggregate, schema: pa.Schema, rows: Sequence[Row], width: int, routing: int) -> None:
    """Compare all groups, and those of each routing key, with the oracle's."""
    plan = calls_of([(field.name, field.type) for field in schema][width:])
    truth = {}
    for key, members in grouped(rows, width).items():
        columns = dict(zip(schema.names, zip(*members, strict=True), strict=True))
        arguments = [columns[call.argument] if call.argument else [None] * len(members) for call in plan]
        truth[key] = key + tuple(expected(call, list(values)) for call, values in zip(plan, arguments, strict=True))
    scanned = answer(aggregate, aggregate.by_hash())
    assert sorted(scanned, key=repr) == sorted(truth.values(), key=repr)
    assert aggregate.held == len(truth)
    assert aggregate.keys == len({key[:routing] for key in truth})
    routing_schema = pa.schema([schema.field(place) for place in range(routing)])
    for routed in {row[:routing] for row in rows}:
        hashes, keys = keys_of(routing_schema, [routed])
        found = answer(aggregate, aggregate.find(hashes, keys.columns)[1])
        wanted = [row for row in truth.values() if row[:routing] == tuple(map(plainly, routed))]
        assert sorted(found, key=repr) == sorted(wanted, key=repr)


def drawn_rows(data: st.DataObject, schema: pa.Schema, most: int = 40) -> list[Row]:
    size = data.draw(st.integers(0, most))
    return list(zip(*(data.draw(column_values(field.type, size=size)) for field in schema), strict=True))


@pytest.mark.parametrize("type", VALUES, ids=str)
@MANY
@given(data=st.data())
def test_every_function_over_every_type(type: pa.DataType, data: st.DataObject) -> None:
    schema = schema_of([pa.int32()], [type])
    size = data.draw(st.integers(0, 40))
    keys = data.draw(st.lists(st.none() | st.integers(0, 3), min_size=size, max_size=size))
    values = data.draw(column_values(type, size=size))
    if type == pa.int64():
        values = [None if value is None else value >> 8 for value in values]  # sums stay within a long
    rows = list(zip(keys, values, strict=True))
    aggregate = built(schema, 1, 1)
    for batch in pieces(batch_of(schema, rows, ["k0"]), data.draw(st.lists(st.integers(0, 50), max_size=4))):
        aggregate.apply(batch)
    assert aggregate.schema.types == [pa.int32(), *(call.type for call in calls_of([("a0", type)]))]
    check(aggregate, schema, rows, 1, 1)


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


@MANY
@given(st.data())
def test_keys_with_one_hash_never_mix(data: st.DataObject) -> None:
    schema = schema_of([pa.string()], [pa.int16()])
    rows, aggregate = drawn_rows(data, schema), built(schema, 1, 1)
    for batch in pieces(batch_of(schema, rows, []), data.draw(st.lists(st.integers(0, 50), max_size=4))):
        aggregate.apply(batch)
    groups = grouped(rows, 1)
    for (key,), members in groups.items():
        _, slots = aggregate.find(np.array([HASH_SEED]), [pa.array([key], pa.string())])
        assert [row[:2] for row in answer(aggregate, slots)] == [(key, len(members))]
    assert aggregate.held == len(groups)


@MANY
@given(st.data(), st.integers(1, 2))
def test_cutting_batches_differently_changes_no_answer(data: st.DataObject, routing: int) -> None:
    schema = schema_of([pa.int8(), pa.string()], [pa.float64(), pa.decimal128(5, 2), pa.binary()])
    batch = batch_of(schema, drawn_rows(data, schema), schema.names[:routing])
    answers = []
    for cuts in ([], data.draw(st.lists(st.integers(0, 50), max_size=5)), range(len(batch))):
        aggregate = built(schema, 2, routing)
        for piece in pieces(batch, cuts):
            aggregate.apply(piece)
        routed = [batch.rows.column(place) for place in range(routing)]
        answers.append(
            (answer(aggregate, aggregate.by_hash()), answer(aggregate, aggregate.find(batch.hash64, routed)[1]))
        )
    assert answers[0] == answers[1] == answers[2]


# Retraction -------------------------------------------------------------------------------------------------------

SUMMABLE = [pa.int32(), pa.decimal128(28, 6), pa.float32()]


def _without_extremes(schema: pa.Schema, width: int, routing: int) -> Aggregate:
    calls = calls_of([(field.name, field.type) for field in schema][width:])
    calls = tuple(call for call in calls if call.function not in ("min", "max"))
    return Aggregate(AggregatePlan(tuple(schema.names[:width]), calls), schema, schema.names[:routing])


@MANY
@given(st.data(), st.integers(1, 2))
def test_what_is_retracted_leaves_no_trace(data: st.DataObject, routing: int) -> None:
    schema = schema_of([pa.int8(), pa.bool_()], SUMMABLE)
    halves = st.none() | st.integers(-8, 8).map(lambda number: number / 2)
    row = st.tuples(st.sampled_from([1, 2, None]), st.booleans(), *map(VALUES.get, SUMMABLE[:2]), halves)
    changes, left = comings_and_goings(data, data.draw(st.lists(row, max_size=25)))
    batch = batch_of(schema, [row for row, _ in changes], schema.names[:routing], [weight for _, weight in changes])
    retracting, direct = _without_extremes(schema, 2, routing), _without_extremes(schema, 2, routing)
    for piece in pieces(batch, data.draw(st.lists(st.integers(0, 50), max_size=4))):
        retracting.apply(piece)
    direct.apply(batch_of(schema, left, schema.names[:routing]))
    found, wanted = (answer(aggregate, aggregate.by_hash()) for aggregate in (retracting, direct))
    assert sorted(found, key=repr) == sorted(wanted, key=repr)
    assert (retracting.held, retracting.keys) == (direct.held, direct.keys)


def test_a_group_left_without_values_starts_again_from_zero() -> None:
    schema = schema_of([pa.int32()], [pa.float64()])
    aggregate = _without_extremes(schema, 1, 1)
    rows = [(1, 0.1), (1, 0.2), (1, None), (1, 0.1), (1, 0.2), (1, 1e-30)]
    aggregate.apply(batch_of(schema, rows, ["k0"], [1, 1, 1, -1, -1, 1]))
    assert answer(aggregate, aggregate.by_hash())[0][1:3] == (2, 1)
    aggregate.apply(batch_of(schema, [(1, 1e-30)], ["k0"], [-1]))
    aggregate.apply(batch_of(schema, [(1, 5.0)], ["k0"]))
    assert answer(aggregate, aggregate.by_hash()) == [(1, 2, 1, 5.0, 5.0)]


def test_a_group_that_comes_back_is_a_new_one() -> None:
    schema = schema_of([pa.int32(), pa.string()], [pa.int64()])
    aggregate = _without_extremes(schema, 2, 1)
    aggregate.apply(batch_of(schema, [(1, "a", 5), (1, "b", 6), (1, "c", 7)], ["k0"]))
    aggregate.apply(batch_of(schema, [(1, "a", 5)], ["k0"], [-1]))
    aggregate.apply(batch_of(schema, [(1, "a", 8)], ["k0"]))
    hashes, keys = keys_of(schema_of([pa.int32()], []), [(1,)])
    _, slots = aggregate.find(hashes, keys.columns)
    assert [row[1:5] for row in answer(aggregate, slots)] == [("b", 1, 1, 6), ("c", 1, 1, 7), ("a", 1, 1, 8)]


def test_more_retracted_than_added_is_our_fault() -> None:
    schema = schema_of([pa.int32()], [pa.int32()])
    aggregate = _without_extremes(schema, 1, 1)
    aggregate.apply(batch_of(schema, [(1, None)], ["k0"]))
    with pytest.raises(ProtocolError, match="more rows were retracted"):
        aggregate.apply(batch_of(schema, [(1, 1), (1, 1)], ["k0"], [-1, -1]))
    aggregate = _without_extremes(schema, 1, 1)
    aggregate.apply(batch_of(schema, [(1, None)], ["k0"]))
    with pytest.raises(ProtocolError, match="more values were retracted"):
        aggregate.apply(batch_of(schema, [(1, 1)], ["k0"], [-1]))


@pytest.mark.parametrize(
    ("type", "value"), [(pa.int32(), 5), (pa.string(), "x"), (pa.decimal128(5, 2), Decimal("1.25"))], ids=str
)
def test_extremes_lose_no_value_but_may_lose_a_null(type: pa.DataType, value: Any) -> None:
    schema = schema_of([pa.int32()], [type])
    aggregate = built(schema, 1, 1)
    aggregate.apply(batch_of(schema, [(1, None), (1, value)], ["k0"], [3, 2]))
    aggregate.apply(batch_of(schema, [(1, None)], ["k0"], [-1]))
    found = dict(zip(aggregate.schema.names, answer(aggregate, aggregate.by_hash())[0], strict=True))
    assert (found["n"], found["count_a0"], found["min_a0"], found["max_a0"]) == (4, 2, value, value)
    with pytest.raises(ProtocolError, match="min and max cannot take a value back"):
        aggregate.apply(batch_of(schema, [(1, value)], ["k0"], [-1]))


def test_a_row_of_weight_zero_is_no_row() -> None:
    schema = schema_of([pa.int32()], [pa.int32()])
    aggregate = built(schema, 1, 1)
    aggregate.apply(batch_of(schema, [(1, 5), (2, 6)], ["k0"], [0, 1]))
    assert [row[0] for row in answer(aggregate, aggregate.by_hash())] == [2]


def test_an_infinity_cannot_be_retracted() -> None:
    schema = schema_of([pa.int32()], [pa.float64()])
    aggregate = _without_extremes(schema, 1, 1)
    with pytest.raises(ProtocolError, match="cannot be retracted from a sum of floats"):
        aggregate.apply(batch_of(schema, [(1, math.inf), (1, math.inf)], ["k0"], [1, -1]))


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
    found = dict(answer(aggregate, aggregate.by_hash()))
    assert found == {"a": expected(call, fits), "b": fits[0]}
    with pytest.raises(RowError, match=r"column total: sum does not fit .* for the key \{'k0': 'a'\}"):
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
    with pytest.raises(RowError, match="column mean: avg does not fit"):
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
    ],
)
def test_a_call_that_spark_would_not_make_is_refused(function: str, argument: pa.DataType, type: pa.DataType) -> None:
    schema = schema_of([pa.int32()], [argument])
    plan = AggregatePlan(("k0",), (AggregateCall(function, "a0", "x", type),))
    with pytest.raises(ProtocolError, match=f"^{function} of "):
        Aggregate(plan, schema, ["k0"])
