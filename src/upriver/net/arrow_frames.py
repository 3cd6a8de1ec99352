"""Arrow IPC messages that came over the wire: refused before they are decoded if they unfold, checked in full after.

A compressed body of a few bytes can unfold to gigabytes, and a batch can claim any number of rows. Upriver's own ends
never compress, so a message's metadata is read first, and a compressed one is refused. Arrow has verified the metadata
by then, as far as its own bounds go. After decoding, every buffer is checked against every other, text and dictionaries
included: a batch that is used unchecked can end the process.
"""

import struct

import pyarrow as pa

from upriver.errors import ProtocolError
from upriver.state.exact_values import exact

_U16, _I32, _U32, _I64 = (struct.Struct(form).unpack_from for form in ("<H", "<i", "<I", "<q"))
_SCHEMA, _DICTIONARY, _BATCH = 1, 2, 3
"""Kinds of messages."""
_FAULTS = (pa.ArrowException, OSError, EOFError, StopIteration, LookupError, TypeError, ValueError, struct.error)
"""What Arrow raises for what it cannot read."""
ROWS_MAX = (1 << 31) - 1
"""Rows of a batch, where nothing smaller is said: as many as Arrow counts in 32 bits."""


def read_batch(message: pa.Buffer, schema: pa.Schema, rows_max: int = ROWS_MAX) -> pa.RecordBatch:
    """A batch from its message, which tells no schema, valid in all its parts. Raises ProtocolError for any other."""
    try:
        said = pa.ipc.read_message(message)
        _check(said.metadata.to_pybytes(), rows_max)
        batch = pa.ipc.read_record_batch(said, schema)
        _validate(batch)
        return batch
    except _FAULTS as error:
        raise _malformed(message, error) from error


def read_trusted_batch(message: pa.Buffer, schema: pa.Schema) -> pa.RecordBatch:
    """A batch from its message, of a sender that has proved itself: its values are taken as they come.

    Raises ProtocolError for a malformed one.
    """
    try:
        batch = pa.ipc.read_record_batch(message, schema)
        batch.validate()
        return batch
    except _FAULTS as error:
        raise _malformed(message, error) from error


def read_stream(stream: pa.Buffer) -> pa.RecordBatch:
    """The one batch of a stream, valid in all its parts. Raises ProtocolError for any other."""
    try:
        messages = pa.ipc.MessageReader.open_stream(stream)
        told = messages.read_next_message()
        if _kind(told.metadata.to_pybytes()) != _SCHEMA:  # which Arrow takes for granted
            raise ProtocolError("a stream that does not begin with its schema")
        schema = pa.ipc.read_schema(told)
        said = messages.read_next_message()
        if _check(said.metadata.to_pybytes(), ROWS_MAX) == _BATCH:
            batch = pa.ipc.read_record_batch(said, schema)
        else:
            for later in messages:
                _check(later.metadata.to_pybytes(), ROWS_MAX)
            batch = pa.ipc.open_stream(stream).read_next_batch()
        _validate(batch)
        return batch
    except _FAULTS as error:
        raise _malformed(stream, error) from error


def _validate(batch: pa.RecordBatch) -> None:
    """Check every buffer. A text of Spark's may have any bytes: where only that is found, it is no fault."""
    try:
        batch.validate(full=True)
    except pa.ArrowInvalid:
        for column in batch.columns:
            column.validate()
            exact(column).validate(full=True)


def _malformed(message: pa.Buffer, error: BaseException) -> ProtocolError:
    return ProtocolError(f"a batch of {message.size} bytes is malformed: {error}")


def _check(metadata: bytes, rows_max: int) -> int:
    """Look a message's metadata over; its kind. Raises ProtocolError for a message to refuse."""
    kind, table = _kind(metadata), _table(metadata, _U32(metadata)[0], 2)
    if kind == _DICTIONARY:
        table = _table(metadata, table, 1)
    elif kind != _BATCH:
        raise ProtocolError("a message where a batch belongs")
    # Written out, as it is done for each lookup: fields 0, rows, and 3, which only a compressed batch has.
    layout = table - _I32(metadata, table)[0]
    (layout_bytes,) = _U16(metadata, layout)
    rows_at = _U16(metadata, layout + 4)[0] if layout_bytes > 4 else 0
    rows = _I64(metadata, table + rows_at)[0] if rows_at else 0
    if not 0 <= rows <= rows_max:
        raise ProtocolError(f"a batch of {rows:,} rows: at most {rows_max:,} can be taken")
    if layout_bytes > 10 and _U16(metadata, layout + 10)[0]:
        raise ProtocolError("a compressed batch: it is to be sent as it is")
    return kind


def _kind(metadata: bytes) -> int:
    kind_at = _field(metadata, _U32(metadata)[0], 1)
    return metadata[kind_at] if kind_at else 0


def _field(metadata: bytes, table: int, number: int) -> int:
    """Where a table of a flatbuffer has its field of that number; 0 if it is absent."""
    layout, at = table - _I32(metadata, table)[0], 4 + 2 * number
    if at >= _U16(metadata, layout)[0]:
        return 0
    offset: int = _U16(metadata, layout + at)[0]
    return table + offset if offset else 0


def _table(metadata: bytes, table: int, number: int) -> int:
    """Where the table lies that a field points to. Raises IndexError if there is none."""
    at = _field(metadata, table, number)
    if not at:
        raise IndexError(f"field {number} is missing")
    return at + int(_U32(metadata, at)[0])
