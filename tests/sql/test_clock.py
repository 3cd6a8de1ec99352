"""The clock in SQL: what is refused, and what to write instead; and Spark's form of a query at an instant."""

import pyarrow as pa
import pytest

from simulator.local_typer import LocalTyper
from upriver.errors import UnsupportedSql
from upriver.plan.plan import DataflowPlan, TableSpec
from upriver.sql.clock import with_instant
from upriver.sql.queries import declare_view

SCHEMA = [("k", pa.int32()), ("at", pa.timestamp("us", "UTC")), ("d", pa.date32()), ("s", pa.string())]
TABLES = {"t": TableSpec("t", pa.schema(SCHEMA), ("k",)), "u": TableSpec("u", pa.schema(SCHEMA), ("k",))}


class InBerlin(LocalTyper):
    @property
    def timezone(self) -> str:
        return "Europe/Berlin"


def declared(where: str, typer: type[LocalTyper] = LocalTyper) -> DataflowPlan:
    return declare_view("v", f"SELECT k, at FROM t WHERE {where}", "k", TABLES, {}, typer(TABLES))


REFUSED = {
    "at > now() - INTERVAL 1 MONTH": r"current_date\(\) - INTERVAL 1 MONTH",
    "month(now()) = 3": r"depends on the clock.* at > now\(\) - INTERVAL 1 HOUR",
    "k + year(current_date()) * k > 3": r"mixes the clock and the row",
    "now() > current_date()": r"outside of a comparison",
    "s > now() - INTERVAL 1 HOUR": r"comparing STRING with TIMESTAMP of the clock.* CAST",
    "coalesce(at, now()) > TIMESTAMP '2024-01-01 00:00:00'": r"mixes the clock and the row",
    "rand() > 0.5": r"gives another answer each time",
    "date_trunc('MILLENNIUM', now()) < at": r"the unit 'MILLENNIUM'",
}


@pytest.mark.parametrize("where", REFUSED)
def test_what_does_not_stand_in_a_comparison_is_refused_with_a_way_out(where: str) -> None:
    with pytest.raises(UnsupportedSql, match=REFUSED[where]):
        declared(where)


def test_a_projection_of_the_clock_is_refused_with_a_way_out() -> None:
    with pytest.raises(UnsupportedSql, match=r"now\(\), which changes with each epoch.*current_timestamp\(\)"):
        declare_view("v", "SELECT k, now() AS n FROM t", "k", TABLES, {}, LocalTyper(TABLES))


def test_the_ways_out_work() -> None:
    for where in (
        "d > current_date() - INTERVAL 1 MONTH",
        "at > now() - INTERVAL 30 DAYS",
        "d > current_date() - k",
        "at + INTERVAL 1 HOUR > now()",
        "CAST(s AS TIMESTAMP) > now()",
    ):
        assert declared(where).is_clocked


def test_outside_of_utc_dates_work_and_wall_clocks_are_refused() -> None:
    for where in ("d >= current_date() - 7", "at > now() - INTERVAL 1 HOUR", "at >= current_date"):
        assert declared(where, InBerlin).is_clocked
    for where in ("at > now() - INTERVAL 7 DAYS", "at > localtimestamp()"):
        with pytest.raises(UnsupportedSql, match=r"time zone \(Europe/Berlin\)"):
            declared(where, InBerlin)


def test_a_column_takes_precedence_over_a_word() -> None:
    table = TableSpec("t", pa.schema([("k", pa.int32()), ("current_date", pa.date32())]), ("k",))
    sql = "SELECT k FROM t WHERE current_date > DATE '2024-01-01'"
    assert not declare_view("v", sql, "k", {"t": table}, {}, LocalTyper({"t": table})).is_clocked


def test_an_instant_stands_for_the_clock() -> None:
    sql = "SELECT 'now()' FROM t WHERE at > now() AND d = CURRENT_DATE AND unix_timestamp() < unix_timestamp(at)"
    at = "timestamp_micros(1500000L)"
    wanted = f"SELECT 'now()' FROM t WHERE at > {at} AND d = CAST({at} AS DATE) AND 1L < unix_timestamp(at)"
    assert with_instant(sql, 1_500_000, []) == wanted
    assert with_instant("SELECT current_date FROM t", 0, ["current_date"]) == "SELECT current_date FROM t"
