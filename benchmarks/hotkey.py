"""One key with millions of rows beside many small ones, at one worker: ``python -m benchmarks hotkey``.

One process looks small keys up all the time, warm ones and cold ones, and waits for epochs to show. Another one looks
the hot key up: the first lookup fills it out of the lake, the next ones return it. At last an epoch brings many more of
its rows. What the first process sees meanwhile is held against what it saw before.
"""

import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from benchmarks.figures import percentile
from benchmarks.hand_fed import HandFedApp, HandFedView
from benchmarks.hotkey_prober import HotTask, OthersTask
from benchmarks.probed_load import ProbedLoad, Probing
from upriver.client.client import connect
from upriver.plan.plan import TableSpec
from upriver.spark.frames import SparkSession
from upriver.spark.session import local_session

HOT_KEY = 0
ROWS_PER_KEY = 2
"""Rows of a small key: a key with one row could be found on a worker's board, and its lookup would ask no worker."""
WATCHED_KEY = 1
"""Each small epoch has a row of this key."""
LOAD_S_MAX = 600.0

EVENTS = TableSpec("events", pa.schema([("k", pa.int64()), ("v", pa.int64())]), ("k",))
NAMES = TableSpec("names", pa.schema([("k", pa.int64()), ("owner", pa.int64())]), ("k",))
VIEWS = {
    "rows": HandFedView(name="rows", sql="SELECT k, v FROM events", key="k", tables=(EVENTS,), partial=True),
    "counted": HandFedView(
        name="counted",
        sql="SELECT e.k, e.v, n.owner FROM events e LEFT JOIN names n ON e.k = n.k",
        key="k",
        tables=(EVENTS, NAMES),
        partial=True,
    ),
    "cone": HandFedView(
        name="cone",
        sql="""
        SELECT n.owner AS k, e.v, e.n
        FROM names n JOIN (SELECT k, v, count(*) AS n FROM events GROUP BY k, v) e ON n.k = e.k
        """,
        key="k",
        tables=(EVENTS, NAMES),
        partial=True,
    ),
    "staged": HandFedView(
        name="staged",
        sql="SELECT n.owner AS k, e.v FROM events e JOIN names n ON e.k = n.k",
        key="k",
        tables=(EVENTS, NAMES),
    ),
}
"""By what their rows are kept in: rows that only come; rows that may be taken back; rows that cross an exchange, of
keys that are looked up, and of all keys."""

Figures = dict[str, Any]
Window = tuple[float, float]
Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class HotKeyOptions:
    """What to measure. rows: of the hot key. keys: small ones. epoch_rows: of the hot key, in one epoch at the end.
    lookups: of the hot key when it is warm. steady_s: seconds of load before its first. epochs_per_s: of one row."""

    rows: int
    keys: int
    epoch_rows: int
    lookups: int
    steady_s: float
    epochs_per_s: float
    views: tuple[str, ...] = tuple(VIEWS)
    seed: int = 1


def measure_hotkey(options: HotKeyOptions, say: Any = print) -> Figures:
    """Measure each of the views; returns what ``--json`` prints. ``say`` is told how it goes."""
    spark = local_session(1, app_name="upriver-bench")
    try:
        with tempfile.TemporaryDirectory(prefix="upriver-bench-") as directory:
            return measure_views(spark, Path(directory), options, say)
    finally:
        spark.stop()


def measure_views(spark: SparkSession, directory: Path, options: HotKeyOptions, say: Any = print) -> Figures:
    """As :func:`measure_hotkey`, in a session and a directory that are there."""
    result: Figures = {"rows": options.rows, "keys": options.keys, "views": {}}
    for name in options.views:
        say(f"{name}: a key of {options.rows:,} rows beside {options.keys:,} others")
        (directory / name).mkdir()
        result["views"][name] = _measure(spark, directory / name, VIEWS[name], options)
    return result


def _measure(spark: SparkSession, directory: Path, view: HandFedView, options: HotKeyOptions) -> Figures:
    with HandFedApp(spark, directory / "lake", 1, (view,)) as app:
        _load(app, view, options)
        keys = (WATCHED_KEY + 1, WATCHED_KEY + options.keys)
        task = OthersTask(
            address=app.address,
            view=view.name,
            first=keys[0],
            last=keys[1],
            watched=WATCHED_KEY,
            result=str(directory / "others.arrow"),
            seed=options.seed,
        )
        with _Others(task, app, directory / "others", options.epochs_per_s) as others:
            began = time.perf_counter()
            threading.Event().wait(options.steady_s)
            windows = {"before": (began, time.perf_counter())}
            windows |= _looked_up(app, view, directory / "hot", options.lookups)
            others.check()
            windows["epoch"] = others.large_epoch(_events(np.full(options.epoch_rows, HOT_KEY), options.rows))
        expected = options.rows + options.epoch_rows
        found = _rows_of(app, view.name, [HOT_KEY, WATCHED_KEY], expected + others.published)
        return {**_by_window(others.answers, windows), "right": found == [expected, ROWS_PER_KEY + others.published]}


