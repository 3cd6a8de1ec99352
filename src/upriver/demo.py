"""The demo: a year of real flights through a whole app, while workers are added and removed and a prober looks up keys
without pause. At the end every view is compared with Spark's own result.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet

from upriver.app import App
from upriver.demo_data import FLIGHTS_ROWS, write_slices, write_tables
from upriver.demo_prober import DemoProber, DemoProbes, DemoProbeTask, Floats
from upriver.demo_views import TABLE_KEYS, VIEWS
from upriver.spark.compare import differing_rows
from upriver.spark.names import DataFrame, SparkSession
from upriver.spark.session import local_session
from upriver.text import progress_bar, render_bytes, render_rows, render_table

BATCHES = 25
"""Micro-batches of flights."""
EPOCHS = BATCHES + len(TABLE_KEYS) - 1
"""Each of the other tables is small enough for one epoch."""
TRIGGER = {"processingTime": "1 second"}
"""Seconds between micro-batches, if the machine keeps up: so the stream lasts until the rescales."""
RESCALE_AFTER = (8, 16)
"""Epochs after which two workers are added, and then one is removed."""
WAIT_S_MAX = 600.0
"""Seconds that each part of the stream, and each rescale, may take."""
PROGRESS_S = 0.2
"""Seconds between two checks of the progress."""
LINE_CHARS = 79
"""Characters of a line that changes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoRescale:
    """One rescale of the demo.

    steady_since, began, ended: when the cluster became steady before it, its own beginning and end; ``time.monotonic``.
    """

    report: Mapping[str, Any]
    steady_since: float
    began: float
    ended: float

    def to_json(self, probes: DemoProbes) -> dict[str, Any]:
        """The report, with the prober's latencies during the rescale; ``None`` if there was no lookup at that time."""
        before, during = probes.between(self.steady_since, self.began), probes.between(self.began, self.ended)
        known = ("from", "to", "strategy", "moved_keys", "moved_bytes", "seconds", "max_hold_ms")
        return {name: self.report[name] for name in known} | {
            "lookup_p99_ms_before": _percentile_ms(before, 99),
            "lookup_p99_ms_during": _percentile_ms(during, 99),
            "lookup_max_ms_during": _percentile_ms(during, 100),
        }


def _percentile_ms(seconds: Floats, percent: float) -> float | None:
    return round(float(np.percentile(seconds, percent, method="inverted_cdf")) * 1000, 3) if len(seconds) else None


def demo(options: argparse.Namespace) -> int:
    """``upriver demo``; returns the exit status."""
    result = run_demo(workers=options.workers)
    if options.json:
        print(json.dumps(result, default=str))
    return 0 if result["matches_spark"] and not result["lookups_wrong"] else 1


def run_demo(*, workers: int = 2, out: TextIO = sys.stdout) -> dict[str, Any]:
    """Run the demo, reporting to ``out``; returns what ``upriver demo --json`` prints.

    It starts with ``workers``, adds two, and then removes one.
    """
    print(f"Upriver: {FLIGHTS_ROWS:,} flights from New York in 2013, in {BATCHES} micro-batches of Spark;", file=out)
    print(
        "with the aircraft, the airports and the weather of that year. Views of all of them are kept up to date.",
        file=out,
    )
    print("A prober in a process of its own looks up random aircraft without pause and checks each answer.", file=out)
    spark = local_session(workers + 2)
    try:
        with tempfile.TemporaryDirectory(prefix="upriver-demo-") as directory:
            return _run(spark, Path(directory), workers, out)
    finally:
        spark.stop()


def _run(spark: SparkSession, directory: Path, workers: int, out: TextIO) -> dict[str, Any]:
    flights = directory / "flights"
    write_slices(flights, BATCHES)
    paths = {"flights": flights} | write_tables(directory / "tables")
    tables = {name: spark.read.parquet(str(path)) for name, path in paths.items()}
    with App(spark, str(directory / "lake"), workers=workers) as app:
        _declare(app, spark, flights, tables)
        started = time.perf_counter()
        app.start()
        with DemoProber(_task(app, flights)) as prober:
            rescales = _follow(app, workers, out)
            epochs = app.wait(timeout=WAIT_S_MAX)
            seconds = time.perf_counter() - started
            probes = prober.stop()
        print(f"\n{FLIGHTS_ROWS:,} flights in {seconds:.1f} s: {FLIGHTS_ROWS / seconds:,.0f} a second\n", file=out)
        felt = [rescale.to_json(probes) for rescale in rescales]
        _show_probes(probes, felt, out)
        _show_lookups(app, out)
        for name, rows in tables.items():
            rows.createOrReplaceTempView(name)
        compared = {name: _compare(app, spark, name, out) for name in VIEWS}
    return {
        "rows": FLIGHTS_ROWS,
        "epochs": epochs,
        "workers": workers,
        "seconds": round(seconds, 3),
        "rows_per_s": round(FLIGHTS_ROWS / seconds),
        "rescales": felt,
        "lookups": len(probes.seconds),
        "lookups_wrong": probes.wrong,
        "views": {name: count for name, (count, _) in compared.items()},
        "matches_spark": all(different == 0 for _, different in compared.values()),
    }


