"""Bad rows of tables that set them aside: the view is that of the others, and each is told once, wherever it is met."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from types import MappingProxyType

import pyarrow as pa
import pytest
from dataflow_kit import LONG, SALES, STOCK, TABLES
from dataflow_lake import Lake
from duckdb_kit import by_duckdb
from hypothesis import given, settings
from hypothesis import strategies as st
from relation_kit import count, group, join, prefixed, scan, select, union, where
from soak import examples
from state_kit import MANY, Row, plain_rows

from simulator.dataflow_world import DataflowWorld
from upriver.engine.expressions import Evaluator
from upriver.ids import Epoch
from upriver.lake.lake import Lake as Files
from upriver.lake.rejected import Rejected
from upriver.plan.plan import DataflowPlan
from upriver.plan.planning import plan_regions
from upriver.plan.relation import Relation

EVALUATOR = Evaluator()
FEWER = settings(MANY, max_examples=examples(10))
ODD = '"held" = 4'
"""Versions that may or may not be deletions."""
SPOILED: Mapping[str, str] = MappingProxyType({"sales": '"amount" = 3', "stock": '"held" = 2'})
"""By table, which rows make an expression fail."""
TABLES_ = {**TABLES, "stock": replace(STOCK, deletes=f"CASE WHEN {ODD} THEN error('odd') ELSE \"gone\" END")}


def failing(table: str, value: str, prefix: str = "") -> str:
    """A value, unless the row is bad."""
    bad = SPOILED[table].replace('"', f'"{prefix}', 1)
    return f"CASE WHEN {bad} THEN error('bad') ELSE {value} END"


@dataclass(frozen=True)
class Case:
    """A view, and the same in DuckDB's SQL over the good rows. spoiled: of which tables it cannot take all rows."""

    relation: Relation
    key: tuple[str, ...]
    sql: str
    spoiled: tuple[str, ...] = ("sales",)
    regions: int = 1

    def plan(self) -> DataflowPlan:
        regions = plan_regions("v", self.relation, self.key, TABLES_)
        assert len(regions) == self.regions
        return DataflowPlan("v", self.sql, self.key, self.relation.schema, regions)


AMOUNT = failing("sales", '"amount"')
HELD = failing("stock", '"held"')
SALE = prefixed(scan(SALES), "s_")
KEPT = prefixed(select(scan(STOCK), "shop", "item", held=(HELD, LONG)), "k_")
CASES: Mapping[str, Case] = MappingProxyType(
    {
        "rows": Case(
            select(scan(SALES), "shop", "seq", x=(AMOUNT, LONG)), ("shop",), "SELECT shop, seq, amount FROM sales"
        ),
        "a filter": Case(
            where(select(scan(SALES), "item", x=(AMOUNT, LONG)), '"x" > 0'),
            ("item",),
            "SELECT item, amount FROM sales WHERE amount > 0",
        ),
        "groups": Case(
            group(select(scan(SALES), "shop", x=(AMOUNT, LONG)), "shop", x=("sum", "x", LONG)),
            ("shop",),
            "SELECT shop, sum(amount)::BIGINT FROM sales GROUP BY shop",
        ),
        "a computed key": Case(
            count(select(scan(SALES), x=(AMOUNT, LONG)), "x"),
            ("x",),
            "SELECT amount, count(*) FROM sales GROUP BY amount",
            regions=2,
        ),
        "two branches, one of which fails": Case(
            count(union(select(scan(SALES), "seq AS x"), select(scan(SALES), x=(AMOUNT, LONG))), "x"),
            ("x",),
            "SELECT x, count(*) FROM (SELECT seq AS x FROM sales UNION ALL SELECT amount FROM sales) GROUP BY x",
            regions=2,
        ),
        "a table joined with itself, by another key on each side": Case(
            select(
                join(
                    select(scan(SALES), "shop", x=(AMOUNT, LONG)),
                    group(select(scan(SALES), "item AS i_item", "shop AS i_shop", "seq AS i_seq"), "i_item i_shop",
                          n=("count_star", None, LONG)),
                    {"shop": "i_shop"},
                ), "shop", "i_item", "x", "n",
            ),
            ("i_item",),
            "SELECT s.shop, i.item, s.amount, n FROM sales s JOIN "
            "(SELECT item, shop, count(*) AS n FROM sales GROUP BY ALL) i ON s.shop = i.shop",
            regions=2,
        ),
        "rows in a region, groups in another": Case(
            select(
                join(
                    prefixed(count(select(scan(SALES), x=(AMOUNT, LONG)), "x"), "g_"), scan(SALES), {"g_x": "seq"}
                ), "shop", "seq", "g_n",
            ),
            ("shop",),
            "SELECT s.shop, s.seq, n FROM (SELECT amount, count(*) AS n FROM sales GROUP BY amount) g "
            "JOIN sales s ON g.amount = s.seq",
            regions=3,
        ),
        "the latest": Case(
            select(scan(STOCK), "shop", "seq", x=(HELD, LONG)),
            ("shop",),
            "SELECT shop, seq, held FROM stock",
            ("stock",),
        ),
        "the latest by another key": Case(
            count(select(scan(STOCK), x=(HELD, LONG)), "x"),
            ("x",),
            "SELECT held, count(*) FROM stock GROUP BY held",
            ("stock",),
            regions=2,
        ),
        "the latest, twice, where they are sent": Case(
            join(
                select(scan(STOCK), "held", "seq", y=(failing("stock", '"seq" + 1'), LONG)),
                count(select(scan(STOCK), "held AS h_held"), "h_held"),
                {"held": "h_held"},
            ),
            ("held",),
            "SELECT s.held, s.seq, s.seq + 1, h.held, n FROM stock s JOIN "
            "(SELECT held, count(*) AS n FROM stock GROUP BY held) h ON s.held = h.held",
            ("stock",),
            regions=2,
        ),
        "rows of two tables": Case(
            select(
                join(select(scan(SALES), "shop", "item", "seq", x=(AMOUNT, LONG)), KEPT,
                     {"shop": "k_shop", "item": "k_item"}),
                "shop", "seq", "x", "k_held",
            ),
            ("shop",),
            "SELECT s.shop, s.seq, amount, held FROM sales s JOIN stock k ON s.shop = k.shop AND s.item = k.item",
            ("sales", "stock"),
        ),
    }
)  # fmt: skip


