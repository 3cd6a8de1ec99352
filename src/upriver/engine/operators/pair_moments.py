"""Functions of pairs of numbers: correlation, covariance and linear regression.

The sums of both, of their squares and of their products are exact, so nothing cancels out and all can be retracted. A
group with a NaN or an infinity has NaN.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from upriver.engine.operators.accumulators import Counts, NotFinite, floats_of, products_of
from upriver.errors import ProtocolError
from upriver.state.columns import array_of
from upriver.state.digits import Digits, ExactSums, parts_of
from upriver.state.vectors import Mask, Slots, Weights

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Spread:
    """Of each group: the number of pairs, the means, and the sums of products of the distances from them."""

    counts: Floats
    mean_y: Floats
    mean_x: Floats
    yy: Floats
    xx: Floats
    yx: Floats


Moments = Callable[[Spread], tuple[Floats, Mask]]
"""The results, and where there are any."""


def _corr(of: Spread) -> tuple[Floats, Mask]:
    return of.yx / np.sqrt(of.xx * of.yy), (of.xx != 0) & (of.yy != 0)


def _r2(of: Spread) -> tuple[Floats, Mask]:
    return np.where(of.yy == 0, 1.0, of.yx * of.yx / (of.xx * of.yy)), of.xx != 0


def _always(of: Spread) -> Mask:
    return np.ones(len(of.counts), np.bool_)


PAIR_MOMENTS: dict[str, Moments] = {
    "corr": _corr,
    "covar_pop": lambda of: (of.yx / of.counts, _always(of)),
    "covar_samp": lambda of: (of.yx / (of.counts - 1), of.counts > 1),
    "regr_avgx": lambda of: (of.mean_x, _always(of)),
    "regr_avgy": lambda of: (of.mean_y, _always(of)),
    "regr_sxx": lambda of: (of.xx, _always(of)),
    "regr_syy": lambda of: (of.yy, _always(of)),
    "regr_sxy": lambda of: (of.yx, _always(of)),
    "regr_slope": lambda of: (of.yx / of.xx, of.xx != 0),
    "regr_intercept": lambda of: (of.mean_y - of.yx / of.xx * of.mean_x, of.xx != 0),
    "regr_r2": _r2,
}
"""By function of (y, x)."""


class PairMoment:
    """One of ``PAIR_MOMENTS``, as float64. Values are structs of two float64."""

    __slots__ = ("_moment", "_not_finite", "_products", "_sums")

    def __init__(self, function: str, type: pa.DataType) -> None:
        """Raises ProtocolError if Spark would not give ``type``."""
        if type != pa.float64():
            raise ProtocolError(f"{function} as {type}")
        self._moment = PAIR_MOMENTS[function]
        self._sums = (ExactSums(), ExactSums())
        self._products = (ExactSums(), ExactSums(), ExactSums())
        """Of y with itself, of x with itself, and of both."""
        self._not_finite = (NotFinite(), NotFinite())

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in (*self._sums, *self._products, *self._not_finite))

    def resize(self, size: int) -> None:
        for part in (*self._sums, *self._products, *self._not_finite):
            part.resize(size)

    def add(self, slots: Slots, values: pa.Array, weight: Weights | None) -> None:
        numbers = [floats_of(values.field(place)) for place in range(2)]
        finite = np.isfinite(numbers[0]) & np.isfinite(numbers[1])
        sides = []
        for cells, not_finite, sums in zip(numbers, self._not_finite, self._sums, strict=True):
            cells = not_finite.take_not_finite(slots, cells, weight)
            sides.append(parts_of(np.where(finite, cells, 0.0)))
            sums.add(slots, *sides[-1], weight)
        (y, y_exponent), (x, x_exponent) = sides
        for sums, one, other, exponents in zip(
            self._products, (y, x, y), (y, x, x), (2 * y_exponent, 2 * x_exponent, y_exponent + x_exponent), strict=True
        ):
            for part, exponent in products_of(one, other, exponents):
                sums.add(slots, part, exponent, weight)

    def take(self, slots: Slots, counts: Counts) -> pa.Array:
        numbers = np.maximum(counts, 1).astype(np.float64)
        y, x = (sums.digits(slots) for sums in self._sums)
        pairs = ((y, y), (x, x), (y, x))
        spreads = [
            Digits.of(counts).times(products.digits(slots)).minus(one.times(other)).divided(numbers)
            for products, (one, other) in zip(self._products, pairs, strict=True)
        ]
        odd = self._not_finite[0].sums(slots) + self._not_finite[1].sums(slots)
        with np.errstate(all="ignore"):
            results, some = self._moment(Spread(numbers, y.divided(numbers), x.divided(numbers), *spreads))
        is_odd = odd != 0
        results = np.where(is_odd, np.nan, results)
        return array_of(pa.float64(), results, (counts > 0) & (some | is_odd))

    def state(self, slots: Slots) -> list[pa.Array]:
        sums = [part.state(slots) for part in (*self._sums, *self._products)]
        return [*sums, *(column for part in self._not_finite for column in part.state(slots))]

    def install(self, slots: Slots, state: Iterator[pa.Array]) -> None:
        for sums in (*self._sums, *self._products):
            sums.install(slots, next(state))
        for part in self._not_finite:
            part.install(slots, state)