def _load(app: HandFedApp, view: HandFedView, options: HotKeyOptions) -> None:
    """Hot and small keys, in the lake, none of them kept by the worker."""
    small = np.arange(WATCHED_KEY, WATCHED_KEY + options.keys + 1)
    if NAMES in view.tables:
        named = np.concatenate([[HOT_KEY], small])
        app.publish(pa.table([named, named], schema=NAMES.schema), NAMES.name)
    app.publish(_events(np.repeat(small, ROWS_PER_KEY), 0), EVENTS.name)
    app.publish(_events(np.full(options.rows, HOT_KEY), 0), EVENTS.name)
    app.wait(LOAD_S_MAX)


def _events(keys: Numbers, first: int) -> pa.Table:
    """One row for each of the keys; no two of them are equal. first: of their values."""
    return pa.table([keys, np.arange(first, first + len(keys))], schema=EVENTS.schema)


def _looked_up(app: HandFedApp, view: HandFedView, directory: Path, lookups: int) -> dict[str, Window]:
    """Have another process look the hot key up; when that filled it, and when it was warm."""
    directory.mkdir()
    task = HotTask(
        address=app.address,
        view=view.name,
        key=HOT_KEY,
        lookups=1 + lookups,
        result=str(directory / "hot.arrow"),
    )
    with _Hot(task, app.token, directory) as hot:
        pass
    begun, ended = (hot.answers[name].to_pylist() for name in ("begun_at", "ended_at"))
    return {"fill": (begun[0], ended[0]), "warm": (begun[1], ended[-1])}


def _rows_of(app: HandFedApp, view: str, keys: Sequence[int], most: int) -> list[int]:
    """How many different rows the view has of each key. most: there can be, of any value."""
    with connect(app.address, app.token) as client:
        at_least = app.wait(LOAD_S_MAX)
        found = [client.lookup(view, [key], at_least=at_least, timeout=LOAD_S_MAX) for key in keys]
    return [len(np.unique(rows["v"].to_numpy())) for rows in found]


class _Hot(Probing):
    """Looks the hot key up so many times, one lookup after the other; ``answers`` are there when it has ended."""

    answers: pa.Table

    def __init__(self, task: HotTask, token: str, directory: Path) -> None:
        super().__init__("benchmarks.hotkey_prober", {"hot": asdict(task)}, token, directory)
        self._result = task.result

    def gather(self) -> None:
        self.answers = _read(self._result)


class _Others(ProbedLoad):
    """Looks small keys up, while small epochs come; ``answers`` are there when it has ended."""

    answers: pa.Table

    def __init__(self, task: OthersTask, app: HandFedApp, directory: Path, epochs_per_s: float) -> None:
        directory.mkdir()
        super().__init__("benchmarks.hotkey_prober", {"others": asdict(task)}, app.token, directory, epochs_per_s)
        self._app = app
        self._result = task.result
        self._publishing = threading.Lock()
        self.published = 0
        """Small epochs."""

    def publish(self) -> Mapping[str, Any]:
        with self._publishing:
            row = _events(np.array([WATCHED_KEY]), ROWS_PER_KEY * WATCHED_KEY + self.published - 10**12)
            fed = self._app.publish(row, EVENTS.name)
            self.published += 1
        return {"epoch": fed.epoch, "at": fed.at}

    def large_epoch(self, rows: pa.Table) -> Window:
        """From when an epoch of these rows was published until it was over."""
        with self._publishing:
            began = self._app.publish(rows, EVENTS.name).at
        self._app.wait(LOAD_S_MAX)
        return began, time.perf_counter()

    def gather(self) -> None:
        self.answers = _read(self._result)


def _read(path: str) -> pa.Table:
    with pa.OSFile(path) as source, pa.ipc.open_stream(source) as stream:
        return stream.read_all()


def _by_window(answers: pa.Table, windows: Mapping[str, Window]) -> Figures:
    """Of each window: its seconds, and of each kind of answers that began in it the milliseconds.

    others_longest_ms: the longest of lookups of other keys. Of all windows but the first also how many times those of
    the first the milliseconds are.
    """
    kinds = np.array(answers["kind"].to_pylist())
    at, seconds = answers["at"].to_numpy(), answers["seconds"].to_numpy()
    result: Figures = {}
    for name, (began, ended) in windows.items():
        inside = (at >= began) & (at <= ended)
        of_kind = {kind: in_ms(seconds[inside & (kinds == kind)].tolist()) for kind in ("warm", "cold", "visible")}
        longest = [figures["max_ms"] for kind, figures in of_kind.items() if kind != "visible" and figures["count"]]
        result[name] = {"seconds": round(ended - began, 2), "others_longest_ms": max(longest, default=None), **of_kind}
    for name in list(windows)[1:]:
        result[name]["p99_ratios"] = {
            kind: _ratio(result[name][kind], result["before"][kind]) for kind in ("warm", "cold", "visible")
        }
    return result


def in_ms(seconds: Sequence[float]) -> Figures:
    """Percentiles and the longest, and how many there are; ``None`` for those of nothing."""
    at = {f"p{percent}_ms": round(percentile(seconds, percent) * 1e3, 2) if seconds else None for percent in (50, 99)}
    return {**at, "max_ms": round(max(seconds) * 1e3, 2) if seconds else None, "count": len(seconds)}


def _ratio(figures: Figures, before: Figures) -> float | None:
    if figures["p99_ms"] is None or not before["p99_ms"]:
        return None
    return round(float(figures["p99_ms"]) / float(before["p99_ms"]), 2)
