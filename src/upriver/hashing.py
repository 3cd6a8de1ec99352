"""hash64: Spark's ``xxhash64`` (seed 42) of key columns, computed on Arrow columns.

Spark orders the lake's rows by this hash, so ours must be the same bit for bit; changing it is a change of the lake's
format. Spark gives a signed long: the same 64 bits are taken as unsigned here.

Each column is hashed with the hash of the columns before it as the seed, and a null leaves the hash as it was. So
``(null, 1)`` and ``(1, null)`` collide, in Spark too: a lookup must compare real keys.

XXH64 over numpy arrays gives one hash per row, each row with a seed of its own. Every function takes ``seeds`` (uint64,
one per row) and returns as many new hashes. Arithmetic is modulo 2**64, as numpy's is on uint64 arrays. The result for
a row is XXH64 of the row's bytes, integers being little-endian. The algorithm and the constants are those of the xxHash
specification.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from upriver.errors import KeyTypeError

Hashes = npt.NDArray[np.uint64]
"""Hashes of rows, one per row."""

# Arrays without a dimension: numpy takes half as long to read one as a number of its own.
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
_LANE_ROTATIONS = (1, 7, 12, 18)

_LIBRARY_BYTES_MIN = 256
"""Rows of at least so many bytes are hashed one by one: with so many rounds that costs less."""
_FEW_ROWS = 16
"""Up to so few rows are hashed one by one, because calls of numpy have a fixed cost."""


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
    for lane, turns in zip(lanes, _LANE_ROTATIONS, strict=True):
        hashes += _rotated(lane, turns)
    for lane in lanes:
        hashes = (hashes ^ _scrambled(lane)) * _PRIME_1 + _PRIME_4
    return hashes


def _at_every_byte(data: npt.NDArray[np.uint8], dtype: np.dtype[np.unsignedinteger]) -> Hashes:
    """A view of ``data`` whose element i is the integer that starts at byte i, aligned or not."""
    size = max(len(data) - dtype.itemsize + 1, 0)
    return np.ndarray((size,), dtype, buffer=data, strides=(1,))


def _where(mask: npt.NDArray[np.bool_]) -> slice | npt.NDArray[np.intp]:
    """An index of the true rows; if all rows are true, a slice, which copies nothing."""
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


HASH_SEED = np.uint64(42)
"""The hash of a row of nulls, and of no columns at all."""

HASH64_MAX = 2**64 - 1
"""The highest hash64."""

_BLOCK_ROWS = 16_384
"""Rows hashed at a time: the intermediate arrays stay in the processor's cache."""

_LONG_DECIMAL_DIGITS = 18
"""Spark keeps a decimal of at most so many digits in a long, and hashes it as a long."""

_DECIMAL_BYTES = 16

_TYPES_MAX = 256
"""Types whose hash functions are cached."""

_Mixer = Callable[[Hashes, pa.Array], Hashes]
_Cells = npt.NDArray[Any]
"""Numbers of four or eight bytes, as Spark hashes them."""
_CellsOf = Callable[[pa.Array], _Cells]
_PiecesOf = Callable[[pa.Array], Sequence[bytes]]
_INT_BYTES = 4
_Bits = TypeVar("_Bits", np.uint32, np.uint64)
_Number = TypeVar("_Number", bound=np.number)


def hash64(columns: Sequence[pa.Array | pa.ChunkedArray], rows: int | None = None) -> Hashes:
    """The hash64 of each row of ``columns``, in order.

    columns: the key's columns, of equal length; slices, chunks and dictionaries are fine.
    rows: how many rows there are; needed only when there are no columns.
    Raises KeyTypeError for a type that is no key (see :func:`check_hashable`) or for unequal lengths.
    """
    if rows is None and not columns:
        raise KeyTypeError("hash64 of no columns must be told how many rows there are")
    row_count = len(columns[0]) if rows is None else rows
    hashes = np.full(row_count, HASH_SEED)
    for place, column in enumerate(columns):
        mixer = _mixer_of(column.type, f"#{place}")
        if len(column) != row_count:
            raise KeyTypeError(f"column #{place} has {len(column)} values, not {row_count}")
        _mix_column(mixer, hashes, column)
    return hashes


