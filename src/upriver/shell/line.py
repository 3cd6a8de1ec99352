"""A line: one end of a plain socket over which lookups go, a small head and perhaps one Arrow batch at a time.

A frame is ``bytes of head (u32) | bytes of hashes (u32) | bytes of batch (u64) | head | hashes | batch``, numbers
little endian. The head is a JSON object; the batch is an Arrow IPC message without its schema; the hashes are the
hash64 of its rows, or none. The head of a batch names a ``view``, and tells the schema with that view's first batch,
and again if it changes. Nothing is ever unpickled.
"""

import struct
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from upriver.dataflow.batch import Hashes
from upriver.dataflow.plan import schema_from_json, schema_to_json
from upriver.errors import ProtocolError
from upriver.shell.byte_stream import ByteStream
from upriver.shell.wire import decode_json, encode_json

HEAD_BYTES_MAX = 1 << 20
"""Bytes of a frame's head."""
HASHES_BYTES_MAX = 1 << 31
"""Bytes of a frame's hashes."""
BATCH_BYTES_MAX = 1 << 34
"""Bytes of a frame's batch."""
VIEWS_MAX = 10_000
"""Views whose schema one end remembers of the other."""
JOINED_BYTES_MAX = 1 << 16
"""A batch of at most so many bytes is copied behind its head, to be sent in one go."""

_SIZES = struct.Struct("<IIQ")
_HASH = np.dtype("<u8")
_NO_HASHES = np.empty(0, _HASH)


class Frame(NamedTuple):
    """What one end has said. hashes: one for each row of the batch, or none at all."""

    head: dict[str, Any]
    batch: pa.RecordBatch | None
    hashes: Hashes


class Line:
    """One thread at a time sends, one receives; any may ``cut``. A socket's own errors are raised as OSError."""

    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream
        self._told: dict[str, pa.Schema] = {}
        self._heard: dict[str, pa.Schema] = {}

    def send(self, head: Mapping[str, Any], batch: pa.RecordBatch | None = None, hashes: Hashes = _NO_HASHES) -> None:
        """Send a frame. head: of what JSON can hold, with the batch's ``view``."""
        if batch is None:
            text = encode_json(head)
            self._stream.write(_SIZES.pack(len(text), 0, 0) + text)
            return
        told = self._told.get(head["view"])
        if told is None or not told.equals(batch.schema):
            self._told[head["view"]] = batch.schema
            head = {**head, "schema": schema_to_json(batch.schema)}
        text, beside, body = encode_json(head), hashes.tobytes(), batch.serialize()
        front = (_SIZES.pack(len(text), len(beside), body.size), text, beside)
        if body.size <= JOINED_BYTES_MAX:
            self._stream.write(b"".join((*front, body)))
        else:
            self._stream.write(b"".join(front))
            self._stream.write(body)

    def receive(self) -> Frame | None:
        """The next frame; ``None`` if the other end has closed the line.

        Raises ProtocolError for what is no frame; the line is of no more use then.
        """
        if self._stream.is_at_end():
            return None
        head_bytes, hashes_bytes, batch_bytes = _SIZES.unpack(self._stream.take(_SIZES.size))
        if head_bytes > HEAD_BYTES_MAX or hashes_bytes > HASHES_BYTES_MAX or batch_bytes > BATCH_BYTES_MAX:
            raise ProtocolError(f"a frame of {head_bytes:,}, {hashes_bytes:,} and {batch_bytes:,} bytes")
        head, beside = decode_json(bytes(self._stream.take(head_bytes))), self._stream.take(hashes_bytes)
        if not batch_bytes:
            return Frame(head, None, _NO_HASHES)
        batch = self._batch(head, self._stream.take(batch_bytes))
        if hashes_bytes and hashes_bytes != batch.num_rows * _HASH.itemsize:
            raise ProtocolError(f"{hashes_bytes} bytes of hashes for {batch.num_rows} rows")
        return Frame(head, batch, np.frombuffer(beside, _HASH))

    def _batch(self, head: Mapping[str, Any], body: bytes | bytearray) -> pa.RecordBatch:
        try:
            if "schema" in head:
                self._hear(str(head["view"]), schema_from_json(head["schema"]))
            return pa.ipc.read_record_batch(pa.py_buffer(body), self._heard[head["view"]])
        except (LookupError, TypeError, ValueError, OSError, pa.ArrowException) as error:
            raise ProtocolError(f"a batch of {len(body)} bytes is malformed: {error}") from error

    def _hear(self, view: str, schema: pa.Schema) -> None:
        if len(self._heard) >= VIEWS_MAX:
            raise ProtocolError(f"batches of more than {VIEWS_MAX} views")
        self._heard[view] = schema

    def cut(self) -> None:
        """End the line: whoever waits at either end sees it closed."""
        self._stream.cut()

    def close(self) -> None:
        """Cut, and give the socket back; nobody may use the line any more."""
        self._stream.close()
