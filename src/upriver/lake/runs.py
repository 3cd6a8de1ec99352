"""The rows of one run, by place or by key: a reader reads only the bytes of these rows, and checks all of them.

ColumnBytes: where the rows of an Arrow column lie in its file: the ranges of bytes for given ranges of rows.

VerifiedFile: a run's Arrow file in memory of this process, filled block by block; each block is checked when it is
read. Nothing is mapped. A mapped file may change, or end earlier, while a reader looks at it: the reader then sees
other bytes than were checked, or its process ends by SIGBUS. Of a long file only the needed blocks are read. They lie
in memory where they lie in the file, and the other blocks take no memory.

SortedHashes: the hashes of a run, in ascending order. A search reads only the blocks that it needs. Hashes are spread
evenly, so a search guesses the place of a hash from its value: it reads about two blocks, where bisecting reads ten.
Rows of one key lie together, and there may be very many of them: after some guesses, a search bisects.
"""

import mmap
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from upriver.engine.batch import Batch
from upriver.errors import CorruptFile
from upriver.hashing import Hashes
from upriver.state.runs import (
    Checksums,
    IsKept,
    RunInfo,
    check_blocks,
    check_length,
    checked_content,
    cut,
    cut_into_blocks,
    decode_checksums,
    decode_content,
    ends_in,
    gathered,
    grouped,
    is_never_kept,
)
from upriver.state.schemas import SchemaChange, places_of
from upriver.state.vectors import Positions, spread, true_at

Rows = TypeVar("Rows", int, Positions)
"""A row, or many."""
Offsets = npt.NDArray[np.int32] | npt.NDArray[np.int64]
Width = type[np.int32] | type[np.int64]
"""Of an offset."""
Fixed = tuple[int, int]
"""A buffer of one number of bits for each row: its first byte in the file, and the bits per row."""

Copied = Callable[[int, int], pa.Buffer]
"""``copied(start, end)``: these bytes of the file."""
ALIGNED_ROWS = 64
"""The first row of a copy is a multiple of this, so that it begins with a whole byte of each buffer."""

_TEXTS: dict[pa.DataType, Width] = {
    pa.string(): np.int32,
    pa.binary(): np.int32,
    pa.large_string(): np.int64,
    pa.large_binary(): np.int64,
}


def is_known(type: pa.DataType) -> bool:
    """Whether ``ColumnBytes`` knows where the rows of such a column lie."""
    if _is_list(type) or pa.types.is_struct(type):
        return all(is_known(type.field(number).type) for number in range(type.num_fields))
    return type in _TEXTS or pa.types.is_null(type) or _is_fixed(type)


def _is_list(type: pa.DataType) -> bool:
    return bool(pa.types.is_list(type) or pa.types.is_map(type) or pa.types.is_large_list(type))


def _is_fixed(type: pa.DataType) -> bool:
    is_one = pa.types.is_primitive(type) or pa.types.is_decimal(type) or pa.types.is_fixed_size_binary(type)
    return bool(is_one and not type.num_fields)


