"""Key provenance: by which rows of which tables the keys of exchange edges are known, and that none is missing."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from random import Random

import numpy as np
import pyarrow as pa
import pytest
from dataflow_kit import INT, LONG, QUERIES, SALES, TABLES, TEXT
from dataflow_lake import Lake
from hypothesis import given, note, settings
from hypothesis import strategies as st
from random_sql import random_views
from random_tables import RandomRows, random_tables
from soak import examples
from state_kit import MANY, Row, plain_rows

from simulator.scenarios import compiled_views
from simulator.shared_analyser import SharedAnalyser
from simulator.tables import TABLES as SIMULATED
from simulator.tables import RowSource
from upriver.engine.batch import Batch
from upriver.engine.expressions import Evaluator
from upriver.engine.region import ALL_ROWS, Region
from upriver.hashing import hash64
from upriver.plan.explain import explain, render
from upriver.plan.plan import DataflowPlan, ExchangeEdge, LakeEdge, Per, Scan, StatefulMapOp, TableSpec, lake_channel
from upriver.plan.planning import plan_regions
from upriver.plan.provenance import KeyTrace, lake_edges, trace_edges, traces, why_untraced
from upriver.plan.relation import Relation
from upriver.sql.views import declare_view

EVALUATOR = Evaluator()

# ruff: noqa: E501  queries are easier to read on one line
# A view, its key, and how the keys of all its exchange edges are found; and the SQL.
TRACED = """
right input of an inner join | maker | items(maker) -> item | SELECT i.maker, count(*) AS n FROM sales s JOIN items i ON s.item = i.item GROUP BY i.maker
left input of an inner join | shop | sales(shop) -> item | SELECT s.shop, i.maker FROM sales s JOIN items i ON s.item = i.item WHERE s.amount > i.size
a column that is compared, and another | shop item | sales(shop,item) -> item | SELECT i.item, s.shop, i.size FROM sales s JOIN items i ON s.item = i.item
nulls that are compared | maker | items(maker) -> item | SELECT i.maker, s.amount FROM sales s JOIN items i ON s.item IS NOT DISTINCT FROM i.item
left join | shop | sales(shop) -> item | SELECT s.shop, i.maker FROM sales s LEFT JOIN items i ON s.item = i.item
right join | maker | items(maker) -> item | SELECT s.shop, i.maker FROM sales s RIGHT JOIN items i ON s.item = i.item
semi join | shop | sales(shop) -> item | SELECT s.shop, s.amount FROM sales s LEFT SEMI JOIN items i ON s.item = i.item
anti join | shop | sales(shop) -> item | SELECT s.shop, s.amount FROM sales s LEFT ANTI JOIN items i ON s.item = i.item
groups | shop | sales(shop) -> item | SELECT g.shop, g.n, i.maker FROM (SELECT shop, item, count(*) AS n FROM sales GROUP BY shop, item) g JOIN items i ON g.item = i.item
versions of a row | held | stock(held) -> shop | SELECT held, count(*) AS n FROM stock GROUP BY held
two columns | price shop | sales(price,shop) -> item,amount | SELECT shop, price, seq FROM (SELECT *, rank() OVER (PARTITION BY item, amount ORDER BY seq) AS nth FROM sales) WHERE nth <= 2
first rows of a union | shop | sales(shop) -> item; stock(shop) -> item | SELECT shop, item, nth FROM (SELECT shop, item, amount, row_number() OVER (PARTITION BY item ORDER BY amount, shop) AS nth FROM (SELECT shop, item, amount FROM sales UNION ALL SELECT shop, item, held FROM stock)) WHERE nth <= 2
except | shop | sales(shop) -> item | SELECT d.shop, i.maker FROM (SELECT shop, item FROM sales EXCEPT SELECT shop, item FROM stock) d JOIN items i ON d.item = i.item
intersection, by its second input | k | stock(held) -> item | SELECT d.k, i.maker FROM (SELECT amount + 1 AS k, item FROM sales INTERSECT SELECT held, item FROM stock) d JOIN items i ON d.item = i.item
a table with itself | other | stock(item) -> shop | SELECT b.item, a.item AS other FROM stock a JOIN stock b ON a.shop = b.shop WHERE a.held > b.held
one exchange after the other | held | items(maker) -> item; stock(held) -> item | SELECT k.held, count(*) AS n FROM sales s JOIN items i ON s.item = i.item JOIN stock k ON k.item = i.maker GROUP BY k.held
what is kept by another key, joined, and exchanged again | seq | stock(held) -> shop; stock(seq) -> held | SELECT k.seq, count(*) AS n FROM sales s JOIN stock k ON s.amount = k.held GROUP BY k.seq
groups that are exchanged twice | seq | stock(held) -> shop; stock(seq) -> held | SELECT g.seq, g.n, s.item FROM (SELECT held, seq, count(*) AS n FROM stock GROUP BY held, seq) g JOIN sales s ON g.held = s.amount
either branch of a union, one of them exchanged before | item | stock(held) -> shop; sales(item) -> amount; stock(item) -> held | SELECT a.item, b.held FROM (SELECT item, amount FROM sales UNION ALL SELECT item, held FROM stock) a JOIN (SELECT held FROM stock WHERE seq > 2) b ON a.amount = b.held
through three regions | seq | stock(held) -> shop; stock(item) -> held; stock(seq) -> item | SELECT d.seq, count(*) AS n FROM (SELECT c.seq, c.item FROM sales s JOIN stock c ON s.amount = c.held) d JOIN items i ON d.item = i.maker GROUP BY d.seq
left join of what was exchanged | shop seq | stock(held) -> shop; stock(shop,seq) -> held | SELECT k.seq, k.shop, s.shop AS other FROM stock k LEFT JOIN sales s ON k.held = s.amount
"""
# A view, its key, and what is said of why one of its exchange edges is not traced; and the SQL.
UNTRACED = """
a computed column | brand | rows of region v/0 cannot be found by (upper(items.maker)): upper(items.maker) is computed | SELECT upper(maker) AS brand, count(*) AS n FROM items GROUP BY 1
an aggregate | n item | (count(*), sales.item): count(*) is computed | SELECT item, n FROM (SELECT item, count(*) AS n FROM sales GROUP BY item)
a rank | nth | (row_number()): row_number() is computed | SELECT nth, shop FROM (SELECT shop, item, amount, row_number() OVER (PARTITION BY item ORDER BY amount, shop) AS nth FROM (SELECT * FROM sales)) WHERE nth <= 2
the other side of a left join | maker | (items.maker): no input of the left join has items.maker always | SELECT i.maker, s.shop FROM sales s LEFT JOIN items i ON s.item = i.item
what a left join compares, of the other side | shop item | no input of the left join has sales.shop, items.item always | SELECT i.item, s.shop FROM sales s LEFT JOIN items i ON s.item = i.item
a full join | shop | no input of the full join has sales.shop always | SELECT s.shop, i.maker FROM sales s FULL JOIN items i ON s.item = i.item
both sides of a join | shop maker | no input of the inner join has sales.shop, items.maker always | SELECT s.shop, i.maker FROM sales s JOIN items i ON s.item = i.item
a branch of a union | shop | (sales.shop + 1) is computed | SELECT shop, item, nth FROM (SELECT shop, item, amount, row_number() OVER (PARTITION BY item ORDER BY amount, shop) AS nth FROM (SELECT shop + 1 AS shop, item, amount FROM sales UNION ALL SELECT shop, item, held FROM stock)) WHERE nth <= 2
what was exchanged before | shop | rows of region v/1 cannot be found by (sales.shop): no input of the inner join has sales.shop, items.maker always | SELECT s.shop, k.held FROM sales s JOIN items i ON s.item = i.item JOIN stock k ON k.item = i.maker
one place | shop | region v/1 needs all rows of region v/0 in one place | SELECT shop, seq FROM sales ORDER BY amount, seq LIMIT 3
one column twice | a b | sales.shop, sales.shop names a column twice, which no index does | SELECT shop AS a, shop AS b, amount FROM sales
"""


def cases(lines: str) -> Mapping[str, list[str]]:
    """By name: the key, what is expected, and the SQL."""
    return {name: rest for name, *rest in (line.split(" | ") for line in lines.strip().splitlines())}


TRACED_VIEWS, UNTRACED_VIEWS = cases(TRACED), cases(UNTRACED)


def planned(sql: str, key: str) -> DataflowPlan:
    return declare_view("v", sql, key.split(), TABLES, {}, SharedAnalyser(TABLES))


def exchanges(plan: DataflowPlan) -> Iterator[tuple[str, int]]:
    """The consumers and ports of all exchange edges."""
    for region in plan.regions:
        for port, entry in enumerate(region.inputs):
            if isinstance(entry.edge, ExchangeEdge):
                yield region.name, port


def told(trace: KeyTrace) -> str:
    return f"{trace.table}({','.join(trace.consumer_key)}) -> {','.join(trace.producer_key)}"


# Rules ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TRACED_VIEWS)
def test_a_key_is_traced_to_the_columns_of_a_table(name: str) -> None:
    key, expected, sql = TRACED_VIEWS[name]
    plan = planned(sql, key)
    found = [trace for consumer, port in exchanges(plan) for trace in traces(plan, consumer, port) or ()]
    assert "; ".join(map(told, found)) == expected
    assert why_untraced(plan) is None
    for trace in found:
        assert trace.channel == lake_channel(trace.table, trace.consumer_key)


@pytest.mark.parametrize("name", UNTRACED_VIEWS)
def test_it_is_said_why_a_key_is_not_traced(name: str) -> None:
    key, reason, sql = UNTRACED_VIEWS[name]
    plan = planned(sql, key)
    assert reason in (why_untraced(plan) or "")
    assert None in [traces(plan, consumer, port) for consumer, port in exchanges(plan)]


def test_what_a_stateful_map_gives_is_computed() -> None:
    output = pa.schema([("shop", INT), ("mood", TEXT)])
    op = StatefulMapOp(("shop",), b"", Per.ROW, pa.schema([("n", LONG)]), output, name="moods")
    relation = Relation(op, (Relation(Scan("sales"), (), SALES.schema),), output)
    plan = DataflowPlan("v", "", ("mood",), output, plan_regions("v", relation, ("mood",), TABLES))
    assert why_untraced(plan) == ("rows of region v/0 cannot be found by (moods.mood): moods.mood is computed")


BERLIN = pa.timestamp("us", "Europe/Berlin")
TIMES = {
    table.name: table
    for table in (
        TableSpec("starts", pa.schema([("k", TEXT), ("at", pa.timestamp("us", "UTC")), ("x", INT)]), ("k",)),
        TableSpec("ends", pa.schema([("k", TEXT), ("until", BERLIN)]), ("k",), ("until",), ("k",)),
        TableSpec("begins", pa.schema([("k", TEXT), ("at", BERLIN), ("x", INT)]), ("k",)),
        TableSpec("marks", pa.schema([("until", BERLIN), ("y", INT)]), ("until",)),
    )
}
SPANS = "SELECT e.until, s.x FROM starts s JOIN ends e ON s.k = e.k AND s.at = e.until"


@pytest.mark.parametrize(
    ("sql", "key", "table"),
    [
        (SPANS.replace("starts", "begins"), ("x", "until"), "begins"),
        (f"SELECT d.x, m.y FROM ({SPANS}) d JOIN marks m ON d.until = m.until", "x", "starts"),
    ],
    ids=["of the consumer's key", "of the key of a producer that rows are exchanged to"],
)
def test_a_column_of_another_type_is_no_trace(sql: str, key: str | tuple[str, ...], table: str) -> None:
    """A view has times in the session's time zone, even if its tables have others."""
    plan = declare_view("v", sql, key, TIMES, {}, SharedAnalyser(TIMES))
    assert f"{table}.x, {table}.at is of another type in table {table}" in (why_untraced(plan) or "")


