"""Where things lie in the memory of a board (``docs/design/boards.md``), and how a row lies in its place.

First a head of 64 bytes. Then the *places*, ``WAYS`` to a bucket: first all hashes, of the key that is in each; then a
mark each, of whoever reads it; then a row each: a byte for each column, whether it has a value, and each column's value
in a room of one width. A string or binary has its length and at most ``TEXT_BYTES`` bytes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from struct import Struct
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from upriver.state.columns import (
    array_of,
    bitmap,
    cell_type,
    cells_of,
    is_fixed,
    is_text,
    offset_type,
    texts_of,
    validity,
)
from upriver.state.vectors import Hashes, Mask, Positions, are_same

HEAD = Struct("<qqqd16s16x")
"""A number that is odd while the board is being changed; ``NEW``, ``IN_USE`` or ``CLOSED``; the epoch as of whose end
all rows are; until when it may be read, by the worker's clock; a name by which to tell that it is the right memory."""
GOOD_UNTIL_AT, NAME_AT, NAME_BYTES = 24, 32, 16
"""Where the last two are, and how long the name is."""
NEW, IN_USE, CLOSED = 0, 1, -1
WAYS = 8
"""Places of a bucket."""
HASH_BYTES, MARK_BYTES = 8, 1
"""Of one place, besides its row."""
TEXT_BYTES = 64
"""Of a string or binary; a key whose row has a longer one is on no board."""
PLACES_MIN = 64
"""With fewer, a board would be of no use."""
ALIGNMENT = 64
_LENGTH = np.dtype(np.int32)
_TEXT_PLACES = np.arange(TEXT_BYTES, dtype=_LENGTH)

Raw = npt.NDArray[np.void]
"""Rows as they lie in their places."""
Lines = npt.NDArray[np.uint8]
"""Their bytes, one row to a line."""


@dataclass(frozen=True, slots=True)
class ColumnRoom:
    """Where a column's value is in a row: from ``start`` to ``stop``, in bytes. A text's length comes before it.

    cell: the numpy type of a value of fixed width; of a text, of where it begins among others.
    """

    type: pa.DataType
    start: int
    stop: int
    is_text: bool
    cell: np.dtype[Any]

    @staticmethod
    def at(type: pa.DataType, offset: int) -> "ColumnRoom":
        """The first that there is from an offset on."""
        if is_fixed(type):
            cell = cell_type(type)
            return ColumnRoom(type, offset, offset + cell.itemsize, False, cell)
        start = offset + _LENGTH.itemsize
        return ColumnRoom(type, start, start + TEXT_BYTES, True, offset_type(type))

    def write(self, raw: Lines, values: pa.Array) -> None:
        """Values into lines, one each."""
        if not self.is_text:
            cells = cells_of(values)
            raw[:, self.start : self.stop] = cells.view(np.uint8).reshape(len(cells), self.stop - self.start)
            return
        offsets, texts = texts_of(values)
        lengths = np.diff(offsets).astype(_LENGTH)
        raw[:, self.start - _LENGTH.itemsize : self.start] = lengths.view(np.uint8).reshape(-1, _LENGTH.itemsize)
        raw[:, self.start : self.stop][lengths[:, None] > _TEXT_PLACES] = texts

    def read(self, raw: Lines, valid: Mask | None) -> pa.Array:
        """The values of lines. valid: which of them are not null; ``None``: all."""
        if not self.is_text:
            return array_of(self.type, _cells(raw[:, self.start : self.stop], self.cell), valid)
        lengths = _cells(raw[:, self.start - _LENGTH.itemsize : self.start], _LENGTH)
        offsets = np.zeros(len(raw) + 1, self.cell)
        lengths.cumsum(out=offsets[1:])
        nulls = None if valid is None else bitmap(valid)
        texts = pa.py_buffer(self._texts(raw, lengths))
        return pa.Array.from_buffers(self.type, len(raw), [nulls, pa.py_buffer(offsets), texts])

    def _texts(self, raw: Lines, lengths: npt.NDArray[np.int32]) -> Lines:
        """All texts, one after the other."""
        if len(lengths) and are_same(lengths[1:], lengths[:-1]):  # many are; to tell each byte whose it is takes longer
            return np.ascontiguousarray(raw[:, self.start : self.start + int(lengths[0])])
        texts: Lines = raw[:, self.start : self.stop][lengths[:, None] > _TEXT_PLACES]
        return texts


