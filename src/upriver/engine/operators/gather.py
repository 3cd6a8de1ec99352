"""Gather: rows that came over an exchange edge and wait for the rest of their epoch.

Until their stage begins, these rows are state like any other: they belong to a key, and move with it. Only a move looks
them up by key, so only a move merges them: into **levels**, each sorted by hash64, and each more than twice as long as
the next. Until then each batch is sorted by itself, so that rows can be taken some keys at a time.

The rows of one key can be taken some at a time, too: first those that take back what was there before the epoch, then
those that come. So all rows that have been taken are either rows of before or rows of after. To find those that take
something back, the key's rows are sorted by a hash of the whole row: equal rows, which may cancel out, are together.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from upriver.engine.batch import Batch, Weights, no_rows
from upriver.engine.operators.operator import concatenated, consolidated, part_of, row_hashes
from upriver.errors import ProtocolError
from upriver.hashing import HASH64_MAX, Hashes
from upriver.state.columns import array_of, canonical, cells_of
from upriver.state.vectors import Mask, Positions, spread

SAMPLED_ROWS = 1024
"""About so many hashes are sampled to find the keys that hold a given number of rows."""


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

    def count(self, most: int) -> int:
        """How many of the remaining rows have a hash that is no higher."""
        if self.held < len(self._order):
            stay = self._stays[self._order]
            self._order, self._hashes = self._order[stay], self._hashes[stay]
        return int(np.searchsorted(self._hashes, np.uint64(most), side="right"))

    def all_come(self, most: int) -> bool:
        """Whether none of the rows whose hash is no higher takes another one back."""
        return _all_come(self._rows.weight, self._order[: self.count(most)])

    def take(self, most: int, rows_max: int) -> Batch:
        """Take the first rows whose hash is no higher, at most so many."""
        stop = min(self.count(most), rows_max)
        places = self._order[:stop]
        self._order, self._hashes = self._order[stop:], self._hashes[stop:]
        self.held -= stop
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


class _PartedKey:
    """The rows of one key, while those of them that take others back are found and taken."""

    __slots__ = ("_by_row", "_come", "key")

    def __init__(self, key: int, schema: pa.Schema) -> None:
        """key: its hash64."""
        self.key = key
        self._by_row = Gather(schema)
        """Its rows, by a hash of the whole row."""
        self._come: list[Batch] = []
        """Those that are found to come."""

    @property
    def held(self) -> int:
        return self._by_row.held + sum(map(len, self._come))

    @property
    def nbytes(self) -> int:
        return self._by_row.nbytes + sum(map(_nbytes, self._come))

    @property
    def is_net(self) -> bool:
        """Whether all rows that are left come."""
        return not self._by_row.held

    def add(self, rows: Batch) -> None:
        """Add rows of the key."""
        net = consolidated(rows)
        columns = [canonical(column) for column in net.rows.columns]
        self._by_row.add(Batch(net.rows, row_hashes(columns, len(net)), net.weight))

    def take_back(self, rows_max: int) -> Batch | None:
        """Of about so many rows, take those that take others back; the rest of them come. ``None`` if there are
        none."""
        is_last = self._by_row.held <= rows_max
        rows = self._by_row.take(HASH64_MAX if is_last else hash_of_row([self._by_row], rows_max))
        if rows is None:
            return None
        net = consolidated(self._of_key(rows))
        goes = ~_come(net.weight, len(net))
        self._come.append(net.filtered(~goes))
        return net.filtered(goes) if goes.any() else None

    def rest(self) -> list[Batch]:
        """The rows that are left."""
        by_row = self._by_row.take(HASH64_MAX)
        return [*self._come, *(() if by_row is None else [self._of_key(by_row)])]

    def _of_key(self, rows: Batch) -> Batch:
        return Batch(rows.rows, np.full(len(rows), self.key, np.uint64), rows.weight)


class Gather:
    """The rows that wait at one port. ``schema`` is theirs."""

    __slots__ = ("_levels", "_loose", "_parted", "schema")

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self._loose: list[Batch] = []
        """Each in order of its hashes."""
        self._levels: list[_SortedRows] = []
        self._parted: _PartedKey | None = None
        """The key whose rows are taken some at a time, until all that are left come."""

    @property
    def held(self) -> int:
        """How many rows there are; equal rows, and rows that cancel out, all count, unless they are found while rows of
        a key are taken some at a time."""
        parted = 0 if self._parted is None else self._parted.held
        return parted + sum(map(len, self._loose)) + sum(level.held for level in self._levels)

    @property
    def live_nbytes(self) -> int:
        return self.nbytes

    @property
    def nbytes(self) -> int:
        parted = 0 if self._parted is None else self._parted.nbytes
        return parted + sum(map(_nbytes, self._loose)) + sum(level.nbytes for level in self._levels)

    @property
    def runs(self) -> Iterator[Hashes]:
        """The hashes of all rows, ascending in each run."""
        yield from (level.hashes for level in self._levels)
        yield from (batch.hash64 for batch in self._loose)
        if self._parted is not None:
            yield np.broadcast_to(np.uint64(self._parted.key), self._parted.held)

    def add(self, batch: Batch) -> None:
        """Add rows that wait."""
        if len(batch):
            rows = pa.RecordBatch.from_arrays(batch.rows.columns, schema=self.schema)
            self._loose.append(_in_order(batch.replaced(rows)))

    def count(self, most: int) -> int:
        """How many rows have a hash that is no higher."""
        parted = self._parted.held if self._parted is not None and self._parted.key <= most else 0
        levels = sum(level.count(most) for level in self._levels)
        return parted + levels + sum(_end_of(batch, most) for batch in self._loose)

    def take(self, most: int) -> Batch | None:
        """Take all rows whose hash is no higher; ``None`` if there are none."""
        if self._parted is not None and self._parted.key <= most:
            self._put_together()
        return self.take_some(most, self.held)

    def may_take_back(self, key: int) -> bool:
        """Whether rows of the key that are here may take others back. key: its hash64, the lowest that is here."""
        if self._parted is not None and self._parted.key == key:
            return True
        loose = all(_all_come(batch.weight, slice(_end_of(batch, key))) for batch in self._loose)
        return not (loose and all(level.all_come(key) for level in self._levels))

    def take_back(self, key: int, rows_max: int) -> Batch | None:
        """Go on with about so many rows of the key, whose hash64 is the lowest that is here: take those that take back
        what was there before. ``None`` if this has brought none; the first calls only sort the rows."""
        if self._parted is None or self._parted.key != key:
            self._put_together()
            self._parted = _PartedKey(key, self.schema)
        rows = self.take_some(key, rows_max)
        if rows is not None:
            self._parted.add(rows)
            return None
        gone = self._parted.take_back(rows_max)
        if self._parted.is_net:
            self._put_together()
        return gone

    def take_some(self, most: int, rows_max: int) -> Batch | None:
        """Take up to so many rows whose hash is no higher, but none that :meth:`take_back` has begun with; ``None`` if
        there are none."""
        taken: list[Batch] = []
        left = rows_max
        for level in self._levels:
            taken.append(level.take(most, left))
            left -= len(taken[-1])
        for place, batch in enumerate(self._loose):
            if stop := min(_end_of(batch, most), left):
                taken.append(batch.slice(0, stop))
                self._loose[place] = batch.slice(stop, len(batch))
                left -= stop
        self._loose = [batch for batch in self._loose if len(batch)]
        self._levels = [level for level in self._levels if level.held]
        found = [batch for batch in taken if len(batch)]
        return concatenated(found) if found else None

    def _put_together(self) -> None:
        """No key is in parts any more."""
        if self._parted is not None:
            self._loose += [batch for batch in self._parted.rest() if len(batch)]
            self._parted = None

    def take_first(self, rows_max: int) -> Batch | None:
        """Take up to so many rows that came first, all of those that moves have merged at once; ``None`` for none."""
        self._put_together()
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
        self._put_together()
        if self._loose:
            rows = concatenated(self._loose)
            self._loose = []
            while self._levels and self._levels[-1].held <= 2 * len(rows):
                rows = concatenated([self._levels.pop().rest, rows])
            self._levels.append(_SortedRows(rows))
        return self._levels


def hash_of_row(gathers: Sequence[Gather], number: int) -> int:
    """An estimate of the hash of the row of that number, which is less than that of all rows of these gathers, in order
    of their hashes."""
    rows = sum(gather.held for gather in gathers)
    every = -(-rows // SAMPLED_ROWS)
    found: list[Hashes] = []
    first = every // 2
    for hashes in (run for gather in gathers for run in gather.runs):
        found.append(hashes[first::every])
        first = (first - len(hashes)) % every  # as if all runs were one: the short ones are not sampled at their ends
    sample = np.sort(np.concatenate(found))
    return int(sample[number * len(sample) // rows])


def _end_of(rows: Batch, most: int) -> int:
    """How many rows, which are in order of their hashes, have one that is no higher."""
    return int(np.searchsorted(rows.hash64, np.uint64(most), side="right"))


def _come(weight: Weights | None, rows: int) -> Mask:
    """Which of so many rows come, and take no other back."""
    come: Mask = np.ones(rows, np.bool_) if weight is None else weight > 0
    return come


def _all_come(weight: Weights | None, places: Positions | slice) -> bool:
    """Whether the rows at these places come, and take no other back."""
    return weight is None or bool((weight[places] > 0).all())


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
