"""Views come and go in a running app: what lookups of the other views see meanwhile: ``python -m benchmarks evolve``.

One process looks single keys up all the time, of a full view, of a partial view whose keys are warm, and of a view with
an exchange. Meanwhile a view is added, is dropped, and comes with a table of its own. The rows are all there before, so
each answer has one right value.
"""

import json
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.evolve_cpu import measure_cpu
from benchmarks.evolve_model import ADDED, OTHERS, QUIET, SQL, TABLE, WARM, EvolveModel
from benchmarks.evolve_prober import FAILED, EvolveTask
from benchmarks.figures import percentile
from benchmarks.probed_load import Probing
from upriver.app import App
from upriver.client.client import Client, connect
from upriver.errors import ClusterError, DeclarationError, UpriverError, WaitTimeout
from upriver.spark.frames import SparkSession
from upriver.spark.session import local_session

LOAD_S_MAX = 1_800.0
"""Seconds until the first views have all rows, and until a new view answers."""
ASK_S_MAX = 2.0
"""Seconds after which the new view is asked again."""
SLOW_S = 0.02
"""Seconds that the slow function sleeps for each batch of rows."""
SECOND, SECOND_VIEW, SECOND_ROWS = "second", "of_second", 10_000
"""The table that is added, the view of it, and its rows."""
METRICS_S = 3.0
"""Seconds after which workers have reported what they have counted."""
UPQUERIES = f'upriver_upqueries_total{{view="{WARM}"}}'

