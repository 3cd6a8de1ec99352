"""Rows as text in messages. Any value that Spark can hold has a text, of bounded length and on one line."""

import datetime
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa

from upriver.errors import UpriverError
from upriver.state.columns import exact

VALUE_CHARS_MAX = 60
"""Characters of a value in a message."""
ROW_CHARS_MAX = 500
"""Characters of a row in a message."""
ERROR_CHARS_MAX = 1000
"""Characters of a user's exception in a message."""
_ITEMS_MAX = 20
"""Members of a nested value that a message shows."""
UNREADABLE = (ValueError, OverflowError, KeyError, pa.ArrowException)
"""What Arrow raises for a value that has no Python form; a UnicodeDecodeError is one of them."""
_DAY_SECONDS = 86_400
_CYCLE_YEARS, _CYCLE_DAYS = 400, 146_097
"""After so many years the calendar repeats."""
_UNITS = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
"""In a second."""


def value_text(values: pa.Array) -> str:
    """The first of these values. Numbers and times are printed as Spark prints them, as far as Python does too."""
    return _clipped(escaped(_text(values.type, exact(values.slice(0, 1))[0])), VALUE_CHARS_MAX)


def row_text(rows: pa.RecordBatch, place: int) -> str:
    """The row at this place: ``id = 7, name = a``."""
    row = rows.slice(place, 1)
    columns = zip(row.schema.names, row.columns, strict=True)
    return _clipped(", ".join(f"{escaped(name)} = {value_text(values)}" for name, values in columns), ROW_CHARS_MAX)


def readable(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """The column's values as Python values; a value without a Python form as text."""
    try:
        values: list[Any] = column.to_pylist()
    except UNREADABLE:
        chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
        values = [_readable(chunk.slice(place, 1)) for chunk in chunks for place in range(len(chunk))]
    return values


def error_text(error: BaseException) -> str:
    """The class and the text of an exception, on one line and bounded, whatever the text contains. Of an
    exception without a text it is the class alone."""
    try:
        text = str(error)
    except Exception:  # of any class: it is the user's code
        text = "it cannot be told"
    told = f"{type(error).__name__}: {text[:ERROR_CHARS_MAX]}" if text else type(error).__name__
    return _clipped(escaped(told), ERROR_CHARS_MAX)


def failure_text(error: BaseException) -> str:
    """The text of an error of Upriver's, which says enough; of any other error the class, too."""
    return str(error) if isinstance(error, UpriverError) else error_text(error)


def _readable(value: pa.Array) -> Any:
    return value[0].as_py() if _is_readable(value) else value_text(value)


def _is_readable(value: pa.Array) -> bool:
    try:
        value[0].as_py()
    except UNREADABLE:
        return False
    return True


def escaped(text: str) -> str:
    """The text on one line, without control characters that a terminal would obey."""
    return "".join(letter if letter.isprintable() else _escape(letter) for letter in text)


def _escape(letter: str) -> str:
    return letter.encode("unicode_escape", "surrogatepass").decode("ascii")


def _clipped(text: str, chars: int) -> str:
    return text if len(text) <= chars else f"{text[:chars]}..."


def _text(type: pa.DataType, value: pa.Scalar) -> str:
    """value: in its exact form."""
    if not value.is_valid:
        return "NULL"
    for is_of, written in _WRITERS:
        if is_of(type):
            return written(type, value)
    return str(value.as_py())


def _string(type: pa.DataType, value: pa.Scalar) -> str:
    return bytes(value.as_buffer()[: 4 * VALUE_CHARS_MAX + 4]).decode("utf-8", "backslashreplace")


def _binary(type: pa.DataType, value: pa.Scalar) -> str:
    return str(bytes(value.as_buffer()[: VALUE_CHARS_MAX + 1]))


def _date(type: pa.DataType, value: pa.Scalar) -> str:
    return date_text(value.as_py())


def _timestamp(type: pa.DataType, value: pa.Scalar) -> str:
    """An instant is printed in UTC, whatever zone its column is shown in."""
    count, unit = value.as_py(), _UNITS[type.unit]
    seconds, fraction = divmod(count, unit)
    days, second = divmod(seconds, _DAY_SECONDS)
    digits = f"{fraction:0{len(str(unit)) - 1}}".rstrip("0") if fraction else ""
    clock = f"{second // 3600:02}:{second // 60 % 60:02}:{second % 60:02}"
    return f"{date_text(days)} {clock}{'.' if digits else ''}{digits}{'+00:00' if type.tz else ''}"


def _list(type: pa.DataType, value: pa.Scalar) -> str:
    items, count = value.values, len(value.values)
    texts = [_text(type.value_type, items[place]) for place in range(min(count, _ITEMS_MAX))]
    return f"[{', '.join(texts)}{', ...' if count > _ITEMS_MAX else ''}]"


def _map(type: pa.DataType, value: pa.Scalar) -> str:
    pairs, count = value.values, len(value.values)
    kinds = type.key_type, type.item_type
    texts = [
        ": ".join(_text(kind, pairs.field(part)[place]) for part, kind in enumerate(kinds))
        for place in range(min(count, _ITEMS_MAX))
    ]
    return f"{{{', '.join(texts)}{', ...' if count > _ITEMS_MAX else ''}}}"


def _struct(type: pa.DataType, value: pa.Scalar) -> str:
    fields: Mapping[str, pa.Scalar] = dict(value.items())
    return f"{{{', '.join(f'{field.name}: {_text(field.type, fields[field.name])}' for field in type)}}}"


_WRITERS: tuple[tuple[Callable[[pa.DataType], bool], Callable[[pa.DataType, Any], str]], ...] = (
    (lambda type: pa.types.is_string(type) or pa.types.is_large_string(type), _string),
    (lambda type: pa.types.is_binary(type) or pa.types.is_large_binary(type), _binary),
    (pa.types.is_date32, _date),
    (pa.types.is_timestamp, _timestamp),
    (pa.types.is_map, _map),
    (pa.types.is_list, _list),
    (pa.types.is_struct, _struct),
)


def date_text(days: int) -> str:
    """The day so many days after 1970-01-01, in the calendar that Spark uses for all years: ``+10000-01-01``."""
    cycles, rest = divmod(days + datetime.date(1970, 1, 1).toordinal() - 1, _CYCLE_DAYS)
    day = datetime.date.fromordinal(rest + 1)  # of the years 1 to 400
    year = day.year + cycles * _CYCLE_YEARS
    sign = "+" if year > datetime.MAXYEAR else "-" if year < 0 else ""
    return f"{sign}{abs(year):04}-{day.month:02}-{day.day:02}"
