"""What goes over the network: messages, and errors that stay themselves on the way. Nothing here is unpickled.

A message's frame is ``length of head (u32, little endian) | head (JSON) | one Arrow IPC stream per record batch``;
the head says how long each stream is.
"""

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from upriver import errors
from upriver.errors import ProtocolError, UpriverError
from upriver.net.arrow_frames import read_stream

_HEAD_BYTES = struct.Struct("<I")
_COMPACT = json.JSONEncoder(separators=(",", ":"))
"""Made once: ``json.dumps`` would make one for each message."""
_PLAIN = json.JSONDecoder()
_ERRORS: Mapping[str, type[UpriverError]] = {
    name: error for name, error in vars(errors).items() if isinstance(error, type) and issubclass(error, UpriverError)
}


@dataclass(frozen=True, slots=True)
class Message:
    """Something said over a channel. fields: what JSON can hold. batches: may differ in schema."""

    kind: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    batches: tuple[pa.RecordBatch, ...] = ()


def encode(message: Message) -> pa.Buffer:
    """The message's frame. Raises ProtocolError for fields that JSON cannot hold."""
    sizes = [_stream_bytes(batch) for batch in message.batches]
    head = encode_json({"kind": message.kind, "fields": dict(message.fields), "sizes": sizes})
    # One buffer of the right size: one that grows, or parts that are joined, cost as much as all the rest.
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
    """Compact JSON. Raises ProtocolError for what JSON cannot hold."""
    try:
        return _COMPACT.encode(dict(value)).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise ProtocolError(f"not to be said in JSON: {error}") from error


def decode_json(text: pa.Buffer | bytes) -> dict[str, Any]:
    """A JSON object. Raises ProtocolError for anything else, and for one nested more deeply than Python reads."""
    try:
        value = _PLAIN.decode(str(text, "utf-8"))
    except RecursionError:
        raise ProtocolError(f"{len(text)} bytes of JSON that is nested too deeply") from None
    except ValueError as error:
        raise ProtocolError(f"{len(text)} bytes that are no JSON: {error}") from error
    if not isinstance(value, dict):
        raise ProtocolError(f"JSON of type {type(value).__name__} where an object belongs")
    return value


def error_to_json(error: Exception, text_chars_max: int | None = None) -> dict[str, str]:
    """An error as class name and message, without its stack. What is none of ours becomes a ProtocolError."""
    if isinstance(error, UpriverError):
        kind, text = type(error).__name__, str(error)
    else:
        kind, text = ProtocolError.__name__, f"{type(error).__name__}: {error}"
    if text_chars_max is not None and len(text) > text_chars_max:
        text = f"{text[:text_chars_max]}... ({len(text) - text_chars_max} more characters)"
    return {"error": kind, "message": text}


def error_from_json(fields: Mapping[str, Any]) -> UpriverError:
    """The inverse of :func:`error_to_json`. A class that is not in :mod:`upriver.errors` becomes a ProtocolError."""
    kind, text = str(fields.get("error")), str(fields.get("message"))
    known = _ERRORS.get(kind)
    return ProtocolError(f"{kind}: {text}") if known is None else known(text)
