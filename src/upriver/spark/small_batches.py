"""Which of a table's micro-batches are written by one task, and which by several after a shuffle.

Where there are few rows, one task costs about half of what several do; where there are many, or each takes long to
compute, several are done sooner. How many rows a batch has is only known when it has been read, so the next batch is
taken to be like the last, and the first to be small. A wrong guess costs time and nothing else: a task to which too
many rows come writes nothing, and the batch is written with a shuffle.
"""

from collections.abc import Iterable

from upriver.spark.packing import PACK_BYTES_MAX, PACK_ROWS_MAX
from upriver.state.runs import RunInfo

ALONE_S_MAX = 2.0
"""Seconds for which one task may be at work on a batch; longer, and several might have been done sooner."""
SHARED_BATCHES = 100
"""Batches that are written with a shuffle when one task was too much for one."""


class SmallBatches:
    """One table's batches. A batch is small if it has at most half the rows and bytes that a task holds at once."""

    def __init__(self) -> None:
        self._is_last_small: bool | None = None
        """``None`` before the first batch."""
        self._shared_left = 0

    @property
    def expected(self) -> bool:
        """Whether the next batch is to be written by one task."""
        return self._is_last_small is not False and not self._shared_left

    def wrote_alone(self, runs: Iterable[RunInfo], seconds: float) -> None:
        """One task has written a batch. runs: those of one index."""
        self._is_last_small = _are_small(runs)
        if seconds > ALONE_S_MAX:
            self._shared_left = SHARED_BATCHES

    def was_too_large(self) -> None:
        """One task was given a batch that it could not hold; it comes again, to several."""
        # Before the first batch nothing is known, and there may be much to catch up with.
        if self._is_last_small is not None:
            self._shared_left = SHARED_BATCHES
        self._is_last_small = False

    def wrote_shared(self, runs: Iterable[RunInfo]) -> None:
        """Several tasks have written a batch. runs: those of one index."""
        self._is_last_small = _are_small(runs)
        self._shared_left = max(0, self._shared_left - 1)


def _are_small(runs: Iterable[RunInfo]) -> bool:
    sizes = [(run.rows, run.bytes) for run in runs]
    rows, size = sum(rows for rows, _ in sizes), sum(size for _, size in sizes)
    return rows <= PACK_ROWS_MAX // 2 and size <= PACK_BYTES_MAX // 2
