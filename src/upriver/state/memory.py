"""Memory that grows without being copied.

A numpy array cannot grow, so a longer one is made and the old one copied into it: for eight megabytes that are cold,
tens of milliseconds. Here large arrays lie in pages of their own, which the system can give a longer range of addresses
and leave where they are. Where it cannot, or somebody still looks at the old array, they are copied all the same.
"""

import mmap
from contextlib import suppress
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

Cell = TypeVar("Cell", bound=np.generic)

_CELLS_MIN = 16

_PAGES_BYTES_MIN = 1 << 18
"""Below this size an array is not worth pages of its own."""

_LARGE_PAGE = 1 << 21


class Memory(Generic[Cell]):
    """An array, ``cells``, that :meth:`grow` replaces by a longer one."""

    __slots__ = ("_offset", "_pages", "cells")

    def __init__(self, dtype: npt.DTypeLike) -> None:
        self.cells: npt.NDArray[Cell] = np.empty(_CELLS_MIN, dtype)
        """All of them; what is in new ones is not defined."""
        self._pages: mmap.mmap | None = None
        self._offset = id(self) // 64 * mmap.PAGESIZE % _LARGE_PAGE
        """Where in the pages the array begins. The system clears a large page when it is first touched, which takes a
        while. Arrays that grow together should not all come to their next one at once, so they begin anywhere."""

    def grow(self, size: int) -> None:
        """Have room for ``size`` cells, and keep what is in those that there are."""
        dtype, bytes = self.cells.dtype, size * self.cells.dtype.itemsize
        if bytes < _PAGES_BYTES_MIN:
            self._copy_to(np.empty(size, dtype))
        elif self._pages is None or not self._stretched(self._pages, self._offset + bytes):
            self._pages = _pages_of(self._offset + bytes)
            self._copy_to(self._cells_in(self._pages, dtype))

    def _stretched(self, pages: mmap.mmap, bytes: int) -> bool:
        """Whether the pages have got so many bytes; they cannot while anybody has a view of them."""
        dtype = self.cells.dtype
        self.cells = np.empty(0, dtype)
        try:
            pages.resize(bytes)
        except (BufferError, SystemError, OSError, ValueError):
            return False
        finally:
            self.cells = self._cells_in(pages, dtype)
        return True

    def _cells_in(self, pages: mmap.mmap, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        size = (len(pages) - self._offset) // np.dtype(dtype).itemsize
        return np.frombuffer(pages, dtype, size, self._offset)

    def _copy_to(self, cells: npt.NDArray[Any]) -> None:
        cells[: len(self.cells)] = self.cells
        self.cells = cells


def _pages_of(bytes: int) -> mmap.mmap:
    """Empty pages of this process alone, large ones where the system has them."""
    if not hasattr(mmap, "MAP_PRIVATE"):
        return mmap.mmap(-1, bytes)
    pages = mmap.mmap(-1, bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):
            pages.madvise(mmap.MADV_HUGEPAGE)
    return pages
