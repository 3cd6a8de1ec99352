"""Growable typed columns, and how numpy sees Arrow arrays.

A column takes Arrow arrays in at its end and gives Arrow arrays out by slot. Values of fixed width lie in a numpy
vector, exactly as Arrow has them in its buffer. Strings and binaries lie end to end in one vector of bytes, which
Arrow's own ``take`` reads in place. Any other value, such as a list, stays in Arrow arrays. A mask of nulls exists only
once there is a null.

Columns by slot have values that can be replaced. Values of fixed width are overwritten in place. Any other value is
appended to a column, and its slot points to the new place; the old value stays in memory until the whole column goes.

Exact forms: Spark has values that Python lacks: points in time beyond the years 1 to 9999, and texts whose bytes are
not UTF-8. Any column has an *exact form* that Python can read, compare and print: points in time as numbers, texts as
bytes. Nested values are treated likewise, part by part.
"""

from functools import lru_cache
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from upriver.state.vectors import Mask, Positions, Slots, Vector, spread, true_at


def exact_type(type: pa.DataType) -> pa.DataType:
    """The type of the exact form of this type's values; the bytes of both are the same."""
    if pa.types.is_date32(type) or pa.types.is_time32(type):
        return pa.int32()
    if pa.types.is_temporal(type) and type.bit_width == pa.int64().bit_width:
        return pa.int64()
    if pa.types.is_string(type):
        return pa.binary()
    if pa.types.is_large_string(type):
        return pa.large_binary()
    if pa.types.is_struct(type):
        return pa.struct([pa.field(field.name, exact_type(field.type)) for field in type])
    if pa.types.is_map(type):
        return pa.map_(exact_type(type.key_type), exact_type(type.item_type))
    if pa.types.is_list(type):
        return pa.list_(pa.field(type.value_field.name, exact_type(type.value_type)))
    return type


def exact(column: pa.Array) -> pa.Array:
    """The column in its exact form; nothing is copied."""
    type = exact_type(column.type)
    return column if type == column.type else column.view(type)


def exact_list(column: pa.Array) -> list[Any]:
    """The column's values as Python values, in their exact form; this never fails."""
    values: list[Any] = exact(column).to_pylist()
    return values


Cells = npt.NDArray[Any]

_LARGE = {
    pa.string(): pa.large_string(),
    pa.large_string(): pa.large_string(),
    pa.binary(): pa.large_binary(),
    pa.large_binary(): pa.large_binary(),
}
"""The types of variable width, and the form of each that has 64-bit offsets."""

_TYPES_MAX = 256
"""Types that the cache of types with floats holds."""

_CHUNK_BYTES_MAX = 2**30
"""Arrow's nested arrays have 32-bit offsets."""


class Column(Protocol):
    """Values by slot."""

    def __len__(self) -> int: ...

    @property
    def nbytes(self) -> int: ...

    def append(self, values: pa.Array) -> None:
        """Add values of the column's type at the end."""
        ...

    def take(self, slots: Slots) -> pa.Array:
        """The values of these slots, as a new array of the column's type."""
        ...

    def holds(self, slots: Slots, values: pa.Array) -> Mask:
        """Where a slot's value equals the given one, as :func:`same` has it."""
        ...


def column_of(type: pa.DataType) -> Column:
    """An empty column."""
    if is_text(type):
        return BytesColumn(type)
    return FixedColumn(type) if is_fixed(type) else ChunksColumn(type)


class Validity:
    """Which slots of a column are not null."""

    __slots__ = ("_valid",)

    def __init__(self) -> None:
        self._valid: Vector[np.bool_] | None = None

    @property
    def nbytes(self) -> int:
        return 0 if self._valid is None else self._valid.nbytes

    def append(self, values: pa.Array, size: int) -> None:
        """Note which of the values are null. size: of the column, without them."""
        if self._valid is None:
            if not values.null_count:
                return
            self._valid = Vector(np.bool_, fill=True)
            self._valid.resize(size)
        self._valid.extend(validity(values))

    def take(self, slots: Slots) -> Mask | None:
        """``None``: all are valid."""
        return None if self._valid is None else self._valid.cells[slots]


