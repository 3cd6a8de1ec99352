"""Keys that people give, as Arrow columns of exactly the view's key types.

Nothing is guessed: a value that is of another kind than the column, or that the column cannot hold, is refused with
the view, the column, and both types. What is kept exact may be widened: integers of any size, an integer for a decimal
or a floating column, any form of string.
"""

import datetime
import decimal
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from upriver.errors import KeyTypeError
from upriver.state.vectors import is_any_twice
from upriver.xxh64 import Hashes

Keys: TypeAlias = Iterable[Any] | pa.Array | pa.ChunkedArray | pa.RecordBatch | pa.Table
"""Values for a key of one column; tuples, or dicts by column name, for any; or Arrow data. ``None`` is the null key."""

KeyColumns: TypeAlias = Sequence[pa.Array]
"""An array for each column of the key, all of one length."""

VALUE_CHARS_MAX = 50
"""Characters of a value that an error shows."""

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)

TYPES_MAX = 256
"""Types of which the kind is remembered."""

_Column: TypeAlias = Sequence[Any] | pa.Array | pa.ChunkedArray


def _is_text(type: pa.DataType) -> bool:
    return bool(pa.types.is_string(type) or pa.types.is_large_string(type) or pa.types.is_string_view(type))


def _is_bytes(type: pa.DataType) -> bool:
    return bool(pa.types.is_binary(type) or pa.types.is_large_binary(type) or pa.types.is_fixed_size_binary(type))


_KINDS: tuple[tuple[str, Callable[[pa.DataType], bool], tuple[type, ...]], ...] = (
    ("null", pa.types.is_null, (type(None),)),
    ("boolean", pa.types.is_boolean, (bool, np.bool_)),
    ("integer", pa.types.is_integer, (int, np.integer)),
    ("floating", pa.types.is_floating, (float, np.floating)),
    ("decimal", pa.types.is_decimal, (decimal.Decimal,)),
    ("string", _is_text, (str,)),
    ("binary", _is_bytes, (bytes, bytearray)),
    ("timestamp", pa.types.is_timestamp, (datetime.datetime,)),
    ("date", pa.types.is_date, (datetime.date,)),
)
"""Kinds of values: name, whether an Arrow type is of it, and its Python types. The first that fits counts, since to
Python a bool is an int and a datetime a date."""

_ALSO_TAKEN: Mapping[str, tuple[str, ...]] = {"floating": ("integer",), "decimal": ("integer",)}
"""What a column takes besides its own kind and null, as far as it can hold it exactly."""


@dataclass(frozen=True, slots=True)
class _Place:
    """The key column that values are meant for."""

    view: str
    field: pa.Field

    def refuse(self, given: str) -> KeyTypeError:
        return KeyTypeError(
            f"view {self.view!r}: key column {self.field.name!r} is of type {self.field.type}; given was {given}"
        )

    def takes(self, kind: str) -> bool:
        own = _arrow_kind(self.field.type)
        return kind in ("null", own, *_ALSO_TAKEN.get(own, ()))


def key_columns(view: str, key_schema: pa.Schema, keys: Keys) -> KeyColumns:
    """``keys`` as columns of ``key_schema``, in their order. Raises KeyTypeError."""
    columns = _split(view, key_schema, keys)
    return [_column(_Place(view, field), column) for field, column in zip(key_schema, columns, strict=True)]


def key_batch(view: str, key_schema: pa.Schema, keys: Keys) -> pa.RecordBatch:
    """As :func:`key_columns`, as a batch. Arrow lets go of Python's lock to make one: of many threads each then waits
    for its turn once more."""
    return pa.RecordBatch.from_arrays(key_columns(view, key_schema, keys), schema=key_schema)


def distinct_keys(keys: pa.RecordBatch, hash64: Hashes) -> tuple[pa.RecordBatch, Hashes]:
    """Each key once, with its hash, in the order of first appearance. hash64: one per row of ``keys``."""
    if not is_any_twice(hash64):
        return keys, hash64
    numbered = pa.Table.from_arrays(
        [*keys.columns, pa.array(range(len(keys)))], [str(n) for n in range(len(keys.columns))] + ["row"]
    )
    firsts = numbered.group_by(numbered.column_names[:-1], use_threads=False).aggregate([("row", "min")])
    rows = np.sort(firsts.column("row_min").to_numpy())
    return keys.take(pa.array(rows)), hash64[rows]


# Keys to columns


def _split(view: str, key_schema: pa.Schema, keys: Keys) -> Sequence[_Column]:
    if isinstance(keys, np.ndarray) and keys.dtype != object and keys.ndim == 1:
        keys = pa.array(keys)
    if isinstance(keys, pa.Array | pa.ChunkedArray):
        if len(key_schema) > 1:
            raise _not_the_key(view, key_schema, "one array")
        return [keys]
    if isinstance(keys, pa.RecordBatch | pa.Table):
        if sorted(keys.schema.names) != sorted(key_schema.names):
            raise _not_the_key(view, key_schema, f"a table with the columns {', '.join(keys.schema.names)}")
        return [keys.column(name) for name in key_schema.names]
    is_frame = hasattr(type(keys), "columns")  # of pandas or polars: what it would iterate over is not its rows
    if isinstance(keys, str | bytes | Mapping) or is_frame or not isinstance(keys, Iterable):
        raise _not_the_key(view, key_schema, f"one {type(keys).__name__}, where a list of keys belongs")
    return _split_values(view, key_schema, list(keys))


