"""Keys as they are written on a command line: a text for each key, read in the types of the view's key columns."""

import datetime
import json
import re
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from upriver.client.keys import VALUE_CHARS_MAX
from upriver.errors import KeyTypeError
from upriver.state.exact_values import exact_type
from upriver.zones import zone_info

_DATE = re.compile(r"([+-]?\d{4,7})-(\d{1,2})-(\d{1,2})", re.ASCII)
_TIME = re.compile(
    r"([+-]?\d{4,7}-\d{1,2}-\d{1,2})(?:[ T](\d{1,2}):(\d{2})(?::(\d{2})(?:\.(\d{1,6}))?)?)?"
    r" ?(?:(Z|UTC)|([+-])(\d{1,2}):?(\d{2})?)?",
    re.ASCII,
)
_BYTES = re.compile(r"[Xx]'((?:[0-9A-Fa-f]{2})*)'")
_CYCLE_YEARS, _CYCLE_DAYS = 400, 146_097
"""After so many years the calendar is the same."""
_DAY_MICROS = 86_400_000_000


def keys_of_texts(view: str, key_schema: pa.Schema, texts: Sequence[str]) -> pa.Table:
    """The keys as a table of ``key_schema``. A key of one column is its value, or a JSON list of it; one of several is
    a JSON list. Raises KeyTypeError, which tells the forms that are taken."""
    rows = [_parts(view, key_schema, text) for text in texts]
    columns = [_column(view, field, [row[place] for row in rows]) for place, field in enumerate(key_schema)]
    return pa.Table.from_arrays(columns, schema=key_schema)


def _parts(view: str, schema: pa.Schema, text: str) -> list[Any]:
    """A value for each column: a text, or what JSON has."""
    listed = _listed(text)
    if len(schema) > 1:
        if listed is None or len(listed) != len(schema):
            names = ", ".join(schema.names)
            raise KeyTypeError(
                f"view {view!r}: {text!r} is no key: give a JSON list of {len(schema)} values, of {names}: "
                f"'{json.dumps([_example(field.type) for field in schema])}'"
            )
        return listed
    is_key = listed is not None and len(listed) == 1
    if _is_text(schema.field(0).type):  # a text may look like a list of anything
        is_key = is_key and isinstance(listed[0], str | None) if listed is not None else False
    return listed if is_key and listed is not None else [text]


def _listed(text: str) -> list[Any] | None:
    """The JSON list that a text is."""
    if not text.startswith("["):
        return None
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, list) else None


def _column(view: str, field: pa.Field, values: Sequence[Any]) -> pa.Array:
    _, read, form, example = next(kind for kind in _KINDS if kind[0](field.type))
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
    """A value as it would be written by itself. JSON has numbers and truths as well as texts."""
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
    """Microseconds since 1970; without an offset in the column's zone, if it has one."""
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


def _is_text(type: pa.DataType) -> bool:
    return bool(pa.types.is_string(type))


_Kind = tuple[Callable[[pa.DataType], bool], Callable[[pa.DataType, str], Any], str, str]
_KINDS: tuple[_Kind, ...] = (
    (_is_text, _text, "a text, or a JSON list with a text", """a or '["a"]'"""),
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
"""Kinds of columns: of which types, how a value is read, and what is said of its form. The first that fits counts."""


def _example(type: pa.DataType) -> Any:
    return 1 if pa.types.is_integer(type) else "a" if _is_text(type) else "..."
