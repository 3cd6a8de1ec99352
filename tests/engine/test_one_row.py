"""One-row relations and joins without equality, from SQL to the answer: regions on several workers, moves; DuckDB says
what is right."""

import pytest
from dataflow_kit import TABLES
from dataflow_lake import check_while_keys_move
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from soak import examples
from state_kit import MANY

from simulator.local_typer import LocalTyper
from upriver.engine.expressions import Evaluator

TYPER = LocalTyper(TABLES)
EVALUATOR = Evaluator()
SEVERAL = settings(MANY, max_examples=examples(2), phases=[Phase.generate])

AGGREGATES = {
    "counts": "SELECT count(*) AS n, count(item) AS items, sum(amount) AS total, max(price) AS most FROM sales",
    "of an upsert table": "SELECT count(*) AS n, min(held) AS least, avg(held) AS mean FROM stock WHERE held > 1",
    "distinct": "SELECT count(DISTINCT item) AS n, sum(DISTINCT held) AS s FROM stock",
    "of groups": "SELECT count(*) AS n, max(m) AS most FROM (SELECT item, sum(held) AS m FROM stock GROUP BY item) g",
    "having": "SELECT sum(held) AS s FROM stock HAVING count(*) > 2",
    "having none": "SELECT count(*) + 1 AS s FROM stock HAVING count(*) = 0",
    "filter": "SELECT count(*) FILTER (WHERE held > 2) AS n, sum(held) FILTER (WHERE shop = 1) AS s FROM stock",
    "of a join": "SELECT count(*) AS n, sum(s.amount) AS a FROM sales s JOIN stock k ON s.item = k.item",
    "of a row": "SELECT max(n) AS m, count(*) AS c FROM (SELECT count(*) AS n FROM stock) s",
    "expressions": "SELECT coalesce(sum(amount), 0) * 2 AS s, count(*) > 3 AS many FROM sales",
    "union": "SELECT count(*) AS n FROM stock UNION ALL SELECT sum(amount) FROM sales",
    "distinct row": "SELECT DISTINCT count(*) AS n FROM stock",
    "spreads": "SELECT round(stddev(held), 9) AS a, round(var_pop(held), 9) AS b, bool_or(gone) AS c FROM stock",
}
JOINS = {
    "cross": "SELECT i.maker, k.held FROM items i CROSS JOIN stock k",
    "with a row": "SELECT s.shop, s.amount - m.most AS less FROM sales s, (SELECT max(amount) AS most FROM sales) m",
    "a row first": "SELECT k.shop, m.n FROM (SELECT count(*) AS n FROM sales) m, stock k WHERE k.held > m.n",
    "two rows": "SELECT a.n, b.s FROM (SELECT count(*) AS n FROM stock) a, (SELECT sum(amount) AS s FROM sales) b",
    "less": "SELECT k.shop, i.maker FROM stock k JOIN items i ON k.held < i.size",
    "left": "SELECT k.shop, k.item, i.maker FROM stock k LEFT JOIN items i ON k.held > i.size AND i.maker <> 'a'",
    "right": "SELECT k.shop, i.item, i.maker FROM stock k RIGHT JOIN items i ON k.held > i.size",
    "full": "SELECT k.shop, i.item, i.maker FROM stock k FULL JOIN items i ON k.held > i.size",
    "semi": "SELECT shop, item FROM stock k SEMI JOIN items i ON k.held = i.size OR k.item = i.maker",
    "anti": "SELECT shop, item FROM stock k ANTI JOIN items i ON k.held >= i.size",
    "exists": "SELECT shop, item FROM stock k WHERE EXISTS (SELECT 1 FROM items)",
    "not exists": "SELECT shop, item FROM stock k WHERE NOT EXISTS (SELECT 1 FROM items i WHERE i.size > k.held)",
    "three": "SELECT k.shop, i.maker, s.amount FROM stock k, items i, sales s WHERE s.item = i.item AND k.held = 1",
    "crossed": "SELECT k.shop, s.amount FROM stock k, items i LEFT JOIN sales s ON s.shop = k.shop AND s.item = i.item",
}
SUBQUERIES = {
    "above the mean": "SELECT item, held FROM stock WHERE held > (SELECT avg(held) FROM stock)",
    "a share": "SELECT shop, amount / (SELECT count(*) FROM stock WHERE held > 0) AS s FROM sales WHERE amount IS NULL",
    "count of matches": "SELECT i.item, (SELECT count(*) FROM stock k WHERE k.item = i.item) AS n FROM items i",
    "count of less": "SELECT i.item, (SELECT count(*) FROM stock k WHERE k.held < i.size) AS n FROM items i",
    "most of matches": "SELECT item FROM stock s WHERE held = (SELECT max(held) FROM stock k WHERE k.item = s.item)",
    "a key that is compared twice": "SELECT i.item, (SELECT sum(k.held) FROM stock k WHERE k.item = i.item AND "
    "k.item = i.maker) AS s FROM items i",
    "a value by a key that is compared twice": "SELECT i.item, (SELECT k.held FROM stock k WHERE k.shop = 1 AND "
    "k.item = i.item AND k.item = i.maker) AS h FROM items i",
    "a value with a name of the query around": "SELECT k.shop, (SELECT i.size + k.held FROM (SELECT item, max(size) AS "
    "size FROM items GROUP BY item) i WHERE i.item = k.item) AS s FROM stock k",
    "an aggregate with a name of the query around": "SELECT k.shop, (SELECT sum(CASE WHEN s.amount > k.held THEN 1 "
    "ELSE 0 END) FROM sales s WHERE s.item = k.item) AS s FROM stock k",
    "not in what names the query around": "SELECT item, held FROM stock k WHERE held NOT IN (SELECT s.amount + k.held "
    "FROM sales s WHERE s.item = k.item)",
    "having": "SELECT shop, sum(held) AS s FROM stock GROUP BY shop HAVING sum(held) >= (SELECT avg(size) FROM items)",
    "by group": "SELECT k.item, count(*) AS n, (SELECT max(size) FROM items i WHERE i.item = k.item) AS m FROM stock k "
    "GROUP BY k.item",
    "not in": "SELECT item, maker FROM items WHERE size NOT IN (SELECT held FROM stock)",
    "not in by match": "SELECT maker FROM items i WHERE maker NOT IN (SELECT item FROM sales s WHERE s.shop = i.size)",
    "not in several": "SELECT item, size FROM items WHERE (item, size) NOT IN (SELECT item, shop FROM sales)",
    "in or": "SELECT item, size FROM items WHERE size IN (SELECT held FROM stock) OR maker = 'a'",
    "in as a value": "SELECT item, (size IN (SELECT shop FROM sales)) IS TRUE AS f FROM items",
    "exists as a value": "SELECT item, EXISTS (SELECT 1 FROM stock k WHERE k.item = i.item) AS f FROM items i",
    "values": "SELECT k.item, v.y FROM stock k JOIN (VALUES (0, 'a'), (1, 'b'), (1, 'c')) AS v(x, y) ON k.shop = v.x",
    "no from": "SELECT 1 AS a, (SELECT sum(held) FROM stock) AS b",
    "with constants": "SELECT item FROM stock UNION ALL SELECT 'z' AS item",
    "or of equalities": "SELECT k.held, i.maker FROM stock k, items i WHERE (k.item = i.item AND held > 1) OR "
    "(k.item = i.item AND maker = 'b')",
}
VIEWS = {name: (sql, ()) for name, sql in (AGGREGATES | JOINS | SUBQUERIES).items()} | {
    "by its value": ("SELECT count(*) AS n FROM stock", ("n",)),
    "rows in one place": ("SELECT item, held FROM stock WHERE held > 0", ()),
    "groups in one place": ("SELECT item, count(*) AS n FROM stock GROUP BY item", ()),
}


@pytest.mark.parametrize("name", VIEWS)
@SEVERAL
@given(data=st.data())
def test_a_view_is_what_its_sql_says_while_keys_move(name: str, data: st.DataObject) -> None:
    sql, key = VIEWS[name]
    check_while_keys_move(sql, key, data, TYPER, EVALUATOR)
