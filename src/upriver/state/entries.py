"""Entries: distinct rows, each with a slot, found by all their columns.

Two rows are one entry if all their values are equal as SQL's DISTINCT has it: a null equals a null, NaN equals NaN and
-0.0 equals 0.0. Values of a type that is no key, such as a list, are told by their text.
"""

import math
from collections.abc import Callable, Collection, Sequence
from typing import Any

import pyarrow as pa

from upriver.errors import KeyTypeError
from upriver.hashing import check_hashable, hash64
from upriver.state.columns import Column, column_of
from upriver.state.exact_values import exact_list
from upriver.state.slots import SlotIndex
from upriver.state.vectors import Slots, first_of_each, true_at
from upriver.xxh64 import Hashes

Hasher = Callable[[Sequence[pa.Array], int], Hashes]
"""Hashes rows: columns of equal length, and that length."""


class Entries:
    """Rows of one schema. Slots count up in order of arrival; a row that was forgotten and comes back is a new one."""

    __slots__ = ("_as_text", "_exact", "_hasher", "_index")

    def __init__(self, schema: pa.Schema, exact: Collection[str] = (), hasher: Hasher = hash64) -> None:
        """exact: columns of which each entry gives back the first value that came, bit by bit; of others it gives one
        form for each number. hasher: hashes rows whose hash the caller does not know.
        """
        self._hasher = hasher
        self._as_text = [not is_hashable(field.type) for field in schema]
        types = [pa.string() if text else field.type for text, field in zip(self._as_text, schema, strict=True)]
        self._index = SlotIndex(types)
        self._exact: dict[int, Column] = {
            place: column_of(field.type)
            for place, field in enumerate(schema)
            if self._as_text[place] or (field.name in exact and pa.types.is_floating(field.type))
        }
        """By place, the columns that the index does not keep as they are."""

    def __len__(self) -> int:
        """How many slots are in use, those of forgotten entries too."""
        return len(self._index)

    @property
    def nbytes(self) -> int:
        return self._index.nbytes + sum(column.nbytes for column in self._exact.values())

    @property
    def index(self) -> SlotIndex:
        """Slots by hash."""
        return self._index

    def assign(self, columns: Sequence[pa.Array], count: int, hashes: Hashes | None = None) -> Slots:
        """The slot of each of ``count`` rows; unseen ones get the next slots, in order of their first row.

        hashes: of the rows, if the caller knows some; equal rows must have equal ones.
        """
        known = len(self)
        identity = [_text(column) if text else column for text, column in zip(self._as_text, columns, strict=True)]
        slots = self._index.assign(self._hasher(identity, count) if hashes is None else hashes, identity)
        if self._exact and len(self) > known:
            first = pa.array(first_of_each(slots, true_at(slots >= known)))
            for place, column in self._exact.items():
                column.append(columns[place].take(first))
        return slots

    def column(self, place: int, slots: Slots) -> pa.Array:
        """One column of these entries, forgotten or not."""
        exact = self._exact.get(place)
        return self._index.column(place, slots) if exact is None else exact.take(slots)

    def columns(self, slots: Slots) -> list[pa.Array]:
        """All columns of these entries."""
        return [self.column(place, slots) for place in range(len(self._as_text))]

    def forget(self, slots: Slots) -> None:
        """Nobody finds these entries any more; should the rows come back, they are new ones."""
        self._index.forget(slots)


def is_hashable(type: pa.DataType) -> bool:
    """Whether values of the type can be a key."""
    try:
        check_hashable(type, "")
    except KeyTypeError:
        return False
    return True


def comparable(value: Any) -> tuple[Any, ...]:
    """The form of a value in which Python compares it as SQL does, part by part: equal values have equal forms, and
    forms sort as Spark sorts the values, a null first."""
    if value is None:
        return (0,)
    if isinstance(value, float):
        return (1, math.isnan(value), 0.0 if math.isnan(value) or value == 0 else value)
    if isinstance(value, str):
        return (1, value.encode())
    if isinstance(value, dict):
        return (1, *map(comparable, value.values()))
    if isinstance(value, list | tuple):
        return (1, *map(comparable, value))
    return (1, value)


def _text(column: pa.Array) -> pa.Array:
    return pa.array([None if value is None else repr(comparable(value)) for value in exact_list(column)], pa.string())
