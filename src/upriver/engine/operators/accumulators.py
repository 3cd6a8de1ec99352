"""Accumulators: what an aggregate function keeps for each group.

sum and avg: exact numbers are added exactly. Floats are added one by one in order of arrival. So the result does not
depend on how the rows were cut into batches. An exact sum is checked after each batch: a sum that leaves its type's
range is an error, as in Spark's ANSI mode (where the check depends on the order in which Spark adds).

sum and avg of floats that may be taken back are exact, too, so that nothing of a value stays when it goes. Such a sum
is rounded once, when it is read. NaNs and infinities are counted, not added.

min, max and any_value of rows that are never retracted keep only the best value. Numbers, booleans, dates and
timestamps are compared as machine integers. For other types Arrow ranks the values of a batch together with the
extremes so far of the groups that it touches; ranks are numbers.

bool_and and bool_or use the number of values that are true.

stddev and variance use exact sums of the values and of their squares, so nothing cancels out and all can be retracted.
As in Spark, numbers are taken as doubles. A result that divides by the number of values less one is null for a single
value. A group with a NaN or an infinity has NaN.
"""

from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from upriver.engine.wide_decimals import at_least_power, equal_bits, is_negative, narrowed, quotients, widened
from upriver.errors import ProtocolError
from upriver.plan.types import decimal_sum_type
from upriver.state.columns import Cells, Column, array_of, canonical, cell_type, cells_of, column_of, validity
from upriver.state.digits import Digits, ExactSums, add_at, from_ints, join, outside, parts_of, split, to_ints
from upriver.state.pair_index import from_ordered, is_number, ordered, ranks
from upriver.state.vectors import Mask, Slots, SparseVectors, Vector, Weights, first_of_each, true_at

Counts = npt.NDArray[np.int64]


class Accumulator(Protocol):
    """Something for each group slot, fed with the values of one column that are not null.

    Only an accumulator built for retractions takes a value back, by a negative weight.
    """

    @property
    def nbytes(self) -> int: ...

    def resize(self, size: int) -> None:
        """Make room for so many groups."""
        ...

    def add(self, slots: Slots, values: pa.Array, weight: Weights | None) -> None:
        """Add values to their groups. Raises OutOfRange, having changed nothing, if a result has no room."""
        ...

    def take(self, slots: Slots, counts: Counts) -> pa.Array:
        """The results, null where there are none. counts: how many values each group has. Raises OutOfRange."""
        ...

    def state(self, slots: Slots) -> list[pa.Array]:
        """The state of these groups, one row for each. The types depend on the function's types only."""
        ...

    def install(self, slots: Slots, state: Iterator[pa.Array]) -> None:
        """Install the state of these groups, which have nothing yet; takes as many columns as :meth:`state` gives."""
        ...


class OutOfRange(Exception):
    """A group's result does not fit its type. The caller, which knows the group's key, tells the user."""

    def __init__(self, slot: int) -> None:
        super().__init__(slot)
        self.slot = slot


def some_value(counts: Counts) -> Mask | None:
    """Which groups have values; ``None`` if all do."""
    some: Mask = counts > 0
    return None if some.all() else some


Floats = npt.NDArray[np.float64]
Longs = npt.NDArray[np.int64]

EXACT_DIGITS_MAX = 15
"""Digits of whole numbers, and of a power of ten, that are exact as doubles: their quotient is rounded once."""
_KINDS = {"nan": np.nan, "up": np.inf, "down": -np.inf}


def floats_of(values: pa.Array) -> Floats:
    """Numbers as Spark casts them to double: each is the nearest one, which Arrow's cast of decimals does not give."""
    if pa.types.is_decimal(values.type):
        if values.type.precision <= EXACT_DIGITS_MAX:
            low: Longs = np.ascontiguousarray(cells_of(values)).view(np.int64)[::2]
            return np.asarray(low / 10.0**values.type.scale)
        values = values.cast(pa.string()).cast(pa.float64())
    return cells_of(values).astype(np.float64)


