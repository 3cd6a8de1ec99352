"""Where the rows of an Arrow column lie in its file: which ranges of bytes make up given ranges of rows."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from upriver.state.vectors import Positions

Rows = TypeVar("Rows", int, Positions)
"""A row, or many."""
Offsets = npt.NDArray[np.int32] | npt.NDArray[np.int64]
Width = type[np.int32] | type[np.int64]
"""Of an offset."""
Fixed = tuple[int, int]
"""A buffer of one number of bits for each row: its first byte in the file, and the bits."""

Copied = Callable[[int, int], pa.Buffer]
"""``copied(start, end)``: these bytes of the file."""
ALIGNED_ROWS = 64
"""A copy of rows begins with one whose number is a multiple of this: with a whole byte of each buffer."""

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
    """A column, or what lies below one.

    validity, values: its buffers that have so many bits for each row; the second has the offsets of a text or a list.
    offsets: where each row's values begin in what is below, if that has other rows; right where the file is filled.
    children: what is below.
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
        # A row needs the offset of the next one, too.
        fixed = _fixed(offsets, 8 * np.dtype(width).itemsize, base)
        return cls(type, validity, fixed, _numbers(offsets, width), (below,))

    def own_bytes(self, start: Rows, end: Rows) -> list[tuple[Rows, Rows]]:
        """The ranges of bytes of the rows from ``start`` to before ``end``, but for what is below; of many ranges of
        rows, with many ranges in each entry."""
        behind = end if self.offsets is None else end + 1
        fixed = (each for each in (self.validity, self.values) if each is not None)
        return [(first + (start * bits >> 3), first + (behind * bits + 7 >> 3)) for first, bits in fixed]

    def below(self, start: int, end: int) -> Iterator[tuple["ColumnBytes", int, int]]:
        """What is below, with the range of its rows that belong to these; the bytes of these rows' own are filled."""
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
        """The rows from ``start`` to before ``end``, of nothing but bytes that ``copied`` gives."""
        if start >= end:
            return pa.array([], self.type)
        if pa.types.is_null(self.type):
            return pa.nulls(end - start)
        if pa.types.is_struct(self.type) and self.validity is None:  # a map takes no notice of its entries' offset
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
        """The offsets of the aligned rows up to ``end``, from 0 on; rows before ``start`` are empty. And the range of
        what is below that belongs to the rows from ``start`` on."""
        first = start // ALIGNED_ROWS * ALIGNED_ROWS
        encoded = _copy(self.values, first, end + 1, copied)
        assert encoded is not None
        offsets = _numbers(encoded, _width(self.type))
        low, high = int(offsets[start - first]), int(offsets[-1])
        return pa.py_buffer(np.maximum(offsets, low) - low), low, high


def _fixed(buffer: pa.Buffer | None, bits: int, base: int) -> Fixed | None:
    return None if buffer is None or not buffer.size else (buffer.address - base, bits)


def _copy(fixed: Fixed | None, start: int, end: int, copied: Copied) -> pa.Buffer | None:
    """Of a buffer, the bytes of these rows, the first of which begins with a byte."""
    if fixed is None:
        return None
    first, bits = fixed
    return copied(first + (start * bits >> 3), first + (end * bits + 7 >> 3))


def _width(type: pa.DataType) -> Width:
    """Of an offset."""
    return _TEXTS.get(type) or (np.int64 if pa.types.is_large_list(type) else np.int32)


def _numbers(offsets: pa.Buffer, width: Width) -> Offsets:
    return np.frombuffer(offsets, np.int32) if width is np.int32 else np.frombuffer(offsets, np.int64)
