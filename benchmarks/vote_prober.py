"""Reads of articles, and of votes just published, from a process without Spark.

``python -m benchmarks.vote_prober TASK.json`` reads the token from stdin, then a line for each epoch published, and
ends with stdin. The load is an open loop: reads come at random times at a given rate, whatever became of those before,
and the time of each counts from when it came. As in the papers, those that come within some milliseconds go together in
one lookup. Beside them some keys are read one at a time.
"""

import json
import sys
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.prober_process import run_prober
from benchmarks.vote_model import VIEW, KeyArray, Popularity, titles
from upriver.client.client import Client
from upriver.errors import UpriverError

WARM_UP = 50
"""Lookups of one key before the clock starts."""
PRIME_READS = 10_000
"""Reads of one lookup of those that come before the load."""
WAITING_MAX = 32
"""Lookups of each kind that can be under way at once; more of them wait, and their clocks run."""
LOOKUP_S_MAX = 60.0
"""Seconds after which a lookup counts as failed."""

BATCHED, SINGLE, MISS, HIT, FRESH = range(5)
"""Kinds of reads: popular articles, many together or one alone; one that was never read before, and the same again
right afterwards; one just voted for, as of the epoch of that vote."""
ANSWERS = pa.schema(
    [
        ("kind", pa.int8()),
        ("due_at", pa.float64()),
        ("answered_at", pa.float64()),
        ("key", pa.int64()),
        ("n", pa.int64()),
        ("epoch", pa.int64()),
    ]
)
"""A row for each read. Times are ``time.perf_counter``, which all processes of a machine share. n: the count found,
``WRONG`` if there was no answer or not the article's row. epoch: that the answer reflects, as it says or was asked."""
WRONG = -1

Times = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class VoteTask:
    """What to read. articles: popular ones, from 0 up. unread: as many articles more, each of which is read once.
    prime_reads: before the load, by its distribution, so that what is read often is kept. reads_per_s: of which those
    of ``batch_ms`` go together. singles_per_s: alone. misses_per_s: of unread articles.
    result: file for the ``ANSWERS``, an Arrow stream."""

    address: str
    articles: int
    unread: int
    distribution: str
    skew: float
    prime_reads: int
    reads_per_s: float
    batch_ms: float
    singles_per_s: float
    misses_per_s: float
    result: str
    seed: int


class VoteProber:
    """Asks a client on many threads: a lookup that waits keeps no other one from being asked."""

    def __init__(self, client: Client, task: VoteTask) -> None:
        self._client = client
        self._task = task
        self._popularity = Popularity(task.distribution, task.articles, task.skew)
        self._unread = iter(range(task.articles, task.articles + task.unread))
        self._found: list[pa.Table] = []
        self._is_over = threading.Event()

    def warm_up(self) -> None:
        """Open connections, load code, have the view keep what is read often."""
        rng = np.random.default_rng(self._task.seed)
        for key in self._popularity.draw(WARM_UP, rng).tolist():
            self._client.lookup(VIEW, [key])
        for first in range(0, self._task.prime_reads, PRIME_READS):
            reads = min(PRIME_READS, self._task.prime_reads - first)
            self._client.lookup(VIEW, pa.array(np.unique(self._popularity.draw(reads, rng))), timeout=LOOKUP_S_MAX)

    def probe(self, published: Iterable[str]) -> pa.Table:
        """Ask until ``published`` ends, and wait for the answers.

        published: JSON, ``{"epoch": number, "at": when it was published, "keys": some of its votes' articles}``.
        """
        task, loops = self._task, []
        kinds = {BATCHED: 1e3 / task.batch_ms, SINGLE: task.singles_per_s, MISS: task.misses_per_s}
        ask = {BATCHED: self._read_batch, SINGLE: self._read_single, MISS: self._read_unread}
        threads = {kind: ThreadPoolExecutor(WAITING_MAX) for kind in (*kinds, FRESH)}
        for kind, per_s in kinds.items():
            loop = threading.Thread(target=self._ask_steadily, args=(kind, per_s, ask[kind], threads[kind]))
            loops.append(loop)
            loop.start()
        for line in published:
            epoch = json.loads(line)
            for key in epoch["keys"]:
                threads[FRESH].submit(self._read, FRESH, np.array([epoch["at"]]), np.array([key]), epoch["epoch"])
        self._is_over.set()
        for loop in loops:
            loop.join()
        for pool in threads.values():
            pool.shutdown()
        return pa.concat_tables([ANSWERS.empty_table(), *self._found])

    def _ask_steadily(
        self, kind: int, per_s: float, ask: Callable[[float, int], None], threads: ThreadPoolExecutor
    ) -> None:
        """So often a second, at even times: what comes at uneven times is up to ``ask``, which is given a seed."""
        rng = np.random.default_rng([self._task.seed, kind])
        due_at = time.perf_counter()
        while per_s and not self._is_over.wait(max(0.0, due_at - time.perf_counter())):
            threads.submit(ask, due_at, int(rng.integers(0, 2**32)))
            due_at += 1 / per_s

    def _read_batch(self, until: float, seed: int) -> None:
        """What has come in the milliseconds before ``until``: each read by itself, at any time of them."""
        rng, seconds = np.random.default_rng(seed), self._task.batch_ms / 1e3
        came_at = until - seconds * rng.random(rng.poisson(self._task.reads_per_s * seconds))
        if len(came_at):
            self._read(BATCHED, came_at, self._popularity.draw(len(came_at), rng))

    def _read_single(self, due_at: float, seed: int) -> None:
        self._read(SINGLE, np.array([due_at]), self._popularity.draw(1, np.random.default_rng(seed)))

    def _read_unread(self, due_at: float, _: int) -> None:
        """A miss, if the view is partial; then a hit, if nothing has been evicted since."""
        key = np.array([next(self._unread)])
        self._read(MISS, np.array([due_at]), key)
        self._read(HIT, np.array([time.perf_counter()]), key)

    def _read(self, kind: int, due_at: Times, keys: KeyArray, at_least: int = 0) -> None:
        """One lookup of these reads' keys, some of which may be the same."""
        distinct, places = np.unique(keys, return_inverse=True)
        try:
            rows, epoch = self._client.lookup_with_epoch(
                VIEW, pa.array(distinct), at_least=at_least or None, timeout=LOOKUP_S_MAX
            )
        except UpriverError as error:
            print(f"{len(distinct)} keys, epoch {at_least} at least: {error}", file=sys.stderr, flush=True)
            rows, epoch = None, 0
        answered_at = time.perf_counter()
        counts = np.full(len(distinct), WRONG) if rows is None else counted(rows, distinct)
        reads = len(keys)
        columns = [
            np.full(reads, kind, np.int8),
            due_at,
            np.full(reads, answered_at),
            keys,
            counts[places],
            np.full(reads, max(epoch, at_least)),
        ]
        self._found.append(pa.table(columns, schema=ANSWERS))


def counted(rows: pa.Table, keys: KeyArray) -> KeyArray:
    """The votes of these articles, in order, by the rows found of them; ``WRONG`` where a row is not the article's."""
    if not np.array_equal(rows["id"].to_numpy(), keys):
        return np.full(len(keys), WRONG)
    is_right = pc.equal(rows["title"].combine_chunks(), titles(keys)).fill_null(False)
    return np.where(is_right.to_numpy(zero_copy_only=False), rows["n"].fill_null(0).to_numpy(), WRONG)


if __name__ == "__main__":
    run_prober(VoteTask, VoteProber)
