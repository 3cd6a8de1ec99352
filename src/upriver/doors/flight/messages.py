"""The sizes of the messages that a Flight caller sends, read from the frames of HTTP/2 as they pass.

gRPC takes in a message of any size before the door sees it. A message stands in DATA frames of its stream, behind five
bytes: whether it is compressed, and its length. So the first of them tells what is coming.
"""

from dataclasses import dataclass

MESSAGE_BYTES_MAX = 16 << 20
"""Bytes of a message. The door refuses smaller ones with an error of its own; it cannot of larger ones."""
UNFINISHED_BYTES_MAX = 64 << 20
"""Bytes that have come of messages of one connection that are not complete."""

_PREFACE_BYTES = 24
_HEAD_BYTES = 9
_PREFIX_BYTES = 5
_DATA = 0
_PADDED = 8


class MessageRefused(Exception):
    """A caller sends more than it may; says what."""


@dataclass(slots=True)
class _UnfinishedMessage:
    prefix: bytes = b""
    left: int = 0
    """Bytes that are to come, once the prefix is complete."""
    arrived: int = 0


class MessageSizes:
    """Reads what a caller sends, in any pieces."""

    def __init__(self) -> None:
        self._passing = _PREFACE_BYTES
        """Bytes until the next frame, or until the rest of this one, which have no message."""
        self._head = b""
        """Of the next frame, as far as it has come."""
        self._stream = b""
        """Of this frame."""
        self._content = 0
        """Bytes of messages in this frame that are to come."""
        self._padding = 0
        """Bytes behind them."""
        self._unfinished: dict[bytes, _UnfinishedMessage] = {}
        """By stream, from the first byte of the message to its last."""
        self._unfinished_bytes = 0

    def hear(self, data: bytes) -> None:
        """Bytes that a caller sends. Raises MessageRefused."""
        place = 0
        while place < len(data):
            if self._passing:
                count = min(self._passing, len(data) - place)
                self._passing -= count
            elif self._content:
                count = min(self._content, len(data) - place)
                self._hear_content(data[place : place + count])
                self._content -= count
                if not self._content:
                    self._passing = self._padding
            else:
                count = min(self._head_bytes - len(self._head), len(data) - place)
                self._head += data[place : place + count]
                if len(self._head) == self._head_bytes:
                    self._begin_frame()
            place += count

    @property
    def _head_bytes(self) -> int:
        """Bytes of the next frame's head; the length of padding is one of it."""
        is_padded = len(self._head) >= _HEAD_BYTES and self._head[3] == _DATA and self._head[4] & _PADDED
        return _HEAD_BYTES + bool(is_padded and int.from_bytes(self._head[:3]))

    def _begin_frame(self) -> None:
        head, self._head = self._head, b""
        length = int.from_bytes(head[:3]) - (len(head) - _HEAD_BYTES)
        if head[3] != _DATA:
            self._passing = length
            return
        self._stream = head[5:9]
        self._padding = min(length, head[9]) if len(head) > _HEAD_BYTES else 0
        self._content = length - self._padding
        if not self._content:
            self._passing = self._padding

    def _hear_content(self, content: bytes) -> None:
        place = 0
        while place < len(content):
            message = self._unfinished.setdefault(self._stream, _UnfinishedMessage())
            if len(message.prefix) < _PREFIX_BYTES:
                count = min(_PREFIX_BYTES - len(message.prefix), len(content) - place)
                message.prefix += content[place : place + count]
                if len(message.prefix) == _PREFIX_BYTES:
                    message.left = _length_of(message.prefix)
            else:
                count = min(message.left, len(content) - place)
                message.left -= count
            place += count
            message.arrived += count
            self._unfinished_bytes += count
            if len(message.prefix) == _PREFIX_BYTES and not message.left:
                self._unfinished_bytes -= message.arrived
                del self._unfinished[self._stream]
        if self._unfinished_bytes > UNFINISHED_BYTES_MAX:
            raise MessageRefused(f"messages of more than {UNFINISHED_BYTES_MAX:,} bytes at a time")


def _length_of(prefix: bytes) -> int:
    """Raises MessageRefused."""
    length = int.from_bytes(prefix[1:])
    if prefix[0]:
        raise MessageRefused("a message that gRPC has compressed: send it as it is")
    if length > MESSAGE_BYTES_MAX:
        raise MessageRefused(f"a message of {length:,} bytes: at most {MESSAGE_BYTES_MAX:,} are taken")
    return length
