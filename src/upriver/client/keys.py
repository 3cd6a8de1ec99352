"""Users' keys as Arrow columns of exactly the view's key types.

Nothing is guessed: a value of another kind than the column's, or that the column cannot hold, is refused. The error
names the view, the column, and both types. A value may be widened if it stays exact: integers of any size, an integer
for a decimal or a floating column, any form of string.

``keys_of_texts``: keys of a command line, a text for each, read in the types of the view's key columns.
"""

import datetime
import decimal
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from upriver.errors import KeyTypeError
from upriver.hashing import Hashes
from upriver.plan.plan import EVERYTHING_KEY
from upriver.state.columns import canonical, exact_type
from upriver.state.indexes import first_equal
from upriver.state.vectors import is_any_twice
from upriver.zones import zone_info

Keys: TypeAlias = Iterable[Any] | pa.Array | pa.ChunkedArray | pa.RecordBatch | pa.Table
"""Values for a key of one column; tuples, or dicts by column name, for any key; or Arrow data. ``None`` is the null
key."""

KeyColumns: TypeAlias = Sequence[pa.Array]
"""An array for each column of the key, all of one length."""

VALUE_CHARS_MAX = 50
"""Characters of a value that an error shows."""

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)

TYPES_MAX = 256
"""How many types have their kind cached."""

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
    ("interval", pa.types.is_duration, (datetime.timedelta,)),
    ("struct", pa.types.is_struct, (dict,)),
    ("array", pa.types.is_list, (list, tuple)),
)
"""Kinds of values: name, whether an Arrow type is of that kind, and its Python types. The first match counts, since to
Python a bool is an int and a datetime a date."""

_ALSO_TAKEN: Mapping[str, tuple[str, ...]] = {"floating": ("integer",), "decimal": ("integer",)}
"""The kinds that a column accepts besides its own and null, as far as it can hold the values exactly."""


@dataclass(frozen=True, slots=True)
class _KeyPlace:
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
    return [_column(_KeyPlace(view, field), column) for field, column in zip(key_schema, columns, strict=True)]


def key_batch(view: str, key_schema: pa.Schema, keys: Keys) -> pa.RecordBatch:
    """As :func:`key_columns`, as a batch. Arrow releases Python's lock to make one, so with many threads each waits for
    its turn once more."""
    return pa.RecordBatch.from_arrays(key_columns(view, key_schema, keys), schema=key_schema)


def distinct_keys(keys: pa.RecordBatch, hash64: Hashes) -> tuple[pa.RecordBatch, Hashes]:
    """Each key once, with its hash, in the order of first appearance. hash64: one per row of ``keys``."""
    if not is_any_twice(hash64):
        return keys, hash64
    rows = np.unique(first_equal(hash64, keys.columns))
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
    is_frame = hasattr(type(keys), "columns")  # of pandas or polars: iterating over it does not give its rows
    if isinstance(keys, str | bytes | Mapping) or is_frame or not isinstance(keys, Iterable):
        raise _not_the_key(view, key_schema, f"one {type(keys).__name__}, where a list of keys belongs")
    return _split_values(view, key_schema, list(keys))


def _split_values(view: str, key_schema: pa.Schema, values: list[Any]) -> Sequence[_Column]:
    kinds = set(map(type, values))
    if key_schema == EVERYTHING_KEY:
        return _split_empty(view, key_schema, values)
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


def _split_empty(view: str, key_schema: pa.Schema, values: list[Any]) -> Sequence[_Column]:
    """The key without columns: ``()``, or an empty dict, each time."""
    for value in values:
        if not isinstance(value, tuple | list | dict) or value:
            raise _not_the_key(view, key_schema, _shown(value))
    return [[0] * len(values)]


def _split_dicts(view: str, key_schema: pa.Schema, values: list[Any]) -> Sequence[_Column]:
    for value in values:
        if value.keys() != set(key_schema.names):
            raise _not_the_key(view, key_schema, f"a dict of {', '.join(map(str, value))}")
    return [[value[name] for value in values] for name in key_schema.names]


