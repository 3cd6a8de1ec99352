"""Latest: for each primary key the row of the highest version, as versions come in any order.

The operator keeps the highest version so far of each key. A deletion is a version like any other, without a row. While
it is the highest, older versions that come late have no effect. If versions have no order, the last one that comes is
the highest: none can be late, and a deletion leaves nothing behind.

If the table retains rows by a time, a version may come too late to be a row, or become too old: then it counts as a
deletion.
"""

from collections.abc import Sequence
from functools import partial

import numpy as np
import pyarrow as pa

from upriver.engine.batch import Batch
from upriver.engine.operators.compacted import USUAL, CompactedStore, CompactionPace
from upriver.engine.operators.operator import ExpressionEvaluator, check_new, concatenated, part_of
from upriver.engine.operators.topk import SortKey, in_order
from upriver.errors import ProtocolError
from upriver.hashing import Hashes, hash64
from upriver.plan import plan as ops
from upriver.state.columns import array_of, cells_of, column_of, mask_of, same
from upriver.state.indexes import Hasher, RoutedIndex
from upriver.state.vectors import Mask, Positions, Slots, Vector, true_at


class Latest(CompactedStore):
    """The current row of each primary key: ``-old +new`` for each one that changes."""

    def __init__(
        self,
        op: ops.LatestOp,
        source: pa.Schema,
        routing: Sequence[str],
        evaluator: ExpressionEvaluator,
        hasher: Hasher = hash64,
        pace: CompactionPace = USUAL,
    ) -> None:
        """source: of the versions. routing: the routing key's columns, all in the primary key. evaluator: of the
        predicate for deletions. hasher: of primary keys that are finer than the routing key. eagerness: how soon and
        how fast to compact."""
        super().__init__(source, partial(_Versions, op, source, tuple(routing), evaluator, hasher), pace)


