"""Whole views against real Spark: its names, its types, its words, and its answers."""

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_schema
from sql_kit import projection_of, same_value, spec

from simulator.dataflow_world import DataflowWorld
from upriver.engine.expressions import Evaluator
from upriver.errors import DeclarationError, UnsupportedSql
from upriver.plan.plan import DataflowPlan
from upriver.plan.planning import plan_regions
from upriver.spark.typer import SparkTyper
from upriver.sql.queries import CompiledView, compile_view

pytestmark = pytest.mark.spark

SCHEMA = pa.schema(
    [
        ("Plane", pa.string()),
        ("carrier", pa.string()),
        ("day", pa.date32()),
        ("distance", pa.int32()),
        ("delay", pa.float64()),
        ("fare", pa.decimal128(9, 2)),
        ("at", pa.timestamp("us", tz="UTC")),
        ("local", pa.timestamp("us")),
    ]
)
FLIGHTS = spec("flights", SCHEMA)
# Key, and SQL over a table named f.
VIEWS = """
plane         | SELECT * FROM f
plane         | SELECT plane, count(*), sum(distance), avg(delay), min(day), max(carrier) FROM f GROUP BY plane
plane carrier | SELECT plane, carrier, count(delay) AS n, sum(fare) / 2D AS half FROM f GROUP BY 2, plane
day           | SELECT day, sum(distance) / count(*) AS mean, max(delay) - min(delay) AS spread FROM f GROUP BY day
p             | SELECT Plane AS p, year(day) y, hour(at) h, avg(fare) FROM f WHERE distance > 50 GROUP BY p, y, hour(at)
plane         | SELECT plane, sum(distance) s FROM f GROUP BY plane HAVING s > 500 AND count(*) > 2 OR plane IS NULL
plane         | SELECT plane, upper(carrier), distance * 2, delay FROM f WHERE delay > 0 AND 100 / distance > 1
delay         | SELECT delay, count(*) AS n FROM f GROUP BY delay
carrier       | SELECT carrier, min(at), max(local), sum(1) AS ones, count(1) AS n FROM f GROUP BY carrier
plane         | SELECT plane, carrier FROM f GROUP BY plane, carrier
plane         | SELECT plane, sum(CASE WHEN delay > 0 THEN 1 ELSE 0 END) AS late FROM f GROUP BY plane
carrier       | SELECT date_trunc('hour', at) AS hour, carrier, count(*) AS n FROM f GROUP BY 1, 2
plane         | SELECT plane FROM f WHERE day BETWEEN '2024-01-03' AND '2024-01-20' AND at < '2024-01-09 06:00:00'
carrier       | SELECT carrier, avg(distance), avg(fare + 1), sum(fare), sum(delay * distance) FROM f GROUP BY carrier
fare          | SELECT fare, count(plane) AS n, min(lower(plane)) FROM f GROUP BY fare HAVING n BETWEEN 1 AND 99
plane         | SELECT plane, max(day) > min(day), count(*) % 2 AS odd, -sum(distance) AS m FROM f GROUP BY plane
"""


