"""Frames on a byte stream: ``bytes of frame (u32, little endian) | frame | seal``, large ones in pieces.

The seal is an HMAC of the frame and its number, under the session key of its direction. A frame that is forged,
changed, repeated or left out breaks the channel before anything of it is decoded.
"""

import hmac
import struct
from collections.abc import Iterator

import pyarrow as pa

from upriver.errors import ProtocolError
from upriver.net.byte_stream import ByteStream
from upriver.net.handshake import is_same
from upriver.net.pieces import PIECE_BYTES_MAX, in_pieces

FRAME_BYTES_MAX = PIECE_BYTES_MAX + (1 << 10)
"""Bytes of a frame, or of a piece with its head."""
JOINED_BYTES_MAX = 1 << 16
"""A frame of at most so many bytes is copied behind its size, to be written in one go."""
SEAL_BYTES = 16

Chunk = bytes | memoryview

_SIZE = struct.Struct("<I")
_NUMBER = struct.Struct("<Q")


class Seals:
    """Makes the seals of one direction of a connection, in the order of its frames. Used by one thread at a time."""

    def __init__(self, key: bytes) -> None:
        self._keyed = hmac.new(key, digestmod="sha256")
        self._number = 0

    def next(self, frame: pa.Buffer | bytes | bytearray | memoryview) -> bytes:
        """The seal of the next frame."""
        seal = self._keyed.copy()
        seal.update(_NUMBER.pack(self._number))
        seal.update(frame)
        self._number += 1
        return seal.digest()[:SEAL_BYTES]


def joined(frame: pa.Buffer, seals: Seals) -> bytes:
    """A small frame as it is written next."""
    return b"".join((_SIZE.pack(frame.size), frame, seals.next(frame)))


def chunks(frame: pa.Buffer, seals: Seals) -> Iterator[Chunk]:
    """What is written of a frame, in order. Each piece is sealed when its turn comes to be written."""
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

    Raises ProtocolError for what cannot be a frame or is not sealed as the next one, and OSError.
    """
    if stream.is_at_end():
        return None
    frame_bytes = _frame_bytes(bytes(stream.take(_SIZE.size)))
    return _checked(stream.take(frame_bytes), stream.take(SEAL_BYTES), seals)


def read_first_frame(stream: ByteStream, seals: Seals, give_up_at: float) -> pa.Buffer | None:
    """Likewise, if it comes until then by the monotonic clock. Raises TimeoutError."""
    size = stream.read(_SIZE.size, give_up_at)
    if len(size) < _SIZE.size:
        return None
    frame_bytes = _frame_bytes(size)
    frame = stream.read(frame_bytes + SEAL_BYTES, give_up_at)
    if len(frame) < frame_bytes + SEAL_BYTES:
        return None
    return _checked(frame[:frame_bytes], frame[frame_bytes:], seals)


def _checked(frame: bytes | bytearray | memoryview, seal: bytes | bytearray | memoryview, seals: Seals) -> pa.Buffer:
    if not is_same(bytes(seal), seals.next(frame)):
        raise ProtocolError(f"malformed: a frame of {len(frame):,} bytes without the seal of this channel")
    return pa.py_buffer(frame)


def _frame_bytes(size: bytes) -> int:
    (frame_bytes,) = _SIZE.unpack(size)
    if frame_bytes > FRAME_BYTES_MAX:
        raise ProtocolError(f"malformed: a frame of {frame_bytes:,} bytes")
    return int(frame_bytes)
