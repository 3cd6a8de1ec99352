"""Aggregate: groups by any key, sums and extremes at the ends of their types, and faults.

``test_aggregate_grouped.py`` tries every function over every type, and ``tests/conformance/aggregates.test`` has what
Spark says of them."""

import math
from collections.abc import Sequence
from decimal import Decimal, localcontext
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from aggregate_kit import MOMENTS, assert_rows, calls_of, expected, truth_of
from guards_kit import kept
from hypothesis import given, settings
from hypothesis import strategies as st
from soak import examples
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

from upriver.engine.batch import Batch
from upriver.engine.expressions import Evaluator
from upriver.engine.operators.accumulators import floats_of
from upriver.engine.operators.aggregate import Aggregate
from upriver.engine.operators.compacted import FORGOTTEN_MIN
from upriver.engine.operators.view import CompactedViewStore, Store
from upriver.errors import ProtocolError, RowError
from upriver.hashing import Hashes
from upriver.plan.plan import AggregateCall, AggregatePlan


def answer(aggregate: Store, slots: np.ndarray[Any, Any]) -> list[Row]:
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


@settings(MANY, max_examples=examples(10))
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


# Rows that go again ------------------------------------------------------------------------------------------------

ROUTING = ("k0",)


def values_schema(type: pa.DataType) -> pa.Schema:
    return pa.schema([("k0", pa.int8()), ("k1", pa.string()), ("a", type), ("w", pa.bool_())])


def plan_over(type: pa.DataType, group: Sequence[str] = ("k0",)) -> AggregatePlan:
    """All functions, some of distinct values too, and all of those rows for which ``w`` is true."""
    fields = [values_schema(type).field("a")]
    distinct = calls_of(fields, ("count", "sum", "avg", "max", "bool_and", "var_samp"), distinct=True)
    some = calls_of(fields, where="w") + calls_of(fields, ("count", "sum"), distinct=True, where="w")
    return AggregatePlan(tuple(group), calls_of(fields) + distinct + some, retracts=True)


def contents(store: Store) -> list[Row]:
    return answer(store, store.by_hash())


# Extremes ---------------------------------------------------------------------------------------------------------


def _extremes(type: pa.DataType) -> AggregatePlan:
    calls = calls_of([values_schema(type).field("a")], ("min", "max", "any_value"))
    return AggregatePlan(("k0",), calls, retracts=True)


@pytest.mark.parametrize("type", [pa.int32(), pa.string()], ids=str)
def test_extremes_of_large_groups_of_which_most_has_gone(type: pa.DataType) -> None:
    """So many values that they lie in several levels; each batch takes the least and the greatest of those left."""
    schema, plan, rng = values_schema(type), _extremes(type), np.random.default_rng(7)
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
        found = {row[0]: row[1:] for row in contents(aggregate)}
        assert found == {key: (one[0][0], one[-1][0], one[0][0]) for key, one in enumerate(left)}


def test_an_extreme_that_is_there_twice_stays_when_one_goes() -> None:
    schema, plan = values_schema(pa.int64()), _extremes(pa.int64())
    aggregate = Aggregate(plan, schema, ROUTING)
    aggregate.apply(batch_of(schema, [(1, "", 3, None), (1, "", 9, None)], ROUTING, [2, 3]))
    aggregate.apply(batch_of(schema, [(1, "", 3, None), (1, "", 9, None)], ROUTING, [-1, -2]))
    assert contents(aggregate) == [(1, 3, 9, 3)]
    aggregate.apply(batch_of(schema, [(1, "", 3, None), (1, "", 4, None)], ROUTING, [-1, 1]))
    assert contents(aggregate) == [(1, 4, 9, 4)]


