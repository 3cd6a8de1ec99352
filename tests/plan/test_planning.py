"""The planner: where it cuts a query into regions, by which keys, and what it refuses."""

from dataclasses import replace

import pyarrow as pa
import pytest
from dataflow_kit import INT, ITEMS, LONG, QUERIES, SALES, STOCK, TABLES, TEXT, WITH_ITEM
from hypothesis import given
from hypothesis import strategies as st
from random_relations import relations
from relation_kit import count, distinct, group, join, prefixed, scan, select, set_operation, top, union, where

from simulator import tables as sim
from simulator.shared_analyser import SharedAnalyser
from upriver.engine.builders import operators_of
from upriver.engine.expressions import Evaluator
from upriver.errors import DeclarationError, ProtocolError, UnsupportedSql
from upriver.plan.plan import (
    AggregateOp,
    ConstantEdge,
    DataflowPlan,
    ExchangeEdge,
    FilterOp,
    JoinKind,
    JoinOp,
    LakeEdge,
    LatestOp,
    Op,
    Order,
    Per,
    ProjectOp,
    RegionPlan,
    Scan,
    SetKind,
    StatefulMapOp,
    TableSpec,
    UnionOp,
)
from upriver.plan.planning import plan_regions
from upriver.plan.relation import Relation
from upriver.plan.routing import found_in, routings
from upriver.sql.views import compile_view

EVALUATOR = Evaluator()
WEATHER = TableSpec(
    "weather",
    pa.schema([("place", TEXT), ("hour", LONG), ("temp", LONG), ("tags", pa.map_(TEXT, TEXT))]),
    ("place", "hour"),
)
EVERYTHING = {**TABLES, "weather": WEATHER}


def planned(relation: Relation, *key: str) -> tuple[RegionPlan, ...]:
    return plan_regions("v", relation, key, EVERYTHING)


def edges(regions: tuple[RegionPlan, ...]) -> dict[str, list[str]]:
    """By region, what feeds it: ``table(index)`` for a lake edge, ``region(key)`` for an exchange."""
    return {
        region.name: [
            f"{edge.table}({','.join(edge.index)})"
            if isinstance(edge, LakeEdge)
            else f"{edge.region}({','.join(edge.key)})"
            for edge in (entry.edge for entry in region.inputs)
            if not isinstance(edge, ConstantEdge)
        ]
        for region in regions
    }


def ops(region: RegionPlan) -> list[type[Op]]:
    return [type(node.op) for node in region.nodes]


# What every plan is ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", QUERIES)
def test_a_plan_is_in_order_and_all_state_is_kept_by_the_routing_key(name: str) -> None:
    query = QUERIES[name]
    plan = query.plan("v")
    assert [region.name for region in plan.regions] == [*(f"v/{n}" for n in range(query.regions - 1)), "v"]
    assert [region.store is None for region in plan.regions] == [True] * (query.regions - 1) + [False]
    for place, region in enumerate(plan.regions):
        before = {earlier.name: earlier for earlier in plan.regions[:place]}
        for entry in region.inputs:
            if isinstance(entry.edge, ExchangeEdge):
                source = before[entry.edge.region]
                assert entry.schema == (source.nodes or source.inputs)[-1].schema
                assert set(entry.edge.key) <= set(entry.schema.names)
            elif isinstance(entry.edge, LakeEdge):
                assert entry.schema == TABLES[entry.edge.table].schema
        assert len(set(region.inputs)) == len(region.inputs)
        assert len(set(region.nodes)) == len(region.nodes)
        assert operators_of(region, EVALUATOR) is not None  # which refuses state that is not kept by the key
    last = plan.regions[-1]
    assert last.store is not None
    assert found_in(routings(last)[-1], last.store.key) == last.store.key
    assert last.store.output.schema.equals(plan.schema)


def _ops(relation: Relation) -> list[Op]:
    """What a query of one table does, from the table on."""
    return [op for part in relation.inputs for op in _ops(part)] + [relation.op]


SIMPLE = [(view.sql, view.key, view.key) for view in sim.VIEWS] + [
    ("SELECT page, site AS s, avg(ms) + 1 AS a FROM visits WHERE ms > 0 GROUP BY site, page", ("s",), ("site",)),
    ("SELECT page, max(ms) AS m FROM visits GROUP BY page HAVING count(*) > 2 AND max(ms) < 9", ("page",), ("page",)),
    ("SELECT sym, qty * 2 AS q FROM trades", ("sym",), ("sym",)),
]
"""With the key, and the columns of the table that it is."""


