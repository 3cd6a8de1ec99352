"""Numpy arrays that grow at their end, counts kept in one, and sets of keys: the parts of in-memory state.

A set of keys is an ascending array of hash64 without repeats: small, and quick to test a whole batch against.

State is *columnar*: whatever has a place in it (a group, a key, a row) is a dense number, its **slot**, and each
property of it is one array addressed by slot. An operator then works on a batch with a few whole-array steps.

A vector is longer than it needs to be, and takes memory only as it is filled. The system gives a large array addresses
at first, and memory only when a page of it is touched: unused room costs nothing. So a vector that has outgrown a small
array gets a very large one at once, and is never copied while it grows from there to ``ROOM_BYTES``. Copying eight
megabytes into cold memory takes tens of milliseconds.

The C library provides the room, and not numpy, which asks for large pages. A store of some dozens of vectors would
touch a page of two megabytes for each, and take more than twice the memory that it uses.
"""

from collections.abc import Hashable, Iterator
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from upriver.errors import ProtocolError
from upriver.hashing import Hashes as Hashes

SMALL_BYTES = 1 << 18
"""Arrays below half of this size are exactly as large as they need to be; no small array is larger."""

ROOM_BYTES = 1 << 26
"""Addresses for an array that is not small. The C library never serves so large a request from used memory."""

_PHASES = 512


