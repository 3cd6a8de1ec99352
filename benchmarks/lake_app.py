"""An app on local Spark that opens a lake of many epochs: its start, keys that are missing, a new view, its memory.

Each age is measured in a process of its own, which makes the lake (lake.py), opens it with a real app, and compares
every view with what Spark says of the same rows. A lake that was never compacted is what an app of version 0.2 leaves:
there the app compacts while lookups go on, and starts once more.
"""

import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.figures import percentile
from benchmarks.lake import AgingLake, LakeOptions
from benchmarks.worker_memory import memory_of
from upriver.app import App
from upriver.client.client import Client, connect
from upriver.errors import ClusterError
from upriver.spark.frames import SparkSession, differing_rows
from upriver.spark.session import local_session
from upriver.text import render_rows

WORKERS = 2
START_S_MAX = 600.0
"""Seconds in which an app must be up and ready."""
COMPACTED_S_MAX = 1_200.0
"""Seconds in which an app must have made all segments that are due."""
COLD_KEYS = 200
"""Keys that are looked up once each."""
POLL_S = 0.02
SCHEMA = "id long, at long, balance long"
VIEWS = {
    "balances": "SELECT id, at, balance FROM accounts",
    "bands": "SELECT id % 100 AS band, count(*) AS n, sum(balance) AS total FROM accounts GROUP BY id % 100",
    "rich": "SELECT id, balance FROM accounts WHERE balance % 2 = 0",
    "added": "SELECT id, at + balance AS points FROM accounts",
}
KEYS = {"balances": "id", "bands": "band", "rich": "id", "added": "id"}
PARTIAL = "balances"
CURRENT = "SELECT id, max(at) AS at, max_by(balance, at) AS balance FROM versions GROUP BY id"
"""The rows of the upsert table, of all versions."""


@dataclass(frozen=True, slots=True)
class RowFiles:
    """Files with the rows that are in the lake at first, and those that a stream brings."""

    old: Path
    new: Path


def measure_lake_app(options: LakeOptions, uncompacted: int, say: Callable[[str], None] = print) -> dict[str, Any]:
    """Measure an app at each age; returns what ``--json`` prints. uncompacted: epochs of a lake that was never
    compacted; 0 for none."""
    ages = {str(age): _in_process(options, age, True, say) for age in options.epochs}
    found: dict[str, Any] = {"keys": options.keys, "epochs": ages}
    first, last = ages[str(options.epochs[0])], ages[str(options.epochs[-1])]
    found["growth"] = {name: round(last[name] / first[name], 2) for name in first if name != "right"}
    found["uncompacted"] = _in_process(options, uncompacted, False, say) if uncompacted else None
    measured = [*ages.values(), *([found["uncompacted"]] if uncompacted else [])]
    return {**found, "right": all(each["right"] for each in measured)}


def _in_process(options: LakeOptions, age: int, is_compacted: bool, say: Callable[[str], None]) -> dict[str, Any]:
    say(f"a lake of {age:,} epochs{'' if is_compacted else ', never compacted'}")
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as processes:
        measured: dict[str, Any] = processes.submit(_measure, options, age, is_compacted).result()
    return measured


def _measure(options: LakeOptions, age: int, is_compacted: bool) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="upriver-bench-") as name:
        directory = Path(name)
        aging = AgingLake(str(directory / "lake"), options)
        try:
            aging.age(age) if is_compacted else aging.publish_through(age)
        finally:
            aging.release()
        spark = local_session(WORKERS, app_name="upriver-bench")
        try:
            return measure_app_on(spark, directory, aging, is_compacted)
        finally:
            spark.stop()