class FixedColumn:
    """Values of fixed width."""

    __slots__ = ("_cells", "_type", "_validity")

    def __init__(self, type: pa.DataType) -> None:
        self._type = type
        self._cells: Vector[Any] = Vector(cell_type(type))
        self._validity = Validity()

    def __len__(self) -> int:
        return len(self._cells)

    @property
    def nbytes(self) -> int:
        return self._cells.nbytes + self._validity.nbytes

    def append(self, values: pa.Array) -> None:
        self._validity.append(values, len(self))
        self._cells.extend(cells_of(values))

    def take(self, slots: Slots) -> pa.Array:
        return array_of(self._type, self._cells.cells.take(slots), self._validity.take(slots))

    def holds(self, slots: Slots, values: pa.Array) -> Mask:
        if self._validity.nbytes or values.null_count:
            return same(self.take(slots), values)
        return _same_cells(self._cells.cells.take(slots), cells_of(values))


class BytesColumn:
    """Values of variable width."""

    __slots__ = ("_bytes", "_offsets", "_type", "_validity")

    def __init__(self, type: pa.DataType) -> None:
        self._type = type
        self._bytes: Vector[np.uint8] = Vector(np.uint8)
        self._offsets: Vector[np.int64] = Vector(np.int64)
        self._offsets.resize(1)
        self._validity = Validity()

    def __len__(self) -> int:
        return len(self._offsets) - 1

    @property
    def nbytes(self) -> int:
        return self._bytes.nbytes + self._offsets.nbytes + self._validity.nbytes

    def append(self, values: pa.Array) -> None:
        self._validity.append(values, len(self))
        if not len(values):
            return  # there may be no offsets
        if values.type != self._type:
            values = values.cast(self._type)
        offsets, texts = texts_of(values)
        self._offsets.extend(offsets[1:].astype(np.int64) + (len(self._bytes) - int(offsets[0])))
        self._bytes.extend(texts)

    def take(self, slots: Slots) -> pa.Array:
        taken = self._in_place().take(pa.array(slots)).cast(self._type)
        valid = self._validity.take(slots)
        if valid is None:
            return taken
        return pa.Array.from_buffers(self._type, len(slots), [bitmap(valid), *taken.buffers()[1:]])

    def holds(self, slots: Slots, values: pa.Array) -> Mask:
        return same(self.take(slots), values)

    def _in_place(self) -> pa.Array:
        """All values as one Arrow array over this column's own memory; nulls are empty in it."""
        buffers = [None, pa.py_buffer(self._offsets.cells), pa.py_buffer(self._bytes.cells)]
        return pa.Array.from_buffers(_LARGE[self._type], len(self), buffers, 0)


class ChunksColumn:
    """Values of a nested type, in Arrow arrays, each more than twice as long as the next."""

    __slots__ = ("_chunks", "_type")

    def __init__(self, type: pa.DataType) -> None:
        self._type = type
        self._chunks: list[pa.Array] = []

    def __len__(self) -> int:
        return sum(map(len, self._chunks))

    @property
    def nbytes(self) -> int:
        return sum(chunk.nbytes for chunk in self._chunks)

    def append(self, values: pa.Array) -> None:
        chunk = values.take(pa.array(np.arange(len(values))))  # a copy: the batch's own memory may be a mapped file
        while self._chunks and self._belong_together(self._chunks[-1], chunk):
            chunk = pa.concat_arrays([self._chunks.pop(), chunk])
        self._chunks.append(chunk)

    def take(self, slots: Slots) -> pa.Array:
        starts = np.cumsum([0, *map(len, self._chunks)])
        owner = np.searchsorted(starts, slots, side="right") - 1
        parts = [
            chunk.take(pa.array(slots[owner == place] - starts[place])) for place, chunk in enumerate(self._chunks)
        ]
        in_order_of_chunks = np.argsort(owner, kind="stable")
        return pa.concat_arrays([pa.nulls(0, self._type), *parts]).take(pa.array(np.argsort(in_order_of_chunks)))

    def holds(self, slots: Slots, values: pa.Array) -> Mask:
        return same(self.take(slots), values)

    def _belong_together(self, older: pa.Array, newer: pa.Array) -> bool:
        return len(older) <= 2 * len(newer) and older.nbytes + newer.nbytes <= _CHUNK_BYTES_MAX