@pytest.mark.parametrize(("sql", "key", "index"), SIMPLE)
def test_a_view_of_one_table_is_one_region(sql: str, key: tuple[str, ...], index: tuple[str, ...]) -> None:
    tables = {table.name: table for table in sim.TABLES}
    view = compile_view("v", sql, tables, {}, SharedAnalyser(tables))
    (region,) = plan_regions("v", view.relation, key, tables)
    source, *steps = _ops(view.relation)
    assert isinstance(source, Scan)
    assert [entry.edge for entry in region.inputs] == [LakeEdge(source.table, index)]
    nodes, store = [node.op for node in region.nodes], region.store
    assert steps[: len(nodes)] == nodes
    assert store is not None
    assert store.output.schema == view.schema
    if store.aggregate is None:
        assert (len(steps), store.having) == (len(nodes), None)
        return
    groups, *above = steps[len(nodes) :]
    group = store.aggregate.group
    assert isinstance(groups, AggregateOp)
    assert (group[: len(key)], sorted(group)) == (store.key, sorted(groups.plan.group))
    assert replace(store.aggregate, group=groups.plan.group) == groups.plan
    assert sum(isinstance(op, FilterOp) for op in above) == (0 if store.having is None else 1)
    assert len(above) > 1 or above == [ProjectOp(store.output)]


# Where it cuts --------------------------------------------------------------------------------------------------------


def test_a_region_is_cut_only_where_the_key_cannot_be_had() -> None:
    by_maker = count(WITH_ITEM, "i_maker")
    assert edges(planned(by_maker, "i_maker")) == {"v/0": ["sales(item)", "items(item)"], "v": ["v/0(i_maker)"]}
    assert edges(planned(WITH_ITEM, "i_item")) == {"v": ["sales(item)", "items(item)"]}
    assert edges(planned(count(scan(SALES), "shop item"), "item")) == {"v": ["sales(item)"]}


def test_an_index_that_a_table_has_goes_before_a_new_one() -> None:
    weather = prefixed(scan(WEATHER), "w_")
    both = join(scan(WEATHER), weather, {"hour": "w_hour", "place": "w_place"})
    regions = planned(select(both, "place", "w_temp"), "w_temp")
    assert edges(regions) == {"v/0": ["weather(place,hour)"], "v": ["v/0(w_temp)"]}
    assert edges(planned(count(scan(STOCK), "held"), "held"))["v/0"] == ["stock(shop)"]


def test_the_finest_key_goes_before_others_that_cost_as_much() -> None:
    groups = group(scan(WEATHER), "place temp", n=("count_star", None, LONG))
    assert edges(planned(groups, "n"))["v/0"] == ["weather(place,temp)"]


def test_rows_are_filtered_and_narrowed_before_they_are_sent() -> None:
    low = select(where(scan(SALES), '"amount" > 1'), "shop", "price", low=('lower("item")', TEXT))
    first, last = planned(count(where(low, "\"low\" <> 'x'"), "low"), "low")
    assert ops(first) == [FilterOp, ProjectOp, FilterOp]
    assert first.nodes[-1].schema.names == last.inputs[0].schema.names == ["low"]
    assert ops(last) == []


def test_what_a_join_keeps_is_filtered_and_narrowed() -> None:
    (region,) = planned(select(where(where(WITH_ITEM, '"amount" > 1'), '"i_size" = 2'), "item", "price"), "item")
    assert ops(region) == [FilterOp, ProjectOp, FilterOp, ProjectOp, JoinOp, ProjectOp]
    assert [region.nodes[place].schema.names for place in (1, 3)] == [["item", "price"], ["i_item"]]


@pytest.mark.parametrize(
    ("kind", "sides"),
    [
        (JoinKind.LEFT, {"sales"}),
        (JoinKind.RIGHT, {"items"}),
        (JoinKind.FULL, set()),
        (JoinKind.INNER, {"sales", "items"}),
    ],
)
def test_a_filter_sinks_into_a_side_that_an_outer_join_leaves_as_it_is(kind: JoinKind, sides: set[str]) -> None:
    both = join(scan(SALES), prefixed(scan(ITEMS), "i_"), {"item": "i_item"}, kind)
    sunk = set()
    for side, predicate in (("sales", '"amount" > 1'), ("items", '"i_size" = 2')):
        first, *_ = planned(where(both, predicate), "item")
        if FilterOp in ops(first)[: ops(first).index(JoinOp)]:
            sunk.add(side)
    assert sunk == sides


def test_groups_are_made_before_the_exchange_if_they_can_be() -> None:
    low = select(scan(SALES), "shop", low=('lower("item")', TEXT))
    most = group(count(low, "shop low"), "low", most=("max", "n", LONG))
    first, last = planned(most, "low")
    assert (ops(first)[-2:], edges((first, last))["v"]) == ([AggregateOp, ProjectOp], ["v/0(low)"])


