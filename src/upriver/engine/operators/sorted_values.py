"""The values of groups, in order, as functions of all values of a group read them."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from upriver.state.vectors import Mask, Positions


@dataclass(frozen=True, slots=True)
class SortedValues:
    """The values of some groups, one group after the other; those of one group ascend, each once.

    times: the number of rows of each value. bounds: where each group begins, and where the last one ends.
    """

    values: pa.Array
    times: npt.NDArray[np.int64]
    bounds: Positions

    @property
    def some(self) -> Mask:
        """Which groups have a value."""
        some: Mask = self.bounds[1:] > self.bounds[:-1]
        return some

    @property
    def groups(self) -> Positions:
        """The group of each value."""
        return np.repeat(np.arange(len(self.bounds) - 1), np.diff(self.bounds))

    @property
    def counts(self) -> npt.NDArray[np.int64]:
        """The number of rows of each group."""
        before = self._before()
        return before[self.bounds[1:]] - before[self.bounds[:-1]]

    def nth(self, rows: npt.NDArray[np.int64]) -> Positions:
        """The place of the value that the row of this number has, for each group; rows count from 0."""
        before = self._before()
        wanted = before[self.bounds[:-1]] + rows
        places: Positions = np.searchsorted(before[1:], wanted, side="right")
        return np.minimum(places, max(len(self.values) - 1, 0))

    def first_not_exceeded(self, fraction: float) -> Positions:
        """The place of the first value that so large a part of the rows does not exceed, for each group."""
        return self.nth(np.maximum(np.ceil(self.counts * fraction).astype(np.int64) - 1, 0))

    def _before(self) -> npt.NDArray[np.int64]:
        return np.concatenate([[0], np.cumsum(self.times)])
