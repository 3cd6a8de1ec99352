"""What a user is told of a dataflow."""

import json
import re

import pyarrow as pa
import pytest
from dataflow_kit import QUERIES, SALES, TABLES, TEXT
from relation_kit import count, scan, select
from sql_kit import local_plan

from upriver.plan.explain import explain, render
from upriver.plan.plan import DataflowPlan, TableSpec
from upriver.plan.planning import plan_regions
from upriver.plan.provenance import spelled

JOIN = """\
view makers, looked up by (maker)
  | SELECT maker, count(*) AS n, min(price) AS least FROM sales s JOIN items i ON s.item = i.item GROUP BY maker
  region makers/0, keyed by (sales.item), stage 0
    why: keyed by (sales.item) and (items.item), for the inner join on sales.item = items.item; ends here because \
makers needs its rows by (items.maker), which is not what the inner join compares
    0: lake edge sales/item: rows of sales in hash64 order of (item)
    1: lake edge items/item: rows of items in hash64 order of (item)
    2, from 0: columns (sales.item, sales.price)
    3, from 1: columns (items.item, items.maker)
    4, from 2 and 3: inner join on sales.item = items.item
    5, from 4: columns (items.maker, sales.price)
    rows go to region makers by (items.maker)
    state: full (every key is kept: it is declared with partial=False)
  region makers, keyed by (maker), stage 1
    why: keyed by (maker), by which the view is looked up
    0: exchange edge: rows of region makers/0 by (items.maker)
    keeps group by (items.maker): count(*), min(sales.price); gives maker STRING, n BIGINT, least DOUBLE
    state: full (every key is kept: it is declared with partial=False)
  index (item) of sales: made for views by Spark, at ingest
  index (item) of items: its own key"""

STEPS = {
    "rows": ["filter (sales.amount > 0)", "columns (sales.shop, sales.item, (sales.amount * 2))"],
    "groups": ["columns (sales.shop, sales.item)"],
    "anti join": [
        "anti join on sales.item = items.item and (sales.amount > CAST(items.size AS BIGINT)); where a row meets many, "
        "they are found by sorted indexes for sales.amount >= CAST(items.size AS BIGINT)"
    ],
    "latest": ["latest row by (seq) of each (shop, item), none if gone", "filter (stock.held > 1)"],
    "top": [
        "first 2 by sales.amount desc, sales.seq of each (sales.item)",
        "columns (sales.item, sales.seq, row_number())",
    ],
    "top of all": ["first 3 by sales.amount desc, sales.seq", "columns (sales.shop, sales.seq)"],
    "except": ["columns (sales.item)", "columns (items.item)", "except"],
    "union": ["columns (sales.item)", "columns (items.maker)", "union"],
    "groups of groups": ["group by (sales.shop, sales.item): count(*), sum(sales.amount)"],
}
KEEPS = {
    "rows": "the rows; gives shop INT, item STRING, twice BIGINT",
    "groups": "group by (sales.shop, sales.item): count(*); read where (count(*) > 1); "
    "gives n BIGINT, thing STRING, shop INT",
    "distinct": "group by (sales.item, sales.shop): distinct values only; gives shop INT, item STRING",
    "groups of groups": "group by (count(*)): max(sum(sales.amount)), count(*); "
    "gives n BIGINT, most BIGINT, shops BIGINT",
}


def test_a_dataflow_is_told_region_by_region() -> None:
    plan = QUERIES["join, then groups"].plan("makers")
    assert render(explain(plan, TABLES)) == JOIN


@pytest.mark.parametrize("name", QUERIES)
def test_what_is_told_is_what_is_planned(name: str) -> None:
    plan = QUERIES[name].plan("v")
    told = json.loads(json.dumps(explain(plan, TABLES)))
    assert (told["view"], tuple(told["key"]), told["sql"]) == ("v", plan.key, plan.sql)
    assert [region["region"] for region in told["regions"]] == [region.name for region in plan.regions]
    for region, planned in zip(told["regions"], plan.regions, strict=True):
        assert region["depth"] == plan.depths[planned.name]
        assert len(region["inputs"]) == len(planned.inputs)
        assert [tuple(step["of"]) for step in region["steps"]] == [node.inputs for node in planned.nodes]
        assert (region["keeps"] is None) == (planned.store is None) == bool(region["sends"])
    indexes = {(index["table"], tuple(index["columns"])): index["new"] for index in told["indexes"]}
    assert indexes == {(table, columns): columns != TABLES[table].key for table, columns in indexes}
    assert len(indexes) == len({channel for region in plan.regions for _, channel in region.lake_ports})
    words = [line for line in render(told).splitlines() if not line.startswith("  | ")]
    assert not re.search(r"<|\bNone\b|=\(|int32|int64|spark_", "\n".join(words))