def test_a_step_that_two_others_use_is_one_region() -> None:
    regions = QUERIES["greatest group by a computed key"].plan("v").regions
    assert edges(regions) == {"v/0": ["sales(amount)"], "v/1": ["v/0(lower(item) || '!')"], "v": ["v/1(amount)"]}
    assert [ops(region).count(AggregateOp) for region in regions] == [1, 1, 0]
    (alone,) = QUERIES["greatest group"].plan("v").regions
    assert ops(alone).count(AggregateOp) == 2


def test_tables_that_keep_nothing_are_read_in_one_region() -> None:
    first, second, last = QUERIES["union by a computed key"].plan("v").regions
    assert edges((first, second, last)) == {"v/0": ["sales(shop)"], "v/1": ["stock(shop)"], "v": ["v/0(k)", "v/1(k)"]}
    assert ops(first) == [ProjectOp, ProjectOp, UnionOp]


def test_an_upsert_table_is_the_latest_of_its_versions() -> None:
    (region,) = planned(scan(STOCK), "item", "shop")
    assert edges((region,)) == {"v": ["stock(item,shop)"]}
    assert [node.op for node in region.nodes] == [LatestOp(("shop", "item"), ("seq",), '"gone"')]
    first, last = planned(select(scan(STOCK), "held"), "held")
    assert (ops(first), ops(last)) == ([LatestOp, ProjectOp], [])


def test_all_rows_meet_where_no_column_parts_them() -> None:
    regions = planned(top(scan(SALES), "", [Order("amount", True, False)], 3), "shop")
    assert edges(regions) == {"v/0": ["sales(shop)"], "v/1": ["v/0()"], "v": ["v/1(shop)"]}


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT count(*) OVER () AS n FROM sales",
        "SELECT count(*) OVER () AS n FROM sales WHERE amount > 1",
        "SELECT DISTINCT count(*) OVER () AS n FROM sales CROSS JOIN items",
        "SELECT count(*) OVER () AS n FROM (SELECT item FROM sales UNION ALL SELECT item FROM items)",
        "SELECT 1 AS n FROM sales GROUP BY GROUPING SETS ((), ())",
        "SELECT count(*) AS n FROM sales LATERAL VIEW explode(array(1, 2)) e AS x",
    ],
)
def test_rows_of_which_no_column_is_needed_have_one(sql: str) -> None:
    relation = compile_view("v", sql, EVERYTHING, {}, SharedAnalyser(EVERYTHING)).relation
    regions = plan_regions("v", relation, (), EVERYTHING)
    schemas = [part.schema for region in regions for parts in (region.inputs, region.nodes) for part in parts]
    assert schemas
    assert all(map(len, schemas))


def test_the_key_of_a_full_join_is_in_none_of_its_columns() -> None:
    both = join(scan(SALES), prefixed(scan(ITEMS), "i_"), {"item": "i_item"}, JoinKind.FULL)
    assert edges(planned(both, "item")) == {"v/0": ["sales(item)", "items(item)"], "v": ["v/0(item)"]}


def test_a_stateful_map_reads_its_table_in_order() -> None:
    output = pa.schema([("shop", INT), ("total", LONG)])
    op = StatefulMapOp(("shop",), b"", Per.ROW, pa.schema([("s", LONG)]), output)
    (region,) = planned(Relation(op, (scan(SALES),), output), "shop")
    assert (edges((region,)), ops(region)) == ({"v": ["sales(shop)"]}, [StatefulMapOp])


# What is kept ---------------------------------------------------------------------------------------------------------


def test_groups_by_the_key_are_the_store_itself() -> None:
    groups = where(where(count(scan(SALES), "shop item"), '"n" > 1'), '"n" < 9')
    (region,) = planned(select(groups, "n", "item AS thing"), "thing")
    assert region.store is not None
    assert region.store.aggregate is not None
    assert (region.store.key, region.store.aggregate.group) == (("item",), ("item", "shop"))
    assert region.store.having == 'CASE WHEN "n" > 1 THEN "n" < 9 ELSE FALSE END'
    assert region.store.output.expressions == ('"n"', '"item"')


def test_a_filter_over_a_view_of_groups_is_its_having() -> None:
    view = select(count(scan(SALES), "shop"), "shop AS place", "n AS sales")
    (region,) = planned(where(view, '"sales" > 3'), "place")
    assert region.store is not None
    assert region.store.aggregate is not None
    assert region.store.having == '"n" > 3'


def test_groups_looked_up_by_a_result_are_kept_as_rows() -> None:
    *_, last = planned(count(scan(SALES), "shop"), "n")
    assert last.store is not None
    assert last.store.aggregate is None


