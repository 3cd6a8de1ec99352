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

from simulator.campaign import compiled_views
from simulator.local_typer import LocalTyper
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
from upriver.sql.queries import declare_view

EVALUATOR = Evaluator()

WITH_ITEM = "sales s {} JOIN items i ON s.item = i.item"
BOTH = "SELECT shop, item, amount FROM sales UNION ALL SELECT shop, item, held FROM stock"
FIRST = "SELECT shop, item, amount, row_number() OVER (PARTITION BY item ORDER BY amount, shop) AS nth FROM ({})"

TRACED: Mapping[str, tuple[str, str | tuple[str, ...], Sequence[str]]] = {
    "right input of an inner join": (
        f"SELECT i.maker, count(*) AS n FROM {WITH_ITEM.format('')} GROUP BY i.maker",
        "maker",
        ["items(maker) -> item"],
    ),
    "left input of an inner join": (
        f"SELECT s.shop, i.maker FROM {WITH_ITEM.format('')} WHERE s.amount > i.size",
        "shop",
        ["sales(shop) -> item"],
    ),
    "a column that is compared, and another": (
        f"SELECT i.item, s.shop, i.size FROM {WITH_ITEM.format('')}",
        ("shop", "item"),
        ["sales(shop,item) -> item"],
    ),
    "nulls that are compared": (
        "SELECT i.maker, s.amount FROM sales s JOIN items i ON s.item IS NOT DISTINCT FROM i.item",
        "maker",
        ["items(maker) -> item"],
    ),
    "left join": (f"SELECT s.shop, i.maker FROM {WITH_ITEM.format('LEFT')}", "shop", ["sales(shop) -> item"]),
    "right join": (f"SELECT s.shop, i.maker FROM {WITH_ITEM.format('RIGHT')}", "maker", ["items(maker) -> item"]),
    "semi join": (f"SELECT s.shop, s.amount FROM {WITH_ITEM.format('LEFT SEMI')}", "shop", ["sales(shop) -> item"]),
    "anti join": (f"SELECT s.shop, s.amount FROM {WITH_ITEM.format('LEFT ANTI')}", "shop", ["sales(shop) -> item"]),
    "groups": (
        "SELECT g.shop, g.n, i.maker FROM (SELECT shop, item, count(*) AS n FROM sales GROUP BY shop, item) g "
        "JOIN items i ON g.item = i.item",
        "shop",
        ["sales(shop) -> item"],
    ),
    "versions of a row": (
        "SELECT held, count(*) AS n FROM stock GROUP BY held",
        "held",
        ["stock(held) -> shop"],
    ),
    "two columns": (
        "SELECT shop, price, seq FROM "
        "(SELECT *, rank() OVER (PARTITION BY item, amount ORDER BY seq) AS nth FROM sales) WHERE nth <= 2",
        ("price", "shop"),
        ["sales(price,shop) -> item,amount"],
    ),
    "first rows of a union": (
        f"SELECT shop, item, nth FROM ({FIRST.format(BOTH)}) WHERE nth <= 2",
        "shop",
        ["sales(shop) -> item", "stock(shop) -> item"],
    ),
    "except": (
        "SELECT d.shop, i.maker FROM (SELECT shop, item FROM sales EXCEPT SELECT shop, item FROM stock) d "
        "JOIN items i ON d.item = i.item",
        "shop",
        ["sales(shop) -> item"],
    ),
    "intersection, by its second input": (
        "SELECT d.k, i.maker FROM (SELECT amount + 1 AS k, item FROM sales INTERSECT SELECT held, item FROM stock) d "
        "JOIN items i ON d.item = i.item",
        "k",
        ["stock(held) -> item"],
    ),
    "a table with itself": (
        "SELECT b.item, a.item AS other FROM stock a JOIN stock b ON a.shop = b.shop WHERE a.held > b.held",
        "other",
        ["stock(item) -> shop"],
    ),
    "one exchange after the other": (
        f"SELECT k.held, count(*) AS n FROM {WITH_ITEM.format('')} JOIN stock k ON k.item = i.maker GROUP BY k.held",
        "held",
        ["items(maker) -> item", "stock(held) -> item"],
    ),
    "what is kept by another key, joined, and exchanged again": (
        "SELECT k.seq, count(*) AS n FROM sales s JOIN stock k ON s.amount = k.held GROUP BY k.seq",
        "seq",
        ["stock(held) -> shop", "stock(seq) -> held"],
    ),
    "groups that are exchanged twice": (
        "SELECT g.seq, g.n, s.item FROM (SELECT held, seq, count(*) AS n FROM stock GROUP BY held, seq) g "
        "JOIN sales s ON g.held = s.amount",
        "seq",
        ["stock(held) -> shop", "stock(seq) -> held"],
    ),
    "either branch of a union, one of them exchanged before": (
        "SELECT a.item, b.held FROM (SELECT item, amount FROM sales UNION ALL SELECT item, held FROM stock) a "
        "JOIN (SELECT held FROM stock WHERE seq > 2) b ON a.amount = b.held",
        "item",
        ["stock(held) -> shop", "sales(item) -> amount", "stock(item) -> held"],
    ),
    "through three regions": (
        "SELECT d.seq, count(*) AS n FROM (SELECT c.seq, c.item FROM sales s JOIN stock c ON s.amount = c.held) d "
        "JOIN items i ON d.item = i.maker GROUP BY d.seq",
        "seq",
        ["stock(held) -> shop", "stock(item) -> held", "stock(seq) -> item"],
    ),
    "left join of what was exchanged": (
        "SELECT k.seq, k.shop, s.shop AS other FROM stock k LEFT JOIN sales s ON k.held = s.amount",
        ("shop", "seq"),
        ["stock(held) -> shop", "stock(shop,seq) -> held"],
    ),
}
"""Views, their keys, and how the keys of all their exchange edges are found."""