# Arrow arrays as numpy sees them ----------------------------------------------------------------------------------


def is_fixed(type: pa.DataType) -> bool:
    """Whether values are numbers, or represented by one of fixed width."""
    return bool(pa.types.is_primitive(type) or pa.types.is_decimal(type))


def is_text(type: pa.DataType) -> bool:
    """Whether values are strings or binaries."""
    return type in _LARGE


def offset_type(type: pa.DataType) -> np.dtype[np.signedinteger[Any]]:
    """The numpy type of a text type's offsets."""
    return np.dtype(np.int64 if type == _LARGE[type] else np.int32)


def texts_of(values: pa.Array) -> tuple[Cells, npt.NDArray[np.uint8]]:
    """Texts where they lie: where each begins among its buffer's bytes, and where the last one ends; and the bytes from
    the first text on."""
    if not len(values):
        return np.zeros(1, np.int64), np.empty(0, np.uint8)  # there may be no offsets
    _, offset_buffer, data = values.buffers()
    width = offset_type(values.type)
    offsets = np.frombuffer(offset_buffer, width, len(values) + 1, values.offset * width.itemsize)
    return offsets, np.frombuffer(data or b"", np.uint8)[offsets[0] : offsets[-1]]


def cell_type(type: pa.DataType) -> np.dtype[Any]:
    """The numpy type of a fixed-width type's cells."""
    if pa.types.is_boolean(type):
        return np.dtype(np.uint8)
    if type.bit_width > 64:
        return np.dtype(f"V{type.bit_width // 8}")
    kind = "f" if pa.types.is_floating(type) else "u" if pa.types.is_unsigned_integer(type) else "i"
    return np.dtype(f"{kind}{type.bit_width // 8}")


def cells_of(values: pa.Array) -> Cells:
    """A fixed-width array's values where they lie; a value under a null is arbitrary."""
    if pa.types.is_boolean(values.type):
        values = values.cast(pa.uint8())
    dtype = cell_type(values.type)
    return np.frombuffer(values.buffers()[1] or b"", dtype, len(values), values.offset * dtype.itemsize)


def array_of(type: pa.DataType, cells: Cells, valid: Mask | None = None) -> pa.Array:
    """An array of a fixed-width type over these cells. The inverse of :func:`cells_of`."""
    nulls = None if valid is None else bitmap(valid)
    data = bitmap(cells) if pa.types.is_boolean(type) else pa.py_buffer(cells)
    return pa.Array.from_buffers(type, len(cells), [nulls, data])


def taken(batch: pa.RecordBatch, positions: npt.NDArray[np.int64]) -> pa.RecordBatch:
    """These rows of a batch, in this order. For few rows, Arrow's own ``take`` takes three times as long."""
    columns = [_taken(column, positions) for column in batch.columns]
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def _taken(column: pa.Array, positions: npt.NDArray[np.int64]) -> pa.Array:
    if column.null_count or not is_fixed(column.type) or pa.types.is_boolean(column.type):
        return column.take(pa.array(positions))
    return array_of(column.type, cells_of(column).take(positions))


def mask_of(truths: pa.Array) -> Mask:
    """The values of a boolean array without nulls.

    Arrow's own ``to_numpy`` makes them in a pool that the caller cannot choose, and whose memory comes back late.
    """
    return cells_of(truths).astype(np.bool_)


