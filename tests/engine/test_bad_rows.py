"""Bad rows of tables that set them aside: the view is that of the others, and each is told once, wherever it is met."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random
from types import MappingProxyType

import pyarrow as pa
import pytest
from dataflow_kit import STOCK, TABLES
from dataflow_lake import Lake
from duckdb_kit import by_duckdb
from hypothesis import given, settings
from hypothesis import strategies as st
from soak import examples
from state_kit import MANY, Row, plain_rows

from simulator.dataflow_world import DataflowWorld
from simulator.shared_analyser import SharedAnalyser
from upriver.engine.expressions import Evaluator
from upriver.ids import Epoch
from upriver.lake.lake import Lake as Files
from upriver.lake.rejected import Rejected
from upriver.sql.views import declare_view

EVALUATOR = Evaluator()
ANALYSER = SharedAnalyser(TABLES)
FEWER = settings(MANY, max_examples=examples(10))
ODD = '"held" = 4'
"""Versions that may or may not be deletions."""
SPOILED: Mapping[str, str] = MappingProxyType({"sales": '"amount" = 3', "stock": '"held" = 2'})
"""By table, which rows make an expression fail."""
TABLES_ = {**TABLES, "stock": replace(STOCK, deletes=f"CASE WHEN {ODD} THEN error('odd') ELSE \"gone\" END")}
FAILING = {"amount": "(amount + 0 DIV (amount - 3))", "held": "(held + 0 DIV (held - 2))"}
"""A value, unless the row is bad."""

# ruff: noqa: E501  queries are easier to read on one line
# The view, its key, the tables of which it cannot take all rows, its regions; and the SQL, over good rows DuckDB's, too.
CASES = """
rows | shop | sales | 1 | SELECT shop, seq, {amount} AS x FROM sales
a filter | item | sales | 1 | SELECT item, x FROM (SELECT item, {amount} AS x FROM sales) s WHERE x > 0
groups | shop | sales | 1 | SELECT shop, sum({amount}) AS x FROM sales GROUP BY shop
a computed key | x | sales | 2 | SELECT x, count(*) AS n FROM (SELECT {amount} AS x FROM sales) s GROUP BY x
two branches, one of which fails | x | sales | 2 | SELECT x, count(*) AS n FROM (SELECT seq AS x FROM sales UNION ALL SELECT {amount} FROM sales) s GROUP BY x
a table joined with itself, by another key on each side | item | sales | 2 | SELECT s.shop, i.item, x, n FROM (SELECT shop, {amount} AS x FROM sales) s LEFT JOIN (SELECT item, shop, count(*) AS n FROM sales GROUP BY item, shop) i ON s.shop = i.shop
rows in a region, groups in another | shop | sales | 3 | SELECT s.shop, s.seq, n FROM (SELECT x, count(*) AS n FROM (SELECT {amount} AS x FROM sales) a GROUP BY x) g JOIN sales s ON g.x = s.seq
the latest | shop | stock | 1 | SELECT shop, seq, {held} AS x FROM stock
the latest by another key | x | stock | 2 | SELECT x, count(*) AS n FROM (SELECT {held} AS x FROM stock) s GROUP BY x
the latest, twice, where they are sent | held | stock | 2 | SELECT s.held, s.seq, y, n FROM (SELECT held, seq, {held} - held + seq + 1 AS y FROM stock) s JOIN (SELECT held, count(*) AS n FROM stock GROUP BY held) h ON s.held = h.held
rows of two tables | shop | sales stock | 1 | SELECT shop, seq, {amount} AS x FROM sales UNION ALL SELECT shop, seq, {held} FROM stock
"""


def cases() -> list[list[str]]:
    return [line.split(" | ") for line in CASES.strip().splitlines()]


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


@pytest.mark.parametrize(
    ("key", "spoiled", "regions", "sql"), [case[1:] for case in cases()], ids=[c[0] for c in cases()]
)
@FEWER
@given(data=st.data())
def test_a_view_is_that_of_the_good_rows_and_each_bad_one_is_told_once(
    key: str, spoiled: str, regions: str, sql: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    plan = declare_view("v", sql.format_map(FAILING), key, TABLES_, {}, ANALYSER)
    assert len(plan.regions) == int(regions)
    rng = Random(data.draw(st.integers(0, 2**32)))
    world = DataflowWorld(plan, TABLES_, EVALUATOR, rng, sets_aside=("sales", "stock"))
    lake, good, files = Lake(data, rng), Good(spoiled.split()), Files(str(tmp_path_factory.mktemp("lake")))
    for epoch in range(1, data.draw(st.integers(1, 3)) + 1):
        came = lake.next_rows(12)
        world.run_epoch(came)
        for aside in world.set_aside:
            assert aside.view == "v"
            Rejected(files, TABLES_[aside.table]).add(Epoch(epoch), "v", aside.rows, aside.errors)
        wanted = by_duckdb(sql.format_map({name: name for name in FAILING}), **good.tables(lake.rows, came, epoch))
        answer = world.scan()
        assert Counter(plain_rows(answer)) == Counter(plain_rows(wanted.rename_columns(answer.schema.names)))
    assert _read(files) == good.told


def _read(files: Files) -> Counter[tuple[int, str, Row]]:
    found: Counter[tuple[int, str, Row]] = Counter()
    for name, table in TABLES_.items():
        for batch in Rejected(files, table).read():
            errors = set(batch.column("error").to_pylist())
            assert all(re.fullmatch("(column .+|a condition): (Division by zero|odd).*", error) for error in errors)
            rows = plain_rows(pa.RecordBatch.from_struct_array(batch.column("row")))
            found.update((epoch, name, row) for epoch, row in zip(batch.column("epoch").to_pylist(), rows, strict=True))
    return found
