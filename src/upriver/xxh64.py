"""XXH64 over numpy arrays: one hash per row, each row with a seed of its own.

Every function takes ``seeds`` (uint64, one per row) and returns as many new hashes. Arithmetic is modulo 2**64,
as numpy's is on uint64 arrays. The result for a row is XXH64 of the row's bytes, integers being little-endian.

The algorithm and the constants are those of the xxHash specification.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import xxhash

Hashes = npt.NDArray[np.uint64]
"""Hashes of rows, one per row."""

# Arrays of no dimension: numpy takes half as long to get at one as at a number of its own.
_PRIME_1 = np.array(0x9E3779B185EBCA87, np.uint64)
_PRIME_2 = np.array(0xC2B2AE3D27D4EB4F, np.uint64)
_PRIME_3 = np.array(0x165667B19E3779F9, np.uint64)
_PRIME_4 = np.array(0x85EBCA77C2B2AE63, np.uint64)
_PRIME_5 = np.array(0x27D4EB2F165667C5, np.uint64)

_INT_START = np.array(_PRIME_5 + np.uint64(4))
_LONG_START = np.array(_PRIME_5 + np.uint64(8))

_BITS = [np.array(bits, np.uint64) for bits in range(64)]
"""Numbers of bits to shift by."""

_STRIPE_BYTES = 32
# primes 1 + 2, prime 2, 0, -prime 1: each lane's seed, less the row's
_LANE_STARTS = np.array([0x60EA27EEADC0B5D6, 0xC2B2AE3D27D4EB4F, 0, 0x61C8864E7A143579], np.uint64).reshape(4, 1)
_LANE_OFFSETS = np.array([0, 8, 16, 24], np.int64).reshape(4, 1)
_LANE_TURNS = (1, 7, 12, 18)

_LIBRARY_BYTES_MIN = 256
"""Rows of at least so many bytes are hashed one by one: with so many rounds that costs less."""
_FEW_ROWS = 16
"""So few rows are hashed one by one: calls of numpy have a cost of their own."""


def hash_ints(seeds: Hashes, values: npt.NDArray[np.int32] | npt.NDArray[np.uint32]) -> Hashes:
    """Hash the four bytes of each value."""
    unsigned = values.view(np.uint32).astype(np.uint64)
    return _avalanche(_with_int(seeds + _INT_START, unsigned))


def hash_longs(seeds: Hashes, values: npt.NDArray[np.int64] | Hashes) -> Hashes:
    """Hash the eight bytes of each value."""
    if len(values) <= _FEW_ROWS:
        return _one_by_one(seeds, [value.tobytes() for value in values])
    return _avalanche(_with_word(seeds + _LONG_START, values.view(np.uint64)))


def hash_bytes(
    seeds: Hashes,
    data: npt.NDArray[np.uint8],
    starts: npt.NDArray[np.int64],
    lengths: npt.NDArray[np.int64],
) -> Hashes:
    """Hash ``data[starts[i] : starts[i] + lengths[i]]`` for each row i; rows may overlap and be empty."""
    if len(seeds) <= _FEW_ROWS:
        spans = zip(starts.tolist(), lengths.tolist(), strict=True)
        return _one_by_one(seeds, [data[start : start + length].tobytes() for start, length in spans])
    long_rows = np.flatnonzero(lengths >= _LIBRARY_BYTES_MIN)
    if not long_rows.size:
        return _hash_short(seeds, data, starts, lengths)
    hashes = _hash_short(seeds, data, starts, np.where(lengths < _LIBRARY_BYTES_MIN, lengths, 0))
    texts = [data[starts[row] : starts[row] + lengths[row]].tobytes() for row in long_rows]
    hashes[long_rows] = _one_by_one(seeds[long_rows], texts)
    return hashes


def _one_by_one(seeds: Hashes, rows: Sequence[bytes]) -> Hashes:
    """Hash each row's bytes with the library."""
    hashes = [xxhash.xxh64_intdigest(row, seed) for row, seed in zip(rows, seeds.tolist(), strict=True)]
    return np.array(hashes, np.uint64)