class NotFinite:
    """How many NaNs and infinities each group has. It takes no memory before there is one."""

    __slots__ = ("_counts",)

    def __init__(self) -> None:
        self._counts: SparseVectors[str] = SparseVectors()
        """By kind."""

    @property
    def nbytes(self) -> int:
        return self._counts.nbytes

    def resize(self, size: int) -> None:
        self._counts.resize(size)

    def take_not_finite(self, slots: Slots, cells: Floats, weight: Weights | None) -> Floats:
        """Count those of these values that are not finite; returns the values with zeros in their place."""
        finite = np.isfinite(cells)
        if finite.all():
            return cells
        odd = true_at(~finite)
        slots, values, weight = slots[odd], cells[odd], None if weight is None else weight[odd]
        for kind, value in _KINDS.items():
            alike = np.isnan(values) if np.isnan(value) else values == value
            if alike.any():
                np.add.at(self._counts.cells(kind), slots[alike], 1 if weight is None else weight[alike])
        return np.where(finite, cells, 0.0)

    def sums(self, slots: Slots) -> Floats:
        """The result of each group's special values: a NaN or an infinity, or zero if there is none."""
        sums = np.zeros(len(slots))
        with np.errstate(invalid="ignore"):
            for kind, counts in self._counts.written():
                sums += np.where(counts[slots] > 0, _KINDS[kind], 0.0)
        return sums

    def state(self, slots: Slots) -> list[pa.Array]:
        nothing = np.zeros(len(slots), np.int64)
        kept = dict(self._counts.written())
        return [array_of(pa.int64(), kept[kind][slots] if kind in kept else nothing) for kind in _KINDS]

    def install(self, slots: Slots, state: Iterator[pa.Array]) -> None:
        for kind in _KINDS:
            counts = cells_of(next(state))
            if counts.any():
                self._counts.cells(kind)[slots] = counts


class ExactFloatSum:
    """sum as float64, of floats or of whole numbers taken as floats."""

    __slots__ = ("_not_finite", "_sums")

    def __init__(self) -> None:
        self._sums = ExactSums()
        self._not_finite = NotFinite()

    @property
    def nbytes(self) -> int:
        return self._sums.nbytes + self._not_finite.nbytes

    def resize(self, size: int) -> None:
        self._sums.resize(size)
        self._not_finite.resize(size)

    def add(self, slots: Slots, values: pa.Array, weight: Weights | None) -> None:
        cells = self._not_finite.take_not_finite(slots, floats_of(values), weight)
        self._sums.add(slots, *parts_of(cells), weight)

    def take(self, slots: Slots, counts: Counts) -> pa.Array:
        return array_of(pa.float64(), self._totals(slots), some_value(counts))

    def state(self, slots: Slots) -> list[pa.Array]:
        return [self._sums.state(slots), *self._not_finite.state(slots)]

    def install(self, slots: Slots, state: Iterator[pa.Array]) -> None:
        self._sums.install(slots, next(state))
        self._not_finite.install(slots, state)

    def _totals(self, slots: Slots) -> Floats:
        totals: Floats = self._sums.digits(slots).divided() + self._not_finite.sums(slots)
        return totals


class ExactFloatMean(ExactFloatSum):
    """avg as float64."""

    __slots__ = ()

    def take(self, slots: Slots, counts: Counts) -> pa.Array:
        means = self._totals(slots) / np.maximum(counts, 1)
        return array_of(pa.float64(), means, some_value(counts))


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

    Values that were once chosen lie in a column, in order of arrival; ``place`` points to the value of each group.
    """

    __slots__ = ("_place", "_type", "_values")

    def __init__(self, type: pa.DataType) -> None:
        self._type = type
        self._values = _only_a_null(type)
        self._place: Vector[np.int64] = Vector(np.int64)
        """The place of each group's value in ``values``; 0 is a null."""

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
        """Replace the groups' values by these."""
        self._place.cells[slots] = np.arange(len(slots)) + len(self._values)
        self._values.append(values)


class RankedExtreme(FirstValue):
    """The extreme of values that Arrow can rank. When more than half of the column is superseded, it is rewritten."""

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
        """Rewrite the column without superseded values."""
        values = self._values.take(self._place.cells)
        self._values = _only_a_null(self._type)
        self._values.append(values)
        self._place.cells[:] = np.arange(1, len(values) + 1)


def _only_a_null(type: pa.DataType) -> Column:
    column = column_of(type)
    column.append(pa.nulls(1, type))
    return column


class Truths:
    """Whether all of a group's values are true, or whether any is."""

    __slots__ = ("_all", "_true")

    def __init__(self, of_all: bool) -> None:
        self._all = of_all
        self._true: Vector[np.int64] = Vector(np.int64)

    @property
    def nbytes(self) -> int:
        return self._true.nbytes

    def resize(self, size: int) -> None:
        self._true.resize(size)

    def add(self, slots: Slots, values: pa.Array, weight: Weights | None) -> None:
        true = cells_of(values).astype(np.int64)
        np.add.at(self._true.cells, slots, true if weight is None else true * weight)

    def take(self, slots: Slots, counts: Counts) -> pa.Array:
        true = self._true.cells[slots]
        return array_of(pa.bool_(), true == counts if self._all else true > 0, some_value(counts))

    def state(self, slots: Slots) -> list[pa.Array]:
        return [array_of(pa.int64(), self._true.cells[slots])]

    def install(self, slots: Slots, state: Iterator[pa.Array]) -> None:
        self._true.cells[slots] = cells_of(next(state))