def measure_app_on(spark: SparkSession, directory: Path, aging: AgingLake, is_compacted: bool) -> dict[str, Any]:
    """The figures of an app on a lake that is there. directory: for files of rows."""
    rows = RowFiles(directory / "old", directory / "new")
    at = np.repeat(np.arange(1, len(aging.versions) + 1), [len(ids) for ids in aging.versions])
    _write(rows.old / "0.parquet", np.concatenate(aging.versions), at)
    rows.new.mkdir()
    case = _Case(spark, aging.root, rows, len(aging.newest))
    return case.compacted() if is_compacted else case.uncompacted()


def _write(path: Path, ids: np.ndarray, at: np.ndarray) -> None:
    """A file of versions, which a stream sees when it is whole."""
    path.parent.mkdir(exist_ok=True)
    hidden = path.with_name(f".{path.name}")
    pq.write_table(pa.table({"id": ids, "at": at, "balance": at}), hidden)
    hidden.rename(path)


class _Case:
    """The lake of one age, and apps on it, one after the other."""

    def __init__(self, spark: SparkSession, root: str, rows: RowFiles, keys: int) -> None:
        self._spark = spark
        self._root = root
        self._rows = rows
        self._keys = keys

    def compacted(self) -> dict[str, Any]:
        """The figures of an app on a lake whose epochs are in segments."""
        figures, app = self._start()
        with app:
            figures |= self._lookups(app)
            figures["new_view_s"] = self._new_view(app)
            is_right = self._is_right(app, VIEWS)
            self._feed(app)
            is_right &= self._is_right(app, VIEWS)
            figures["driver_mb"] = _resident_mb()
        return {**figures, "right": is_right}

    def uncompacted(self) -> dict[str, Any]:
        """The figures of an app on a lake that was never compacted, and of the next one."""
        views = {view: sql for view, sql in VIEWS.items() if view != "added"}
        figures, app = self._start()
        with app:
            figures |= self._lookups(app)
            figures |= self._compaction(app)
            is_right = self._is_right(app, views)
            self._feed(app)
            is_right &= self._is_right(app, views)
            app.checkpoint(timeout=START_S_MAX)
            figures["driver_mb"] = _resident_mb()
        again, app = self._start()
        with app:
            is_right &= self._is_right(app, views)
        figures |= {f"second_{name}": figure for name, figure in again.items()}
        return {**figures, "right": is_right}

    def _start(self) -> tuple[dict[str, float], App]:
        app = App(self._spark, self._root, workers=WORKERS)
        stream = self._spark.readStream.schema(SCHEMA).parquet(str(self._rows.new))
        app.table("accounts", stream, key="id", primary_key="id", order_by="at", replace_source=True)
        for view, sql in VIEWS.items():
            if view != "added":
                app.view(view, sql, key=KEYS[view], partial=view == PARTIAL)
        began = time.perf_counter()
        app.start(timeout=START_S_MAX)
        started = time.perf_counter()
        _await("ready", lambda: app.ready, START_S_MAX)
        ready = time.perf_counter()
        return {"start_s": round(started - began, 2), "ready_s": round(ready - began, 2)}, app

    def _lookups(self, app: App) -> dict[str, float]:
        """Milliseconds of lookups of keys that are missing: the first, and others."""
        keys = np.random.default_rng(1).choice(self._keys, min(self._keys, COLD_KEYS + 1), replace=False)
        with connect(app.address, app.token) as client:
            first, *others = [_lookup_s(client, int(key)) for key in keys]
        return {
            "first_lookup_ms": round(first * 1e3, 1),
            "cold_lookup_p50_ms": round(percentile(others, 50) * 1e3, 2),
            "cold_lookup_p99_ms": round(percentile(others, 99) * 1e3, 2),
        }

    def _new_view(self, app: App) -> float:
        """Seconds until a new view that keeps all keys has answered."""
        began = time.perf_counter()
        app.view("added", VIEWS["added"], key=KEYS["added"], partial=False)
        app.lookup("added", [0], timeout=START_S_MAX)
        return round(time.perf_counter() - began, 2)

    def _compaction(self, app: App) -> dict[str, float]:
        """Seconds from then on until all segments that are due are made, and lookups and rows meanwhile. Compaction has
        begun by then: it follows the workers through the old epochs."""
        began, took, fed = time.perf_counter(), list[float](), list[float]()
        chance = np.random.default_rng(2)
        with connect(app.address, app.token) as client:
            while not took or not _is_compacted(app):
                if time.perf_counter() - began > COMPACTED_S_MAX:
                    raise ClusterError(f"segments are not made after {COMPACTED_S_MAX:g} s: {app.status()['lake']}")
                took += [_lookup_s(client, int(key)) for key in chance.integers(self._keys, size=50)]
                fed.append(self._feed(app))
        return {
            "compacted_s": round(time.perf_counter() - began, 1),
            "lookup_meanwhile_p50_ms": round(percentile(took, 50) * 1e3, 2),
            "lookup_meanwhile_p99_ms": round(percentile(took, 99) * 1e3, 2),
            "row_meanwhile_p50_s": round(percentile(fed, 50), 2),
            "row_meanwhile_max_s": round(max(fed), 2),
        }

    def _feed(self, app: App) -> float:
        """New versions of some keys; the seconds until every view has them."""
        number = len(list(self._rows.new.iterdir()))
        ids = np.arange(number % 7, self._keys, 7)
        began = time.perf_counter()
        _write(self._rows.new / f"{number}.parquet", ids, np.full(len(ids), 10**9 + number))
        app.wait(timeout=START_S_MAX)
        return time.perf_counter() - began

    def _is_right(self, app: App, views: dict[str, str]) -> bool:
        """Whether all views are what Spark says of all rows, and each key of the partial one is, too."""
        read = self._spark.read.schema(SCHEMA).parquet(str(self._rows.old), str(self._rows.new))
        read.createOrReplaceTempView("versions")
        self._spark.sql(CURRENT).createOrReplaceTempView("accounts")
        is_right = all(differing_rows(app.read(view), self._spark.sql(sql)) == 0 for view, sql in views.items())
        found = app.lookup(PARTIAL, pa.array(np.arange(self._keys)), timeout=START_S_MAX)
        expected = self._spark.sql(VIEWS[PARTIAL])
        return is_right and differing_rows(self._spark.createDataFrame(found), expected) == 0


