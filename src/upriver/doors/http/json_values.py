"""Rows as JSON, CSV and lines of JSON, without loss.

| type | in JSON |
|---|---|
| TINYINT to BIGINT | a number; a text of digits beyond 2^53, where other languages' numbers end |
| DECIMAL | a text with all its places, ``"1.50"`` |
| FLOAT, DOUBLE | a number; ``"NaN"``, ``"Infinity"``, ``"-Infinity"`` |
| DATE | ``"2024-02-29"`` |
| TIMESTAMP | an instant in UTC, ``"2024-02-29T11:00:00.000000Z"`` |
| TIMESTAMP_NTZ | a local time, ``"2024-02-29T12:00:00.000000"`` |
| INTERVAL DAY TO SECOND | a duration of ISO 8601 in seconds, ``"PT90.500000S"`` |
| BINARY | ``"X'00FF'"`` |
| BOOLEAN, STRING, NULL | ``true``, a text, ``null`` |
| ARRAY, STRUCT | a list, an object |
| MAP | a list of ``{"key": ..., "value": ...}`` |

A key of a lookup may be given in the same forms. A STRING that is not UTF-8 has U+FFFD for its wrong bytes; in Arrow it
is exact. Whole columns are converted at a time.
"""

import json
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.types as kinds

from upriver.state.columns import exact

EXACT_INTEGER_MAX = (1 << 53) - 1
"""The largest whole number that a double holds, as do all below it."""
_MICROS = 1_000_000


def rows_of(table: pa.Table) -> list[dict[str, Any]]:
    """The rows as objects that JSON can hold."""
    columns = [json_values(column) for column in table.columns]
    names = table.column_names
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def json_bytes(value: Any) -> bytes:
    """JSON of plain values; numbers that JSON does not have as text."""
    return msgspec.json.encode(value, enc_hook=str)


def ndjson_bytes(table: pa.Table) -> bytes:
    """A line of JSON for each row."""
    return msgspec.json.Encoder().encode_lines(rows_of(table))


def csv_bytes(table: pa.Table) -> bytes:
    """CSV with a line of names; values as in JSON, nested ones as JSON texts, null as nothing and no text as ``""``."""
    columns = [pa.array(map(_csv_text, json_values(column)), pa.string()) for column in table.columns]
    sink = pa.BufferOutputStream()
    pyarrow.csv.write_csv(pa.Table.from_arrays(columns, names=table.column_names), sink)
    return bytes(sink.getvalue())


def arrow_bytes(table: pa.Table) -> bytes:
    """A stream of Arrow's IPC format."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def json_values(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """The values of a column as JSON has them."""
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    type = array.type
    if kinds.is_integer(type):
        return _integers(array)
    if kinds.is_floating(type):
        return _floats(array)
    if kinds.is_decimal(type):
        return list(array.cast(pa.string()).to_pylist())
    if kinds.is_date(type):
        return _dated(array, array.cast(pa.date32()).cast(pa.int32()), "D", "")
    if kinds.is_timestamp(type):
        micros = array.cast(pa.timestamp("us", type.tz)).cast(pa.int64())
        return _dated(array, micros, "us", "" if type.tz is None else "Z")
    if kinds.is_duration(type):
        return [None if value is None else _duration(value) for value in array.cast(pa.int64()).to_pylist()]
    if kinds.is_nested(type):
        return _nested(array)
    return _texts(array)


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
    names = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
    return [None if each is None else names.get(str(each), each) for each in values]


def _dated(array: pa.Array, numbers: pa.Array, unit: str, suffix: str) -> list[Any]:
    """Dates and times from days or microseconds since 1970: any year, which Python's own dates cannot hold."""
    counts = numbers.fill_null(0).to_numpy(zero_copy_only=False)
    texts = np.datetime_as_string(counts.astype(f"datetime64[{unit}]")).tolist()
    valid = array.is_valid().to_pylist()
    return [text + suffix if is_valid else None for text, is_valid in zip(texts, valid, strict=True)]


def _duration(micros: int) -> str:
    seconds, fraction = divmod(abs(micros), _MICROS)
    return f"{'-' if micros < 0 else ''}PT{seconds}.{fraction:06d}S"


def _texts(array: pa.Array) -> list[Any]:
    """Texts, bytes, booleans and nulls."""
    if kinds.is_binary(array.type) or kinds.is_large_binary(array.type) or kinds.is_fixed_size_binary(array.type):
        return [None if value is None else f"X'{value.hex().upper()}'" for value in array.to_pylist()]
    try:
        return list(array.to_pylist())
    except UnicodeDecodeError:
        return [None if value is None else value.decode("utf-8", "replace") for value in exact(array).to_pylist()]


def _nested(array: pa.Array) -> list[Any]:
    valid = array.is_valid().to_pylist()
    if kinds.is_struct(array.type):
        names = [field.name for field in array.type]
        parts = [json_values(array.field(place)) for place in range(len(names))] or [[()] * len(array)]
        rows = zip(*parts, strict=True) if names else ((),) * len(array)
        return [dict(zip(names, row, strict=True)) if ok else None for row, ok in zip(rows, valid, strict=True)]
    offsets: Sequence[int] = array.offsets.to_pylist()
    if kinds.is_map(array.type):
        keys, values = json_values(array.keys), json_values(array.items)
        flat: list[Any] = [{"key": key, "value": value} for key, value in zip(keys, values, strict=True)]
    else:
        flat = json_values(array.values)
    spans = zip(offsets[:-1], offsets[1:], valid, strict=True)
    return [flat[start:stop] if ok else None for start, stop, ok in spans]


def _csv_text(value: Any) -> str | None:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | dict):
        return json.dumps(value, separators=(",", ":"))
    return None if value is None else str(value)