def _declare(app: App, spark: SparkSession, flights: Path, tables: Mapping[str, DataFrame]) -> None:
    """All tables, with the flights as a stream of one file each second; and all views."""
    schema = tables["flights"].schema
    stream = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(flights))
    app.table("flights", stream, key=TABLE_KEYS["flights"], order_by="ts", trigger=TRIGGER)
    for name in sorted(TABLE_KEYS.keys() - {"flights"}):
        app.table(name, tables[name], key=TABLE_KEYS[name])
    for name, view in VIEWS.items():
        app.view(name, view.sql, key=view.key, partial=False)


def _task(app: App, flights: Path) -> DemoProbeTask:
    """The prober's task: look up any aircraft of the whole year, including those that have not flown yet."""
    keys = pyarrow.parquet.read_table(flights, columns=["tailnum"])["tailnum"].unique().to_pylist()
    return DemoProbeTask(
        address=app.address, token=app.token, view="aircraft", key="tailnum", count="flights", keys=keys
    )


def _follow(app: App, workers: int, out: TextIO) -> list[DemoRescale]:
    """Show the epochs as they end, and rescale in between."""
    rescales: list[DemoRescale] = []
    steady_since = time.monotonic()
    for epochs, target in zip(RESCALE_AFTER, (workers + 2, workers + 1), strict=True):
        _show_epochs(app, epochs, out)
        rescales.append(_rescale(app, target, steady_since, out))
        steady_since = rescales[-1].ended
    _show_epochs(app, EPOCHS, out)
    _say(f"{progress_bar(app.status()['epoch'], EPOCHS)} epochs", out)
    return rescales


def _show_epochs(app: App, until: int, out: TextIO) -> None:
    deadline = time.monotonic() + WAIT_S_MAX
    status = app.status()
    while status["epoch"] < until and not status["failure"] and time.monotonic() < deadline:
        _show_line(f"{progress_bar(status['epoch'], EPOCHS)} epochs", out)
        time.sleep(PROGRESS_S)
        status = app.status()
    _show_line(f"{progress_bar(status['epoch'], EPOCHS)} epochs", out)


def _show_line(text: str, out: TextIO) -> None:
    """On a terminal, write over the last line; elsewhere, changing lines are not shown."""
    if out.isatty():
        print(f"\r  {text}".ljust(LINE_CHARS), end="", file=out, flush=True)


def _say(text: str, out: TextIO) -> None:
    """A line that stays, in place of the changing one."""
    _show_line("", out)
    print(("\r  " if out.isatty() else "  ") + text, file=out, flush=True)


def _rescale(app: App, workers: int, steady_since: float, out: TextIO) -> DemoRescale:
    first_epoch, began = app.status()["epoch"], time.monotonic()
    rescale = app.rescale(workers)
    for progress in rescale.follow(WAIT_S_MAX):
        now = f"{progress_bar(app.status()['epoch'], EPOCHS)} epochs"
        _show_line(f"{now}, on the way to {workers} workers: {progress['state']}", out)
    ended = time.monotonic()
    report = rescale.outcome()
    moved = f"{report['moved_keys']:,} keys ({render_bytes(report['moved_bytes'])}) moved in {report['seconds']:.2f} s"
    epochs = f"from epoch {first_epoch} to {app.status()['epoch']}"
    _say(f"{report['from']} -> {report['to']} workers {epochs}: {moved}", out)
    return DemoRescale(report=report, steady_since=steady_since, began=began, ended=ended)


def _show_probes(probes: DemoProbes, rescales: Sequence[Mapping[str, Any]], out: TextIO) -> None:
    right = (
        f"{probes.wrong:,} WERE WRONG, the first: {probes.first_wrong}" if probes.wrong else "every answer was right"
    )
    print(f"Meanwhile the prober looked up {len(probes.seconds):,} keys: {right}.", file=out)
    shown = ("max_hold_ms", "lookup_p99_ms_before", "lookup_p99_ms_during", "lookup_max_ms_during")
    names = ["workers", "keys moved", "longest wait of a key", "lookups p99 before", "p99 during", "slowest during"]
    cells = [
        [f"{r['from']} -> {r['to']}", f"{r['moved_keys']:,}", *(_milliseconds(r[name]) for name in shown)]
        for r in rescales
    ]
    print(render_rows(names, cells, [False, True, True, True, True, True]) + "\n", file=out)


def _milliseconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} ms"


def _show_lookups(app: App, out: TextIO) -> None:
    for name, view in VIEWS.items():
        started = time.perf_counter()
        found = app.lookup(name, list(view.shown))
        milliseconds = (time.perf_counter() - started) * 1000
        print(f"# {view.about}", file=out)
        print(f"app.lookup({name!r}, {list(view.shown)})  # {milliseconds:.1f} ms", file=out)
        print(render_table(_rounded(found)) + "\n", file=out)


def _rounded(rows: pa.Table) -> pa.Table:
    """Means of minutes, as people read them."""
    columns = [pc.round(c, 3) if pa.types.is_floating(c.type) else c for c in rows.columns]
    return pa.Table.from_arrays(columns, names=rows.column_names)


def _compare(app: App, spark: SparkSession, name: str, out: TextIO) -> tuple[int, int]:
    """The number of rows of the view, and how many of them differ from Spark's."""
    view = app.read(name).cache()
    expected: DataFrame = spark.sql(VIEWS[name].sql)
    count, different = view.count(), differing_rows(view, expected)
    verdict = "equal to Spark's, row by row" if different == 0 else f"{different:,} ROWS DIFFER FROM SPARK'S"
    print(render_rows([f"view {name}"], [[f"{count:,} rows: {verdict}"]], [False]) + "\n", file=out)
    view.unpersist()
    return count, different
