"""bool_and and bool_or: from the number of values that are true."""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from upriver.engine.operators.accumulator import Counts, some_value
from upriver.state.columns import array_of, cells_of
from upriver.state.vectors import Slots, Vector, Weights


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
