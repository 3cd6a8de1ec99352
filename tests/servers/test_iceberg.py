"""A table fed by an append stream of Iceberg."""

from pathlib import Path
from typing import Any

import pytest

from upriver import App

pytestmark = pytest.mark.servers

GROUPS = "SELECT grp, count(*) AS n, sum(id) AS total FROM events GROUP BY grp"


def test_a_table_follows_appends(iceberg_spark: Any, tmp_path: Path) -> None:
    """The view equals Spark over the Iceberg table, also after a new start."""
    spark = iceberg_spark
    spark.sql("CREATE TABLE ice.db.events (id BIGINT, grp BIGINT) USING iceberg")

    def append(first: int, last: int) -> None:
        spark.range(first, last).selectExpr("id", "id % 3 AS grp").writeTo("ice.db.events").append()

    def running() -> App:
        app = App(spark, str(tmp_path / "lake"), workers=1)
        app.table("events", spark.readStream.format("iceberg").load("ice.db.events"), key="id")
        app.view("groups", GROUPS, key="grp", partial=False)
        return app.start()

    def assert_equal(app: App) -> None:
        app.wait(120)
        expected = spark.sql(GROUPS.replace("events", "ice.db.events")).collect()
        found = app.lookup("groups", [0, 1, 2]).to_pylist()
        assert found == [row.asDict() for row in sorted(expected)]

    append(0, 20)
    with running() as app:
        assert_equal(app)
        append(20, 33)
        append(33, 40)
        assert_equal(app)
    append(40, 45)
    with running() as app:
        assert_equal(app)
