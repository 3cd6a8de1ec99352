"""Queries of every kind for tests of planner and regions: a relation, and what DuckDB is asked for the same answer."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import pyarrow as pa
from hypothesis import strategies as st
from relation_kit import (
    count,
    distinct,
    group,
    join,
    prefixed,
    scan,
    select,
    set_operation,
    top,
    union,
    where,
)

from upriver.plan.plan import DataflowPlan, JoinKind, Order, SetKind, TableSpec
from upriver.plan.planning import plan_regions
from upriver.plan.relation import Relation

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
PER_ITEM = group(scan(SALES), "shop item", n=("count_star", None, LONG), total=("sum", "amount", LONG))
BY_AMOUNT = (Order("amount", True, False), Order("seq", False, True))


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


def _lowered(relation: Relation) -> Relation:
    return select(relation, "amount", low=("lower(\"item\") || '!'", TEXT))


PER_NAME = count(_lowered(scan(SALES)), "amount low")

QUERIES: Mapping[str, Query] = MappingProxyType(
    {
        "rows": Query(
            where(select(scan(SALES), "shop", "item", twice=('"amount" * 2', LONG)), '"twice" > 0'),
            ("shop",),
            "SELECT shop, item, amount * 2 FROM sales WHERE amount > 0",
        ),
        "groups": Query(
            select(where(count(scan(SALES), "shop item"), '"n" > 1'), "n", "item AS thing", "shop"),
            ("shop", "thing"),
            "SELECT count(*), item, shop FROM sales GROUP BY ALL HAVING count(*) > 1",
        ),
        "other index": Query(count(scan(SALES), "item"), ("item",), "SELECT item, count(*) FROM sales GROUP BY ALL"),
        "computed key": Query(
            count(_lowered(scan(SALES)), "low"),
            ("low",),
            "SELECT lower(item) || '!', count(*) FROM sales GROUP BY ALL",
            2,
        ),
        "key of an aggregate": Query(
            count(scan(SALES), "item"), ("n",), "SELECT item, count(*) FROM sales GROUP BY ALL", 2
        ),
        "groups of groups": Query(
            group(PER_ITEM, "n", most=("max", "total", LONG), shops=("count_star", None, LONG)),
            ("n",),
            "SELECT n, max(total), count(*) FROM (SELECT count(*) AS n, sum(amount)::BIGINT AS total FROM sales "
            "GROUP BY shop, item) GROUP BY n",
            2,
        ),
        "distinct": Query(
            distinct(select(scan(SALES), "shop", "item")), ("item",), "SELECT DISTINCT shop, item FROM sales"
        ),
        "latest": Query(
            select(where(scan(STOCK), '"held" > 1'), "shop", "item", "held"),
            ("shop",),
            f"SELECT shop, item, held FROM {CURRENT} WHERE held > 1",
        ),
        "latest by another key": Query(
            group(scan(STOCK), "held", n=("count_star", None, LONG), last=("max", "item", TEXT)),
            ("held",),
            f"SELECT held, count(*), max(item) FROM {CURRENT} GROUP BY held",
            2,
        ),
        "join, then groups": Query(
            group(WITH_ITEM, "i_maker", n=("count_star", None, LONG), least=("min", "price", REAL)),
            ("i_maker",),
            "SELECT maker, count(*), min(price) FROM sales JOIN items USING (item) GROUP BY maker",
            2,
        ),
        "join of three": Query(
            select(
                join(WITH_ITEM, prefixed(scan(STOCK), "s_"), {"shop": "s_shop", "item": "s_item"}, JoinKind.LEFT),
                "shop", "item", "i_size", "s_held", "amount",
            ),
            ("shop", "item"),
            "SELECT sales.shop, sales.item, size, held, amount FROM sales JOIN items USING (item) "
            f"LEFT JOIN {CURRENT} s ON sales.shop = s.shop AND sales.item = s.item",
            2,
        ),
        "full join": Query(
            select(
                join(PER_ITEM, prefixed(scan(STOCK), "s_"), {"shop": "s_shop", "item": "s_item"}, JoinKind.FULL),
                "n", "s_held", shop=('coalesce("shop", "s_shop")', INT),
            ),
            ("shop",),
            "SELECT n, held, coalesce(p.shop, s.shop) FROM (SELECT shop, item, count(*) AS n FROM sales GROUP BY ALL) "
            f"p FULL JOIN {CURRENT} s ON p.shop = s.shop AND p.item = s.item",
            2,
        ),
        "anti join": Query(
            join(scan(SALES), ITEM, {"item": "i_item"}, JoinKind.ANTI, '"amount" > "i_size"'),
            ("item",),
            "SELECT * FROM sales s WHERE NOT EXISTS (FROM items i WHERE i.item = s.item AND s.amount > i.size)",
        ),
        "top": Query(
            select(top(where(scan(SALES), '"amount" IS NOT NULL'), "item", BY_AMOUNT, 2, "nth"), "item", "seq", "nth"),
            ("item",),
            "SELECT item, seq, row_number() OVER (PARTITION BY item ORDER BY amount DESC, seq)::INT AS nth FROM sales "
            "WHERE amount IS NOT NULL QUALIFY nth <= 2",
        ),
        "top of all": Query(
            select(top(where(scan(SALES), '"amount" IS NOT NULL'), "", BY_AMOUNT, 3), "shop", "seq"),
            ("shop",),
            "SELECT shop, seq FROM sales WHERE amount IS NOT NULL ORDER BY amount DESC, seq LIMIT 3",
            3,
        ),
        "except": Query(
            set_operation(SetKind.EXCEPT, select(scan(SALES), "item"), select(scan(ITEMS), "item")),
            ("item",),
            "SELECT item FROM sales EXCEPT SELECT item FROM items",
        ),
        "union": Query(
            count(union(select(scan(SALES), "item AS name"), select(scan(ITEMS), "maker AS name")), "name"),
            ("name",),
            "SELECT name, count(*) FROM (SELECT item AS name FROM sales UNION ALL SELECT maker FROM items) GROUP BY 1",
        ),
        "union by a computed key": Query(
            distinct(
                union(
                    select(scan(SALES), k=('"amount" + 1', LONG)), select(scan(STOCK), "held AS k"),
                    select(scan(SALES), k=('"amount" * 2', LONG)),
                )
            ),
            ("k",),
            f"SELECT amount + 1 FROM sales UNION SELECT held FROM {CURRENT} UNION SELECT amount * 2 FROM sales",
            3,
        ),
        "greatest group": Query(
            select(
                join(
                    count(scan(SALES), "shop item"),
                    group(prefixed(count(scan(SALES), "shop item"), "m_"), "m_shop", most=("max", "m_n", LONG)),
                    {"shop": "m_shop", "n": "most"},
                ),
                "shop", "item", "n",
            ),
            ("shop",),
            "SELECT * FROM (SELECT shop, item, count(*) AS n FROM sales WHERE shop IS NOT NULL GROUP BY ALL) "
            "QUALIFY rank() OVER (PARTITION BY shop ORDER BY n DESC) = 1",
        ),
        "greatest group by a computed key": Query(
            select(
                join(
                    PER_NAME,
                    group(prefixed(PER_NAME, "m_"), "m_low", most=("max", "m_n", LONG)),
                    {"low": "m_low", "n": "most"},
                ),
                "amount", "low", "n",
            ),
            ("amount",),
            "SELECT * FROM (SELECT amount, lower(item) || '!' AS low, count(*) AS n FROM sales "
            "WHERE item IS NOT NULL GROUP BY ALL) QUALIFY rank() OVER (PARTITION BY low ORDER BY n DESC) = 1",
            3,
        ),
    }
)  # fmt: skip
