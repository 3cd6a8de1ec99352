"""Tables fed by Delta: an append stream, and a change feed into an upsert table."""

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from upriver import App
from upriver.sources import delta_cdf

pytestmark = pytest.mark.servers

GROUPS = "SELECT grp, count(*) AS n, max(name) AS most FROM people GROUP BY grp"


def people(spark: Any, first: int, last: int) -> Any:
    return spark.range(first, last).selectExpr("id", "concat('p', id) AS name", "id % 3 AS grp")


def test_a_table_follows_the_change_feed(delta_spark: Any, tmp_path: Path) -> None:
    """Updates move keys and groups; the view equals Spark over the Delta table after each commit and a new start."""
    spark, path, lake = delta_spark, f"delta.`{tmp_path}/people`", str(tmp_path / "lake")
    people(spark, 0, 30).write.format("delta").option("delta.enableChangeDataFeed", "true").save(f"{tmp_path}/people")

    def running() -> App:
        feed = spark.readStream.format("delta").option("readChangeFeed", "true").option("startingVersion", 0)
        app = App(spark, lake, workers=1)
        app.table("people", **delta_cdf(feed.load(f"{tmp_path}/people"), key="id"))
        app.view("groups", GROUPS, key="grp", partial=False)
        return app.start()

    def assert_equal(app: App) -> None:
        app.wait(120)
        expected = spark.sql(GROUPS.replace("people", path)).collect()
        assert sorted(app.read("groups").collect()) == sorted(expected)

    with running() as app:
        assert_equal(app)
        for change in (
            f"UPDATE {path} SET name = 'zz', grp = 0 WHERE id = 1",
            f"DELETE FROM {path} WHERE id % 5 = 0",
            f"UPDATE {path} SET id = id + 1 WHERE id < 10",  # keys move onto keys that move
        ):
            spark.sql(change)
        assert_equal(app)
    people(spark, 40, 45).write.format("delta").mode("append").save(f"{tmp_path}/people")
    with running() as app:
        assert_equal(app)


def test_an_append_table_says_what_to_do_about_an_update(delta_spark: Any, tmp_path: Path) -> None:
    spark = delta_spark
    people(spark, 0, 10).write.format("delta").save(f"{tmp_path}/people")
    with App(spark, str(tmp_path / "lake"), workers=1) as app:
        app.table("people", spark.readStream.format("delta").load(f"{tmp_path}/people"), key="id")
        app.view("groups", GROUPS, key="grp", partial=False)
        app.start(wait=True)
        assert sum(row["n"] for row in app.lookup("groups", [0, 1, 2]).to_pylist()) == 10
        spark.sql(f"UPDATE delta.`{tmp_path}/people` SET name = 'zz' WHERE id = 1")
        with pytest.raises(Exception, match="read the source's change feed into a table with a primary_key"):
            app.wait(120)


def test_plain_files_are_read_as_arrow(delta_spark: Any, tmp_path: Path) -> None:
    """Those of a table with deletion vectors or mapped columns are left to Spark; rows are the same."""
    spark, properties = (
        delta_spark,
        {
            "plain": {},
            "deleted": {"delta.enableDeletionVectors": "true"},
            "mapped": {"delta.columnMapping.mode": "name"},
            "widened": {"delta.enableTypeWidening": "true"},
        },
    )
    for name, given in properties.items():
        rows = people(spark, 0, 10).selectExpr("id", "name", "CAST(grp AS INT) AS grp", "id % 2 AS half")
        writer = rows.coalesce(1).write.format("delta").partitionBy("half")
        for key, value in given.items():
            writer = writer.option(key, value)
        writer.save(f"{tmp_path}/{name}")
    spark.sql(f"DELETE FROM delta.`{tmp_path}/deleted` WHERE id = 3")
    spark.sql(f"ALTER TABLE delta.`{tmp_path}/widened` ALTER COLUMN grp TYPE BIGINT")
    with App(spark, str(tmp_path / "lake"), workers=1) as app:
        for name in properties:
            app.table(name, spark.readStream.format("delta").load(f"{tmp_path}/{name}"), key="id")
            app.view(f"all_{name}", f"SELECT id, name, grp, half FROM {name}", key="id", partial=False)
        app.start(wait=True)
        for name in properties:
            expected = spark.read.format("delta").load(f"{tmp_path}/{name}").orderBy("id").collect()
            assert app.read(f"all_{name}").orderBy("id").collect() == expected
        told = {name: app.status()["tables"][name]["way"] for name in properties}
    ways = {name: way.partition(":")[0] for name, way in told.items()}
    assert ways == {
        name: "rows of Spark" if name in ("deleted", "mapped") else "files as Arrow" for name in properties
    }, told


def test_a_copied_table_is_loaded(delta_spark: Any, tmp_path: Path) -> None:
    """Its log has the times of the files that were copied."""
    spark = delta_spark
    people(spark, 0, 10).write.format("delta").save(f"{tmp_path}/people")
    shutil.copytree(tmp_path / "people", tmp_path / "copy", copy_function=shutil.copy)
    for path in (tmp_path / "copy").glob("*.parquet"):
        os.utime(path, (1, 1))
    with App(spark, str(tmp_path / "lake"), workers=1) as app:
        app.table("people", spark.read.format("delta").load(f"{tmp_path}/copy"), key="id")
        app.view("groups", GROUPS, key="grp", partial=False)
        app.start(wait=True)
        assert app.status()["tables"]["people"]["way"] == "files as Arrow"
        assert sum(row["n"] for row in app.lookup("groups", [0, 1, 2]).to_pylist()) == 10
