"""From the commit of an epoch to the first lookup that shows it; and how long lookups take.

The client asks again as soon as it has its answer, so what is measured includes half a lookup of waiting, on average,
and the load of those that came too early. The view holds every key before the clock starts.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.busy import BusyOptions, measure_busy
from benchmarks.contest import with_rows
from benchmarks.events import SCHEMA, TABLE, TOTALS, VIEW
from benchmarks.figures import milliseconds
from benchmarks.hand_fed import HandFedApp
from benchmarks.lookups import LookupTask
from upriver.app import App
from upriver.client.client import Client, connect
from upriver.errors import ClusterError, WaitTimeout
from upriver.hashing import hash64
from upriver.spark.frames import SparkSession
from upriver.spark.session import local_session

SMALL, LARGE = 1, 10_000
"""Rows of the epochs that are timed."""
WARM_UP = 20
"""Epochs before the clock starts: code is loaded and compiled, connections are made."""
VISIBLE_S_MAX = 60.0
"""Seconds until an epoch must show."""
LOAD_S_MAX = 600.0
"""Seconds until the view must hold all keys."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyOptions:
    """What to measure. keys: that the view holds. epochs: of each size, published by hand. spark_epochs: through
    Spark's streaming. lookups: of each size. busy_rows, busy_epochs: rows of an epoch, and how many of these come,
    while single keys of joins are looked up."""

    workers: int
    keys: int
    epochs: int
    spark_epochs: int
    lookups: int
    busy_rows: int
    busy_epochs: int
    seed: int = 1


def measure_latency(options: LatencyOptions, say: Any = print) -> dict[str, Any]:
    """Measure it all; returns what ``--json`` prints. ``say`` is told how it goes."""
    conf = {"spark.sql.streaming.numRecentProgressUpdates": options.spark_epochs + WARM_UP + 1}
    spark = local_session(options.workers, app_name="upriver-bench", **conf)
    result: dict[str, Any] = {"workers": options.workers, "keys": options.keys}
    try:
        with tempfile.TemporaryDirectory(prefix="upriver-bench-") as directory:
            with HandFedApp(spark, Path(directory) / "hand-fed", options.workers) as app:
                say(f"a view of {options.keys:,} keys, {options.epochs} epochs of each size")
                result |= _published_to_visible(app, options)
                say("lookups from a process without Spark")
                result["lookups"] = _lookups(app, options, Path(directory))
            say(f"{options.spark_epochs} epochs of 1 row through Spark's streaming")
            result["through_spark"] = _through_spark(spark, Path(directory), options)
            say(f"lookups of joins, while {options.busy_epochs} epochs of {options.busy_rows:,} rows come")
            busy = BusyOptions(workers=options.workers, rows=options.busy_rows, epochs=options.busy_epochs)
            result["busy"] = measure_busy(spark, Path(directory), busy)
    finally:
        spark.stop()
    return result


def _published_to_visible(app: HandFedApp, options: LatencyOptions) -> dict[str, Any]:
    rng = np.random.default_rng(options.seed)
    app.publish(_events(np.arange(options.keys)))
    app.wait(LOAD_S_MAX)
    with connect(app.address, app.token) as client:
        return {
            f"rows_{rows}": milliseconds(
                [
                    _latency(app, client, rng.integers(0, options.keys, rows), 2 * options.workers)
                    for _ in range(WARM_UP + options.epochs)
                ][WARM_UP:]
            )
            for rows in (SMALL, LARGE)
        }


def _events(keys: np.ndarray) -> pa.Table:
    return pa.table([keys, np.ones(len(keys), np.int64)], schema=SCHEMA)


def _latency(app: HandFedApp, client: Client, keys: np.ndarray, watched_max: int) -> float:
    """Seconds from an epoch's commit until one lookup shows all of it."""
    watched = pa.array(spread(keys, watched_max))
    added = Counter(keys.tolist())
    before = client.lookup(VIEW, watched)
    expected = [n + added[k] for k, n in zip(before["k"].to_pylist(), before["n"].to_pylist(), strict=True)]
    published_at = app.publish(_events(keys)).at
    return _visible_at(client, watched, expected) - published_at


def spread(keys: np.ndarray, count: int) -> np.ndarray:
    """At most ``count`` of the keys, evenly spread in hash64 order, with the first and the last in that order.

    Workers own ranges of that order, so with twice as many keys as workers each worker is asked, and a worker shows
    its share of a small epoch all at once.
    """
    unique = np.unique(keys)
    in_order = unique[np.argsort(hash64([pa.array(unique)]))]
    return in_order[np.unique(np.linspace(0, len(in_order) - 1, count).astype(np.int64))]


def _visible_at(client: Client, watched: pa.Array, expected: Sequence[int]) -> float:
    """When a lookup of the watched keys first gave the counts that are expected (``time.perf_counter``)."""
    deadline = time.perf_counter() + VISIBLE_S_MAX
    while client.lookup(VIEW, watched)["n"].to_pylist() != expected:
        if time.perf_counter() > deadline:
            raise WaitTimeout(f"an epoch does not show after {VISIBLE_S_MAX:g} s")
    return time.perf_counter()


def _lookups(app: HandFedApp, options: LatencyOptions, directory: Path) -> dict[str, Any]:
    task = LookupTask(address=app.address, view=VIEW, keys=options.keys, lookups=options.lookups)
    path = directory / "lookups.json"
    path.write_text(json.dumps(asdict(task)))
    command = [sys.executable, "-m", "benchmarks.lookups", str(path)]
    # The token goes through a pipe: every user of the machine can read a command line.
    asked = subprocess.run(command, input=app.token, capture_output=True, text=True)
    if asked.returncode != 0:
        raise ClusterError(f"the process that looks up failed:\n{asked.stderr}")
    result: dict[str, Any] = json.loads(asked.stdout.splitlines()[-1])
    return result


def _through_spark(spark: SparkSession, directory: Path, options: LatencyOptions) -> dict[str, Any]:
    """One file of one row after the other, each when the last one shows, read by a streaming query of Spark's."""
    files, staged = directory / "events", directory / "staged.parquet"
    files.mkdir()
    pq.write_table(_events(np.arange(0)), staged)
    stream = spark.readStream.schema(spark.read.parquet(str(staged)).schema).parquet(str(files))
    arrived_at, visible_at = [], []
    with App(spark, str(directory / "lake"), workers=options.workers) as app:
        app.table(TABLE, stream, key="k")
        app.view(VIEW, TOTALS, key="k", partial=False)
        app.start(wait=True)
        with connect(app.address, app.token) as client:
            for number in range(WARM_UP + options.spark_epochs):
                pq.write_table(_events(np.array([number])), staged)
                os.rename(staged, files / f"{number:06d}.parquet")
                arrived_at.append(time.time())
                _visible_at(client, pa.array([number]), [1])
                visible_at.append(time.time())
        app.wait(VISIBLE_S_MAX)
        (query,) = spark.streams.active
        started_at = [datetime.fromisoformat(p.timestamp).timestamp() for p in with_rows(query.recentProgress)]
    return {
        "from_trigger": milliseconds(_differences(started_at, visible_at)),
        "from_file": milliseconds(_differences(arrived_at, visible_at)),
    }


def _differences(earlier: Sequence[float], later: Sequence[float]) -> list[float]:
    """Of all but the first ``WARM_UP``."""
    return [after - before for before, after in zip(earlier, later, strict=True)][WARM_UP:]
