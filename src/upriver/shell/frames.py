"""Frames on a byte stream: ``bytes of frame (u32, little endian) | frame``, large ones in pieces."""

import struct
from collections.abc import Iterator

import pyarrow as pa

from upriver.errors import ProtocolError
from upriver.shell.byte_stream import ByteStream
from upriver.shell.pieces import PIECE_BYTES_MAX, in_pieces

FRAME_BYTES_MAX = PIECE_BYTES_MAX + (1 << 10)
"""Bytes of a frame, or of a piece with its head."""
JOINED_BYTES_MAX = 1 << 16
"""A frame of at most so many bytes is copied behind its size, to be written in one go."""

Chunk = bytes | memoryview

_SIZE = struct.Struct("<I")


def joined(frame: pa.Buffer) -> bytes:
    """A small frame as it is written."""
    return b"".join((_SIZE.pack(frame.size), frame))


def chunks(frame: pa.Buffer) -> Iterator[Chunk]:
    """What is written of a frame, in order."""
    for piece in in_pieces(frame):
        if piece.size <= JOINED_BYTES_MAX:
            yield joined(piece)
        else:
            yield _SIZE.pack(piece.size)
            yield memoryview(piece)


def write_frame(stream: ByteStream, frame: pa.Buffer) -> None:
    """Write all of it; waits while the other end does not keep up."""
    for chunk in chunks(frame):
        stream.write(chunk)


def read_frame(stream: ByteStream) -> pa.Buffer | None:
    """The next frame, or piece of one; ``None`` if the other end has closed the stream.

    Raises ProtocolError for what cannot be a frame, and OSError.
    """
    if stream.is_at_end():
        return None
    return pa.py_buffer(stream.take(_frame_bytes(bytes(stream.take(_SIZE.size)))))


def read_first_frame(stream: ByteStream, give_up_at: float) -> pa.Buffer | None:
    """Likewise, if it comes until then by the monotonic clock. Raises TimeoutError."""
    size = stream.read(_SIZE.size, give_up_at)
    if len(size) < _SIZE.size:
        return None
    frame_bytes = _frame_bytes(size)
    frame = stream.read(frame_bytes, give_up_at)
    return pa.py_buffer(frame) if len(frame) == frame_bytes else None


def _frame_bytes(size: bytes) -> int:
    (frame_bytes,) = _SIZE.unpack(size)
    if frame_bytes > FRAME_BYTES_MAX:
        raise ProtocolError(f"malformed: a frame of {frame_bytes:,} bytes")
    return int(frame_bytes)