@pytest.mark.parametrize(
    ("name", "reasons"),
    [
        ("computed key", ["keeps nothing", "and ((lower(sales.item) || '!')) is computed"]),
        (
            "key of an aggregate",
            ["for groups by (sales.item)", "by (count(*)), which is more than (sales.item), by which rows are grouped"],
        ),
        (
            "latest by another key",
            ["the latest row of each (stock.shop, stock.item)", "more than the primary key (stock.shop, stock.item)"],
        ),
        ("top of all", ["all rows in one place", "v/1 needs its rows in one place"]),
        ("union by a computed key", ["and ((sales.amount + 1)) is computed"]),
        ("greatest group by a computed key", ["fewer rows are exchanged here than before"]),
    ],
)
def test_it_says_why_a_region_is_keyed_and_cut(name: str, reasons: list[str]) -> None:
    told = " ".join(region.why for region in QUERIES[name].plan("v").regions)
    assert [reason for reason in reasons if reason not in told] == []


@pytest.mark.parametrize("name", STEPS)
def test_a_step_is_told_by_the_columns_of_the_tables(name: str) -> None:
    told = explain(QUERIES[name].plan("v"), TABLES)
    steps = [step["does"] for region in told["regions"] for step in region["steps"]]
    assert [step for step in STEPS[name] if step not in steps] == []


@pytest.mark.parametrize("name", KEEPS)
def test_what_is_kept_is_told_by_the_columns_of_the_tables(name: str) -> None:
    assert explain(QUERIES[name].plan("v"), TABLES)["regions"][-1]["keeps"] == KEEPS[name]


def test_parts_that_change_no_row_are_told() -> None:
    table = TableSpec("t", pa.schema([("k", pa.string()), ("i", pa.int32())]), ("k",))
    sql = "SELECT /*+ broadcast(t) */ k, i FROM t\nWHERE i IN (SELECT i FROM t ORDER BY k LIMIT 2)\nORDER BY i"
    plan = local_plan(sql, "k", table)
    assert explain(plan, {"t": table})["ignored"] == [
        "the hint in line 1: it is for Spark's planner",
        "ORDER BY in line 3: a view has no order, sort what you read from it",
    ]
    assert "  ignored: ORDER BY in line 3: a view has no order" in render(explain(plan, {"t": table}))


def test_expressions_are_spelled_as_spark_spells_them() -> None:
    for expression, text in (
        ('("a" + CAST(1 AS INTEGER))', "(t.a + 1)"),
        ('CAST("a" AS VARCHAR)', "CAST(t.a AS STRING)"),
        ('(CAST("a" AS BIGINT) * CAST(2.50 AS DECIMAL(3, 2)))', "(CAST(t.a AS BIGINT) * 2.50)"),
        ('spark_upper("s")', "upper(t.s)"),
        ('spark_divide(CAST("a" AS DOUBLE), "b")', "f(t.a, t.b)"),
        ("list_transform([{'v0': \"a\"}], lambda v: spark_div(v.v0, 2))[1]", "f(t.a)"),
    ):
        assert spelled(expression, "t.{}".format) == text


def test_the_name_of_a_column_is_left_as_it_is_whatever_it_looks_like() -> None:
    name = "count(*) FILTER(WHERE b IN (CAST(2 AS BIGINT), regexp_like(x)) AS INTEGER"
    assert spelled(f'"{name}" > CAST(0 AS BIGINT)', {name: "n"}.__getitem__) == "n > 0"


def test_a_long_expression_is_told_by_what_it_is_made_of() -> None:
    long = select(scan(SALES), k=(" || ".join(['"item"', '"item"::VARCHAR(3)', "'it''s \"long\"'"] * 2), TEXT))
    regions = plan_regions("v", count(long, "k"), ("k",), TABLES)
    told = explain(DataflowPlan("v", "", ("k",), long.schema, regions), TABLES)
    assert told["regions"][0]["sends"] == [{"to": "v", "key": ["f(sales.item)"]}]
    assert told["regions"][0]["steps"][0]["does"].count("'it''s \"long\"'") == 2