def _lookup_s(client: Client, key: int) -> float:
    began = time.perf_counter()
    client.lookup(PARTIAL, [key], timeout=START_S_MAX)
    return time.perf_counter() - began


def _is_compacted(app: App) -> bool:
    lake = app.status()["lake"]
    if lake["failed"]:
        raise ClusterError(f"compaction has failed: {lake['failed']}")
    return bool(lake["made"]) and not lake["due"]


def _await(what: str, is_so: Callable[[], bool], seconds: float) -> None:
    give_up_at = time.monotonic() + seconds
    while not is_so():
        if time.monotonic() > give_up_at:
            raise ClusterError(f"the app is not {what} after {seconds:g} s")
        time.sleep(POLL_S)


def _resident_mb() -> float:
    """Of this process, in which the driver is, without Spark's JVM."""
    return round(memory_of([os.getpid()]).resident / 1e6, 1)


def render_lake_app(measured: dict[str, Any]) -> str:
    """The result for a person."""
    names = list(measured["growth"])
    rows = [[f"{int(age):,}", *(f"{each[name]:,}" for name in names)] for age, each in measured["epochs"].items()]
    rows.append(["last over first", *(str(measured["growth"][name]) for name in names)])
    lines = ["", render_rows(["epochs", *names], rows, [False, *(True for _ in names)])]
    if measured["uncompacted"]:
        figures = [[name, f"{figure:,}"] for name, figure in measured["uncompacted"].items() if name != "right"]
        lines += ["", render_rows(["never compacted", ""], figures, [False, True])]
    return "\n".join([*lines, "", "Every answer was right." if measured["right"] else "SOME ANSWERS WERE WRONG."])
