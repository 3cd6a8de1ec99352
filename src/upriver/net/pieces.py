"""Large frames go in pieces: what takes long to get across is not silence, as long as some of it comes.

A piece is ``length of head (u32, little endian) | head (JSON) | bytes of the frame``; its head is a message of kind
``channel.piece`` that says how many bytes of the frame are still to come.
"""

from collections.abc import Iterator

import pyarrow as pa

from upriver.errors import ProtocolError
from upriver.net.wire import Message, encode

PIECE = "channel.piece"
PIECE_BYTES_MAX = 2 << 20
"""Bytes of a frame that go as one. A connection that takes longer for them than the limit of silence counts as lost."""
MESSAGE_BYTES_MAX = 2 << 30
"""Bytes of a frame that goes in pieces."""


def in_pieces(frame: pa.Buffer) -> Iterator[pa.Buffer]:
    """The frame itself, or its pieces in order. Raises ProtocolError if it is larger than may be."""
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
    """Puts the frames of one stream together again. A frame has at most ``MESSAGE_BYTES_MAX`` bytes in all, and memory
    is taken for them as they come."""

    def __init__(self) -> None:
        self._parts: list[pa.Buffer] = []
        self._left: int | None = None
        """Bytes of the frame that are still to come; ``None`` before its first piece."""
        self._bytes = 0

    def join(self, head: Message, piece: pa.Buffer) -> pa.Buffer | None:
        """Take the next piece, of which ``head`` was read; the frame, if that was its last. Raises ProtocolError for a
        piece that does not go on where the one before it has ended."""
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