def validity(values: pa.Array) -> Mask:
    """True where a value is not null."""
    return mask_of(values.is_valid())


def same(left: pa.Array, right: pa.Array) -> Mask:
    """Where two arrays of one type and length hold the same: equal bits, or null in both."""
    if is_fixed(left.type):
        equal = _same_cells(cells_of(left), cells_of(right))
    elif is_text(left.type):
        equal = mask_of(pc.equal(left, right).fill_null(False))
    elif pa.types.is_struct(left.type):
        equal = _same_structs(left, right)
    elif is_listed(left.type):
        equal = _same_lists(left, right)
    else:
        equal = np.ones(len(left), np.bool_)  # of pa.null()
    if not left.null_count and not right.null_count:
        return equal
    left_valid, right_valid = validity(left), validity(right)
    return np.where(left_valid & right_valid, equal, left_valid == right_valid)


def _same_structs(left: pa.Array, right: pa.Array) -> Mask:
    equal = np.ones(len(left), np.bool_)
    for place in range(left.type.num_fields):
        equal &= same(left.field(place), right.field(place))
    return equal


def _same_lists(left: pa.Array, right: pa.Array) -> Mask:
    """Of arrays and maps, whose entries count in their order."""
    starts, lengths = spans_of(left)
    other_starts, other_lengths = spans_of(right)
    equal: Mask = lengths == other_lengths
    rows = true_at(equal & (lengths > 0))
    if rows.size:
        items, others = (
            elements_of(values).take(pa.array(spread(begins[rows], lengths[rows])))
            for values, begins in ((left, starts), (right, other_starts))
        )
        differs = ~same(items, others)
        equal[np.repeat(rows, lengths[rows])[differs]] = False
    return equal


def is_listed(type: pa.DataType) -> bool:
    """Whether values are lists of elements: arrays, and maps, whose elements are their entries."""
    return bool(pa.types.is_list(type) or pa.types.is_map(type))


def spans_of(values: pa.Array) -> tuple[Positions, Positions]:
    """Where each list begins among the :func:`elements_of` the array, and its length; of a null 0."""
    if not len(values):
        return np.empty(0, np.int64), np.empty(0, np.int64)
    offsets = np.frombuffer(values.buffers()[1], np.int32, len(values) + 1, values.offset * 4).astype(np.int64)
    lengths = np.diff(offsets)
    if values.null_count:
        lengths = np.where(validity(values), lengths, 0)
    return offsets[:-1], lengths


def elements_of(values: pa.Array) -> pa.Array:
    """The elements of all lists, in place; of maps, their entries, as structs."""
    if pa.types.is_map(values.type):
        entries = pa.struct([values.type.key_field.with_nullable(True), values.type.item_field])
        return pa.StructArray.from_arrays([values.keys, values.items], fields=list(entries))
    return values.values


@lru_cache(_TYPES_MAX)
def has_floats(type: pa.DataType) -> bool:
    """Whether values are floats, or contain some."""
    if pa.types.is_nested(type):
        return any(has_floats(type.field(place).type) for place in range(type.num_fields))
    return bool(pa.types.is_floating(type))


def canonical(values: pa.Array) -> pa.Array:
    """The values with one form for each number: -0.0 becomes 0.0, and all NaNs become one. So it is with the numbers in
    structs, arrays and maps."""
    if not has_floats(values.type):
        return values
    if pa.types.is_struct(values.type):
        parts = [canonical(values.field(place)) for place in range(values.type.num_fields)]
        nulls = array_of(pa.bool_(), ~validity(values)) if values.null_count else None
        return pa.StructArray.from_arrays(parts, fields=list(values.type), mask=nulls)
    if is_listed(values.type):
        bounds, nulls = values.buffers()[:2], values.null_count
        elements = canonical(elements_of(values))
        if pa.types.is_map(values.type):
            fields = [values.type.key_field, values.type.item_field]
            elements = pa.StructArray.from_arrays(elements.flatten(), fields=fields)
        return pa.Array.from_buffers(values.type, len(values), bounds, nulls, values.offset, [elements])
    cells = cells_of(values)
    one_form = np.where(np.isnan(cells), cells.dtype.type(np.nan), np.where(cells == 0, cells.dtype.type(0), cells))
    return array_of(values.type, one_form, validity(values) if values.null_count else None)