def rehashed(hashes: Hashes, column: pa.Array | pa.ChunkedArray) -> Hashes:
    """The hash of each value of the column, with the hash of the columns before it as the seed."""
    found = hashes.copy()
    _mix_column(_mixer_of(column.type, "of a hash"), found, column)
    return found


def check_hashable(type: pa.DataType, column_name: str) -> None:
    """Raise KeyTypeError, naming the column, its type and a way out, if values of ``type`` cannot be a key."""
    _mixer_of(type, column_name)


def is_hashable_type(type: pa.DataType) -> bool:
    """Whether values of the type can be a key."""
    return _mixer(_decoded_type(type)) is not None


def is_plain_key_type(type: pa.DataType) -> bool:
    """Whether values of the type can be a key, and are neither structs nor arrays, whose hashes cost more."""
    return is_hashable_type(type) and not pa.types.is_nested(type)


def _mixer_of(type: pa.DataType, column_name: str) -> _Mixer:
    decoded = _decoded_type(type)
    mixer = _mixer(decoded)
    if mixer is None:
        raise KeyTypeError(f"column {column_name} of type {type} cannot be part of a key: {_way_out(decoded)}")
    return mixer


def _mix_column(mixer: _Mixer, hashes: Hashes, column: pa.Array | pa.ChunkedArray) -> None:
    """Replace each hash by the hash of the column's value seeded with it."""
    done = 0
    for chunk in column.chunks if isinstance(column, pa.ChunkedArray) else [column]:
        values = chunk.dictionary_decode() if pa.types.is_dictionary(chunk.type) else chunk
        for start in range(0, len(values), _BLOCK_ROWS):
            block = values.slice(start, _BLOCK_ROWS)
            seeds = hashes[done : done + len(block)]
            mixed = mixer(seeds, block)
            if block.null_count:
                mixed = np.where(_nulls_of(block), seeds, mixed)
            seeds[:] = mixed
            done += len(block)


def _nulls_of(block: pa.Array) -> npt.NDArray[np.bool_]:
    """Where a value is null. Not by ``to_numpy``, which allocates in a pool that the caller cannot choose."""
    return _values(block.is_null().cast(pa.uint8()), np.uint8).view(np.bool_)


def _decoded_type(type: pa.DataType) -> pa.DataType:
    return type.value_type if pa.types.is_dictionary(type) else type


# Mixers: one per type. A value under a null is arbitrary; it is hashed like the rest and the result discarded.


def _boolean_cells(block: pa.Array) -> _Cells:
    return _byte_cells(block.cast(pa.int8()))


def _byte_cells(block: pa.Array) -> _Cells:
    return _values(block, np.int8).astype(np.int32)


def _short_cells(block: pa.Array) -> _Cells:
    return _values(block, np.int16).astype(np.int32)


def _int_cells(block: pa.Array) -> _Cells:
    return _values(block, np.int32)


def _long_cells(block: pa.Array) -> _Cells:
    return _values(block, np.int64)


def _float_cells(block: pa.Array) -> _Cells:
    return _canonical(_values(block, np.uint32), infinity=0x7F800000, nan=0x7FC00000)


def _double_cells(block: pa.Array) -> _Cells:
    bits = _values(block, np.uint64)
    return _canonical(bits, infinity=0x7FF0000000000000, nan=0x7FF8000000000000)


def _mixer_of_cells(cells: _CellsOf) -> _Mixer:
    """A number is hashed as the four or eight bytes of its cell."""

    def mix(seeds: Hashes, block: pa.Array) -> Hashes:
        found = cells(block)
        return hash_ints(seeds, found) if found.itemsize == _INT_BYTES else hash_longs(seeds, found)

    return mix