def flights(count: int = 400) -> pa.RecordBatch:
    draw = np.random.default_rng(11)
    start = datetime(2024, 1, 1)

    def some(values: list[Any]) -> list[Any]:
        return [values[place] for place in draw.integers(0, len(values), count)]

    hours = [start + timedelta(hours=int(hour)) for hour in draw.integers(0, 600, count)]
    columns = [
        some(["N1", "N2", "n2", "N3 ", "", None, "Ñ4"]),
        some(["UA", "aa", None, "ß"]),
        [None if hour.hour == 3 else date(hour.year, hour.month, hour.day) for hour in hours],
        some([10, 100, 250, None, 60]),
        some([0.0, -0.0, 1.5, -2.25, float("nan"), None]),
        some([Decimal("12.34"), Decimal("-0.01"), None, Decimal("999.99")]),
        [hour.replace(tzinfo=UTC) for hour in hours],
        hours,
    ]
    arrays = [pa.array(values, field.type) for values, field in zip(columns, SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def compiled(sql: str, typer: SparkTyper) -> CompiledView:
    """A view of the table flights."""
    return compile_view("v", sql, {"flights": FLIGHTS}, {}, typer)


def answer(sql: str, key: list[str], rows: pa.RecordBatch, typer: SparkTyper) -> pa.Table:
    """What workers give, in two epochs of the table f."""
    tables = {"f": spec("f", SCHEMA)}
    view = compile_view("v", sql, tables, {}, typer)
    regions = plan_regions("v", view.relation, key, tables)
    world = DataflowWorld(DataflowPlan("v", sql, tuple(key), view.schema, regions), tables, Evaluator(), Random(1))
    for part in (rows.slice(0, 150), rows.slice(150)):
        world.run_epoch({"f": part})
    return world.scan()


def ordered(table: pa.Table) -> list[list[Any]]:
    rows = [list(row.values()) for row in table.to_pylist()]
    return sorted(rows, key=lambda row: [f"{0.0 if value == 0 else value}" for value in row])


@pytest.mark.parametrize("view", VIEWS.strip().splitlines())
def test_a_view_equals_spark(spark: Any, view: str) -> None:
    key, sql = (part.strip() for part in view.split("|", 1))
    rows, typer = flights(), SparkTyper(spark, {"f": spec("f", SCHEMA)})
    schema = from_arrow_schema(SCHEMA, prefer_timestamp_ntz=True)
    spark.createDataFrame(pa.Table.from_batches([rows]), schema).createOrReplaceTempView("f")
    expected, found = spark.sql(sql).toArrow(), answer(sql, key.split(), rows, typer)
    assert found.schema.names == expected.schema.names
    assert found.schema.types == expected.schema.types
    assert found.num_rows == expected.num_rows
    for mine, theirs in zip(ordered(found), ordered(expected), strict=True):
        assert all(map(nearly_same, mine, theirs)), (mine, theirs)


def nearly_same(left: Any, right: Any) -> bool:
    """Sums of doubles depend on their order."""
    if isinstance(left, float) and isinstance(right, float) and left == left and right == right:
        return abs(left - right) <= 1e-9 * max(1.0, abs(right))
    return same_value(left, right)


def test_spark_names_what_has_no_alias(spark: Any) -> None:
    typer = SparkTyper(spark, {"flights": FLIGHTS})
    sql = "SELECT PLANE, count(*), sum(distance) / count(1), max(`day`) FROM flights GROUP BY plane"
    view = compiled(sql, typer)
    assert view.schema.names == ["PLANE", "count(1)", "(sum(distance) / count(1))", "max(day)"]
    assert view.relation.schema == view.schema


FAULTS = [
    ("SELECT plane, distanc FROM flights", r"\[UNRESOLVED_COLUMN.*`distanc`.*line 1 pos 14$"),
    ("SELECT plane,\n day + missing AS m FROM flights", r"`missing`.*line 2 pos 7$"),
    ("SELECT plane, nosuch(day) AS x FROM flights", r"\[UNRESOLVED_ROUTINE\].*`nosuch`"),
    ("SELECT plane, day + 'x' AS x FROM flights", r"DATATYPE_MISMATCH"),
    ("SELECT plane, carrier FROM flights GROUP BY plane", r"\[MISSING_AGGREGATION\].*"),
    ("SELECT plane FROM flights WHERE distance", r"FILTER_NOT_BOOLEAN"),
    ("SELECT plane plane plane FROM flights", r"PARSE_SYNTAX_ERROR.*line 1, pos 19\)$"),
]


@pytest.mark.parametrize(("sql", "words"), FAULTS)
def test_a_mistake_is_told_in_sparks_words(spark: Any, sql: str, words: str) -> None:
    with pytest.raises(DeclarationError, match=words) as raised:
        compiled(sql, SparkTyper(spark, {"flights": FLIGHTS}))
    message = str(raised.value)
    assert message.startswith("view 'v': [")
    assert "Project" not in message
    assert len(message.splitlines()) < 10


def test_the_users_session_stays_as_it_is(spark: Any) -> None:
    private = spec("upriver_private", SCHEMA)
    tables = {"upriver_private": private}
    typer = SparkTyper(spark, tables)
    assert typer.schema_of("SELECT count(*) AS n FROM upriver_private").names == ["n"]
    assert not spark.catalog.tableExists("upriver_private")
    tables["later"] = spec("later", pa.schema([("a", pa.int8())]))
    assert typer.schema_of("SELECT a FROM later").types == [pa.int8()]


COMMANDS = [
    "DROP VIEW flights",
    "CREATE TABLE made AS SELECT 1 AS a",
    "SET x.y = 1",
    "WITH a AS (SELECT 1) INSERT INTO made SELECT 2",
    "FROM flights INSERT INTO made SELECT plane",
]


@pytest.mark.parametrize("sql", COMMANDS)
def test_spark_is_never_given_a_command(spark: Any, sql: str) -> None:
    with pytest.raises(UnsupportedSql, match=r"does not begin with SELECT|INSERTS? is not supported"):
        compiled(sql, SparkTyper(spark, {"flights": FLIGHTS}))
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
        SparkTyper(session, {}).schema_of("SELECT 1 AS one")


def test_the_typer_knows_the_sessions_time_zone(spark: Any) -> None:
    session = spark.newSession()
    session.conf.set("spark.sql.session.timeZone", "Europe/Paris")
    typer = SparkTyper(session, {"flights": FLIGHTS})
    assert typer.timezone == "Europe/Paris"
    zone = pa.timestamp("us", tz="Europe/Paris")
    view = compiled("SELECT plane, max(at) AS last FROM flights GROUP BY plane", typer)
    assert view.schema.field("last").type == zone
    with pytest.raises(UnsupportedSql, match="Europe/Paris"):
        compiled("SELECT plane, sequence(at, at, INTERVAL 1 DAY) AS h FROM flights", typer)


def test_a_timestamp_in_quotes_is_sparks_instant_in_any_zone(spark: Any) -> None:
    session = spark.newSession()
    session.conf.set("spark.sql.session.timeZone", "America/New_York")
    typer = SparkTyper(session, {"flights": FLIGHTS})
    # Winter, summer, an hour that is skipped, one that comes twice, and one long before daylight saving.
    for text in (
        "2024-01-15 12:00:00",
        "2024-07-15 12:00:00",
        "2024-03-10 02:30:00",
        "2024-11-03 01:30:00",
        "1900-01-01 00:00:00",
    ):
        view = compiled(f"SELECT plane, coalesce(NULL, TIMESTAMP '{text}') AS t FROM flights", typer)
        (ours,) = Evaluator().project(flights(1), projection_of(view)).column("t")
        (theirs,) = session.sql(f"SELECT unix_micros(TIMESTAMP '{text}') AS t").collect()
        assert ours.cast(pa.int64()).as_py() == theirs.t
