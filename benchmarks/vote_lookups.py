"""Lookups one after the other, while nothing is written: ``python -m benchmarks.vote_lookups TASK.json``.

Needs no Spark. The token comes on stdin; the last line is one JSON object. How many votes each article has is known, so
each answer must be just that.
"""

import json
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.figures import keys_per_s, median
from benchmarks.many_threads import keys_per_s_on_threads
from benchmarks.vote_figures import latencies
from benchmarks.vote_model import VIEW, KeyArray
from benchmarks.vote_prober import counted
from upriver.client.client import Client, connect
from upriver.errors import WaitTimeout

WARM_UP = 30
"""Lookups of each kind before the clock starts."""
BATCH_KEYS = 100
"""Keys of a lookup of warm keys."""
LARGER_KEYS = (1_000, 10_000)
"""Keys of larger ones."""
LARGER_SHARE = 5
"""Of these there are a so much smaller number."""
THREADS = (8, 32, 64)
"""Threads that ask for warm keys at once, in lookups of ``BATCH_KEYS``."""
THREADS_TIMES = 4
"""Of these lookups there are so many times as many."""
WARM_KEYS = 10_000
"""Different keys that these are of."""
WARM_TIMES = 2
"""Times that these are asked for before: the first time they are filled."""
FILLS = 3
"""Times that cold keys are filled together; the median counts."""
LOOKUP_S_MAX = 120.0
"""Seconds that a lookup may take."""
POLL_S = 0.02
"""Seconds between two looks whether all keys are evicted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VoteLookupTask:
    """What to ask. counts: file of the votes by article, as numpy writes it. singles: misses, each followed by a hit.
    batches: lookups of ``BATCH_KEYS`` warm keys. fill_keys: cold keys of one. is_partial: keys can be evicted."""

    address: str
    counts: str
    singles: int
    batches: int
    fill_keys: int
    is_partial: bool
    seed: int


def main() -> None:
    """Do what the command line's file says and print what was measured."""
    task = VoteLookupTask(**json.loads(Path(sys.argv[1]).read_text()))
    with connect(task.address, sys.stdin.readline().strip()) as client:
        print(json.dumps(Asker(client, task).measure()))


class Asker:
    """Asks, checks, takes the time."""

    def __init__(self, client: Client, task: VoteLookupTask) -> None:
        self._client = client
        self._task = task
        self._counts: KeyArray = np.load(task.counts)
        self._rng = np.random.default_rng(task.seed)
        self._checked = self._wrong = 0

    def measure(self) -> Mapping[str, Any]:
        """All of it; latencies in milliseconds."""
        result: dict[str, Any] = {}
        result |= self._singles()
        if self._task.is_partial:
            result["fills"] = self._fills()
        result["batches"] = self._batches()
        return result | {"answers_checked": self._checked, "wrong_answers": self._wrong}

    def _singles(self) -> dict[str, Any]:
        """Of keys that were never read, one at a time, and of the same again."""
        self._evict()
        misses, hits = [], []
        for key in self._rng.choice(len(self._counts), WARM_UP + self._task.singles, replace=False).tolist():
            misses.append(self._asked(np.array([key])) * 1e3)
            hits.append(self._asked(np.array([key])) * 1e3)
        missed = misses[WARM_UP:] if self._task.is_partial else []
        return latencies("hit", hits[WARM_UP:]) | latencies("miss", missed)

    def _fills(self) -> dict[str, Any]:
        """Many keys that were never read, in one lookup."""
        keys = min(self._task.fill_keys, len(self._counts))
        seconds = []
        for _ in range(FILLS):
            self._evict()
            seconds.append(self._asked(np.sort(self._rng.choice(len(self._counts), keys, replace=False))))
        return {"keys": keys, "ms": round(median(seconds) * 1e3, 1), "keys_per_s": round(keys / median(seconds))}

    def _batches(self) -> dict[str, Any]:
        """Of keys that were just read. larger: keys a second by the number of keys in a lookup; threads: by the number
        of threads."""
        warm = self._rng.choice(len(self._counts), min(WARM_KEYS, len(self._counts)), replace=False)
        for _ in range(WARM_TIMES):
            self._asked(np.sort(warm))
        count = min(BATCH_KEYS, len(warm))
        seconds = self._batches_of(warm, count, self._task.batches)
        larger = {
            keys: keys_per_s(keys, self._batches_of(warm, keys, larger_batches(self._task.batches)))
            for keys in LARGER_KEYS
            if keys <= len(warm)
        }
        ms = [second * 1e3 for second in seconds]
        threads = {threads: self._on_threads(threads, warm, count) for threads in THREADS}
        rates = {"keys_per_s": keys_per_s(count, seconds), "larger": larger, "threads": threads}
        return {"keys": count, **rates, **latencies("batch", ms)}

    def _batches_of(self, warm: KeyArray, count: int, batches: int) -> list[float]:
        """Seconds that each lookup of so many of the warm keys took."""
        return [self._asked(keys) for keys in self._drawn(warm, count, WARM_UP + batches)][WARM_UP:]

    def _on_threads(self, threads: int, warm: KeyArray, count: int) -> int:
        """Keys a second that so many threads are given together."""

        def ask(keys: pa.Array) -> pa.Table:
            return self._client.lookup(VIEW, keys, timeout=LOOKUP_S_MAX)

        return keys_per_s_on_threads(
            threads,
            count,
            lambda: [pa.array(keys) for keys in self._drawn(warm, count, THREADS_TIMES * self._task.batches)],
            ask,
            lambda keys, rows: self._check(rows, keys.to_numpy()),
        )

    def _drawn(self, warm: KeyArray, count: int, batches: int) -> list[KeyArray]:
        """So many times so many of the warm keys, ascending."""
        return [np.sort(self._rng.choice(warm, count, replace=False)) for _ in range(batches)]

    def _evict(self) -> None:
        """All keys, and wait until that is done."""
        if not self._task.is_partial:
            return
        self._client.evict(VIEW)
        give_up_at = time.monotonic() + LOOKUP_S_MAX
        while self._client.status()["views"][VIEW]["cached_keys"]:
            if time.monotonic() > give_up_at:
                raise WaitTimeout(f"keys are present {LOOKUP_S_MAX:g} s after all were evicted")
            time.sleep(POLL_S)

    def _asked(self, keys: KeyArray) -> float:
        """Seconds that a lookup of these keys (ascending) took; its answer is checked after that."""
        asked = pa.array(keys)
        began = time.perf_counter()
        rows = self._client.lookup(VIEW, asked, timeout=LOOKUP_S_MAX)
        seconds = time.perf_counter() - began
        self._check(rows, keys)
        return seconds

    def _check(self, rows: pa.Table, keys: KeyArray) -> None:
        self._checked += len(keys)
        self._wrong += int(np.count_nonzero(counted(rows, keys) != self._counts[keys]))


def larger_batches(batches: int) -> int:
    """How many larger ones there are."""
    return max(1, batches // LARGER_SHARE)


if __name__ == "__main__":
    main()