MOMENTS = ("var_pop", "var_samp", "stddev_pop", "stddev_samp")

_HALF_BITS = 26
_HALF_MASK = (1 << _HALF_BITS) - 1


class Moment:
    """One of ``MOMENTS``, as float64."""

    __slots__ = ("_function", "_not_finite", "_squares", "_sums")

    def __init__(self, function: str, argument: pa.DataType, type: pa.DataType) -> None:
        """Raises ProtocolError if Spark would not apply the function to ``argument``, or not give ``type``."""
        number = pa.types.is_signed_integer(argument) or pa.types.is_floating(argument)
        if not (number or pa.types.is_decimal128(argument)) or type != pa.float64():
            raise ProtocolError(f"{function} of {argument} as {type}")
        self._function = function
        self._sums = ExactSums()
        self._squares = ExactSums()
        self._not_finite = NotFinite()

    @property
    def nbytes(self) -> int:
        return self._sums.nbytes + self._squares.nbytes + self._not_finite.nbytes

    def resize(self, size: int) -> None:
        self._sums.resize(size)
        self._squares.resize(size)
        self._not_finite.resize(size)

    def add(self, slots: Slots, values: pa.Array, weight: Weights | None) -> None:
        mantissas, exponents = parts_of(self._not_finite.take_not_finite(slots, floats_of(values), weight))
        self._sums.add(slots, mantissas, exponents, weight)
        for part, exponent in products_of(mantissas, mantissas, 2 * exponents):
            self._squares.add(slots, part, exponent, weight)

    def take(self, slots: Slots, counts: Counts) -> pa.Array:
        finite = self._not_finite.sums(slots) == 0
        return moments(self._function, counts, self._sums.digits(slots), self._squares.digits(slots), finite)

    def state(self, slots: Slots) -> list[pa.Array]:
        return [self._sums.state(slots), self._squares.state(slots), *self._not_finite.state(slots)]

    def install(self, slots: Slots, state: Iterator[pa.Array]) -> None:
        self._sums.install(slots, next(state))
        self._squares.install(slots, next(state))
        self._not_finite.install(slots, state)


def products_of(one: Counts, other: Counts, exponents: Counts) -> Iterator[tuple[Counts, Counts]]:
    """The products of mantissas, each as three numbers that add up to it, as mantissas and exponents. exponents: of the
    products."""
    (a, b), (c, d) = ((part >> _HALF_BITS, part & _HALF_MASK) for part in (one, other))
    for part, bits in ((a * c, 2 * _HALF_BITS), (a * d + b * c, _HALF_BITS), (b * d, 0)):
        yield part, exponents + bits


def moments(function: str, counts: Counts, sums: Digits, squares: Digits, finite: Mask) -> pa.Array:
    """One of ``MOMENTS``, as float64, from the sums of values and of their squares. finite: where no value is NaN or
    infinite."""
    samples, numbers = int(function in ("var_samp", "stddev_samp")), counts.astype(np.float64)
    spread = Digits.of(counts).times(squares).minus(sums.times(sums))
    results = spread.divided(np.maximum(numbers * (numbers - samples), 1))
    if function in ("stddev_pop", "stddev_samp"):
        results = np.sqrt(results)
    return array_of(pa.float64(), np.where(finite, results, np.nan), counts > samples)


_LONG_MAX = 2**63 - 1
"""The greatest int64."""

_LIMB_WEIGHTS_MAX = 2**30
"""The largest sum of weights for which values are added in limbs."""


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
        """For rows whose count is too large for limbs, as in a skewed join."""
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
        """An upper bound of every total's absolute value, unless it is at the maximum itself."""

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


