"""Tables fed by what Spark brings: files of Parquet and JSON, and ``rate``."""

import json
from pathlib import Path
from typing import Any

import pytest

from upriver import App

pytestmark = pytest.mark.spark

COLUMNS = "id BIGINT, name STRING"
BY_NAME = "SELECT name, count(*) AS n, sum(id) AS total FROM {} GROUP BY name"


def put(directory: Path, first: int, last: int) -> None:
    """A file of JSON under a name that appears when it is whole."""
    rows = [json.dumps({"id": number, "name": f"n{number % 3}"}) for number in range(first, last)]
    directory.mkdir(exist_ok=True)
    unseen = directory / f".{first}"
    unseen.write_text("\n".join(rows))
    unseen.rename(directory / f"{first}.json")


def test_views_equal_spark_over_the_files(spark: Any, tmp_path: Path) -> None:
    """Each batch is one file; files that come later are taken, and ``rate`` beside them goes on."""
    texts, parquet = tmp_path / "texts", tmp_path / "parquet"
    for first in (0, 10, 20):
        put(texts, first, first + 10)
        spark.range(first, first + 10, numPartitions=1).selectExpr("id", "concat('n', id % 3) AS name").write.mode(
            "append"
        ).parquet(str(parquet))
    stream = spark.readStream.schema(COLUMNS).option("maxFilesPerTrigger", 1)
    with App(spark, str(tmp_path / "lake"), workers=1) as app:
        app.table("of_json", stream.json(str(texts)), key="name")
        app.table("of_parquet", stream.parquet(str(parquet)), key="name")
        ticks = spark.readStream.format("rate").option("rowsPerSecond", 50).load()
        app.table("ticks", ticks, key="value", trigger={"processingTime": "1 second"})
        for table in ("of_json", "of_parquet"):
            app.view(f"by_{table}", BY_NAME.format(table), key="name", partial=False)
        app.view("counted", "SELECT count(*) AS n, max(value) AS last FROM ticks", key=[], partial=False)
        app.start(wait=True)
        put(texts, 30, 40)
        app.wait()
        for table, last in (("of_json", 40), ("of_parquet", 30)):
            spark.range(last).selectExpr("id", "concat('n', id % 3) AS name").createOrReplaceTempView("expected")
            expected = sorted(spark.sql(BY_NAME.format("expected")).collect())
            assert sorted(app.read(f"by_{table}").collect()) == expected
        (ticked,) = app.lookup("counted", [()]).to_pylist()
        assert ticked["n"] == (0 if ticked["last"] is None else ticked["last"] + 1)
