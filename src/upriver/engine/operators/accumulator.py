"""What an aggregate function keeps for each group."""

from collections.abc import Iterator
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from upriver.state.vectors import Mask, Slots, Weights

Counts = npt.NDArray[np.int64]


class Accumulator(Protocol):
    """Something for each group slot, fed with the values of one column that are not null.

    A value may be taken back, by a negative weight, only from those that are built for it.
    """

    @property
    def nbytes(self) -> int: ...

    def resize(self, size: int) -> None:
        """Make place for so many groups."""
        ...

    def add(self, slots: Slots, values: pa.Array, weight: Weights | None) -> None:
        """Add values to their groups. Raises OutOfRange, having changed nothing, if a result has no room."""
        ...

    def take(self, slots: Slots, counts: Counts) -> pa.Array:
        """The results, null where there are none. counts: how many values each group has. Raises OutOfRange."""
        ...

    def state(self, slots: Slots) -> list[pa.Array]:
        """All that is kept of these groups, one row for each. The types depend on the function's types only."""
        ...

    def install(self, slots: Slots, state: Iterator[pa.Array]) -> None:
        """Keep this of these groups, which have nothing yet; takes as many columns as :meth:`state` gave."""
        ...


class OutOfRange(Exception):
    """A group's result does not fit its type. Whoever knows the group's key tells the user."""

    def __init__(self, slot: int) -> None:
        super().__init__(slot)
        self.slot = slot


def some_value(counts: Counts) -> Mask | None:
    """Which groups have values; ``None`` if all do."""
    some: Mask = counts > 0
    return None if some.all() else some
