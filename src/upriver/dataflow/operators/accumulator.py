"""What an aggregate function keeps for each group."""

from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from upriver.state.vectors import Mask, Slots, Weights

Counts = npt.NDArray[np.int64]


class Accumulator(Protocol):
    """One value per group slot, fed with the values of one column that are not null."""

    @property
    def nbytes(self) -> int: ...

    def resize(self, size: int) -> None:
        """Make place for so many groups."""
        ...

    def add(self, slots: Slots, values: pa.Array, weight: Weights | None) -> None:
        """Add values to their groups. Raises OutOfRange, having changed nothing, if a result has no room."""
        ...

    def clear(self, slots: Slots) -> None:
        """These groups have no values any more."""
        ...

    def take(self, slots: Slots, counts: Counts) -> pa.Array:
        """The results, null where there are none. counts: how many values each group has. Raises OutOfRange."""
        ...

    def state(self, slots: Slots) -> pa.Array:
        """All that is kept of these groups, one value for each. Its type depends on the function's types only."""
        ...

    def install(self, slots: Slots, state: pa.Array) -> None:
        """Keep this of these groups, which have nothing yet."""
        ...


class OutOfRange(Exception):
    """A group's result does not fit its type. Whoever knows the group's key tells the user."""

    def __init__(self, slot: int) -> None:
        super().__init__(slot)
        self.slot = slot


def any_value(counts: Counts) -> Mask | None:
    """Which groups have values; ``None`` if all do."""
    some: Mask = counts > 0
    return None if some.all() else some