def _not_the_key(view: str, key_schema: pa.Schema, given: str) -> KeyTypeError:
    columns = ", ".join(f"{field.name} {field.type}" for field in key_schema) if key_schema != EVERYTHING_KEY else ""
    return KeyTypeError(f"view {view!r}: its key is ({columns}); given was {given}")


# Values to a column


def _column(place: _KeyPlace, values: _Column) -> pa.Array:
    array = (
        _from_arrow(place, values) if isinstance(values, pa.Array | pa.ChunkedArray) else _from_values(place, values)
    )
    if pa.types.is_floating(array.type):
        return pc.add(array, pa.scalar(0, array.type))  # turns -0.0 into 0.0: to Spark they are one key
    return canonical(array)


def _from_values(place: _KeyPlace, values: Sequence[Any]) -> pa.Array:
    for kind in set(map(type, values)):
        if not place.takes(_python_kind(kind)):
            example = next(value for value in values if type(value) is kind)
            raise place.refuse(f"{_shown(example)} of type {kind.__name__}")
    wanted = place.field.type
    if pa.types.is_nested(wanted):
        _check_parts(place, wanted, values)
    if pa.types.is_timestamp(wanted) and wanted.tz is not None:
        return pa.array([value and _micros(place, value) for value in values], pa.int64()).view(wanted)
    if pa.types.is_timestamp(wanted):
        _check_local(place, values)
    try:
        return pa.array(values, wanted)
    except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
        raise place.refuse(f"a value that does not fit: {error}") from error


def _check_parts(place: _KeyPlace, type: pa.DataType, values: Iterable[Any]) -> None:
    """Refuse dicts that lack a field of a struct, or have another."""
    for value in values:
        if pa.types.is_struct(type) and isinstance(value, dict):
            if value.keys() != {field.name for field in type}:
                raise place.refuse(f"{_shown(value)}, which has other fields")
            for field in type:
                _check_parts(place, field.type, [value[field.name]])
        elif pa.types.is_list(type) and isinstance(value, list | tuple):
            _check_parts(place, type.value_type, value)


def _micros(place: _KeyPlace, value: datetime.datetime) -> int:
    """Microseconds since 1970. A datetime without a zone is local time, as in PySpark."""
    try:
        instant = value if value.tzinfo is not None else value.astimezone()
        since = (instant - _EPOCH) // datetime.timedelta(microseconds=1)
    except (ValueError, OverflowError, OSError, TypeError) as error:
        instead = "give one with a time zone (tzinfo), or an Arrow array"
        raise place.refuse(f"{_shown(value)}, which is no time of the local zone: {instead}") from error
    if getattr(value, "nanosecond", 0):  # pandas has them
        raise place.refuse(f"{_shown(value)}, which is not a whole microsecond")
    return since


def _check_local(place: _KeyPlace, values: Sequence[Any]) -> None:
    for value in values:
        if value is not None and value.tzinfo is not None:
            raise place.refuse(f"{_shown(value)}, which has a time zone: give it without, value.replace(tzinfo=None)")


def _from_arrow(place: _KeyPlace, values: pa.Array | pa.ChunkedArray) -> pa.Array:
    if pa.types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    type = place.field.type
    if not place.takes(_arrow_kind(values.type)) or _differ_in_zone(values.type, type):
        raise place.refuse(f"an array of type {values.type}")
    if values.type == type and isinstance(values, pa.Array):
        return values
    try:
        if pa.types.is_integer(values.type) and pa.types.is_decimal(type):
            values = values.cast(pa.decimal256(20, 0))  # a direct cast requires the type to fit, not the values
        cast = values.cast(type)
    except pa.ArrowException as error:
        raise place.refuse(f"an array of type {values.type} with a value that does not fit: {error}") from error
    return cast.combine_chunks() if isinstance(cast, pa.ChunkedArray) else cast