def test_any_value_and_distinct_of_nested_values() -> None:
    type = pa.list_(pa.int32())
    schema = values_schema(type)
    calls = calls_of([schema.field("a")], ("any_value",)) + calls_of([schema.field("a")], ("count",), distinct=True)
    aggregate = Aggregate(AggregatePlan(("k0",), calls, retracts=True), schema, ROUTING)
    rows = [(1, "", value, None) for value in ([1, None], [], [1, None], None)]
    aggregate.apply(batch_of(schema, rows, ROUTING))
    aggregate.apply(batch_of(schema, rows[:1], ROUTING, [-1]))
    assert contents(aggregate)[0][2] == 2
    aggregate.apply(batch_of(schema, rows[:1], ROUTING, [-1]))
    assert contents(aggregate) == [(1, [], 1)]
    aggregate.apply(batch_of(schema, rows[1:2], ROUTING, [-1]))
    assert contents(aggregate) == [(1, None, 0)]


# Sums -------------------------------------------------------------------------------------------------------------


def _of_floats(*functions: str) -> Aggregate:
    schema = values_schema(pa.float64())
    return Aggregate(AggregatePlan(("k0",), calls_of([schema.field("a")], functions), True), schema, ROUTING)


def _apply(aggregate: Aggregate, values: Sequence[float | None], weight: int) -> None:
    rows = [(1, "", value, None) for value in values]
    aggregate.apply(batch_of(values_schema(pa.float64()), rows, ROUTING, [weight] * len(rows)))


def test_nothing_of_a_large_float_stays_when_it_goes() -> None:
    aggregate = _of_floats("sum", "avg", *MOMENTS)
    large = [1e300, -1e280, 1.7e308, 1.7e308, math.inf, -math.inf, math.nan, 5e-324]
    _apply(aggregate, [*large, 0.1, 0.2], 1)
    assert contents(aggregate) == [(1, *["NaN"] * 6)]
    _apply(aggregate, large, -1)
    assert contents(aggregate) == [(1, 0.1 + 0.2, (0.1 + 0.2) / 2, *contents(_small())[0][3:])]


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
    assert contents(aggregate) == [(1, total)]


@pytest.mark.parametrize(
    ("type", "value", "other"),
    [
        (pa.int64(), 2**62, -(2**62)),
        (pa.decimal128(28, 6), Decimal("9999999999999999999999.999999"), Decimal("-9999999999999999999999.999998")),
    ],
)
def test_a_row_may_be_there_very_often(type: pa.DataType, value: Any, other: Any) -> None:
    """As after a skewed join. Weights are so great that what limbs hold would overflow."""
    schema, often = values_schema(type), 2**33
    aggregate = Aggregate(
        AggregatePlan(("k0",), calls_of([schema.field("a")], ("count", "sum")), True), schema, ROUTING
    )
    aggregate.apply(batch_of(schema, [(1, "", value, None), (1, "", other, None)], ROUTING, [often, often]))
    assert contents(aggregate) == [(1, 2 * often, (value + other) * often)]


# Faults -----------------------------------------------------------------------------------------------------------


def test_more_retracted_than_added_is_our_fault() -> None:
    schema = values_schema(pa.int64())
    for plan in (plan_over(pa.int64()), AggregatePlan(("k0",), calls_of([schema.field("a")], ("sum",)), True)):
        aggregate = Aggregate(plan, schema, ROUTING)
        aggregate.apply(batch_of(schema, [(1, "", None, True)], ROUTING))
        with pytest.raises(ProtocolError, match="more rows were retracted"):
            aggregate.apply(batch_of(schema, [(1, "", 1, True)] * 2, ROUTING, [-1, -1]))
        aggregate = Aggregate(plan, schema, ROUTING)
        aggregate.apply(batch_of(schema, [(1, "", None, True)], ROUTING))
        with pytest.raises(ProtocolError, match="more values were retracted"):
            aggregate.apply(batch_of(schema, [(1, "", 1, True)], ROUTING, [-1]))


def test_a_value_that_is_not_there_cannot_be_retracted() -> None:
    schema, plan = values_schema(pa.int64()), _extremes(pa.int64())
    aggregate = Aggregate(plan, schema, ROUTING)
    aggregate.apply(batch_of(schema, [(1, "", 5, None), (1, "", 6, None)], ROUTING))
    with pytest.raises(ProtocolError, match="more rows were retracted"):
        aggregate.apply(batch_of(schema, [(1, "", 7, None)], ROUTING, [-1]))


