"""Awkward values of every type go through Spark, the lake, views, lookups and messages; no input ends an app."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from awkward_kit import awkward, dates, text, times
from sql_kit import local_view, projection_of, spec

from upriver.app import App
from upriver.engine.expressions import Evaluator
from upriver.errors import RowError
from upriver.spark.schema import arrow_schema
from upriver.spark.session import ZONE
from upriver.spark.tables import rows_of_keys
from upriver.state.columns import exact, exact_list

pytestmark = pytest.mark.spark

ZONED = "UTC+05:30"
COUNTED = "SELECT {0}, count(*) AS how_many FROM t GROUP BY {0}"
KEYS = ("y", "l", "f", "x", "p", "b", "z", "k", "d", "n", "t")
VIEWS = {
    "whole": ("SELECT * FROM t", "id"),
    "shares": ("SELECT id, 1 / v AS share FROM t", "id"),
    "uppers": ("SELECT id, upper(k) AS u FROM t", "id"),
    "years": ("SELECT id, unix_date(d) AS day, year(n) AS y FROM t", "id"),
    **{f"by_{name}": (COUNTED.format(name), name) for name in KEYS},
}
FULL_TOO = ("whole", "shares", "uppers", "years", "by_x", "by_k", "by_t")
GOOD = {
    "shares": "v <> 0",
    "uppers": "is_valid_utf8(k) OR k IS NULL",
    "years": "unix_date(d) BETWEEN -2147483646 AND 2147483646",
}
"""Of the views that not all rows can be in: which rows are."""


def plain(table: pa.Table) -> list[str]:
    """The rows, whatever is in them, in no order; zeros and NaNs of one form."""
    arrays = [column.combine_chunks() for column in table.columns]
    columns = [exact_list(pc.add(c, pa.scalar(0, c.type)) if pa.types.is_floating(c.type) else c) for c in arrays]
    return sorted(map(repr, zip(*columns, strict=True)))


@pytest.fixture(scope="module")
def source(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The rows, in a session in another zone than the tests' own."""
    session = spark.newSession()
    session.conf.set(ZONE, ZONED)
    session.conf.set("spark.sql.parquet.datetimeRebaseModeInRead", "CORRECTED")
    session.conf.set("spark.sql.parquet.int96RebaseModeInRead", "CORRECTED")
    path = tmp_path_factory.mktemp("source") / "rows.parquet"
    pq.write_table(awkward(), path)
    rows = session.read.parquet(str(path))
    rows.createOrReplaceTempView("t")
    return rows


