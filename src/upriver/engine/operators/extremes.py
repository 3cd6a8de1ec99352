"""min, max and any_value of rows that only ever come: what came second is not kept.

Numbers, booleans, dates and timestamps are compared as machine integers. For other types Arrow ranks the values of a
batch together with the extremes so far of the groups that it touches; ranks are numbers.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from upriver.engine.operators.accumulator import Accumulator, Counts, some_value
from upriver.state.columns import Column, array_of, canonical, cell_type, cells_of, column_of, validity
from upriver.state.ordering import from_ordered, is_number, ordered, ranks
from upriver.state.vectors import Slots, Vector, Weights, first_of_each, true_at

_SPARE_MIN = 1024


def min_of(type: pa.DataType) -> Accumulator:
    return NumberExtreme(type, np.minimum) if is_number(type) else RankedExtreme(type, "ascending")


def max_of(type: pa.DataType) -> Accumulator:
    return NumberExtreme(type, np.maximum) if is_number(type) else RankedExtreme(type, "descending")


class NumberExtreme:
    """The extreme of values that are, or map in order to, integers of at most 64 bits."""

    __slots__ = ("_best", "_better", "_type")

    def __init__(self, type: pa.DataType, better: np.ufunc) -> None:
        """better: np.minimum or np.maximum."""
        self._type = type
        self._better = better
        dtype = ordered(np.empty(0, cell_type(type))).dtype
        worst = np.iinfo(dtype).max if better is np.minimum else np.iinfo(dtype).min
        self._best: Vector[Any] = Vector(dtype, fill=worst)

    @property
    def nbytes(self) -> int:
        return self._best.nbytes

    def resize(self, size: int) -> None:
        self._best.resize(size)

    def add(self, slots: Slots, values: pa.Array, weight: Weights | None) -> None:
        self._better.at(self._best.cells, slots, ordered(cells_of(canonical(values))))

    def take(self, slots: Slots, counts: Counts) -> pa.Array:
        best = from_ordered(self._best.cells[slots], cell_type(self._type))
        return array_of(self._type, best, some_value(counts))

    def state(self, slots: Slots) -> list[pa.Array]:
        best = self._best.cells[slots]
        return [array_of(pa.from_numpy_dtype(best.dtype), best)]

    def install(self, slots: Slots, state: Iterator[pa.Array]) -> None:
        self._best.cells[slots] = cells_of(next(state))


class FirstValue:
    """The value that came first.

    Values that were once chosen lie in a column, in order of arrival; ``place`` points to the one of each group.
    """

    __slots__ = ("_place", "_type", "_values")

    def __init__(self, type: pa.DataType) -> None:
        self._type = type
        self._values = _only_a_null(type)
        self._place: Vector[np.int64] = Vector(np.int64)
        """Of each group's value in ``values``; 0 is a null."""

    @property
    def nbytes(self) -> int:
        return self._values.nbytes + self._place.nbytes

    def resize(self, size: int) -> None:
        self._place.resize(size)

    def add(self, slots: Slots, values: pa.Array, weight: Weights | None) -> None:
        new = first_of_each(slots, true_at(self._place.cells[slots] == 0))
        self._choose(slots[new], values.take(pa.array(new)))

    def take(self, slots: Slots, counts: Counts) -> pa.Array:
        return self._values.take(self._place.cells[slots])

    def state(self, slots: Slots) -> list[pa.Array]:
        return [self._values.take(self._place.cells[slots])]

    def install(self, slots: Slots, state: Iterator[pa.Array]) -> None:
        values = next(state)
        some = true_at(validity(values))
        self._choose(slots[some], values.take(pa.array(some)))

    def _choose(self, slots: Slots, values: pa.Array) -> None:
        """These are the groups' values from now on."""
        self._place.cells[slots] = np.arange(len(slots)) + len(self._values)
        self._values.append(values)


class RankedExtreme(FirstValue):
    """The extreme of values that Arrow can rank. When more than half of the column is outdone, it is rewritten."""

    __slots__ = ("_order",)

    def __init__(self, type: pa.DataType, order: str) -> None:
        """order: ``ascending`` or ``descending``; the first in this order is the extreme."""
        super().__init__(type)
        self._order = order

    def add(self, slots: Slots, values: pa.Array, weight: Weights | None) -> None:
        touched, groups = np.unique(slots, return_inverse=True)
        pool = pa.concat_arrays([self._values.take(self._place.cells[touched]), values])
        rank = ranks(pool, self._order)
        so_far, best = rank[: len(touched)], rank[: len(touched)].copy()
        np.minimum.at(best, groups, rank[len(touched) :])
        better = true_at(best < so_far)
        holder = np.empty(len(pool) + 1, np.int64)
        holder[rank] = np.arange(len(pool))
        self._choose(touched[better], pool.take(pa.array(holder[best[better]])))
        if len(self._values) > 2 * len(self._place) + _SPARE_MIN:
            self._rewrite()

    def _rewrite(self) -> None:
        """Leave the outdone behind."""
        values = self._values.take(self._place.cells)
        self._values = _only_a_null(self._type)
        self._values.append(values)
        self._place.cells[:] = np.arange(1, len(values) + 1)


def _only_a_null(type: pa.DataType) -> Column:
    column = column_of(type)
    column.append(pa.nulls(1, type))
    return column
