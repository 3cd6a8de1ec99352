"""Ranges of many lengths laid end to end."""

import numpy as np
import numpy.typing as npt

from upriver.state.vectors import Positions


def spread(starts: Positions, counts: npt.NDArray[np.int64]) -> Positions:
    """``counts[i]`` numbers from ``starts[i]`` on, for each i."""
    ends = np.cumsum(counts)
    if not len(ends):
        return np.empty(0, np.int64)
    return np.arange(ends[-1]) + np.repeat(starts - ends + counts, counts)
