"""All values of one column in each group, for the functions that need them: DISTINCT, and extremes that may go."""

from collections.abc import Iterator
from functools import partial

import numpy as np
import pyarrow as pa

from upriver.engine.operators.accumulator import Counts
from upriver.engine.operators.functions import Functions, Overflow, Reader, accumulator_of
from upriver.plan.plan import AggregateCall
from upriver.state.columns import array_of
from upriver.state.multiset import Multiset
from upriver.state.vectors import Slots, Vector, Weights

_NONE = -1
_UNKNOWN = -2


class Values:
    """The values that are not null, each with the number of its rows. Functions follow as values come and go."""

    __slots__ = ("_bag", "_counts", "_extremes", "_functions", "_type")

    def __init__(self, type: pa.DataType, overflow: Overflow) -> None:
        """type: of the column. overflow: makes errors."""
        self._type = type
        self._bag = Multiset(type)
        self._counts: Vector[np.int64] = Vector(np.int64)
        """How many distinct values each group has."""
        self._functions = Functions(partial(_cells_of, self._counts), overflow)
        """They get each distinct value once, and have it taken back with the last of its rows."""
        self._extremes: dict[bool, Extreme] = {}
        """By whether it is the greatest."""

    @property
    def held(self) -> int:
        """How many distinct values there are."""
        return self._bag.held

    @property
    def slots(self) -> int:
        """How many there are and have been."""
        return self._bag.slots

    @property
    def nbytes(self) -> int:
        extremes = sum(extreme.nbytes for extreme in self._extremes.values())
        return self._bag.nbytes + self._counts.nbytes + self._functions.nbytes + extremes

    def distinct(self, call: AggregateCall) -> Reader:
        """The reader of a call's results over distinct values; it may raise RowError."""
        if call.function == "count":
            counts = self._counts
            return lambda slots: array_of(pa.int64(), _cells_of(counts, slots))
        return self._functions.reader(call, accumulator_of(call, self._type, retracts=True))

    def extreme(self, greatest: bool) -> Reader:
        """The reader of the least (or the greatest) value of each group."""
        return self._extremes.setdefault(greatest, Extreme(self._bag, greatest)).take

    def resize(self, size: int) -> None:
        self._counts.resize(size)
        self._functions.resize(size)
        for extreme in self._extremes.values():
            extreme.resize(size)

    def add(self, slots: Slots, values: pa.Array, weight: Weights | None) -> None:
        """Raises RowError if a result overflows."""
        self._follow(*self._bag.add(slots, values, weight))

    def state(self, slots: Slots) -> list[pa.Array]:
        return list(self._bag.state(slots))

    def install(self, slots: Slots, state: Iterator[pa.Array]) -> None:
        self._follow(self._bag.install(slots, (next(state), next(state))), np.empty(0, np.int64))

    def drop(self, slots: Slots) -> None:
        """Forget all values of these groups, which are gone for good."""
        self._bag.drop(slots)

    def _follow(self, woken: Slots, emptied: Slots) -> None:
        entries = np.concatenate([woken, emptied])
        if not len(entries):
            return
        slots = self._bag.owners(entries)
        weight = np.repeat([1, -1], [len(woken), len(emptied)])
        np.add.at(self._counts.cells, slots, weight)
        if len(self._functions):
            self._functions.add(slots, self._bag.values(entries), weight)
        for extreme in self._extremes.values():
            extreme.follow(woken, emptied, self._counts.cells)


def _cells_of(counts: Vector[np.int64], slots: Slots) -> Counts:
    return counts.cells[slots]


class Extreme:
    """The least or the greatest value of each group.

    The best value that came is known. When it goes, the next one is looked up as soon as somebody asks for it.
    """

    __slots__ = ("_bag", "_best", "_greatest")

    def __init__(self, bag: Multiset, greatest: bool) -> None:
        self._bag = bag
        self._greatest = greatest
        self._best: Vector[np.int64] = Vector(np.int64, fill=_NONE)
        """The entry of each group's extreme."""

    @property
    def nbytes(self) -> int:
        return self._best.nbytes

    def resize(self, size: int) -> None:
        self._best.resize(size)

    def follow(self, woken: Slots, emptied: Slots, counts: Counts) -> None:
        """These entries of the multiset are new, and these are gone. counts: how many each group has now."""
        best = self._best.cells
        slots = self._bag.owners(emptied)
        best[slots[best[slots] == emptied]] = _UNKNOWN
        slots = self._bag.owners(woken)
        groups, news = np.unique(slots, return_counts=True)
        best[groups[counts[groups] == news]] = _NONE
        known = best[slots] != _UNKNOWN
        slots, woken = slots[known], woken[known]
        if not len(slots):
            return
        touched = np.unique(slots[best[slots] != _NONE])
        rivals = np.concatenate([best[touched], woken])
        owners = np.concatenate([touched, slots])
        keys = self._bag.keys(rivals)
        order = np.lexsort((keys if self._greatest else ~keys, owners))
        best[owners[order]] = rivals[order]  # of a group's rivals the last one stays

    def take(self, slots: Slots) -> pa.Array:
        best = self._best.cells
        unknown = np.unique(slots[best[slots] == _UNKNOWN])
        if len(unknown):
            best[unknown] = self._bag.ends(unknown, self._greatest)
        entries = best[slots]
        some = entries != _NONE
        values = self._bag.values(entries[some])
        return values if some.all() else values.take(pa.array(np.cumsum(some) - 1, mask=~some))
