"""min and max, over every type that has an order. Nothing can be retracted: what came second is not kept.

Numbers, booleans, dates and timestamps are compared as machine integers, floats through a map that keeps their order
(NaN is the greatest, as in Spark). For other types Arrow ranks the values of a batch together with the extremes so far
of the groups that it touches; ranks are numbers.
"""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from upriver.dataflow.operators.accumulator import Accumulator, Counts, any_value
from upriver.errors import ProtocolError
from upriver.state.columns import Cells, Column, array_of, canonical, cell_type, cells_of, column_of, is_fixed
from upriver.state.vectors import Slots, Vector, Weights

_SPARE_MIN = 1024


def min_of(type: pa.DataType) -> Accumulator:
    return NumberExtreme(type, np.minimum) if _is_number(type) else RankedExtreme(type, "ascending")


def max_of(type: pa.DataType) -> Accumulator:
    return NumberExtreme(type, np.maximum) if _is_number(type) else RankedExtreme(type, "descending")


class NumberExtreme:
    """The extreme of values that are, or map in order to, integers of at most 64 bits."""

    __slots__ = ("_best", "_better", "_type")

    def __init__(self, type: pa.DataType, better: np.ufunc) -> None:
        """better: np.minimum or np.maximum."""
        self._type = type
        self._better = better
        dtype = _ordered(np.empty(0, cell_type(type))).dtype
        worst = np.iinfo(dtype).max if better is np.minimum else np.iinfo(dtype).min
        self._best: Vector[Any] = Vector(dtype, fill=worst)

    @property
    def nbytes(self) -> int:
        return self._best.nbytes

    def resize(self, size: int) -> None:
        self._best.resize(size)

    def add(self, slots: Slots, values: pa.Array, weight: Weights | None) -> None:
        refuse_retraction(weight)
        self._better.at(self._best.cells, slots, _ordered(cells_of(canonical(values))))

    def clear(self, slots: Slots) -> None:
        """Nothing to do: no group can lose its values."""

    def take(self, slots: Slots, counts: Counts) -> pa.Array:
        best = _from_ordered(self._best.cells[slots], cell_type(self._type))
        return array_of(self._type, best, any_value(counts))

    def state(self, slots: Slots) -> pa.Array:
        best = self._best.cells[slots]
        return array_of(pa.from_numpy_dtype(best.dtype), best)

    def install(self, slots: Slots, state: pa.Array) -> None:
        self._best.cells[slots] = cells_of(state)


class RankedExtreme:
    """The extreme of values that Arrow can rank.

    Values that were the best of a group when they came lie in a column, in order of arrival; ``place`` points to the
    one that still is. When more than half of them are outdone, the column is rewritten.
    """

    __slots__ = ("_order", "_place", "_type", "_values")

    def __init__(self, type: pa.DataType, order: str) -> None:
        """order: ``ascending`` or ``descending``; the first in this order is the extreme."""
        self._type = type
        self._order = order
        self._values = _only_a_null(type)
        self._place: Vector[np.int64] = Vector(np.int64)
        """Of each group's extreme in ``values``; 0 is a null."""

    @property
    def nbytes(self) -> int:
        return self._values.nbytes + self._place.nbytes

    def resize(self, size: int) -> None:
        self._place.resize(size)

    def add(self, slots: Slots, values: pa.Array, weight: Weights | None) -> None:
        refuse_retraction(weight)
        touched, groups = np.unique(slots, return_inverse=True)
        pool = pa.concat_arrays([self._values.take(self._place.cells[touched]), values])
        ranks = self._ranks(pool)
        so_far, best = ranks[: len(touched)], ranks[: len(touched)].copy()
        np.minimum.at(best, groups, ranks[len(touched) :])
        better = np.flatnonzero(best < so_far)
        holder = np.empty(len(pool) + 1, np.int64)
        holder[ranks] = np.arange(len(pool))
        self._place.cells[touched[better]] = np.arange(len(better)) + len(self._values)
        self._values.append(pool.take(pa.array(holder[best[better]])))
        if len(self._values) > 2 * len(self._place) + _SPARE_MIN:
            self._rewrite()

    def clear(self, slots: Slots) -> None:
        """Nothing to do: no group can lose its values."""

    def take(self, slots: Slots, counts: Counts) -> pa.Array:
        return self._values.take(self._place.cells[slots])

    def state(self, slots: Slots) -> pa.Array:
        return self._values.take(self._place.cells[slots])

    def install(self, slots: Slots, state: pa.Array) -> None:
        self._place.cells[slots] = np.arange(len(slots)) + len(self._values)
        self._values.append(state)

    def _rewrite(self) -> None:
        """Leave the outdone behind."""
        values = self._values.take(self._place.cells)
        self._values = _only_a_null(self._type)
        self._values.append(values)
        self._place.cells[:] = np.arange(1, len(values) + 1)

    def _ranks(self, pool: pa.Array) -> Cells:
        """From 1 on, the best first; equal values have one rank, and nulls the last."""
        keys = [("", self._order, "at_end")]
        ranks: Cells = pc.rank(pool, sort_keys=keys, tiebreaker="dense").to_numpy().astype(np.int64)
        return ranks


def _only_a_null(type: pa.DataType) -> Column:
    column = column_of(type)
    column.append(pa.nulls(1, type))
    return column


def refuse_retraction(weight: Weights | None) -> None:
    """Raises ProtocolError if a weight is negative."""
    if weight is not None and (weight < 0).any():
        raise ProtocolError("min and max cannot take a value back: their input must only ever grow")


def _is_number(type: pa.DataType) -> bool:
    return is_fixed(type) and type.bit_width <= 64 and not pa.types.is_decimal(type)


def _ordered(cells: Cells) -> Cells:
    """Floats as signed integers of the same order; other cells as they are."""
    if cells.dtype.kind != "f":
        return cells
    width = cells.dtype.itemsize
    bits = cells.view(f"i{width}")
    # As integers, the bits of negative floats run the wrong way: turn all of them round but the sign.
    ordered: Cells = bits ^ (bits >> (8 * width - 1) & np.iinfo(bits.dtype).max)
    return ordered


def _from_ordered(cells: Cells, dtype: np.dtype[Any]) -> Cells:
    """The inverse of :func:`_ordered`, which undoes itself."""
    return _ordered(cells.view(dtype)).view(dtype) if dtype.kind == "f" else cells
