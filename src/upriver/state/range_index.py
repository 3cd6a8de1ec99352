"""RangeIndex: the members of owners by ranges of some of their columns.

Members lie in sorted **levels**, as in :class:`upriver.state.pair_index.PairIndex`: by owner, then by the first column.
A binary search finds the members of an owner whose first column is in a range. For the other columns each level has
*zones*: the least and the greatest value of each block of ``FANOUT`` members, of each block of so many blocks, and so
on. A search goes down only where a block's zones meet the ranges that are asked for. So intervals around a point,
sorted by their starts, are found without passing all that started earlier.

A column is an *interval* of 64-bit integers for each member, nearly always of one value. A member of which a value is
not known has all of them, and is found by every range.

A member that is dead stays dead. Dead members are found, too, until their level is merged into another.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from upriver.state.columns import Cells, canonical, cells_of
from upriver.state.pair_index import GROWTH, SMALL_PAIRS, Living, ordered
from upriver.state.vectors import Mask, Positions, Slots, spread, true_at

FANOUT = 16
"""Members of a block, and blocks of a larger block."""

BLOCKS_MAX = 1 << 12
"""Blocks opened at a time: each gives up to ``FANOUT`` members or blocks, and one more at either end."""

LEAST, MOST = np.iinfo(np.int64).min, np.iinfo(np.int64).max

Cut = npt.NDArray[np.int64]
"""A value for each column and member: one row for each column."""


def range_cells(values: pa.Array) -> Cells:
    """64-bit integers that never descend where the values, in Spark's order, ascend. Values may share one. Those under
    nulls are arbitrary. Takes what :func:`upriver.plan.types.has_ranges` names."""
    if not pa.types.is_decimal(values.type):
        return ordered(cells_of(canonical(values))).astype(np.int64)
    low, high = np.ascontiguousarray(cells_of(values)).view(np.int64).reshape(-1, 2).T
    if values.type.precision <= 18:
        return low.copy()
    fits = high == low >> 63
    wide = high.astype(np.float64) * 2.0**64 + np.ascontiguousarray(low).view(np.uint64).astype(np.float64)
    return ordered(np.where(fits, low.astype(np.float64), wide) + 0.0)


@dataclass(frozen=True, slots=True)
class Intervals:
    """The least and the greatest value of each column, for some members."""

    least: Cut
    most: Cut

    def taken(self, places: Positions) -> "Intervals":
        return Intervals(self.least[:, places], self.most[:, places])

    def meets(self, ranges: "Intervals") -> Mask:
        """Where all columns of a member meet those of the range at its place."""
        met: Mask = np.logical_and.reduce((self.least <= ranges.most) & (self.most >= ranges.least))
        return met

    @property
    def nbytes(self) -> int:
        return self.least.nbytes + self.most.nbytes


class _Level:
    """Members by owner, then by the least value of the first column."""

    __slots__ = ("_is_exact", "_keys", "_values", "_zones", "intervals", "owners", "slots")

    def __init__(self, owners: Slots, slots: Slots, intervals: Intervals) -> None:
        order = np.lexsort((intervals.least[0], owners))
        self.owners, self.slots = owners[order], slots[order]
        self.intervals = intervals.taken(order)
        first = self.intervals.least[0]
        self._is_exact = bool((first == self.intervals.most[0]).all())
        self._values = np.unique(first)
        self._keys = _packed(self.owners, np.searchsorted(self._values, first))
        self._zones = [self.intervals]
        while self._zones[-1].least.shape[1] > FANOUT:
            self._zones.append(_blocks_of(self._zones[-1]))

    def __len__(self) -> int:
        return len(self.slots)

    @property
    def nbytes(self) -> int:
        zones = sum(zone.nbytes for zone in self._zones)
        return zones + self.owners.nbytes + self.slots.nbytes + self._keys.nbytes + self._values.nbytes

    def find(self, owners: Slots, ranges: Intervals) -> Iterator[tuple[Positions, Slots]]:
        """As :meth:`RangeIndex.find`."""
        least = ranges.least[0] if self._is_exact else np.full(len(owners), LEAST)
        starts = self._searched(owners, least, "left")
        lasts = self._searched(owners, ranges.most[0], "right") - 1
        heights = np.searchsorted(
            [FANOUT ** (height + 1) for height in range(len(self._zones) - 1)], lasts - starts + 1
        )
        todo: list[tuple[int, Positions, Positions, Positions]] = []
        for height in range(len(self._zones)):
            some = true_at((heights == height) & (lasts >= starts))
            todo.append((height, some, starts[some] >> _bits(height), lasts[some] >> _bits(height)))
        # What is opened last is finished first: so only a few blocks are open at a time.
        while todo:
            height, asked, first, last = todo.pop()
            if len(asked) > BLOCKS_MAX:
                todo.append((height, asked[BLOCKS_MAX:], first[BLOCKS_MAX:], last[BLOCKS_MAX:]))
                asked, first, last = asked[:BLOCKS_MAX], first[:BLOCKS_MAX], last[:BLOCKS_MAX]
            counts = last - first + 1
            blocks, asked = spread(first, counts), np.repeat(asked, counts)
            met = self._meets(height, blocks, asked, ranges)
            blocks, asked = blocks[met], asked[met]
            if height == 0:
                yield asked, self.slots[blocks]
            elif asked.size:
                first = np.maximum(blocks << _bits(1), starts[asked] >> _bits(height - 1))
                last = np.minimum((blocks + 1 << _bits(1)) - 1, lasts[asked] >> _bits(height - 1))
                todo.append((height - 1, asked, first, last))

    def _searched(self, owners: Slots, values: npt.NDArray[np.int64], side: Literal["left", "right"]) -> Positions:
        """Where the members of each owner begin (left) whose first column is at least the value, or end (right) whose
        first column is at most the value."""
        found: Positions = np.searchsorted(self._keys, _packed(owners, np.searchsorted(self._values, values, side)))
        return found

    def _meets(self, height: int, blocks: Positions, asked: Positions, ranges: Intervals) -> Mask:
        zone, met = self._zones[height], np.ones(len(blocks), np.bool_)
        for column in range(len(zone.least)):
            met &= zone.least[column, blocks] <= ranges.most[column, asked]
            met &= zone.most[column, blocks] >= ranges.least[column, asked]
        return met


class RangeIndex:
    """Members of owners, each with an interval for each column. The first column should be the most selective.

    Invariant: each level is larger than ``SMALL_PAIRS`` and than ``GROWTH`` times the next.
    """

    __slots__ = ("_levels", "_loose")

    def __init__(self) -> None:
        self._levels: list[_Level] = []
        self._loose: list[tuple[Slots, Slots, Intervals]] = []
        """Members that were added since the last search."""

    @property
    def nbytes(self) -> int:
        loose = sum(owners.nbytes + slots.nbytes + intervals.nbytes for owners, slots, intervals in self._loose)
        return loose + sum(level.nbytes for level in self._levels)

    def insert(self, owners: Slots, slots: Slots, intervals: Intervals) -> None:
        """Add members, which are not here yet."""
        if len(slots):
            self._loose.append((owners, slots, intervals))

    def find(self, owners: Slots, ranges: Intervals, living: Living) -> Iterator[tuple[Positions, Slots]]:
        """For each owner, its members whose intervals all meet the ranges: the owner's position, and the member. In no
        particular order, some at a time; each member once. living: drops the dead where levels are merged."""
        self._sort(living)
        for level in self._levels:
            yield from level.find(owners, ranges)

    def _sort(self, living: Callable[[Slots], Mask]) -> None:
        parts, self._loose = self._loose, []
        size = sum(len(slots) for _, slots, _ in parts)
        while parts and self._levels and len(self._levels[-1]) <= max(GROWTH * size, SMALL_PAIRS):
            level = self._levels.pop()
            parts.append((level.owners, level.slots, level.intervals))
            size += len(level)
        if parts:
            owners, slots = (np.concatenate([part[place] for part in parts]) for place in (0, 1))
            least = np.concatenate([part[2].least for part in parts], axis=1)
            most = np.concatenate([part[2].most for part in parts], axis=1)
            alive = true_at(living(slots))
            if alive.size:
                self._levels.append(_Level(owners[alive], slots[alive], Intervals(least, most).taken(alive)))


def _bits(height: int) -> int:
    return height * (FANOUT.bit_length() - 1)


def _packed(owners: Slots, ranks: Positions) -> npt.NDArray[np.uint64]:
    packed: npt.NDArray[np.uint64] = owners.astype(np.uint64) << np.uint64(32) | ranks.astype(np.uint64)
    return packed


def _blocks_of(zone: Intervals) -> Intervals:
    """The zones of blocks of ``FANOUT``."""
    starts = np.arange(0, zone.least.shape[1], FANOUT)
    return Intervals(np.minimum.reduceat(zone.least, starts, axis=1), np.maximum.reduceat(zone.most, starts, axis=1))
