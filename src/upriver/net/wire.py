"""The wire format: messages, record batches and errors. Nothing here is unpickled.

A message's frame is ``length of head (u32, little endian) | head (JSON) | one Arrow IPC stream per record batch``;
the head says how long each stream is.

Arrow IPC messages from the network are refused before decoding if they are compressed, and checked in full after it. A
compressed body of a few bytes can unfold to gigabytes, and a batch can claim any number of rows. Upriver's own ends
never compress, so the reader looks at a message's metadata first, and refuses a compressed one. Arrow has verified the
metadata by then, as far as its own bounds go. After decoding, the reader checks every buffer against every other, text
and dictionaries included: an unchecked batch can crash the process.
"""

import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pyarrow as pa

from upriver import errors
from upriver.errors import DeclarationError, ProtocolError, UpriverError
from upriver.plan.types import check_names
from upriver.state.columns import exact

_U16, _I32, _U32, _I64 = (struct.Struct(form).unpack_from for form in ("<H", "<i", "<I", "<q"))
_SCHEMA, _DICTIONARY, _BATCH = 1, 2, 3
"""Kinds of messages."""
_FAULTS = (pa.ArrowException, OSError, EOFError, StopIteration, LookupError, TypeError, ValueError, struct.error)
"""Errors that Arrow raises for bytes that it cannot read."""
ROWS_MAX = (1 << 31) - 1
"""Rows of a batch, unless a smaller limit is given: as many as Arrow counts in 32 bits."""


def read_batch(message: pa.Buffer, schema: pa.Schema, rows_max: int = ROWS_MAX) -> pa.RecordBatch:
    """A batch, valid in all its parts, from its message without a schema. Raises ProtocolError for any other."""
    try:
        said = pa.ipc.read_message(message)
        _check(said.metadata.to_pybytes(), rows_max)
        batch = pa.ipc.read_record_batch(said, schema)
        _validate(batch)
        return batch
    except _FAULTS as error:
        raise _malformed(message, error) from error


def read_stream(stream: pa.Buffer) -> pa.RecordBatch:
    """The one batch of a stream, valid in all its parts. Raises ProtocolError for any other."""
    try:
        messages = pa.ipc.MessageReader.open_stream(stream)
        told = messages.read_next_message()
        if _kind(told.metadata.to_pybytes()) != _SCHEMA:  # Arrow does not check this
            raise ProtocolError("a stream that does not begin with its schema")
        schema = pa.ipc.read_schema(told)
        check_names(schema)
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
    """Check every buffer. A text of Spark's may have any bytes: invalid UTF-8 alone is no fault."""
    try:
        batch.validate(full=True)
    except pa.ArrowInvalid:
        for column in batch.columns:
            column.validate()
            exact(column).validate(full=True)


@contextmanager
def refusing_malformed(sender: str) -> Iterator[None]:
    """A block that reads the fields of an answer. Raises ProtocolError for one that lacks a field, or has another kind
    of value there. sender: its address."""
    try:
        yield
    except (*_FAULTS, AttributeError, OverflowError, DeclarationError) as error:
        raise ProtocolError(f"{sender} sent a malformed answer: {type(error).__name__}: {error}") from error


def _malformed(message: pa.Buffer, error: BaseException) -> ProtocolError:
    return ProtocolError(f"a batch of {message.size} bytes is malformed: {error}")


def _check(metadata: bytes, rows_max: int) -> int:
    """Check a message's metadata; returns its kind. Raises ProtocolError for a message to refuse."""
    kind, table = _kind(metadata), _table(metadata, _U32(metadata)[0], 2)
    if kind == _DICTIONARY:
        table = _table(metadata, table, 1)
    elif kind != _BATCH:
        raise ProtocolError("a message where a batch belongs")
    # Inlined, since each lookup does it: fields 0, rows, and 3, which only a compressed batch has.
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
    """The position of a field in a flatbuffer's table, by its number; 0 if the field is absent."""
    layout, at = table - _I32(metadata, table)[0], 4 + 2 * number
    if at >= _U16(metadata, layout)[0]:
        return 0
    offset: int = _U16(metadata, layout + at)[0]
    return table + offset if offset else 0


def _table(metadata: bytes, table: int, number: int) -> int:
    """The position of the table that a field points to. Raises IndexError if there is none."""
    at = _field(metadata, table, number)
    if not at:
        raise IndexError(f"field {number} is missing")
    return at + int(_U32(metadata, at)[0])


_HEAD_BYTES = struct.Struct("<I")
_JSON_ENCODER = msgspec.json.Encoder()
_JSON_DECODER = msgspec.json.Decoder()
_ERRORS: Mapping[str, type[UpriverError]] = {
    name: error for name, error in vars(errors).items() if isinstance(error, type) and issubclass(error, UpriverError)
}


