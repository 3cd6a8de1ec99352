"""What was answered about keys of a worker that died, held against the truth."""

from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from benchmarks.recovery_feed import FeedSpec
from benchmarks.recovery_prober import FAILED

Mask = npt.NDArray[np.bool_]
Numbers = npt.NDArray[np.int64]
Times = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class RecoveryAnswers:
    """As the prober's ``ANSWERS``, column by column."""

    begun_at: Times
    answered_at: Times
    key: Numbers
    n: Numbers
    total: Numbers
    epoch: Numbers

    @classmethod
    def read(cls, path: str) -> Self:
        with pa.OSFile(path, "rb") as source, pa.ipc.open_stream(source) as stream:
            return cls.of(stream.read_all())

    @classmethod
    def of(cls, table: pa.Table) -> Self:
        return cls(*(column.to_numpy() for column in table.columns))

    @property
    def failed(self) -> Mask:
        """Where there was no answer."""
        failed: Mask = self.n == FAILED
        return failed

    def right(self, spec: FeedSpec, files: int) -> Mask:
        """Where count and sum are those of all rows up to the answer's epoch, and no answer before had a later epoch.

        files: how many there were, one to an epoch.
        """
        counts, sums = np.zeros(spec.keys, np.int64), np.zeros(spec.keys, np.int64)
        is_right = np.zeros(len(self.key), np.bool_)
        for epoch in range(1, files + 1):
            keys, values = (column.to_numpy() for column in spec.rows(epoch).columns)
            np.add.at(counts, keys, 1)
            np.add.at(sums, keys, values)
            here = np.flatnonzero(self.epoch == epoch)
            asked = self.key[here]
            is_right[here] = (self.n[here] == counts[asked]) & (self.total[here] == sums[asked])
        newest = np.maximum.accumulate(np.where(self.failed, 0, self.epoch))
        return is_right & (self.epoch >= newest)


def served_again(answers: RecoveryAnswers, is_right: Mask, after: float) -> float | None:
    """When the longest time after ``after`` in which no lookup was answered right was over; ``None`` if it was not.

    Of lookups that began after that time, each right if all of its keys are. The first right one need not end it.
    """
    begun_at, places = np.unique(answers.begun_at, return_inverse=True)
    all_right = np.ones(len(begun_at), np.bool_)
    np.logical_and.at(all_right, places, is_right)
    right_at = np.unique(answers.answered_at[all_right[places] & (answers.begun_at > after)])
    gaps = np.diff([after, *right_at, max(after, answers.answered_at.max(initial=after))])
    longest = int(gaps.argmax())
    return float(right_at[longest]) if longest < len(right_at) else None
