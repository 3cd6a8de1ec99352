"""Rows: what a view without GROUP BY keeps, which is the rows themselves, in order of arrival within each key.

Rows are numbered as they come and lie in columns addressed by that number; a :class:`Fanout` knows the rows of each
routing key. A retraction takes one equal row of its key away, the oldest. The row then no longer counts.
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from upriver.dataflow.batch import Batch
from upriver.errors import ProtocolError
from upriver.state.columns import array_of, cells_of, column_of, same
from upriver.state.fanout import Fanout
from upriver.state.vectors import Hashes, Positions, Slots, Vector, Weights


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
        """False for a row that was retracted."""
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
        """Add the rows with a positive weight, so many times, then take away those with a negative one.

        Raises ProtocolError for a retraction of a row that is not there.
        """
        if batch.weight is None:
            self._add(batch)
            return
        self._add(_repeated(batch, np.maximum(batch.weight, 0)))
        self._retract(_repeated(batch, np.maximum(-batch.weight, 0)))

    def find(self, hashes: Hashes, keys: Sequence[pa.Array]) -> tuple[Positions, Slots]:
        """The rows of each routing key, each with the key's position; in the order of the keys, then of arrival."""
        positions, rows = self._fanout.find(hashes, keys)
        if self.held == len(self._present):
            return positions, rows
        present = self._present.cells[rows]
        return positions[present], rows[present]

    def by_hash(self) -> Slots:
        """All rows, sorted by the routing key's hash64, then by key, then by arrival."""
        return self._still_present(self._fanout.by_hash())

    def column(self, name: str, slots: Slots) -> pa.Array:
        """One column of these rows."""
        return self._columns[name].take(slots)

    def hashes_between(self, least: int, most: int) -> Hashes:
        """The hash64, in no particular order, of routing keys that have a row."""
        return self._fanout.hashes_between(least, most)

    def collect(self, keys: Hashes) -> tuple[pa.RecordBatch, ...]:
        """The rows, those of one key in order of arrival, behind a column of their routing key's hash64."""
        _, hashes, rows = self._fanout.with_hash(keys)
        present = self._present.cells[rows]
        hashes, rows = hashes[present], rows[present]
        columns = [array_of(pa.uint64(), hashes), *(column.take(rows) for column in self._columns.values())]
        return (pa.RecordBatch.from_arrays(columns, [str(place) for place in range(len(columns))]),)

    def install(self, state: Sequence[pa.RecordBatch]) -> None:
        for batch in state:
            hashes, *columns = batch.columns
            self._add(Batch(pa.RecordBatch.from_arrays(columns, schema=self.schema), cells_of(hashes)))

    def drop(self, keys: Hashes) -> None:
        owners, _, rows = self._fanout.with_hash(keys)
        self.held -= int(np.count_nonzero(self._present.cells[rows]))
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

    def _retract(self, batch: Batch) -> None:
        if not len(batch):
            return
        positions, rows = self._fanout.find(batch.hash64, self._key(batch))
        equal = self._present.cells[rows]
        for name, column in self._columns.items():
            equal &= same(column.take(rows), batch.rows.column(name).take(pa.array(positions)))
        victims = _match(len(batch), positions[equal], rows[equal])
        self._present.cells[victims] = False
        self.held -= len(victims)
        owners = self._fanout.owners(batch.hash64, self._key(batch))
        self._fanout.count(owners, np.full(len(batch), -1))

    def _still_present(self, rows: Slots) -> Slots:
        return rows if self.held == len(self._present) else rows[self._present.cells[rows]]

    def _key(self, batch: Batch) -> list[pa.Array]:
        return [batch.rows.column(name) for name in self._routing]


def _repeated(batch: Batch, times: Weights) -> Batch:
    """Each row so many times."""
    positions = np.repeat(np.arange(len(batch)), times)
    return Batch(batch.rows.take(pa.array(positions)), batch.hash64[positions])


def _match(retractions: int, positions: Positions, rows: Slots) -> Slots:
    """Choose a different row for each retraction, the oldest first.

    positions, rows: the equal rows of each retraction, sorted by retraction, then by row. Two retractions have either
    the same equal rows or none in common, so the n-th with the same oldest row takes its n-th row.
    """
    counts = np.bincount(positions, minlength=retractions)
    starts = np.cumsum(counts) - counts
    if (counts == 0).any():
        raise ProtocolError("a row was retracted that is not there")
    oldest = rows[starts]
    order = np.argsort(oldest, kind="stable")
    in_order = oldest[order]
    nth = np.empty(retractions, np.int64)
    nth[order] = np.arange(retractions) - np.searchsorted(in_order, in_order)
    if (nth >= counts).any():
        raise ProtocolError("a row was retracted more often than it is there")
    victims: Slots = rows[starts + nth]
    return victims
