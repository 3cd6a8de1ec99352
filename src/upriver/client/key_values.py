"""Values of users as Arrow columns: a value is taken only if the column's type holds it exactly.

One rule for every value, whatever it is in: the elements of arrays and the fields of structs are columns of their own.
Python values and Arrow columns are taken; a column of another type is cast if each of its values stays what it is.
"""

import datetime
import decimal
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from upriver.arguments import clipped_repr
from upriver.errors import KeyTypeError
from upriver.state.columns import canonical

VALUE_CHARS_MAX = 50
"""Characters of a value that an error shows."""
TYPES_MAX = 256
"""How many types have their kind cached."""

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_FAULTS = (pa.ArrowException, ValueError, TypeError, OverflowError, ArithmeticError)
"""Errors of Arrow, and of Python's classes of numbers and times, for a value that does not fit."""


def _is_text(type: pa.DataType) -> bool:
    return bool(pa.types.is_string(type) or pa.types.is_large_string(type) or pa.types.is_string_view(type))


def _is_bytes(type: pa.DataType) -> bool:
    return bool(pa.types.is_binary(type) or pa.types.is_large_binary(type) or pa.types.is_fixed_size_binary(type))


def _is_list(type: pa.DataType) -> bool:
    return bool(pa.types.is_list(type) or pa.types.is_large_list(type) or pa.types.is_fixed_size_list(type))


_KINDS: tuple[tuple[str, Callable[[pa.DataType], bool], tuple[type, ...]], ...] = (
    ("null", pa.types.is_null, (type(None),)),
    ("boolean", pa.types.is_boolean, (bool, np.bool_)),
    ("interval", pa.types.is_duration, (datetime.timedelta, np.timedelta64)),
    ("integer", pa.types.is_integer, (int, np.integer)),
    ("floating", pa.types.is_floating, (float, np.floating)),
    ("decimal", pa.types.is_decimal, (decimal.Decimal,)),
    ("string", _is_text, (str,)),
    ("binary", _is_bytes, (bytes, bytearray)),
    ("timestamp", pa.types.is_timestamp, (datetime.datetime,)),
    ("date", pa.types.is_date, (datetime.date,)),
    ("struct", pa.types.is_struct, (dict,)),
    ("array", _is_list, (list, tuple)),
)
"""Kinds of values: name, whether an Arrow type is of that kind, and its Python types. The first match counts, since to
Python a bool is an int and a datetime a date, and to numpy a timedelta64 is an integer."""

_ALSO_TAKEN: Mapping[str, tuple[str, ...]] = {"floating": ("integer",), "decimal": ("integer",)}
"""The kinds that a column accepts besides its own and null, as far as it can hold the values exactly."""


