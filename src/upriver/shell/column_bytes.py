"""Where the rows of an Arrow column lie in its file: which ranges of bytes make up given ranges of rows."""

from collections.abc import Iterator
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

    fixed: its buffers that have so many bits for each row. offsets: where each row's values begin in what is below, if
    that has other rows; right where the file is filled. children: what is below.
    """

    fixed: tuple[Fixed, ...]
    offsets: Offsets | None = None
    children: tuple["ColumnBytes", ...] = ()

    @classmethod
    def of(cls, column: pa.Array, base: int) -> "ColumnBytes":
        """column: of a known type, as it was decoded. base: address of the file's first byte."""
        type, buffers = column.type, column.buffers()
        validity = _fixed(buffers[0], 1, base)
        if pa.types.is_null(type):
            return cls(())
        if type in _TEXTS:
            return cls._of_many(validity, buffers[1], _TEXTS[type], cls(_fixed(buffers[2], 8, base)), base)
        if _is_list(type):
            width: Width = np.int64 if pa.types.is_large_list(type) else np.int32
            return cls._of_many(validity, buffers[1], width, cls.of(column.values, base), base)
        if pa.types.is_struct(type):
            children = (column.field(number) for number in range(type.num_fields))
            return cls(validity, None, tuple(cls.of(child, base) for child in children))
        return cls((*validity, *_fixed(buffers[1], type.bit_width, base)))

    @classmethod
    def _of_many(
        cls,
        validity: tuple[Fixed, ...],
        offsets: pa.Buffer | None,
        width: Width,
        below: "ColumnBytes",
        base: int,
    ) -> "ColumnBytes":
        if offsets is None or not offsets.size:
            return cls(validity, np.zeros(1, np.int32), (below,))
        bits = 8 * np.dtype(width).itemsize
        numbers: Offsets = np.frombuffer(offsets, np.int32) if width is np.int32 else np.frombuffer(offsets, np.int64)
        # A row needs the offset of the next one, too.
        return cls((*validity, *_fixed(offsets, bits, base)), numbers, (below,))

    def own_bytes(self, start: Rows, end: Rows) -> list[tuple[Rows, Rows]]:
        """The ranges of bytes of the rows from ``start`` to before ``end``, but for what is below; of many ranges of
        rows, with many ranges in each entry."""
        behind = end if self.offsets is None else end + 1
        return [(first + (start * bits >> 3), first + (behind * bits + 7 >> 3)) for first, bits in self.fixed]

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


def _fixed(buffer: pa.Buffer | None, bits: int, base: int) -> tuple[Fixed, ...]:
    return () if buffer is None or not buffer.size else ((buffer.address - base, bits),)
