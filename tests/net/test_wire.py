"""Frames and errors: what goes in comes out, and nothing else does."""

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from upriver import errors
from upriver.errors import ProtocolError, UpriverError, WaitTimeout
from upriver.net.wire import Message, decode, decode_json, encode, encode_json, error_from_json, error_to_json

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)
BATCHES = st.sampled_from(
    [
        pa.RecordBatch.from_pydict({"k": ["a", None, "c"], "n": [1, 2, None]}),
        pa.RecordBatch.from_pydict({"k": ["x", "y", "z"]}).slice(1, 1),
        pa.RecordBatch.from_pydict({"k": pa.array([], pa.decimal128(20, 3))}),
        pa.RecordBatch.from_pydict({"k": pa.array(["a", "b", "a"]).dictionary_encode()}),
        pa.RecordBatch.from_pydict({"k": pa.array([[1], None, [2, 3]])}),
    ]
)
END_BYTES = 8
"""What ends a stream: a reader that has the batch need not read them."""
MESSAGES = st.builds(
    Message, st.text(), st.dictionaries(st.text(), JSON, max_size=4), st.lists(BATCHES, max_size=3).map(tuple)
)
ERRORS = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, UpriverError)]


@given(MESSAGES)
def test_a_message_survives_the_wire(message: Message) -> None:
    arrived = decode(encode(message))
    assert (arrived.kind, arrived.fields) == (message.kind, message.fields)
    assert [batch.schema for batch in arrived.batches] == [batch.schema for batch in message.batches]
    assert arrived.batches == message.batches


@given(MESSAGES, st.data())
def test_a_truncated_frame_is_refused(message: Message, data: st.DataObject) -> None:
    frame = encode(message)
    with pytest.raises(ProtocolError):
        decode(frame.slice(0, data.draw(st.integers(0, frame.size - 1))))


@pytest.mark.parametrize("rows", [0, 1, 100])
def test_a_batch_that_is_cut_short_is_refused(rows: int) -> None:
    """The frame is whole: its head says that there is less of the batch."""
    whole = encode(Message("k", {}, (pa.RecordBatch.from_pydict({"n": list(range(rows)), "k": ["x"] * rows}),)))
    head_bytes = int.from_bytes(whole.to_pybytes()[:4], "little")
    body = whole.slice(4 + head_bytes).to_pybytes()
    for size in range(len(body) - END_BYTES):
        head = encode_json({"kind": "k", "fields": {}, "sizes": [size]})
        with pytest.raises(ProtocolError, match="malformed"):
            decode(pa.py_buffer(len(head).to_bytes(4, "little") + head + body[:size]))


@given(st.binary(max_size=200))
def test_a_foreign_frame_is_refused(frame: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode(pa.py_buffer(frame))


@pytest.mark.parametrize("value", [{"when": object()}, {"root": 1j}, {("a", "b"): 1}])
def test_what_json_cannot_hold_is_refused_where_it_is_said(value: dict[Any, Any]) -> None:
    with pytest.raises(ProtocolError, match="JSON"):
        encode(Message("kind", value))


@pytest.mark.parametrize("text", [b"", b"[1]", b"null", b"{", b"\xff"])
def test_only_a_json_object_is_an_object(text: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_json(text)


def test_json_is_the_same_back() -> None:
    assert decode_json(encode_json({"name": "Zoë", "n": [1, None]})) == {"name": "Zoë", "n": [1, None]}


@pytest.mark.parametrize("kind", ERRORS, ids=lambda kind: kind.__name__)
def test_an_error_keeps_its_class_and_message(kind: type[UpriverError]) -> None:
    arrived = error_from_json(decode_json(encode_json(error_to_json(kind("view 'x': naïve")))))
    assert type(arrived) is kind
    assert str(arrived) == "view 'x': naïve"


def test_an_error_of_another_kind_is_a_protocol_error_with_its_name() -> None:
    arrived = error_from_json(error_to_json(ZeroDivisionError("division by zero")))
    assert type(arrived) is ProtocolError
    assert str(arrived) == "ZeroDivisionError: division by zero"


@pytest.mark.parametrize("kind", ["SystemExit", "Exception", "annotations", ""])
def test_a_class_that_is_none_of_our_errors_is_not_looked_up(kind: str) -> None:
    arrived = error_from_json({"error": kind, "message": "text"})
    assert type(arrived) is ProtocolError
    assert str(arrived) == f"{kind}: text"


def test_a_long_error_is_cut_and_says_so() -> None:
    text = error_to_json(WaitTimeout("x" * 50), text_chars_max=20)["message"]
    assert text == "x" * 20 + "... (30 more characters)"
