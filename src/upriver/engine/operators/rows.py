"""Rows: what a view without GROUP BY keeps if no row is ever taken back: the rows, in order of arrival in each key.

Rows are numbered as they come and lie in columns addressed by that number; a :class:`Fanout` knows the rows of each
routing key. Rows that may be taken back are kept by :class:`.row_counts.RowCounts`.
"""

from collections.abc import Sequence
from typing import Self

import numpy as np
import pyarrow as pa

from upriver.engine.batch import Batch
from upriver.engine.operators.parts import part_of
from upriver.errors import ProtocolError
from upriver.state.columns import cells_of, column_of
from upriver.state.fanout import Fanout
from upriver.state.vectors import Positions, Slots, Vector
from upriver.xxh64 import Hashes


class Rows:
    """The rows of one view. ``schema`` is theirs."""

    __slots__ = ("_columns", "_fanout", "_present", "_routing", "held", "schema")

    def __init__(self, source: pa.Schema, routing: Sequence[str]) -> None:
        """source: of the rows to come, all of it kept. routing: the routing key's columns, in the key's order."""
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
        """How many slots are in use, those of rows that are gone too."""
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
        """Add each row as often as its weight says. Raises ProtocolError for one that is taken back."""
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