def _differ_in_zone(type: pa.DataType, other: pa.DataType) -> bool:
    """Whether one type is of instants and the other of local times."""
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


_DATE = re.compile(r"([+-]?\d{4,7})-(\d{1,2})-(\d{1,2})", re.ASCII)
_TIME = re.compile(
    r"([+-]?\d{4,7}-\d{1,2}-\d{1,2})(?:[ T](\d{1,2}):(\d{2})(?::(\d{2})(?:\.(\d{1,6}))?)?)?"
    r" ?(?:(Z|UTC)|([+-])(\d{1,2}):?(\d{2})?)?",
    re.ASCII,
)
_BYTES = re.compile(r"[Xx]'((?:[0-9A-Fa-f]{2})*)'")
_CYCLE_YEARS, _CYCLE_DAYS = 400, 146_097
"""The calendar repeats after so many years."""
_DAY_MICROS = 86_400_000_000


def keys_of_texts(view: str, key_schema: pa.Schema, texts: Sequence[str]) -> pa.Table:
    """The keys as a table of ``key_schema``. The text of a one-column key is its value, or a JSON list of it; that of a
    longer key is a JSON list. Raises KeyTypeError, which names the accepted forms."""
    rows = [_parts(view, key_schema, text) for text in texts]
    columns = [_text_column(view, field, [row[place] for row in rows]) for place, field in enumerate(key_schema)]
    return pa.Table.from_arrays(columns, schema=key_schema)


def _parts(view: str, schema: pa.Schema, text: str) -> list[Any]:
    """A value for each column: a text, or a value of JSON."""
    listed = _listed(text)
    if schema == EVERYTHING_KEY:
        if text.strip() not in ("[]", "()"):
            raise KeyTypeError(f"view {view!r}: {text!r} is no key: the key has no column, give '[]'")
        return [0]
    if len(schema) > 1:
        if listed is None or len(listed) != len(schema):
            names = ", ".join(schema.names)
            raise KeyTypeError(
                f"view {view!r}: {text!r} is no key: give a JSON list of {len(schema)} values, of {names}: "
                f"'{json.dumps([_example(field.type) for field in schema])}'"
            )
        return listed
    is_key = listed is not None and len(listed) == 1
    if pa.types.is_string(schema.field(0).type):  # a text may look like a list of anything
        is_key = is_key and isinstance(listed[0], str | None) if listed is not None else False
    return listed if is_key and listed is not None else [text]


def _listed(text: str) -> list[Any] | None:
    """The JSON list that a text is; ``None`` if it is none."""
    if not text.startswith("["):
        return None
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, list) else None


def _text_column(view: str, field: pa.Field, values: Sequence[Any]) -> pa.Array:
    _, read, form, example = next(kind for kind in _WRITTEN_KINDS if kind[0](field.type))
    as_number = exact_type(field.type) if pa.types.is_temporal(field.type) else field.type
    found = []
    for value in values:
        try:
            part = None if value is None else read(field.type, _as_text(field.type, value))
            found.append(pa.scalar(part, as_number) if not isinstance(part, pa.Scalar) else part)
        except (ValueError, OverflowError, pa.ArrowException) as error:
            shown = repr(value) if len(repr(value)) <= VALUE_CHARS_MAX else f"{repr(value)[:VALUE_CHARS_MAX]}..."
            raise KeyTypeError(
                f"view {view!r}: {shown} is no value of key column {field.name!r}, which is {field.type}: give "
                f"{form}, as in {example}; or '[null]'"
            ) from error
    array = pa.array(found, as_number)
    return array if as_number == field.type else array.view(field.type)


