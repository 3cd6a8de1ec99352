"""Values of Arrow types as plain Python values, and back without guessing.

Arrow itself would take 1.5 for an integer and an hour without a zone for one in UTC. Here a value must be of the class
that reading it back gives: an ``int`` for an integer, a ``str`` for a string. Numpy's scalars and Arrow's stand for the
Python value that they hold.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

from upriver.state.columns import cell_type

VALUE_CHARS_MAX = 100
"""Of a value in a message."""

_REFUSALS = (pa.ArrowException, OverflowError, ValueError, TypeError)
"""What Arrow raises for a value that it cannot take."""


class Misfit(Exception):
    """A value is not as it was declared. row: the place of the row at fault, if there are several."""

    def __init__(self, message: str, row: int = 0) -> None:
        super().__init__(message)
        self.row = row


Test = Callable[[Any], bool]


@dataclass(frozen=True, slots=True)
class PlainValues:
    """The values of one type.

    fits: whether a value that is not null has the right class, so that Arrow takes it for what it is, or refuses it.
    is_settled: true only of values that Arrow would give back just as they are.
    """

    type: pa.DataType
    expected: str
    fits: Test
    is_settled: Test

    def settled(self, value: Any) -> Any:
        """The value that Arrow gives back for this one. Raises Misfit."""
        if value is None or self.is_settled(value):
            return value
        return self.array([value])[0].as_py()

    def array(self, values: Sequence[Any]) -> pa.Array:
        """Raises Misfit, which tells the row, if a value does not fit."""
        if not all(value is None or self.is_settled(value) or self.fits(value) for value in values):
            values = [self._checked(value, row) for row, value in enumerate(values)]
        try:
            return pa.array(values, self.type)
        except _REFUSALS as error:
            row, cause = self._culprit(values, error)
            raise Misfit(f"{shown(values[row])} does not fit {self.type}: {cause}", row) from cause

    def _checked(self, value: Any, row: int) -> Any:
        value = _unwrapped(value)
        if value is not None and not self.fits(value):
            raise Misfit(f"{shown(value)} is not {self.expected}, which {self.type} needs", row)
        return value

    def _culprit(self, values: Sequence[Any], error: Exception) -> tuple[int, Exception]:
        for row, value in enumerate(values):
            try:
                pa.array([value], self.type)
            except _REFUSALS as refusal:
                return row, refusal
        return 0, error


def shown(value: Any) -> str:
    """A value in a message."""
    try:
        text = repr(value)
    except Exception:  # of any class: it is the user's code
        text = f"a {type(value).__name__}"
    return text if len(text) <= VALUE_CHARS_MAX else f"{text[:VALUE_CHARS_MAX]}..."


def plain_values(type: pa.DataType) -> PlainValues | None:
    """``None`` for a type that a user's function can neither keep nor give."""
    if pa.types.is_nested(type):
        return _nested(type)
    for accepts, make in _SCALARS:
        if accepts(type):
            return make(type)
    return None


# Types of one value ------------------------------------------------------------------------------------------------


def _boolean(type: pa.DataType) -> PlainValues:
    return _of_class(type, bool, "a bool")


def _integer(type: pa.DataType) -> PlainValues:
    info = np.iinfo(cell_type(type))
    least, most = int(info.min), int(info.max)
    return PlainValues(
        type,
        "an int",
        lambda value: isinstance(value, int) and not isinstance(value, bool),
        lambda value: value.__class__ is int and least <= value <= most,
    )


def _floating(type: pa.DataType) -> PlainValues:
    is_double = pa.types.is_float64(type)
    return PlainValues(
        type,
        "a float",
        lambda value: isinstance(value, float | int) and not isinstance(value, bool),
        lambda value: is_double and value.__class__ is float,
    )


def _decimal(type: pa.DataType) -> PlainValues:
    return PlainValues(
        type,
        "a Decimal",
        lambda value: isinstance(value, Decimal | int) and not isinstance(value, bool),
        lambda value: False,
    )


def _string(type: pa.DataType) -> PlainValues:
    # What is not ASCII may be half of a surrogate pair, which is no text.
    return PlainValues(
        type,
        "a str",
        lambda value: isinstance(value, str),
        lambda value: value.__class__ is str and value.isascii(),
    )