@pytest.fixture(scope="module")
def app(source: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    with App(source.sparkSession, tmp_path_factory.mktemp("app") / "lake", workers=2, vnodes=16) as app:
        app.table("t", source, "id", on_bad_row="set_aside")
        for name, (sql, key) in VIEWS.items():
            app.view(name, sql, key)
            if name in FULL_TOO:
                app.view(f"{name}_full", sql, key, partial=False)
        app.start()
        app.wait()
        yield app


@pytest.mark.parametrize("name", VIEWS)
def test_reads_and_lookups_are_what_spark_gives(source: Any, app: App, name: str) -> None:
    sql, key = VIEWS[name]
    good = sql.replace("FROM t", f"FROM t WHERE {GOOD[name]}") if name in GOOD else sql
    theirs = source.sparkSession.sql(good).toArrow()
    types = arrow_schema(source.sparkSession.sql(sql), "t")
    keys = theirs.select([key]).group_by([key], use_threads=False).aggregate([])
    for view in (f"{name}_full", name) if name in FULL_TOO else (name,):
        wanted = pa.table([keys.column(key).cast(types.field(key).type)], names=[key])
        assert plain(app.lookup(view, wanted, timeout=60)) == plain(theirs)
        if view.endswith("_full") or name not in GOOD:
            assert plain(app.read(view).toArrow()) == plain(theirs)


@pytest.mark.parametrize("key", ["k", "d", "n", "t"])
def test_rows_of_keys_that_spark_computes(source: Any, key: str) -> None:
    rows = source.sparkSession.sql(f"SELECT {key}, id FROM t")
    types = pa.schema([arrow_schema(rows, "t").field(key)])
    (keys,) = rows.select(key).toArrow().cast(types).combine_chunks().to_batches()
    assert plain(rows_of_keys(rows, keys)) == plain(rows.toArrow())


def test_rows_that_are_set_aside_can_be_read_and_say_what_is_wrong(app: App) -> None:
    app.lookup("shares", list(range(10)), timeout=60)
    rejected = app.rejected("t").toArrow()
    errors = rejected.column("error").to_pylist()
    assert {view.removesuffix("_full") for view in rejected.column("view").to_pylist()} == set(GOOD)
    assert any("Division by zero" in error for error in errors)
    assert any("the text in k is no UTF-8" in error for error in errors)
    assert any("the DATE in d is too far to compute with" in error for error in errors)
    ids = rejected.column("row").combine_chunks().field("id").to_pylist()
    assert set(ids) == {0, 2, 3, 4, 5, 6, 9}


# Expressions over them, beside Spark's

ALIKE = """
k LIKE 'a%'; k NOT LIKE '%b'; k LIKE '%a%b%'; replace(k, 'a', 'z');
k = 'ok'; k < 'b'; k || 'x'; octet_length(k); md5(k); k IN ('ok', 'x'); coalesce(k, 'x'); startswith(k, 'a');
contains(k, 'a'); greatest(k, 'b'); CASE WHEN k = 'ok' THEN 1 ELSE 0 END; k <=> k; nullif(k, 'ok');
d < DATE '2024-01-01'; coalesce(d, DATE '2024-01-01'); greatest(d, DATE '1000-01-01'); d = d; d IN (DATE '1970-01-01');
n < TIMESTAMP_NTZ '2024-01-01 00:00:00'; least(n, n); t >= TIMESTAMP '1970-01-01 00:00:00'; if(v = 0, n, NULL);
CAST(s AS DECIMAL(10,2)); CAST(c AS DATE); CAST(CAST(c AS DATE) AS STRING); date_from_unix_date(unix_date_of);
CAST(fd AS STRING); CAST(fn AS STRING); CAST(ft AS STRING); year(fd); month(fn); hour(fn);
unix_micros(ft); unix_date(fd);
"""
"""What gives for each row what Spark gives."""
OR_BAD = """
length(k); upper(k); lower(k); trim(k); reverse(k); substring(k, 2, 1); k LIKE 'a_b'; k RLIKE 'b$';
lpad(k, 5, '.'); split_part(k, 'a', 1); k ILIKE 'A%'; left(k, 1); right(k, 1); instr(k, 'b');
translate(k, 'a', 'b'); ascii(k); repeat(k, 2); concat_ws('-', k, k); regexp_replace(k, 'a', 'b');
year(d); month(d); dayofweek(d); weekofyear(d); CAST(d AS STRING); unix_date(d); datediff(d, DATE '1970-01-01');
year(n); hour(n); CAST(n AS STRING); minute(n); unix_micros(t); unix_millis(t); unix_seconds(t); CAST(t AS BIGINT);
year(date_from_unix_date(unix_date_of)); CAST(t AS STRING); day(t); quarter(d); dayname(d); trunc(d, 'month');
"""
"""What may be a bad row instead."""
DECIMALS = ["٣", "1e-400", " 1e-40 ", "٣.٥e١", "0e37", "0.00e39", "-०.५", "1E+2", "5e-3", "4.9999e-3"]
DAYS = ["02024-02-01", "12024-01-01", "-0001-01-01", "+2024-1-1", "2024", "0000-01-01", "5881580-07-10", "0002024-1", "2024-2-9T", "-2024-02-29"]  # fmt: skip  # noqa: E501


def expressions_of(text: str) -> list[str]:
    return [part.strip() for part in text.split(";") if part.strip()]


def expression_rows() -> pa.RecordBatch:
    """The awkward columns, and some in which nothing is beyond DuckDB."""
    far = [-719_529, 2_932_897, -719_528, 0, -800_000, 5_000_000, 2_147_483_646, -719_163, 2_932_896, None]
    micros = [None if day is None else min(day, 106_000_000) * 86_400_000_000 + 10**6 + day % 2 for day in far]
    given = awkward().select(["id", "v", "k", "d", "n", "t"]).combine_chunks()
    more = {
        "s": pa.array(DECIMALS),
        "c": pa.array(DAYS),
        "unix_date_of": exact(given.column("d").chunk(0)),
        "fd": dates(far),
        "fn": times(micros),
        "ft": times(micros, "UTC"),
    }
    return pa.record_batch({**dict(zip(given.column_names, (c.chunk(0) for c in given.columns), strict=True)), **more})


def test_expressions_give_what_spark_gives_or_a_bad_row(spark: Any, tmp_path: Path) -> None:
    rows = expression_rows()
    pq.write_table(pa.Table.from_batches([rows]), tmp_path / "rows.parquet")
    session = spark.newSession()
    session.read.parquet(str(tmp_path / "rows.parquet")).createOrReplaceTempView("t")
    alike, either = expressions_of(ALIKE), expressions_of(OR_BAD)
    listed = ", ".join(f"{expression} AS e{place}" for place, expression in enumerate([*alike, *either]))
    theirs = session.sql(f"SELECT {listed} FROM t ORDER BY id").toArrow().combine_chunks()
    differences, bad, evaluator = [], 0, Evaluator()
    for place, expression in enumerate([*alike, *either]):
        ours = projection_of(local_view(f"SELECT id, {expression} AS e FROM t", spec("t", rows.schema)))
        for row, expected in enumerate(exact_list(theirs.column(f"e{place}").chunk(0))):
            try:
                (found,) = exact_list(evaluator.project(rows.slice(row, 1), ours).column("e"))
            except RowError as error:
                bad += 1
                if place < len(alike):
                    differences.append((expression, row, expected, str(error)))
                continue
            if repr(found) != repr(expected):
                differences.append((expression, row, expected, found))
    assert differences == []
    assert bad > 0


def test_texts_of_any_bytes_come_from_spark(spark: Any) -> None:
    found = spark.sql("SELECT CAST(X'61FF62' AS STRING) AS k").toArrow()
    assert exact_list(found.column("k").chunk(0)) == exact_list(text([b"a\xffb"]))
