"""Frames on a byte stream: ``bytes of frame (u32, little endian) | frame | seal``, large ones in pieces.

The seal is a keyed hash (BLAKE2b) of the frame and its number, under the session key of its direction. A frame that is
forged, changed, repeated, left out or out of order breaks the connection before anything of it is decoded
(net.every_frame_is_sealed). Lines seal their frames alike (:mod:`.line`).

A large frame goes in pieces, so that a slow transfer does not count as silence while some of it comes. A piece is
``length of head (u32, little endian) | head (JSON) | bytes of the frame``; its head is a message of kind
``channel.piece`` that says how many bytes of the frame are still to come.

``Traffic``: limits on the large frames of all clients of one process, in bytes at one time and in seconds to be read.
The number of clients bounds small frames. A large frame counts as it comes or goes. A frame that has no room is
refused, so that its memory is free at once: waiting for room would keep the memory.
"""

import hashlib
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

import pyarrow as pa

from upriver.errors import Busy, ProtocolError, SealBroken
from upriver.net.byte_stream import ByteStream, Limit, Watch
from upriver.net.handshake import is_same
from upriver.net.wire import Message, encode

PIECE = "channel.piece"
PIECE_BYTES_MAX = 2 << 20
"""Bytes of a frame that go in one piece. A connection that takes longer for them than the limit of silence counts as
lost."""
MESSAGE_BYTES_MAX = 2 << 30
"""Bytes of a whole frame that goes in pieces."""


def in_pieces(frame: pa.Buffer) -> Iterator[pa.Buffer]:
    """The frame itself, or its pieces in order. Raises ProtocolError if it is larger than ``MESSAGE_BYTES_MAX``."""
    if frame.size > MESSAGE_BYTES_MAX:
        raise ProtocolError(f"a message of {frame.size:,} bytes: at most {MESSAGE_BYTES_MAX:,} can be sent")
    if frame.size <= PIECE_BYTES_MAX:
        yield frame
        return
    for start in range(0, frame.size, PIECE_BYTES_MAX):
        part = frame.slice(start, min(PIECE_BYTES_MAX, frame.size - start))
        head = encode(Message(PIECE, {"left": frame.size - start - part.size}))
        piece = pa.allocate_buffer(head.size + part.size)
        sink = pa.FixedSizeBufferWriter(piece)
        sink.write(head)
        sink.write(part)
        yield piece


class Joiner:
    """Joins the pieces of one stream's frames. A frame has at most ``MESSAGE_BYTES_MAX`` bytes in all; memory is
    allocated as they come."""

    def __init__(self) -> None:
        self._parts: list[pa.Buffer] = []
        self._left: int | None = None
        """Bytes of the frame that are still to come; ``None`` before its first piece."""
        self._bytes = 0

    def join(self, head: Message, piece: pa.Buffer) -> pa.Buffer | None:
        """Take the next piece, with its ``head``; returns the frame after its last piece. Raises ProtocolError for a
        piece that does not continue the one before it."""
        part, left = piece.slice(encode(head).size), head.fields.get("left")
        self._bytes += part.size
        goes_on = self._left is None or self._left == part.size + (left if isinstance(left, int) else -1)
        if type(left) is not int or left < 0 or not part.size or not goes_on:
            raise ProtocolError(f"malformed: a piece of {part.size:,} bytes, after which {left!r} are to come")
        if self._bytes + left > MESSAGE_BYTES_MAX:
            raise ProtocolError(f"malformed: a message of {self._bytes + left:,} bytes")
        self._parts.append(part)
        self._left = left
        if left:
            return None
        frame = pa.allocate_buffer(self._bytes)
        sink = pa.FixedSizeBufferWriter(frame)
        for part in self._parts:
            sink.write(part)
        self._parts, self._left, self._bytes = [], None, 0
        return frame


FRAME_BYTES_MAX = PIECE_BYTES_MAX + (1 << 10)
"""Bytes of a frame, or of a piece with its head."""
JOINED_BYTES_MAX = 1 << 16
"""A frame of at most so many bytes is copied behind its size and written in one go."""
SEAL_BYTES = 16

Chunk = bytes | memoryview

_SIZE = struct.Struct("<I")
_NUMBER = struct.Struct("<Q")


Part: TypeAlias = pa.Buffer | bytes | bytearray | memoryview


class Seals:
    """The seals of one direction of a connection, in the order of its frames. One thread at a time uses it."""

    def __init__(self, key: bytes) -> None:
        """key: the session's, of this direction; 32 bytes."""
        self._keyed = hashlib.blake2b(key=key, digest_size=SEAL_BYTES)
        self._number = 0

    def next(self, *parts: Part) -> bytes:
        """The seal of the next frame, which has these parts."""
        seal = self._numbered()
        for part in parts:
            seal.update(part)
        self._number += 1
        return seal.digest()

    def of_sizes(self, sizes: Part) -> bytes:
        """The seal of the sizes of the next frame, which go ahead of it."""
        seal = self._numbered()
        seal.update(sizes)
        return seal.digest()

    def _numbered(self) -> "hashlib.blake2b":
        seal = self._keyed.copy()
        seal.update(_NUMBER.pack(self._number))
        return seal


