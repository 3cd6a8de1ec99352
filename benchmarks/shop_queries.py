"""Queries over a wholesaler's tables, of the shapes of TPC-H's: each is named by what makes it hard."""

from collections.abc import Mapping
from dataclasses import dataclass

TABLE_KEYS: Mapping[str, str] = {
    "region": "r_id",
    "nation": "n_id",
    "supplier": "s_id",
    "customer": "c_id",
    "part": "p_id",
    "offer": "f_part",
    "sale": "o_id",
    "line": "l_order",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ShopQuery:
    """tables: that it reads. key: of the view. shape: the number of TPC-H's query of this shape."""

    shape: int
    tables: tuple[str, ...]
    key: tuple[str, ...]
    sql: str


_NET = "l_price * (1 - l_discount)"

QUERIES: Mapping[str, ShopQuery] = {
    "sums": ShopQuery(
        shape=1,
        tables=("line",),
        key=("l_back", "l_open"),
        sql=f"""\
SELECT l_back, l_open, sum(l_quantity) AS pieces, sum(l_price) AS gross, sum({_NET}) AS net,
  sum({_NET} * (1 + l_tax)) AS paid, avg(l_discount) AS discount, count(*) AS n
FROM line WHERE l_shipped <= DATE '1998-07-01' GROUP BY l_back, l_open""",
    ),
    "largest": ShopQuery(
        shape=3,
        tables=("customer", "sale", "line"),
        key=("o_id",),
        sql=f"""\
SELECT o_id, o_day, sum({_NET}) AS net FROM customer JOIN sale ON c_id = o_customer JOIN line ON l_order = o_id
WHERE c_segment = 'homes' AND o_day < DATE '1995-03-01' AND l_shipped > DATE '1995-03-01'
GROUP BY o_id, o_day ORDER BY net DESC, o_id LIMIT 10""",
    ),
    "exists": ShopQuery(
        shape=4,
        tables=("sale", "line"),
        key=("o_priority",),
        sql="""\
SELECT o_priority, count(*) AS n FROM sale WHERE o_day >= DATE '1994-01-01' AND o_day < DATE '1994-04-01'
  AND EXISTS (SELECT 1 FROM line WHERE l_order = o_id AND l_promised < l_received) GROUP BY o_priority""",
    ),
    "six tables": ShopQuery(
        shape=5,
        tables=("customer", "sale", "line", "supplier", "nation", "region"),
        key=("n_name",),
        sql=f"""\
SELECT n_name, sum({_NET}) AS net FROM customer JOIN sale ON c_id = o_customer JOIN line ON l_order = o_id
  JOIN supplier ON l_supplier = s_id AND c_nation = s_nation JOIN nation ON s_nation = n_id
  JOIN region ON n_region = r_id
WHERE r_name = 'region 2' AND year(o_day) = 1994 GROUP BY n_name""",
    ),
    "one row": ShopQuery(
        shape=6,
        tables=("line",),
        key=(),
        sql="""\
SELECT sum(l_price * l_discount) AS saved, count(*) AS n FROM line
WHERE year(l_shipped) = 1994 AND l_discount BETWEEN 0.05 AND 0.07 AND l_quantity < 24""",
    ),
    "outer": ShopQuery(
        shape=13,
        tables=("customer", "sale"),
        key=("sales",),
        sql="""\
SELECT sales, count(*) AS customers FROM (SELECT c_id, count(o_id) AS sales FROM customer
  LEFT JOIN sale ON c_id = o_customer AND o_priority <> '5 whenever' GROUP BY c_id) GROUP BY sales""",
    ),
    "greatest": ShopQuery(
        shape=15,
        tables=("line",),
        key=("l_supplier",),
        sql=f"""\
WITH sold AS (SELECT l_supplier, sum({_NET}) AS net FROM line
  WHERE l_shipped >= DATE '1996-01-01' AND l_shipped < DATE '1996-04-01' GROUP BY l_supplier)
SELECT l_supplier, net FROM sold WHERE net = (SELECT max(net) FROM sold)""",
    ),
    "below average": ShopQuery(
        shape=17,
        tables=("line", "part"),
        key=(),
        sql="""\
SELECT sum(l_price) / 7.0 AS a_year, count(*) AS n FROM line JOIN part ON p_id = l_part
WHERE p_brand = 'brand 7' AND p_box = 'large tin'
  AND l_quantity < (SELECT 0.2 * avg(o.l_quantity) FROM line o WHERE o.l_part = p_id)""",
    ),
    "in groups": ShopQuery(
        shape=18,
        tables=("sale", "line"),
        key=("o_customer",),
        sql="""\
SELECT o_customer, o_id, o_day, sum(l_quantity) AS pieces FROM sale JOIN line ON o_id = l_order
WHERE o_id IN (SELECT l_order FROM line GROUP BY l_order HAVING sum(l_quantity) > 250)
GROUP BY o_customer, o_id, o_day""",
    ),
    "either": ShopQuery(
        shape=19,
        tables=("line", "part"),
        key=(),
        sql=f"""\
SELECT sum({_NET}) AS net, count(*) AS n FROM line, part WHERE
  (p_id = l_part AND p_brand = 'brand 3' AND l_quantity BETWEEN 1 AND 11 AND p_size < 6)
  OR (p_id = l_part AND p_brand = 'brand 12' AND l_quantity BETWEEN 10 AND 20 AND p_size < 11)
  OR (p_id = l_part AND p_brand = 'brand 24' AND l_quantity BETWEEN 20 AND 30 AND p_size < 16)""",
    ),
    "idle": ShopQuery(
        shape=22,
        tables=("customer", "sale"),
        key=("c_nation",),
        sql="""\
SELECT c_nation, count(*) AS n, sum(c_balance) AS balance FROM customer
WHERE c_nation < 7 AND c_balance > (SELECT avg(c_balance) FROM customer WHERE c_balance > 0)
  AND NOT EXISTS (SELECT 1 FROM sale WHERE o_customer = c_id) GROUP BY c_nation""",
    ),
}
