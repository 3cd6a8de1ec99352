# ruff: noqa: E501  queries are easier to read on one line
"""Views of a running app on Spark: each equals Spark SQL over the same rows, before and after rescales."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import functions as F

from upriver import App
from upriver.errors import DeclarationError, UnknownView, UnsupportedSql
from upriver.ids import Epoch
from upriver.lake.lake import Lake

ORDERS = "id BIGINT, customer BIGINT, amount DOUBLE, kind STRING, at TIMESTAMP"
CUSTOMERS = "cid BIGINT, name STRING, region STRING"
VIEWS = {
    "joined": (
        "SELECT region, count(*) AS n, sum(amount) AS amount FROM orders JOIN customers ON customer = cid GROUP BY region",
        "region",
    ),
    "sizes": (
        "SELECT n, count(*) AS customers FROM (SELECT customer, count(*) AS n FROM orders GROUP BY customer) GROUP BY n",
        "n",
    ),
    "largest": (
        "SELECT kind, id, amount FROM (SELECT kind, id, amount, row_number() OVER (PARTITION BY kind ORDER BY amount DESC, id) AS place FROM orders) WHERE place <= 3",
        "kind",
    ),
}


@pytest.fixture
def cluster(spark: Any, tmp_path: Path) -> Iterator[App]:
    """Orders of eight customers, one of them unknown, and a customer without an order. Some values are null."""
    orders = spark.range(600).selectExpr(
        "id",
        "if(id % 50 = 0, null, id % 8) AS customer",
        "if(id % 17 = 0, null, double(id % 5)) AS amount",
        "concat('k', id % 3) AS kind",
        "timestamp_seconds(id * 60) AS at",
    )
    customers = spark.range(1, 10).selectExpr(
        "id AS cid", "concat('n', id) AS name", "if(id % 2 = 0, 'east', 'west') AS region"
    )
    orders.createOrReplaceTempView("orders")
    customers.createOrReplaceTempView("customers")
    with App(spark, root=str(tmp_path / "lake"), workers=2, vnodes=16) as app:
        app.table("orders", orders, key="id", order_by="id")
        app.table("customers", customers, key="cid")
        yield app
    spark.catalog.dropTempView("orders")
    spark.catalog.dropTempView("customers")


def assert_equals_spark(spark: Any, app: App, name: str, sql: str) -> None:
    expected = spark.sql(sql)
    assert app.read(name).schema.simpleString() == expected.schema.simpleString(), name
    assert _sorted(app.read(name)) == _sorted(expected), name


def _sorted(frame: Any) -> list[str]:
    return sorted(map(repr, frame.collect()))


@pytest.mark.spark
def test_views_are_added_to_a_running_app_that_is_rescaled_and_dropped(spark: Any, cluster: App) -> None:
    cluster.view("sizes", VIEWS["sizes"][0], key="n", partial=False)
    cluster.start()
    cluster.wait()
    for name in ("joined", "largest"):
        sql, key = VIEWS[name]
        cluster.view(name, sql, key=key, partial=False)
        assert_equals_spark(spark, cluster, name, sql)
    cluster.view("rich", "SELECT region FROM joined WHERE amount > 100", key="region", partial=False)
    assert_equals_spark(spark, cluster, "rich", f"SELECT region FROM ({VIEWS['joined'][0]}) WHERE amount > 100")
    for strategy, workers in (("icadd", 3), ("redistribute", 2), ("restart", 3)):
        assert cluster.rescale(workers, strategy=strategy).wait()["outcome"] == "finished"
        for name, (sql, _) in VIEWS.items():
            assert_equals_spark(spark, cluster, name, sql)
    cluster.drop_view("joined")
    assert sorted(cluster.status()["views"]) == ["largest", "rich", "sizes"]
    assert cluster.lookup("rich", ["west"]).num_rows == 1
    with pytest.raises(UnknownView, match="joined"):
        cluster.lookup("joined", ["west"])
    with pytest.raises(UnknownView, match="joined"):
        cluster.drop_view("joined")
    with pytest.raises(UnsupportedSql):
        cluster.view("drawn", "SELECT kind, rand() AS r FROM orders", key="kind")
    assert_equals_spark(spark, cluster, "sizes", VIEWS["sizes"][0])


def running_total(customer: int, order: Any, total: float | None) -> tuple[list[tuple[int, float]], float]:
    total = (total or 0.0) + (order.amount or 0.0)
    return [(order.id, total)], total


@pytest.mark.spark
def test_a_stateful_map_sees_each_keys_rows_in_order_while_keys_move(spark: Any, cluster: App) -> None:
    cluster.stateful_map(
        "totals", source="orders", key="customer", func=running_total, schema="id BIGINT, total DOUBLE", order_by="id"
    )
    cluster.start()
    cluster.wait()
    sql = """SELECT customer, id, sum(coalesce(amount, 0D)) OVER (PARTITION BY customer ORDER BY id) AS total FROM orders"""
    assert_equals_spark(spark, cluster, "totals", sql)
    assert cluster.rescale(3).wait()["outcome"] == "finished"
    assert_equals_spark(spark, cluster, "totals", sql)
    found = cluster.lookup("totals", [3])
    assert found["id"].to_pylist() == sorted(found["id"].to_pylist())
    with pytest.raises(DeclarationError, match="there is no table, view or stateful map 'nowhere'"):
        cluster.stateful_map("x", source="nowhere", key="k", func=running_total, schema="n INT")


@pytest.mark.spark
def test_an_upsert_tables_views_see_the_last_version_of_each_row(spark: Any, tmp_path: Path) -> None:
    versions = spark.sql("""
        SELECT id % 40 AS id, id AS version, concat('d', (id * 7) % 5) AS dept, id % 11 AS pay,
               if(id % 13 = 0, 'D', 'U') AS op FROM range(400)""")
    versions.createOrReplaceTempView("versions")
    with App(spark, root=str(tmp_path / "lake"), workers=2, vnodes=16) as app:
        app.table("staff", versions, primary_key="id", order_by="version", deletes="op = 'D'")
        app.view(
            "pay", "SELECT dept, count(*) AS n, sum(pay) AS pay, max(pay) AS most FROM staff GROUP BY dept", key="dept"
        )
        app.view("one", "SELECT id, dept, pay FROM staff", key="id", partial=False)
        app.start()
        app.wait()
        current = "(SELECT * FROM (SELECT *, row_number() OVER (PARTITION BY id ORDER BY version DESC) AS r FROM versions) WHERE r = 1 AND op <> 'D')"
        for _ in range(2):
            assert_equals_spark(
                spark,
                app,
                "pay",
                f"SELECT dept, count(*) AS n, sum(pay) AS pay, max(pay) AS most FROM {current} GROUP BY dept",
            )
            assert_equals_spark(spark, app, "one", f"SELECT id, dept, pay FROM {current}")
            assert app.rescale(3).wait()["outcome"] == "finished"
    spark.catalog.dropTempView("versions")


@pytest.mark.spark
@pytest.mark.parametrize("tasks", [1, 4])
def test_views_are_the_same_however_many_tasks_write_an_epoch(spark: Any, tmp_path: Path, tasks: int) -> None:
    """Rows of each key lie in the runs of all tasks; ``order_by`` says in which order they come."""
    orders = spark.sql("SELECT id, id % 5 AS customer, double(id % 7) AS amount FROM range(500)")
    orders.repartition(9, F.hash("id")).write.parquet(str(tmp_path / "orders"))
    orders.createOrReplaceTempView("orders")
    stream = spark.readStream.schema(orders.schema).parquet(str(tmp_path / "orders"))
    with App(spark, root=str(tmp_path / "lake"), workers=2, vnodes=16, ingest_tasks=tasks) as app:
        app.table("orders", stream, key="id", order_by="id")
        app.table("newest", stream, primary_key="customer", order_by="id")
        app.stateful_map(
            "totals",
            source="orders",
            key="customer",
            func=running_total,
            schema="id BIGINT, total DOUBLE",
            order_by="id",
        )
        app.view("one", "SELECT customer, id, amount FROM newest", key="customer", partial=True)
        app.view("all", "SELECT customer, id FROM orders", key="customer", partial=True)
        app.start()
        app.wait()
        lake = Lake(str(tmp_path / "lake"))
        manifests = [lake.manifest(Epoch(epoch)) for epoch in range(1, lake.last_epoch() + 1)]
        found = {run.task for manifest in manifests for runs in manifest.runs.values() for run in runs}
        assert found == set(range(tasks))
        totals = "SELECT customer, id, sum(amount) OVER (PARTITION BY customer ORDER BY id) AS total FROM orders"
        assert_equals_spark(spark, app, "totals", totals)
        assert app.lookup("one", [3]).to_pylist() == [{"customer": 3, "id": 498, "amount": float(498 % 7)}]
        assert sorted(app.lookup("all", [3])["id"].to_pylist()) == list(range(3, 500, 5))
    spark.catalog.dropTempView("orders")