def test_a_column_of_the_views_type_is_a_trace() -> None:
    plan = declare_view("v", SPANS, ("x", "until"), TIMES, {}, SharedAnalyser(TIMES))
    (trace,) = traces(plan, "v", 0) or ()
    assert told(trace) == "starts(x,at) -> k"


def test_a_view_that_exchanges_nothing_needs_no_traces() -> None:
    plan = QUERIES["groups"].plan("v")
    assert why_untraced(plan) is None
    assert trace_edges(plan) == ()


def test_the_lake_holds_the_indexes_of_traces_for_partial_views_only() -> None:
    key, _, sql = TRACED_VIEWS["one exchange after the other"]
    plan = planned(sql, key)
    feeding = (LakeEdge("sales", ("item",)), LakeEdge("items", ("item",)), LakeEdge("stock", ("item",)))
    read = (LakeEdge("items", ("maker",)), LakeEdge("stock", ("held",)))
    assert trace_edges(plan) == read
    assert lake_edges(plan) == feeding
    assert lake_edges(replace(plan, full_because=None)) == (*feeding, *read)


def test_a_partial_view_tells_how_keys_are_found() -> None:
    key, _, sql = TRACED_VIEWS["two columns"]
    plan = planned(sql, key)
    assert "keys are found" not in render(explain(plan, TABLES))
    lines = render(explain(replace(plan, full_because=None), TABLES)).splitlines()
    edge = "exchange edge: rows of region v/0 by (sales.price, sales.shop)"
    assert f"    0: {edge}; keys are found by sales(price, shop) -> (item, amount)" in lines
    assert "  index (price, shop) of sales: made for views by Spark, at ingest" in lines


