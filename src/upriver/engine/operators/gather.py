"""Gather: rows that came over an exchange edge and wait for the rest of their epoch.

Until their stage begins, these rows are state like any other: they belong to a key, and move with it. Only a move looks
them up by key, so only a move merges them: into **levels**, each sorted by hash64, and each more than twice as long as
the next. Until then each batch is sorted by itself, so that rows can be taken some keys at a time.
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from upriver.engine.batch import Batch, no_rows
from upriver.engine.operators.operator import concatenated, part_of
from upriver.errors import ProtocolError
from upriver.hashing import Hashes
from upriver.state.columns import array_of, cells_of
from upriver.state.vectors import Mask, Positions, spread


class _SortedRows:
    """Rows by hash64. Rows that were taken or dropped are still in it."""

    __slots__ = ("_hashes", "_order", "_rows", "_stays", "held")

    def __init__(self, rows: Batch) -> None:
        self.held = len(rows)
        self._rows = rows
        self._order: Positions = np.argsort(rows.hash64, kind="stable")
        self._hashes: Hashes = rows.hash64[self._order]
        self._stays: Mask = np.ones(len(rows), np.bool_)

    @property
    def nbytes(self) -> int:
        return _nbytes(self._rows) + self._hashes.nbytes + self._order.nbytes + self._stays.nbytes

    @property
    def rest(self) -> Batch:
        """The remaining rows, in order of their hashes."""
        return self._of(self._order[self._stays[self._order]])

    @property
    def hashes(self) -> Hashes:
        """The hashes of the remaining rows, ascending."""
        return self._hashes[self._stays[self._order]]

    def take(self, most: int) -> Batch:
        """Take the rows whose hash is no higher."""
        stop = np.searchsorted(self._hashes, np.uint64(most), side="right")
        places = self._order[:stop]
        places = places[self._stays[places]]
        self._order, self._hashes = self._order[stop:], self._hashes[stop:]
        self.held -= len(places)
        return self._of(places)

    def hashes_between(self, least: int, most: int) -> Hashes:
        start = np.searchsorted(self._hashes, np.uint64(least), side="left")
        stop = np.searchsorted(self._hashes, np.uint64(most), side="right")
        places = self._order[start:stop]
        return self._rows.hash64[places[self._stays[places]]]

    def of(self, keys: Hashes) -> Batch:
        """The rows of these keys."""
        return self._of(self._places(keys))

    def _of(self, places: Positions) -> Batch:
        return _taken(self._rows, places)

    def drop(self, keys: Hashes) -> None:
        """Forget the rows of these keys."""
        places = self._places(keys)
        self._stays[places] = False
        self.held -= len(places)

    def _places(self, keys: Hashes) -> Positions:
        starts = np.searchsorted(self._hashes, keys, side="left")
        counts = np.searchsorted(self._hashes, keys, side="right") - starts
        places: Positions = self._order[spread(starts, counts)]
        return places[self._stays[places]]


class Gather:
    """The rows that wait at one port. ``schema`` is theirs."""

    __slots__ = ("_levels", "_loose", "schema")

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self._loose: list[Batch] = []
        """Each in order of its hashes."""
        self._levels: list[_SortedRows] = []

    @property
    def held(self) -> int:
        """How many rows there are; equal rows, and rows that cancel out, all count."""
        return sum(map(len, self._loose)) + sum(level.held for level in self._levels)

    @property
    def live_nbytes(self) -> int:
        return self.nbytes

    @property
    def nbytes(self) -> int:
        return sum(map(_nbytes, self._loose)) + sum(level.nbytes for level in self._levels)

    def add(self, batch: Batch) -> None:
        """Add rows that wait."""
        if len(batch):
            rows = pa.RecordBatch.from_arrays(batch.rows.columns, schema=self.schema)
            self._loose.append(_in_order(batch.replaced(rows)))

    def take(self, most: int) -> Batch | None:
        """Take all rows whose hash is no higher; ``None`` if there are none."""
        taken = [level.take(most) for level in self._levels]
        rest: list[Batch] = []
        for batch in self._loose:
            stop = int(np.searchsorted(batch.hash64, np.uint64(most), side="right"))
            taken.append(batch.slice(0, stop))
            rest.append(batch.slice(stop, len(batch)))
        self._loose = [batch for batch in rest if len(batch)]
        self._levels = [level for level in self._levels if level.held]
        found = [batch for batch in taken if len(batch)]
        return concatenated(found) if found else None

    def take_first(self, rows_max: int) -> Batch | None:
        """Take up to so many rows that came first, all of those that moves have merged at once; ``None`` for none."""
        merged = [level.rest for level in self._levels if level.held]
        self._levels = []
        if merged:
            return concatenated(merged)
        taken: list[Batch] = []
        left = rows_max
        while self._loose and left > 0:
            first = self._loose[0]
            taken.append(first.slice(0, min(left, len(first))))
            self._loose[:1] = [] if len(first) <= left else [first.slice(left, len(first))]
            left -= len(taken[-1])
        return concatenated(taken) if taken else None

    def take_keys(self, keys: Hashes) -> Batch | None:
        """Take the rows of these keys, ascending and unique; ``None`` if there are none."""
        levels = self._sorted_levels()
        found = [rows for rows in (level.of(keys) for level in levels) if len(rows)]
        for level in levels:
            level.drop(keys)
        return concatenated(found) if found else None

    def sample(self, every: int) -> Hashes:
        """A sample of hashes: every so many rows of each batch."""
        hashes = [level.hashes for level in self._levels] + [batch.hash64 for batch in self._loose]
        return np.concatenate([np.empty(0, np.uint64), *(some[::every] for some in hashes)])

    def hashes_between(self, least: int, most: int) -> Hashes:
        """The hash64 of the rows' keys that lie from ``least`` to ``most``, in no particular order."""
        return np.concatenate(
            [np.empty(0, np.uint64), *(level.hashes_between(least, most) for level in self._sorted_levels())]
        )

    def collect(self, keys: Hashes) -> pa.RecordBatch:
        """The rows of these keys, ascending and unique, behind their hash64 and their weight. They stay here, too."""
        found = [no_rows(self.schema), *(level.of(keys) for level in self._sorted_levels())]
        rows = concatenated(found)
        weight = np.ones(len(rows), np.int64) if rows.weight is None else rows.weight
        return part_of(rows.hash64, [array_of(pa.int64(), weight), *rows.rows.columns])

    def install(self, state: pa.RecordBatch) -> None:
        """Add rows that were collected elsewhere."""
        if state.num_columns != len(self.schema) + 2:
            raise ProtocolError(f"rows of {state.num_columns - 2} columns cannot wait among those of {self.schema}")
        hashes, weight, *columns = state.columns
        rows = pa.RecordBatch.from_arrays(columns, schema=self.schema)
        self.add(Batch(rows, cells_of(hashes), cells_of(weight)))

    def drop(self, keys: Hashes) -> None:
        """Forget the rows of these keys."""
        for level in self._sorted_levels():
            level.drop(keys)

    def _sorted_levels(self) -> Sequence[_SortedRows]:
        if self._loose:
            rows = concatenated(self._loose)
            self._loose = []
            while self._levels and self._levels[-1].held <= 2 * len(rows):
                rows = concatenated([self._levels.pop().rest, rows])
            self._levels.append(_SortedRows(rows))
        return self._levels


def _in_order(rows: Batch) -> Batch:
    """Sorted by hash; rows of one key stay in the order in which they came."""
    if (rows.hash64[1:] >= rows.hash64[:-1]).all():
        return rows
    return _taken(rows, np.argsort(rows.hash64, kind="stable"))


def _taken(rows: Batch, places: Positions) -> Batch:
    weight = None if rows.weight is None else rows.weight[places]
    return Batch(rows.rows.take(pa.array(places)), rows.hash64[places], weight)


def _nbytes(batch: Batch) -> int:
    return int(batch.rows.nbytes + batch.hash64.nbytes + (0 if batch.weight is None else batch.weight.nbytes))
