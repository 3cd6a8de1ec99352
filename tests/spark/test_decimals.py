"""Decimals of any length give what Spark gives, with ANSI mode and without: types, rounding, overflow."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from decimal_kit import ROWS, expressions, table
from pyspark.errors import PySparkException
from query_kit import same_rows
from rows_kit import rows_of
from sql_kit import by_spark, differences, evaluated, projection_of, spec

from simulator.dataflow_world import DataflowWorld
from simulator.local_typer import LocalTyper
from upriver.engine.expressions import Evaluator
from upriver.errors import RowError
from upriver.plan.plan import Projection, TableSpec
from upriver.spark.session import unlogged
from upriver.spark.typer import SparkTyper
from upriver.sql.queries import compile_view, declare_view
from upriver.sql.tries import or_null

pytestmark = pytest.mark.spark

OTHERWISE = re.compile(r"b?round\(|abs\(|-\(|.* AS (INT|BIGINT)\)")
"""What fails without ANSI mode, too, or gives another number."""
RAISING = 4
"""Expressions that fail on some row; the test asks Spark about that row."""


@contextmanager
def without_ansi(spark: Any) -> Iterator[None]:
    spark.conf.set("spark.sql.ansi.enabled", "false")
    try:
        yield
    finally:
        spark.conf.set("spark.sql.ansi.enabled", "true")


def tolerant(spark: Any, rows: pa.RecordBatch, texts: list[str]) -> pa.RecordBatch:
    """The expressions over the rows, NULL where they fail; their types are those that Spark gives them."""
    t = spec("t", rows.schema)
    listed = ", ".join(f"{text} AS e{number}" for number, text in enumerate(texts))
    view = compile_view("v", f"SELECT r, {listed} FROM t", {"t": t}, {}, SparkTyper(spark, {"t": t}))
    made = projection_of(view)
    return Evaluator().project(rows, Projection(tuple(map(or_null, made.expressions)), made.schema))


def test_decimals_equal_spark(spark: Any) -> None:
    draw = Random(11)
    rows, texts = table(draw), list(expressions())
    ours = tolerant(spark, rows, texts)
    nulls = [[row for row in range(ROWS) if ours.column(f"e{at}")[row].as_py() is None] for at in range(len(texts))]
    guarded = [guard(text, missing) for text, missing in zip(texts, nulls, strict=True)]
    assert differences(ours, by_spark(spark, rows, guarded), texts, rows) == []
    with without_ansi(spark):  # where a text has an exponent, and INT is cut off
        asked_for = [one if OTHERWISE.match(text) else text for text, one in zip(texts, guarded, strict=True)]
        wrong = differences(ours, by_spark(spark, rows, asked_for), texts, rows)
        assert [one for one in wrong if not one[0].endswith(("AS STRING)", "AS INT)"))] == []
    silent, asked = [], 0
    missing = [(text, row) for text, gone in zip(texts, nulls, strict=True) for row in gone]
    for text, row in draw.sample(missing, len(missing)):
        if asked < RAISING and fails(rows.slice(row, 1), text):
            asked += 1
            try:
                with unlogged():
                    by_spark(spark, rows.slice(row, 1), [text])
                silent.append((text, rows.slice(row, 1).to_pylist()))
            except PySparkException:
                continue
    assert (silent, asked) == ([], RAISING)


def guard(text: str, rows: list[int]) -> str:
    """The expression, for other rows than these."""
    return f"CASE WHEN r IN ({', '.join(map(str, rows))}) THEN NULL ELSE {text} END" if rows else text


def fails(row: pa.RecordBatch, text: str) -> bool:
    """Whether we find no value."""
    try:
        evaluated(row, [text], LocalTyper({"t": spec("t", row.schema)}))
    except RowError:
        return True
    return False


SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("flag", pa.string()),
        ("price", pa.decimal128(15, 2)),
        ("discount", pa.decimal128(15, 2)),
        ("tax", pa.decimal128(15, 2)),
        ("large", pa.decimal128(38, 10)),
        ("fine", pa.decimal128(38, 37)),
        ("n", pa.int64()),
        ("gone", pa.bool_()),
    ]
)
TABLE = TableSpec("t", SCHEMA, ("id",), ("n",), ("id",), '"gone"')
EPOCHS, IDS = 3, 40
QUERIES = [
    """SELECT flag, sum(price) AS a, sum(price * (1 - discount)) AS b, sum(price * (1 - discount) * (1 + tax)) AS c,
    avg(price) AS d, avg(discount) AS e, count(*) AS f FROM t WHERE tax <= 0.07 GROUP BY flag""",
    """SELECT flag, sum(CASE WHEN discount > 0.03 THEN price ELSE 0 END) / sum(price) AS share, 100.00 * sum(CASE WHEN
    flag LIKE 'a%' THEN price * (1 - discount) ELSE 0 END) / sum(price * (1 - discount)) AS part, avg(large) AS wide,
    avg(CAST(fine AS DECIMAL(38,33))) AS finer, sum(fine) AS c, max(large) AS d, min(fine * price) AS e,
    avg(price * large) AS f FROM t GROUP BY flag""",
    """SELECT flag, sum(price * discount) AS value FROM t GROUP BY flag
    HAVING sum(price * discount) > (SELECT sum(price * discount) * 0.0001000000 FROM t)""",
    """SELECT id, flag, price * 100 / sum(price) OVER (PARTITION BY flag) AS ratio, avg(large) OVER (PARTITION BY flag
    ORDER BY id ROWS 3 PRECEDING) AS mean, sum(fine) OVER (PARTITION BY flag ORDER BY id ROWS 2 PRECEDING) AS total,
    abs(price - avg(price) OVER (PARTITION BY flag)) / avg(price) OVER (PARTITION BY flag) AS away FROM t""",
    """SELECT flag, x, count(*) AS c FROM (SELECT flag, large AS x FROM t UNION ALL SELECT flag, fine FROM t UNION ALL
    SELECT flag, price / nullif(tax, 0) FROM t) GROUP BY flag, x""",
    """SELECT o.id, i.flag, o.fine = i.large AS same FROM t o JOIN t i ON o.fine = i.large OR o.id = i.id + 1""",
    """SELECT sum(price * large) / sum(price) AS mean, avg(price) AS a, avg(large) AS b FROM t""",
]


def versions(rng: Random) -> list[pa.RecordBatch]:
    """By epoch: new rows, and from the second on other versions of old ones, some of which delete."""
    choices: dict[str, list[Any]] = {
        "flag": ["a", "ab", "b", None],
        "price": [*map(Decimal, ("0.01", "-99999.99", "9999999.05", "33.33", "0.00", "7.00")), None],
        "discount": [Decimal(percent).scaleb(-2) for percent in range(11)],
        "tax": [Decimal(percent).scaleb(-2) for percent in range(9)],
        "large": [*map(Decimal, ("999999999999999999.0000000001", "-5.5", "2", "1.0000000005", "0.5")), None],
        "fine": [*map(Decimal, ("1", "-0.5", "0." + "0" * 36 + "1", "0." + "3" * 37, "2")), None],
    }
    found = []
    for epoch in range(EPOCHS):
        ids = rng.sample(range(IDS), IDS if epoch == 0 else IDS // 3)
        rows = [
            (id, *map(rng.choice, choices.values()), epoch * IDS + number, epoch > 0 and rng.random() < 0.3)
            for number, id in enumerate(ids)
        ]
        columns = [pa.array(column, type) for column, type in zip(zip(*rows, strict=True), SCHEMA.types, strict=True)]
        found.append(pa.RecordBatch.from_arrays(columns, schema=SCHEMA))
    return found


def test_views_of_decimals_equal_spark_after_retractions(spark: Any) -> None:
    epochs = versions(Random(7))
    latest = {row[0]: row for batch in epochs for row in rows_of(batch)}
    current = [row for row in latest.values() if not row[-1]]
    columns = [pa.array(column, type) for column, type in zip(zip(*current, strict=True), SCHEMA.types, strict=True)]
    spark.createDataFrame(pa.table(columns, schema=SCHEMA)).createOrReplaceTempView("t")
    tables, evaluator = {"t": TABLE}, Evaluator()
    different = []
    for sql in QUERIES:
        key = "id" if "id, " in sql else "flag" if "flag, " in sql else []
        plan = declare_view("v", sql, key, tables, {}, SparkTyper(spark, tables))
        world = DataflowWorld(plan, tables, evaluator, Random(3))
        for batch in epochs:
            world.run_epoch({"t": batch})
        if not same_rows(rows_of(world.scan()), [tuple(row) for row in spark.sql(sql).collect()]):
            different.append(sql)
    assert different == []
