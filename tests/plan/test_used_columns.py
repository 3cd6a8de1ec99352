"""A plan's used columns: those that its state depends on, and no other of its tables."""

import pyarrow as pa
import pytest

from simulator.shared_analyser import SharedAnalyser
from upriver.plan.plan import DataflowPlan, TableSpec
from upriver.plan.used_columns import with_used_columns
from upriver.sql.views import declare_view

COLUMNS = {"k": pa.int32(), "n": pa.int32(), "m": pa.int32(), "t": pa.string()}
QUERIES = [
    "SELECT k, n FROM r",
    "SELECT k, sum(n) AS s FROM r WHERE n > 3 GROUP BY k",
    "SELECT k, count(*) AS s FROM r WHERE n IS NOT NULL GROUP BY k",
    "SELECT r.k, r.n, s.n AS other FROM r JOIN s ON r.k = s.k WHERE s.n > r.n",
    "SELECT k, n FROM r UNION ALL SELECT k, n FROM s WHERE n > 1",
    "SELECT k, n FROM (SELECT k, n, row_number() OVER (PARTITION BY k ORDER BY n) AS p FROM r) WHERE p < 3",
    "SELECT k, n FROM u WHERE n < 5",
    "SELECT n AS k, count(DISTINCT k) AS c FROM u GROUP BY n",
]


def plan(sql: str, **changed: pa.DataType) -> DataflowPlan:
    """The view over tables with other types of some columns, or more columns."""
    schema = pa.schema(list((COLUMNS | changed).items()))
    tables = {name: TableSpec(name, schema, ("k",)) for name in ("r", "s")}
    tables["u"] = TableSpec("u", schema, ("k",), order_by=("n",), primary_key=("k",))
    return declare_view("v", sql, "k", tables, {}, SharedAnalyser(tables))


@pytest.mark.parametrize("sql", QUERIES)
def test_columns_that_a_view_does_not_use_make_no_difference(sql: str) -> None:
    before = with_used_columns(plan(sql))
    assert plan(sql, m=pa.int64(), more=pa.string()) != plan(sql)
    assert with_used_columns(plan(sql, m=pa.int64(), more=pa.string())) == before


@pytest.mark.parametrize("sql", QUERIES)
def test_a_type_of_a_column_that_a_view_uses_does(sql: str) -> None:
    assert with_used_columns(plan(sql, n=pa.int64())) != with_used_columns(plan(sql))


def test_a_view_of_all_columns_depends_on_each() -> None:
    sql = "SELECT * FROM r"
    assert with_used_columns(plan(sql)) == plan(sql)
    assert with_used_columns(plan(sql, more=pa.string())) != plan(sql)