UNTRACED: Mapping[str, tuple[str, str | tuple[str, ...], str]] = {
    "a computed column": (
        "SELECT upper(maker) AS brand, count(*) AS n FROM items GROUP BY 1",
        "brand",
        "rows of region v/0 cannot be found by (upper(items.maker)): upper(items.maker) is computed",
    ),
    "an aggregate": (
        "SELECT item, n FROM (SELECT item, count(*) AS n FROM sales GROUP BY item)",
        ("n", "item"),
        "(count(*), sales.item): count(*) is computed",
    ),
    "a rank": (
        f"SELECT nth, shop FROM ({FIRST.format('SELECT * FROM sales')}) WHERE nth <= 2",
        "nth",
        "(row_number()): row_number() is computed",
    ),
    "the other side of a left join": (
        f"SELECT i.maker, s.shop FROM {WITH_ITEM.format('LEFT')}",
        "maker",
        "(items.maker): no input of the left join has items.maker always",
    ),
    "what a left join compares, of the other side": (
        f"SELECT i.item, s.shop FROM {WITH_ITEM.format('LEFT')}",
        ("shop", "item"),
        "no input of the left join has sales.shop, items.item always",
    ),
    "a full join": (
        f"SELECT s.shop, i.maker FROM {WITH_ITEM.format('FULL')}",
        "shop",
        "no input of the full join has sales.shop always",
    ),
    "both sides of a join": (
        f"SELECT s.shop, i.maker FROM {WITH_ITEM.format('')}",
        ("shop", "maker"),
        "no input of the inner join has sales.shop, items.maker always",
    ),
    "a branch of a union": (
        f"SELECT shop, item, nth FROM ({FIRST.format(BOTH.replace('shop', 'shop + 1 AS shop', 1))}) WHERE nth <= 2",
        "shop",
        "(sales.shop + 1) is computed",
    ),
    "what was exchanged before": (
        f"SELECT s.shop, k.held FROM {WITH_ITEM.format('')} JOIN stock k ON k.item = i.maker",
        "shop",
        "rows of region v/1 cannot be found by (sales.shop): "
        "no input of the inner join has sales.shop, items.maker always",
    ),
    "one place": (
        "SELECT shop, seq FROM sales ORDER BY amount, seq LIMIT 3",
        "shop",
        "region v/1 needs all rows of region v/0 in one place",
    ),
    "one column twice": (
        "SELECT shop AS a, shop AS b, amount FROM sales",
        ("a", "b"),
        "sales.shop, sales.shop names a column twice, which no index does",
    ),
}
"""Views, their keys, and what is said of why one of their exchange edges is not traced."""


def planned(sql: str, key: str | tuple[str, ...]) -> DataflowPlan:
    return declare_view("v", sql, key, TABLES, {}, LocalTyper(TABLES))


