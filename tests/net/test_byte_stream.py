"""What is read of a byte stream, and how."""

import socket
import threading
import time
from collections.abc import Callable

import pyarrow as pa
import pytest
from tls_kit import tls_sockets

from upriver.net.byte_stream import BUFFER_BYTES, ByteStream
from upriver.net.frames import SEAL_BYTES, Seals, chunks, read_first_frame

SECONDS_MAX = 10.0
"""Seconds for what must come at once."""


def test_bytes_that_come_bit_by_bit_have_no_more_time_for_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        theirs = socket.create_connection(listener.getsockname())
        stream = ByteStream(listener.accept()[0])
    theirs.sendall(b"abcd")
    with pytest.raises(TimeoutError):
        stream.read(5, time.monotonic())
    theirs.sendall(b"ef")
    assert stream.read(5, time.monotonic() + SECONDS_MAX) == b"abcde"
    theirs.close()
    assert stream.read(5, time.monotonic() + SECONDS_MAX) == b"f"
    stream.close()


Pair = Callable[[], tuple[ByteStream, ByteStream]]


def plain_pair() -> tuple[ByteStream, ByteStream]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        theirs = ByteStream(socket.create_connection(listener.getsockname()))
        return ByteStream(listener.accept()[0]), theirs


def tls_pair() -> tuple[ByteStream, ByteStream]:
    ours, theirs = tls_sockets()
    return ByteStream(ours), ByteStream(theirs)


@pytest.fixture(params=[plain_pair, tls_pair], ids=["plain", "tls"])
def pair(request: pytest.FixtureRequest) -> Pair:
    made: Pair = request.param
    return made


@pytest.mark.parametrize("size", [0, 1, BUFFER_BYTES, BUFFER_BYTES + 1, 10 * BUFFER_BYTES])
def test_what_is_written_comes_whatever_its_size(pair: Pair, size: int) -> None:
    ours, theirs = pair()
    data = bytes(range(256)) * (size // 256 + 1)
    writing = threading.Thread(target=theirs.write, args=(data,))
    writing.start()
    assert not ours.is_at_end()
    assert ours.take(size) == data[:size]
    assert ours.take(len(data) - size) == data[size:]
    writing.join()
    theirs.close()
    assert ours.is_at_end()
    ours.close()


def test_an_end_that_says_no_more_is_still_answered(pair: Pair) -> None:
    ours, theirs = pair()
    ours.write(b"question")
    ours.end_writing()
    assert theirs.take(8) == b"question"
    assert theirs.is_at_end()
    theirs.write(b"answer")
    ours.wait_at_most(SECONDS_MAX)
    assert ours.take(6) == b"answer"
    theirs.close()
    ours.close()


def test_parts_that_are_written_together_come_one_behind_the_other(pair: Pair) -> None:
    ours, theirs = pair()
    parts = (b"head", b"", memoryview(bytes(range(256)) * 20_000), memoryview(b"end" * 500_000))
    writing = threading.Thread(target=theirs.write_together, args=(parts,))
    writing.start()
    for part in parts:
        assert ours.take(len(part)) == part
    writing.join()
    for stream in (ours, theirs):
        stream.close()


@pytest.mark.parametrize("size", [2, 2 * BUFFER_BYTES])
def test_what_ends_too_early_is_no_end(pair: Pair, size: int) -> None:
    ours, theirs = pair()
    theirs.write(b"x")
    theirs.close()
    with pytest.raises(ConnectionError, match="in the middle"):
        ours.take(size)
    ours.close()


def test_writing_at_once_does_not_wait(pair: Pair) -> None:
    ours, theirs = pair()
    much = bytes(1 << 20)
    written = 0
    while more := ours.write_at_once(much):
        written += more
    assert written > 0
    assert theirs.take(written) == bytes(written)
    ours.cut()
    assert theirs.is_at_end()
    with pytest.raises(OSError, match=r"."):
        ours.write_at_once(b"x")
    for stream in (ours, theirs):
        stream.close()


@pytest.mark.parametrize("lacks", [1, SEAL_BYTES, SEAL_BYTES + 1])
def test_a_first_frame_that_ends_before_its_seal_does_is_none(pair: Pair, lacks: int) -> None:
    ours, theirs = pair()
    whole = b"".join(bytes(chunk) for chunk in chunks(pa.py_buffer(b"frame"), Seals(b"key")))
    ours.write(whole[:-lacks])
    ours.close()
    assert read_first_frame(theirs, Seals(b"key"), time.monotonic() + SECONDS_MAX) is None
    theirs.close()
