"""Ranges of many lengths laid end to end."""

import numpy as np
import numpy.typing as npt

from upriver.state.vectors import Positions


def spread(starts: Positions, counts: npt.NDArray[np.int64]) -> Positions:
    """``counts[i]`` numbers from ``starts[i]`` on, for each i."""
    ends = counts.cumsum()
    if not len(ends):
        return np.empty(0, np.int64)
    places: Positions = np.arange(ends[-1]) + (starts - ends + counts).repeat(counts)
    return places
