"""Which runs a lake edge has, in order; small ones that follow each other are merged in memory.

Each epoch adds a run, and whoever wants the rows of a key has to look into all of them. An hour of small epochs is
thousands of runs, each of which costs more to look into than the few rows that it has. So some that follow each other
become one, and some of these again: of n small runs, about the logarithm of n are left to look into.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from upriver.engine.batch import Batch
from upriver.errors import LakeError
from upriver.ids import Epoch
from upriver.state.runs import RunInfo

MERGED_TOGETHER = 16
"""Runs, or what was merged of runs, that become one."""
SMALL_BYTES = 64 << 10
"""A run is small up to this length of its file; others are searched where they are."""
MERGED_BYTES_MAX = 64 << 20
"""Of what is merged for one lake edge. What comes after that stays in its files."""
TIDIED_RUNS_MAX = 64
"""Runs that one call looks at: whoever comes to a long history does not wait until all of it is merged."""


@dataclass(frozen=True, slots=True)
class Run:
    """A run of an epoch. info: without its vnode_rows. places: bit p is set if it has rows at place p."""

    epoch: Epoch
    info: RunInfo
    places: int

    @property
    def first(self) -> Epoch:
        return self.epoch

    @property
    def last(self) -> Epoch:
        return self.epoch


@dataclass(frozen=True, slots=True)
class Merged:
    """Runs of the epochs ``first`` to ``last``: their rows sorted by hash64, those of one in order of epoch and run.

    epochs: of each row. places: as of a run. level: how many times these rows were merged.
    """

    first: Epoch
    last: Epoch
    rows: Batch
    epochs: npt.NDArray[np.int64]
    places: int
    level: int

    def between(self, after: Epoch, through: Epoch) -> Batch:
        """The rows of all epochs after ``after`` up to and including ``through``."""
        if after < self.first and self.last <= through:
            return self.rows
        return self.rows.filtered((after < self.epochs) & (self.epochs <= through))


@dataclass(frozen=True, slots=True)
class Merging:
    """When to merge: each as the constant of its name says."""

    together: int = MERGED_TOGETHER
    small_bytes: int = SMALL_BYTES
    bytes_max: int = MERGED_BYTES_MAX
    tidied_max: int = TIDIED_RUNS_MAX


USUAL = Merging()


class Catalogue:
    """All runs of one lake edge up to and including the epoch ``through``, in the order that they are to be read in."""

    def __init__(self, merging: Merging) -> None:
        self.through = Epoch(0)
        self._merging = merging
        self._tidy: list[Run | Merged] = []
        """Those that come first, merged where they are to be."""
        self._levels: list[int] = []
        """Of each of these: how many times it was merged; -1 if it is not to be merged any more."""
        self._untidy: deque[Run] = deque()
        """All others."""
        self._merged_bytes = 0

    def add(self, epoch: Epoch, runs: Sequence[Run]) -> None:
        """The next epoch's runs, if it has any."""
        self._untidy.extend(runs)
        self.through = epoch

    def between(self, after: Epoch, through: Epoch) -> list[Run | Merged]:
        """Where the rows of all epochs after ``after`` up to and including ``through`` are; of merged ones, beside
        those of others."""
        tidy = self._tidy[bisect_right(self._tidy, after, key=lambda run: run.last) :]
        untidy = islice(self._untidy, bisect_right(self._untidy, after, key=lambda run: run.last), None)
        found = [*tidy, *untidy]
        return found[: bisect_right(found, through, key=lambda run: run.first)]

    def tidy(self, read: Callable[[RunInfo], Batch]) -> None:
        """Merge some. read: gives the rows of a run; it may raise LakeError, and then that run stays as it is."""
        for _ in range(min(self._merging.tidied_max, len(self._untidy))):
            run = self._untidy.popleft()
            self._tidy.append(run)
            self._levels.append(0 if run.info.bytes <= self._merging.small_bytes else -1)
            while self._merge_last(read):
                pass

    def _merge_last(self, read: Callable[[RunInfo], Batch]) -> bool:
        """Merge the last ones if there are enough of one level; returns whether that was so."""
        count = self._merging.together
        level = self._levels[-1]
        if level < 0 or len(self._levels) < count or set(self._levels[-count:]) != {level}:
            return False
        if self._merged_bytes >= self._merging.bytes_max:
            return False
        try:
            merged = _merged(self._tidy[-count:], read, level + 1)
        except LakeError:
            self._levels[-count:] = [-1] * count  # who wants rows of it is told; others need not know
            return False
        self._tidy[-count:], self._levels[-count:] = [merged], [level + 1]
        if level == 0:
            self._merged_bytes += merged.rows.rows.nbytes + merged.rows.hash64.nbytes + merged.epochs.nbytes
        return True


def _merged(parts: Sequence[Run | Merged], read: Callable[[RunInfo], Batch], level: int) -> Merged:
    batches = [part.rows if isinstance(part, Merged) else read(part.info) for part in parts]
    epochs = [
        part.epochs if isinstance(part, Merged) else np.full(len(batch), part.epoch, np.int64)
        for part, batch in zip(parts, batches, strict=True)
    ]
    hash64 = np.concatenate([batch.hash64 for batch in batches])
    order = np.argsort(hash64, kind="stable")
    rows = pa.concat_batches([batch.rows for batch in batches]).take(pa.array(order))
    last = parts[-1]
    places = 0
    for part in parts:
        places |= part.places
    return Merged(
        first=parts[0].first,
        last=last.last if isinstance(last, Merged) else last.epoch,
        rows=Batch(rows, hash64[order]),
        epochs=np.concatenate(epochs)[order],
        places=places,
        level=level,
    )
