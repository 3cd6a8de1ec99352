"""From SQL to the answer: front end, planner, regions on several workers, moves; DuckDB says what is right."""

import pytest
from dataflow_kit import TABLES
from dataflow_lake import check_while_keys_move
from hypothesis import given, settings
from hypothesis import strategies as st
from soak import examples
from state_kit import MANY

from simulator.local_typer import LocalTyper
from upriver.engine.expressions import Evaluator

TYPER = LocalTyper(TABLES)
EVALUATOR = Evaluator()
SEVERAL = settings(MANY, max_examples=examples(6))
MAKERS = "SELECT i.maker, s.shop, s.amount FROM sales s JOIN items i ON s.item = i.item"

VIEWS = {
    "with": (
        f"WITH m AS ({MAKERS}), t AS (SELECT maker, sum(amount) AS total FROM m GROUP BY maker) "
        "SELECT m.shop, m.maker, t.total FROM m JOIN t ON m.maker = t.maker WHERE m.amount > 0",
        ("shop",),
    ),
    "join of groups": (
        "SELECT s.item, s.n, k.most FROM (SELECT item, count(*) AS n FROM sales GROUP BY item) s "
        "LEFT JOIN (SELECT item, max(held) AS most FROM stock GROUP BY item) k ON s.item = k.item",
        ("item",),
    ),
    "full join using": (
        "SELECT item, count(*) AS n, max(s.held) AS held FROM items FULL OUTER JOIN stock s USING (item) GROUP BY item",
        ("item",),
    ),
    "exists": (
        "SELECT shop, item, amount FROM sales s "
        "WHERE EXISTS (SELECT 1 FROM stock k WHERE k.item = s.item AND k.held > 1)",
        ("shop",),
    ),
    "not exists": (
        "SELECT item, maker FROM items i "
        "WHERE NOT EXISTS (SELECT 1 FROM sales s WHERE s.item = i.item AND s.amount > 0)",
        ("maker",),
    ),
    "union distinct": (
        "SELECT item AS name, shop + 1 AS place FROM sales UNION SELECT maker AS name, size AS place FROM items",
        ("place",),
    ),
    "intersect": ("SELECT shop, item FROM sales INTERSECT SELECT shop, item FROM stock", ("item",)),
    "except all": ("SELECT item FROM sales EXCEPT ALL SELECT item FROM stock", ("item",)),
    "top": (
        "SELECT item, shop, total, place FROM (SELECT item, shop, total, row_number() OVER (PARTITION BY item ORDER BY "
        "total DESC NULLS LAST, shop NULLS FIRST) AS place FROM (SELECT item, shop, sum(amount) AS total FROM sales "
        "GROUP BY item, shop) t) r WHERE place <= 2",
        ("item",),
    ),
    "rank by another key": (
        "SELECT shop, item, amount FROM (SELECT shop, item, amount, rank() OVER (PARTITION BY item ORDER BY amount "
        "DESC NULLS LAST) AS place FROM sales) r WHERE place <= 1",
        ("shop", "item"),
    ),
    "aggregates": (
        "SELECT k.item, count(DISTINCT k.held) AS kinds, avg(k.held) AS mean, min(k.held) AS least, max(k.shop) AS last"
        ", count(*) FILTER (WHERE k.held > 2) AS many FROM stock k GROUP BY k.item HAVING count(*) > 1",
        ("item",),
    ),
    "groups of a computed key": (
        "SELECT upper(maker) AS brand, count(*) AS n, sum(size) AS size FROM items WHERE size > 0 GROUP BY 1",
        ("brand",),
    ),
    "an aggregate as the key": ("SELECT item, count(*) AS n FROM sales GROUP BY item", ("n",)),
    "a computed group as the key": (
        "SELECT item, upper(maker) AS brand, max(size) AS size FROM items GROUP BY item, maker",
        ("brand",),
    ),
    "one column twice in the key": (
        "SELECT item AS a, item AS b, count(*) AS n FROM sales GROUP BY item",
        ("b", "a"),
    ),
    "one column of rows twice in the key": ("SELECT shop AS a, shop AS b, amount FROM sales", ("a", "b")),
    "three tables": (
        "SELECT i.maker, k.held, count(*) AS n FROM sales s JOIN items i ON s.item = i.item "
        "JOIN stock k ON k.shop = s.shop AND k.item = s.item GROUP BY i.maker, k.held",
        ("maker", "held"),
    ),
    "self join": (
        "SELECT a.shop, a.item, b.item AS other FROM stock a JOIN stock b ON a.shop = b.shop WHERE a.held > b.held",
        ("other",),
    ),
    "ranges": (
        "SELECT s.shop, s.amount, i.item, k.held FROM sales s JOIN items i ON s.amount BETWEEN i.size - 1 AND i.size "
        "LEFT JOIN stock k ON s.shop = k.shop AND k.held >= i.size AND k.item < s.item",
        ("item",),
    ),
}


@pytest.mark.parametrize("name", VIEWS)
@SEVERAL
@given(data=st.data())
def test_a_view_is_what_its_sql_says_while_keys_move(name: str, data: st.DataObject) -> None:
    sql, key = VIEWS[name]
    check_while_keys_move(sql, key, data, TYPER, EVALUATOR)
