"""What an app costs while no rows come, by its number of tables, and how soon a row is seen then."""

import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.figures import percentile
from benchmarks.process_tree import Meter
from upriver.app import App
from upriver.errors import WaitTimeout
from upriver.spark.session import local_session
from upriver.text import render_rows

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])
SEEN_S_MAX = 60.0
"""Seconds until a row must be seen."""
SETTLE_S = 5.0
"""Seconds between the start and the span that is measured: the JVM still compiles."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleOptions:
    """tables: numbers of tables, each for an app of its own. seconds: that are measured without a row. rows: that
    come one by one, each for another table."""

    tables: Sequence[int]
    seconds: int
    rows: int


def measure_idle(options: IdleOptions, say: Callable[[str], object] = print) -> dict[str, Any]:
    """Measure each number of tables; returns what ``--json`` prints."""
    spark = local_session(1, app_name="upriver-bench")
    try:
        with tempfile.TemporaryDirectory(prefix="upriver-bench-") as directory:
            _measured(spark, Path(directory) / "warm-up", 1, IdleOptions(tables=(), seconds=1, rows=2))
            found = {}
            for number in options.tables:
                say(f"{number} tables: {options.seconds} s without a row, then {options.rows} rows")
                found[str(number)] = _measured(spark, Path(directory) / str(number), number, options)
            return {"tables": found}
    finally:
        spark.stop()


def _measured(spark: Any, directory: Path, tables: int, options: IdleOptions) -> dict[str, float]:
    folders = [directory / f"t{number}" for number in range(tables)]
    with App(spark, directory / "lake", workers=1) as app:
        for number, folder in enumerate(folders):
            folder.mkdir(parents=True)
            _put(folder, 0, -1)
            rows = spark.readStream.schema("k LONG, v LONG").parquet(str(folder))
            app.table(f"t{number}", rows, key="k")
            app.view(f"v{number}", f"SELECT k, v FROM t{number}", key="k", partial=False)
        began = time.monotonic()
        app.start(wait=True)
        start_s = time.monotonic() - began
        time.sleep(SETTLE_S)
        meter = Meter(os.getpid())
        meter.sample()
        idle_from = time.time()
        time.sleep(options.seconds)
        meter.sample()
        cpu_s = meter.usage(idle_from, time.time()).cpu_s
        seen_s = [_seen_s(app, folders, row) for row in range(1, options.rows + 1)]
    return {
        "cpu_percent": round(100 * cpu_s / options.seconds, 1),
        "row_seen_p50_ms": round(percentile(seen_s, 50) * 1e3, 1),
        "start_s": round(start_s, 2),
    }


def _put(folder: Path, number: int, key: int) -> None:
    """A file of one row, which appears whole."""
    hidden = folder / f".{number}"
    pq.write_table(pa.table([np.array([key]), np.array([number])], schema=SCHEMA), hidden)
    hidden.rename(folder / f"{number:06d}.parquet")


def _seen_s(app: App, folders: Sequence[Path], row: int) -> float:
    """Seconds from a file of one row to the first lookup that shows it."""
    table = row % len(folders)
    began = time.perf_counter()
    _put(folders[table], row, row)
    while not app.lookup(f"v{table}", [row]).num_rows:
        if time.perf_counter() - began > SEEN_S_MAX:
            raise WaitTimeout(f"a row is not seen after {SEEN_S_MAX:g} s")
        time.sleep(0.002)
    return time.perf_counter() - began


def render_idle(measured: Mapping[str, Any]) -> str:
    """The result for a person."""
    names = ["cpu_percent", "row_seen_p50_ms", "start_s"]
    rows = [[number, *(f"{figures[name]:,}" for name in names)] for number, figures in measured["tables"].items()]
    return "\n" + render_rows(["tables", *names], rows, [True] * 4)
