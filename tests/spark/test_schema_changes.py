"""An app is started again on its root with other columns, tables and sources: views equal Spark SQL over all rows."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from upriver import App
from upriver.errors import DeclarationError, IngestFailed, UpriverWarning

Rows = Sequence[tuple[Any, ...]]
FIRST = "id INT, customer STRING, amount INT, price FLOAT, day DATE"
FIRST_ROWS = (
    "(1, 'ada', 2000000000, 0.1F, DATE'2026-01-01'), (2, 'bob', null, null, null), "
    "(3, 'ada', 2000000000, 1, DATE'0001-01-01')"
)
WIDER = "note STRING, day TIMESTAMP_NTZ, price DOUBLE, amount BIGINT, customer STRING, id INT"
WIDER_ROWS = (
    "('new', TIMESTAMP_NTZ'2026-01-02 03:04:05', 0.1D, 5000000000, 'bob', 4), (null, null, null, null, 'ada', 5)"
)
NEW_ROW = "('new', DATE'2026-01-02', 0.25D, 1, 'bob', 4)"
FEWER = "id INT, customer STRING, note STRING"
FEWER_ROWS = "(6, 'ada', 'last'), (7, null, 'new')"
VIEWS = {
    "totals": (
        "SELECT customer, sum(amount) AS total, max(day) AS day FROM orders GROUP BY customer",
        "customer",
        False,
    ),
    "notes": ("SELECT note, count(*) AS n, sum(price) AS price FROM orders GROUP BY note", "note", False),
    "rows": ("SELECT id, note, amount, price, day FROM orders", "id", True),
}


def values(spark: Any, ddl: str, rows: str) -> Any:
    names = ", ".join(column.split()[0] for column in ddl.split(", "))
    casts = (f"CAST({name} AS {type}) AS {name}" for name, type in (column.split() for column in ddl.split(", ")))
    return spark.sql(f"SELECT {', '.join(casts)} FROM VALUES {rows} AS t({names})")


def stream(spark: Any, directory: Path, ddl: str, rows: str) -> Any:
    """A stream of a directory to which one file of these rows is added."""
    values(spark, ddl, rows).coalesce(1).write.mode("append").parquet(str(directory))
    return spark.readStream.schema(ddl).parquet(str(directory))


def assert_views(app: App, spark: Any, rows: Any, *views: str) -> None:
    """rows: all of the table's, in its newest columns."""
    rows.createOrReplaceTempView("orders")
    for view in views:
        sql, key, _ = VIEWS[view]
        expected, found = spark.sql(sql), app.read(view)
        assert found.schema.simpleString() == expected.schema.simpleString(), view
        assert sorted(map(repr, found.collect())) == sorted(map(repr, expected.collect())), view
        keys = [row[key] for row in expected.select(key).distinct().collect()]
        looked_up = app.lookup(view, keys).select(expected.columns).to_pylist()
        wanted = expected.toArrow().select(expected.columns).to_pylist()
        assert sorted(map(repr, looked_up)) == sorted(map(repr, wanted)), view


@pytest.fixture
def started(spark: Any, tmp_path: Path) -> Callable[..., App]:
    def started(rows: Any, *views: str, wait: bool = True, **table: Any) -> App:
        app = App(spark, root=str(tmp_path / "lake"), workers=2, vnodes=16)
        trigger = {"availableNow": True} if rows.isStreaming else None
        app.table("orders", rows, key="id", trigger=trigger, **table)
        for view in views:
            sql, key, partial = VIEWS[view]
            app.view(view, sql, key=key, partial=partial)
        return app.start(wait=wait)

    return started


