"""The demo: a year of real flights streams through an app, which is rescaled meanwhile and answers lookups.

At the end every view is compared with Spark's own answer, row by row.
"""

import argparse
import secrets
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any, NamedTuple, Self, TextIO

import pyarrow as pa

from upriver.app import App
from upriver.arguments import at_least
from upriver.demo_data import TABLE_KEYS, demo_tables, write_tables
from upriver.errors import WaitTimeout
from upriver.options import TOKEN_BYTES, Doors, Tokens
from upriver.spark.frames import SparkSession, differing_rows
from upriver.spark.session import local_session
from upriver.text import print_json, progress_bar, render_table

BATCHES = 25
"""Micro-batches of flights."""
TRIGGER = {"processingTime": "1 second"}
"""From one micro-batch to the next, if the machine keeps up: the stream must outlast the rescales."""
PROBED_KEYS = 1000
"""Aircraft that are looked up while the flights stream in."""
WAIT_S_MAX = 600.0
"""Seconds that each part of the stream, and each rescale, may take."""


class DemoView(NamedTuple):
    """A view, and the keys of it that the demo shows."""

    sql: str
    key: tuple[str, ...]
    shown: tuple[Any, ...]


# ``routes`` counts first, then joins: so the join keeps one row for each route, and not each flight.
VIEWS: Mapping[str, DemoView] = {
    "aircraft": DemoView(
        """SELECT tailnum, count(*) AS flights, sum(distance) AS miles, round(avg(arr_delay), 1) AS mean_delay
           FROM flights GROUP BY tailnum""",
        key=("tailnum",),
        shown=("N14228", "N24211"),
    ),
    "routes": DemoView(
        """SELECT origin, dest, name AS destination, flights, fastest
           FROM (SELECT origin, dest, count(*) AS flights, min(air_time) AS fastest FROM flights GROUP BY origin, dest)
           LEFT JOIN airports ON dest = faa""",
        key=("origin", "dest"),
        shown=(("JFK", "LAX"), ("EWR", "SFO")),
    ),
    "model_weather": DemoView(
        """SELECT model, CASE WHEN precip > 0 AND temp <= 33 THEN 'snow' WHEN precip > 0 THEN 'rain'
                              WHEN visib < 3 THEN 'fog' WHEN wind_speed > 20 THEN 'wind' ELSE 'fair' END AS conditions,
                  count(*) AS flights, round(avg(dep_delay), 1) AS mean_delay, max(dep_delay) AS worst_delay
           FROM flights JOIN planes USING (tailnum) JOIN weather USING (origin, time_hour)
           GROUP BY model, conditions""",
        key=("model",),
        shown=("737-824",),
    ),
}
"""Views of one table, of two, and of three. ``aircraft`` is partial: workers keep the keys that are looked up."""


class DemoProber:
    """Looks random aircraft up on a thread of its own, without pause, and checks each answer."""

    def __init__(self, look_up: Callable[[str | None], pa.Table], keys: Sequence[str | None]) -> None:
        self.seconds: list[float] = []  # of each lookup
        self.faults: list[str] = []  # a line for each wrong answer and each failed lookup
        self._look_up, self._keys = look_up, keys
        self._counts: dict[str | None, int] = {}
        self._is_stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_stopped.set()
        self._thread.join()

    def _run(self) -> None:
        lots = Random(1)
        while not self._is_stopped.is_set():
            key = lots.choice(self._keys)
            began = time.monotonic()
            try:
                fault = self._fault(key, self._look_up(key))
            except Exception as error:  # of any kind: a lookup that fails is no right answer
                fault = f"{type(error).__name__}: {error}"
            self.seconds.append(time.monotonic() - began)
            self.faults += [f"{key!r}: {fault}"] if fault else []

    def _fault(self, key: str | None, found: pa.Table) -> str | None:
        """The error in an answer, if there is one: rows of another key, or fewer flights than before."""
        if found["tailnum"].to_pylist() not in ([], [key]):
            return f"the answer has rows of {found['tailnum'].to_pylist()}"
        count = sum(found["flights"].to_pylist())
        before, self._counts[key] = self._counts.get(key, 0), count
        return f"the count of flights went from {before} to {count}" if count < before else None


