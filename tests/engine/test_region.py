"""A region from the lake edge to the answer, and what it does about faults."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from region_kit import region_of
from relation_kit import dataflow, scan
from sql_kit import local_plan
from state_kit import batch_of, keys_of, plain_rows

from upriver.engine.expressions import Evaluator
from upriver.errors import ProtocolError, RowError
from upriver.plan.plan import AggregateCall, AggregateOp, AggregatePlan, DataflowPlan, TableSpec
from upriver.plan.relation import Relation

FLIGHTS = pa.schema([("carrier", pa.string()), ("day", pa.int32()), ("miles", pa.int64()), ("delay", pa.float64())])
CARRIER = pa.schema([("carrier", pa.string())])
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


@pytest.mark.parametrize("plan", [CARRIER_DAYS, LATE_FLIGHTS])
def test_a_key_that_comes_back_starts_from_nothing(plan: DataflowPlan) -> None:
    batch = batch_of(FLIGHTS, [("AA", 1, 5, 0.5), ("AA", 1, 6, 1.5), ("UA", 2, None, 2.5)], ["carrier"])
    fresh, used = region_of(plan, EVALUATOR), region_of(plan, EVALUATOR)
    for _ in range(3):
        used.apply(0, batch)
        used.drop(np.unique(batch.hash64))
        assert (used.stats()["rows"], used.stats()["keys"], used.scan().num_rows) == (0, 0, 0)
    fresh.apply(0, batch)
    used.apply(0, batch)
    assert used.scan().equals(fresh.scan())


@pytest.mark.parametrize("miles", [(2**62, 1), (1, 2**62)])
def test_sums_still_overflow_where_other_sums_were_installed(miles: tuple[int, int]) -> None:
    source, target = region_of(CARRIER_DAYS, EVALUATOR), region_of(CARRIER_DAYS, EVALUATOR)
    moved, own = (
        batch_of(FLIGHTS, [(carrier, 1, far, None)], ["carrier"])
        for carrier, far in zip(("AA", "UA"), miles, strict=True)
    )
    source.apply(0, moved)
    target.apply(0, own)
    target.install(source.collect(moved.hash64))
    with pytest.raises(ProtocolError, match="has state here"):
        target.install(source.collect(moved.hash64))
    with pytest.raises(RowError, match=r"sum\(miles \+ 1\) does not fit"):
        target.apply(0, max((moved, own), key=lambda batch: batch.rows.column("miles")[0].as_py()))