@pytest.mark.spark
def test_a_stream_gets_more_columns_wider_ones_and_fewer(spark: Any, tmp_path: Path, started: Any) -> None:
    source = tmp_path / "source"
    with started(stream(spark, source, FIRST, FIRST_ROWS), "totals") as app:
        assert_views(app, spark, values(spark, FIRST, FIRST_ROWS), "totals")
        app.checkpoint()
    old = values(spark, FIRST, FIRST_ROWS).selectExpr("NULL AS note", "day", "price", "amount", "customer", "id")
    rows = old.union(values(spark, WIDER, WIDER_ROWS))
    assert rows.schema == values(spark, WIDER, WIDER_ROWS).schema
    with started(stream(spark, source, WIDER, WIDER_ROWS), *VIEWS) as app:
        assert_views(app, spark, rows, *VIEWS)
    with pytest.raises(DeclarationError, match=r"'amount' is BIGINT in .* and INT in the DataFrame"):
        started(spark.readStream.schema(FIRST).parquet(str(source)))
    rows = rows.unionByName(values(spark, FEWER, FEWER_ROWS), allowMissingColumns=True)
    with started(stream(spark, source, FEWER, FEWER_ROWS)) as app:
        app.view("places", "SELECT customer, count(note) AS n FROM orders GROUP BY customer", key="customer")
        assert {row["customer"]: row["n"] for row in app.read("places").collect()} == {"ada": 1, "bob": 1, None: 1}
    with started(spark.readStream.schema(WIDER).parquet(str(source)), *VIEWS) as app:
        assert_views(app, spark, rows, *VIEWS)


@pytest.mark.spark
def test_a_load_gets_more_columns_wider_ones_and_fewer(spark: Any, started: Any) -> None:
    """Its rows are not loaded again: they have null in a column that is new."""
    first = values(spark, FIRST, FIRST_ROWS)
    wider = ("day", "double(price) AS price", "bigint(amount) AS amount", "customer", "id")
    given = first.selectExpr("'late' AS note", *wider)
    kept = first.selectExpr("CAST(null AS STRING) AS note", *wider)
    with started(first, "totals") as app:
        assert app.wait() == 1
    for _ in range(2):
        with started(given, *VIEWS) as app:
            assert app.wait() == 1
            assert_views(app, spark, kept, *VIEWS)
    failed = "table 'orders': its source has failed: the DataFrame has other rows"
    with pytest.warns(UpriverWarning, match=failed) as told:
        app = started(given.withColumn("note", given.customer), *VIEWS, wait=False)
    assert told[0].filename == __file__
    with app:
        assert not app.ready
        assert_views(app, spark, kept, *VIEWS)
        with pytest.raises(IngestFailed, match="has other rows"):
            app.wait()
    with pytest.raises(IngestFailed, match=r"has other rows .* give it a primary_key, on another root"):
        app.start(wait=True)
    with started(first.select("customer", "id")) as app:
        assert app.wait() == 1
    more = kept.union(
        values(spark, "note STRING, day DATE, price DOUBLE, amount BIGINT, customer STRING, id INT", NEW_ROW)
    )
    with started(more, *VIEWS, on_changed_rows="take_in") as app:
        assert app.wait() == 2
        assert_views(app, spark, more, *VIEWS)


@pytest.mark.spark
def test_a_table_is_added_and_another_one_is_not_declared_for_a_while(spark: Any, tmp_path: Path) -> None:
    sql = "SELECT region, count(*) AS n FROM orders JOIN customers ON customer = name GROUP BY region"
    orders = spark.createDataFrame([(1, "ada"), (2, "bob"), (3, "ada")], "id INT, customer STRING")
    customers = spark.createDataFrame([("ada", "north"), ("bob", "south")], "name STRING, region STRING")

    def app() -> App:
        return App(spark, root=str(tmp_path / "lake"), workers=2, vnodes=16)

    with app() as first:
        first.table("orders", orders, key="id")
        first.start(wait=True)
    with app() as second:
        second.table("customers", customers, key="name")
        second.view("regions", "SELECT region, count(*) AS n FROM customers GROUP BY region", key="region")
        with pytest.raises(DeclarationError, match="no table or view 'orders' is declared; there are: customers"):
            second.view("sold", sql, key="region")
        second.start(wait=True)
        assert second.lookup("regions", ["north"]).to_pylist() == [{"region": "north", "n": 1}]
        assert sorted(second.status()["tables"]) == ["customers"]
    with app() as third:
        third.table("orders", orders, key="id")
        third.table("customers", customers, key="name")
        third.view("sold", sql, key="region", partial=False)
        third.start(wait=True)
        orders.createOrReplaceTempView("orders")
        customers.createOrReplaceTempView("customers")
        assert sorted(third.read("sold").collect()) == sorted(spark.sql(sql).collect())
        assert third.wait() == 2
