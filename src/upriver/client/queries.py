"""Queries of a client: what goes to the driver, which evaluates them, and what comes back."""

import base64
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa

from upriver.arguments import clipped_repr, text
from upriver.errors import DeclarationError, ProtocolError, UserError
from upriver.net.wire import read_stream
from upriver.plan.schemas import rows_to_bytes

QUERY = "query"
"""The piece that a coordinator's service has for queries."""
QUERY_S = 60.0
"""Seconds that a query may take, unless the caller says otherwise."""
PARAMETER_BYTES_MAX = 4 << 20
"""Bytes of a query's parameters."""
VALUE_CHARS_MAX = 100
"""Characters of a value in a message."""
ANSWER_BYTES_MAX = (1 << 31) - 1
"""Bytes of an answer: it is one batch, whose texts have no more together."""
ANSWER = pa.schema([("stream", pa.large_binary())])
"""The columns of an answer on its way: one row, with the answer's own stream."""

Parameters = Sequence[Any] | Mapping[str, Any]
"""Values for each ``?`` of a query, in their order, or by name for each ``:name``."""


def query_fields(sql: str, parameters: Parameters | None, timeout: float = QUERY_S) -> dict[str, Any]:
    """What a client asks. timeout: seconds for which it waits. Raises DeclarationError for a value that no column can
    have."""
    given = {} if parameters is None else parameters
    if isinstance(given, str | bytes) or not isinstance(given, Mapping | Sequence):
        raise DeclarationError(
            f"parameters={clipped_repr(given, VALUE_CHARS_MAX)}: give a list for ?, or a dict by name for :name"
        )
    named = given if isinstance(given, Mapping) else {str(place): value for place, value in enumerate(given, start=1)}
    row = pa.RecordBatch.from_arrays([_column(name, value) for name, value in named.items()], list(map(str, named)))
    if (size := len(stream := rows_to_bytes(row))) > PARAMETER_BYTES_MAX:
        raise DeclarationError(f"parameters of {size:,} bytes: at most {PARAMETER_BYTES_MAX >> 20} MiB are taken")
    return {"sql": text("sql", sql), "parameters": base64.b64encode(stream).decode(), "timeout_s": timeout}


def parameters_from_json(given: Any) -> pa.RecordBatch:
    """The row of parameters. Raises ProtocolError for anything else."""
    try:
        stream = base64.b64decode(given, validate=True)
    except (TypeError, ValueError) as error:
        raise ProtocolError(f"parameters that are none: {error}") from None
    if len(stream) > PARAMETER_BYTES_MAX:
        raise ProtocolError(f"parameters of {len(stream):,} bytes: at most {PARAMETER_BYTES_MAX:,} are taken")
    row = read_stream(pa.py_buffer(stream))
    if row.num_columns and row.num_rows != 1:
        raise ProtocolError(f"{row.num_rows} rows of parameters, where one belongs")
    return row


def answer_as_batch(answer: pa.Table) -> pa.RecordBatch:
    """The answer as it goes to the client. Raises UserError if it is too large."""
    if answer.nbytes > ANSWER_BYTES_MAX:
        raise UserError(
            f"the answer has {answer.nbytes:,} bytes, of {ANSWER_BYTES_MAX:,}: ask for fewer rows, or read "
            "the view with client.scan"
        )
    batches = answer.combine_chunks().to_batches()
    rows = batches[0] if batches else pa.RecordBatch.from_pylist([], schema=answer.schema)
    return pa.RecordBatch.from_arrays([pa.array([rows_to_bytes(rows)], pa.large_binary())], schema=ANSWER)


def answer_of(batch: pa.RecordBatch | None) -> pa.Table:
    """The inverse of :func:`answer_as_batch`. Raises ProtocolError for another batch."""
    if batch is None or not batch.schema.equals(ANSWER) or batch.num_rows != 1:
        raise ProtocolError("an answer that is none of a query's")
    return pa.Table.from_batches([read_stream(batch.column(0)[0].as_buffer())])


def _column(name: str, value: Any) -> pa.Array:
    if isinstance(value, int) and not isinstance(value, bool) and not -(1 << 63) <= value < 1 << 63:
        value = Decimal(value)
    try:
        return pa.array([value.as_py() if isinstance(value, pa.Scalar) else value])
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        shown = clipped_repr(value, VALUE_CHARS_MAX)
        raise DeclarationError(f"parameter {name}={shown}: no column can have this value ({error})") from None
