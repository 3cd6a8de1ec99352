"""sum and avg. Exact numbers are added exactly, and floats one by one in order of arrival.

So the result does not depend on how the rows were cut into batches. An exact sum is checked after each batch: one that
leaves its type's range is an error, as in Spark's ANSI mode (whose own check depends on the order in which it adds).
Floats that may be taken back are added exactly, too (:mod:`upriver.engine.operators.exact`).
"""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from upriver.engine.operators.accumulator import Accumulator, Counts, OutOfRange, some_value
from upriver.engine.operators.exact import ExactFloatMean, ExactFloatSum
from upriver.errors import ProtocolError
from upriver.state.columns import Cells, array_of, cell_type, cells_of
from upriver.state.vectors import Slots, Vector, Weights, true_at
from upriver.state.wide import add_at, from_ints, join, outside, split, to_ints

_LONG_MAX = 2**63 - 1
"""The greatest int64."""

_LIMB_WEIGHTS_MAX = 2**30
"""Up to which sum of weights values are added in limbs."""


def sum_of(argument: pa.DataType, type: pa.DataType, retracts: bool) -> Accumulator:
    """An accumulator of sum. retracts: whether values may be taken back.

    Raises ProtocolError if Spark would not sum ``argument`` to ``type``.
    """
    if pa.types.is_signed_integer(argument) and type == pa.int64():
        return LongSum()
    if pa.types.is_floating(argument) and type == pa.float64():
        return ExactFloatSum() if retracts else FloatSum()
    if pa.types.is_decimal128(argument) and type == decimal_sum_type(argument):
        return DecimalSum(type)
    raise ProtocolError(f"sum of {argument} as {type}")


def avg_of(argument: pa.DataType, type: pa.DataType, retracts: bool) -> Accumulator:
    """An accumulator of avg. retracts: whether values may be taken back.

    Raises ProtocolError if Spark would not average ``argument`` to ``type``.
    """
    if (pa.types.is_signed_integer(argument) or pa.types.is_floating(argument)) and type == pa.float64():
        return ExactFloatMean() if retracts else FloatMean()
    if pa.types.is_decimal128(argument) and pa.types.is_decimal128(type) and type.scale >= argument.scale:
        return DecimalMean(decimal_sum_type(argument), type)
    raise ProtocolError(f"avg of {argument} as {type}")


def decimal_sum_type(argument: pa.DataType) -> pa.DataType:
    """The type that Spark gives to a sum of decimals: ten digits more."""
    return pa.decimal128(min(38, argument.precision + 10), argument.scale)


class ExactSum:
    """sum in whole numbers of the type's last digit, within the range from ``least`` to ``most``."""

    __slots__ = ("_least", "_most", "_totals", "_type")

    def __init__(self, type: pa.DataType, least: int, most: int) -> None:
        self._type = type
        self._totals: Vector[np.generic] = Vector(cell_type(type))
        self._least = least
        self._most = most

    @property
    def nbytes(self) -> int:
        return self._totals.nbytes

    def resize(self, size: int) -> None:
        self._totals.resize(size)

    def add(self, slots: Slots, values: pa.Array, weight: Weights | None) -> None:
        self._add_in_limbs(slots, cells_of(values), weight)

    def take(self, slots: Slots, counts: Counts) -> pa.Array:
        return array_of(self._type, self._totals.cells[slots], some_value(counts))

    def state(self, slots: Slots) -> list[pa.Array]:
        return [array_of(self._type, self._totals.cells[slots])]

    def install(self, slots: Slots, state: Iterator[pa.Array]) -> None:
        self._totals.cells[slots] = cells_of(next(state))

    def _add_in_limbs(self, slots: Slots, cells: Cells, weight: Weights | None) -> None:
        if weight is not None and np.abs(weight.astype(np.float64)).sum() > _LIMB_WEIGHTS_MAX:
            self._add_one_by_one(slots, cells, weight)
            return
        touched, places = np.unique(slots, return_inverse=True)
        totals = split(self._totals.cells[touched])
        add_at(totals, places, split(cells), weight)
        lost = true_at(outside(totals, self._least, self._most))
        if lost.size:
            raise OutOfRange(int(touched[lost[0]]))
        self._totals.cells[touched] = join(totals, cells.dtype)

    def _add_one_by_one(self, slots: Slots, cells: Cells, weight: Weights) -> None:
        """For rows that are there so often that limbs have no room for it, as a skewed join may have them."""
        touched, places = np.unique(slots, return_inverse=True)
        totals = to_ints(self._totals.cells[touched])
        for place, value, times in zip(places.tolist(), to_ints(cells), weight.tolist(), strict=True):
            totals[place] += value * times
        for slot, total in zip(touched.tolist(), totals, strict=True):
            if not self._least <= total <= self._most:
                raise OutOfRange(slot)
        self._totals.cells[touched] = from_ints(totals, cells.dtype.itemsize).view(cells.dtype)


