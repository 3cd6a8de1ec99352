"""Schemas as JSON, those of keys as lookups send them, and rows as bytes."""

import base64

import pyarrow as pa

from upriver.plan.types import check_names

EVERYTHING_KEY = pa.schema([pa.field("()", pa.int8())])
"""The key ``()``, which has no column, as lookups send it: 0."""


def schema_to_json(schema: pa.Schema) -> str:
    """An Arrow schema as base64 of its IPC form."""
    return base64.b64encode(schema.serialize().to_pybytes()).decode("ascii")


def schema_from_json(text: str) -> pa.Schema:
    """The inverse of :func:`schema_to_json`. Raises ValueError for what is none, also for names that are no texts."""
    schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))
    check_names(schema)
    return schema


def key_schema(key: tuple[str, ...], schema: pa.Schema) -> pa.Schema:
    """The columns of a view's key as lookups send them. schema: of the view."""
    return pa.schema([schema.field(name) for name in key]) if key else EVERYTHING_KEY


def rows_to_bytes(rows: pa.RecordBatch) -> bytes:
    """Rows as an Arrow IPC stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as stream:
        stream.write_batch(rows)
    return bytes(sink.getvalue().to_pybytes())


def rows_from_bytes(rows: bytes) -> pa.RecordBatch:
    """The inverse of :func:`rows_to_bytes`."""
    with pa.ipc.open_stream(rows) as stream:
        return stream.read_next_batch()
