"""What a user is told of a dataflow."""

import json
import re

import pytest
from dataflow_kit import QUERIES, TABLES

from upriver.dataflow.explain_dataflow import explain, render

JOIN = """\
view makers, looked up by (i_maker)
  region makers/0, keyed by (item), stage 0
    why: keyed by (sales.item) and (items.item), for the inner join on sales.item = items.item; ends here because \
makers needs its rows by (items.maker), which is not what the inner join compares
    0: lake edge sales/item: rows of sales in hash64 order of (item)
    1: lake edge items/item: rows of items in hash64 order of (item)
    2, from 0: columns (item, price)
    3, from 1: columns (i_item = item, i_maker = maker)
    4, from 2 and 3: inner join on item = i_item
    5, from 4: columns (price, i_maker)
    rows go to region makers by (i_maker)
    state: full (every key is kept: partial state is not built yet)
  region makers, keyed by (i_maker), stage 1
    why: keyed by (i_maker), by which the view is looked up
    0: exchange edge: rows (price, i_maker) of region makers/0 by (i_maker)
    keeps group by (i_maker): count(*), min(price); gives i_maker string, n int64, least double
    state: full (every key is kept: partial state is not built yet)
  index (item) of sales: made for views by Spark, at ingest
  index (item) of items: its own key"""


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
    assert not re.search(r"<|\bNone\b|=\(", render(told))


@pytest.mark.parametrize(
    ("name", "reasons"),
    [
        ("computed key", ["keeps nothing", "by (f(sales.item)), and (f(sales.item)) is computed"]),
        (
            "key of an aggregate",
            ["for groups by (sales.item)", "by (count(*)), which is more than (sales.item), by which rows are grouped"],
        ),
        (
            "latest by another key",
            ["the latest row of each (stock.shop, stock.item)", "more than the primary key (stock.shop, stock.item)"],
        ),
        ("top of all", ["all rows in one place", "v/1 needs its rows in one place"]),
        ("union by a computed key", ["and (f(sales.amount)) is computed"]),
        ("greatest group by a computed key", ["fewer rows are exchanged here than before"]),
    ],
)
def test_it_says_why_a_region_is_keyed_and_cut(name: str, reasons: list[str]) -> None:
    told = " ".join(region.why for region in QUERIES[name].plan("v").regions)
    assert [reason for reason in reasons if reason not in told] == []
