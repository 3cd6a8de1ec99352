"""Rows as messages tell them."""

import pyarrow as pa

VALUE_CHARS_MAX = 60
"""Of a value in a message."""
ROW_CHARS_MAX = 500
"""Of a row in a message."""


def value_text(values: pa.Array) -> str:
    """The first of these values."""
    if not values[0].is_valid:
        return "NULL"
    try:
        text = str(values[0].as_py())
    except (OverflowError, ValueError):  # a point in time that Spark has and Python has not
        text = str(values.slice(0, 1).cast(pa.int64())[0].as_py())
    return _clipped(text, VALUE_CHARS_MAX)


def row_text(rows: pa.RecordBatch, place: int) -> str:
    """One of these rows: ``id = 7, name = a``."""
    row = rows.slice(place, 1)
    columns = zip(row.schema.names, row.columns, strict=True)
    return _clipped(", ".join(f"{name} = {value_text(values)}" for name, values in columns), ROW_CHARS_MAX)


def _clipped(text: str, chars: int) -> str:
    return text if len(text) <= chars else f"{text[:chars]}..."