def check_seal(sender: str, came: bytes | bytearray | memoryview, seal: bytes) -> None:
    """Raise SealBroken if what came from ``sender``, an address, is not the seal that belongs there."""
    if not is_same(bytes(came), seal):
        raise SealBroken(
            f"{sender}: a frame lacks the seal of its connection: on the way between the two processes bytes were "
            "changed, added, repeated or dropped. Nothing of the frame was used, and the connection is closed. Let "
            "proxies pass bytes on as they are, and let no stranger write to this network"
        )


def joined(frame: pa.Buffer, seals: Seals) -> bytes:
    """A small frame in one buffer, as the next one to write."""
    return b"".join((_SIZE.pack(frame.size), frame, seals.next(frame)))


def chunks(frame: pa.Buffer, seals: Seals) -> Iterator[Chunk]:
    """The chunks to write for a frame, in order. Each piece is sealed when it is written."""
    for piece in in_pieces(frame):
        if piece.size <= JOINED_BYTES_MAX:
            yield joined(piece, seals)
        else:
            yield _SIZE.pack(piece.size)
            yield memoryview(piece)
            yield seals.next(piece)


def write_frame(stream: ByteStream, frame: pa.Buffer, seals: Seals) -> None:
    """Write all of it; waits while the other end does not keep up."""
    for chunk in chunks(frame, seals):
        stream.write(chunk)


def read_frame(stream: ByteStream, seals: Seals) -> pa.Buffer | None:
    """The next frame, or piece of one; ``None`` if the other end has closed the stream.

    Raises OSError, ProtocolError for bytes that are no frame, and SealBroken for those without the next seal.
    """
    if stream.is_at_end():
        return None
    frame_bytes = _frame_bytes(bytes(stream.take(_SIZE.size)))
    return _checked(stream, stream.take(frame_bytes), stream.take(SEAL_BYTES), seals)


def read_first_frame(stream: ByteStream, seals: Seals, give_up_at: float) -> pa.Buffer | None:
    """As :func:`read_frame`, if the frame comes before ``give_up_at`` by the monotonic clock. Raises TimeoutError."""
    size = stream.read(_SIZE.size, give_up_at)
    if len(size) < _SIZE.size:
        return None
    frame_bytes = _frame_bytes(size)
    frame = stream.read(frame_bytes + SEAL_BYTES, give_up_at)
    if len(frame) < frame_bytes + SEAL_BYTES:
        return None
    return _checked(stream, frame[:frame_bytes], frame[frame_bytes:], seals)


def _checked(
    stream: ByteStream, frame: bytes | bytearray | memoryview, seal: bytes | bytearray | memoryview, seals: Seals
) -> pa.Buffer:
    check_seal(stream.peer, seal, seals.next(frame))
    return pa.py_buffer(frame)


def _frame_bytes(size: bytes) -> int:
    (frame_bytes,) = _SIZE.unpack(size)
    if frame_bytes > FRAME_BYTES_MAX:
        raise ProtocolError(f"malformed: a frame of {frame_bytes:,} bytes")
    return int(frame_bytes)


LARGE_BYTES_MAX = 256 << 20
"""Bytes of large questions and answers that one process has under way. A single one may be larger."""
SEND_S_MAX = 30.0
"""Seconds in which a client must read at least a part of its answer."""
SEND_BYTES_PER_S_MIN = 64 << 10
"""Bytes a second that a client must read of a large answer, beside ``SEND_S_MAX``."""


class Traffic:
    """The large frames of one server. Usable by any thread."""

    def __init__(
        self,
        bytes_max: int = LARGE_BYTES_MAX,
        send_s_max: float = SEND_S_MAX,
        bytes_per_s_min: int = SEND_BYTES_PER_S_MIN,
    ) -> None:
        self._bytes_max = bytes_max
        self._send_s_max = send_s_max
        self._bytes_per_s_min = bytes_per_s_min
        self._watch = Watch()
        self._lock = threading.Lock()
        self._bytes = 0

    @property
    def bytes(self) -> int:
        """Bytes under way now."""
        return self._bytes

    def hold(self, nbytes: int) -> None:
        """Count bytes as under way. Raises Busy if there is no room for them."""
        with self._lock:
            if self._bytes and self._bytes + nbytes > self._bytes_max:
                raise Busy(
                    f"{self._bytes:,} bytes of other clients' large questions and answers are under way, of at most "
                    f"{self._bytes_max:,}: ask again soon, or for fewer keys at a time"
                )
            self._bytes += nbytes

    def release(self, nbytes: int) -> None:
        with self._lock:
            self._bytes -= nbytes

    @contextmanager
    def sending(self, nbytes: int, cut: Callable[[], None]) -> Iterator[None]:
        """Count so many bytes while the block sends them; ``cut`` is called if the client does not read them in time.

        Raises Busy.
        """
        self.hold(nbytes)
        try:
            with self.limit(nbytes, cut):
                yield
        finally:
            self.release(nbytes)

    def limit(self, nbytes: int, cut: Callable[[], None]) -> Limit:
        """As ``sending``, of bytes that the caller holds."""
        due_at = time.monotonic() + self._send_s_max + nbytes / self._bytes_per_s_min
        return self._watch.limit(due_at, cut)

    def close(self) -> None:
        self._watch.close()