# Memory -----------------------------------------------------------------------------------------------------------


def test_memory_of_values_that_have_gone_comes_back() -> None:
    """Few groups whose values are others in each batch."""
    schema, plan = values_schema(pa.int64()), _extremes(pa.int64())
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
    assert sorted(contents(store)) == [(key, 29_000 + key, 29_950 + key, 29_000 + key) for key in range(50)]


# Spreads ----------------------------------------------------------------------------------------------------------

NUMBERS_SCHEMA = pa.schema([("k", pa.int32()), ("x", pa.int64())])
NUMBERS = st.lists(st.integers(-(2**50), 2**50), min_size=1, max_size=6)
CALLS = calls_of([NUMBERS_SCHEMA.field("x")], MOMENTS)


def moments(values: Sequence[int], gone: Sequence[int]) -> tuple[Any, ...]:
    """Of these values; ``gone`` come before them and go after them."""
    aggregate = Aggregate(AggregatePlan(("k",), CALLS, retracts=True), NUMBERS_SCHEMA, ["k"])
    for numbers, weight in ((gone, 1), (values, 1), (gone, -1)):
        aggregate.apply(batch_of(NUMBERS_SCHEMA, [(1, number) for number in numbers], ["k"], [weight] * len(numbers)))
    slots = aggregate.by_hash()
    return tuple(aggregate.column(call.output, slots)[0].as_py() for call in CALLS)


@MANY
@given(NUMBERS, st.integers(0, 20), NUMBERS)
def test_moments_of_whole_numbers_are_exact_however_far_from_zero(
    numbers: list[int], spread: int, gone: list[int]
) -> None:
    """Python's own, in whole numbers."""
    values = [number >> spread for number in numbers]
    count = len(values)
    variance = (count * sum(value * value for value in values) - sum(values) ** 2) / count**2
    row = moments(values, gone)
    assert row[0] == pytest.approx(variance, rel=1e-15)
    assert row[1] == (None if count == 1 else pytest.approx(variance * count / (count - 1), rel=1e-15))
    assert row[2] == pytest.approx(math.sqrt(variance), rel=1e-15)


@MANY
@given(
    st.data(), st.sampled_from([(38, 38), (38, 30), (38, 0), (30, 25), (18, 17), (16, 2), (15, 15), (15, 2), (1, 0)])
)
def test_a_decimal_becomes_the_nearest_double(data: st.DataObject, size: tuple[int, int]) -> None:
    precision, scale = size
    drawn = data.draw(st.lists(st.integers(-(10**precision) + 1, 10**precision - 1), min_size=1))
    with localcontext(prec=precision):
        values = [Decimal(number).scaleb(-scale) for number in (*drawn, 9 * 10 ** max(scale - 1, 0))]
    found = floats_of(pa.array([*values, Decimal(0)], pa.decimal128(precision, scale)).slice(0, len(values)))
    assert found.tolist() == [float(value) for value in values]


def test_null_values_of_maps_are_grouped_as_they_are() -> None:
    """The code that Spark 4.3 generates makes numbers of them: ``tests/conformance/nested.test`` has none."""
    maps = [{"k": 1, "l": None}, {"l": None, "k": 1}, {"k": 1, "l": 0}]
    rows = pa.record_batch({"id": pa.array([1, 2, 3]), "m": pa.array(maps, pa.map_(pa.string(), pa.int32()))})
    found = kept("SELECT m, count(*) AS n FROM t GROUP BY m", "n", {"t": rows}, Evaluator(), sets_aside=False)
    assert found.rows.sort_by("n").to_pylist() == [
        {"m": [("k", 1), ("l", 0)], "n": 1},
        {"m": [("k", 1), ("l", None)], "n": 2},
    ]
