"""View: answers lookups. It reads what an aggregate or a rows operator keeps, and gives it the declared form.

View evaluates output expressions and HAVING at each read, over the rows that are read. Most views have only plain
columns as output: a read then fetches just those columns and calls no evaluator.

CompactedViewStore: the store of a view that compaction shrinks (:mod:`upriver.engine.operators.compacted`). Compaction
changes no answer.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import pyarrow as pa

from upriver.engine.batch import Batch
from upriver.engine.operators.compacted import USUAL, CompactionPace, KeyedStore, TwoStores
from upriver.engine.operators.operator import ExpressionEvaluator
from upriver.engine.operators.stateless import Project
from upriver.hashing import Hashes
from upriver.plan.plan import Projection
from upriver.state.vectors import Mask, Positions, Slots, is_any_twice, true_at

SCAN_ROWS = 65_536
"""Rows that a scan reads at a time."""


class Columns(Protocol):
    """Reads rows by slot."""

    def column(self, name: str, slots: Slots) -> pa.Array:
        """One column of these rows."""
        ...


class Store(KeyedStore, Columns, Protocol):
    """Rows of one schema, each with a slot, kept under a routing key."""

    @property
    def schema(self) -> pa.Schema: ...

    @property
    def rows(self) -> int:
        """How many rows there are."""
        ...

    @property
    def keys(self) -> int:
        """How many routing keys have rows."""
        ...

    def apply(self, batch: Batch) -> None:
        """Take in a batch of changes."""
        ...

    def find(self, hashes: Hashes, keys: Sequence[pa.Array], rows_max: int | None = None) -> tuple[Positions, Slots]:
        """The rows of each routing key, each with the key's position; in the order of the keys, then of arrival.

        Equal rows may share one slot, which then appears once for each. Raises ManyMembers early, if there are more
        rows than ``rows_max``, unless ``as_now`` is ``None``.
        """
        ...

    def as_now(self) -> Columns | None:
        """A reader of the current rows that later changes of the store do not affect; ``None`` if rows change in
        place."""
        ...

    def by_hash(self) -> Slots:
        """All rows, sorted by the routing key's hash64."""
        ...


class LongRead:
    """The view's rows of some keys, read some at a time, all of them as they were at the start."""

    __slots__ = ("_read", "row", "rows")

    def __init__(self, rows: int, read: Callable[[int, int], pa.RecordBatch]) -> None:
        """rows: how many there are. read: gives the rows from one number to another."""
        self.rows = rows
        self.row = 0
        """The number of the next row."""
        self._read = read

    @property
    def left(self) -> int:
        """How many rows are left to read."""
        return self.rows - self.row

    def next(self, rows_max: int) -> pa.RecordBatch:
        """The next so many rows. Raises RowError if an output expression fails."""
        start, self.row = self.row, min(self.row + rows_max, self.rows)
        return self._read(start, self.row)


class View:
    """Reads of one view."""

    __slots__ = ("_evaluator", "_having", "_output", "_plain", "_schema", "_store")

    def __init__(self, store: Store, output: Projection, having: str | None, evaluator: ExpressionEvaluator) -> None:
        """output, having: over the store's schema."""
        self._store = store
        self._schema = output.schema
        self._output = Project(output, evaluator)
        self._having = having
        self._plain = None if self._output.plain is None or having is not None else [*self._output.plain.values()]
        """The columns of the store to read, if they are shown as they are."""
        self._evaluator = evaluator

    def lookup(self, hashes: Hashes, keys: Sequence[pa.Array], rows_max: int | None = None) -> pa.RecordBatch:
        """The view's rows of these keys, each key once, in the order of their first mention.

        Raises ManyMembers early, if there are more than ``rows_max`` rows that can be read some at a time.
        """
        return self._read(self._slots(hashes, keys, rows_max), self._store)

    def long_read(self, hashes: Hashes, keys: Sequence[pa.Array]) -> LongRead:
        """What :meth:`lookup` finds, read some rows at a time. If rows change in place, all are read at once."""
        slots, columns = self._slots(hashes, keys, None), self._store.as_now()
        if columns is not None:
            return LongRead(len(slots), lambda start, end: self._read(slots[start:end], columns))
        rows = self._read(slots, self._store)
        return LongRead(rows.num_rows, lambda start, end: rows.slice(start, end - start))

    def _slots(self, hashes: Hashes, keys: Sequence[pa.Array], rows_max: int | None) -> Slots:
        positions, slots = self._store.find(hashes, keys, rows_max)
        return slots if len(hashes) == 1 else _of_each_key_once(positions, slots)

    def lookup_each(
        self, hashes: Hashes, keys: Sequence[pa.Array], ends: Positions, rows_max: int | None = None
    ) -> tuple[pa.RecordBatch, Positions]:
        """What :meth:`lookup` finds for the keys of several lookups, in one go, and where the rows of each end. ends:
        where the keys of each end."""
        positions, slots = self._store.find(hashes, keys, rows_max)
        lookups = ends.searchsorted(positions, "right")
        if is_any_twice(slots):
            once = _are_first_mentions(positions, slots + lookups * _SLOTS_SPAN)
            slots, lookups = slots[once], lookups[once]
        rows = self._read_kept(slots, self._store)
        if self._having is not None:
            keeps = self._evaluator.mask(rows, self._having)
            rows, lookups = rows.filter(pa.array(keeps)), lookups[keeps]
        return self._shown(rows), np.bincount(lookups, minlength=len(ends)).cumsum()

    def scan(self) -> pa.Table:
        """All of the view's rows, sorted by hash64."""
        slots = self._store.by_hash()
        starts = range(0, len(slots), SCAN_ROWS)
        batches = [self._read(slots[start : start + SCAN_ROWS], self._store) for start in starts]
        return pa.Table.from_batches(batches, self._schema)

    def _read(self, slots: Slots, store: Columns) -> pa.RecordBatch:
        rows = self._read_kept(slots, store)
        if self._having is not None:
            rows = rows.filter(pa.array(self._evaluator.mask(rows, self._having)))
        return self._shown(rows)

    def _read_kept(self, slots: Slots, store: Columns) -> pa.RecordBatch:
        """These rows as they are kept; those of a view of plain columns as they are shown."""
        plain = self._plain
        if plain is not None:
            return pa.RecordBatch.from_arrays([store.column(name, slots) for name in plain], schema=self._schema)
        schema = self._store.schema
        return pa.RecordBatch.from_arrays([store.column(name, slots) for name in schema.names], schema=schema)

    def _shown(self, kept: pa.RecordBatch) -> pa.RecordBatch:
        return self._output.apply(kept) if self._plain is None else kept


