"""One app on Spark, from its first row through a rescale and a killed worker: what `make test` runs of Spark."""

import os
import signal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks.recovery_kill import pid_listening
from upriver.app import App
from upriver.spark.frames import differing_rows

pytestmark = [pytest.mark.spark, pytest.mark.smoke]

SCHEMA = pa.schema([("k", pa.string()), ("seq", pa.int64()), ("v", pa.int64())])
COUNTS = "SELECT k, count(*) AS n, sum(v) AS total, max(seq) AS last FROM events GROUP BY k"
LARGEST = "SELECT v, count(DISTINCT k) AS keys FROM events WHERE seq % 3 <> 0 GROUP BY v"
ROWS, KEYS = 2_000, 100


def test_an_app_is_right_through_a_rescale_and_a_killed_worker(spark: Any, tmp_path: Path) -> None:
    files = tmp_path / "files"
    files.mkdir()

    def write(file: int) -> None:
        numbers = range(file * ROWS, (file + 1) * ROWS)
        columns = [[f"key-{number * 7919 % KEYS}" for number in numbers], numbers, [n % 11 for n in numbers]]
        unfinished = files / f".{file}"
        pq.write_table(
            pa.table([pa.array(list(c), f.type) for c, f in zip(columns, SCHEMA, strict=True)], SCHEMA), unfinished
        )
        unfinished.rename(files / f"{file}.parquet")

    def check(app: App, read: int) -> None:
        """That both views have all rows of so many files, for lookups and for Spark."""
        app.wait(timeout=120)
        rows = spark.read.parquet(str(files))
        assert rows.count() == read * ROWS
        rows.createOrReplaceTempView("events")
        for view, sql in (("counts", COUNTS), ("largest", LARGEST)):
            assert differing_rows(app.read(view), spark.sql(sql)) == 0, view
        expected = {row["k"]: row.asDict() for row in spark.sql(COUNTS).collect()}
        assert app.lookup("counts", ["key-7", "nobody", "key-42"], timeout=60).to_pylist() == [
            expected["key-7"],
            expected["key-42"],
        ]

    write(0)
    stream = spark.readStream.schema("k string, seq long, v long").parquet(str(files))
    with App(spark, str(tmp_path / "lake"), workers=2, vnodes=64, ingest_tasks=1) as app:
        app.table("events", stream, key="k")
        app.view("counts", COUNTS, key="k")
        app.view("largest", LARGEST, key="v", partial=False)
        app.start()
        check(app, 1)
        rescale = app.rescale(3)
        write(1)
        rescale.wait(timeout=120)
        assert len(app.status()["workers"]) == 3
        check(app, 2)
        os.kill(pid_listening(app.status()["workers"][0]["address"]), signal.SIGKILL)
        write(2)
        check(app, 3)
