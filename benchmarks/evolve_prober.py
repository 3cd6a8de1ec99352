"""Lookups of single keys of several views, in turns and without pause, from a process without Spark.

``python -m benchmarks.evolve_prober TASK.json`` reads the token from stdin and ends with stdin. Nothing is judged here:
what was answered is written down.
"""

import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from benchmarks.prober_process import ask_until_end, run_prober
from upriver.client.client import Client
from upriver.errors import UpriverError

EVERY_S = 0.004
"""Seconds between two lookups."""
LOOKUP_S_MAX = 5.0
"""Seconds after which a lookup has failed."""
WARM_UP_KEYS = 1_000
"""Keys of a lookup of those before the clock starts."""
WARM_UP_KEYS_MAX = 2_000
"""Keys of each view that are looked up before the clock starts."""
WARM_UP_S_MAX = 120.0
ANSWERS = pa.schema(
    [
        ("view", pa.string()),
        ("begun_at", pa.float64()),
        ("answered_at", pa.float64()),
        ("key", pa.int64()),
        ("n", pa.int64()),
        ("total", pa.int64()),
    ]
)
"""A row for each lookup. Times are ``time.perf_counter``, which all processes of a machine share. n: 0 if the key was
not found, ``FAILED`` if there was no answer."""
FAILED = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class EvolveTask:
    """What to look up. keys: by view. result: file for the ``ANSWERS``, an Arrow stream."""

    address: str
    keys: Mapping[str, Sequence[int]]
    result: str
    seed: int = 1


class EvolveProber:
    """Asks a client, one lookup after the other."""

    def __init__(self, client: Client, task: EvolveTask) -> None:
        self._client = client
        self._keys = {view: np.array(keys) for view, keys in task.keys.items()}
        self._rng = np.random.default_rng(task.seed)
        self._answers: list[tuple[str, float, float, int, int, int]] = []

    def warm_up(self) -> None:
        """Open connections, load code, have a partial view keep its keys."""
        for view, keys in self._keys.items():
            for first in range(0, min(len(keys), WARM_UP_KEYS_MAX), WARM_UP_KEYS):
                self._client.lookup(view, pa.array(keys[first : first + WARM_UP_KEYS]), timeout=WARM_UP_S_MAX)

    def probe(self, told: Iterable[str]) -> pa.Table:
        """Ask until ``told`` ends; returns the ``ANSWERS``."""
        ask_until_end(told, self._ask_on)
        columns = list(zip(*self._answers, strict=True)) or [()] * len(ANSWERS)
        return pa.table([list(column) for column in columns], schema=ANSWERS)

    def _ask_on(self, is_over: threading.Event) -> None:
        while True:
            for view, keys in self._keys.items():
                due_at = time.perf_counter() + EVERY_S
                self._ask(view, int(self._rng.choice(keys)))
                if is_over.wait(max(0.0, due_at - time.perf_counter())):
                    return

    def _ask(self, view: str, key: int) -> None:
        begun_at, n, total = time.perf_counter(), FAILED, 0
        try:
            rows = self._client.lookup(view, [key], timeout=LOOKUP_S_MAX)
        except UpriverError as error:
            print(f"{view}, key {key}: {error}", file=sys.stderr, flush=True)
        else:
            n, total = (rows["n"][0].as_py(), rows["total"][0].as_py()) if rows.num_rows == 1 else (0, 0)
        self._answers.append((view, begun_at, time.perf_counter(), key, n, total))


if __name__ == "__main__":
    run_prober(EvolveTask, EvolveProber)
