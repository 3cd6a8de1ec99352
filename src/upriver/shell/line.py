"""A line: one end of a plain socket over which lookups go, a small head and perhaps one Arrow batch at a time.

A frame is ``bytes of head (u32) | bytes of batch (u64) | head | batch``, numbers little endian. The head is a JSON
object; the batch is an Arrow IPC message without its schema. The head of a batch names a ``view``, and tells the schema
with that view's first batch, and again if it changes. Nothing is ever unpickled.
"""

import socket
import struct
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import pyarrow as pa

from upriver.dataflow.plan import schema_from_json, schema_to_json
from upriver.errors import ProtocolError
from upriver.shell.wire import decode_json, encode_json

HEAD_BYTES_MAX = 1 << 20
"""Bytes of a frame's head."""
BATCH_BYTES_MAX = 1 << 34
"""Bytes of a frame's batch."""
VIEWS_MAX = 10_000
"""Views whose schema one end remembers of the other."""
BUFFER_BYTES = 1 << 16
"""Bytes that are read at a time, if they are there: nearly always a whole frame."""
JOINED_BYTES_MAX = 1 << 16
"""A batch of at most so many bytes is copied behind its head, to be sent in one go."""

_SIZES = struct.Struct("<IQ")


class Line:
    """One thread at a time sends, one receives; any may ``cut``. A socket's own errors are raised as OSError."""

    def __init__(self, connected: socket.socket) -> None:
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = connected
        self._held = b""
        """Read, and not taken yet."""
        self._told: dict[str, pa.Schema] = {}
        self._heard: dict[str, pa.Schema] = {}

    def read(self, size: int) -> bytes:
        """So many bytes that are no frame; fewer if the other end has closed the line."""
        while len(self._held) < size and (more := self._socket.recv(BUFFER_BYTES)):
            self._held += more
        data, self._held = self._held[:size], self._held[size:]
        return data

    def send(self, head: Mapping[str, Any], batch: pa.RecordBatch | None = None) -> None:
        """Send a frame. head: of what JSON can hold, with the batch's ``view``."""
        if batch is None:
            text = encode_json(head)
            self._socket.sendall(_SIZES.pack(len(text), 0) + text)
            return
        told = self._told.get(head["view"])
        if told is None or not told.equals(batch.schema):
            self._told[head["view"]] = batch.schema
            head = {**head, "schema": schema_to_json(batch.schema)}
        text, body = encode_json(head), batch.serialize()
        front = _SIZES.pack(len(text), body.size) + text
        if body.size <= JOINED_BYTES_MAX:
            self._socket.sendall(b"".join((front, body)))
        else:
            self._socket.sendall(front)
            self._socket.sendall(body)

    def receive(self) -> tuple[dict[str, Any], pa.RecordBatch | None] | None:
        """The next frame; ``None`` if the other end has closed the line.

        Raises ProtocolError for what is no frame; the line is of no more use then.
        """
        sizes = self.read(_SIZES.size)
        if not sizes:
            return None
        head_bytes, batch_bytes = _SIZES.unpack(_whole(sizes, _SIZES.size))
        if head_bytes > HEAD_BYTES_MAX or batch_bytes > BATCH_BYTES_MAX:
            raise ProtocolError(f"a frame of {head_bytes:,} and {batch_bytes:,} bytes")
        head = decode_json(_whole(self.read(head_bytes), head_bytes))
        return head, self._batch(head, self._body(batch_bytes)) if batch_bytes else None

    def _body(self, size: int) -> bytes | bytearray:
        """A large one is read to where it stays."""
        if size <= BUFFER_BYTES:
            return _whole(self.read(size), size)
        body = bytearray(size)
        begun, rest = self.read(min(len(self._held), size)), memoryview(body)
        rest[: len(begun)] = begun
        rest = rest[len(begun) :]
        while rest:
            rest = rest[self._received(rest) :]
        return body

    def _received(self, into: memoryview) -> int:
        count = self._socket.recv_into(into)
        if not count:
            raise _cut_short()
        return count

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
        with suppress(OSError):  # the other end was faster
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Cut, and give the socket back; nobody may use the line any more."""
        self.cut()
        self._socket.close()


def _whole(data: bytes, size: int) -> bytes:
    if len(data) < size:
        raise _cut_short()
    return data


def _cut_short() -> ConnectionError:
    return ConnectionError("closed in the midst of a frame")
