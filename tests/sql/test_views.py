"""Declared views, from SQL to plan: rows that nothing can route are refused, and the message shows where."""

from collections.abc import Mapping

import pyarrow as pa
import pytest

from simulator.shared_analyser import SharedAnalyser
from upriver.errors import ClusterError, NotReady, ProtocolError, UnsupportedSql
from upriver.plan.plan import TableSpec
from upriver.sql.views import Analysed, declare_view

FIELDS = [("k", pa.int64()), ("tags", pa.map_(pa.string(), pa.int64())), ("gap", pa.duration("s")), ("x", pa.int64())]
TABLES = {name: TableSpec(name, pa.schema(FIELDS), ("k",)) for name in ("t", "u")}
INNER = "SELECT k, x FROM t"

# The place is marked with a caret.
UNROUTABLE = [
    "SELECT k, n FROM (SELECT max(k) AS k, count(*) AS n FROM t\n^GROUP BY ROLLUP(tags))",
    "SELECT k FROM (SELECT 1 AS k, count(*) AS n FROM t GROUP BY ^gap)",
    "SELECT count(x) AS k FROM (^SELECT DISTINCT\n  gap, x FROM t) GROUP BY x",
    "^SELECT gap FROM t\nEXCEPT ALL\n SELECT gap FROM u",
    "SELECT k FROM (\n SELECT k, ^rank() OVER (PARTITION BY gap ORDER BY x) AS r FROM t) WHERE r < 3",
    "SELECT t.k FROM t\nJOIN u ON ^t.gap = u.gap",
    "^SELECT k FROM t\nWHERE gap IN (SELECT gap FROM u)",
]


@pytest.mark.parametrize("marked", UNROUTABLE)
def test_rows_that_nothing_can_route_are_refused_at_their_place(marked: str) -> None:
    place, sql = marked.index("^"), marked.replace("^", "")
    line, column = marked.count("\n", 0, place) + 1, place - marked.rfind("\n", 0, place)
    with pytest.raises(UnsupportedSql) as raised:
        declare_view("v", sql, "k", TABLES, {"w": INNER}, SharedAnalyser(TABLES))
    first, shown, caret = str(raised.value).splitlines()
    assert first.startswith("view 'v'")
    assert f"line {line}, column {column}: " in first
    assert (shown, len(caret)) == (sql.splitlines()[line - 1], column)


@pytest.mark.parametrize(
    "cause", [AssertionError("no column"), ValueError("A null type"), ProtocolError("DuckDB says")]
)
def test_a_fault_of_ours_names_the_view_and_has_its_sql(cause: Exception) -> None:
    class Faulty(SharedAnalyser):
        def analysed(self, name: str, sql: str, views: Mapping[str, str | None]) -> Analysed:
            raise cause

    with pytest.raises(ProtocolError, match=f"view 'v' cannot be declared, by a fault of Upriver.*{cause}") as raised:
        declare_view("v", INNER, "k", TABLES, {}, Faulty(TABLES))
    assert str(raised.value).endswith(f"\n{INNER}")


def test_an_error_of_the_cluster_stays_one() -> None:
    class Busy(SharedAnalyser):
        def analysed(self, name: str, sql: str, views: Mapping[str, str | None]) -> Analysed:
            raise NotReady("Spark is gone")

    with pytest.raises(ClusterError, match=r"^Spark is gone$"):
        declare_view("v", INNER, "k", TABLES, {}, Busy(TABLES))


def test_many_conditions_that_can_fail_take_no_time_that_grows_with_each() -> None:
    """Where each one brought the tests of all others down again, twelve took an hour."""
    names = [f"s{number}" for number in range(5)]
    sums = [f"(SELECT k, sum(x) AS n FROM t WHERE x > 0 GROUP BY k) AS {name}" for name in names]
    near = [f"{one}.n BETWEEN 2 * {two}.n AND 3 * {two}.n" for one in names for two in names if one != two]
    equal = [f"s0.k = {name}.k" for name in names[1:]]
    sql = f"SELECT s0.k FROM {', '.join(sums)} WHERE {' AND '.join([*equal, *near])}"
    shown = repr(declare_view("v", sql, "k", TABLES, {}, SharedAnalyser(TABLES)).regions)
    assert min(shown.count(" >= "), shown.count(" <= ")) >= len(near)
