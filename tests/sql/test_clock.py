"""The clock in SQL: its tests and its values, what is refused; and Spark's form of a query at an instant."""

import pyarrow as pa
import pytest

from simulator.shared_analyser import SharedAnalyser
from upriver.errors import UnsupportedSql
from upriver.plan.clock import ClockOp
from upriver.plan.plan import DataflowPlan, TableSpec
from upriver.sql.views import declare_view

SCHEMA = [("k", pa.int32()), ("at", pa.timestamp("us", "UTC")), ("d", pa.date32()), ("s", pa.string())]
TABLES = {"t": TableSpec("t", pa.schema(SCHEMA), ("k",)), "u": TableSpec("u", pa.schema(SCHEMA), ("k",))}


class InBerlin(SharedAnalyser):
    @property
    def timezone(self) -> str:
        return "Europe/Berlin"


def view(sql: str, key: str | tuple[str, ...], analyser: type[SharedAnalyser] = SharedAnalyser) -> DataflowPlan:
    return declare_view("v", sql, key, TABLES, {}, analyser(TABLES))


def clock_of(plan: DataflowPlan) -> ClockOp:
    """The only operator that has the clock."""
    (op,) = [node.op for region in plan.regions for node in region.nodes if isinstance(node.op, ClockOp)]
    return op


def declared(where: str, analyser: type[SharedAnalyser] = SharedAnalyser) -> DataflowPlan:
    return declare_view("v", f"SELECT k, at FROM t WHERE {where}", "k", TABLES, {}, analyser(TABLES))


REFUSED = {
    "rand() > 0.5": r"gives another answer each time",
    "date_trunc('MILLENNIUM', now()) < at": r"'MILLENNIUM'",
}


@pytest.mark.parametrize("where", REFUSED)
def test_what_a_view_does_not_take_is_refused_beside_the_clock(where: str) -> None:
    with pytest.raises(UnsupportedSql, match=REFUSED[where]):
        declared(where)


def test_the_clock_in_values_is_one_operator_for_each_row() -> None:
    assert view("SELECT a FROM VALUES (now()), (current_date()) AS v(a)", ()).is_clocked
    many = ", ".join(["(now())"] * 101)
    with pytest.raises(UnsupportedSql, match="VALUES of more than 100 rows with the clock"):
        view(f"SELECT a FROM VALUES {many} AS v(a)", ())


def test_the_ways_out_work() -> None:
    for where in (
        "d > current_date() - INTERVAL 1 MONTH",
        "at > now() - INTERVAL 30 DAYS",
        "d > current_date() - k",
        "at + INTERVAL 1 HOUR > now()",
        "CAST(s AS TIMESTAMP) > now()",
        "s > now() - INTERVAL 1 HOUR",
        "date_add(current_date(), -k) < d",
    ):
        assert clock_of(declared(where)).tests, where


VALUES = {
    "SELECT k, now() AS n FROM t": ["now() in each epoch"],
    "SELECT k, datediff(current_date(), d) AS age FROM t": ["current_date() once a day"],
    "SELECT k, unix_timestamp() + 1 AS n FROM t": ["unix_timestamp() every 1 s"],
    "SELECT k, year(now()) - 1 AS a, last_day(now()) AS b, trunc(now(), 'WEEK') AS c FROM t": [
        "year(now()) once a year",
        "last_day(now()) once a month or less often",
        "trunc(now(), 'WEEK') once a week",
    ],
    "SELECT k FROM t WHERE month(now()) = 3": ["to_date(now()) once a day"],
    "SELECT k FROM t WHERE at > now() - INTERVAL 1 MONTH": ["now() in each epoch"],
    "SELECT k FROM t WHERE now() > current_date()": ["current_date() once a day", "now() in each epoch"],
    "SELECT k FROM t WHERE datediff(current_date(), d) > k / 7.5": ["current_date() once a day"],
    "SELECT k, now() AS a, now() AS b FROM (SELECT *, now() AS c FROM t)": ["now() in each epoch"],
}


@pytest.mark.parametrize("sql", VALUES)
def test_what_is_no_test_of_the_clock_needs_the_largest_values_of_it(sql: str) -> None:
    clock = clock_of(view(sql, "k"))
    assert not clock.tests
    assert sorted(f"{column.sql} {column.pace}" for column in clock.columns) == sorted(VALUES[sql])


def test_a_test_stays_one_beside_values() -> None:
    plan = view("SELECT k, now() AS n, at < now() AS passed FROM t WHERE d = current_date()", "k")
    tests = [test.sql for node in plan.regions[-1].nodes if isinstance(node.op, ClockOp) for test in node.op.tests]
    assert sorted(tests) == ["current_date()", "now()"]


def test_a_value_far_away_is_computed_as_any_other_date() -> None:
    assert [column.sql for column in clock_of(view("SELECT k, current_date() + 200000 AS x FROM t", "k")).columns] == [
        "current_date()"
    ]


def test_outside_of_utc_dates_work_and_wall_clocks_are_computed_from_now() -> None:
    for where in ("d >= current_date() - 7", "at > now() - INTERVAL 1 HOUR", "at >= current_date"):
        assert declared(where, InBerlin).is_clocked
    for where in ("at > now() - INTERVAL 7 DAYS", "at > localtimestamp()"):
        assert not clock_of(declared(where, InBerlin)).tests


def test_a_column_takes_precedence_over_a_word() -> None:
    table = TableSpec("t", pa.schema([("k", pa.int32()), ("current_date", pa.date32())]), ("k",))
    sql = "SELECT k FROM t WHERE current_date > DATE '2024-01-01'"
    assert not declare_view("v", sql, "k", {"t": table}, {}, SharedAnalyser({"t": table})).is_clocked
