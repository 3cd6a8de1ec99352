"""Rows as JSON, lines of JSON and CSV, without loss: the one form of HTTP, the command line and the page.

| type | in JSON |
|---|---|
| TINYINT to BIGINT | a number; a text of digits beyond 2^53, where other languages' numbers end |
| DECIMAL | a text with all its places, ``"1.50"``; also the sum of whole numbers that a query computes |
| FLOAT, DOUBLE | a number; ``"NaN"``, ``"Infinity"``, ``"-Infinity"`` |
| DATE | ``"2024-02-29"``; the year may be negative or have more than four digits |
| TIMESTAMP | an instant in UTC, ``"2024-02-29T11:00:00.000000Z"`` |
| TIMESTAMP_NTZ | a local time, ``"2024-02-29T12:00:00.000000"`` |
| INTERVAL DAY TO SECOND | a duration of ISO 8601 in seconds, ``"PT90.500000S"`` |
| BINARY | ``"X'00FF'"`` |
| BOOLEAN, STRING, NULL | ``true``, a text, ``null`` |
| ARRAY, STRUCT | a list, an object |
| MAP | a list of ``{"key": ..., "value": ...}`` |

A key of a lookup may be given in the same forms. A STRING that is not UTF-8 has U+FFFD for its wrong bytes; in Arrow it
is exact. A query also computes values that no view has: a time of day
is ``"12:00:00.000000"``, and an interval with months or days ``"P14M3DT-4.500000S"``, each part with its sign. Columns
or fields of the same name get numbers: a, a_1. Whole columns are converted at a time.
"""

import math
import re
from collections.abc import Sequence
from decimal import Decimal
from itertools import count
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from upriver.state.columns import exact

EXACT_INTEGER_MAX = (1 << 53) - 1
"""The largest whole number that a double holds, as do all below it."""
_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
_FLOAT_NAMES = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
_SHORT_YEAR = re.compile(r"^-(\d{1,3})-")


def rows_of(table: pa.Table) -> msgspec.Raw:
    """The rows as a list of objects, in JSON: a value for :func:`json_bytes`."""
    return msgspec.Raw(msgspec.json.encode(_objects(table)))


def json_bytes(value: Any) -> bytes:
    """JSON of plain Python values; floats that JSON does not have as text. Raises TypeError for any other value."""
    return msgspec.json.encode(_plain(value))


def ndjson_bytes(table: pa.Table) -> bytes:
    """A line of JSON for each row."""
    return msgspec.json.Encoder().encode_lines(_objects(table))


def csv_bytes(table: pa.Table) -> bytes:
    """CSV with a line of names; values as in JSON, nested ones as JSON texts. Names, texts, binary and nested values
    are in quotes, other values are not. NULL is nothing, an empty text is ``""``."""
    columns = [_csv_values(column) for column in table.columns]
    lines = [",".join(map(_quoted, table.column_names)), *map(",".join, zip(*columns, strict=True)), ""]
    return "\n".join(lines).encode()


def json_values(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """The values of a column as JSON has them."""
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    type = array.type
    if isinstance(array, pa.ExtensionArray):
        return json_values(array.storage)
    if kinds.is_dictionary(type):
        return json_values(array.dictionary_decode())
    if kinds.is_integer(type):
        return _integers(array)
    if kinds.is_floating(type):
        return _floats(array)
    if kinds.is_decimal(type):
        texts = array.cast(pa.string()).to_pylist()
        return [f"{Decimal(text):f}" if text is not None and "E" in text else text for text in texts]
    if kinds.is_date(type):
        return _where_valid(array, _day_texts(_counts(array.cast(pa.date32()).cast(pa.int32()))))
    if kinds.is_timestamp(type):
        return _moments(array)
    if kinds.is_time(type):
        return _where_valid(array, [_clock(each, type.unit) for each in _counts(array).tolist()])
    if kinds.is_duration(type):
        return _where_valid(array, [_duration(each, type.unit) for each in _counts(array).tolist()])
    if kinds.is_interval(type):
        return [None if each is None else _interval(each) for each in array.to_pylist()]
    if kinds.is_nested(type):
        return _nested(array)
    return _texts(array)


def _objects(table: pa.Table) -> list[dict[str, Any]]:
    return _named(table.column_names, [json_values(column) for column in table.columns])


def _plain(value: Any) -> Any:
    """The value with texts for floats that JSON does not have. The encoder would write these as null, and bytes and
    times in forms of its own."""
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else _FLOAT_NAMES[str(float(value))]
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    if value is None or isinstance(value, bool | str | int | msgspec.Raw):
        return value
    raise TypeError(f"JSON has no {type(value).__name__}")


def _counts(array: pa.Array) -> np.ndarray[Any, Any]:
    """Days or units as numbers of 64 bits: any year, which Python's own dates cannot hold. Nulls are 0."""
    number = pa.int32() if array.type.bit_width == 32 else pa.int64()
    counts: np.ndarray[Any, Any] = array.cast(number).fill_null(0).to_numpy(zero_copy_only=False)
    return counts.astype(np.int64)


def _where_valid(array: pa.Array, texts: Sequence[str]) -> list[Any]:
    if not array.null_count:
        return list(texts)
    return [text if is_valid else None for text, is_valid in zip(texts, array.is_valid().to_pylist(), strict=True)]


def _integers(array: pa.Array) -> list[Any]:
    values: list[Any] = array.to_pylist()
    if array.type.bit_width < 64 or not len(array):
        return values
    bounds = pc.min_max(array).as_py()
    if bounds["max"] is None or max(-bounds["min"], bounds["max"]) <= EXACT_INTEGER_MAX:
        return values
    return [str(each) if each is not None and abs(each) > EXACT_INTEGER_MAX else each for each in values]


def _floats(array: pa.Array) -> list[Any]:
    shortest = array
    if kinds.is_float32(array.type):  # 0.1, and not the double beside it; as a float both are the same
        shortest = array.cast(pa.string()).cast(pa.float64())
    values: list[Any] = shortest.to_pylist()
    if pc.all(pc.is_finite(shortest), min_count=0).as_py():
        return values
    return [None if each is None else _FLOAT_NAMES.get(str(each), each) for each in values]


def _day_texts(days: np.ndarray[Any, Any]) -> list[str]:
    texts: list[str] = np.datetime_as_string(days.astype("datetime64[D]")).tolist()
    if len(days) and days.min() < 0:  # numpy writes the year before 0 as -001
        return [_SHORT_YEAR.sub(lambda year: f"-{year[1]:0>4}-", text) for text in texts]
    return texts


def _moments(array: pa.Array) -> list[Any]:
    """Days and times of day apart: to numpy the least number of 64 bits is no time."""
    unit, suffix = array.type.unit, "" if array.type.tz is None else "Z"
    days, rests = np.divmod(_counts(array), 86_400 * _PER_SECOND[unit])
    clocks = np.datetime_as_string(rests.astype(f"datetime64[{unit}]"), unit=unit if unit == "ns" else "us").tolist()
    texts = [f"{day}{clock[10:]}{suffix}" for day, clock in zip(_day_texts(days), clocks, strict=True)]
    return _where_valid(array, texts)


def _seconds(count: int, unit: str) -> tuple[int, str]:
    """Seconds, and the digits of their fraction: six, or nine of nanoseconds."""
    seconds, rest = divmod(count, _PER_SECOND[unit])
    places = 9 if unit == "ns" else 6
    return seconds, f"{rest * 10**places // _PER_SECOND[unit]:0{places}}"


def _clock(count: int, unit: str) -> str:
    seconds, fraction = _seconds(count, unit)
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}.{fraction}"


