"""PostgreSQL's messages, version 3.0: bytes to messages and back. Nothing here reads a socket.

A frame is a letter, the length of what follows in four bytes, itself included, and the body. The first messages of a
connection have no letter.
"""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from upriver.doors.doors import ERROR_CHARS_MAX
from upriver.errors import UpriverError

MESSAGE_BYTES_MAX = 16 << 20
"""Bytes of a caller's message."""
STARTUP_BYTES_MAX = 10_000
"""Bytes of all messages of a caller that has not proved that it knows a token."""

VERSION = 3 << 16
SSL_REQUEST, GSS_REQUEST, CANCEL_REQUEST = 80877103, 80877104, 80877102

_LENGTH = struct.Struct("!i")
_SHORT = struct.Struct("!h")


class WireError(UpriverError):
    """An error with the code that PostgreSQL's clients know. is_fatal: whether the connection ends."""

    def __init__(self, code: str, text: str, is_fatal: bool = False) -> None:
        super().__init__(text)
        self.code = code
        self.is_fatal = is_fatal


def violation(text: str) -> WireError:
    """A caller that does not keep to the protocol."""
    return WireError("08P01", text, is_fatal=True)


class WireMessage(NamedTuple):
    """kind: the message's letter, empty if it has none."""

    kind: bytes
    body: bytes


class MessageReader:
    """Cuts a caller's bytes into messages."""

    def __init__(self) -> None:
        self._bytes = bytearray()
        self._unproved_bytes = 0
        self._has_started = False
        self._is_trusted = False

    def start(self) -> None:
        """The startup message has come: messages have letters from now on."""
        self._has_started = True

    def trust(self) -> None:
        """The caller has proved that it knows a token: its messages may be large from now on."""
        self._is_trusted = True

    def take(self, data: bytes) -> None:
        """Bytes have come. Raises WireError for too many of an unknown caller."""
        if not self._is_trusted:
            self._unproved_bytes += len(data)
            if self._unproved_bytes > STARTUP_BYTES_MAX:
                raise violation(f"more than {STARTUP_BYTES_MAX:,} bytes before authentication")
        self._bytes += data

    @property
    def has_more(self) -> bool:
        """Whether bytes have come that were not taken."""
        return bool(self._bytes)

    def next(self) -> WireMessage | None:
        """The next whole message; ``None`` if it has not come yet. Raises WireError for a length that cannot be."""
        letters = 1 if self._has_started else 0
        if len(self._bytes) < letters + _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(self._bytes, letters)
        most = MESSAGE_BYTES_MAX if self._is_trusted else STARTUP_BYTES_MAX
        if not _LENGTH.size <= length <= most:
            raise violation(f"a message of {length:,} bytes: at most {most:,} are taken")
        if len(self._bytes) < letters + length:
            return None
        message = WireMessage(
            bytes(self._bytes[:letters]), bytes(self._bytes[letters + _LENGTH.size : letters + length])
        )
        del self._bytes[: letters + length]
        return message


class BodyReader:
    """Reads the fields of a message's body, in order. Raises WireError where it is too short."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._place = 0

    def text(self) -> str:
        """Up to the next zero byte."""
        end = self._body.find(b"\0", self._place)
        if end < 0:
            raise violation("a text in a message has no end")
        found, self._place = self._body[self._place : end], end + 1
        try:
            return found.decode()
        except UnicodeDecodeError:
            raise WireError("22021", "a text in a message is not UTF-8") from None

    def raw(self, count: int) -> bytes:
        end = self._place + count
        if count < 0 or end > len(self._body):
            raise violation("a message is shorter than it says")
        found, self._place = self._body[self._place : end], end
        return found

    def int16(self) -> int:
        return int(_SHORT.unpack(self.raw(2))[0])

    def int32(self) -> int:
        return int(_LENGTH.unpack(self.raw(4))[0])

    def value(self) -> bytes | None:
        """A value behind its length; ``None`` for NULL."""
        length = self.int32()
        return None if length == -1 else self.raw(length)

    def rest(self) -> bytes:
        """All that is left."""
        found, self._place = self._body[self._place :], len(self._body)
        return found

    def int16s(self) -> list[int]:
        """Numbers behind their count."""
        return [self.int16() for _ in range(self._count(2))]

    def int32s(self) -> list[int]:
        return [self.int32() for _ in range(self._count(4))]

    def values(self) -> list[bytes | None]:
        return [self.value() for _ in range(self._count(4))]

    def _count(self, size: int) -> int:
        count = self.int16() & 0xFFFF
        if self._place + count * size > len(self._body):
            raise violation("a message is shorter than it says")
        return count

    @property
    def is_at_end(self) -> bool:
        return self._place >= len(self._body)


# What the server sends


def message(kind: bytes, *parts: bytes) -> bytes:
    """A whole message."""
    body = b"".join(parts)
    return kind + _LENGTH.pack(len(body) + 4) + body


def text(value: str) -> bytes:
    """A text and its end. Zero bytes, which no text may have here, are left out."""
    return value.replace("\0", "").encode("utf-8", "replace") + b"\0"


def int16(value: int) -> bytes:
    return _SHORT.pack(value)


def int32(value: int) -> bytes:
    return struct.pack("!I", value & 0xFFFFFFFF)


def authentication(kind: int, data: bytes = b"") -> bytes:
    return message(b"R", int32(kind), data)


def parameter_status(name: str, value: str) -> bytes:
    return message(b"S", text(name), text(value))


def ready(transaction: bytes) -> bytes:
    """transaction: ``I`` for none, ``T`` within one, ``E`` within one that has failed."""
    return message(b"Z", transaction)


def error(code: str, what: str, is_fatal: bool = False) -> bytes:
    severity = "FATAL" if is_fatal else "ERROR"
    fields = ((b"S", severity), (b"V", severity), (b"C", code), (b"M", what[:ERROR_CHARS_MAX]))
    return message(b"E", *(letter + text(value) for letter, value in fields), b"\0")


@dataclass(frozen=True, slots=True)
class FieldShown:
    """A column of a row description. size: bytes of a value, -1 if they vary. modifier: of a numeric, its digits."""

    name: str
    oid: int
    size: int
    modifier: int = -1


def row_description(fields: Sequence[FieldShown], formats: Sequence[int]) -> bytes:
    """formats: of each column, 0 for text and 1 for binary."""
    parts = [int16(len(fields))]
    for field, format in zip(fields, formats, strict=True):
        parts += [text(field.name), int32(0), int16(0), int32(field.oid)]
        parts += [int16(field.size), int32(field.modifier), int16(format)]
    return message(b"T", *parts)


def data_rows(columns: Sequence[Sequence[bytes | None]], rows: int) -> Iterator[bytes]:
    """A message for each row. columns: the encoded values of each."""
    head = int16(len(columns))
    if not columns:
        yield from (message(b"D", head) for _ in range(rows))
        return
    null = int32(-1)
    for row in zip(*columns, strict=True):
        yield message(b"D", head, *(null if value is None else int32(len(value)) + value for value in row))


PARSE_COMPLETE, BIND_COMPLETE, CLOSE_COMPLETE = message(b"1"), message(b"2"), message(b"3")
NO_DATA, EMPTY_QUERY, PORTAL_SUSPENDED = message(b"n"), message(b"I"), message(b"s")