def _of_each_key_once(positions: Positions, slots: Slots) -> Slots:
    """The rows of each key's first mention, among the rows found for keys at these positions."""
    return slots[_are_first_mentions(positions, slots)] if is_any_twice(slots) else slots


def _are_first_mentions(positions: Positions, slots: Slots) -> Mask:
    """Which rows are of a key's first mention. A slot that comes twice at one position means two equal rows; at two
    positions, it means one key named twice."""
    _, first, found = np.unique(slots, return_index=True, return_inverse=True)
    once: Mask = positions == positions[first[found]]
    return once


_OFFSETS = (0, 1 << 40)
"""Added to the slots of each store, so that they differ."""
_SLOTS_SPAN = 1 << 41
"""More than any slot is."""


class CompactedViewStore(TwoStores[Store]):
    """Implements :class:`upriver.engine.operators.view.Store` with one store or two."""

    __slots__ = ("schema",)

    def __init__(self, build: Callable[[], Store], pace: CompactionPace = USUAL) -> None:
        """build: makes an empty store of the plan."""
        super().__init__(build, pace)
        self.schema = self._stores[0].schema

    @property
    def rows(self) -> int:
        return sum(store.rows for store in self._stores)

    @property
    def keys(self) -> int:
        return sum(store.keys for store in self._stores)

    def apply(self, batch: Batch) -> None:
        for store, part in self.split(batch):
            store.apply(part)
        self.tidy()

    def find(self, hashes: Hashes, keys: Sequence[pa.Array], rows_max: int | None = None) -> tuple[Positions, Slots]:
        if len(self._stores) == 1:
            return self._stores[0].find(hashes, keys, rows_max)
        found = []
        for offset, (store, share) in zip(_OFFSETS, self.shares(hashes), strict=True):
            asked = true_at(share)
            positions, slots = store.find(hashes[asked], [column.take(pa.array(asked)) for column in keys], rows_max)
            found.append((asked[positions], slots + offset))
        positions, slots = (np.concatenate(parts) for parts in zip(*found, strict=True))
        order = np.argsort(positions, kind="stable")
        return positions[order], slots[order]

    def by_hash(self) -> Slots:
        return np.concatenate([store.by_hash() + offset for offset, store in zip(_OFFSETS, self._stores, strict=False)])

    def column(self, name: str, slots: Slots) -> pa.Array:
        return _column(self._stores, name, slots)

    def as_now(self) -> Columns | None:
        """Reads from the stores of this moment: compaction leaves their columns as they are."""
        columns = [store.as_now() for store in self._stores]
        return None if None in columns else _AsNow([each for each in columns if each is not None])


class _AsNow:
    """The rows of one store or two, numbered as by :meth:`CompactedViewStore.find`."""

    __slots__ = ("_stores",)

    def __init__(self, stores: Sequence[Columns]) -> None:
        self._stores = stores

    def column(self, name: str, slots: Slots) -> pa.Array:
        return _column(self._stores, name, slots)


def _column(stores: Sequence[Columns], name: str, slots: Slots) -> pa.Array:
    if len(stores) == 1:
        return stores[0].column(name, slots)
    new, old = stores
    in_old = slots >= _OFFSETS[1]
    parts = [new.column(name, slots[~in_old]), old.column(name, slots[in_old] - _OFFSETS[1])]
    places = np.concatenate([true_at(~in_old), true_at(in_old)])
    return pa.concat_arrays(parts).take(pa.array(np.argsort(places)))