# No key is missing ----------------------------------------------------------------------------------------------------


class WorldOfKeys:
    """A dataflow with a region of its own for each key of each region: so it is known which key a row came out of."""

    def __init__(self, plan: DataflowPlan) -> None:
        self._plan = plan
        self._plans = {region.name: region for region in plan.regions}
        self._shares: dict[str, dict[int, Region]] = {region.name: {} for region in plan.regions}

    def run_epoch(self, rows: Mapping[str, pa.RecordBatch]) -> Iterator[tuple[str, int, int, pa.RecordBatch]]:
        """Take an epoch with these rows, by table, to its end. Yields what goes over exchange edges: the consumer, its
        port, hash64 of the producer's key, and the consumer's key of each row."""
        for region in self._plan.regions:  # each after those that feed it
            for port, entry in enumerate(region.inputs):
                if isinstance(entry.edge, LakeEdge) and entry.edge.table in rows:
                    batch = rows[entry.edge.table]
                    self._deliver(region.name, port, Batch(batch, hash64(batch.select(entry.edge.index).columns)))
            for key, share in self._shares[region.name].items():
                share.settle(ALL_ROWS)
                for outgoing in share.drain(ALL_ROWS):
                    self._deliver(outgoing.to, outgoing.port, outgoing.batch)
                    edge = self._plans[outgoing.to].inputs[outgoing.port].edge
                    yield outgoing.to, outgoing.port, key, outgoing.batch.rows.select(edge.key)

    def _deliver(self, region: str, port: int, batch: Batch) -> None:
        shares = self._shares[region]
        for key in np.unique(batch.hash64).tolist():
            if key not in shares:
                shares[key] = Region.build(self._plan, self._plans[region], EVALUATOR)
            shares[key].apply(port, batch.filtered(batch.hash64 == key))