def _canonical(bits: npt.NDArray[_Bits], infinity: int, nan: int) -> npt.NDArray[_Bits]:
    """The bits that Spark hashes: -0.0 counts as 0.0, and all NaNs as one. Float arithmetic would warn of some NaNs."""
    magnitude = bits << 1
    return np.where(magnitude > infinity << 1, bits.dtype.type(nan), np.where(magnitude == 0, magnitude, bits))


def _mix_decimal(seeds: Hashes, block: pa.Array) -> Hashes:
    """A decimal is its unscaled number: a long, or with too many digits for a long, its two's complement bytes, as few
    as hold it, the highest first."""
    low, high = _values(block, np.uint64, per_row=2).reshape(-1, 2).T
    if block.type.precision <= _LONG_DECIMAL_DIGITS:
        return hash_longs(seeds, low)
    data = np.stack([high, low], axis=1).astype(">u8").view(np.uint8).ravel()
    lengths = _twos_complement_bytes(low, high)
    ends = np.arange(1, len(block) + 1) * _DECIMAL_BYTES
    return hash_bytes(seeds, data, ends - lengths, lengths)


def _twos_complement_bytes(low: Hashes, high: Hashes) -> npt.NDArray[np.int64]:
    """The least number of bytes for each signed 128-bit number: n bytes hold 8n - 1 bits and the sign."""
    negative = high >> 63 == 1
    low, high = np.where(negative, ~low, low), np.where(negative, ~high, high)
    lengths = np.ones(len(low), np.int64)
    for bits in range(7, 64, 8):
        lengths += (high > 0) | (low >> bits > 0)
        lengths += high >> bits > 0
    return lengths


def _mix_string(seeds: Hashes, block: pa.Array) -> Hashes:
    return _mix_spans(seeds, block, np.int32)


def _mix_large_string(seeds: Hashes, block: pa.Array) -> Hashes:
    return _mix_spans(seeds, block, np.int64)


def _mix_spans(seeds: Hashes, block: pa.Array, offset_type: type[np.int32] | type[np.int64]) -> Hashes:
    _, offset_buffer, data = block.buffers()
    first_offset = block.offset * np.dtype(offset_type).itemsize
    offsets = np.frombuffer(offset_buffer, offset_type, len(block) + 1, first_offset).astype(np.int64)
    text = np.frombuffer(data or b"", np.uint8)
    return hash_bytes(seeds, text, offsets[:-1], np.diff(offsets))


def _mixer_of_struct(parts: Sequence[_Mixer]) -> _Mixer:
    """A struct is hashed field by field; a field that is null leaves the hash as it is."""

    def mix(seeds: Hashes, block: pa.Array) -> Hashes:
        hashes = seeds.copy()
        for place, mixer in enumerate(parts):
            _mix_column(mixer, hashes, block.field(place))
        return hashes

    return mix


def _mixer_of_list(mixer: _Mixer, pieces: _PiecesOf | None) -> _Mixer:
    """An array is hashed element by element; an element that is null leaves the hash as it is. pieces: the bytes of
    each element, if that is known: the rest of few long arrays is hashed array by array."""

    def mix(seeds: Hashes, block: pa.Array) -> Hashes:
        offsets = np.frombuffer(block.buffers()[1], np.int32, len(block) + 1, block.offset * 4).astype(np.int64)
        lengths = np.where(_nulls_of(block), 0, np.diff(offsets))
        hashes = seeds.copy()
        for turn in range(int(lengths.max(initial=0))):
            rows = np.flatnonzero(lengths > turn)
            if pieces is not None and len(rows) <= _FEW_ROWS:
                for row in rows.tolist():
                    rest = block.values.slice(offsets[row] + turn, lengths[row] - turn)
                    hashes[row] = _chained(int(hashes[row]), pieces(rest), _nulls_of(rest))
                break
            found = hashes[rows]
            _mix_column(mixer, found, block.values.take(pa.array(offsets[rows] + turn)))
            hashes[rows] = found
        return hashes

    return mix


def _chained(seed: int, pieces: Sequence[bytes], nulls: npt.NDArray[np.bool_]) -> int:
    """The hash of the pieces that are not null, one after the other."""
    for place in np.flatnonzero(~nulls).tolist():
        seed = xxhash.xxh64_intdigest(pieces[place], seed)
    return seed