def _split_values(view: str, key_schema: pa.Schema, values: list[Any]) -> Sequence[_Column]:
    kinds = set(map(type, values))
    if kinds and all(issubclass(kind, dict) for kind in kinds):
        return _split_dicts(view, key_schema, values)
    if len(key_schema) == 1:
        return [values]
    for kind in kinds:
        if not issubclass(kind, tuple | list):
            raise _not_the_key(view, key_schema, f"a {kind.__name__}, where a tuple belongs")
    for width in set(map(len, values)):
        if width != len(key_schema):
            raise _not_the_key(view, key_schema, f"a tuple of {width}")
    return list(zip(*values, strict=True)) or [()] * len(key_schema)


def _split_dicts(view: str, key_schema: pa.Schema, values: list[Any]) -> Sequence[_Column]:
    for value in values:
        if value.keys() != set(key_schema.names):
            raise _not_the_key(view, key_schema, f"a dict of {', '.join(map(str, value))}")
    return [[value[name] for value in values] for name in key_schema.names]


def _not_the_key(view: str, key_schema: pa.Schema, given: str) -> KeyTypeError:
    columns = ", ".join(f"{field.name} {field.type}" for field in key_schema)
    return KeyTypeError(f"view {view!r}: its key is ({columns}); given was {given}")


# Values to a column


def _column(place: _Place, values: _Column) -> pa.Array:
    array = (
        _from_arrow(place, values) if isinstance(values, pa.Array | pa.ChunkedArray) else _from_values(place, values)
    )
    if pa.types.is_floating(array.type):
        return pc.add(array, pa.scalar(0, array.type))  # makes 0.0 of -0.0: to Spark they are one key
    return array


def _from_values(place: _Place, values: Sequence[Any]) -> pa.Array:
    for kind in set(map(type, values)):
        if not place.takes(_python_kind(kind)):
            example = next(value for value in values if type(value) is kind)
            raise place.refuse(f"{_shown(example)} of type {kind.__name__}")
    wanted = place.field.type
    if pa.types.is_timestamp(wanted) and wanted.tz is not None:
        return pa.array([value and _micros(place, value) for value in values], pa.int64()).view(wanted)
    if pa.types.is_timestamp(wanted):
        _check_local(place, values)
    try:
        return pa.array(values, wanted)
    except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
        raise place.refuse(f"a value that does not fit: {error}") from error


def _micros(place: _Place, value: datetime.datetime) -> int:
    """Microseconds since 1970. A datetime without a zone is of the local one, as it is to PySpark."""
    try:
        instant = value if value.tzinfo is not None else value.astimezone()
        since = (instant - _EPOCH) // datetime.timedelta(microseconds=1)
    except (ValueError, OverflowError, OSError, TypeError) as error:
        instead = "give one with a time zone (tzinfo), or an Arrow array"
        raise place.refuse(f"{_shown(value)}, which is no time of the local zone: {instead}") from error
    if getattr(value, "nanosecond", 0):  # pandas has them
        raise place.refuse(f"{_shown(value)}, which is not a whole microsecond")
    return since


def _check_local(place: _Place, values: Sequence[Any]) -> None:
    for value in values:
        if value is not None and value.tzinfo is not None:
            raise place.refuse(f"{_shown(value)}, which has a time zone: give it without, value.replace(tzinfo=None)")


def _from_arrow(place: _Place, values: pa.Array | pa.ChunkedArray) -> pa.Array:
    if pa.types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    type = place.field.type
    if not place.takes(_arrow_kind(values.type)) or _differ_in_zone(values.type, type):
        raise place.refuse(f"an array of type {values.type}")
    if values.type == type and isinstance(values, pa.Array):
        return values
    try:
        if pa.types.is_integer(values.type) and pa.types.is_decimal(type):
            values = values.cast(pa.decimal256(20, 0))  # straight, it is the type that must fit, not the values
        cast = values.cast(type)
    except pa.ArrowException as error:
        raise place.refuse(f"an array of type {values.type} with a value that does not fit: {error}") from error
    return cast.combine_chunks() if isinstance(cast, pa.ChunkedArray) else cast


def _differ_in_zone(type: pa.DataType, other: pa.DataType) -> bool:
    """Whether one is of instants and the other of local times."""
    both = pa.types.is_timestamp(type) and pa.types.is_timestamp(other)
    return both and (type.tz is None) != (other.tz is None)


@lru_cache(TYPES_MAX)
def _arrow_kind(type: pa.DataType) -> str:
    return next((name for name, is_of, _ in _KINDS if is_of(type)), str(type))


def _python_kind(kind: type) -> str:
    return next((name for name, _, kinds in _KINDS if issubclass(kind, kinds)), kind.__name__)


def _shown(value: Any) -> str:
    try:
        text = repr(value)
    except Exception:  # of any class: it is the user's code
        text = f"a {type(value).__name__}"
    return text if len(text) <= VALUE_CHARS_MAX else f"{text[:VALUE_CHARS_MAX]}..."