def named(trace: KeyTrace, came: Sequence[pa.RecordBatch]) -> set[tuple[Row, int]]:
    """The keys of the consumer that rows of the table name, each with hash64 of the producer's that they name."""
    return {
        pair
        for rows in came
        for pair in zip(
            plain_rows(rows.select(trace.consumer_key)),
            hash64(rows.select(trace.producer_key).columns).tolist(),
            strict=True,
        )
    }


def assert_no_key_is_missing(plan: DataflowPlan, epochs: Iterable[Mapping[str, pa.RecordBatch]]) -> None:
    """Of each exchange edge that is traced, as of the end of each epoch."""
    world = WorldOfKeys(plan)
    came: dict[str, list[pa.RecordBatch]] = {}
    for rows in epochs:
        for name, batch in rows.items():
            came.setdefault(name, []).append(batch)
        crossed: dict[tuple[str, int], set[tuple[Row, int]]] = {}
        for consumer, port, key, wanted in world.run_epoch(rows):
            crossed.setdefault((consumer, port), set()).update((row, key) for row in plain_rows(wanted))
        for edge, pairs in crossed.items():
            found = traces(plan, *edge)
            if found is not None:
                assert pairs <= set().union(*(named(trace, came.get(trace.table, [])) for trace in found))


@pytest.mark.parametrize("name", TRACED_VIEWS)
@settings(MANY, max_examples=examples(6))
@given(data=st.data())
def test_no_key_that_a_row_comes_out_of_is_missing(name: str, data: st.DataObject) -> None:
    key, _, sql = TRACED_VIEWS[name]
    lake = Lake(data, Random(data.draw(st.integers(0, 2**32))))
    assert_no_key_is_missing(planned(sql, key), (lake.next_rows(12) for _ in range(2)))


@pytest.mark.parametrize("plan", [plan for plan in compiled_views() if trace_edges(plan)], ids=attrgetter("name"))
@pytest.mark.parametrize("seed", range(3))
def test_no_key_of_a_simulated_view_is_missing(plan: DataflowPlan, seed: int) -> None:
    crowd = RowSource(Random(seed))
    assert_no_key_is_missing(plan, ({table.name: crowd.rows(table, 30)} for table in (*SIMULATED, *SIMULATED)))


@settings(MANY, max_examples=examples(40))
@given(rng=st.randoms(use_true_random=False))
def test_no_key_of_any_query_is_missing(rng: Random) -> None:
    tables = random_tables(rng)
    specs = {table.spec.name: table.spec for table in tables}
    (view,) = random_views(tables, rng)
    note(f"view {view.name}, key {view.key}: {view.query.spark}")
    plan = declare_view(view.name, view.query.spark, view.key, specs, {}, SharedAnalyser(specs))
    if trace_edges(plan):
        assert_no_key_is_missing(plan, RandomRows(tables, rng).epochs(2))
