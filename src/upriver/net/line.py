"""A line: one end of a plain socket that carries questions and answers, each a small head and perhaps an Arrow batch.

A frame is ``bytes of head (u32) | bytes of hashes (u32) | bytes of batch (u64) | head | hashes | batch | seal``,
numbers little endian. The head is a JSON object; the batch is an Arrow IPC message without its schema; the hashes are
the hash64 of its rows, or none. The head of a batch names a ``view``. It has the schema with that view's first batch,
and again if the schema changes. Nothing is ever unpickled.

The seal is that of :mod:`.frames`, of all before it, and is checked before anything of the frame is decoded. A large
frame has another one behind its sizes: no end waits for many bytes, or keeps them, because a stranger has announced
them.

Each end checks every byte of a batch before it uses one. The :class:`Terms` of an end say what else it accepts: a
client takes larger frames than a server does.
"""

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from upriver.errors import Busy, KeyTypeError, ProtocolError, SealBroken, UpriverError
from upriver.hashing import Hashes, check_hashable
from upriver.net.byte_stream import ByteStream
from upriver.net.frames import SEAL_BYTES, Part, Seals, Traffic, check_seal
from upriver.net.handshake import Session
from upriver.net.wire import decode_json, encode_json, error_to_json, read_batch
from upriver.plan.schemas import schema_from_json, schema_to_json

VIEWS_MAX = 10_000
"""How many views' schemas one end remembers for the other."""
SCHEMAS_CHARS_MAX = 4 << 20
"""Characters of all schemas that one end has sent the other."""
JOINED_BYTES_MAX = 1 << 16
"""A batch of at most so many bytes is copied behind its head and sent in one go; limits on traffic ignore it."""
SMALL_FRAME_BYTES_MAX = 1 << 16
"""Bytes of head, hashes and batch up to which a frame has no seal behind its sizes. They are kept without a proof."""
KEYS_MAX = 10_000_000
"""Keys of one lookup."""
HEAD_BYTES_MAX = 1 << 20
"""Bytes of all that comes with a lookup's keys."""
KEYS_BYTES_MAX = 256 << 20
"""Bytes of the keys of one lookup, as Arrow sends them."""
ERROR_TEXT_CHARS_MAX = 10_000
"""Characters of an error that a server tells a client."""

_SIZES = struct.Struct("<IIQ")
_HASH = np.dtype("<u8")
_NO_HASHES = np.empty(0, _HASH)


@dataclass(frozen=True, slots=True)
class Terms:
    """What one end accepts from the other: bytes of a frame's head, hashes and batch. read: makes a batch of its
    message and schema. check_schema: raises KeyTypeError or ProtocolError for a schema that is not accepted.
    """

    head_bytes_max: int
    hashes_bytes_max: int
    batch_bytes_max: int
    read: Callable[[pa.Buffer, pa.Schema], pa.RecordBatch] = read_batch
    check_schema: Callable[[pa.Schema], None] = lambda _: None


def _check_keys(schema: pa.Schema) -> None:
    """Keys come as plain values: a dictionary, or a type without bytes of its own, could stand for any number of
    rows."""
    if not len(schema):
        raise ProtocolError("keys without a column")
    for field in schema:
        if pa.types.is_dictionary(field.type):
            raise ProtocolError(f"key column {field.name!r} is a dictionary: send its values")
        check_hashable(field.type, field.name)


LOOKUP_TERMS = Terms(HEAD_BYTES_MAX, 8 * KEYS_MAX, KEYS_BYTES_MAX, partial(read_batch, rows_max=KEYS_MAX), _check_keys)
"""What a worker accepts from a client that looks keys up."""
CALL_TERMS = Terms(16 << 20, 0, 0)
"""What a server accepts from a client that calls it: no rows."""
ANSWER_TERMS = Terms(64 << 20, 0, 16 << 30)
"""What a client accepts from a server, which has proved that it knows the token."""


class Frame(NamedTuple):
    """One message of either end. hashes: one for each row of the batch, or none at all."""

    head: dict[str, Any]
    batch: pa.RecordBatch | None
    hashes: Hashes


Unsealed: TypeAlias = tuple[bytes, bytes, bytes | memoryview, bytes | pa.Buffer]
"""The parts of a frame without its seals: sizes, head, hashes, batch."""


class LineBroken(ProtocolError):
    """The other end has sent something that is no frame, or too large: this end cannot tell where the next begins."""


