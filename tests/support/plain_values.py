"""Values of every type in one plain form, in which two of them can be compared, and written as JSON."""

import json
import math
from decimal import Decimal
from typing import Any

import pyarrow as pa

RAISES: dict[str, Any] = {}
"""In place of a value that cannot be computed; in JSON no value is an object."""


def plain(column: pa.Array) -> list[Any]:
    """The values as Python's, times as numbers: Python's calendar ends earlier."""
    type = column.type
    if pa.types.is_timestamp(type):
        column = column.cast(pa.timestamp("us", type.tz)).view(pa.int64())
    elif pa.types.is_date32(type):
        column = column.view(pa.int32())
    elif pa.types.is_string(type):
        column = column.cast(pa.binary())
    found: list[Any] = column.to_pylist()
    return [settled(value) for value in found] if pa.types.is_nested(type) else found


def settled(value: Any) -> Any:
    """With a word for NaN, and one order of the pairs of a map."""
    if isinstance(value, dict):
        return {name: settled(part) for name, part in value.items()}
    if isinstance(value, list):
        parts = [settled(part) for part in value]
        return sorted(parts, key=repr) if value and isinstance(value[0], tuple) else parts
    if isinstance(value, tuple):
        return tuple(map(settled, value))
    return ("NaN" if value != value else value + 0.0) if isinstance(value, float) else value


def json_values(column: pa.Array) -> list[Any]:
    """The values as JSON has them: a struct is a list, a map a list of pairs; bytes that are no UTF-8 are surrogates.
    All zeros are one, and all NaNs."""
    return [_json(value) for value in plain(column)]


def json_rows(rows: pa.Table) -> list[str]:
    """Each row as JSON, sorted."""
    columns = [json_values(column) for column in rows.combine_chunks().columns for column in column.chunks]
    return sorted(map(json_text, zip(*columns, strict=True)))


def json_text(value: Any) -> str:
    """One line."""
    text = json.dumps(value, ensure_ascii=False)
    return text if text.isprintable() else json.dumps(value)


def is_same(left: Any, right: Any, is_rough: bool = False) -> bool:
    """Whether two values as JSON are the same. is_rough: but for the last digit of a number."""
    if is_rough and isinstance(left, float) and isinstance(right, float):
        return math.isclose(left, right, rel_tol=1e-15) or json_text(left) == json_text(right)
    return json_text(left) == json_text(right)


def _json(value: Any) -> Any:
    match value:
        case float():
            return value + 0.0
        case bytes():
            return value.decode(errors="surrogateescape")
        case Decimal():
            return str(value)
        case dict():
            return list(map(_json, value.values()))
        case list() | tuple():
            return list(map(_json, value))
        case None | bool() | int() | str():
            return value
    return str(value)
