"""stddev and variance: from exact sums of the values and of their squares, so nothing cancels out and all can go again.

As in Spark, numbers are taken as doubles; what divides by the number of values less one is null for a single value; and
a group with a NaN or an infinity has NaN.
"""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from upriver.engine.operators.accumulator import Counts
from upriver.engine.operators.exact import NotFinite, floats_of
from upriver.errors import ProtocolError
from upriver.state.columns import array_of
from upriver.state.digits import Digits, ExactSums, parts_of
from upriver.state.vectors import Slots, Weights

MOMENTS = ("var_pop", "var_samp", "stddev_pop", "stddev_samp")

_HALF_BITS = 26
_HALF_MASK = (1 << _HALF_BITS) - 1


class Moment:
    """One of ``MOMENTS``, as float64."""

    __slots__ = ("_not_finite", "_root", "_sample", "_squares", "_sums")

    def __init__(self, function: str, argument: pa.DataType, type: pa.DataType) -> None:
        """Raises ProtocolError if Spark would not apply the function to ``argument``, or not give ``type``."""
        number = pa.types.is_signed_integer(argument) or pa.types.is_floating(argument)
        if not (number or pa.types.is_decimal128(argument)) or type != pa.float64():
            raise ProtocolError(f"{function} of {argument} as {type}")
        self._sample = function in ("var_samp", "stddev_samp")
        self._root = function in ("stddev_pop", "stddev_samp")
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
        mantissas, exponents = parts_of(self._not_finite.sift(slots, floats_of(values), weight))
        self._sums.add(slots, mantissas, exponents, weight)
        high, low = mantissas >> _HALF_BITS, mantissas & _HALF_MASK
        for part, bits in ((high * high, 2 * _HALF_BITS), (2 * high * low, _HALF_BITS), (low * low, 0)):
            self._squares.add(slots, part, 2 * exponents + bits, weight)

    def take(self, slots: Slots, counts: Counts) -> pa.Array:
        numbers = counts.astype(np.float64)
        divisors = numbers * (numbers - 1 if self._sample else numbers)
        sums = self._sums.digits(slots)
        spread = Digits.of(counts).times(self._squares.digits(slots)).minus(sums.times(sums))
        results = spread.divided(np.maximum(divisors, 1))
        results = np.where(self._not_finite.sums(slots) == 0, np.sqrt(results) if self._root else results, np.nan)
        return array_of(pa.float64(), results, counts > (1 if self._sample else 0))

    def state(self, slots: Slots) -> list[pa.Array]:
        return [self._sums.state(slots), self._squares.state(slots), *self._not_finite.state(slots)]

    def install(self, slots: Slots, state: Iterator[pa.Array]) -> None:
        self._sums.install(slots, next(state))
        self._squares.install(slots, next(state))
        self._not_finite.install(slots, state)
