"""Steady lookups, and lookups of what has just been published, from a process of their own without Spark.

``python -m benchmarks.rescale_prober TASK.json`` reads the token from stdin, then a line for each epoch published,
and ends with stdin. The load is an open loop: a lookup begins when it is due, whatever became of those before it, and
its time counts from when it was due. So a view that stands still makes every lookup slow that should have been answered
meanwhile, not only the one that found it so.
"""

import itertools
import json
import sys
import threading
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from benchmarks.prober_process import run_prober
from upriver.client.client import Client
from upriver.errors import UpriverError

WARM_UP = 200
"""Lookups before the clock starts."""
WAITING_MAX = 64
"""Lookups of each kind that can be under way at once; more of them wait, and their clocks run."""
LOOKUP_S_MAX = 120.0
"""Seconds after which a lookup counts as failed."""
PROBES = pa.schema(
    [
        ("due_at", pa.float64()),
        ("answered_at", pa.float64()),
        ("key", pa.int64()),
        ("n", pa.int64()),
        ("at_least", pa.int64()),
    ]
)
"""A row for each lookup. Times are ``time.perf_counter``, which all processes of a machine share; due_at of a published
key is when its epoch was published. n: the count found, ``FAILED`` if none was. at_least: epoch; 0 for steady ones."""
FAILED = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class RescaleProbeTask:
    """What to ask. keys: the view has those from 0 up to but without it. per_s: steady lookups a second, of one random
    key each. result: file for the ``PROBES``, an Arrow stream."""

    address: str
    view: str
    keys: int
    per_s: float
    result: str
    seed: int = 1


class RescaleProber:
    """Asks a client on many threads: a lookup that waits keeps no other one from being asked."""

    def __init__(self, client: Client, task: RescaleProbeTask) -> None:
        self._client = client
        self._task = task
        self._rng = np.random.default_rng(task.seed)
        self._probes: list[tuple[float, float, int, int, int]] = []
        self._is_over = threading.Event()

    def warm_up(self) -> None:
        """Open connections, load code."""
        for key in self._rng.integers(0, self._task.keys, WARM_UP).tolist():
            self._client.lookup(self._task.view, [key])

    def probe(self, published: Iterable[str]) -> pa.Table:
        """Ask until ``published`` ends, and wait for the answers.

        published: JSON, ``{"epoch": number, "at": when it was published, "keys": some of its keys}``.
        """
        with ThreadPoolExecutor(WAITING_MAX) as steady, ThreadPoolExecutor(WAITING_MAX) as fresh:
            asking = threading.Thread(target=self._ask_steadily, args=(steady,))
            asking.start()
            for line in published:
                epoch = json.loads(line)
                for key in epoch["keys"]:
                    fresh.submit(self._ask, epoch["at"], key, epoch["epoch"])
            self._is_over.set()
            asking.join()
        return pa.Table.from_arrays([pa.array(column) for column in zip(*self._probes, strict=True)], schema=PROBES)

    def _ask_steadily(self, threads: ThreadPoolExecutor) -> None:
        began = time.perf_counter()
        for number in itertools.count():
            due_at = began + number / self._task.per_s
            if self._is_over.wait(max(0.0, due_at - time.perf_counter())):
                return
            threads.submit(self._ask, due_at, int(self._rng.integers(0, self._task.keys)), 0)

    def _ask(self, due_at: float, key: int, at_least: int) -> None:
        try:
            found = self._client.lookup(self._task.view, [key], at_least=at_least or None, timeout=LOOKUP_S_MAX)
            n = found["n"][0].as_py() if found.num_rows == 1 else FAILED
        except UpriverError as error:
            print(f"key {key}, epoch {at_least} at least: {error}", file=sys.stderr, flush=True)
            n = FAILED
        self._probes.append((due_at, time.perf_counter(), key, n, at_least))


if __name__ == "__main__":
    run_prober(RescaleProbeTask, RescaleProber)