@dataclass(frozen=True, slots=True)
class Message:
    """A message on a channel. fields: values that JSON can hold. batches: may differ in schema."""

    kind: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    batches: tuple[pa.RecordBatch, ...] = ()


def encode(message: Message) -> pa.Buffer:
    """The message's frame. Raises ProtocolError for fields that JSON cannot hold."""
    sizes = [_stream_bytes(batch) for batch in message.batches]
    head = encode_json({"kind": message.kind, "fields": dict(message.fields), "sizes": sizes})
    # One buffer of the right size: a growing buffer, or joined parts, would double the cost.
    frame = pa.allocate_buffer(_HEAD_BYTES.size + len(head) + sum(sizes))
    sink = pa.FixedSizeBufferWriter(frame)
    sink.write(_HEAD_BYTES.pack(len(head)) + head)
    for batch in message.batches:
        _write_stream(sink, batch)
    return frame


def decode(frame: pa.Buffer) -> Message:
    """The inverse of :func:`encode`; batches share the frame's memory. Raises ProtocolError for a malformed frame."""
    try:
        (head_bytes,) = _HEAD_BYTES.unpack_from(frame)
        start = _HEAD_BYTES.size + head_bytes
        head = decode_json(frame.slice(_HEAD_BYTES.size, head_bytes))
        batches = []
        for size in head["sizes"]:
            batches.append(read_stream(frame.slice(start, size)))
            start += size
        kind, fields = head["kind"], head["fields"]
        if not isinstance(kind, str) or not isinstance(fields, dict):
            raise TypeError(f"a message of kind {kind!r}")
        return Message(kind, fields, tuple(batches))
    except ProtocolError as error:
        raise ProtocolError(f"a frame of {frame.size} bytes is malformed: {error}") from error
    except (struct.error, LookupError, TypeError, ValueError, pa.ArrowException) as error:
        raise ProtocolError(f"a frame of {frame.size} bytes is malformed: {error}") from error


def _stream_bytes(batch: pa.RecordBatch) -> int:
    counter = pa.MockOutputStream()
    _write_stream(counter, batch)
    return int(counter.size())


def _write_stream(sink: Any, batch: pa.RecordBatch) -> None:
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)


def encode_json(value: Mapping[str, Any]) -> bytes:
    """Compact JSON. Infinite numbers become null and bytes base64, as JSON has neither.

    Raises ProtocolError for values that JSON cannot hold, and for text that is not Unicode.
    """
    try:
        return _JSON_ENCODER.encode(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise ProtocolError(f"cannot be written as JSON: {error}") from error


def decode_json(text: pa.Buffer | bytes) -> dict[str, Any]:
    """A JSON object. Raises ProtocolError for anything else, and for JSON nested more deeply than Python reads."""
    try:
        value = _JSON_DECODER.decode(text)
    except RecursionError:
        raise ProtocolError(f"{len(text)} bytes of JSON that is nested too deeply") from None
    except (ValueError, msgspec.DecodeError) as error:
        raise ProtocolError(f"{len(text)} bytes that are no JSON: {error}") from error
    if not isinstance(value, dict):
        raise ProtocolError(f"JSON of type {type(value).__name__} where an object belongs")
    return value


class AskedFields(dict[str, Any]):
    """The fields of a question of the other end. A field that it lacks raises ProtocolError, which names it."""

    def __missing__(self, name: str) -> Any:
        raise ProtocolError(f"the question lacks the field {name!r}")


def error_to_json(error: Exception, text_chars_max: int | None = None) -> dict[str, str]:
    """An error as class name and message, without its stack. A foreign error becomes a ProtocolError."""
    if isinstance(error, UpriverError):
        kind, text = type(error).__name__, str(error)
    else:
        kind, text = ProtocolError.__name__, f"{type(error).__name__}: {error}"
    if text_chars_max is not None and len(text) > text_chars_max:
        text = f"{text[:text_chars_max]}... ({len(text) - text_chars_max} more characters)"
    # A file's name may have bytes that are no text; they must not keep the error from its caller.
    return {"error": kind, "message": text.encode(errors="backslashreplace").decode()}


def error_from_json(fields: Mapping[str, Any]) -> UpriverError:
    """The inverse of :func:`error_to_json`. A class that is not in :mod:`upriver.errors` becomes a ProtocolError."""
    kind, text = str(fields.get("error")), str(fields.get("message"))
    known = _ERRORS.get(kind)
    return ProtocolError(f"{kind}: {text}") if known is None else known(text)
