"""Windowed: all rows, each with the results of window functions over the rows of its partition.

The operator keeps all rows, equal ones as one *entry* with a count, and for each partition the list of its entries in
the window's order. It does not keep the results. When rows of a partition change, the functions are evaluated over the
rows before the change and over the rows after it; where the results of a row differ, the old row is taken back and the
new one is put out. Evaluation is exact, so the old results are those that were put out.

Only rows that the change can reach are evaluated: from the first changed row on for row numbers and running sums, and
some rows around the change for lag, lead and frames of some rows. Such frames need no other rows. Otherwise the columns
of the whole partition are read, but only new rows are sorted.

Entries that tie are sorted by all their columns, so no two tie. The copies of an entry follow one another.

Rows are sorted as by :mod:`upriver.engine.operators.topk`.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial, reduce
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from upriver.engine.batch import Batch
from upriver.engine.operators.accumulators import OutOfRange
from upriver.engine.operators.compacted import USUAL, CompactedStore, CompactionPace
from upriver.engine.operators.operator import concatenated
from upriver.engine.operators.partitioned_rows import PartitionedRows, of_each
from upriver.engine.operators.sorted_lists import with_new_members
from upriver.engine.operators.topk import in_order, sort_keys, tie_keys
from upriver.engine.operators.window_frames import BeyondLimits, Reach, RowsInOrder, SortValues, reach_of
from upriver.engine.operators.window_functions import results
from upriver.engine.row_text import row_text
from upriver.errors import RowError
from upriver.hashing import Hashes, hash64
from upriver.plan import plan as ops
from upriver.plan.types import spark_name
from upriver.state.columns import canonical, same
from upriver.state.indexes import Hasher
from upriver.state.multimap import Lists
from upriver.state.vectors import (
    Mask,
    Positions,
    Slots,
    Weights,
    run_lengths,
    run_starts,
    spread,
    true_at,
)

ROWS_AT_ONCE_MAX = 1 << 18
"""Entries of changed partitions that are evaluated at a time, unless one partition alone has more."""


class Windowed(CompactedStore):
    """The rows, each with the results of the window functions."""

    def __init__(
        self,
        op: ops.WindowOp,
        source: pa.Schema,
        routing: Sequence[str],
        hasher: Hasher = hash64,
        pace: CompactionPace = USUAL,
    ) -> None:
        """source: of the input. routing: the routing key's columns, all in the partition. hasher: of rows, and of
        partitions that are finer than the routing key. pace: how soon and how fast to compact."""
        output = pa.schema([*source, *(pa.field(call.output, call.type) for call in op.calls)])
        super().__init__(output, partial(_WindowRows, op, source, output, tuple(routing), hasher), pace)


class _Changed(NamedTuple):
    """Entries whose counts a batch changes, ascending, and by how much. new: those that were not there."""

    slots: Slots
    weight: Weights
    new: Slots


@dataclass(frozen=True, slots=True)
class _Entries:
    """Entries of some partitions, one partition after the other, each in order. ties: gives a number for each, that
    entries which tie in the sort columns share. out: those whose results are wanted."""

    slots: Slots
    partitions: Positions
    ties: Callable[[], Positions]
    out: Mask


@dataclass(frozen=True, slots=True)
class _Results:
    """Rows with the results of all calls. slots: the entry of each row. starts: where the copies of each entry
    begin."""

    columns: list[pa.Array]
    slots: Slots
    starts: Positions


class _WindowRows:
    """The entries of each partition."""

    __slots__ = (
        "_keys",
        "_lists",
        "_op",
        "_order",
        "_output",
        "_places",
        "_reach",
        "_rows",
    )

    def __init__(
        self, op: ops.WindowOp, source: pa.Schema, output: pa.Schema, routing: tuple[str, ...], hasher: Hasher
    ) -> None:
        self._op = op
        self._output = output
        self._places = {name: place for place, name in enumerate(source.names)}
        self._order = sort_keys(op.order, source)
        self._keys = [*self._order, *tie_keys(op, source)]
        self._reach = reduce(Reach.beside, map(reach_of, op.calls), Reach(0, 0))
        self._rows = PartitionedRows(source, op.partition, routing, hasher)
        self._lists = Lists()
        """By partition: its entries."""

    @property
    def held(self) -> int:
        """How many entries there are."""
        return self._rows.held

    @property
    def slots(self) -> int:
        """How many slots are in use, including those of entries that are gone."""
        return self._rows.slots

    @property
    def nbytes(self) -> int:
        return self._rows.nbytes + self._lists.nbytes

    def apply(self, port: int, batch: Batch) -> Batch:
        changes = self._rows.change(batch)
        self._enter(changes.new)
        moved = changes.weight != 0
        changed = _Changed(changes.slots[moved], changes.weight[moved], changes.new)
        touched = np.unique(self._rows.owners(changed.slots))
        parts = [self._settle(owners, changed) for owners in self._some_at_a_time(touched)]
        self._rows.forget(changes)
        return concatenated(parts)

    def hashes_between(self, least: int, most: int) -> Hashes:
        return self._rows.hashes_between(least, most)

    def collect(self, keys: Hashes) -> tuple[pa.RecordBatch, ...]:
        return (self._rows.collect(self._members(keys)[1]),)

    def install(self, state: Sequence[pa.RecordBatch]) -> None:
        for part in state:
            slots, touched = self._rows.install(part)
            self._enter(slots)
            lists, members = self._lists.find(touched)
            order, _ = in_order(lists, self._keys, partial(self._rows.column_at, members))
            self._lists.replace(touched, self._lists.lengths(touched), members[order])

    def drop(self, keys: Hashes) -> None:
        self._rows.drop(*self._members(keys))

    def _members(self, keys: Hashes) -> tuple[Slots, Slots]:
        """The partitions of these routing keys, and their entries."""
        owners = self._rows.with_hash(keys)
        return owners, self._lists.find(owners)[1]

    def _enter(self, slots: Slots) -> None:
        """Append these new entries to the lists of their partitions."""
        self._lists.resize(self._rows.partitions)
        self._lists.append(self._rows.owners(slots), slots)

    def _some_at_a_time(self, owners: Slots) -> Iterator[Slots]:
        """These partitions, in one part or more."""
        parts = np.cumsum(self._lists.lengths(owners)) // ROWS_AT_ONCE_MAX
        yield from np.split(owners, true_at(np.diff(parts)) + 1)

    def _settle(self, touched: Slots, changed: _Changed) -> Batch:
        """What to put out for these partitions; entries that are gone leave their lists."""
        partitions, slots = self._lists.find(touched)
        new = np.isin(slots, changed.new) if len(changed.new) else np.zeros(len(slots), np.bool_)
        order = with_new_members(partitions, new, self._keys, partial(self._rows.column_at, slots))
        slots = slots[order]
        after = self._rows.counts(slots)
        there = after > 0
        self._lists.replace(touched, np.bincount(partitions[there], minlength=len(touched)), slots[there])
        before = after - of_each(slots, changed.slots, changed.weight)
        ties = cache(lambda: self._ties_of(partitions, slots))
        context, out = self._affected(partitions, before != after, ties)
        entries = _Entries(slots[context], partitions[context], lambda: ties()[context], out[context])
        return self._changes(entries, before[context], after[context])

    def _affected(
        self, partitions: Positions, changed: Mask, ties_of_all: Callable[[], Positions]
    ) -> tuple[Mask, Mask]:
        """Which entries are needed to evaluate the calls again, and which may have other results.

        An entry outside of the changed ones is as often there as before, and once at least.
        """
        at = true_at(changed)
        runs = run_starts(partitions[at])
        first, last = at[runs], at[runs + run_lengths(runs, len(at)) - 1]
        starts = run_starts(partitions)
        ends = starts + run_lengths(starts, len(partitions))
        reach = self._reach
        if reach.ties:
            ties = ties_of_all()
            first, last = np.searchsorted(ties, ties[first]), np.searchsorted(ties, ties[last], side="right") - 1
        low = starts if reach.ahead is None else np.maximum(starts, first - reach.ahead)
        high = ends if reach.back is None else np.minimum(ends, last + 1 + reach.back)
        out = _between(low, high, len(partitions))
        if reach.back is None or reach.ahead is None or reach.ties:
            return np.ones(len(partitions), np.bool_), out
        low, high = np.maximum(starts, low - reach.back), np.minimum(ends, high + reach.ahead)
        return _between(low, high, len(partitions)), out

    def _ties_of(self, partitions: Positions, slots: Slots) -> Positions:
        """A number for each of these entries, which are in order; equal for entries that tie in the sort columns."""
        differs = partitions[1:] != partitions[:-1]
        for key in self._order:
            values = canonical(self._rows.column(key.place, slots))
            differs |= ~same(values[1:], values[:-1])
        return np.concatenate([[0], np.cumsum(differs)])[: len(slots)]

    def _changes(self, entries: _Entries, before: Weights, after: Weights) -> Batch:
        """Take back the copies of entries that are gone or whose results differ, and put out those that are there now.

        Copies are compared in their order.
        """
        old, new = self._results(entries, before), self._results(entries, after)
        before, after = before[entries.out], after[entries.out]
        both = np.minimum(before, after)
        mine, theirs = spread(old.starts, both), spread(new.starts, both)
        differs = np.zeros(len(mine), np.bool_)
        for olds, news in zip(old.columns, new.columns, strict=True):
            differs |= ~same(olds.take(pa.array(mine)), news.take(pa.array(theirs)))
        at_old = np.concatenate([mine[differs], spread(old.starts + both, before - both)])
        at_new = np.concatenate([theirs[differs], spread(new.starts + both, after - both)])
        return concatenated([self._batch(old, at_old, -1), self._batch(new, at_new, 1)])

    def _results(self, entries: _Entries, counts: Weights) -> _Results:
        places = np.repeat(np.arange(len(counts)), counts)
        slots = entries.slots[places]
        rows = RowsInOrder(
            entries.partitions[places],
            lambda: entries.ties()[places],
            cache(lambda name: self._rows.column(self._places[name], slots)),
            partial(self._sort_values, slots),
        )
        at = true_at(entries.out[places])
        columns = [self._of_call(call, rows, at, slots) for call in self._op.calls]
        wanted = counts[entries.out]
        return _Results(columns, slots[at], np.cumsum(wanted) - wanted)

    def _of_call(self, call: ops.WindowCall, rows: RowsInOrder, at: Positions, slots: Slots) -> pa.Array:
        try:
            found = results(call, rows, at)
        except OutOfRange as lost:
            what = f"{call.output} does not fit {spark_name(call.type)}"
            instead = f"{call.function}(CAST(... AS DOUBLE)), or a DECIMAL of fewer digits, has more room"
            raise self._overflow(what, instead, slots[at[lost.slot]]) from None
        except BeyondLimits as lost:
            order = self._op.order[0].column
            type = spark_name(self._output.field(order).type)
            what = f"a bound of the frame of {call.output}, counted from {order}, does not fit {type}"
            instead = "Sort by a value that is far from the ends of its type, or CAST it to BIGINT"
            raise self._overflow(what, instead, slots[lost.place]) from None
        return found

    def _overflow(self, what: str, instead: str, slot: int) -> RowError:
        columns = self._rows.columns(np.array([slot]))
        row = row_text(pa.RecordBatch.from_arrays(columns, self._output.names[: len(columns)]), 0)
        return RowError(f"{what} (row: {row}). {instead}")

    def _sort_values(self, slots: Slots) -> SortValues:
        (order,) = self._op.order
        values = self._rows.column(self._places[order.column], slots)
        return SortValues.of(values, order.descending, order.nulls_first)

    def _batch(self, found: _Results, at: Positions, weight: int) -> Batch:
        """These rows with their results."""
        slots = found.slots[at]
        columns = [*self._rows.columns(slots), *(column.take(pa.array(at)) for column in found.columns)]
        rows = pa.RecordBatch.from_arrays(columns, schema=self._output)
        return Batch(rows, self._rows.hashes(slots), np.full(len(at), weight))


def _between(low: Positions, high: Positions, size: int) -> Mask:
    """The places from ``low`` to before ``high`` of each pair; of ``size`` places in all."""
    mask = np.zeros(size, np.bool_)
    mask[spread(low, high - low)] = True
    return mask
