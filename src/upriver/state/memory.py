"""Arrays that are longer than they need to be, and take memory only as they are filled.

The system gives a large array addresses at first, and memory only when a page of it is touched: what is not used costs
nothing. So a vector that has outgrown a small array gets a very large one at once, and is never copied while it grows
from there to ``ROOM_BYTES``; copying eight megabytes into memory that is cold takes tens of milliseconds.

Room is asked of the C library and not of numpy, which asks for large pages: a store of some dozens of vectors would
touch one of two megabytes for each, and take more than twice the memory that it has a use for.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

SMALL_BYTES = 1 << 18
"""Arrays below half of this size are as large as they need to be; no small array is larger."""

ROOM_BYTES = 1 << 26
"""Addresses for an array that is not small. The C library never answers so large a request from used memory."""

_PHASES = 512


def longer(cells: npt.NDArray[Any], size: int, phase: int) -> npt.NDArray[Any]:
    """A copy of the array with room for ``size`` cells or more; what is in the new ones is not defined.

    phase: any number. Arrays that are filled together and have different ones leave smallness one after the other.
    """
    width, phase = cells.itemsize, phase * 167 % _PHASES
    small = (SMALL_BYTES + SMALL_BYTES * phase // _PHASES) // 2 // width
    if size <= small:
        room = np.empty(min(max(size, 2 * len(cells)), small), cells.dtype)
    else:
        room = _room(max(size, 2 * len(cells), ROOM_BYTES // width), cells.dtype)
    room[: len(cells)] = cells
    return room


def _room(size: int, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """An array of so many cells, of which none takes memory yet."""
    addresses = pa.allocate_buffer(size * dtype.itemsize, memory_pool=pa.system_memory_pool())
    return np.frombuffer(addresses, dtype)