class Line:
    """One thread at a time sends, one receives; any may ``cut``. A socket's own errors are raised as OSError.

    terms: what this end accepts. session: the keys of its seals. traffic: a server's bounds on large frames.
    """

    def __init__(self, stream: ByteStream, terms: Terms, session: Session, traffic: Traffic | None = None) -> None:
        self._stream = stream
        self._terms = terms
        self._traffic = traffic
        self._send_seals, self._receive_seals = Seals(session.sends), Seals(session.hears)
        self._told: dict[str, pa.Schema] = {}
        self._heard: dict[str, pa.Schema] = {}
        self._heard_chars = 0
        self._holds = 0
        """Bytes of the last frame received, as the traffic counts them."""

    def send(self, head: Mapping[str, Any], batch: pa.RecordBatch | None = None, hashes: Hashes = _NO_HASHES) -> None:
        """Send a frame. head: values that JSON can hold, with the batch's ``view``. Raises ProtocolError, or Busy if
        large answers have no room; then nothing is sent."""
        content = self._content(head, batch, hashes)
        batch_bytes = len(content[-1])
        if self._traffic is None or batch_bytes <= JOINED_BYTES_MAX:
            self._write(self._sealed(content))
            return
        try:
            with self._traffic.sending(batch_bytes, self._stream.cut):
                self._write(self._sealed(content))
        except Busy:
            self._told.pop(str(head["view"]), None)  # the frame that says its schema was not sent
            raise

    def encoded(
        self, head: Mapping[str, Any], batch: pa.RecordBatch | None = None, hashes: Hashes = _NO_HASHES
    ) -> tuple[bytes | memoryview, ...]:
        """A frame, which the caller must write as the next one, for it is sealed as such: a single part, unless it is
        large. Raises ProtocolError; then there is none."""
        return self._sealed(self._content(head, batch, hashes))

    def _write(self, parts: tuple[bytes | memoryview, ...]) -> None:
        if len(parts) == 1:
            self._stream.write(parts[0])
        else:
            self._stream.write_together(parts)

    def _content(self, head: Mapping[str, Any], batch: pa.RecordBatch | None, hashes: Hashes) -> Unsealed:
        if batch is None:
            text = encode_json(head)
            return _SIZES.pack(len(text), 0, 0), text, b"", b""
        view, schema = head["view"], batch.schema
        told = self._told.get(view)
        if told is None or not told.equals(schema):
            head = {**head, "schema": schema_to_json(schema)}
            self._told[view] = schema
        text, body = encode_json(head), batch.serialize()
        beside = hashes.tobytes() if body.size <= JOINED_BYTES_MAX else _as_bytes(hashes)
        return _SIZES.pack(len(text), hashes.nbytes, body.size), text, beside, body

    def _sealed(self, content: Unsealed) -> tuple[bytes | memoryview, ...]:
        sizes, text, beside, body = content
        if len(text) + len(beside) + len(body) > SMALL_FRAME_BYTES_MAX:
            sizes += self._send_seals.of_sizes(sizes)
        if len(body) <= JOINED_BYTES_MAX:
            frame = b"".join((sizes, text, beside, body))
            return (frame + self._send_seals.next(frame),)
        front = sizes + text
        return (front, beside, memoryview(body), self._send_seals.next(front, beside, body))

    def receive(self) -> Frame | None:
        """The next frame; ``None`` if the other end has closed the line.

        Raises ProtocolError for a malformed frame after which the line can go on; LineBroken or SealBroken if it cannot
        go on.
        """
        self.release()
        stream = self._stream
        if stream.is_at_end():
            return None
        front: Part = stream.take(_SIZES.size)
        sizes = head_bytes, hashes_bytes, batch_bytes = _SIZES.unpack(front)
        if sum(sizes) > SMALL_FRAME_BYTES_MAX:
            seal = stream.take(SEAL_BYTES)
            check_seal(stream.peer, seal, self._receive_seals.of_sizes(front))
            self._check(sizes)
            front = b"".join((front, seal))
        came = None if self._traffic is None else self._came
        said, beside = stream.take(head_bytes, came), stream.take(hashes_bytes, came)
        body = stream.take(batch_bytes, came)
        check_seal(stream.peer, stream.take(SEAL_BYTES), self._receive_seals.next(front, said, beside, body))
        self._check(sizes)
        return self._decoded(said, beside, body)

    def received(self, data: bytes | bytearray | memoryview) -> tuple[Frame | None, int]:
        """The first frame of bytes that have come, and how many bytes it takes; ``None``, and at least how many it will
        take, if it is not whole yet. For a caller that reads by itself. Raises as :meth:`receive` does."""
        begin = _SIZES.size
        if len(data) < begin:
            return None, begin
        sizes = head_bytes, hashes_bytes, batch_bytes = _SIZES.unpack_from(data)
        if sum(sizes) > SMALL_FRAME_BYTES_MAX:
            begin += SEAL_BYTES
            if len(data) < begin:
                return None, begin
            seal = data[_SIZES.size : begin]
            check_seal(self._stream.peer, seal, self._receive_seals.of_sizes(data[: _SIZES.size]))
            self._check(sizes)
        hashes_at, batch_at = begin + head_bytes, begin + head_bytes + hashes_bytes
        seal_at = batch_at + batch_bytes
        end = seal_at + SEAL_BYTES
        if len(data) < end:
            return None, end
        check_seal(self._stream.peer, data[seal_at:end], self._receive_seals.next(data[:seal_at]))
        self._check(sizes)
        return self._decoded(data[begin:hashes_at], bytes(data[hashes_at:batch_at]), bytes(data[batch_at:seal_at])), end

    def _check(self, sizes: tuple[int, int, int]) -> None:
        """Raise LineBroken for more than the terms allow. The sizes have their seal: they are the other end's."""
        head_bytes, hashes_bytes, batch_bytes = sizes
        terms = self._terms
        if (
            head_bytes > terms.head_bytes_max
            or hashes_bytes > terms.hashes_bytes_max
            or batch_bytes > terms.batch_bytes_max
        ):
            raise LineBroken(f"a frame of {head_bytes:,}, {hashes_bytes:,} and {batch_bytes:,} bytes is too large")

    def _decoded(
        self,
        said: bytes | bytearray | memoryview,
        beside: bytes | bytearray | memoryview,
        body: bytes | bytearray | memoryview,
    ) -> Frame:
        head = decode_json(bytes(said))
        if not len(body):
            return Frame(head, None, _NO_HASHES)
        batch = self._batch(head, body)
        if len(beside) and len(beside) != batch.num_rows * _HASH.itemsize:
            raise ProtocolError(f"{len(beside)} bytes of hashes for {batch.num_rows} rows")
        return Frame(head, batch, np.frombuffer(beside, _HASH))

    def _batch(self, head: Mapping[str, Any], body: bytes | bytearray | memoryview) -> pa.RecordBatch:
        try:
            if "schema" in head:
                self._hear(str(head["view"]), head["schema"])
            schema = self._heard[head["view"]]
        except (LookupError, TypeError, ValueError, OSError, EOFError, KeyTypeError, pa.ArrowException) as error:
            raise ProtocolError(f"the schema of a batch is malformed: {error}") from error
        return self._terms.read(pa.py_buffer(body), schema)

    def _hear(self, view: str, text: str) -> None:
        self._heard_chars += len(view) + len(text)
        if len(self._heard) >= VIEWS_MAX or self._heard_chars > SCHEMAS_CHARS_MAX:
            raise LineBroken(f"schemas of more than {VIEWS_MAX:,} views, or of {SCHEMAS_CHARS_MAX:,} characters")
        schema = schema_from_json(text)
        self._terms.check_schema(schema)
        self._heard[view] = schema

    def wait_at_most(self, seconds: float | None) -> None:
        """From now on a call that takes longer raises TimeoutError, and spoils the line; ``None``: no call does."""
        self._stream.wait_at_most(seconds)

    @property
    def is_quiet(self) -> bool:
        """Whether the line is open, and nothing unread has come from the other end."""
        return self._stream.is_quiet()

    def cut(self) -> None:
        """End the line: a thread that waits at either end sees it closed."""
        self._stream.cut()

    def close(self) -> None:
        """Cut, and give the socket back; the line is of no more use."""
        self.release()
        self._stream.close()

    def keep_held(self) -> int:
        """The last frame received stays under way until the caller has released so many bytes of the traffic."""
        held, self._holds = self._holds, 0
        return held

    def _came(self, nbytes: int) -> None:
        assert self._traffic is not None
        self._traffic.hold(nbytes)
        self._holds += nbytes

    def release(self) -> None:
        """The last frame received is not needed any more, and does not count as under way."""
        if self._holds and self._traffic is not None:
            self._traffic.release(self._holds)
            self._holds = 0


Answer = Callable[[Frame], tuple[Mapping[str, Any], pa.RecordBatch | None]]
"""Makes the answer to a question: a head, and perhaps a batch. If it raises, the error is the answer."""


def answer_all(line: Line, answer: Answer) -> None:
    """Answer question after question until the client closes the line, or breaks it. Raises OSError."""
    while True:
        try:
            question = line.receive()
        except LineBroken as error:
            line.send(_told(ProtocolError(str(error))))
            return
        except ProtocolError as error:
            line.send(_told(error))
            continue
        except (Busy, SealBroken) as error:  # the rest of the question is not read
            line.send(_told(error))
            return
        if question is None:
            return
        try:
            said = answer(question)
        except Exception as error:  # of any class: it answers the question, and the line goes on
            line.send(_told(error))
            continue
        line.release()
        try:
            line.send(*said)
        except UpriverError as error:
            line.send(_told(error))


def _told(error: Exception) -> dict[str, str]:
    return error_to_json(error, ERROR_TEXT_CHARS_MAX)


def _as_bytes(hashes: Hashes) -> memoryview:
    return np.ascontiguousarray(hashes, _HASH).view(np.uint8).data