@dataclass(frozen=True, slots=True)
class ColumnBytes:
    """A column, or a child of one.

    validity, values: its buffers with a number of bits for each row; ``values`` has the offsets of a text or a list.
    offsets: where each row's values begin in the children, if these have other rows; right where the file is filled.
    children: the nested columns.
    """

    type: pa.DataType
    validity: Fixed | None = None
    values: Fixed | None = None
    offsets: Offsets | None = None
    children: tuple["ColumnBytes", ...] = ()

    @classmethod
    def of(cls, column: pa.Array, base: int) -> "ColumnBytes":
        """column: of a known type, as it was decoded. base: address of the file's first byte."""
        type, buffers = column.type, column.buffers()
        if pa.types.is_null(type):
            return cls(type)
        validity = _fixed(buffers[0], 1, base)
        if type in _TEXTS:
            body = cls(pa.uint8(), None, _fixed(buffers[2], 8, base))
            return cls._of_many(type, validity, buffers[1], body, base)
        if _is_list(type):
            return cls._of_many(type, validity, buffers[1], cls.of(column.values, base), base)
        if pa.types.is_struct(type):
            children = (column.field(number) for number in range(type.num_fields))
            return cls(type, validity, None, None, tuple(cls.of(child, base) for child in children))
        return cls(type, validity, _fixed(buffers[1], type.bit_width, base))

    @classmethod
    def _of_many(
        cls, type: pa.DataType, validity: Fixed | None, offsets: pa.Buffer | None, below: "ColumnBytes", base: int
    ) -> "ColumnBytes":
        width = _width(type)
        if offsets is None or not offsets.size:
            return cls(type, validity, None, np.zeros(1, np.int32), (below,))
        # A row also needs the offset of the next row.
        fixed = _fixed(offsets, 8 * np.dtype(width).itemsize, base)
        return cls(type, validity, fixed, _numbers(offsets, width), (below,))

    def own_bytes(self, start: Rows, end: Rows) -> list[tuple[Rows, Rows]]:
        """The ranges of bytes of the rows from ``start`` to before ``end``, without the children; for many ranges of
        rows, each entry has many ranges."""
        behind = end if self.offsets is None else end + 1
        fixed = (each for each in (self.validity, self.values) if each is not None)
        return [(first + (start * bits >> 3), first + (behind * bits + 7 >> 3)) for first, bits in fixed]

    def below(self, start: int, end: int) -> Iterator[tuple["ColumnBytes", int, int]]:
        """The children, with the range of their rows that belong to these rows, whose own bytes are filled."""
        if not self.children:
            return
        if self.offsets is not None:
            start, end = int(self.offsets[start]), int(self.offsets[end])
        for child in self.children:
            if start < end:
                yield child, start, end

    def below_many(self, start: Positions, end: Positions) -> Iterator[tuple["ColumnBytes", Positions, Positions]]:
        """The same of many ranges."""
        if not self.children:
            return
        if self.offsets is not None:
            start, end = self.offsets[start].astype(np.int64), self.offsets[end].astype(np.int64)
            has_rows = start < end
            start, end = start[has_rows], end[has_rows]
        for child in self.children:
            if len(start):
                yield child, start, end

    def rows(self, start: int, end: int, copied: Copied) -> pa.Array:
        """The rows from ``start`` to before ``end``, made only of bytes that ``copied`` gives."""
        if start >= end:
            return pa.array([], self.type)
        if pa.types.is_null(self.type):
            return pa.nulls(end - start)
        if pa.types.is_struct(self.type) and self.validity is None:  # a map ignores its entries' offset
            children = [child.rows(start, end, copied) for child in self.children]
            return pa.Array.from_buffers(self.type, end - start, [None], children=children)
        first = start // ALIGNED_ROWS * ALIGNED_ROWS
        buffers, children = [_copy(self.validity, first, end, copied)], []
        if self.offsets is not None:
            offsets, low, high = self._offsets_of(start, end, copied)
            buffers.append(offsets)
            below = self.children[0]
            if self.type in _TEXTS:
                buffers.append(_copy(below.values, low, high, copied) or pa.py_buffer(b""))
            else:
                children.append(below.rows(low, high, copied))
        elif pa.types.is_struct(self.type):
            children += [child.rows(first, end, copied) for child in self.children]
        else:
            buffers.append(_copy(self.values, first, end, copied))
        rows = pa.Array.from_buffers(self.type, end - first, buffers, children=children or None)
        return rows.slice(start - first)

    def _offsets_of(self, start: int, end: int, copied: Copied) -> tuple[pa.Buffer, int, int]:
        """The offsets of the aligned rows up to ``end``, from 0 on; rows before ``start`` are empty. Also the range of
        the child's rows that belong to the rows from ``start`` on."""
        first = start // ALIGNED_ROWS * ALIGNED_ROWS
        encoded = _copy(self.values, first, end + 1, copied)
        assert encoded is not None
        offsets = _numbers(encoded, _width(self.type))
        low, high = int(offsets[start - first]), int(offsets[-1])
        return pa.py_buffer(np.maximum(offsets, low) - low), low, high


def _fixed(buffer: pa.Buffer | None, bits: int, base: int) -> Fixed | None:
    return None if buffer is None or not buffer.size else (buffer.address - base, bits)


def _copy(fixed: Fixed | None, start: int, end: int, copied: Copied) -> pa.Buffer | None:
    """The bytes of a buffer for these rows; the first row begins with a byte."""
    if fixed is None:
        return None
    first, bits = fixed
    return copied(first + (start * bits >> 3), first + (end * bits + 7 >> 3))


def _width(type: pa.DataType) -> Width:
    """The numpy type of an offset."""
    return _TEXTS.get(type) or (np.int64 if pa.types.is_large_list(type) else np.int32)


def _numbers(offsets: pa.Buffer, width: Width) -> Offsets:
    return np.frombuffer(offsets, np.int32) if width is np.int32 else np.frombuffer(offsets, np.int64)


