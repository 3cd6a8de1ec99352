"""What reads or moves the wall clock of a TIMESTAMP gives what Spark gives, in sessions in any time zone."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_schema
from sql_kit import projection_of

from upriver.engine.expressions import Evaluator
from upriver.plan.plan import TableSpec
from upriver.spark.typer import SparkTyper
from upriver.sql.queries import compile_view

pytestmark = pytest.mark.spark

# Changes of 30 minutes, at midnight, of whole days, and as they mostly are.
ZONES = {
    "Europe/Berlin": ("2024-03-31T01:00", "2024-10-27T01:00"),
    "Australia/Lord_Howe": ("2021-04-03T15:00", "2021-10-02T15:30"),
    "America/Havana": ("2021-03-14T05:00", "2026-11-01T05:00"),
    "America/Toronto": ("1919-03-31T04:30", "2024-11-03T06:00"),
    "Pacific/Apia": ("2011-12-30T10:00", "2012-03-31T14:00"),
}
DAYS = (-366, -31, -30, -7, -1, 0, 1, 7, 30)
MINUTES = (-1441, -91, -61, -30, -1, 0, 29, 59, 61, 90, 1500)
UNITS = ("minute", "hour", "day", "week", "month", "quarter", "year")
INTERVALS = ("1 DAY", "7 DAYS", "'-36' HOUR", "'49' HOUR", "1 MONTH", "12 MONTHS", "1 YEAR", "1 HOUR")
EXPRESSIONS = [
    *(f"date_trunc('{unit}', t)" for unit in UNITS),
    *(f"t {sign} INTERVAL {interval}" for sign in "+-" for interval in INTERVALS),
    *("date_trunc('day', n)", "n - INTERVAL 1 MONTH", "CAST(n AS TIMESTAMP)", "CAST(CAST(t AS DATE) AS TIMESTAMP)"),
    *("months_between(t, u)", "months_between(n, u, FALSE)", "unix_timestamp(n)", "unix_timestamp(t)"),
    *("datediff(t, u)", "last_day(t)", "hour(t - INTERVAL 1 DAY)", "t + INTERVAL 1 DAY - INTERVAL 1 DAY"),
    *(
        "dateadd(MONTH, 1, t)",
        "dateadd(HOUR, 30, t)",
        "dateadd(MINUTE, -1501, t)",
        "dateadd(WEEK, -1, t)",
        "timestampadd(MONTH, -1, n)",
        "timestampadd(DAY, 3, n)",
    ),
    *("timestampdiff(MONTH, t, u)", "timestampdiff(HOUR, t, u)", "CAST(date_trunc('month', t) AS DATE)"),
]


def moments(zone: str) -> pa.RecordBatch:
    """Around the zone's changes: ``t`` and ``u`` in the zone, ``n`` without one."""
    changes = [datetime.fromisoformat(change).replace(tzinfo=UTC) for change in ZONES[zone]]
    found = [at + timedelta(days=d, minutes=m, seconds=m % 7) for at in changes for d in DAYS for m in MINUTES]
    instants = pa.array([*found, None], pa.timestamp("us", "UTC")).cast(pa.timestamp("us", zone))
    clocks = instants.cast(pa.timestamp("us", "UTC")).cast(pa.timestamp("us"))
    return pa.record_batch({"t": instants, "u": pa.concat_arrays([instants[40:], instants[:40]]), "n": clocks})


@pytest.mark.parametrize("zone", ZONES)
def test_clocks_are_sparks_in_any_zone(spark: Any, zone: str) -> None:
    session, rows, evaluator = spark.newSession(), moments(zone), Evaluator()
    session.conf.set("spark.sql.session.timeZone", zone)
    frame = session.createDataFrame(pa.table(rows), from_arrow_schema(rows.schema, prefer_timestamp_ntz=True))
    frame.coalesce(1).createOrReplaceTempView("t")
    listed = ", ".join(f"{expression} AS e{place}" for place, expression in enumerate(EXPRESSIONS))
    tables = {"t": TableSpec("t", rows.schema, ("n",))}
    theirs = session.sql(f"SELECT {listed} FROM t").toArrow()
    ours = evaluator.project(
        rows, projection_of(compile_view("v", f"SELECT {listed} FROM t", tables, {}, SparkTyper(session, tables)))
    )
    for place, expression in enumerate(EXPRESSIONS):
        wanted = theirs.column(place).combine_chunks().cast(ours.schema.types[place])
        assert ours.column(place).equals(wanted), expression
