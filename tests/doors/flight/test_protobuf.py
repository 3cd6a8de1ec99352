"""Protobuf's wire format, as Flight SQL's messages use it."""

import contextlib

import pytest
from google.protobuf.any_pb2 import Any as ProtobufAny
from google.protobuf.descriptor_pb2 import FieldDescriptorProto
from hypothesis import given
from hypothesis import strategies as st

from upriver.doors.flight.protobuf import (
    FIELD_NUMBER_MAX,
    FIELDS_MAX,
    ProtobufMessage,
    encoded,
    is_wrapped,
    unwrapped,
    wrapped,
)
from upriver.errors import DeclarationError

NUMBERS = st.integers(1, FIELD_NUMBER_MAX)
FIELDS = st.lists(st.tuples(NUMBERS, st.one_of(st.integers(0, 2**64 - 1), st.binary(max_size=300))), max_size=20)


@given(FIELDS)
def test_a_message_is_read_as_it_was_written(fields: list[tuple[int, int | bytes]]) -> None:
    read = ProtobufMessage.of(encoded(fields))
    expected: dict[int, list[int | bytes]] = {}
    for number, value in fields:
        expected.setdefault(number, []).append(value)
    assert read.values == expected


@given(st.text(max_size=50), st.text(max_size=50), st.integers(0, 2**31 - 1))
def test_google_s_library_reads_and_writes_the_same(name: str, text: str, number: int) -> None:
    theirs = FieldDescriptorProto(name=name, number=number, default_value=text)
    ours = ProtobufMessage.of(theirs.SerializeToString())
    assert (ours.text(1), ours.number(3), ours.text(7)) == (name, number, text)
    fields: list[tuple[int, int | bytes]] = [(1, name.encode()), (3, number), (7, text.encode())]
    assert FieldDescriptorProto.FromString(encoded(fields)) == theirs


def test_google_s_any_is_ours() -> None:
    theirs = ProtobufAny(type_url="type.googleapis.com/a.b.Message", value=encoded([(1, b"x")]))
    assert theirs.SerializeToString() == wrapped("a.b.Message", encoded([(1, b"x")]))
    name, message = unwrapped(theirs.SerializeToString())
    assert (name, message.text(1)) == ("a.b.Message", "x")
    assert is_wrapped(theirs.SerializeToString(), b"a.b.")
    assert not is_wrapped(theirs.SerializeToString(), b"b.")
    assert not is_wrapped(b"\nSELECT 'type.googleapis.com/a.b.'", b"a.b.")


@given(st.one_of(st.binary(max_size=200), FIELDS.map(encoded).flatmap(lambda whole: st.just(whole[: len(whole) // 2]))))
def test_hostile_bytes_are_a_message_or_one_clear_error(text: bytes) -> None:
    with contextlib.suppress(DeclarationError):
        message = ProtobufMessage.of(text)
        assert sum(map(len, message.values.values())) <= len(text)
        for number in message.values:
            for read in (message.texts, message.numbers, message.optional_text, message.number):
                with contextlib.suppress(DeclarationError):
                    assert read(number) is not None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"\x0a", "ends within a number"),
        (b"\x0a\x05abc", "ends within a field of 5 bytes"),
        (b"\x0a\xff\xff\xff\xff\x0fabc", "ends within a field of 4,294,967,295 bytes"),
        (b"\x08" + b"\xff" * 10, "more than 64 bits"),
        (b"\x0b", "a field of kind 3"),
        (b"\x00\x00", "field number 0"),
        (b"\x0d\x00", "ends within a field of 4 bytes"),
        (b"\x08\x01" * (FIELDS_MAX + 1), "more than 10,000 fields"),
    ],
)
def test_what_is_wrong_is_named(text: bytes, said: str) -> None:
    with pytest.raises(DeclarationError, match=said):
        ProtobufMessage.of(text)


def test_repeated_numbers_come_one_by_one_or_packed() -> None:
    message = ProtobufMessage.of(encoded([(1, 3), (1, bytes([4, 0x80, 1])), (1, 5)]))
    assert message.numbers(1) == [3, 4, 128, 5]
    assert message.numbers(2) == []
    with pytest.raises(DeclarationError, match="more than 10,000 numbers"):
        ProtobufMessage.of(encoded([(1, b"\x01" * (FIELDS_MAX + 1))])).numbers(1)


def test_a_field_of_another_kind_is_named() -> None:
    message = ProtobufMessage.of(encoded([(1, 3), (2, b"\xff")]))
    for read, said in ((message.text, "field 1 is a number"), (message.texts, "field 1 is a number")):
        with pytest.raises(DeclarationError, match=said):
            read(1)
    with pytest.raises(DeclarationError, match="field 2 is bytes"):
        message.number(2)
    with pytest.raises(DeclarationError, match="field 2 is no UTF-8"):
        message.text(2)