def _pieces_of(type: pa.DataType) -> _PiecesOf | None:
    """What is hashed of each value, if that is known for the type."""
    if type in (pa.string(), pa.binary()):
        return lambda block: block.cast(pa.binary()).to_pylist()
    cells = next((cells for accepts, cells in _CELLS if accepts(type)), None)
    return None if cells is None else lambda block: _cell_pieces(cells(block))


def _cell_pieces(cells: _Cells) -> list[bytes]:
    data, width = cells.tobytes(), cells.itemsize
    return [data[start : start + width] for start in range(0, len(data), width)]


def _values(block: pa.Array, dtype: type[_Number], per_row: int = 1) -> npt.NDArray[_Number]:
    """A fixed-width block's values as they lie in its buffer, nulls ignored, ``per_row`` numbers for each row."""
    row_bytes = np.dtype(dtype).itemsize * per_row
    return np.frombuffer(block.buffers()[1], dtype, len(block) * per_row, block.offset * row_bytes)


def _is_micros(type: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(type) or pa.types.is_duration(type)) and type.unit == "us"


_CELLS: tuple[tuple[Callable[[pa.DataType], bool], _CellsOf], ...] = (
    (pa.types.is_boolean, _boolean_cells),
    (pa.types.is_int8, _byte_cells),
    (pa.types.is_int16, _short_cells),
    (pa.types.is_int32, _int_cells),
    (pa.types.is_int64, _long_cells),
    (pa.types.is_float32, _float_cells),
    (pa.types.is_float64, _double_cells),
    (pa.types.is_date32, _int_cells),
    (_is_micros, _long_cells),
)
_MIXERS: tuple[tuple[Callable[[pa.DataType], bool], _Mixer], ...] = (
    *((accepts, _mixer_of_cells(cells)) for accepts, cells in _CELLS),
    (pa.types.is_decimal128, _mix_decimal),
    (pa.types.is_string, _mix_string),
    (pa.types.is_large_string, _mix_large_string),
    (pa.types.is_binary, _mix_string),
    (pa.types.is_large_binary, _mix_large_string),
)


@lru_cache(_TYPES_MAX)
def _mixer(type: pa.DataType) -> _Mixer | None:
    if pa.types.is_struct(type):
        parts = [_mixer(field.type) for field in type]
        known = [part for part in parts if part is not None]
        return _mixer_of_struct(known) if known and len(known) == len(parts) else None
    if pa.types.is_list(type):
        element = _mixer(type.value_type)
        return None if element is None else _mixer_of_list(element, _pieces_of(type.value_type))
    return next((mixer for accepts, mixer in _MIXERS if accepts(type)), None)


def _way_out(type: pa.DataType) -> str:
    if pa.types.is_nested(type):
        return "a MAP cannot be compared: key on a column that holds one of its values, or its to_json as a string"
    if pa.types.is_timestamp(type):
        return "cast it to timestamp[us]"
    if pa.types.is_unsigned_integer(type):
        return "cast it to a signed integer"
    return "cast it to a boolean, signed integer, float, double, decimal128, string, binary, date32 or timestamp[us]"


def murmur_mixed(words: Any, hashes: Any) -> Any:
    """One round of Murmur3, of four bytes each, as numpy's uint32."""
    words = _rotated_words(words * np.uint32(0xCC9E2D51), 15) * np.uint32(0x1B873593)
    return _rotated_words(hashes ^ words, 13) * np.uint32(5) + np.uint32(0xE6546B64)


def _rotated_words(words: Any, bits: int) -> Any:
    return (words << np.uint32(bits)) | (words >> np.uint32(32 - bits))


def murmur_finished(hashes: Any, lengths: Any) -> Any:
    """Murmur3 of what was mixed, ``lengths`` bytes."""
    hashes = hashes ^ lengths
    hashes = (hashes ^ (hashes >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    hashes = (hashes ^ (hashes >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return hashes ^ (hashes >> np.uint32(16))
