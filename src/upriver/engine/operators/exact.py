"""sum and avg of floats that may be taken back: exact, so that nothing of a value stays when it goes.

A sum is rounded once, when it is read. NaNs and infinities are counted, not added.
"""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from upriver.engine.operators.accumulator import Counts, some_value
from upriver.state.columns import array_of, cells_of
from upriver.state.digits import ExactSums, parts_of
from upriver.state.vectors import Slots, SparseVectors, Weights, true_at

Floats = npt.NDArray[np.float64]

_KINDS = {"nan": np.nan, "up": np.inf, "down": -np.inf}


def floats_of(values: pa.Array) -> Floats:
    """Numbers as Spark casts them to double."""
    if pa.types.is_decimal(values.type):
        values = values.cast(pa.float64())
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

    def sift(self, slots: Slots, cells: Floats, weight: Weights | None) -> Floats:
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
        """What they come to in each group: a NaN or an infinity, or zero if there is none."""
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
        cells = self._not_finite.sift(slots, floats_of(values), weight)
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
