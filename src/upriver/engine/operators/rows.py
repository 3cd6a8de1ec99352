"""Rows and RowCounts: what a view without GROUP BY keeps.

Rows: if no row is ever taken back, a view keeps its rows, for each key in order of arrival. Rows are numbered as they
come and lie in columns addressed by that number. A :class:`Fanout` knows the rows of each routing key.

RecentRows: of a stateful map that is to keep few rows. A key whose rows go is written anew with those that stay.

RowCounts: if rows may be taken back, a view keeps each different row once, and its count. All columns together find a
row, so taking one back costs the same however many rows its key has. Rows are in no order. Equal rows are one *entry*,
which is read as often as its count says.
"""

from collections.abc import Sequence
from typing import Self

import numpy as np
import pyarrow as pa

from upriver.engine.batch import Batch
from upriver.engine.operators.operator import check_new, part_of
from upriver.errors import ProtocolError
from upriver.hashing import Hashes
from upriver.plan.plan import Keep
from upriver.state.columns import array_of, cells_of, column_of
from upriver.state.indexes import Entries, Fanout
from upriver.state.span import TIME_MIN, times_of
from upriver.state.vectors import Mask, Positions, Slots, Tally, Vector, run_lengths, run_starts


class Rows:
    """The rows of one view. ``schema`` is theirs."""

    __slots__ = ("_columns", "_fanout", "_present", "_routing", "held", "schema")

    def __init__(self, source: pa.Schema, routing: Sequence[str]) -> None:
        """source: of the rows that will come, all of it kept. routing: the routing key's columns, in the key's
        order."""
        self.schema = source
        self._routing = tuple(routing)
        self._columns = {field.name: column_of(field.type) for field in source}
        self._fanout = Fanout([source.field(name).type for name in routing])
        self._present: Vector[np.bool_] = Vector(np.bool_, fill=True)
        """False for a row whose key was dropped."""
        self.held = 0
        """How many rows there are."""

    @property
    def rows(self) -> int:
        return self.held

    @property
    def slots(self) -> int:
        """How many slots are in use, including those of rows that are gone."""
        return len(self._present)

    @property
    def keys(self) -> int:
        """How many routing keys have a row."""
        return self._fanout.held

    @property
    def nbytes(self) -> int:
        columns = sum(column.nbytes for column in self._columns.values())
        return columns + self._fanout.nbytes + self._present.nbytes

    def apply(self, batch: Batch) -> None:
        """Add each row as often as its weight says. Raises ProtocolError for a row that is taken back."""
        if batch.weight is not None and (batch.weight < 0).any():
            raise ProtocolError("a row was retracted from a view whose rows only ever come")
        self._add(batch.repeated())

    def find(self, hashes: Hashes, keys: Sequence[pa.Array], rows_max: int | None = None) -> tuple[Positions, Slots]:
        """The rows of each routing key, each with the key's position; in the order of the keys, then of arrival. Raises
        ManyMembers if there are more than ``rows_max``."""
        return self._fanout.find(hashes, keys, rows_max)

    def as_now(self) -> Self:
        """A row's cells never change, not even when its key is dropped."""
        return self

    def by_hash(self) -> Slots:
        """All rows, sorted by the routing key's hash64, then by key, then by arrival."""
        rows = self._fanout.by_hash()
        return rows if self.held == len(self._present) else rows[self._present.cells[rows]]

    def column(self, name: str, slots: Slots) -> pa.Array:
        """One column of these rows."""
        return self._columns[name].take(slots)

    def hashes_between(self, least: int, most: int) -> Hashes:
        """The hash64, in no particular order, of routing keys that have a row."""
        return self._fanout.hashes_between(least, most)

    def collect(self, keys: Hashes) -> tuple[pa.RecordBatch, ...]:
        """The rows, those of one key in order of arrival, behind a column of their routing key's hash64."""
        _, hashes, rows = self._fanout.with_hash(keys)
        return (part_of(hashes, [column.take(rows) for column in self._columns.values()]),)

    def install(self, state: Sequence[pa.RecordBatch]) -> None:
        for batch in state:
            hashes, *columns = batch.columns
            self._add(Batch(pa.RecordBatch.from_arrays(columns, schema=self.schema), cells_of(hashes)))

    def drop(self, keys: Hashes) -> None:
        owners, _, rows = self._fanout.with_hash(keys)
        self.held -= len(rows)
        self._present.cells[rows] = False
        self._fanout.forget(owners)

    def _add(self, batch: Batch) -> None:
        start = len(self._present)
        for name, column in self._columns.items():
            column.append(batch.rows.column(name))
        self._present.resize(start + len(batch))
        self.held += len(batch)
        owners = self._fanout.owners(batch.hash64, self._key(batch))
        self._fanout.link(owners, np.arange(start, start + len(batch)))
        self._fanout.count(owners, None)

    def _key(self, batch: Batch) -> list[pa.Array]:
        return [batch.rows.column(name) for name in self._routing]