class DecimalSum(ExactSum):
    """sum of decimals, as a decimal of the same scale."""

    __slots__ = ()

    def __init__(self, type: pa.DataType) -> None:
        most = 10**type.precision - 1
        super().__init__(type, -most, most)


class LongSum(ExactSum):
    """sum of whole numbers as int64. Only totals that might have left its range are added in limbs."""

    __slots__ = ("_reach",)

    def __init__(self) -> None:
        super().__init__(pa.int64(), -_LONG_MAX - 1, _LONG_MAX)
        self._reach = 0
        """No total is further from zero, unless this is as far as it goes."""

    def add(self, slots: Slots, values: pa.Array, weight: Weights | None) -> None:
        cells = cells_of(values).astype(np.int64)
        if len(cells) == 0:
            return
        rows = len(cells) if weight is None else int(np.abs(weight).sum())
        farthest = max(int(cells.max()), -int(cells.min()))
        self._reach = min(self._reach + rows * farthest, _LONG_MAX)
        if self._reach == _LONG_MAX:
            self._add_in_limbs(slots, cells, weight)
        else:
            np.add.at(self._totals.cells, slots, cells if weight is None else cells * weight)

    def install(self, slots: Slots, state: Iterator[pa.Array]) -> None:
        super().install(slots, state)
        if len(slots):
            totals = self._totals.cells[slots]
            self._reach = max(self._reach, min(_LONG_MAX, max(int(totals.max()), -int(totals.min()))))


class FloatSum:
    """sum as float64, of floats or of whole numbers taken as floats, none of which is ever taken back."""

    __slots__ = ("_totals",)

    def __init__(self) -> None:
        self._totals: Vector[np.float64] = Vector(np.float64)

    @property
    def nbytes(self) -> int:
        return self._totals.nbytes

    def resize(self, size: int) -> None:
        self._totals.resize(size)

    def add(self, slots: Slots, values: pa.Array, weight: Weights | None) -> None:
        cells = cells_of(values).astype(np.float64)
        with np.errstate(all="ignore"):
            np.add.at(self._totals.cells, slots, cells if weight is None else cells * weight)

    def take(self, slots: Slots, counts: Counts) -> pa.Array:
        return array_of(pa.float64(), self._totals.cells[slots], some_value(counts))

    def state(self, slots: Slots) -> list[pa.Array]:
        return [array_of(pa.float64(), self._totals.cells[slots])]

    def install(self, slots: Slots, state: Iterator[pa.Array]) -> None:
        self._totals.cells[slots] = cells_of(next(state))


class FloatMean(FloatSum):
    """avg as float64: the sum of floats by the count."""

    __slots__ = ()

    def take(self, slots: Slots, counts: Counts) -> pa.Array:
        means = self._totals.cells[slots] / np.maximum(counts, 1)
        return array_of(pa.float64(), means, some_value(counts))


class DecimalMean(DecimalSum):
    """avg of decimals: the exact sum by the count, rounded once, halves away from zero."""

    __slots__ = ("_factor", "_mean_type")

    def __init__(self, sum_type: pa.DataType, mean_type: pa.DataType) -> None:
        super().__init__(sum_type)
        self._mean_type = mean_type
        self._factor = 10 ** (mean_type.scale - sum_type.scale)

    def take(self, slots: Slots, counts: Counts) -> pa.Array:
        totals = self._totals.cells[slots]
        divisors = np.maximum(counts, 1)
        means, done = self._divide_small(totals, divisors)
        for place in true_at(~done):
            (total,) = to_ints(totals[place : place + 1])
            mean = _half_up(total * self._factor, int(divisors[place]))
            if abs(mean) >= 10**self._mean_type.precision:
                raise OutOfRange(int(slots[place]))
            means[place : place + 1] = from_ints([mean], means.dtype.itemsize)
        return array_of(self._mean_type, means, some_value(counts))

    def _divide_small(self, totals: Cells, divisors: Counts) -> tuple[Cells, npt.NDArray[np.bool_]]:
        """Quotients in 64 bits, and where they are right; the others are too large for it."""
        low, high = totals.view(np.int64).reshape(-1, 2).T
        most = _LONG_MAX // (4 * self._factor)
        small = (high == low >> 63) & (low >= -most) & (low <= most) & (divisors < 2**62)
        magnitudes = (2 * self._factor * np.abs(np.where(small, low, 0)) + divisors) // (2 * divisors)
        means = np.where(low < 0, -magnitudes, magnitudes)
        return np.stack([means, means >> 63], axis=1).view(totals.dtype).reshape(len(totals)), small


def _half_up(numerator: int, denominator: int) -> int:
    """The quotient rounded to the nearest whole number, halves away from zero."""
    magnitude = (2 * abs(numerator) + denominator) // (2 * denominator)
    return magnitude if numerator >= 0 else -magnitude