def exchanges(plan: DataflowPlan) -> Iterator[tuple[str, int]]:
    """The consumers and ports of all exchange edges."""
    for region in plan.regions:
        for port, entry in enumerate(region.inputs):
            if isinstance(entry.edge, ExchangeEdge):
                yield region.name, port


def told(trace: KeyTrace) -> str:
    return f"{trace.table}({','.join(trace.consumer_key)}) -> {','.join(trace.producer_key)}"


# Rules ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TRACED)
def test_a_key_is_traced_to_the_columns_of_a_table(name: str) -> None:
    sql, key, expected = TRACED[name]
    plan = planned(sql, key)
    found = [trace for consumer, port in exchanges(plan) for trace in traces(plan, consumer, port) or ()]
    assert [told(trace) for trace in found] == expected
    assert why_untraced(plan) is None
    for trace in found:
        assert trace.channel == lake_channel(trace.table, trace.consumer_key)


@pytest.mark.parametrize("name", UNTRACED)
def test_it_is_said_why_a_key_is_not_traced(name: str) -> None:
    sql, key, reason = UNTRACED[name]
    plan = planned(sql, key)
    assert reason in (why_untraced(plan) or "")
    assert None in [traces(plan, consumer, port) for consumer, port in exchanges(plan)]


def test_what_a_stateful_map_gives_is_computed() -> None:
    output = pa.schema([("shop", INT), ("mood", TEXT)])
    op = StatefulMapOp(("shop",), b"", Per.ROW, pa.schema([("n", LONG)]), output)
    relation = Relation(op, (Relation(Scan("sales"), (), SALES.schema),), output)
    plan = DataflowPlan("v", "", ("mood",), output, plan_regions("v", relation, ("mood",), TABLES))
    assert why_untraced(plan) == (
        "rows of region v/0 cannot be found by (the stateful map's mood): the stateful map's mood is computed"
    )


BERLIN = pa.timestamp("us", "Europe/Berlin")
TIMES = {
    table.name: table
    for table in (
        TableSpec("starts", pa.schema([("k", TEXT), ("at", pa.timestamp("us", "UTC")), ("x", INT)]), ("k",)),
        TableSpec("ends", pa.schema([("k", TEXT), ("until", BERLIN)]), ("k",), ("until",), ("k",)),
        TableSpec("marks", pa.schema([("until", BERLIN), ("y", INT)]), ("until",)),
    )
}
SPANS = "SELECT e.until, s.x FROM starts s JOIN ends e ON s.k = e.k AND s.at = e.until"


@pytest.mark.parametrize(
    ("sql", "key"),
    [(SPANS, ("x", "until")), (f"SELECT d.x, m.y FROM ({SPANS}) d JOIN marks m ON d.until = m.until", "x")],
    ids=["of the consumer's key", "of the key of a producer that rows are exchanged to"],
)
def test_a_column_of_another_type_is_no_trace(sql: str, key: str | tuple[str, ...]) -> None:
    plan = declare_view("v", sql, key, TIMES, {}, LocalTyper(TIMES))
    assert "starts.x, starts.at is of another type in table starts" in (why_untraced(plan) or "")


def test_a_view_that_exchanges_nothing_needs_no_traces() -> None:
    plan = QUERIES["groups"].plan("v")
    assert why_untraced(plan) is None
    assert trace_edges(plan) == ()


def test_the_lake_holds_the_indexes_of_traces_for_partial_views_only() -> None:
    sql, key, _ = TRACED["one exchange after the other"]
    plan = planned(sql, key)
    feeding = (LakeEdge("sales", ("item",)), LakeEdge("items", ("item",)), LakeEdge("stock", ("item",)))
    read = (LakeEdge("items", ("maker",)), LakeEdge("stock", ("held",)))
    assert trace_edges(plan) == read
    assert lake_edges(plan) == feeding
    assert lake_edges(replace(plan, full_because=None)) == (*feeding, *read)


def test_a_partial_view_tells_how_keys_are_found() -> None:
    sql, key, _ = TRACED["two columns"]
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


@pytest.mark.parametrize("name", TRACED)
@settings(MANY, max_examples=examples(6))
@given(data=st.data())
def test_no_key_that_a_row_comes_out_of_is_missing(name: str, data: st.DataObject) -> None:
    sql, key, _ = TRACED[name]
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
    plan = declare_view(view.name, view.query.spark, view.key, specs, {}, LocalTyper(specs))
    if trace_edges(plan):
        assert_no_key_is_missing(plan, RandomRows(tables, rng).epochs(2))