class RecentRows(Rows):
    """Of each key the rows that ``keep`` names."""

    __slots__ = ("_keep",)

    def __init__(self, source: pa.Schema, routing: Sequence[str], keep: Keep) -> None:
        super().__init__(source, routing)
        self._keep = keep

    def apply(self, batch: Batch) -> None:
        super().apply(batch)
        owners, hashes, rows = self._fanout.with_hash(np.unique(batch.hash64))
        owner_of_row, _ = self._fanout.members(owners)
        stays = self._stays(owner_of_row, rows)
        changed = np.unique(owner_of_row[~stays])
        if not changed.size:
            return
        again = stays & np.isin(owner_of_row, changed)
        columns = [column.take(rows[again]) for column in self._columns.values()]
        gone = rows[np.isin(owner_of_row, changed)]
        self.held -= len(gone)
        self._present.cells[gone] = False
        self._fanout.forget(owners[changed])
        self._add(Batch(pa.RecordBatch.from_arrays(columns, schema=self.schema), hashes[again]))

    def _stays(self, owners: Positions, rows: Slots) -> Mask:
        """Which rows stay. owners: a number for each row's key, ascending."""
        starts = run_starts(owners)
        lengths = run_lengths(starts, len(owners))
        if self._keep.rows is not None:
            after = np.repeat(starts + lengths, lengths) - np.arange(len(owners))  # 1 for the last row of a key
            return after <= self._keep.rows
        times, known = times_of(self._columns[self._keep.column].take(rows))
        newest = np.maximum.reduceat(np.where(known, times, TIME_MIN), starts) if len(starts) else times
        return ~known | (times > np.repeat(newest, lengths) - self._keep.interval)


class RowCounts:
    """The rows of one view. ``schema`` is theirs."""

    __slots__ = ("_entries", "_fanout", "_places", "_routing", "_tally", "rows", "schema")

    def __init__(self, source: pa.Schema, routing: Sequence[str]) -> None:
        """source: of the rows that will come, all of it kept. routing: the routing key's columns, in the key's
        order."""
        self.schema = source
        self._routing = [source.get_field_index(name) for name in routing]
        self._places = {name: place for place, name in enumerate(source.names)}
        self._entries = Entries(source, exact=source.names)
        self._fanout = Fanout([source.field(name).type for name in routing])
        self._tally = Tally()
        self.rows = 0
        """How many rows there are, equal ones counted one by one."""

    @property
    def held(self) -> int:
        """How many different rows there are."""
        return self._tally.held

    @property
    def slots(self) -> int:
        return len(self._entries)

    @property
    def keys(self) -> int:
        return self._fanout.held

    @property
    def nbytes(self) -> int:
        return self._entries.nbytes + self._fanout.nbytes + self._tally.nbytes

    def apply(self, batch: Batch) -> None:
        """Add each row as often as its weight says. Raises ProtocolError for a row taken back that is not there."""
        slots = self._entries.assign(batch.rows.columns, len(batch))
        self._tally.resize(len(self._entries))
        woken, emptied = self._tally.add(slots, batch.weight)
        self.rows += len(batch) if batch.weight is None else int(batch.weight.sum())
        changed = np.concatenate([woken, emptied])
        if changed.size:
            columns = [batch.rows.column(place).take(pa.array(changed)) for place in self._routing]
            owners = self._fanout.owners(batch.hash64[changed], columns)
            self._fanout.link(owners[: len(woken)], slots[woken])
            self._fanout.count(owners, np.repeat([1, -1], [len(woken), len(emptied)]))
        if emptied.size:
            self._entries.forget(slots[emptied])

    def find(self, hashes: Hashes, keys: Sequence[pa.Array], rows_max: int | None = None) -> tuple[Positions, Slots]:
        """The rows of each routing key, each with the key's position, in the order of the keys. Raises ManyMembers if
        there are more different ones than ``rows_max``."""
        positions, slots = self._fanout.find(hashes, keys, rows_max)
        times = self._tally.counts[slots]
        if len(slots) and times.min() == times.max() == 1:
            return positions, slots
        return np.repeat(positions, times), np.repeat(slots, times)

    def as_now(self) -> Self:
        """An entry's columns never change, not even when the entry is gone."""
        return self

    def by_hash(self) -> Slots:
        """All rows, sorted by the routing key's hash64."""
        slots = self._fanout.by_hash()
        return np.repeat(slots, self._tally.counts[slots])

    def column(self, name: str, slots: Slots) -> pa.Array:
        """One column of these rows."""
        return self._entries.column(self._places[name], slots)

    def hashes_between(self, least: int, most: int) -> Hashes:
        return self._fanout.hashes_between(least, most)

    def collect(self, keys: Hashes) -> tuple[pa.RecordBatch, ...]:
        """One row for each entry: its routing key's hash64, how often it is there, and its columns."""
        _, hashes, slots = self._fanout.with_hash(keys)
        counts = self._tally.counts[slots]
        here = counts > 0
        return (part_of(hashes[here], [array_of(pa.int64(), counts[here]), *self._entries.columns(slots[here])]),)

    def install(self, state: Sequence[pa.RecordBatch]) -> None:
        """Raises ProtocolError if a row is here already."""
        for part in state:
            hashes, counts, *columns = part.columns
            known = self.held
            self.apply(
                Batch(pa.RecordBatch.from_arrays(columns, schema=self.schema), cells_of(hashes), cells_of(counts))
            )
            check_new(self.held == known + part.num_rows)

    def drop(self, keys: Hashes) -> None:
        owners, _, slots = self._fanout.with_hash(keys)
        slots = slots[self._tally.counts[slots] > 0]
        self.rows -= int(self._tally.counts[slots].sum())
        self._fanout.forget(owners)
        self._entries.forget(slots)
        self._tally.clear(slots)
