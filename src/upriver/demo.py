"""The demo: a year of real flights through the whole river, and every view compared with Spark's own answer."""

import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from upriver.app import App
from upriver.demo_data import FLIGHTS_ROWS, write_slices
from upriver.spark.compare import differing_rows
from upriver.spark.names import DataFrame, SparkSession
from upriver.spark.session import local_session
from upriver.text import progress_bar, render_rows, render_table

BATCHES = 25
WAIT_S_MAX = 600.0
"""Seconds that the whole stream may take."""
PROGRESS_S = 0.2
"""Seconds between two looks at the progress."""


@dataclass(frozen=True, slots=True)
class DemoView:
    """A view of the demo, and the keys that it shows."""

    sql: str
    key: tuple[str, ...]
    shown: tuple[Any, ...]


VIEWS: Mapping[str, DemoView] = {
    "aircraft": DemoView(
        "SELECT tailnum, count(*) AS flights, sum(distance) AS miles, avg(arr_delay) AS mean_delay, "
        "max(arr_delay) AS worst_delay FROM flights GROUP BY tailnum",
        ("tailnum",),
        ("N14228", "N24211", "N725MQ"),
    ),
    "routes": DemoView(
        "SELECT origin, dest, count(*) AS flights, count(dep_time) AS flown, min(air_time) AS fastest, "
        "avg(dep_delay) AS mean_delay FROM flights GROUP BY origin, dest",
        ("origin", "dest"),
        (("JFK", "LAX"), ("EWR", "SFO"), ("LGA", "ATL")),
    ),
    "carrier_days": DemoView(
        "SELECT carrier, year, month, day, count(*) AS flights, "
        "sum(CASE WHEN dep_delay > 15 THEN 1 ELSE 0 END) AS late FROM flights "
        "WHERE dep_time IS NOT NULL GROUP BY carrier, year, month, day",
        ("carrier", "year", "month", "day"),
        (("UA", 2013, 7, 4), ("B6", 2013, 2, 9), ("DL", 2013, 11, 28)),
    ),
}


def run_demo(*, workers: int = 2, out: TextIO = sys.stdout) -> dict[str, Any]:
    """Run the demo, telling ``out`` about it; returns what ``upriver demo --json`` prints."""
    print(f"Upriver: {FLIGHTS_ROWS:,} flights from New York in 2013, in {BATCHES} micro-batches of Spark", file=out)
    spark = local_session(workers)
    try:
        with tempfile.TemporaryDirectory(prefix="upriver-demo-") as directory:
            return _run(spark, Path(directory), workers, out)
    finally:
        spark.stop()


def _run(spark: SparkSession, directory: Path, workers: int, out: TextIO) -> dict[str, Any]:
    files = directory / "flights"
    write_slices(files, BATCHES)
    rows = spark.read.parquet(str(files))
    stream = spark.readStream.schema(rows.schema).option("maxFilesPerTrigger", 1).parquet(str(files))
    with App(spark, str(directory / "lake"), workers=workers) as app:
        app.table("flights", stream, key="tailnum", order_by="ts")
        for name, view in VIEWS.items():
            app.view(name, view.sql, key=view.key)
        started = time.perf_counter()
        app.start()
        epochs = _follow(app, out)
        seconds = time.perf_counter() - started
        print(f"\n{FLIGHTS_ROWS:,} rows in {seconds:.1f} s: {FLIGHTS_ROWS / seconds:,.0f} rows/s\n", file=out)
        _show_lookups(app, out)
        rows.createOrReplaceTempView("flights")
        compared = {name: _compare(app, spark, name, out) for name in VIEWS}
    return {
        "rows": FLIGHTS_ROWS,
        "epochs": epochs,
        "workers": workers,
        "seconds": round(seconds, 3),
        "rows_per_s": round(FLIGHTS_ROWS / seconds),
        "views": {name: count for name, (count, _) in compared.items()},
        "matches_spark": all(different == 0 for _, different in compared.values()),
    }


def _follow(app: App, out: TextIO) -> int:
    """Show the epochs as they end; returns how many there were."""
    deadline = time.monotonic() + WAIT_S_MAX
    epoch = 0
    while epoch < BATCHES and time.monotonic() < deadline:
        epoch = app.status()["epoch"]
        print(f"\r  {progress_bar(epoch, BATCHES)} epochs", end="", file=out, flush=True)
        time.sleep(PROGRESS_S)
    return app.wait(timeout=max(1.0, deadline - time.monotonic()))


def _show_lookups(app: App, out: TextIO) -> None:
    for name, view in VIEWS.items():
        started = time.perf_counter()
        found = app.lookup(name, list(view.shown))
        milliseconds = (time.perf_counter() - started) * 1000
        print(f"app.lookup({name!r}, {list(view.shown)})  # {milliseconds:.1f} ms", file=out)
        print(render_table(found) + "\n", file=out)


def _compare(app: App, spark: SparkSession, name: str, out: TextIO) -> tuple[int, int]:
    """Rows of the view, and how many of them Spark does not have, or has and the view has not."""
    view = app.read(name).cache()
    expected: DataFrame = spark.sql(VIEWS[name].sql)
    count, different = view.count(), differing_rows(view, expected)
    verdict = "equal to Spark's, row by row" if different == 0 else f"{different:,} ROWS DIFFER FROM SPARK'S"
    print(render_rows([f"view {name}"], [[f"{count:,} rows: {verdict}"]], [False]) + "\n", file=out)
    view.unpersist()
    return count, different