Say = Callable[[str], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class EvolveOptions:
    """rows: of the table. steady_s: seconds of lookups before and after each change. rescale: change the number of
    workers while the view is added. slow_function: the view that is added calls a function that sleeps.
    endless_function: at the end a view is added that calls a function without an end, for ``endless_s`` seconds.
    idle_views: of a table without new rows. cpu_rows: for ``cpu_20_views``; ``None``: not measured."""

    rows: int
    workers: int
    steady_s: float
    rescale: bool
    slow_function: bool
    endless_function: bool
    endless_s: float
    idle_views: int
    cpu_rows: int | None


def measure_evolve(options: EvolveOptions, say: Say = print) -> dict[str, Any]:
    """Measure each change; returns what ``--json`` prints. ``say`` is told how it goes."""
    spark = local_session(options.workers + 1, app_name="upriver-bench")
    try:
        result = {**asdict(options), **measure_changes(spark, options, say)}
        if options.cpu_rows is not None:
            say(f"CPU of workers: 1 and 20 views, {options.cpu_rows:,} rows")
            result["cpu_20_views"] = measure_cpu(spark, options.cpu_rows, options.workers)
        return result
    finally:
        spark.stop()


def measure_changes(spark: SparkSession, options: EvolveOptions, say: Say = print) -> dict[str, Any]:
    """The figures of each change."""
    with tempfile.TemporaryDirectory(prefix="upriver-bench-") as name:
        directory = Path(name)
        with App(spark, str(directory / "lake"), workers=options.workers) as app:
            model = EvolveModel(options.rows)
            app.table(TABLE, spark.range(options.rows).selectExpr(*model.columns), key="k")
            for view in OTHERS:
                app.view(view, SQL[view], key="k", partial=view == WARM)
            if options.idle_views:
                app.table(QUIET, spark.range(1).selectExpr("id AS k"), key="k")
            for number in range(options.idle_views):
                app.view(f"idle{number}", f"SELECT k, {number} AS n FROM {QUIET}", key="k", partial=False)
            if options.slow_function:
                app.function("slow", _slow(), returns="LONG", arguments="v LONG", form="arrow", deterministic=True)
            if options.endless_function:
                app.function(
                    "endless", _endless(), returns="LONG", arguments="v LONG", form="arrow", deterministic=True
                )
            say(f"{options.rows:,} rows, {len(OTHERS) + options.idle_views} views")
            app.start()
            app.wait(LOAD_S_MAX)
            with connect(app.address, app.token) as client:
                return _Evolution(spark, app, client, model, options, directory, say).measured()


def _slow() -> Callable[[pa.Array], pa.Array]:
    seconds = SLOW_S

    def slow(values: pa.Array) -> pa.Array:
        time.sleep(seconds)
        return values

    return slow


def _endless() -> Callable[[pa.Array], pa.Array]:
    def endless(values: pa.Array) -> pa.Array:
        while True:
            time.sleep(1)

    return endless


class _Lookups(Probing):
    """The process that looks keys up. ``answers`` are there when it has ended."""

    answers: pa.Table

    def __init__(self, app: App, model: EvolveModel, directory: Path) -> None:
        self._result = str(directory / "answers.arrow")
        keys = {view: model.keys_of(view).tolist() for view in OTHERS}
        task = EvolveTask(address=app.address, keys=keys, result=self._result)
        super().__init__("benchmarks.evolve_prober", asdict(task), app.token, directory)

    def gather(self) -> None:
        with pa.OSFile(self._result, "rb") as source, pa.ipc.open_stream(source) as stream:
            self.answers = stream.read_all()


class _Evolution:
    """The changes of one app, one after the other."""

    def __init__(
        self,
        spark: SparkSession,
        app: App,
        client: Client,
        model: EvolveModel,
        options: EvolveOptions,
        directory: Path,
        say: Say,
    ) -> None:
        self._spark = spark
        self._app = app
        self._client = client
        self._model = model
        self._options = options
        self._directory = directory
        self._say = say

    def measured(self) -> dict[str, Any]:
        changes = {"add": self._add, "drop": self._drop, "table": self._table}
        if self._options.endless_function:
            changes["endless"] = self._add_endless
        return {name: self._changed(name, change) for name, change in changes.items()}

    def _changed(self, name: str, change: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """The figures of a change; only why, if the app refuses it."""
        self._say(f"{name}: before")
        lookups = _Lookups(self._app, self._model, self._directory)
        try:
            with lookups:
                time.sleep(self._options.steady_s)
                before = self._upqueries()
                began = time.perf_counter()
                self._say(f"{name}: during")
                told = change()
                ended = time.perf_counter()
                self._say(f"{name}: after")
                time.sleep(self._options.steady_s)
        except DeclarationError as error:
            return {"skipped": str(error)}
        figures = window_figures(lookups.answers, self._model, began, ended)
        kept = None if name == "endless" else self._warm_keys_kept(before)
        found = {**told, **figures, "warm_keys_kept": kept, "first_error": lookups.first_error()}
        self._say(f"  {json.dumps(found)}")  # at once: an app with an endless function may take long to stop
        return found

    def _add(self) -> dict[str, Any]:
        sql = SQL[ADDED].replace("min(v)", "min(slow(v))") if self._options.slow_function else SQL[ADDED]
        with self._rescale() if self._options.rescale else _nothing():
            began = time.perf_counter()
            self._app.view(ADDED, sql, key="k", partial=False, timeout=LOAD_S_MAX)
            n, total = self._model.truth(ADDED)
            key = self._model.keys - 1
            is_right = self._asked(ADDED, key, int(n[key]), int(total[key]), LOAD_S_MAX)
            new_view_s = time.perf_counter() - began
        return {"new_view_s": round(new_view_s, 3), "new_view_is_right": is_right and self._is_right(ADDED)}

    def _drop(self) -> dict[str, Any]:
        self._app.drop_view(ADDED)
        return {}

    def _table(self) -> dict[str, Any]:
        began = time.perf_counter()
        self._app.table(SECOND, self._spark.range(SECOND_ROWS).selectExpr("id AS k", "id AS v"), key="k")
        sql = f"SELECT k, count(*) AS n, sum(v) AS total FROM {SECOND} GROUP BY k"
        self._app.view(SECOND_VIEW, sql, key="k", partial=False, timeout=LOAD_S_MAX)
        is_right = self._asked(SECOND_VIEW, SECOND_ROWS - 1, 1, SECOND_ROWS - 1, LOAD_S_MAX)
        return {"new_view_s": round(time.perf_counter() - began, 3), "new_view_is_right": is_right}

    def _add_endless(self) -> dict[str, Any]:
        """A view whose function never ends: nothing but the time limit ends the wait for it."""
        sql = SQL[ADDED].replace("min(v)", "min(endless(v))")
        try:
            self._app.view("endless_view", sql, key="k", partial=False, timeout=self._options.endless_s)
            answered = self._asked("endless_view", 0, 0, 0, self._options.endless_s)
        except WaitTimeout as error:
            return {"endless_view": str(error), "failure": self._app.status()["failure"]}
        return {"endless_view": f"answered: {answered}", "failure": self._app.status()["failure"]}

    @contextmanager
    def _rescale(self) -> Iterator[None]:
        """A worker more, or as many as before, begun in the middle of the block."""
        workers = len([worker for worker in self._app.status()["workers"] if worker["vnodes"]])
        more = self._options.workers + 1
        begun = self._app.rescale(more if workers < more else self._options.workers)
        yield
        begun.wait(LOAD_S_MAX)

    def _asked(self, view: str, key: int, n: int, total: int, seconds: float) -> bool:
        """Look a key up until the view answers with a row; returns whether that is right. Raises WaitTimeout."""
        give_up_at = time.monotonic() + seconds
        error: UpriverError | None = None
        while time.monotonic() < give_up_at:
            try:
                rows = self._client.lookup(view, [key], timeout=ASK_S_MAX)
            except ClusterError as told:
                error = told
                continue
            if rows.num_rows:
                found = rows.to_pylist()[0]
                return bool(found["n"] == n and found["total"] == total)
            time.sleep(0.01)
        raise WaitTimeout(f"view {view!r} has not answered in {seconds:g} s: {error}")

    def _is_right(self, view: str) -> bool:
        """Whether the view has the right row of each of its first keys."""
        keys = self._model.keys_of(view)[:10_000]
        rows = self._client.lookup(view, pa.array(keys), timeout=LOAD_S_MAX)
        n, total = (values[keys] for values in self._model.truth(view))
        return bool(rows["n"].to_pylist() == n.tolist() and rows["total"].to_pylist() == total.tolist())

    def _upqueries(self) -> int:
        """Of the partial view so far: each reads the lake for keys that are not kept."""
        time.sleep(METRICS_S)
        lines = [line.split() for line in self._app.metrics().splitlines() if line.startswith(UPQUERIES)]
        return sum(int(float(value)) for _, value in lines)

    def _warm_keys_kept(self, before: int) -> float:
        """The share of the warm keys for which no lookup had to read the lake."""
        keys = self._model.keys_of(WARM).tolist()
        for key in keys:  # one by one: a read of the lake may be for several keys
            self._client.lookup(WARM, [key], timeout=LOAD_S_MAX)
        return round(1 - min(1.0, (self._upqueries() - before) / len(keys)), 4)


@contextmanager
def _nothing() -> Iterator[None]:
    yield


def window_figures(answers: pa.Table, model: EvolveModel, began: float, ended: float) -> dict[str, Any]:
    """The latencies of each view before, during and after a change, and what was wrong.

    began, ended: of the change. A lookup is of the window in which it was answered, or of ``during`` if it was under
    way at any time of that.
    """
    figures: dict[str, Any] = {"others": {}, "wrong_answers": 0, "failed": 0, "answers": answers.num_rows}
    views = answers["view"].to_numpy(zero_copy_only=False)
    begun_at, answered_at, keys, counts, totals = (
        answers[name].to_numpy() for name in ("begun_at", "answered_at", "key", "n", "total")
    )
    is_before, is_after = answered_at < began, begun_at > ended
    windows = {"before": is_before, "during": ~(is_before | is_after), "after": is_after}
    for view in OTHERS:
        is_here = views == view
        n, total = model.truth(view)
        has_failed = counts == FAILED
        is_wrong = is_here & ~has_failed
        is_wrong[is_here] &= (counts[is_here] != n[keys[is_here]]) | (totals[is_here] != total[keys[is_here]])
        figures["wrong_answers"] += int(np.count_nonzero(is_wrong))
        figures["failed"] += int(np.count_nonzero(is_here & has_failed))
        ms = {name: (answered_at - begun_at)[is_here & window] * 1e3 for name, window in windows.items()}
        shown: dict[str, float | None] = {
            f"p99_ms_{name}": round(percentile(values.tolist(), 99), 2) if len(values) else None
            for name, values in ms.items()
        }
        longest = max((float(values.max()) for values in (ms["during"], ms["after"]) if len(values)), default=None)
        figures["others"][view] = {**shown, "longest_ms": None if longest is None else round(longest, 2)}
    return figures


def is_right(measured: Mapping[str, Any]) -> bool:
    """Whether every answer was."""
    changes = [measured[name] for name in ("add", "drop", "table") if "skipped" not in measured[name]]
    return all(not change["wrong_answers"] and change.get("new_view_is_right", True) for change in changes)