@dataclass(frozen=True, slots=True)
class KeyPlace:
    """The key column that values are meant for."""

    view: str
    field: pa.Field

    def refuse(self, given: str) -> KeyTypeError:
        return KeyTypeError(
            f"view {self.view!r}: key column {self.field.name!r} is of type {self.field.type}; given was {given}"
        )

    def column(self, values: Sequence[Any] | pa.Array | pa.ChunkedArray) -> pa.Array:
        """The values, each in the one form that Spark compares. Raises KeyTypeError."""
        is_arrow = isinstance(values, pa.Array | pa.ChunkedArray)
        try:
            column = (self._cast if is_arrow else self._built)(self.field.type, values)
        except _FAULTS as error:
            raise self.refuse(f"a value that does not fit: {error}") from error
        if isinstance(column, pa.ChunkedArray):  # Arrow makes one of more bytes than an array can have
            raise self.refuse(f"{column.nbytes:,} bytes, which are too many for one array")
        return canonical(column)

    # Python values

    def _built(self, type: pa.DataType, values: Sequence[Any]) -> pa.Array:
        for kind in set(map(_type_of, values)):
            if not _takes(type, _python_kind(kind)):
                example = next(value for value in values if _type_of(value) is kind)
                raise self.refuse(f"{shown(example)} of type {kind.__name__}{_in(type, self.field.type)}")
        if pa.types.is_struct(type):
            return self._built_structs(type, values)
        if pa.types.is_list(type):
            return self._built_lists(type, values)
        if pa.types.is_floating(type):
            return self._built_floats(type, values)
        if pa.types.is_timestamp(type):
            count = self._instant if type.tz is not None else self._local
            return pa.array([None if value is None else count(value) for value in values], pa.int64()).view(type)
        if pa.types.is_duration(type):
            return pa.array([None if value is None else self._micros(value) for value in values], pa.int64()).view(type)
        return pa.array(values, type)

    def _built_structs(self, type: pa.DataType, values: Sequence[Any]) -> pa.Array:
        fields = list(type)
        for value in values:
            if value is not None and (value.keys() != {field.name for field in fields} or len(value) < len(fields)):
                raise self.refuse(f"{shown(value)}, which has other fields{_in(type, self.field.type)}")
        parts = [
            self._built(field.type, [None if value is None else value[field.name] for value in values])
            for field in fields
        ]
        return pa.StructArray.from_arrays(parts, fields=fields, mask=pa.array([value is None for value in values]))

    def _built_lists(self, type: pa.DataType, values: Sequence[Any]) -> pa.Array:
        elements = self._built(type.value_type, [part for value in values for part in value or ()])
        ends = np.cumsum([0, *(len(value or ()) for value in values)], dtype=np.int64)
        mask = pa.array([value is None for value in values])
        return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), elements, type=type, mask=mask)

    def _built_floats(self, type: pa.DataType, values: Sequence[Any]) -> pa.Array:
        doubles = [math.nan if value is None else float(value) for value in values]
        with np.errstate(over="ignore"):
            held = np.array(doubles, np.float64).astype(type.to_pandas_dtype())
        for value, double, nearest in zip(values, doubles, held.tolist(), strict=True):
            if value is not None and not (nearest == double == value or math.isnan(double)):
                raise self.refuse(f"{shown(value)}, which does not fit exactly{_in(type, self.field.type)}")
        return pa.array(held, type, mask=np.array([value is None for value in values], np.bool_))

    def _instant(self, value: datetime.datetime) -> int:
        """Microseconds since 1970. A datetime without a zone is local time, as in PySpark."""
        self._check_micros(value)
        try:
            instant = value if value.tzinfo is not None else value.astimezone()
            return (instant - _EPOCH) // datetime.timedelta(microseconds=1)
        except (*_FAULTS, OSError) as error:
            instead = "give one with a time zone (tzinfo), or an Arrow array"
            raise self.refuse(f"{shown(value)}, which is no time of the local zone: {instead}") from error

    def _local(self, value: datetime.datetime) -> int:
        """Microseconds since 1970, all in the same zone."""
        if value.tzinfo is not None:
            raise self.refuse(f"{shown(value)}, which has a time zone: give it without, value.replace(tzinfo=None)")
        self._check_micros(value)
        return (value - _EPOCH.replace(tzinfo=None)) // datetime.timedelta(microseconds=1)

    def _micros(self, value: datetime.timedelta | np.timedelta64) -> int:
        if isinstance(value, np.timedelta64):
            raise self.refuse(f"{shown(value)} of type timedelta64: give a datetime.timedelta")
        self._check_micros(value)
        return value // datetime.timedelta(microseconds=1)

    def _check_micros(self, value: Any) -> None:
        if getattr(value, "nanosecond", 0) or getattr(value, "nanoseconds", 0):  # pandas has them
            raise self.refuse(f"{shown(value)}, which is not a whole microsecond")

    # Arrow columns

    def _cast(self, type: pa.DataType, values: pa.Array | pa.ChunkedArray) -> pa.Array:
        if isinstance(values, pa.ChunkedArray):
            values = values.combine_chunks()
            if isinstance(values, pa.ChunkedArray):
                return values
        if pa.types.is_dictionary(values.type):
            values = values.cast(values.type.value_type)
        if values.type == type:
            return values
        if not _takes(type, _arrow_kind(values.type)) or _differ_in_zone(values.type, type):
            raise self.refuse(f"an array of type {values.type}{_in(type, self.field.type)}")
        if pa.types.is_struct(type) and pa.types.is_struct(values.type):
            return self._cast_structs(type, values)
        if pa.types.is_list(type) and _is_list(values.type):
            return self._cast_lists(type, values)
        try:
            cast = exactly_cast(values, type)
        except pa.ArrowException as error:
            raise self.refuse(f"an array of type {values.type} with a value that does not fit: {error}") from error
        if cast is None:
            raise self.refuse(f"an array of type {values.type} with a value that does not fit exactly")
        return cast

    def _cast_structs(self, type: pa.DataType, values: pa.Array) -> pa.Array:
        fields, names = list(type), [field.name for field in values.type]
        if sorted(names) != sorted(field.name for field in fields) or len(set(names)) < len(names):
            raise self.refuse(f"an array of type {values.type}, which has other fields")
        parts = values.flatten()  # null where the struct is
        columns = [self._cast(field.type, parts[names.index(field.name)]) for field in fields]
        return pa.StructArray.from_arrays(columns, fields=fields, mask=values.is_null())

    def _cast_lists(self, type: pa.DataType, values: pa.Array) -> pa.Array:
        elements, lengths = self._cast(type.value_type, values.flatten()), pc.fill_null(pc.list_value_length(values), 0)
        ends = np.concatenate(([0], np.cumsum(lengths.to_numpy(zero_copy_only=False), dtype=np.int64)))
        return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), elements, type=type, mask=values.is_null())


def exactly_cast(values: pa.Array, type: pa.DataType) -> pa.Array | None:
    """The values in another type, ``None`` if one would not be the same. Raises ArrowException for some of those."""
    if pa.types.is_integer(values.type) and pa.types.is_decimal(type):
        values = values.cast(pa.decimal256(20, 0))  # a direct cast requires the type to fit, not the values
    cast = values.cast(type)
    if not pa.types.is_floating(type) or pa.types.is_null(values.type):
        return cast  # Arrow refuses a loss in any other type
    back = cast.cast(values.type)
    is_same = pc.or_kleene(pc.equal(back, values), pc.is_nan(cast))
    return cast if pc.all(is_same, skip_nulls=True, min_count=0).as_py() else None


def _differ_in_zone(type: pa.DataType, other: pa.DataType) -> bool:
    """Whether one type is of instants and the other of local times."""
    both = pa.types.is_timestamp(type) and pa.types.is_timestamp(other)
    return both and (type.tz is None) != (other.tz is None)


def _takes(type: pa.DataType, kind: str) -> bool:
    """Whether values of a kind can be some of a type."""
    own = _arrow_kind(type)
    return kind in ("null", own, *_ALSO_TAKEN.get(own, ()))


@lru_cache(TYPES_MAX)
def _arrow_kind(type: pa.DataType) -> str:
    return next((name for name, is_of, _ in _KINDS if is_of(type)), str(type))


@lru_cache(TYPES_MAX)
def _python_kind(kind: type) -> str:
    return next((name for name, _, kinds in _KINDS if issubclass(kind, kinds)), kind.__name__)


_type_of: Callable[[Any], type] = type


def _in(type: pa.DataType, whole: pa.DataType) -> str:
    """Words for a value in an array or a struct."""
    return "" if type == whole else f", where {type} belongs"


def shown(value: Any) -> str:
    """The value for an error."""
    return clipped_repr(value, VALUE_CHARS_MAX)
