"""The hashes of a run, in ascending order: only the blocks that a search looks into are read.

Hashes are spread evenly, so where one stands can be guessed from its value: a search reads about two blocks, where
bisecting reads ten. Rows of one key lie together, and there may be very many of them: after some guesses, a search
bisects.
"""

from bisect import bisect_left, bisect_right

import numpy as np
import numpy.typing as npt

from upriver.lake.verified_file import VerifiedFile
from upriver.state.vectors import Positions, true_at
from upriver.xxh64 import Hashes

GUESSES_MAX = 4
"""Blocks that one search guesses; later ones lie in the middle of what is left."""
HASH_BYTES = 8
"""Blocks end between two hashes: both begin at a multiple of so many bytes."""
_LAST = 2**64 - 1
"""The highest hash64."""


class SortedHashes:
    """Used by one thread. hash64: right where it was filled, and nowhere else. Each method that searches raises
    CorruptFile."""

    def __init__(self, file: VerifiedFile, hash64: Hashes, first_byte: int, block_bytes: int) -> None:
        """first_byte: of the file, at which the hashes begin. block_bytes: of the file's blocks."""
        self.hash64 = hash64
        self._view = hash64.data
        self._file = file
        self._first_byte = first_byte
        self._block_bytes = block_bytes
        self._rows = len(hash64)
        self._is_whole = file.is_whole
        if self._rows and not self._is_whole:
            file.fill([(first_byte, first_byte + 1), (self._byte(self._rows - 1), self._byte(self._rows))])

    def fill(self, start: int, end: int) -> None:
        """Have these hashes filled."""
        self._file.fill([(self._byte(start), self._byte(end))])

    def _byte(self, row: int) -> int:
        return self._first_byte + row * HASH_BYTES

    @property
    def rows_of_block(self) -> int:
        """How many hashes are read at a time at least."""
        return max(1, self._block_bytes // HASH_BYTES)

    def is_at(self, row: int, key: int) -> bool:
        """Whether that hash is the key."""
        if row >= self._rows:
            return False
        if not self._is_whole:
            self.fill(row, row + 1)
        return bool(self._view[row] == key)

    def start_of(self, key: int, low: int, high: int) -> int:
        """The first row from ``low`` to before ``high`` whose hash is not below the key; ``high`` if there is none."""
        if self._is_whole:
            return bisect_left(self._view, key, low, high)
        guesses = 0
        while low < high:
            row = self._guess(key, low, high) if guesses < GUESSES_MAX else (low + high) >> 1
            block = self._byte(row) // self._block_bytes * self._block_bytes - self._first_byte
            first, end = max(low, block // HASH_BYTES), min(high, (block + self._block_bytes) // HASH_BYTES)
            self.fill(first, end)
            found = bisect_left(self._view, key, first, end)
            if found == first:
                high = first
            elif found == end:
                low = end
            else:
                return found
            guesses += 1
        return low

    def end_of(self, key: int, low: int, high: int) -> int:
        """The first row from ``low`` to before ``high`` whose hash is above the key; ``high`` if there is none."""
        if self._is_whole:
            return bisect_right(self._view, key, low, high)
        return high if key == _LAST else self.start_of(key + 1, low, high)

    def end_of_key(self, row: int, end: int) -> int:
        """As ``EndOfKey``."""
        self.fill(row, row + 1)
        return self.end_of(self._view[row], row + 1, end)

    def _guess(self, key: int, low: int, high: int) -> int:
        """Where between two rows the key stands if the hashes between them are spread evenly."""
        below, above = self._view[max(low - 1, 0)], self._view[min(high, self._rows - 1)]
        part = (key - below) / (above - below) if below < above else 0.5
        return min(max(low, low + int(part * (high - low))), high - 1)

    def places_of(self, keys: Hashes) -> tuple[Positions, Positions]:
        """(first row, row behind the last) of each of these keys that has rows. keys: ascending, each once."""
        hash64, rows = self.hash64, self._rows
        if not rows or not len(keys):
            return np.empty(0, np.int64), np.empty(0, np.int64)
        keys = keys[keys.searchsorted(hash64[0]) : keys.searchsorted(hash64[-1], "right")]
        if self._is_whole or len(keys) * self.rows_of_block >= rows:
            self.fill(0, rows)
            starts = hash64.searchsorted(keys)
            is_there = hash64[starts] == keys  # no key is above the last hash
            return starts[is_there], hash64.searchsorted(keys[is_there], "right")
        starts = self._starts_of(keys, np.zeros(len(keys), np.int64))
        is_there = self._are_at(starts, keys)
        starts, keys = starts[is_there], keys[is_there]
        ends = starts + 1
        goes_on = true_at(self._are_at(ends, keys))
        is_last = keys[goes_on] == _LAST
        ends[goes_on[is_last]] = rows
        goes_on = goes_on[~is_last]
        ends[goes_on] = self._starts_of(keys[goes_on] + np.uint64(1), ends[goes_on])
        return starts, ends

    def _are_at(self, places: Positions, keys: Hashes) -> npt.NDArray[np.bool_]:
        """Which of these rows are of these keys."""
        nearest = np.minimum(places, self._rows - 1)
        self._fill_many(nearest, nearest + 1)
        are_there: npt.NDArray[np.bool_] = (self.hash64[nearest] == keys) & (places < self._rows)
        return are_there

    def _fill_many(self, starts: Positions, ends: Positions) -> None:
        self._file.fill_many(self._first_byte + starts * HASH_BYTES, self._first_byte + ends * HASH_BYTES)

    def _starts_of(self, keys: Hashes, low: Positions) -> Positions:
        """As ``start_of``, of many keys at a time: from ``low`` of each on."""
        found, high = low.copy(), np.full(len(keys), self._rows)
        searched, low = np.arange(len(keys)), low.copy()
        guesses = 0
        while len(searched):
            rows = self._guesses(keys, low, high) if guesses < GUESSES_MAX else (low + high) >> 1
            guesses += 1
            blocks = (self._first_byte + rows * HASH_BYTES) // self._block_bytes * self._block_bytes - self._first_byte
            first = np.maximum(low, blocks // HASH_BYTES)
            end = np.minimum(high, (blocks + self._block_bytes) // HASH_BYTES)
            self._fill_many(first, end)
            is_before, is_behind = keys <= self.hash64[first], keys > self.hash64[end - 1]
            is_inside = ~(is_before | is_behind)
            found[searched[is_inside]] = self._bisected(keys[is_inside], first[is_inside] + 1, end[is_inside] - 1)
            high, low = np.where(is_before, first, high), np.where(is_behind, end, low)
            is_found = ~is_inside & (low >= high)
            found[searched[is_found]] = low[is_found]
            is_left = ~is_inside & (low < high)
            searched, keys, low, high = searched[is_left], keys[is_left], low[is_left], high[is_left]
        return found

    def _guesses(self, keys: Hashes, low: Positions, high: Positions) -> Positions:
        below = self.hash64[np.maximum(low - 1, 0)]
        above = self.hash64[np.minimum(high, self._rows - 1)]
        parts = (np.maximum(keys, below) - below) / np.maximum(above - below, 1)
        guesses: Positions = np.minimum(low + (np.minimum(parts, 1.0) * (high - low)).astype(np.int64), high - 1)
        return guesses

    def _bisected(self, keys: Hashes, low: Positions, high: Positions) -> Positions:
        """The same where all hashes that may be compared are filled; ``high`` of those above all others."""
        while (is_left := low < high).any():
            middle = (low + high) >> 1
            is_below = (self.hash64[middle] < keys) & is_left
            low, high = np.where(is_below, middle + 1, low), np.where(is_left & ~is_below, middle, high)
        return low
