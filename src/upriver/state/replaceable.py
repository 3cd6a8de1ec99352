"""Columns whose values can be replaced, by slot.

Values of fixed width are written over where they lie. Any other value is appended to a column, and its slot shown the
new place; the old one stays in memory until the whole column goes.
"""

from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from upriver.state.columns import array_of, cell_type, cells_of, column_of, is_fixed, validity
from upriver.state.vectors import Slots, Vector


class Replaceable(Protocol):
    """One value for each slot."""

    @property
    def places(self) -> int:
        """How many values there is memory for, those that were replaced too."""
        ...

    @property
    def nbytes(self) -> int: ...

    def resize(self, size: int) -> None:
        """Have so many slots. What is in a new one is not defined until something is put there."""
        ...

    def put(self, slots: Slots, values: pa.Array) -> None:
        """Replace the values of these slots, each of which is named once."""
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
