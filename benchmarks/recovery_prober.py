"""Lookups of keys of a worker that is about to die, without pause, from a process without Spark.

``python -m benchmarks.recovery_prober TASK.json`` reads the token from stdin, then lines that it throws away, and
ends with stdin. The load is a closed loop: the next lookup begins when the last one has ended, whether it was answered
or has failed, and no sooner than ``EVERY_S`` after it began. Nothing is judged here: what was answered is written down.
"""

import sys
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from benchmarks.prober_process import ask_until_end, run_prober
from upriver.client.client import Client
from upriver.errors import UpriverError

KEYS_TOGETHER = 4
"""Keys of a lookup: those of more than one key are all as of the end of the epoch that is told with them."""
EVERY_S = 0.005
"""Seconds between two lookups: what is measured is known that precisely."""
LOOKUP_S_MAX = 0.5
"""Seconds after which a lookup has failed, and the next one begins. The client's pauses grow to 0.16 s in that time,
and to 0.5 s if it has more."""
WARM_UP_KEYS = 1_000
"""Keys of a lookup of those before the clock starts."""
WARM_UP_S_MAX = 60.0
"""Seconds after which one of those has failed, and the prober with it."""
ANSWERS = pa.schema(
    [
        ("begun_at", pa.float64()),
        ("answered_at", pa.float64()),
        ("key", pa.int64()),
        ("n", pa.int64()),
        ("total", pa.int64()),
        ("epoch", pa.int64()),
    ]
)
"""A row for each key of each lookup, in the order of asking. Times are ``time.perf_counter``, which all processes of a
machine share. n: 0 if the key was not found, ``FAILED`` if there was no answer."""
FAILED = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryTask:
    """What to ask. keys: that are drawn from; all of them are looked up once before. result: file for the ``ANSWERS``,
    an Arrow stream."""

    address: str
    view: str
    keys: Sequence[int]
    result: str
    seed: int = 1


class RecoveryProber:
    """Asks a client, one lookup after the other."""

    def __init__(self, client: Client, task: RecoveryTask) -> None:
        self._client = client
        self._task = task
        self._rng = np.random.default_rng(task.seed)
        self._answers: list[pa.Table] = []

    def warm_up(self) -> None:
        """Open connections, load code, have a partial view keep the keys."""
        keys = self._task.keys
        for first in range(0, len(keys), WARM_UP_KEYS):
            asked = keys[first : first + WARM_UP_KEYS]
            self._client.lookup(self._task.view, pa.array(asked), timeout=WARM_UP_S_MAX)

    def probe(self, told: Iterable[str]) -> pa.Table:
        """Ask until ``told`` ends; returns the ``ANSWERS``."""
        ask_until_end(told, self._ask_on)
        return pa.concat_tables([ANSWERS.empty_table(), *self._answers])

    def _ask_on(self, is_over: threading.Event) -> None:
        together = min(KEYS_TOGETHER, len(self._task.keys))
        due_at = time.perf_counter()
        while not is_over.wait(max(0.0, due_at - time.perf_counter())):
            due_at = time.perf_counter() + EVERY_S
            self._ask(self._rng.choice(self._task.keys, together, replace=False).tolist())

    def _ask(self, keys: list[int]) -> None:
        begun_at = time.perf_counter()
        n, total = [FAILED] * len(keys), [0] * len(keys)
        epoch = 0
        try:
            rows, epoch = self._client.lookup_with_epoch(self._task.view, keys, timeout=LOOKUP_S_MAX)
        except UpriverError as error:
            print(f"keys {keys}: {error}", file=sys.stderr, flush=True)
        else:
            is_whole = rows["k"].to_pylist() == keys
            n = rows["n"].to_pylist() if is_whole else [0] * len(keys)
            total = rows["total"].to_pylist() if is_whole else total
        times = [[at] * len(keys) for at in (begun_at, time.perf_counter())]
        self._answers.append(pa.table([*times, keys, n, total, [epoch] * len(keys)], schema=ANSWERS))


if __name__ == "__main__":
    run_prober(RecoveryTask, RecoveryProber)