def _same_cells(left: Cells, right: Cells) -> Mask:
    """Equality by bits. Numpy compares numbers faster than raw bytes."""
    width = left.dtype.itemsize
    if width <= 8:
        equal: Mask = left.view(f"u{width}") == right.view(f"u{width}")
        return equal
    left_words, right_words = (cells.view(np.uint64).reshape(-1, width // 8).T for cells in (left, right))
    equal = left_words[0] == right_words[0]
    for left_word, right_word in zip(left_words[1:], right_words[1:], strict=True):
        equal &= left_word == right_word
    return equal


def bitmap(bits: Cells) -> pa.Buffer:
    """Booleans as Arrow keeps them: values, or the mask of values that are not null."""
    return pa.py_buffer(np.packbits(bits, bitorder="little"))


class Replaceable(Protocol):
    """One value for each slot."""

    @property
    def places(self) -> int:
        """How many values there is memory for, including those that were replaced."""
        ...

    @property
    def nbytes(self) -> int: ...

    def resize(self, size: int) -> None:
        """Set the number of slots. A new slot is not defined until it gets a value."""
        ...

    def put(self, slots: Slots, values: pa.Array) -> None:
        """Replace the values of these slots, each named once."""
        ...

    def take(self, slots: Slots) -> pa.Array:
        """The values of these slots, as a new array."""
        ...


def replaceable_of(type: pa.DataType) -> Replaceable:
    """An empty column."""
    return FixedValues(type) if is_fixed(type) else MovedValues(type)


class FixedValues:
    """Values of fixed width."""

    __slots__ = ("_cells", "_type", "_valid")

    def __init__(self, type: pa.DataType) -> None:
        self._type = type
        self._cells: Vector[Any] = Vector(cell_type(type))
        self._valid: Vector[np.bool_] | None = None
        """``None`` until there is a null."""

    @property
    def places(self) -> int:
        return len(self._cells)

    @property
    def nbytes(self) -> int:
        return self._cells.nbytes + (0 if self._valid is None else self._valid.nbytes)

    def resize(self, size: int) -> None:
        self._cells.resize(size)
        if self._valid is not None:
            self._valid.resize(size)

    def put(self, slots: Slots, values: pa.Array) -> None:
        self._cells.cells[slots] = cells_of(values)
        if values.null_count and self._valid is None:
            self._valid = Vector(np.bool_, fill=True)
            self._valid.resize(self.places)
        if self._valid is not None:
            self._valid.cells[slots] = validity(values)

    def take(self, slots: Slots) -> pa.Array:
        valid = None if self._valid is None else self._valid.cells[slots]
        return array_of(self._type, self._cells.cells[slots], valid)


class MovedValues:
    """Values of any other type, each at a place of its own in a column that only grows."""

    __slots__ = ("_column", "_place")

    def __init__(self, type: pa.DataType) -> None:
        self._column = column_of(type)
        self._place: Vector[np.int64] = Vector(np.int64)

    @property
    def places(self) -> int:
        return len(self._column)

    @property
    def nbytes(self) -> int:
        return self._column.nbytes + self._place.nbytes

    def resize(self, size: int) -> None:
        self._place.resize(size)

    def put(self, slots: Slots, values: pa.Array) -> None:
        start = len(self._column)
        self._column.append(values)
        self._place.cells[slots] = np.arange(start, start + len(values))

    def take(self, slots: Slots) -> pa.Array:
        return self._column.take(self._place.cells[slots])