class Good:
    """The good rows so far, and the bad ones of each epoch."""

    def __init__(self, spoiled: Sequence[str]) -> None:
        self._spoiled = spoiled
        self.told: Counter[tuple[int, str, Row]] = Counter()

    def tables(
        self, rows: Mapping[str, pa.Table], came: Mapping[str, pa.RecordBatch], epoch: int
    ) -> dict[str, pa.Table]:
        """came: with this epoch. Rows of the stock are those that are current."""
        good = dict(rows)
        versions = by_duckdb(f"SELECT * FROM stock WHERE NOT ({ODD})", stock=rows["stock"])
        good["stock"] = by_duckdb(
            "FROM stock QUALIFY row_number() OVER (PARTITION BY shop, item ORDER BY seq DESC) = 1", stock=versions
        )
        good["stock"] = by_duckdb("FROM stock WHERE gone IS NOT TRUE", stock=good["stock"])
        for table in self._spoiled:
            new = pa.Table.from_batches([came[table]]) if table in came else good[table].slice(0, 0)
            if table == "stock":
                self._tell(epoch, "stock", by_duckdb(f"FROM new WHERE {ODD}", new=new))
                new = by_duckdb("FROM good SEMI JOIN new USING (seq)", good=good["stock"], new=new)
            self._tell(epoch, table, by_duckdb(f"FROM new WHERE {SPOILED[table]}", new=new))
            good[table] = by_duckdb(f"FROM rows_ WHERE ({SPOILED[table]}) IS NOT TRUE", rows_=good[table])
        return good

    def _tell(self, epoch: int, table: str, rows: pa.Table) -> None:
        self.told.update((epoch, table, row) for row in plain_rows(rows))


@pytest.mark.parametrize("name", CASES)
@FEWER
@given(data=st.data())
def test_a_view_is_that_of_the_good_rows_and_each_bad_one_is_told_once(
    name: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    case = CASES[name]
    rng = Random(data.draw(st.integers(0, 2**32)))
    world = DataflowWorld(case.plan(), TABLES_, EVALUATOR, rng, sets_aside=("sales", "stock"))
    lake, good, files = Lake(data, rng), Good(case.spoiled), Files(str(tmp_path_factory.mktemp("lake")))
    for epoch in range(1, data.draw(st.integers(1, 3)) + 1):
        came = lake.next_rows(12)
        world.run_epoch(came)
        for aside in world.set_aside:
            assert aside.view == "v"
            Rejected(files, TABLES_[aside.table]).add(Epoch(epoch), "v", aside.rows, aside.errors)
        wanted = by_duckdb(case.sql, **good.tables(lake.rows, came, epoch))
        answer = world.scan()
        assert Counter(plain_rows(answer)) == Counter(plain_rows(wanted.rename_columns(answer.schema.names)))
    assert _read(files) == good.told


def _read(files: Files) -> Counter[tuple[int, str, Row]]:
    found: Counter[tuple[int, str, Row]] = Counter()
    for name, table in TABLES_.items():
        for batch in Rejected(files, table).read():
            errors = set(batch.column("error").to_pylist())
            assert all(re.fullmatch("(column .+|a condition): (bad|odd)", error) for error in errors)
            rows = plain_rows(pa.RecordBatch.from_struct_array(batch.column("row")))
            found.update((epoch, name, row) for epoch, row in zip(batch.column("epoch").to_pylist(), rows, strict=True))
    return found