def _hash_short(
    seeds: Hashes,
    data: npt.NDArray[np.uint8],
    starts: npt.NDArray[np.int64],
    lengths: npt.NDArray[np.int64],
) -> Hashes:
    """Rounds over all rows at once: 32-byte stripes, then 8-byte words, then one int, then single bytes."""
    words, ints = _at_every_byte(data, np.dtype("<u8")), _at_every_byte(data, np.dtype("<u4"))
    hashes = seeds + _PRIME_5
    striped = np.flatnonzero(lengths >= _STRIPE_BYTES)
    if striped.size:
        hashes[striped] = _hash_stripes(seeds[striped], words, starts[striped], lengths[striped] // _STRIPE_BYTES)
    hashes += lengths.view(np.uint64)

    word_starts = starts + (lengths & -32)
    word_counts = (lengths & 31) >> 3
    for turn in range(int(word_counts.max(initial=0))):
        rows = _where(word_counts > turn)
        hashes[rows] = _with_word(hashes[rows], words[word_starts[rows] + 8 * turn])

    rows = _where((lengths & 4) != 0)
    hashes[rows] = _with_int(hashes[rows], ints[starts[rows] + (lengths[rows] & -8)].astype(np.uint64))

    byte_starts = starts + (lengths & -4)
    byte_counts = lengths & 3
    for turn in range(int(byte_counts.max(initial=0))):
        rows = _where(byte_counts > turn)
        hashes[rows] = _with_byte(hashes[rows], data[byte_starts[rows] + turn].astype(np.uint64))
    return _avalanche(hashes)


def _hash_stripes(seeds: Hashes, words: Hashes, starts: npt.NDArray[np.int64], counts: npt.NDArray[np.int64]) -> Hashes:
    """Hash the first ``counts[i] >= 1`` stripes of each row, in four lanes that are then merged."""
    lanes = seeds + _LANE_STARTS
    lane_starts = starts + _LANE_OFFSETS
    for turn in range(int(counts.max())):
        rows = _where(counts > turn)
        stripe = words[lane_starts[:, rows] + _STRIPE_BYTES * turn]
        lanes[:, rows] = _rotated(lanes[:, rows] + stripe * _PRIME_2, 31) * _PRIME_1
    hashes = np.zeros_like(seeds)
    for lane, turns in zip(lanes, _LANE_TURNS, strict=True):
        hashes += _rotated(lane, turns)
    for lane in lanes:
        hashes = (hashes ^ _scrambled(lane)) * _PRIME_1 + _PRIME_4
    return hashes


def _at_every_byte(data: npt.NDArray[np.uint8], dtype: np.dtype[np.unsignedinteger]) -> Hashes:
    """A view of ``data`` whose element i is the integer that starts at byte i, aligned or not."""
    size = max(len(data) - dtype.itemsize + 1, 0)
    return np.ndarray((size,), dtype, buffer=data, strides=(1,))


def _where(mask: npt.NDArray[np.bool_]) -> slice | npt.NDArray[np.intp]:
    """An index of the true rows; when that is all of them, a slice, which copies nothing."""
    return slice(None) if mask.all() else np.flatnonzero(mask)


def _with_word(hashes: Hashes, words: Hashes) -> Hashes:
    return _rotated(hashes ^ _scrambled(words), 27) * _PRIME_1 + _PRIME_4


def _with_int(hashes: Hashes, ints: Hashes) -> Hashes:
    return _rotated(hashes ^ (ints * _PRIME_1), 23) * _PRIME_2 + _PRIME_3


def _with_byte(hashes: Hashes, values: Hashes) -> Hashes:
    return _rotated(hashes ^ (values * _PRIME_5), 11) * _PRIME_1


def _scrambled(words: Hashes) -> Hashes:
    return _rotated(words * _PRIME_2, 31) * _PRIME_1


def _rotated(words: Hashes, bits: int) -> Hashes:
    return (words << _BITS[bits]) | (words >> _BITS[64 - bits])


def _avalanche(hashes: Hashes) -> Hashes:
    hashes = (hashes ^ (hashes >> _BITS[33])) * _PRIME_2
    hashes = (hashes ^ (hashes >> _BITS[29])) * _PRIME_3
    return hashes ^ (hashes >> _BITS[32])
