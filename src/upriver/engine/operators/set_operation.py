"""SetOperation: EXCEPT and INTERSECT, with and without ALL, of two inputs of one schema.

The operator counts how often each input has each distinct row. These counts decide how often the output has it.
"""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import pyarrow as pa

from upriver.engine.batch import Batch
from upriver.engine.operators.compacted import USUAL, CompactedStore, CompactionPace
from upriver.engine.operators.operator import check_new, net_changes, part_of
from upriver.errors import ProtocolError
from upriver.hashing import Hashes, hash64
from upriver.plan import plan as ops
from upriver.state.columns import array_of, cells_of
from upriver.state.indexes import Hasher, RoutedIndex
from upriver.state.vectors import Mask, Slots, Vector, Weights, true_at

Copies = Callable[[Weights, Weights], Weights]
"""How often the output has a row, given how often each input has it."""


class SetOperation(CompactedStore):
    """The rows of port 0, selected by those of port 1. An output row has one form for each number: one zero, one
    NaN."""

    def __init__(
        self,
        op: ops.SetOperationOp,
        source: pa.Schema,
        routing: Sequence[str],
        hasher: Hasher = hash64,
        pace: CompactionPace = USUAL,
    ) -> None:
        """source: of both inputs. routing: the routing key's columns, all in it. hasher: of rows. eagerness: how soon
        and how fast to compact."""
        super().__init__(source, partial(_CountedRows, _copies_of(op), source, tuple(routing), hasher), pace)


class _CountedRows:
    """Rows with their counts on both sides."""

    __slots__ = ("_copies", "_counts", "_rows", "_schema")

    def __init__(self, copies: Copies, source: pa.Schema, routing: tuple[str, ...], hasher: Hasher) -> None:
        self._copies = copies
        self._schema = source
        self._rows = RoutedIndex(source, routing, hasher)
        self._counts: tuple[Vector[np.int64], Vector[np.int64]] = (Vector(np.int64), Vector(np.int64))

    @property
    def held(self) -> int:
        return self._rows.held

    @property
    def slots(self) -> int:
        return len(self._rows)

    @property
    def nbytes(self) -> int:
        return self._rows.nbytes + sum(counts.nbytes for counts in self._counts)

    def apply(self, port: int, batch: Batch) -> Batch:
        slots, first, net = net_changes(self._assign(batch.hash64, batch.rows.columns), batch.weight)
        before = self._output(slots)
        after = self._counts[port].cells[slots] + net
        if (after < 0).any():
            raise ProtocolError("a row was retracted more often than it is there")
        self._counts[port].cells[slots] = after
        change = self._output(slots) - before
        self._rows.forget(slots[self._is_empty(slots)])
        changed = true_at(change)
        rows = pa.RecordBatch.from_arrays(self._rows.columns(slots[changed]), schema=self._schema)
        return Batch(rows, batch.hash64[first[changed]], change[changed])

    def hashes_between(self, least: int, most: int) -> Hashes:
        return self._rows.hashes_between(least, most)

    def collect(self, keys: Hashes) -> tuple[pa.RecordBatch, ...]:
        """One row for each: the routing key's hash64, its columns, and the counts."""
        slots = self._rows.with_hash(keys)
        counts = [array_of(pa.int64(), counts.cells[slots]) for counts in self._counts]
        return (part_of(self._rows.hashes(slots), [*self._rows.columns(slots), *counts]),)

    def install(self, state: Sequence[pa.RecordBatch]) -> None:
        for part in state:
            known = self.slots
            hashes, *columns, left, right = part.columns
            slots = self._assign(cells_of(hashes), columns)
            check_new(self.slots == known + len(slots))
            for counts, theirs in zip(self._counts, (left, right), strict=True):
                counts.cells[slots] = cells_of(theirs)

    def drop(self, keys: Hashes) -> None:
        self._rows.forget(self._rows.with_hash(keys))

    def _assign(self, hashes: Hashes, columns: Sequence[pa.Array]) -> Slots:
        slots = self._rows.assign(hashes, columns)
        for counts in self._counts:
            counts.resize(self.slots)
        return slots

    def _output(self, slots: Slots) -> Weights:
        left, right = self._counts
        return self._copies(left.cells[slots], right.cells[slots])

    def _is_empty(self, slots: Slots) -> Mask:
        left, right = self._counts
        empty: Mask = (left.cells[slots] == 0) & (right.cells[slots] == 0)
        return empty


def _copies_of(op: ops.SetOperationOp) -> Copies:
    if op.kind is ops.SetKind.EXCEPT:
        return _rest if op.all else _only_left
    return np.minimum if op.all else _both


def _rest(left: Weights, right: Weights) -> Weights:
    rest: Weights = np.maximum(left - right, 0)
    return rest


def _only_left(left: Weights, right: Weights) -> Weights:
    return np.where((left > 0) & (right == 0), 1, 0)


def _both(left: Weights, right: Weights) -> Weights:
    return np.where((left > 0) & (right > 0), 1, 0)
