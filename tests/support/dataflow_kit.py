"""Queries of every kind for tests of planner and regions: a relation, and what DuckDB is asked for the same answer."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import pyarrow as pa
from hypothesis import strategies as st
from relation_kit import join, prefixed, scan

from simulator.shared_analyser import SharedAnalyser
from upriver.plan.plan import DataflowPlan, TableSpec
from upriver.plan.planning import plan_regions
from upriver.plan.relation import Relation
from upriver.sql.views import compile_view

INT, LONG, TEXT, REAL = pa.int32(), pa.int64(), pa.string(), pa.float64()

SALES = TableSpec(
    "sales",
    pa.schema([("shop", INT), ("item", TEXT), ("amount", LONG), ("price", REAL), ("seq", LONG)]),
    key=("shop",),
    order_by=("seq",),
)
ITEMS = TableSpec("items", pa.schema([("item", TEXT), ("maker", TEXT), ("size", INT)]), key=("item",))
STOCK = TableSpec(
    "stock",
    pa.schema([("shop", INT), ("item", TEXT), ("held", LONG), ("seq", LONG), ("gone", pa.bool_())]),
    key=("shop",),
    order_by=("seq",),
    primary_key=("shop", "item"),
    deletes='"gone"',
)
TABLES: Mapping[str, TableSpec] = MappingProxyType({table.name: table for table in (SALES, ITEMS, STOCK)})

SHOPS = st.sampled_from([None, 0, 1, 2, 3])
NAMES = st.sampled_from([None, "", "a", "b", "c"])
ROWS = {
    "sales": st.tuples(
        SHOPS, NAMES, st.none() | st.integers(-5, 5), st.none() | st.integers(-8, 8).map(lambda number: number / 4)
    ),
    "items": st.tuples(NAMES, NAMES, st.none() | st.integers(0, 3)),
    "stock": st.tuples(SHOPS, NAMES, st.integers(0, 4)),
}
CURRENT = (
    "(SELECT shop, item, held, seq, gone FROM (SELECT *, row_number() OVER (PARTITION BY shop, item ORDER BY seq DESC) "
    "AS nth FROM stock) WHERE nth = 1 AND gone IS NOT TRUE)"
)
"""What an upsert table comes to, in SQL."""

ITEM = prefixed(scan(ITEMS), "i_")
WITH_ITEM = join(scan(SALES), ITEM, {"item": "i_item"})


@dataclass(frozen=True)
class Query:
    """A view, and the same in DuckDB's SQL. regions: how many the planner makes of it."""

    relation: Relation
    key: tuple[str, ...]
    sql: str
    regions: int = 1

    def plan(self, name: str) -> DataflowPlan:
        regions = plan_regions(name, self.relation, self.key, TABLES)
        return DataflowPlan(name, self.sql, self.key, self.relation.schema, regions)


# ruff: noqa: E501  queries are easier to read on one line
# The name, the key, the number of regions, and the SQL, which DuckDB understands, too.
_QUERIES = """
rows | shop | 1 | SELECT shop, item, amount * 2 AS twice FROM sales WHERE amount > 0
groups | shop thing | 1 | SELECT count(*) AS n, item AS thing, shop FROM sales GROUP BY shop, item HAVING count(*) > 1
other index | item | 1 | SELECT item, count(*) AS n FROM sales GROUP BY item
computed key | low | 2 | SELECT lower(item) || '!' AS low, count(*) AS n FROM sales GROUP BY 1
key of an aggregate | n | 2 | SELECT item, count(*) AS n FROM sales GROUP BY item
groups of groups | n | 2 | SELECT n, max(total) AS most, count(*) AS shops FROM (SELECT count(*) AS n, sum(amount) AS total FROM sales GROUP BY shop, item) g GROUP BY n
distinct | item | 1 | SELECT DISTINCT shop, item FROM sales
latest | shop | 1 | SELECT shop, item, held FROM stock WHERE held > 1
latest by another key | held | 2 | SELECT held, count(*) AS n, max(item) AS last FROM stock GROUP BY held
join, then groups | maker | 2 | SELECT maker, count(*) AS n, min(price) AS least FROM sales s JOIN items i ON s.item = i.item GROUP BY maker
join of three | shop item | 2 | SELECT s.shop, s.item, size, held, amount FROM sales s JOIN items i ON s.item = i.item LEFT JOIN stock k ON s.shop = k.shop AND s.item = k.item
full join | shop | 2 | SELECT n, held, coalesce(p.shop, k.shop) AS shop FROM (SELECT shop, item, count(*) AS n FROM sales GROUP BY shop, item) p FULL JOIN stock k ON p.shop = k.shop AND p.item = k.item
anti join | item | 1 | SELECT * FROM sales s ANTI JOIN items i ON s.item = i.item AND amount > size
top | item | 1 | SELECT item, seq, nth FROM (SELECT *, row_number() OVER (PARTITION BY item ORDER BY amount DESC NULLS LAST, seq) AS nth FROM sales WHERE amount IS NOT NULL) t WHERE nth <= 2
top of all | shop | 3 | SELECT shop, seq FROM sales WHERE amount IS NOT NULL ORDER BY amount DESC NULLS LAST, seq LIMIT 3
except | item | 1 | SELECT item FROM sales EXCEPT SELECT item FROM items
union | name | 1 | SELECT name, count(*) AS n FROM (SELECT item AS name FROM sales UNION ALL SELECT maker FROM items) u GROUP BY name
union by a computed key | k | 3 | SELECT DISTINCT k FROM (SELECT amount + 1 AS k FROM sales UNION ALL SELECT held FROM stock UNION ALL SELECT amount * 2 FROM sales) u
greatest group | shop | 1 | WITH n AS (SELECT shop, item, count(*) AS n FROM sales GROUP BY shop, item) SELECT shop, item, n FROM n JOIN (SELECT shop AS of, max(n) AS most FROM n GROUP BY shop) m ON shop = of AND n = most
greatest group by a computed key | amount | 3 | WITH n AS (SELECT amount, lower(item) || '!' AS low, count(*) AS n FROM sales GROUP BY 1, 2) SELECT amount, low, n FROM n JOIN (SELECT low AS of, max(n) AS most FROM n GROUP BY low) m ON low = of AND n = most
"""


def _query(key: str, regions: str, sql: str) -> Query:
    relation = compile_view("v", sql, TABLES, {}, SharedAnalyser(TABLES)).relation
    return Query(relation, tuple(key.split()), re.sub(r"\bstock\b", CURRENT, sql), int(regions))


QUERIES: Mapping[str, Query] = MappingProxyType(
    {name: _query(*rest) for name, *rest in (line.split(" | ") for line in _QUERIES.strip().splitlines())}
)
