"""Where the rows of an Arrow column lie in its file: which ranges of bytes make up given ranges of rows."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from upriver.state.vectors import Positions

Ranges = tuple[Positions, Positions]
"""(first, behind the last) of some ranges of rows, or of bytes."""
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

    def own_bytes(self, starts: Positions, ends: Positions) -> Ranges:
        """Where rows are that begin at ``starts`` and end before ``ends``, but for what is below."""
        if self.offsets is not None:
            ends = ends + 1
        places = [(first + (starts * bits >> 3), first + (ends * bits + 7 >> 3)) for first, bits in self.fixed]
        none = np.empty(0, np.int64)
        return np.concatenate([none, *(first for first, _ in places)]), np.concatenate(
            [none, *(last for _, last in places)]
        )

    def below(self, starts: Positions, ends: Positions) -> Iterator[tuple["ColumnBytes", Positions, Positions]]:
        """What is below, with the ranges of its rows; the bytes of these rows' own are filled."""
        if not self.children:
            return
        if self.offsets is not None:
            starts, ends = self.offsets[starts].astype(np.int64), self.offsets[ends].astype(np.int64)
            has_rows = starts < ends
            starts, ends = starts[has_rows], ends[has_rows]
        for child in self.children:
            if len(starts):
                yield child, starts, ends


def _fixed(buffer: pa.Buffer | None, bits: int, base: int) -> tuple[Fixed, ...]:
    return () if buffer is None or not buffer.size else ((buffer.address - base, bits),)