@pytest.mark.parametrize(
    ("source", "retracts"),
    [
        (scan(SALES), False),
        (WITH_ITEM, False),
        (union(select(scan(SALES), "item"), select(scan(ITEMS), "item")), False),
        (scan(STOCK), True),
        (distinct(scan(SALES)), True),
        (join(scan(SALES), prefixed(scan(ITEMS), "i_"), {"item": "i_item"}, JoinKind.LEFT), True),
        (join(scan(SALES), prefixed(scan(ITEMS), "i_"), {"item": "i_item"}, JoinKind.ANTI), True),
        (top(scan(SALES), "item", [Order("amount", True, False)], 1), True),
        (set_operation(SetKind.INTERSECT, select(scan(SALES), "item"), select(scan(ITEMS), "item")), True),
    ],
)
def test_an_aggregate_knows_whether_rows_may_be_taken_back(source: Relation, retracts: bool) -> None:
    *_, last = planned(count(source, "item"), "item")
    assert last.store is not None
    assert last.store.aggregate is not None
    assert last.store.aggregate.retracts == retracts
    *_, amid, _ = planned(count(source, "item"), "n")
    assert [node.op.plan.retracts for node in amid.nodes if isinstance(node.op, AggregateOp)][-1] == retracts


# What it refuses ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "message"),
    [
        (("shop", "nope"), "'nope' is none of its columns. They are shop, item, amount, price, seq"),
        (("shop", "SHOP"), "names a column twice"),
    ],
)
def test_a_key_is_some_of_the_columns(key: tuple[str, ...], message: str) -> None:
    with pytest.raises(DeclarationError, match=message):
        planned(scan(SALES), *key)


def test_a_key_is_found_in_any_case() -> None:
    (region,) = planned(scan(SALES), "Shop")
    assert region.store is not None
    assert region.store.key == ("shop",)


def test_a_key_is_of_a_type_that_is_hashed() -> None:
    with pytest.raises(DeclarationError, match="'tags' is of type MAP"):
        planned(scan(WEATHER), "tags")


OUTPUT = pa.schema([("item", TEXT), ("x", INT)])
MAP = StatefulMapOp(("item",), b"", Per.ROW, pa.schema([("s", INT)]), OUTPUT)


@pytest.mark.parametrize(
    ("relation", "message"),
    [
        (count(scan(WEATHER), "tags"), "view 'v': GROUP BY of nothing but tags MAP"),
        (top(scan(WEATHER), "tags", [Order("temp", True, True)], 1), "PARTITION BY of nothing but tags"),
        (
            set_operation(SetKind.EXCEPT, select(scan(WEATHER), "tags"), select(scan(WEATHER), "tags")),
            "EXCEPT of nothing but tags",
        ),
        (join(scan(SALES), prefixed(scan(ITEMS), "i_"), {}), "a join without an equality is not supported"),
        (Relation(MAP, (distinct(scan(ITEMS)),), OUTPUT), "stateful_map over a table with retain is not supported"),
        (Relation(MAP, (scan(STOCK),), OUTPUT), "stateful_map over a table with retain is not supported"),
    ],
)
def test_rows_that_nothing_can_route_are_refused(relation: Relation, message: str) -> None:
    with pytest.raises(UnsupportedSql, match=message):
        planned(select(relation, *relation.schema.names[:1]), relation.schema.names[0])


def test_a_refusal_shows_the_place() -> None:
    sql = "SELECT tags, count(*) AS n FROM weather\nGROUP BY tags"
    groups = replace(count(scan(WEATHER), "tags"), place=sql.index("GROUP"))
    with pytest.raises(UnsupportedSql, match=r"view 'v', line 2, column 1: GROUP BY of .*\nGROUP BY tags\n\^"):
        plan_regions("v", groups, ("n",), EVERYTHING, sql)


def test_a_join_compares_columns_of_one_type() -> None:
    with pytest.raises(ProtocolError, match="compares amount int64 with i_size int32"):
        planned(join(scan(SALES), prefixed(scan(ITEMS), "i_"), {"amount": "i_size"}), "amount")


# Any query at all -----------------------------------------------------------------------------------------------------


@given(relation=relations(4), key=st.permutations(["a", "b", "c"]), size=st.integers(1, 3))
def test_any_query_is_planned(relation: Relation, key: list[str], size: int) -> None:
    regions = planned(relation, *key[:size])
    plan = DataflowPlan("v", "", tuple(key[:size]), relation.schema, regions)
    assert plan.depth <= len(regions) - 1
    assert [region.name for region in regions][-1] == "v"
    for region in regions:
        assert operators_of(region, EVALUATOR) is not None
        assert bool(plan.sends(region.name)) == (region.store is None)