def _as_text(type: pa.DataType, value: Any) -> str:
    """The text of a single value: JSON also has numbers and booleans."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool) and pa.types.is_boolean(type):
        return json.dumps(value)
    is_number = pa.types.is_integer(type) or pa.types.is_floating(type) or pa.types.is_decimal(type)
    if isinstance(value, int | float) and not isinstance(value, bool) and is_number:
        return repr(value)
    raise ValueError("another kind of value")


def _cast(type: pa.DataType, text: str) -> Any:
    return pa.scalar(text.strip(), pa.string()).cast(type)


def _text(type: pa.DataType, text: str) -> str:
    return text


def _truth(type: pa.DataType, text: str) -> bool:
    word = text.strip().lower()
    if word not in ("true", "false"):
        raise ValueError("no truth")
    return word == "true"


def _bytes(type: pa.DataType, text: str) -> bytes:
    written = _BYTES.fullmatch(text)
    return text.encode() if written is None else bytes.fromhex(written[1])


def _day(type: pa.DataType, text: str) -> int:
    """Days since 1970."""
    match = _DATE.fullmatch(text.strip())
    if match is None:
        raise ValueError("no date")
    cycles, year = divmod(int(match[1]) - 1, _CYCLE_YEARS)
    day = datetime.date(year + 1, int(match[2]), int(match[3]))
    return cycles * _CYCLE_DAYS + day.toordinal() - datetime.date(1970, 1, 1).toordinal()


def _moment(type: pa.DataType, text: str) -> int:
    """Microseconds since 1970. A text without an offset is in the column's zone, if that has one."""
    match = _TIME.fullmatch(text.strip())
    if match is None:
        raise ValueError("no time")
    day, hour, minute, second, fraction, is_utc, sign, hours, minutes = match.groups()
    clock = datetime.time(int(hour or 0), int(minute or 0), int(second or 0), int((fraction or "").ljust(6, "0")))
    micros = (clock.hour * 3600 + clock.minute * 60 + clock.second) * 1_000_000 + clock.microsecond
    micros += _day(type, day) * _DAY_MICROS
    if type.tz is None:
        if is_utc or sign:
            raise ValueError("a time with a zone")
        return micros
    if is_utc:
        return micros
    if sign:
        away = (int(hours) * 60 + int(minutes or 0)) * 60_000_000
        return micros + away if sign == "-" else micros - away
    local = datetime.datetime(1970, 1, 1) + datetime.timedelta(microseconds=micros)
    offset = local.replace(tzinfo=zone_info(type.tz)).utcoffset()
    return micros - (offset or datetime.timedelta()) // datetime.timedelta(microseconds=1)


_Kind = tuple[Callable[[pa.DataType], bool], Callable[[pa.DataType, str], Any], str, str]
_WRITTEN_KINDS: tuple[_Kind, ...] = (
    (pa.types.is_string, _text, "a text, or a JSON list with a text", """a or '["a"]'"""),
    (pa.types.is_boolean, _truth, "true or false", "true"),
    (pa.types.is_integer, _cast, "a whole number that fits", "-7"),
    (pa.types.is_decimal, _cast, "a decimal number that fits", "1.50"),
    (pa.types.is_floating, _cast, "a number, NaN or inf", "2.5"),
    (pa.types.is_date32, _day, "a date", "2024-02-29"),
    (
        lambda type: bool(pa.types.is_timestamp(type) and type.tz is None),
        _moment,
        "a time without a zone",
        "'2024-02-29 12:00:00'",
    ),
    (
        pa.types.is_timestamp,
        _moment,
        "a time, which is in the view's zone unless an offset is behind it",
        "'2024-02-29 12:00:00' or 2024-02-29T12:00:00+05:30",
    ),
    (pa.types.is_binary, _bytes, "bytes as a text, or in hexadecimal digits", """abc or "X'00FF'" """.strip()),
    (lambda type: True, _cast, "a value", "a"),
)
"""Kinds of columns: a test of the type, how to read a value, a description of its form, and an example. The first
match counts."""


def _example(type: pa.DataType) -> Any:
    return 1 if pa.types.is_integer(type) else "a" if pa.types.is_string(type) else "..."