def _duration(count: int, unit: str) -> str:
    seconds, fraction = _seconds(abs(count), unit)
    return f"{'-' if count < 0 else ''}PT{seconds}.{fraction}S"


def _interval(value: Any) -> str:
    """Of DuckDB, which counts microseconds. Without months and days it is a duration."""
    micros = value.nanoseconds // 1_000
    if not (value.months or value.days):
        return _duration(micros, "us")
    seconds, fraction = _seconds(abs(micros), "us")
    return f"P{value.months}M{value.days}DT{'-' if micros < 0 else ''}{seconds}.{fraction}S"


def _texts(array: pa.Array) -> list[Any]:
    """Texts, bytes, booleans and nulls."""
    if _is_bytes(array.type):
        return [None if value is None else f"X'{value.hex().upper()}'" for value in array.to_pylist()]
    try:
        return list(array.to_pylist())
    except UnicodeDecodeError:
        return [None if value is None else value.decode("utf-8", "replace") for value in exact(array).to_pylist()]


def _is_bytes(type: pa.DataType) -> bool:
    return bool(kinds.is_binary(type) or kinds.is_large_binary(type) or kinds.is_fixed_size_binary(type))


def _nested(array: pa.Array) -> list[Any]:
    type, valid = array.type, array.is_valid().to_pylist()
    if kinds.is_struct(type):
        parts = [json_values(array.field(place)) for place in range(type.num_fields)]
        rows: Sequence[Any] = _named([field.name for field in type], parts) if parts else [{}] * len(array)
        return [row if is_valid else None for row, is_valid in zip(rows, valid, strict=True)]
    if kinds.is_union(type):
        parts = [json_values(array.field(place)) for place in range(type.num_fields)]
        return [parts[type.type_codes.index(code)][row] for row, code in enumerate(array.type_codes.to_pylist())]
    if kinds.is_fixed_size_list(type):
        array = array.cast(pa.list_(type.value_field))
    offsets: Sequence[int] = array.offsets.to_pylist()
    first, last = offsets[0], offsets[-1]  # a slice of an array has the members of the whole
    if kinds.is_map(type):
        pairs = [json_values(part.slice(first, last - first)) for part in (array.keys, array.items)]
        flat: list[Any] = _named(("key", "value"), pairs)
    else:
        flat = json_values(array.values.slice(first, last - first))
    spans = zip(offsets[:-1], offsets[1:], valid, strict=True)
    return [flat[start - first : stop - first] if is_valid else None for start, stop, is_valid in spans]


def _named(names: Sequence[str], parts: Sequence[Sequence[Any]]) -> list[dict[str, Any]]:
    """Objects of these parts. Names that come again get numbers: a, a_1."""
    taken = dict.fromkeys(names)
    unique: list[str] = []
    for name in names:
        if name in unique:
            name = next(free for number in count(1) if (free := f"{name}_{number}") not in taken)
            taken[name] = None
        unique.append(name)
    return [dict(zip(unique, row, strict=True)) for row in zip(*parts, strict=True)]


def _csv_values(column: pa.ChunkedArray) -> list[str]:
    values = json_values(column)
    if kinds.is_nested(column.type):
        return ["" if value is None else _quoted(msgspec.json.encode(value).decode()) for value in values]
    if kinds.is_boolean(column.type):
        return ["" if value is None else "true" if value else "false" for value in values]
    is_text = kinds.is_string(column.type) or kinds.is_large_string(column.type) or kinds.is_dictionary(column.type)
    written = _quoted if is_text or _is_bytes(column.type) else str
    return ["" if value is None else written(value) for value in values]


def _quoted(text: str) -> str:
    return '"' + text.replace('"', '""') + '"'