@dataclass(frozen=True)
class BoardLayout:
    """Of a board for rows of this schema. key: its columns that are the key. buckets: of ``WAYS`` places."""

    schema: pa.Schema
    key: tuple[str, ...]
    buckets: int

    @staticmethod
    def of(schema: pa.Schema, key: Sequence[str], nbytes: int) -> "BoardLayout | None":
        """The largest that takes at most so many bytes; ``None`` if that is too little, or rows are of a type that no
        board has."""
        if not key or not all(is_fixed(type) or is_text(type) for type in schema.types):
            return None
        smallest = BoardLayout(schema, tuple(key), PLACES_MIN // WAYS)
        spare = nbytes - HEAD.size - ALIGNMENT
        buckets = spare // (WAYS * (HASH_BYTES + MARK_BYTES + smallest.row_bytes))
        return replace(smallest, buckets=buckets) if buckets >= smallest.buckets else None

    @property
    def places(self) -> int:
        return self.buckets * WAYS

    @property
    def marks_at(self) -> int:
        return HEAD.size + HASH_BYTES * self.places

    @property
    def rows_at(self) -> int:
        return -(-(self.marks_at + MARK_BYTES * self.places) // ALIGNMENT) * ALIGNMENT

    @property
    def nbytes(self) -> int:
        """Of everything."""
        return self.rows_at + self.places * self.row_bytes

    @cached_property
    def row_bytes(self) -> int:
        """Of one row."""
        return -(-max(room.stop for room in self.columns) // 8) * 8

    @cached_property
    def row_type(self) -> np.dtype[np.void]:
        """Numpy's for one row: to take and to put rows is to move so many bytes each."""
        return np.dtype((np.void, self.row_bytes))

    @cached_property
    def columns(self) -> tuple[ColumnRoom, ...]:
        rooms: list[ColumnRoom] = []
        for type in self.schema.types:
            rooms.append(ColumnRoom.at(type, rooms[-1].stop if rooms else len(self.schema)))
        return tuple(rooms)

    @cached_property
    def _divisor(self) -> npt.NDArray[np.uint64]:
        return np.array(self.buckets, np.uint64)  # numpy takes half as long to get at it as at a number of its own

    def buckets_of(self, hash64: Hashes) -> Positions:
        """The bucket of each key."""
        return (hash64 % self._divisor).view(np.int64)

    def fits(self, rows: pa.RecordBatch) -> Mask:
        """Which of these rows a place has room for."""
        fits = np.ones(rows.num_rows, np.bool_)
        for room, values in zip(self.columns, rows.columns, strict=True):
            if room.is_text:
                fits &= np.diff(texts_of(values)[0]) <= TEXT_BYTES
        return fits

    def raw(self, rows: pa.RecordBatch) -> Raw:
        """Rows as they lie in their places. All fit."""
        raw = np.zeros(rows.num_rows, self.row_type)
        lines = self._lines(raw)
        for place, (room, values) in enumerate(zip(self.columns, rows.columns, strict=True)):
            lines[:, place] = validity(values) if values.null_count else True
            room.write(lines, values)
        return raw

    def rows(self, raw: Raw) -> pa.RecordBatch:
        """The inverse of :meth:`raw`."""
        lines = self._lines(raw)
        valid = lines[:, : len(self.columns)].view(np.bool_)
        all_valid = 0 not in valid.tobytes()
        columns = [
            room.read(lines, None if all_valid or valid[:, place].all() else valid[:, place])
            for place, room in enumerate(self.columns)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def _lines(self, raw: Raw) -> Lines:
        return raw.view(np.uint8).reshape(len(raw), self.row_bytes)


def view(memory: Any, dtype: npt.DTypeLike, offset: int, count: int) -> npt.NDArray[Any]:
    """So many cells of the memory, in place."""
    return np.frombuffer(memory, dtype, count, offset)


def _cells(raw: Lines, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    return np.ascontiguousarray(raw).view(dtype)[:, 0]