def longer(cells: npt.NDArray[Any], size: int, phase: int) -> npt.NDArray[Any]:
    """A copy of the array with room for ``size`` cells or more; the new cells are not defined.

    phase: any number. Arrays that are filled together and have different phases outgrow their small arrays one after
    the other.
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
    """An array of so many cells, none of which takes memory yet."""
    addresses = pa.allocate_buffer(size * dtype.itemsize, memory_pool=pa.system_memory_pool())
    return np.frombuffer(addresses, dtype)


Slots = npt.NDArray[np.int64]
"""Places in the state: ``0 <= slot < size``. -1 stands for "none" where a docstring says so."""

Positions = npt.NDArray[np.int64]
"""Places in a batch."""

Mask = npt.NDArray[np.bool_]
Weights = npt.NDArray[np.int64]

Cell = TypeVar("Cell", bound=np.generic)
Name = TypeVar("Name", bound=Hashable)

_CAPACITY_MIN = 16


class Vector(Generic[Cell]):
    """An array that grows at its end, and never blocks for long."""

    __slots__ = ("_fill", "_room", "_size")

    def __init__(self, dtype: npt.DTypeLike, fill: Any = None) -> None:
        """fill: the value of cells that :meth:`resize` adds; by default all their bits are zero."""
        self._fill = np.zeros((), dtype) if fill is None else np.array(fill, dtype)
        self._room: npt.NDArray[Cell] = np.empty(_CAPACITY_MIN, dtype)
        self._size = 0

    def __len__(self) -> int:
        return self._size

    @property
    def cells(self) -> npt.NDArray[Cell]:
        """A writable view, good until the vector grows."""
        return self._room[: self._size]

    @property
    def nbytes(self) -> int:
        """Bytes in use. Unused room is address space that the system has not filled with memory."""
        return self._size * self._fill.itemsize

    def extend(self, values: npt.NDArray[Cell]) -> None:
        start = self._reserve(self._size + len(values))
        self._room[start : self._size] = values

    def resize(self, size: int) -> None:
        """Grow to ``size`` cells; new ones hold the fill value."""
        start = self._reserve(size)
        self._room[start:size] = self._fill

    def _reserve(self, size: int) -> int:
        """Make room and set the size; return the old one."""
        old = self._size
        if size > len(self._room):
            self._room = longer(self._room, size, phase=id(self) // 64)
        self._size = size
        return old


class SparseVectors(Generic[Name]):
    """Vectors of one size, by name. An unwritten vector is zero throughout and takes no memory."""

    __slots__ = ("_size", "_vectors")

    def __init__(self) -> None:
        self._vectors: dict[Name, Vector[np.int64]] = {}
        self._size = 0

    @property
    def nbytes(self) -> int:
        return sum(vector.nbytes for vector in self._vectors.values())

    def resize(self, size: int) -> None:
        self._size = size
        for vector in self._vectors.values():
            vector.resize(size)

    def written(self) -> Iterator[tuple[Name, npt.NDArray[np.int64]]]:
        """Those that were written to, for reading."""
        for name, vector in self._vectors.items():
            yield name, vector.cells

    def cells(self, name: Name) -> npt.NDArray[np.int64]:
        """A vector to write to, good until the vectors grow."""
        if name not in self._vectors:
            self._vectors[name] = Vector(np.int64)
            self._vectors[name].resize(self._size)
        return self._vectors[name].cells


class Tally:
    """A count for each slot, never negative, and the number of slots whose count is above zero."""

    __slots__ = ("_counts", "held")

    def __init__(self) -> None:
        self._counts: Vector[np.int64] = Vector(np.int64)
        self.held = 0
        """How many slots have a count above zero."""

    def __len__(self) -> int:
        return len(self._counts)

    @property
    def counts(self) -> npt.NDArray[np.int64]:
        return self._counts.cells

    @property
    def nbytes(self) -> int:
        return self._counts.nbytes

    def resize(self, size: int) -> None:
        self._counts.resize(size)

    def of_those_held(self, slots: Slots) -> Slots:
        """Those of these slots that have a count above zero, in order."""
        return slots if self.held == len(self) else slots[self.counts[slots] > 0]

    def put(self, slots: Slots, counts: Weights) -> None:
        """Set the counts, which are above zero, of slots whose count is zero."""
        self.counts[slots] = counts
        self.held += len(slots)

    def clear(self, slots: Slots) -> None:
        """Set the counts of these slots, which are unique, to zero."""
        self.held -= int(np.count_nonzero(self.counts[slots]))
        self.counts[slots] = 0

    def add(self, slots: Slots, weight: Weights | None) -> tuple[Positions, Positions]:
        """Add to the slots' counts; a slot may occur often, and a weight of ``None`` is 1 for each.

        Returns which slots had a count of zero before, and which have one now: for each such slot its first position in
        ``slots``, ascending. Raises ProtocolError if a count would fall below zero.
        """
        if weight is None:
            woken = first_of_each(slots, true_at(self.counts[slots] == 0))
            np.add.at(self.counts, slots, 1)
            self.held += len(woken)
            return woken, np.empty(0, np.int64)
        touched, first = np.unique(slots, return_index=True)
        before = self.counts[touched]
        np.add.at(self.counts, slots, weight)
        after = self.counts[touched]
        if (after < 0).any():
            raise ProtocolError("more rows were retracted than had been added")
        woken, emptied = np.sort(first[before == 0]), np.sort(first[after == 0])
        self.held += len(woken) - len(emptied)
        return woken, emptied


def is_any_twice(numbers: npt.NDArray[np.integer[Any]]) -> bool:
    """Whether a number occurs more than once."""
    if len(numbers) < 2:
        return False
    in_order = np.sort(numbers)
    return bool((in_order[1:] == in_order[:-1]).any())


def true_at(mask: npt.NDArray[Any]) -> Positions:
    """Where a mask is true, or a number is not zero; ascending. ``np.flatnonzero`` is slow for few."""
    return mask.nonzero()[0]


def run_starts(values: npt.NDArray[Any]) -> Positions:
    """Where each run of equal neighbours begins."""
    begins = np.ones(len(values), np.bool_)
    np.not_equal(values[1:], values[:-1], out=begins[1:])
    return begins.nonzero()[0]


def run_lengths(starts: Positions, size: int) -> Positions:
    """The length of each run that begins there, of ``size`` values in all."""
    lengths = np.empty_like(starts)
    np.subtract(starts[1:], starts[:-1], out=lengths[:-1])
    lengths[-1:] = size - starts[-1:]
    return lengths


def first_of_each(slots: Slots, positions: Positions) -> Positions:
    """The first position for each slot, among these ascending positions in ``slots``; ascending."""
    if len(positions) < 2:
        return positions
    _, first = np.unique(slots[positions], return_index=True)
    return positions[np.sort(first)]


def spread(starts: Positions, counts: npt.NDArray[np.int64]) -> Positions:
    """``counts[i]`` numbers from ``starts[i]`` on, for each i."""
    ends = counts.cumsum()
    if not len(ends):
        return np.empty(0, np.int64)
    places: Positions = np.arange(ends[-1]) + (starts - ends + counts).repeat(counts)
    return places


NO_KEYS: Hashes = np.empty(0, np.uint64)
NO_KEYS.setflags(write=False)


def key_set(*hashes: Hashes) -> Hashes:
    """The set of all these hashes, in any order and with any repeats."""
    if not hashes:
        return NO_KEYS
    ordered = np.sort(np.concatenate(hashes))  # np.unique takes ten times as long where most are different
    return ordered[np.concatenate(([True], ordered[1:] != ordered[:-1]))[: len(ordered)]]


def contains(keys: Hashes, hashes: Hashes) -> Mask:
    """For each of ``hashes``, whether the set ``keys`` holds it."""
    if not len(keys):
        return np.zeros(len(hashes), np.bool_)
    places = np.minimum(np.searchsorted(keys, hashes), len(keys) - 1)
    found: Mask = keys[places] == hashes
    return found
