"""What Spark is asked of a query, and what it is never given: its session, its time zone, its names and its words."""

from typing import Any

import pyarrow as pa
import pytest
from sql_kit import projection_of, spec

from upriver.engine.expressions import Evaluator
from upriver.errors import DeclarationError, UnsupportedSql
from upriver.spark.analyser import SparkAnalyser
from upriver.sql.views import CompiledView, compile_view

pytestmark = pytest.mark.spark

FLIGHTS = spec("flights", pa.schema([("Plane", pa.string()), ("at", pa.timestamp("us", "UTC"))]))
ROW = pa.RecordBatch.from_pylist([{}], FLIGHTS.schema)
TABLES = {
    "sales": spec("sales", pa.schema([("k", pa.string())])),
    "people": spec("people", pa.schema([("k", pa.string()), ("name", pa.string())])),
}


def compiled(sql: str, analyser: SparkAnalyser) -> CompiledView:
    """A view of the table flights."""
    return compile_view("v", sql, {"flights": FLIGHTS}, {}, analyser)


def test_the_users_session_stays_as_it_is(spark: Any) -> None:
    private = spec("upriver_private", FLIGHTS.schema)
    tables = {"upriver_private": private}
    analyser = SparkAnalyser(spark, tables)
    assert analyser.analysed("v", "SELECT count(*) AS n FROM upriver_private", {}).schema.names == ["n"]
    assert not spark.catalog.tableExists("upriver_private")
    tables["later"] = spec("later", pa.schema([("a", pa.int8())]))
    assert analyser.analysed("v", "SELECT a FROM later", {}).schema.types == [pa.int8()]


@pytest.mark.smoke
@pytest.mark.parametrize(
    "sql",
    [
        "SELECT plane, max(at) < now() AS past FROM flights GROUP BY plane HAVING min(at) < now()",
        "SELECT plane || 'x' AS p, count(*) AS n FROM flights GROUP BY CUBE(plane || 'x', date(at))",
        "SELECT plane, session_window.start AS s FROM flights GROUP BY plane, session_window(at, '5 minutes')",
        "SELECT get(array_agg(plane), 0) AS first FROM flights GROUP BY date(at)",
        "SELECT plane, at + INTERVAL 1 SECOND AS later FROM flights WHERE at > now() - INTERVAL 1 HOUR",
    ],
)
def test_a_view_is_the_same_however_spark_numbers_its_columns(spark: Any, sql: str) -> None:
    """So a restarted app finds what it has kept."""
    first = compiled(sql, SparkAnalyser(spark, {"flights": FLIGHTS}))
    assert compiled(sql, SparkAnalyser(spark, {"flights": FLIGHTS})).relation == first.relation
    assert "#" not in repr(first.relation)


COMMANDS = [
    "DROP VIEW flights",
    "CREATE TABLE made AS SELECT 1 AS a",
    "SET x.y = 1",
    "WITH a AS (SELECT 1) INSERT INTO made SELECT 2",
    "FROM flights INSERT INTO made SELECT plane",
]


@pytest.mark.parametrize("sql", COMMANDS)
def test_spark_is_never_given_a_command(spark: Any, sql: str) -> None:
    with pytest.raises(UnsupportedSql, match="a statement that is no query"):
        compiled(sql, SparkAnalyser(spark, {"flights": FLIGHTS}))
    assert not spark.catalog.tableExists("made")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("spark.sql.ansi.enabled", "false"),
        ("spark.sql.caseSensitive", "true"),
        ("spark.sql.timestampType", "TIMESTAMP_NTZ"),
    ],
)
def test_a_session_that_means_something_else_is_refused(spark: Any, name: str, value: str) -> None:
    session = spark.newSession()
    session.conf.set(name, value)
    with pytest.raises(DeclarationError, match=name):
        SparkAnalyser(session, {}).analysed("v", "SELECT 1 AS one", {})


def test_the_analyser_knows_the_sessions_time_zone(spark: Any) -> None:
    session = spark.newSession()
    session.conf.set("spark.sql.session.timeZone", "Europe/Paris")
    analyser = SparkAnalyser(session, {"flights": FLIGHTS})
    assert analyser.timezone == "Europe/Paris"
    zone = pa.timestamp("us", tz="Europe/Paris")
    view = compiled("SELECT plane, max(at) AS last FROM flights GROUP BY plane", analyser)
    assert view.schema.field("last").type == zone
    with pytest.raises(UnsupportedSql, match="Europe/Paris"):
        compiled("SELECT plane, sequence(at, at, INTERVAL 1 DAY) AS h FROM flights", analyser)


def test_a_timestamp_in_quotes_is_sparks_instant_in_any_zone(spark: Any) -> None:
    session = spark.newSession()
    session.conf.set("spark.sql.session.timeZone", "America/New_York")
    analyser = SparkAnalyser(session, {"flights": FLIGHTS})
    # Winter, summer, an hour that is skipped, one that comes twice, and one long before daylight saving.
    for text in (
        "2024-01-15 12:00:00",
        "2024-07-15 12:00:00",
        "2024-03-10 02:30:00",
        "2024-11-03 01:30:00",
        "1900-01-01 00:00:00",
    ):
        view = compiled(f"SELECT plane, coalesce(NULL, TIMESTAMP '{text}') AS t FROM flights", analyser)
        (ours,) = Evaluator().project(ROW, projection_of(view)).column("t")
        (theirs,) = session.sql(f"SELECT unix_micros(TIMESTAMP '{text}') AS t").collect()
        assert ours.cast(pa.int64()).as_py() == theirs.t


def test_spark_names_and_types_a_view_of_views(spark: Any) -> None:
    views = {"counts": "SELECT k, count(*) FROM sales GROUP BY k;"}
    views["most"] = "WITH c AS (SELECT * FROM counts) SELECT * FROM c"
    sql = "SELECT m.*, upper(q.name) FROM most m JOIN people q ON m.k = q.k -- all of it"
    view = compile_view("v", sql, TABLES, views, SparkAnalyser(spark, TABLES))
    assert view.schema.names == ["k", "count(1)", "upper(name)"]


def test_spark_tells_a_mistake_in_a_view_of_views_at_its_place(spark: Any) -> None:
    views = {"counts": "SELECT k\nFROM sales"}
    with pytest.raises(DeclarationError, match=r"`nothing`.*line 2 pos 1"):
        compile_view("v", "SELECT k,\n nothing FROM counts", TABLES, views, SparkAnalyser(spark, TABLES))
