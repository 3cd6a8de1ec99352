"""A region from the lake edge to the answer, against DuckDB and against Spark running the same query."""

from dataclasses import replace
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from duckdb_kit import by_duckdb
from hypothesis import given
from hypothesis import strategies as st
from region_kit import region_of
from relation_kit import dataflow, scan
from sql_kit import local_plan
from state_kit import MANY, Row, batch_of, decimal_of, keys_of, pieces, plain_rows

from upriver.engine.expressions import Evaluator
from upriver.errors import ProtocolError, RowError
from upriver.hashing import hash64
from upriver.plan.plan import AggregateCall, AggregateOp, AggregatePlan, DataflowPlan, TableSpec
from upriver.plan.relation import Relation

FLIGHTS = pa.schema([("carrier", pa.string()), ("day", pa.int32()), ("miles", pa.int64()), ("delay", pa.float64())])
CARRIER = pa.schema([("carrier", pa.string())])
FLIGHT = st.tuples(
    st.sampled_from(["AA", "UA", "", None]),
    st.none() | st.integers(1, 3),
    st.none() | st.integers(-50, 50),
    st.none() | st.integers(-8, 8).map(lambda number: number / 2),
)

TABLE = TableSpec("flights", FLIGHTS, ("carrier",))
CARRIER_DAYS = local_plan(
    "SELECT day, carrier AS c, count(*) AS n, 2 * sum(miles + 1) AS m, avg(delay) AS late, max(delay) AS worst "
    "FROM flights WHERE miles > -20 OR day = 2 GROUP BY carrier, day HAVING count(*) < 5",
    "c",
    TABLE,
)
LATE_FLIGHTS = local_plan("SELECT carrier, delay * 60 AS seconds, day FROM flights WHERE delay > 0", "carrier", TABLE)
EVALUATOR = Evaluator()


def planes(aggregate: AggregatePlan, schema: pa.Schema, key: tuple[str, ...]) -> DataflowPlan:
    """A view of all columns of an aggregate over plain columns."""
    table = TableSpec("t", schema, key)
    fields = [*(schema.field(name) for name in aggregate.group)]
    fields += [pa.field(call.output, call.type) for call in aggregate.calls]
    return dataflow("v", Relation(AggregateOp(aggregate), (scan(table),), pa.schema(fields)), key, table)


def table_of(schema: pa.Schema, rows: list[Row]) -> pa.Table:
    columns = [pa.array([row[place] for row in rows], field.type) for place, field in enumerate(schema)]
    return pa.Table.from_arrays(columns, schema=schema)


@MANY
@given(st.data(), st.sampled_from([CARRIER_DAYS, LATE_FLIGHTS]), st.lists(FLIGHT, max_size=30))
def test_a_view_is_what_duckdb_makes_of_the_same_rows(data: st.DataObject, plan: DataflowPlan, rows: list[Row]) -> None:
    region = region_of(plan, EVALUATOR)
    for batch in pieces(batch_of(FLIGHTS, rows, ["carrier"]), data.draw(st.lists(st.integers(0, 40), max_size=2))):
        region.apply(0, batch)
    truth = plain_rows(by_duckdb(plan.sql, flights=table_of(FLIGHTS, rows)).cast(plan.schema))
    scanned = region.scan()
    assert scanned.schema == plan.schema
    assert sorted(plain_rows(scanned), key=repr) == sorted(truth, key=repr)
    hashes = hash64([scanned.column(plan.key[0])])
    assert (hashes[1:] >= hashes[:-1]).all()
    place = plan.schema.names.index(plan.key[0])
    for asked in (["UA", "AA", "UA"], [None], ["", "DL"]):
        found = region.lookup(*keys_of(CARRIER, [(carrier,) for carrier in asked]))
        assert found.schema == plan.schema
        assert sorted(plain_rows(found), key=repr) == sorted((row for row in truth if row[place] in asked), key=repr)
        mentioned = [row[place] for row in plain_rows(found)]
        assert mentioned == sorted(mentioned, key=asked.index)


def test_a_routing_key_of_several_columns_in_another_order_than_the_group() -> None:
    schema = pa.schema([("a", pa.int32()), ("b", pa.string()), ("x", pa.int64())])
    calls = (AggregateCall("sum", "x", "total", pa.int64()),)
    region = region_of(planes(AggregatePlan(("a", "b"), calls), schema, ("b", "a")), EVALUATOR)
    rows = [(1, "u", 5), (None, "u", 6), (1, None, 7), (1, "u", 8), (None, None, 9)]
    region.apply(0, batch_of(schema, rows, ["b", "a"]))
    key_schema = pa.schema([("b", pa.string()), ("a", pa.int32())])
    found = region.lookup(*keys_of(key_schema, [(None, None), ("u", 1), (None, 1), ("u", 2)]))
    assert plain_rows(found) == [(None, None, 9), (1, "u", 13), (1, None, 7)]
    assert region.stats()["keys"] == region.stats()["rows"] == 4


def test_stats_count_rows_before_having_and_keys_and_bytes() -> None:
    region = region_of(CARRIER_DAYS, EVALUATOR)
    assert (region.stats()["rows"], region.stats()["keys"]) == (0, 0)
    empty = region.stats()["bytes"]
    region.apply(0, batch_of(FLIGHTS, [("AA", 1, 1, 0.0)] * 9 + [("AA", 2, 1, None), ("UA", 1, 1, None)], ["carrier"]))
    assert (region.stats()["rows"], region.stats()["keys"]) == (3, 2)
    assert region.stats()["bytes"] > empty
    assert region.scan().num_rows == 2