WHOLE_BYTES_MAX = 512 << 10
"""A file of at most so many bytes is read at once: that takes less time than reading some of its blocks."""
UNASKED_BYTES_MAX = 64 << 20
"""A file that is to have more bytes is asked for its length before memory is allocated for it."""
REMEDY = "Restore the file as it was, or start on another root"
"""Advice for damage that has no other remedy."""

ReadInto = Callable[[Iterable[tuple[int, memoryview]]], int]
"""As ``Files.read_into``, of one file."""

HUGE_BYTES = 2 << 20
"""Neighbouring blocks of so many bytes are put into huge pages, which takes less than half the time. Fewer are not: one
block would take a whole page."""

_NO_RESERVE: int = getattr(mmap, "MAP_NORESERVE", 0x4000)
"""Untouched pages then do not count as memory. Python has the name since 3.13."""


@contextmanager
def saying_what_helps() -> Iterator[None]:
    """Add advice to the error of a damaged file, unless it has some already."""
    try:
        yield
    except CorruptFile as error:
        if str(error).endswith(REMEDY):
            raise
        raise CorruptFile(f"{error}. {REMEDY}") from error


class VerifiedFile:
    """Used by one thread.

    content: of the length of the Arrow file; right only where it was filled. filled_bytes: how much was filled.
    """

    def __init__(
        self,
        info: RunInfo,
        read_into: ReadInto,
        request_bytes_min: int = 1,
        whole_bytes_max: int = WHOLE_BYTES_MAX,
    ) -> None:
        """request_bytes_min: fewer bytes take as long to read. whole_bytes_max: a longer file is filled as it is used,
        unless its blocks have no checksums. Raises CorruptFile."""
        self._info = info
        self._read_into = read_into
        self._request_blocks = -(-request_bytes_min // info.block_bytes) if info.block_bytes else 1
        self._checksums: Checksums = np.empty(0, np.uint64)
        self._missing = bytearray()
        """1 for each block that is not filled."""
        self.is_whole = not info.block_bytes or info.bytes <= whole_bytes_max
        if info.bytes > UNASKED_BYTES_MAX:
            with saying_what_helps():
                check_length(info, read_into([]))
        if self.is_whole:
            self._read_all()
        else:
            self._begin()

    @saying_what_helps()
    def _read_all(self) -> None:
        encoded = np.empty(self._info.bytes, np.uint8)  # reuses memory that the process has already, if it has any
        check_length(self._info, self._read_into([(0, encoded.data)]))
        self.content = checked_content(self._info, pa.py_buffer(encoded))
        self.filled_bytes = self._info.bytes

    @saying_what_helps()
    def _begin(self) -> None:
        info = self._info
        stored = bytearray(info.bytes - info.arrow_bytes)
        check_length(info, self._read_into([(info.arrow_bytes, memoryview(stored))]))
        self._checksums = decode_checksums(info, stored)
        self._missing = bytearray(b"\1") * info.blocks
        self._memory = mmap.mmap(-1, info.arrow_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE)
        self._advise(mmap.MADV_NOHUGEPAGE, 0, info.arrow_bytes)
        self.content = pa.py_buffer(self._memory)
        self.filled_bytes = 0

    def _advise(self, advice: int, start: int, end: int) -> None:
        """start: of a page."""
        with suppress(OSError):  # a system without huge pages
            self._memory.madvise(advice, start, end - start)

    @saying_what_helps()
    def copied(self, start: int, end: int) -> pa.Buffer:
        """Verified bytes of the file, in memory of their own. For many bytes that lie together and are used once.
        Raises CorruptFile."""
        if self.is_whole:
            return self.content.slice(start, end - start)
        size = self._info.block_bytes
        first, behind = start // size, -(-end // size)
        memory = np.empty(min(behind * size, self._info.arrow_bytes) - first * size, np.uint8)
        content = memory.data
        check_length(self._info, self._read_into([(first * size, content)]))
        self._check(range(first, behind), cut_into_blocks(content, size), self._checksums[first:behind])
        return pa.py_buffer(memory).slice(start - first * size, end - start)

    def fill(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Fill these ranges of bytes: for each its first byte, and the byte behind its last. Raises CorruptFile."""
        if self.is_whole:
            return
        blocks: set[int] = set()
        for start, end in ranges:
            first, last = start // self._info.block_bytes, (end - 1) // self._info.block_bytes
            if self._missing.find(1, first, last + 1) >= 0:
                blocks.update(range(first, last + 1))
        if blocks:
            self._fill(blocks)

    def fill_many(self, starts: Positions, ends: Positions) -> None:
        """The same of very many ranges."""
        if self.is_whole:
            return
        first, last = starts // self._info.block_bytes, (ends - 1) // self._info.block_bytes
        is_asked = np.zeros(len(self._missing), np.bool_)
        is_asked[spread(first, np.maximum(last - first + 1, 0))] = True
        is_asked &= np.frombuffer(self._missing, np.bool_)
        if is_asked.any():
            self._fill(true_at(is_asked).tolist())

    @saying_what_helps()
    def _fill(self, blocks: Iterable[int]) -> None:
        if (together := self._request_blocks) > 1:
            starts = {block // together * together for block in blocks}
            blocks = (block for start in starts for block in range(start, min(start + together, len(self._missing))))
        missing = sorted(block for block in blocks if self._missing[block])
        size, length, content = self._info.block_bytes, self._info.arrow_bytes, memoryview(self._memory)
        parts = [(first * size, min(behind * size, length)) for first, behind in _neighbours(missing)]
        for start, end in parts:
            if end - start >= HUGE_BYTES:
                self._advise(mmap.MADV_HUGEPAGE, -(-start // mmap.PAGESIZE) * mmap.PAGESIZE, end)
        check_length(self._info, self._read_into([(start, content[start:end]) for start, end in parts]))
        contents = (content[block * size : (block + 1) * size] for block in missing)
        self._check(missing, contents, self._checksums[missing])
        for block in missing:
            self._missing[block] = 0
        self.filled_bytes += sum(end - start for start, end in parts)

    def _check(self, blocks: Sequence[int], contents: Iterable[memoryview], checksums: Checksums) -> None:
        check_blocks(self._info, blocks, contents, checksums.tolist())


def _neighbours(blocks: Sequence[int]) -> list[tuple[int, int]]:
    """(first block, block behind the last) of each run of consecutive blocks; blocks are ascending."""
    runs: list[tuple[int, int]] = []
    first = behind = -1
    for block in blocks:
        if block != behind:
            if behind >= 0:
                runs.append((first, behind))
            first = block
        behind = block + 1
    return [*runs, (first, behind)]


GUESSES_MAX = 4
"""Blocks that one search guesses; then it bisects the rest."""
HASH_BYTES = 8
"""Blocks end between two hashes: blocks and hashes begin at a multiple of so many bytes."""
_LAST = 2**64 - 1
"""The highest hash64."""


class SortedHashes:
    """Used by one thread. hash64: right only where it was filled. Each method that searches raises CorruptFile."""

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
        """Fill these hashes."""
        self._file.fill([(self._byte(start), self._byte(end))])

    def _byte(self, row: int) -> int:
        return self._first_byte + row * HASH_BYTES

    @property
    def rows_of_block(self) -> int:
        """How many hashes one read fills at least."""
        return max(1, self._block_bytes // HASH_BYTES)

    def is_at(self, row: int, key: int) -> bool:
        """Whether that hash is the key."""
        if row >= self._rows:
            return False
        if not self._is_whole:
            self.fill(row, row + 1)
        return bool(self._view[row] == key)

    def start_of(self, key: int, low: int, high: int) -> int:
        """The first row from ``low`` to before ``high`` whose hash is not below the key; ``high`` without such a
        row."""
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
        """The first row from ``low`` to before ``high`` whose hash is above the key; ``high`` without such a row."""
        if self._is_whole:
            return bisect_right(self._view, key, low, high)
        return high if key == _LAST else self.start_of(key + 1, low, high)

    def end_of_key(self, row: int, end: int) -> int:
        """As ``EndOfKey``."""
        self.fill(row, row + 1)
        return self.end_of(self._view[row], row + 1, end)

    def _guess(self, key: int, low: int, high: int) -> int:
        """The expected place of the key between two rows, if the hashes between them are spread evenly."""
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
        """As ``start_of``, for many keys at a time, each from its ``low`` on."""
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
        """The same if all hashes that may be compared are filled; ``high`` for a key above all of them."""
        while (is_left := low < high).any():
            middle = (low + high) >> 1
            is_below = (self.hash64[middle] < keys) & is_left
            low, high = np.where(is_below, middle + 1, low), np.where(is_left & ~is_below, middle, high)
        return low


STRETCH_BYTES_MAX = 8 << 20
"""Bytes of a file that a scan reads at a time, or as many more as the rows of one key take. They stay in memory as long
as any of their rows are in use."""
FEW_KEYS_MAX = 8
"""Up to so many keys are looked up one by one: with numpy, each run would cost more than all of them."""
GAP_ROWS_MAX = 4_096
"""A scan also reads gaps of up to so many rows, and leaves them out."""

_ARROW_HEAD_BYTES = 8
_ARROW_TAIL_BYTES = 10
"""Lengths in an Arrow file: its magic and padding; the length of its footer, and its magic."""


Tell = Callable[[int], None]
"""Is told how many rows are about to be read."""


def tell_no_one(_rows: int) -> None:
    """For reads that nothing waits for."""


class RunReader:
    """Used by one thread. Each method raises CorruptFile, which names the file, if bytes that it needs are damaged.

    The rows that it gives lie in memory of this process: later changes of the file do not affect them. All have the
    requested schema, also where the file has another one; the reader skips columns that are not requested.
    """

    def __init__(self, info: RunInfo, schema: pa.Schema, file: VerifiedFile, is_kept: IsKept = is_never_kept) -> None:
        """schema: of the rows, with their hash64. is_kept: whether the file may have another schema
        (lake.known_schemas_only)."""
        self._info = info
        self._schema = schema
        self._user_schema = pa.schema(list(schema)[1:])
        self._file = file
        self._is_kept = is_kept
        if not file.is_whole:
            self._fill_metadata()
        self._decode()

    @saying_what_helps()
    def _decode(self) -> None:
        rows = decode_content(self._info, self._file.content, self._schema, self._is_kept)
        is_newest = rows.schema.equals(self._schema)
        self._rows = rows if is_newest else rows.select(places_of(self._schema.names, rows.schema))
        """In the file's schema, and right only where it was filled."""
        self._change = None if is_newest else SchemaChange.between(self._rows.schema, self._schema)
        base = self._file.content.address
        self._columns: tuple[ColumnBytes, ...] = ()
        if not self._file.is_whole:
            self._columns = tuple(ColumnBytes.of(column, base) for column in self._rows.columns)
        hash64 = self._rows.column(0)
        first_byte = hash64.buffers()[1].address - base if len(hash64) else 0
        self._hashes = SortedHashes(self._file, hash64.to_numpy(), first_byte, self._info.block_bytes)

    def _fill_metadata(self) -> None:
        """The parts of an Arrow file before and behind its columns."""
        end = self._info.arrow_bytes
        footer = self._number(end - _ARROW_TAIL_BYTES, end)
        self._fill(end - _ARROW_TAIL_BYTES - footer, end)
        place = _ARROW_HEAD_BYTES
        for _message in ("schema", "record batch"):
            place += _ARROW_HEAD_BYTES + self._number(place + 4, place + _ARROW_HEAD_BYTES)
            self._fill(0, place)

    def _number(self, start: int, end: int) -> int:
        self._fill(start, end)
        return int.from_bytes(memoryview(self._file.content)[start : start + 4], "little")

    def _fill(self, start: int, end: int) -> None:
        self._file.fill([(start, end)])

    def __len__(self) -> int:
        return self._info.rows

    @property
    def filled_bytes(self) -> int:
        """How many of the file's bytes were read and lie in memory."""
        return self._file.filled_bytes

    def all_rows(self) -> pa.RecordBatch:
        """All rows, with their hash64."""
        return self._part(0, len(self))

    def scan(
        self, slices: Sequence[tuple[int, int]], rows_max: int, stretch_bytes: int = STRETCH_BYTES_MAX
    ) -> Iterator[pa.RecordBatch]:
        """The rows of these ascending slices, with their hash64, in batches of about ``rows_max``. No batch ends
        between two rows of one key. Small neighbouring slices come as one batch. At most one stretch of them is in
        memory, of about ``stretch_bytes``, besides the batches that are still in use."""
        for near in (
            [slices] if self._file.is_whole else self._near(slices, self._stretch_rows(rows_max, stretch_bytes))
        ):
            first, end = near[0][0], sum(near[-1])
            part = self._part(first, end)
            end_of_key = ends_in(part.column(0).to_numpy())
            for group in grouped([(start - first, count) for start, count in near], rows_max, end_of_key):
                yield gathered(part, group)

    def _near(self, slices: Iterable[tuple[int, int]], rows_max: int) -> Iterator[list[tuple[int, int]]]:
        """The same slices in groups of near neighbours, each of about so many rows."""
        near: list[tuple[int, int]] = []
        for start, count in cut(slices, rows_max, self._hashes.end_of_key):
            if near and (start - sum(near[-1]) > GAP_ROWS_MAX or start + count - near[0][0] > rows_max):
                yield near
                near = []
            near.append((start, count))
        if near:
            yield near

    def batches(self, rows_max: int) -> Iterator[pa.RecordBatch]:
        """All rows in order, with their hash64, in batches of at most ``rows_max``, which may end anywhere."""
        stretch_rows = self._stretch_rows(rows_max, STRETCH_BYTES_MAX)
        for first in range(0, len(self), stretch_rows):
            part = self._part(first, min(first + stretch_rows, len(self)))
            for start in range(0, len(part), rows_max):
                yield part.slice(start, rows_max)

    def _stretch_rows(self, rows_max: int, stretch_bytes: int) -> int:
        return max(rows_max, stretch_bytes * len(self) // max(1, self._info.bytes))

    def _part(self, first: int, end: int) -> pa.RecordBatch:
        """These rows, in memory of their own."""
        if self._file.is_whole:
            return self._as_asked(self._rows.slice(first, end - first))
        columns = [column.rows(first, end, self._file.copied) for column in self._columns]
        return self._as_asked(pa.RecordBatch.from_arrays(columns, schema=self._rows.schema))

    def _as_asked(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Rows in the file's schema, in the schema that was asked for."""
        return rows if self._change is None else self._change.of(rows)

    def rows_of(self, keys: Hashes, tell: Tell = tell_no_one) -> list[Batch]:
        """A copy of the rows of the keys with these hash64 (ascending, each once), without the column of their hash64,
        as one batch; an empty list if there are none. tell: is told how many rows there are, before they are read."""
        starts, ends = self._hashes.places_of(keys)
        if not len(starts):
            return []
        tell(int((ends - starts).sum()))
        self._fill_many(starts, ends)
        return [self._batch(self._rows.take(pa.array(spread(starts, ends - starts))))]

    def rows_of_few(self, keys: Sequence[int], tell: Tell = tell_no_one) -> list[Batch]:
        """The same of few keys."""
        places = self._few_places(keys)
        if not places:
            return []
        tell(sum(end - start for start, end in places))
        self._fill_rows(places)
        starts, ends = np.array(places, np.int64).T
        return [self._batch(self._rows.take(pa.array(spread(starts, ends - starts))))]

    def slices_of(self, keys: Sequence[int], tell: Tell = tell_no_one) -> list[Batch]:
        """The same, one slice for each key that has rows. The slices are no copies: they keep everything that was read
        of the run in memory."""
        places = self._few_places(keys)
        if not places:
            return []
        tell(sum(end - start for start, end in places))
        self._fill_rows(places)
        return [self._batch(self._rows.slice(start, end - start)) for start, end in places]

    def _batch(self, rows: pa.RecordBatch) -> Batch:
        rows = self._as_asked(rows)
        return Batch(pa.RecordBatch.from_arrays(rows.columns[1:], schema=self._user_schema), rows.column(0).to_numpy())

    def _few_places(self, keys: Sequence[int]) -> list[tuple[int, int]]:
        """(first row, row behind the last) of each of the keys that has rows."""
        hashes, rows, behind = self._hashes, self._info.rows, 0
        places: list[tuple[int, int]] = []
        for key in keys:
            start = hashes.start_of(key, behind, rows)
            if hashes.is_at(start, key):
                behind = hashes.end_of(key, start + 1, rows)
                places.append((start, behind))
        return places

    def _fill_rows(self, places: Iterable[tuple[int, int]]) -> None:
        """Fill all columns' bytes of these rows: from the first of each to before the second. The place of a text or a
        list is known once its offsets are filled: each pass fills what is known by then."""
        pending = [(column, start, end) for start, end in places if start < end for column in self._columns]
        while pending:
            self._file.fill(bytes_of for part, start, end in pending for bytes_of in part.own_bytes(start, end))
            pending = [below for part, start, end in pending for below in part.below(start, end)]

    def _fill_many(self, starts: Positions, ends: Positions) -> None:
        """The same for very many scattered rows."""
        pending = [(column, starts, ends) for column in self._columns if len(starts)]
        while pending:
            ranges = [bytes_of for part, start, end in pending for bytes_of in part.own_bytes(start, end)]
            none = np.empty(0, np.int64)
            self._file.fill_many(
                np.concatenate([none, *(first for first, _ in ranges)]),
                np.concatenate([none, *(last for _, last in ranges)]),
            )
            pending = [below for part, start, end in pending for below in part.below_many(start, end)]