class _Versions:
    """The highest version of each primary key."""

    __slots__ = ("_columns", "_evaluator", "_is_row", "_key", "_keys", "_op", "_order", "_place", "_schema")

    def __init__(
        self,
        op: ops.LatestOp,
        source: pa.Schema,
        routing: tuple[str, ...],
        evaluator: ExpressionEvaluator,
        hasher: Hasher,
    ) -> None:
        self._op = op
        self._schema = source
        self._evaluator = evaluator
        self._key = [source.get_field_index(name) for name in op.key]
        self._order = [SortKey(source.get_field_index(name), source.field(name).type) for name in op.order_by]
        self._keys = RoutedIndex(pa.schema([source.field(place) for place in self._key]), routing, hasher)
        self._place: Vector[np.int64] = Vector(np.int64, fill=-1)
        """By key: where its highest version is; -1 if there is none yet."""
        self._columns = {
            place: column_of(field.type)
            for place, field in enumerate(source)
            if place not in self._key or pa.types.is_floating(field.type)
        }
        """By place, the columns that the index of keys does not keep exactly, of all versions ever kept."""
        self._is_row: Vector[np.bool_] = Vector(np.bool_)
        """By version: false for a deletion."""

    @property
    def held(self) -> int:
        """How many keys have a version."""
        return self._keys.held

    @property
    def slots(self) -> int:
        return max(len(self._is_row), len(self._keys))

    @property
    def nbytes(self) -> int:
        versions = sum(column.nbytes for column in self._columns.values()) + self._is_row.nbytes
        return self._keys.nbytes + self._place.nbytes + versions

    def apply(self, port: int, batch: Batch) -> Batch:
        """Raises ProtocolError for a retraction if rows are not retained by a time, and RowError as the evaluator does,
        in which case nothing has changed."""
        weight = batch.weight
        if weight is None:
            return self._come(batch, np.ones(len(batch), np.bool_))
        leave = weight < 0
        if self._op.at is None:
            if leave.any():
                raise ProtocolError("a version of a row cannot be retracted")
            batch = batch.filtered(weight > 0)
            return self._come(batch, np.ones(len(batch), np.bool_))
        changes = self._come(batch.filtered(~leave), weight[~leave] > 0)
        return concatenated([changes, self._leave(batch.filtered(leave))]) if leave.any() else changes

    def _come(self, batch: Batch, is_row: Mask) -> Batch:
        """Take in versions; returns the changes. is_row: of each, unless it is a deletion."""
        if self._op.deleted is not None:
            is_row = is_row & ~self._evaluator.mask(batch.rows, self._op.deleted)
        keys = self._assign(batch.hash64, batch.rows.columns)
        highest = self._highest(keys, batch.rows)
        return self._advance(keys[highest], batch.rows.take(pa.array(highest)), batch.hash64[highest], is_row[highest])

    def _leave(self, batch: Batch) -> Batch:
        """These versions are too old from now on: keys whose highest version is one of them have no row."""
        keys = self._assign(batch.hash64, batch.rows.columns)
        versions = self._place.cells[keys]
        leaves = versions >= 0
        self._keys.forget(np.unique(keys[~leaves]))
        leaves[leaves] = self._is_row.cells[versions[leaves]]
        leaves[leaves] = self._equal(keys[leaves], versions[leaves], batch.rows.filter(pa.array(leaves)))
        _, first = np.unique(keys[leaves], return_index=True)
        gone = true_at(leaves)[np.sort(first)]
        self._is_row.cells[versions[gone]] = False
        return Batch(batch.rows.take(pa.array(gone)), batch.hash64[gone], np.full(len(gone), -1, np.int64))

    def hashes_between(self, least: int, most: int) -> Hashes:
        return self._keys.hashes_between(least, most)

    def collect(self, keys: Hashes) -> tuple[pa.RecordBatch, ...]:
        """One row for each primary key: the routing key's hash64, the columns of its highest version, and whether that
        version is a row."""
        slots = self._keys.with_hash(keys)
        versions = self._place.cells[slots]
        columns = [self._column(place, slots, versions) for place in range(len(self._schema))]
        is_row = array_of(pa.bool_(), self._is_row.cells[versions])
        return (part_of(self._keys.hashes(slots), [*columns, is_row]),)

    def install(self, state: Sequence[pa.RecordBatch]) -> None:
        for part in state:
            known = len(self._keys)
            hashes, *columns, is_row = part.columns
            keys = self._assign(cells_of(hashes), columns)
            check_new(len(self._keys) == known + len(keys))
            self._append(keys, columns, mask_of(is_row))

    def drop(self, keys: Hashes) -> None:
        self._keys.forget(self._keys.with_hash(keys))

    def _assign(self, hashes: Hashes, columns: Sequence[pa.Array]) -> Slots:
        slots = self._keys.assign(hashes, [columns[place] for place in self._key])
        self._place.resize(len(self._keys))
        return slots

    def _highest(self, keys: Slots, rows: pa.RecordBatch) -> Positions:
        """Which of these versions become the highest of their keys, at most one for each key."""
        known = np.unique(keys)
        known = known[self._place.cells[known] >= 0]
        versions = self._place.cells[known]
        candidates = {
            key.place: pa.concat_arrays([self._column(key.place, known, versions), rows.column(key.place)])
            for key in self._order
        }
        groups = np.concatenate([known, keys])
        order, _ = in_order(groups, self._order, lambda place, at: candidates[place].take(pa.array(at)))
        in_turn = groups[order]
        last = order[true_at(np.diff(in_turn, append=-1))]
        return last[last >= len(known)] - len(known)

    def _advance(self, keys: Slots, rows: pa.RecordBatch, hashes: Hashes, is_row: Mask) -> Batch:
        """Replace the versions of these keys by these; returns what to put out."""
        versions = self._place.cells[keys]
        was_row = versions >= 0
        was_row[was_row] = self._is_row.cells[versions[was_row]]
        changes = versions < 0
        known = ~changes
        changes[known] = ~self._equal(keys[known], versions[known], rows.filter(pa.array(known)))
        goes, comes = changes & was_row, changes & is_row
        columns = [
            pa.concat_arrays([self._column(place, keys[goes], versions[goes]), column.filter(pa.array(comes))])
            for place, column in enumerate(rows.columns)
        ]
        self._store(keys[changes], rows.filter(pa.array(changes)), is_row[changes])
        return Batch(
            pa.RecordBatch.from_arrays(columns, schema=self._schema),
            np.concatenate([hashes[goes], hashes[comes]]),
            np.repeat([-1, 1], [np.count_nonzero(goes), np.count_nonzero(comes)]),
        )

    def _equal(self, keys: Slots, versions: Slots, rows: pa.RecordBatch) -> Mask:
        """Which of these rows equal the versions of their keys, bit by bit."""
        equal = np.ones(len(keys), np.bool_)
        for place, column in enumerate(rows.columns):
            equal &= same(self._column(place, keys, versions), column)
        return equal

    def _store(self, keys: Slots, rows: pa.RecordBatch, is_row: Mask) -> None:
        """Keep these versions of their keys."""
        if not self._op.order_by and not is_row.all():
            self._keys.forget(keys[~is_row])
            keys, rows, is_row = keys[is_row], rows.filter(pa.array(is_row)), is_row[is_row]
        self._append(keys, rows.columns, is_row)

    def _append(self, keys: Slots, columns: Sequence[pa.Array], is_row: Mask) -> None:
        self._place.cells[keys] = np.arange(len(self._is_row), len(self._is_row) + len(keys))
        self._is_row.extend(is_row)
        for place, column in self._columns.items():
            column.append(columns[place])

    def _column(self, place: int, keys: Slots, versions: Slots) -> pa.Array:
        """One column of these versions of these keys."""
        column = self._columns.get(place)
        return self._keys.column(self._key.index(place), keys) if column is None else column.take(versions)
