"""Messages of Flight SQL in protobuf's wire format: as much of the format as Flight SQL uses.

A message is a series of fields: a number, and a whole number or bytes. What a field means, its reader knows.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

from upriver.errors import DeclarationError

FIELDS_MAX = 10_000
"""Fields of one message."""
FIELD_NUMBER_MAX = (1 << 29) - 1
"""The highest number of a field."""
VARINT_BYTES_MAX = 10
"""Bytes of a whole number."""
TYPE_PREFIX = b"type.googleapis.com/"
"""What precedes the name of a message within ``google.protobuf.Any``."""

_VARINT, _EIGHT_BYTES, _BYTES, _FOUR_BYTES = 0, 1, 2, 5
"""Kinds of fields on the wire; 3 and 4, groups, are not read."""
_FIXED = {_EIGHT_BYTES: 8, _FOUR_BYTES: 4}

FieldValue = int | bytes


@dataclass(frozen=True, slots=True)
class ProtobufMessage:
    """The values of each field, by its number, in the order of the wire. Of a field that is not repeated the last value
    counts. A field that is not given has the value 0, false, or the empty text."""

    values: Mapping[int, Sequence[FieldValue]] = field(default_factory=dict)

    @classmethod
    def of(cls, text: bytes) -> Self:
        """Read a message. Raises DeclarationError for bytes that are none."""
        found: dict[int, list[FieldValue]] = {}
        place = count = 0
        while place < len(text):
            count += 1
            if count > FIELDS_MAX:
                raise DeclarationError(f"a protobuf message of more than {FIELDS_MAX:,} fields")
            tag, place = _varint(text, place)
            number, kind = tag >> 3, tag & 7
            if not 0 < number <= FIELD_NUMBER_MAX:
                raise _malformed(f"field number {number}")
            value, place = _value(text, place, kind)
            found.setdefault(number, []).append(value)
        return cls(found)

    def has(self, number: int) -> bool:
        return number in self.values

    def data(self, number: int) -> bytes:
        value = self.values.get(number, (b"",))[-1]
        if not isinstance(value, bytes):
            raise _malformed(f"field {number} is a number, and should be bytes")
        return value

    def text(self, number: int) -> str:
        return _text(self.data(number), number)

    def optional_text(self, number: int) -> str | None:
        """``None`` for a field that is not given."""
        return self.text(number) if self.has(number) else None

    def texts(self, number: int) -> list[str]:
        """Of a repeated field."""
        values = self.values.get(number, ())
        if not all(isinstance(value, bytes) for value in values):
            raise _malformed(f"field {number} is a number, and should be a text")
        return [_text(value, number) for value in values if isinstance(value, bytes)]

    def number(self, number: int) -> int:
        value = self.values.get(number, (0,))[-1]
        if not isinstance(value, int):
            raise _malformed(f"field {number} is bytes, and should be a number")
        return value

    def numbers(self, number: int) -> list[int]:
        """Of a repeated field, one by one or packed."""
        found: list[int] = []
        for value in self.values.get(number, ()):
            if isinstance(value, int):
                found.append(value)
                continue
            place = 0
            while place < len(value):
                if len(found) >= FIELDS_MAX:
                    raise DeclarationError(f"a protobuf message of more than {FIELDS_MAX:,} numbers")
                each, place = _varint(value, place)
                found.append(each)
        return found


def encoded(fields: Iterable[tuple[int, FieldValue]]) -> bytes:
    """A message of these fields. Whole numbers are not negative, and below 2^64."""
    parts: list[bytes] = []
    for number, value in fields:
        if isinstance(value, int):
            parts += (_encoded_varint(number << 3 | _VARINT), _encoded_varint(value))
        else:
            parts += (_encoded_varint(number << 3 | _BYTES), _encoded_varint(len(value)), value)
    return b"".join(parts)


def wrapped(name: str, message: bytes) -> bytes:
    """``google.protobuf.Any`` with a message of this name."""
    return encoded([(1, TYPE_PREFIX + name.encode()), (2, message)])


def unwrapped(text: bytes) -> tuple[str, ProtobufMessage]:
    """The name and the message of a ``google.protobuf.Any``. Raises DeclarationError."""
    outer = ProtobufMessage.of(text)
    return outer.text(1).removeprefix(TYPE_PREFIX.decode()), ProtobufMessage.of(outer.data(2))


def is_wrapped(text: bytes, names: bytes) -> bool:
    """Whether bytes begin as a ``google.protobuf.Any`` does, of a message whose name begins with ``names``."""
    start = text[: len(TYPE_PREFIX) + len(names) + 3]
    return start[:1] == b"\n" and TYPE_PREFIX + names in start


def _value(text: bytes, place: int, kind: int) -> tuple[FieldValue, int]:
    """A field's value, and the place behind it."""
    if kind == _VARINT:
        return _varint(text, place)
    if kind == _BYTES:
        size, place = _varint(text, place)
    elif kind in _FIXED:
        size = _FIXED[kind]
    else:
        raise _malformed(f"a field of kind {kind}")
    if size > len(text) - place:
        raise _malformed(f"it ends within a field of {size:,} bytes")
    value = text[place : place + size]
    return (value if kind == _BYTES else int.from_bytes(value, "little")), place + size


def _varint(text: bytes, place: int) -> tuple[int, int]:
    value = 0
    for count in range(VARINT_BYTES_MAX):
        if place + count >= len(text):
            raise _malformed("it ends within a number")
        byte = text[place + count]
        value |= (byte & 127) << 7 * count
        if byte < 128:
            if value >= 1 << 64:
                break
            return value, place + count + 1
    raise _malformed("a number of more than 64 bits")


def _encoded_varint(value: int) -> bytes:
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    found.append(value)
    return bytes(found)


def _text(value: bytes, number: int) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise _malformed(f"field {number} is no UTF-8") from None


def _malformed(reason: str) -> DeclarationError:
    return DeclarationError(f"the protobuf message cannot be read: {reason}")