class TryLongSum(ExactSum):
    """sum of whole numbers as int64, null outside its range."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(pa.decimal128(38, 0), -(2**127), 2**127 - 1)

    def add(self, slots: Slots, values: pa.Array, weight: Weights | None) -> None:
        low = cells_of(values).astype(np.int64)
        cells = np.stack([low, low >> 63], axis=1).view(cell_type(pa.decimal128(38, 0))).reshape(len(low))
        self._add_in_limbs(slots, cells, weight)

    def take(self, slots: Slots, counts: Counts) -> pa.Array:
        low, high = np.ascontiguousarray(self._totals.cells[slots]).view(np.int64).reshape(-1, 2).T
        return array_of(pa.int64(), low.copy(), (high == low >> 63) & (counts > 0))


class BitXor:
    """bit_xor of whole numbers: taking a value back is adding it once more."""

    __slots__ = ("_bits", "_type")

    def __init__(self, type: pa.DataType) -> None:
        self._type = type
        self._bits: Vector[Any] = Vector(cell_type(type))

    @property
    def nbytes(self) -> int:
        return self._bits.nbytes

    def resize(self, size: int) -> None:
        self._bits.resize(size)

    def add(self, slots: Slots, values: pa.Array, weight: Weights | None) -> None:
        cells = cells_of(values)
        odd = slice(None) if weight is None else weight % 2 != 0
        np.bitwise_xor.at(self._bits.cells, slots[odd], cells[odd])

    def take(self, slots: Slots, counts: Counts) -> pa.Array:
        return array_of(self._type, self._bits.cells[slots], some_value(counts))

    def state(self, slots: Slots) -> list[pa.Array]:
        return [array_of(self._type, self._bits.cells[slots])]

    def install(self, slots: Slots, state: Iterator[pa.Array]) -> None:
        self._bits.cells[slots] = cells_of(next(state))


class FloatSum:
    """sum as float64, of floats or of whole numbers taken as floats, without retractions."""

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
    """avg as float64: the sum of floats divided by the count."""

    __slots__ = ()

    def take(self, slots: Slots, counts: Counts) -> pa.Array:
        means = self._totals.cells[slots] / np.maximum(counts, 1)
        return array_of(pa.float64(), means, some_value(counts))


class DecimalMean(DecimalSum):
    """avg of decimals: the exact sum divided by the count, rounded once, halves away from zero."""

    __slots__ = ("_mean_type",)

    def __init__(self, sum_type: pa.DataType, mean_type: pa.DataType) -> None:
        super().__init__(sum_type)
        self._mean_type = mean_type

    def take(self, slots: Slots, counts: Counts) -> pa.Array:
        try:
            return decimal_means(self._totals.cells[slots], self._type, counts, self._mean_type)
        except OutOfRange as lost:
            raise OutOfRange(int(slots[lost.slot])) from None


def decimal_means(
    totals: Cells, sum_type: pa.DataType, counts: Counts, type: pa.DataType, wide: pa.Array | None = None
) -> pa.Array:
    """The averages of decimals, null where there are none. totals: exact sums. Raises OutOfRange, with the place.

    wide: the sums in 256 bits, if some have more digits than decimals have.
    """
    factor, divisors = 10 ** (type.scale - sum_type.scale), np.maximum(counts, 1)
    means, done = _divide_small(totals, divisors, factor)
    if wide is not None:
        done &= equal_bits(wide, widened(totals))
    large = true_at(~done)
    if large.size:
        shift = type.scale - sum_type.scale
        numbers = widened(totals[large]) if wide is None else wide.take(pa.array(large))
        means[large] = _divide_large(numbers, divisors[large], shift, type, large)
    return array_of(type, means, some_value(counts))


def _divide_small(totals: Cells, divisors: Counts, factor: int) -> tuple[Cells, Mask]:
    """Quotients in 64 bits, and where they are right; the others are too large for 64 bits."""
    low, high = totals.view(np.int64).reshape(-1, 2).T
    most = _LONG_MAX // (4 * factor)
    small = (high == low >> 63) & (low >= -most) & (low <= most) & (divisors < 2**62)
    magnitudes = (2 * factor * np.abs(np.where(small, low, 0)) + divisors) // (2 * divisors)
    means = np.where(low < 0, -magnitudes, magnitudes)
    return np.stack([means, means >> 63], axis=1).view(totals.dtype).reshape(len(totals)), small


def _divide_large(wide: pa.Array, divisors: Counts, shift: int, type: pa.DataType, places: Slots) -> Cells:
    """Quotients of totals * 10**shift, rounded half up. Raises OutOfRange, with one of these places."""
    negative = is_negative(wide)
    means, lost = quotients(pc.abs(wide), widened(divisors), shift)
    lost |= at_least_power(means, type.precision)
    if lost.any():
        raise OutOfRange(int(places[lost][0]))
    return cells_of(narrowed(means, negative, type, np.zeros(len(wide), np.bool_)))
