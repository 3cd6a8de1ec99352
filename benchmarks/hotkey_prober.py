"""The processes that ask, without Spark, for ``python -m benchmarks hotkey``: one for small keys, one for the hot one.

``python -m benchmarks.hotkey_prober TASK.json``.
"""

import json
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.prober_process import Prober, run_prober
from upriver.client.client import Client

WARM_KEYS = 1_000
"""Small keys that are looked up again and again; each of the others once."""
WARM_LOOKUP_S, COLD_LOOKUP_S = 0.004, 0.02
"""Seconds from one answer to the next question."""
WARM_UP = 100
"""Lookups of each kind before the clock starts."""
ANSWER_S_MAX = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class HotTask:
    """Look a key of a view up so many times."""

    address: str
    view: str
    key: int
    lookups: int
    result: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OthersTask:
    """Look up the keys from ``first`` to ``last`` of a view, and ``watched`` when there was an epoch."""

    address: str
    view: str
    first: int
    last: int
    watched: int
    result: str
    seed: int


class HotProber:
    """Asks for the hot key."""

    def __init__(self, client: Client, task: HotTask) -> None:
        self._client = client
        self._task = task

    def warm_up(self) -> None:
        """The first lookup counts."""

    def probe(self, _told: Iterable[str]) -> pa.Table:
        """When each lookup began and ended."""
        times = []
        for _ in range(self._task.lookups):
            began = time.perf_counter()
            self._client.lookup(self._task.view, [self._task.key], timeout=ANSWER_S_MAX)
            times.append((began, time.perf_counter()))
        begun, ended = zip(*times, strict=True)
        return pa.table({"begun_at": pa.array(begun, pa.float64()), "ended_at": pa.array(ended, pa.float64())})


class OthersProber:
    """Asks for small keys, on a thread for each kind: warm ones, cold ones, and one that shows the newest epoch."""

    def __init__(self, client: Client, task: OthersTask) -> None:
        self._client = client
        self._task = task
        self._is_over = threading.Event()
        keys = np.random.default_rng(task.seed).permutation(np.arange(task.first, task.last + 1)).tolist()
        self._warm, self._cold = keys[:WARM_KEYS], iter(keys[WARM_KEYS:])
        self._answers: list[tuple[str, float, float]] = []
        self._failures: list[BaseException] = []

    def warm_up(self) -> None:
        """Fill the warm keys, open connections, load code."""
        self._client.lookup(self._task.view, [self._task.watched, *self._warm], timeout=ANSWER_S_MAX)
        for number in range(WARM_UP):
            self._ask(self._warm[number % len(self._warm)])
            self._ask(next(self._cold, self._warm[0]))

    def probe(self, told: Iterable[str]) -> pa.Table:
        """Ask until ``told`` ends; of each answer its kind, when it was asked for, and the seconds that it took."""
        rng = np.random.default_rng(self._task.seed)
        threads = [
            self._started(lambda: self._ask_for("warm", lambda: self._warm[rng.integers(len(self._warm))])),
            self._started(lambda: self._ask_for("cold", lambda: next(self._cold, None))),
        ]
        for line in told:
            self._watch(json.loads(line))
        self._is_over.set()
        for thread in threads:
            thread.join()
        if self._failures:
            raise self._failures[0]
        kinds, at, seconds = zip(*self._answers, strict=True)
        return pa.table({"kind": kinds, "at": at, "seconds": seconds})

    def _started(self, ask: Callable[[], None]) -> threading.Thread:
        def guarded() -> None:
            try:
                ask()
            except BaseException as error:
                self._failures.append(error)

        thread = threading.Thread(target=guarded)
        thread.start()
        return thread

    def _ask_for(self, kind: str, next_key: Callable[[], int | None]) -> None:
        rest_s = WARM_LOOKUP_S if kind == "warm" else COLD_LOOKUP_S
        while (key := next_key()) is not None:
            began = time.perf_counter()
            self._ask(key)
            self._answers.append((kind, began, time.perf_counter() - began))
            if self._is_over.wait(rest_s):
                return

    def _ask(self, key: int) -> None:
        self._client.lookup(self._task.view, [key], timeout=ANSWER_S_MAX)

    def _watch(self, told: Mapping[str, Any]) -> None:
        """Wait until a lookup shows the epoch."""
        self._client.lookup(self._task.view, [self._task.watched], at_least=told["epoch"], timeout=ANSWER_S_MAX)
        self._answers.append(("visible", told["at"], time.perf_counter() - told["at"]))


def _task_of(*, hot: Any = None, others: Any = None) -> HotTask | OthersTask:
    return OthersTask(**others) if hot is None else HotTask(**hot)


def _prober_of(client: Client, task: HotTask | OthersTask) -> Prober:
    return HotProber(client, task) if isinstance(task, HotTask) else OthersProber(client, task)


if __name__ == "__main__":
    run_prober(_task_of, _prober_of)