def test_an_overflow_is_told_with_its_group() -> None:
    region = region_of(CARRIER_DAYS, EVALUATOR)
    rows = [("UA", 1, 2**62, None), ("AA", 2, 2**62, None), ("AA", 2, 2**62, None)]
    with pytest.raises(RowError, match=r"sum\(miles \+ 1\) does not fit BIGINT for carrier = AA, day = 2"):
        region.apply(0, batch_of(FLIGHTS, rows, ["carrier"]))


def test_an_empty_batch_and_one_that_is_filtered_away_change_nothing() -> None:
    region = region_of(LATE_FLIGHTS, EVALUATOR)
    region.apply(0, batch_of(FLIGHTS, [], ["carrier"]))
    region.apply(0, batch_of(FLIGHTS, [("AA", 1, 1, -1.0)], ["carrier"]))
    assert region.scan().num_rows == region.stats()["rows"] == 0
    assert region.lookup(*keys_of(CARRIER, [("AA",)])).schema == LATE_FLIGHTS.schema


def test_a_million_keys_take_their_bytes_and_no_more() -> None:
    schema = pa.schema([("k", pa.int64()), ("x", pa.int64())])
    calls = (AggregateCall("count_star", None, "n", pa.int64()), AggregateCall("sum", "x", "s", pa.int64()))
    region = region_of(planes(AggregatePlan(("k",), calls), schema, ("k",)), EVALUATOR)
    for start in range(0, 1_000_000, 50_000):
        rows = [(key, 1) for key in range(start, start + 50_000)]
        region.apply(0, batch_of(schema, rows, ["k"]))
    assert region.stats()["rows"] == 1_000_000
    assert 48_000_000 <= region.stats()["bytes"] <= 50_000_000


@pytest.mark.parametrize("key", [("aggregate_0",), ("group_1",), ("absent",)])
def test_a_plan_whose_key_is_not_kept_is_our_fault(key: tuple[str, ...]) -> None:
    (region,) = CARRIER_DAYS.regions
    assert region.store is not None
    with pytest.raises(ProtocolError, match=r"its key is not in .* of what it keeps"):
        region_of(replace(CARRIER_DAYS, regions=(replace(region, store=replace(region.store, key=key)),)), EVALUATOR)


# Spark ------------------------------------------------------------------------------------------------------------

SUMMED = {
    pa.int8(): pa.int64(),
    pa.int16(): pa.int64(),
    pa.int32(): pa.int64(),
    pa.int64(): pa.int64(),
    pa.float32(): pa.float64(),
    pa.float64(): pa.float64(),
    pa.decimal128(5, 2): pa.decimal128(15, 2),
    pa.decimal128(28, 6): pa.decimal128(38, 6),
    pa.decimal128(38, 38): pa.decimal128(38, 38),
}
AVERAGED = {
    type: pa.decimal128(min(38, type.precision + 4), min(38, type.scale + 4))
    if pa.types.is_decimal(type)
    else pa.float64()
    for type in SUMMED
}


def _samples() -> dict[pa.DataType, list[Any]]:
    """Six hard values for each type, nulls among them; sums of them fit."""
    floats = [0.5, -0.0, None, float("nan"), 1e30, -2.25]
    samples: dict[pa.DataType, list[Any]] = {type: [1, -7, None, 100, 0, -128] for type in SUMMED}
    samples |= {pa.float32(): floats, pa.float64(): floats, pa.bool_(): [True, False, None, True, True, False]}
    samples[pa.decimal128(5, 2)] = [Decimal("999.99"), Decimal("-0.01"), None, Decimal("0.02"), Decimal("1.00"), None]
    samples[pa.decimal128(28, 6)] = [decimal_of(10**28 - 1, 6)] * 3 + [decimal_of(1 - 10**28, 6), None, None]
    samples[pa.decimal128(38, 38)] = [decimal_of(62, 38), *[decimal_of(0, 38)] * 124]
    samples[pa.string()] = ["b", "a\u0000", None, "", "\U0001f600", "\uffff"]
    samples[pa.binary()] = [b"\xff", b"", None, b"\x00", b"\x7f", b"a"]
    return samples


@pytest.mark.spark
@pytest.mark.parametrize("type", _samples(), ids=str)
def test_aggregates_are_sparks(spark: Any, type: pa.DataType) -> None:
    values = _samples()[type]
    calls = [AggregateCall("count_star", None, "n", pa.int64()), AggregateCall("count", "x", "c", pa.int64())]
    calls += [AggregateCall(function, "x", function, type) for function in ("min", "max")]
    if type in SUMMED:
        calls += [AggregateCall("sum", "x", "sum", SUMMED[type]), AggregateCall("avg", "x", "avg", AVERAGED[type])]
    schema = pa.schema([("k", pa.int32()), ("x", type)])
    rows = [(1, value) for value in values] + [(None, value) for value in values[:2]] + [(2, None)]
    region = region_of(planes(AggregatePlan(("k",), tuple(calls)), schema, ("k",)), EVALUATOR)
    region.apply(0, batch_of(schema, rows, ["k"]))
    spark.createDataFrame(table_of(schema, rows)).createOrReplaceTempView("samples")
    sql = ", ".join(f"{call.function}(x) AS {call.output}" for call in calls[1:])
    truth = spark.sql(f"SELECT k, count(*) AS n, {sql} FROM samples GROUP BY k").toArrow()
    assert region.scan().schema.types == truth.schema.types
    assert sorted(plain_rows(region.scan()), key=repr) == sorted(plain_rows(truth), key=repr)