def _binary(type: pa.DataType) -> PlainValues:
    return _of_class(type, bytes, "bytes")


def _date(type: pa.DataType) -> PlainValues:
    return PlainValues(
        type,
        "a date",
        lambda value: isinstance(value, date) and not isinstance(value, datetime),
        lambda value: value.__class__ is date,
    )


def _timestamp(type: pa.DataType) -> PlainValues:
    zoned = type.tz is not None
    return PlainValues(
        type,
        "a datetime with a time zone" if zoned else "a datetime without a time zone",
        lambda value: isinstance(value, datetime) and (value.tzinfo is not None) == zoned,
        lambda value: value.__class__ is datetime and value.tzinfo is None and not zoned and not value.fold,
    )


def _of_class(type: pa.DataType, cls: type[Any], expected: str) -> PlainValues:
    return PlainValues(type, expected, lambda value: isinstance(value, cls), lambda value: value.__class__ is cls)


def _is_micros(type: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(type)) and type.unit == "us"


_SCALARS: tuple[tuple[Callable[[pa.DataType], bool], Callable[[pa.DataType], PlainValues]], ...] = (
    (pa.types.is_boolean, _boolean),
    (pa.types.is_signed_integer, _integer),
    (pa.types.is_float32, _floating),
    (pa.types.is_float64, _floating),
    (pa.types.is_decimal128, _decimal),
    (pa.types.is_string, _string),
    (pa.types.is_large_string, _string),
    (pa.types.is_binary, _binary),
    (pa.types.is_large_binary, _binary),
    (pa.types.is_date32, _date),
    (_is_micros, _timestamp),
)


# Nested types ------------------------------------------------------------------------------------------------------


def _nested(type: pa.DataType) -> PlainValues | None:
    if pa.types.is_map(type):
        return _of_parts(type, [type.key_type, type.item_type], _map)
    if pa.types.is_list(type) or pa.types.is_large_list(type):
        return _of_parts(type, [type.value_type], _list)
    if pa.types.is_struct(type):
        return _of_parts(type, [type.field(place).type for place in range(type.num_fields)], _struct)
    return None


Parts = Sequence[PlainValues]


def _of_parts(
    type: pa.DataType, inner: Sequence[pa.DataType], make: Callable[[pa.DataType, Parts], PlainValues]
) -> PlainValues | None:
    parts = [values for values in map(plain_values, inner) if values is not None]
    return make(type, parts) if len(parts) == len(inner) else None


def _list(type: pa.DataType, parts: Parts) -> PlainValues:
    (item,) = parts

    def fits(value: Any) -> bool:
        return isinstance(value, list | tuple) and all(map(_or_null(item), value))

    return PlainValues(type, f"a list, each item {item.expected}", fits, _never)


def _struct(type: pa.DataType, parts: Parts) -> PlainValues:
    fields = {type.field(place).name: _or_null(part) for place, part in enumerate(parts)}
    wanted = (f"{type.field(place).name}: {part.expected}" for place, part in enumerate(parts))

    def fits(value: Any) -> bool:
        is_whole = isinstance(value, Mapping) and value.keys() == fields.keys()
        return is_whole and all(test(value[name]) for name, test in fields.items())

    return PlainValues(type, f"a dict of {', '.join(wanted)}", fits, _never)


def _map(type: pa.DataType, parts: Parts) -> PlainValues:
    """Arrow gives a map back as a list of pairs, and takes a dict as well."""
    key, item = parts
    item_fits = _or_null(item)

    def fits_pair(pair: Any) -> bool:
        return isinstance(pair, tuple | list) and len(pair) == 2 and key.fits(pair[0]) and item_fits(pair[1])

    def fits(value: Any) -> bool:
        pairs = value.items() if isinstance(value, Mapping) else value
        return isinstance(value, Mapping | list) and all(map(fits_pair, pairs))

    return PlainValues(type, f"a dict from {key.expected} to {item.expected}", fits, _never)


def _or_null(values: PlainValues) -> Test:
    return lambda value: value is None or values.fits(value)


def _never(value: Any) -> bool:
    """What Arrow gives back of a list is another list: nobody must change one that is in use."""
    return False


def _unwrapped(value: Any) -> Any:
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    return value.as_py() if isinstance(value, pa.Scalar) else value
