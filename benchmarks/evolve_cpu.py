"""CPU time of the workers' processes for twenty views over one table, beside one view."""

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.hand_fed import HandFedApp, HandFedView
from benchmarks.process_tree import parse_stat
from benchmarks.recovery_kill import pid_listening
from upriver.plan.plan import TableSpec
from upriver.spark.frames import SparkSession

EVENTS = TableSpec("events", pa.schema([("k", pa.int64()), ("v", pa.int64())]), ("k",))
VIEWS = (1, 20)
EPOCHS = {"small": 500, "large": 100_000}
"""Rows of an epoch: many epochs cost what each of them costs, few large ones what their rows do."""
KEYS = 100_000
WARM_UP_EPOCHS = 10
ROWS_S_MAX = 900.0
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def measure_cpu(spark: SparkSession, rows: int, workers: int) -> dict[str, Any]:
    """CPU seconds of all workers per million rows, by the size of the epochs and the number of views. Of small epochs a
    tenth of the rows are taken."""
    found: dict[str, dict[str, float]] = {size: {} for size in EPOCHS}
    for count in VIEWS:
        views = [_view(number) for number in range(count)]
        with (
            tempfile.TemporaryDirectory(prefix="upriver-bench-") as directory,
            HandFedApp(spark, Path(directory) / "lake", workers, views) as app,
        ):
            processes = [pid_listening(worker["address"]) for worker in app.status()["workers"]]
            _published(app, WARM_UP_EPOCHS, EPOCHS["small"])
            for size, each in EPOCHS.items():
                epochs = max(1, (rows // 10 if size == "small" else rows) // each)
                before = _cpu_s(processes)
                _published(app, epochs, each)
                found[size][str(count)] = round((_cpu_s(processes) - before) * 1e6 / (epochs * each), 2)
    return found


def _view(number: int) -> HandFedView:
    sql = f"SELECT k, count(*) AS n, sum(v + {number}) AS total FROM events GROUP BY k"
    return HandFedView(name=f"v{number}", sql=sql, key="k", tables=(EVENTS,))


def _published(app: HandFedApp, epochs: int, each: int) -> None:
    rng = np.random.default_rng(each)
    for _ in range(epochs):
        app.publish(pa.table([rng.integers(0, KEYS, each), np.arange(each)], schema=EVENTS.schema))
    app.wait(ROWS_S_MAX)


def _cpu_s(processes: Sequence[int]) -> float:
    return sum(parse_stat(Path(f"/proc/{pid}/stat").read_bytes()).own for pid in processes) / _TICKS_PER_S
