"""The order of a table's rows in the lake: hash64, then epoch, then ``order_by``, then the task that wrote a row, then
its place in the runs of that task. Rows are sorted when they are written, and merged when they are read.

A *sequence* is what one task has written: its rows in order, in batches. Sequences may have the same keys. Among rows
of one key and one epoch, ``order_by`` decides only between sequences: a sequence is in order by itself. That matters
for merged runs, whose rows of one key are in the order of their epochs first.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from upriver.hashing import Hashes
from upriver.state.pair_index import sorted_by
from upriver.state.vectors import Mask, Positions, true_at


@dataclass(frozen=True, slots=True)
class TaskRows:
    """Where neighbouring rows come from. rows: how many. epoch: any number that rows of one epoch share; rows of two
    epochs have two. task: whose sequence they belong to."""

    rows: int
    epoch: int
    task: int


def sorted_order(hash64: Hashes, rows: pa.RecordBatch, order_by: Sequence[str]) -> Positions:
    """The positions of rows in the order of hash64, then ``order_by``, nulls first. Ties stay as they are."""
    order = _hash_order(hash64)
    if order_by:
        hashes = hash64[order]
        is_alike = hashes[1:] == hashes[:-1]
        _sort_alike(order, is_alike, is_alike, rows, order_by)
    return order


def _hash_order(hash64: Hashes) -> Positions:
    """The positions of hashes in any order, ascending, as a stable sort gives them; in a seventh of its time.

    The first bits of the hashes are sorted as numbers with the positions behind them. Few hashes share these bits.
    """
    bits = np.uint64(len(hash64).bit_length())
    numbered = (hash64 >> bits << bits) | np.arange(len(hash64), dtype=np.uint64)
    numbered.sort()
    order: Positions = (numbered & ((np.uint64(1) << bits) - np.uint64(1))).astype(np.int64)
    hashes = hash64[order]
    if (hashes[1:] < hashes[:-1]).any():
        order = order[np.argsort(hashes, kind="stable")]
    return order


def merged_order(
    hash64: Hashes, rows: pa.RecordBatch, order_by: Sequence[str], sources: Sequence[TaskRows]
) -> Positions:
    """The positions of rows in the order of this module.

    rows: in the order of sources, which are in the order of epochs, then of tasks; each source is sorted by hash64.
    """
    order: Positions = np.argsort(hash64, kind="stable")
    if not order_by or len({source.task for source in sources}) < 2:
        return order
    counts = [source.rows for source in sources]
    epochs = np.repeat([source.epoch for source in sources], counts)[order]
    tasks = np.repeat([source.task for source in sources], counts)[order]
    hashes = hash64[order]
    is_alike = (hashes[1:] == hashes[:-1]) & (epochs[1:] == epochs[:-1])
    _sort_alike(order, is_alike, is_alike & (tasks[1:] != tasks[:-1]), rows, order_by)
    return order


def _sort_alike(
    order: Positions, is_alike: Mask, is_unsorted: Mask, rows: pa.RecordBatch, order_by: Sequence[str]
) -> None:
    """Sort neighbours by ``order_by``, in place. is_alike: of each place but the first, whether its row is of the same
    key as the one before. is_unsorted: whether it may have to be before that one."""
    if not is_unsorted.any():
        return
    groups = np.zeros(len(order), np.int64)
    np.cumsum(~is_alike, out=groups[1:])
    group_is_unsorted = np.zeros(groups[-1] + 1, np.bool_)
    group_is_unsorted[groups[1:][is_unsorted]] = True
    places = true_at(group_is_unsorted[groups])
    taken = order[places]
    at = pa.array(taken)
    keys = [pa.array(groups[places]), *(_sortable(rows.column(name).take(at)) for name in order_by)]
    names = [f"k{number}" for number in range(len(keys))]  # a column's own name may read as a path
    by = sorted_by([(name, "ascending") for name in names], "at_start")
    order[places] = taken[pc.sort_indices(pa.table(keys, names), **by).to_numpy()]


def _sortable(column: pa.Array) -> pa.Array:
    """Values that Arrow orders as Spark orders the column's: for floats, NaN comes last and -0.0 is 0.0."""
    if not pa.types.is_floating(column.type):
        return column
    values = column.cast(pa.float64())
    numbers = values.fill_null(0.0).to_numpy(zero_copy_only=False) + 0.0  # the sum of -0.0 and 0.0 is 0.0
    bits = np.where(np.isnan(numbers), np.nan, numbers).view(np.int64)
    ordered = bits ^ ((bits >> 63) & np.int64(0x7FFF_FFFF_FFFF_FFFF))
    return pa.array(ordered, mask=values.is_null().to_numpy(zero_copy_only=False))


