"""Lookups of many callers, beside Redis: rates, latencies, and the CPU time of a lookup at either end.

One view of a count and a sum by key, kept in full. Its callers are threads, or tasks of an event loop, of processes
without Spark. All is measured at rest, and again while rows come. Redis serves the same callers the rows as texts.
"""

import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.events import SCHEMA, VIEW
from benchmarks.hand_fed import HandFedApp
from benchmarks.serving_prober import ServingTask, ServingWay
from benchmarks.vote_redis import running_redis, why_no_redis
from benchmarks.worker_memory import worker_pids
from upriver.errors import ClusterError
from upriver.spark.session import local_session

LOAD_S_MAX = 600.0
"""Seconds until the view must hold all keys."""
EPOCHS_PER_S = 10
"""Epochs of the rows that come meanwhile."""
PROCESSES = 2
"""Processes of the way with several."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingOptions:
    """What to measure. keys: that the view holds. lookups: of each way of asking, all callers together. rows: that come
    a second in the second run."""

    workers: int
    keys: int
    lookups: int
    rows: int


def ways(lookups: int) -> list[ServingWay]:
    """The ways of asking. lookups: of one key, of all callers together; of many keys, a tenth."""
    return [
        ServingWay(name="1 thread, 1 key", threads=1, lookups=lookups),
        ServingWay(name="8 threads, 1 key", threads=8, lookups=_each(lookups, 8)),
        ServingWay(name="64 tasks, 1 key", tasks=64, lookups=_each(lookups, 64)),
        ServingWay(name="1 thread, 100 keys", threads=1, keys=100, lookups=_each(lookups, 10)),
        ServingWay(name="4 threads, 100 keys", threads=4, keys=100, lookups=_each(lookups, 40)),
    ]


def _each(lookups: int, callers: int) -> int:
    return max(1, lookups // callers)


def measure_serving(options: ServingOptions, say: Any = print) -> dict[str, Any]:
    """Measure it all; returns what ``--json`` prints. ``say`` is told how it goes."""
    spark = local_session(options.workers, app_name="upriver-bench")
    result: dict[str, Any] = {"workers": options.workers, "keys": options.keys, "rows_per_s": options.rows}
    try:
        with (
            tempfile.TemporaryDirectory(prefix="upriver-bench-") as directory,
            HandFedApp(spark, Path(directory) / "lake", options.workers) as app,
        ):
            say(f"a view of {options.keys:,} keys")
            app.publish(_events(np.arange(options.keys)))
            app.wait(LOAD_S_MAX)
            task = ServingTask(
                address=app.address,
                redis=False,
                view=VIEW,
                keys=options.keys,
                pids=worker_pids(app),
                ways=ways(options.lookups),
            )
            say("lookups at rest")
            result["at_rest"] = _probed(task, app.token, Path(directory))
            result["at_rest"] |= _on_processes(task, app.token, Path(directory))
            say(f"lookups while {options.rows:,} rows a second come")
            with _rows_coming(app, options):
                result["while_rows_come"] = _probed(task, app.token, Path(directory))
    finally:
        spark.stop()
    say("Redis")
    result["redis"] = _measured_redis(options)
    return result


def _events(keys: np.ndarray) -> pa.Table:
    return pa.table([keys, np.ones(len(keys), np.int64)], schema=SCHEMA)


@contextmanager
def _rows_coming(app: HandFedApp, options: ServingOptions) -> Iterator[None]:
    """Epochs come on another thread, so many a second."""
    is_over, rng = threading.Event(), np.random.default_rng(2)

    def publish() -> None:
        due_at = time.monotonic()
        while not is_over.wait(max(0.0, due_at - time.monotonic())):
            app.publish(_events(rng.integers(0, options.keys, options.rows // EPOCHS_PER_S)))
            due_at += 1 / EPOCHS_PER_S

    thread = threading.Thread(target=publish)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
    app.wait(LOAD_S_MAX)


def _begun(task: ServingTask, token: str, path: Path) -> "subprocess.Popen[str]":
    path.write_text(json.dumps(asdict(task)))
    command = [sys.executable, "-m", "benchmarks.serving_prober", str(path)]
    prober = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    # The token goes through a pipe: every user of the machine can read a command line.
    assert prober.stdin is not None
    prober.stdin.write(f"{token}\n")
    prober.stdin.close()
    return prober


def _ended(prober: "subprocess.Popen[str]") -> dict[str, Any]:
    assert prober.stdout is not None
    with prober:
        said = prober.stdout.read()
    if prober.returncode != 0:
        raise ClusterError("the process that looks up failed")
    result: dict[str, Any] = json.loads(said.splitlines()[-1])
    return result


def _probed(task: ServingTask, token: str, directory: Path) -> dict[str, Any]:
    return _ended(_begun(task, token, directory / "serving.json"))


def _on_processes(task: ServingTask, token: str, directory: Path) -> dict[str, Any]:
    """Several processes of eight threads, at the same time. The rate is of all, the latencies are the worst."""
    eight = next(way for way in task.ways if way.threads == 8)
    probers = []
    for number in range(PROCESSES):
        own = replace(task, ways=[eight], seed=task.seed + 1 + number, pids=[])  # CPU is of all together
        probers.append(_begun(own, token, directory / f"serving-{number}.json"))
    found: Sequence[dict[str, Any]] = [_ended(prober)[eight.name] for prober in probers]
    return {
        f"{PROCESSES} processes of 8 threads, 1 key": {
            "lookups_per_s": sum(each["lookups_per_s"] for each in found),
            "p50_ms": max(each["p50_ms"] for each in found),
            "p99_ms": max(each["p99_ms"] for each in found),
            "client_cpu_us": max(each["client_cpu_us"] for each in found),
            "server_cpu_us": None,
        }
    }


def _measured_redis(options: ServingOptions) -> dict[str, Any]:
    """The same ways of asking, or why Redis was left out."""
    why = why_no_redis()
    if why is not None:
        return {"skipped": why}
    with (
        tempfile.TemporaryDirectory(prefix="upriver-bench-") as directory,
        running_redis(directory) as (client, socket, pid),
    ):
        client.mset({f"k{key}": f'{{"k":{key},"n":1,"total":1}}' for key in range(options.keys)})
        task = ServingTask(
            address=socket, redis=True, view=VIEW, keys=options.keys, pids=[pid], ways=ways(options.lookups)
        )
        return {"skipped": None, "at_rest": _probed(task, "", Path(directory))}
