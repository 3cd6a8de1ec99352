"""Large frames go in pieces: what takes long to get across is not silence, as long as some of it comes.

A piece is ``length of head (u32, little endian) | head (JSON) | bytes of the frame``; its head is a message of kind
``channel.piece`` that says how many bytes of the frame are still to come.
"""

from collections.abc import Iterator

import pyarrow as pa

from upriver.shell.wire import Message, encode

PIECE = "channel.piece"
PIECE_BYTES_MAX = 2 << 20
"""Bytes of a frame that go as one. A connection that takes longer for them than the limit of silence counts as lost."""


def in_pieces(frame: pa.Buffer) -> Iterator[pa.Buffer]:
    """The frame itself, or its pieces in order."""
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
    """Puts the frames of one stream together again."""

    def __init__(self) -> None:
        self._parts: list[pa.Buffer] = []

    def join(self, head: Message, piece: pa.Buffer) -> pa.Buffer | None:
        """Take the next piece, of which ``head`` was read; the frame, if that was its last."""
        self._parts.append(piece.slice(encode(head).size))
        if head.fields["left"]:
            return None
        frame = pa.allocate_buffer(sum(part.size for part in self._parts))
        sink = pa.FixedSizeBufferWriter(frame)
        for part in self._parts:
            sink.write(part)
        self._parts = []
        return frame
