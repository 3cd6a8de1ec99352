"""Awkward values of every type go through Spark, the lake, views, lookups and messages; no input ends an app."""

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from awkward_kit import awkward, text
from session import without_warm_up

from upriver.app import App
from upriver.spark.schema import arrow_schema
from upriver.spark.session import ZONE
from upriver.spark.tables import rows_of_keys
from upriver.state.columns import exact_list

pytestmark = pytest.mark.spark

ZONED = "UTC+05:30"
COUNTED = "SELECT {0}, count(*) AS how_many FROM t GROUP BY {0}"
KEYS = ("y", "l", "f", "x", "p", "b", "z", "k", "d", "n", "t")
VIEWS = {
    "whole": ("SELECT * FROM t", "id"),
    "shares": ("SELECT id, 1 / v AS share FROM t", "id"),
    "uppers": ("SELECT id, upper(k) AS u FROM t", "id"),
    "years": ("SELECT id, unix_date(d) AS day, year(n) AS y FROM t", "id"),
    "current": ("SELECT x, id FROM versions", "x"),
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
    session = without_warm_up(spark.newSession())
    session.conf.set(ZONE, ZONED)
    session.conf.set("spark.sql.parquet.datetimeRebaseModeInRead", "CORRECTED")
    session.conf.set("spark.sql.parquet.int96RebaseModeInRead", "CORRECTED")
    path = tmp_path_factory.mktemp("source") / "rows.parquet"
    pq.write_table(awkward(), path)
    rows = session.read.parquet(str(path))
    rows.createOrReplaceTempView("t")
    session.sql("SELECT x, max(id) AS id FROM t GROUP BY x").createOrReplaceTempView("versions")
    return rows


@pytest.fixture(scope="module")
def app(source: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    with App(source.sparkSession, tmp_path_factory.mktemp("app") / "lake", workers=2, vnodes=16) as app:
        app.table("t", source, "id", on_bad_row="set_aside")
        app.table("versions", source.select("x", "id"), primary_key="x", order_by="id")
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


def test_texts_of_any_bytes_come_from_spark(spark: Any) -> None:
    found = spark.sql("SELECT CAST(X'61FF62' AS STRING) AS k").toArrow()
    assert exact_list(found.column("k").chunk(0)) == exact_list(text([b"a\xffb"]))