def merged(sequences: Sequence[Iterable[pa.RecordBatch]], order_by: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """The rows of the sequences of one epoch as one sequence. The first column of each batch is hash64.

    No batch ends between two rows of one key, even if the batches of a sequence do. In memory are about two batches of
    each sequence, and what follows of their last key. A single sequence is not copied.
    """
    heads = [_Head(sequence) for sequence in sequences]
    while True:
        heads = [head for head in heads if head.has_rows]
        if not heads:
            return
        if len(heads) > 1:
            for head in heads:
                head.fill()
        frontier = min(head.last for head in heads)
        for head in heads:
            head.read_behind(frontier)
        taken = [head.taken(frontier) for head in heads]
        yield _merged([parts for parts in taken if parts], order_by)


def _merged(sequences: Sequence[Sequence[pa.RecordBatch]], order_by: Sequence[str]) -> pa.RecordBatch:
    parts = [part for sequence in sequences for part in sequence]
    if len(parts) == 1:
        return parts[0]
    rows = pa.concat_batches(parts)
    if len(sequences) == 1:
        return rows
    sources = [TaskRows(sum(map(len, sequence)), 0, number) for number, sequence in enumerate(sequences)]
    return rows.take(pa.array(merged_order(rows.column(0).to_numpy(), rows, order_by, sources)))


class _Head:
    """A sequence, and its batches that were read and not taken."""

    def __init__(self, sequence: Iterable[pa.RecordBatch]) -> None:
        self._batches = iter(sequence)
        self._held: list[pa.RecordBatch] = []
        self._rows_max = 0
        """Rows of the longest batch so far."""

    def _read(self) -> bool:
        """Read a batch with rows; returns whether there is one."""
        batch = next((batch for batch in self._batches if len(batch)), None)
        if batch is not None:
            self._held.append(batch)
            self._rows_max = max(self._rows_max, len(batch))
        return batch is not None

    def fill(self) -> None:
        """Hold as many rows as a batch has: with few rows of any sequence, few rows of all can be merged at a time."""
        while sum(map(len, self._held)) < self._rows_max and self._read():
            pass

    @property
    def has_rows(self) -> bool:
        return bool(self._held) or self._read()

    @property
    def last(self) -> np.uint64:
        """The hash64 of the last row that was read, if there is one."""
        return np.uint64(_hashes(self._held[-1])[-1])

    def read_behind(self, frontier: np.uint64) -> None:
        """Read until all rows up to this hash64 are here."""
        while self.last <= frontier and self._read():
            pass

    def taken(self, frontier: np.uint64) -> list[pa.RecordBatch]:
        """Take the rows up to this hash64."""
        taken = []
        while self._held:
            batch = self._held[0]
            end = int(_hashes(batch).searchsorted(frontier, side="right"))
            if end:
                taken.append(batch.slice(0, end))
            if end < len(batch):
                self._held[0] = batch.slice(end)
                break
            del self._held[0]
        return taken


def _hashes(rows: pa.RecordBatch) -> npt.NDArray[np.uint64]:
    hashes: npt.NDArray[np.uint64] = rows.column(0).to_numpy()
    return hashes