def demo(options: argparse.Namespace) -> int:
    """``upriver demo``; returns the exit status."""
    at_least("--workers", options.workers, 1)  # before Spark starts: errors come at once
    Doors(http=options.http)
    tables = demo_tables()
    with local_session(options.workers + 2) as spark, tempfile.TemporaryDirectory(prefix="upriver-demo-") as directory:
        result = run_demo(spark, tables, Path(directory), workers=options.workers, http=options.http)
    if options.json:
        print_json(result)
    return 0 if result["matches_spark"] and not result["lookups_wrong"] else 1


def run_demo(
    spark: SparkSession,
    tables: Mapping[str, pa.Table],
    directory: Path,
    *,
    workers: int = 2,
    batches: int = BATCHES,
    http: str | None = None,
    out: TextIO = sys.stdout,
) -> dict[str, Any]:
    """Run the demo over ``tables``, with files below ``directory``; returns what ``upriver demo --json`` prints.

    It starts with ``workers``, adds two after a third of the flights, and removes one after two thirds.
    http: the address at which the driver shows the page until Ctrl-C; ``None``: it shows none.
    """
    total = tables["flights"].num_rows
    print(f"{total:,} flights stream in; {PROBED_KEYS:,} aircraft are looked up all the while\n", file=out)
    paths = write_tables(tables, directory, batches)
    reader = secrets.token_hex(TOKEN_BYTES)
    with App(spark, directory / "lake", workers=workers, doors=Doors(http=http), tokens=Tokens(reader=reader)) as app:
        _declare(app, spark, paths, changes=http is not None)
        began = time.perf_counter()
        app.start()
        if http is not None:
            print(f"the page: http://{app.http_address}/ (log in with {app.token})", file=out)
            print(f"for readers: UPRIVER_ADDRESS={app.address} UPRIVER_TOKEN={reader}\n", file=out, flush=True)
        aircraft = tables["flights"]["tailnum"].unique().to_pylist()[:PROBED_KEYS]
        with DemoProber(lambda key: app.lookup("aircraft", [key], allow_warming=True), aircraft) as prober:
            _watch(app, total // 3, total, out)
            reports = [_rescale(app, workers + 2, prober, out)]
            _watch(app, total * 2 // 3, total, out)
            reports.append(_rescale(app, workers + 1, prober, out))
            _watch(app, total, total, out)
            app.wait(timeout=WAIT_S_MAX)
        seconds = time.perf_counter() - began
        print(f"{total:,} flights in {seconds:.1f} s: {total / seconds:,.0f} a second", file=out)
        _show_lookups(app, prober, out)
        compared = {name: _compare(app, spark, name, out) for name in VIEWS}
        if http is not None and out.isatty():
            _stay(app, out)
    return {
        "rows": total,
        "workers": workers,
        "seconds": round(seconds, 3),
        "rows_per_s": round(total / seconds),
        "rescales": reports,
        "lookups": len(prober.seconds),
        "lookups_wrong": len(prober.faults),
        "views": {name: count for name, (count, _) in compared.items()},
        "matches_spark": not any(different for _, different in compared.values()),
    }


def _declare(app: App, spark: SparkSession, paths: Mapping[str, Path], *, changes: bool) -> None:
    """All tables, with the flights as a stream that takes one file at a time; and all views. changes: of ``routes`` are
    kept for readers (``examples/spark_connect.py``)."""
    for name, path in paths.items():
        rows = spark.read.parquet(str(path))
        rows.createOrReplaceTempView(name)  # for Spark's own answer
        if name == "flights":
            stream = spark.readStream.schema(rows.schema).option("maxFilesPerTrigger", 1).parquet(str(path))
            app.table(name, stream, key=TABLE_KEYS[name], trigger=TRIGGER)
        else:
            app.table(name, rows, key=TABLE_KEYS[name])
    for name, view in VIEWS.items():
        keeps = changes and name == "routes"
        app.view(name, view.sql, key=view.key, partial=name == "aircraft", changes=keeps)


def _watch(app: App, rows: int, total: int, out: TextIO) -> None:
    """Wait until so many flights are in the lake; a terminal shows how many are."""
    deadline = time.monotonic() + WAIT_S_MAX
    while True:
        status = app.status()
        seen = status["tables"]["flights"]["rows"]
        if out.isatty():
            print(f"\r{progress_bar(seen, total)} flights", end="" if seen < rows else "\n", file=out, flush=True)
        if seen >= rows:
            return
        if status["failure"] is not None or time.monotonic() > deadline:
            raise WaitTimeout(f"{seen:,} flights of {rows:,} have come: {status['failure'] or 'the time is over'}")
        time.sleep(0.2)


def _rescale(app: App, workers: int, prober: DemoProber, out: TextIO) -> dict[str, Any]:
    """Rescale, say how it went, and return the report."""
    before = len(prober.seconds)
    report = app.rescale(workers).wait(timeout=WAIT_S_MAX)
    moved = f"{report['moved_keys']:,} keys moved in {report['seconds']:.2f} s"
    waits = f"longest wait of a key {report['max_hold_ms']:.0f} ms"
    slowest = f"slowest lookup meanwhile {max(prober.seconds[before:], default=0.0) * 1000:.0f} ms"
    print(f"{report['from']} -> {report['to']} workers: {moved}; {waits}, {slowest}", file=out)
    return report


def _stay(app: App, out: TextIO) -> None:
    """Leave the app running for viewers of its page, until Ctrl-C."""
    print(f"\nhttp://{app.http_address}/ stays open until Ctrl-C", file=out, flush=True)
    with suppress(KeyboardInterrupt):
        threading.Event().wait()


def _show_lookups(app: App, prober: DemoProber, out: TextIO) -> None:
    """What the prober saw, what lookups have brought into memory, and some rows of each view."""
    ordered = sorted(prober.seconds)
    median, high = (f"{ordered[len(ordered) * percent // 100] * 1000:.1f} ms" for percent in (50, 99))
    verdict = f"{len(prober.faults):,} WERE WRONG: {prober.faults[0]}" if prober.faults else "every answer was right"
    print(f"{len(ordered):,} lookups meanwhile: {verdict}; median {median}, p99 {high}", file=out)
    cached = app.status()["views"]["aircraft"]["cached_keys"]
    print(f"view aircraft is partial: {cached:,} keys are in memory, those that were looked up\n", file=out)
    for name, view in VIEWS.items():
        found = app.lookup(name, list(view.shown), timeout=WAIT_S_MAX)
        print(f"app.lookup({name!r}, {list(view.shown)})\n{render_table(found)}\n", file=out)


def _compare(app: App, spark: SparkSession, name: str, out: TextIO) -> tuple[int, int]:
    """The number of rows of the view, and how many differ from Spark's answer."""
    view = VIEWS[name]
    theirs = spark.sql(view.sql)
    if name == "aircraft":  # partial: look every key up
        keys = theirs.select(*view.key).distinct().toArrow()
        ours = spark.createDataFrame(app.lookup(name, keys, timeout=WAIT_S_MAX))
    else:
        ours = app.read(name)
    count, different = ours.count(), differing_rows(ours, theirs)
    verdict = "equal to Spark's, row by row" if different == 0 else f"{different:,} ROWS DIFFER FROM SPARK'S"
    print(f"view {name}: {count:,} rows, {verdict}", file=out)
    return count, different
