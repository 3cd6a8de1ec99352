"""What is put into an outbox is written once and in order, by the thread that puts it or by the thread that
iterates."""

import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pytest

from upriver.net.byte_stream import ByteStream
from upriver.net.channel import AT_ONCE_BYTES_MAX, Full, Outbox, Shut
from upriver.net.frames import PIECE_BYTES_MAX, Joiner, Seals, joined, read_frame
from upriver.net.wire import Message, decode, encode

SECONDS_MAX = 10.0
SMALL, LARGE = pa.py_buffer(b"small"), pa.py_buffer(bytes(AT_ONCE_BYTES_MAX + 1))
LAST = pa.py_buffer(b"last")
KEY = b"of this direction"


def wire(*frames: pa.Buffer) -> bytes:
    """Frames as they are to be on the wire, each sealed in its turn."""
    seals = Seals(KEY)
    return b"".join(joined(frame, seals) for frame in frames)


class Stream:
    """Takes so many bytes at once, and all of what is written later. takes: ``None`` if its other end is gone."""

    def __init__(self, takes: int | None) -> None:
        self.takes = takes
        self.at_once = b""

    def write_at_once(self, data: bytes) -> int:
        if self.takes is None:
            raise BrokenPipeError
        self.at_once += data[: self.takes]
        return min(len(data), self.takes)


def opened(takes: int | None) -> tuple[Outbox, Stream]:
    outbox, stream = Outbox(messages_max=3, bytes_max=1 << 20, seals=Seals(KEY)), Stream(takes)
    outbox.open(stream.write_at_once)
    return outbox, stream


def rest(outbox: Outbox) -> bytes:
    """What is left to be written, the last frame at its end."""
    outbox.shut(LAST)
    return b"".join(bytes(chunk) for chunk in outbox)


def test_before_it_is_opened_all_waits() -> None:
    outbox = Outbox(messages_max=3, bytes_max=1 << 20, seals=Seals(KEY))
    outbox.put(SMALL)
    assert rest(outbox) == wire(SMALL, LAST)


@pytest.mark.parametrize("takes", [0, 1, 4, 8, 20, 1 << 20])
def test_what_does_not_go_at_once_is_written_after_it(takes: int) -> None:
    outbox, stream = opened(takes)
    outbox.put(SMALL)
    assert stream.at_once == wire(SMALL)[:takes]
    assert stream.at_once + rest(outbox) == wire(SMALL, LAST)


def test_nothing_overtakes_what_waits() -> None:
    outbox, stream = opened(1)
    for frame in (SMALL, LAST):
        outbox.put(frame)
    assert stream.at_once == wire(SMALL)[:1]
    assert stream.at_once + rest(outbox) == wire(SMALL, LAST, LAST)


def test_putting_a_large_frame_does_not_block() -> None:
    outbox, stream = opened(1 << 20)
    outbox.put(LARGE)
    outbox.put(SMALL)
    assert stream.at_once == b""
    assert rest(outbox) == wire(LARGE, SMALL, LAST)


def test_while_a_frame_is_written_no_other_is() -> None:
    outbox, stream = opened(1 << 20)
    outbox.put(LARGE)
    writing = iter(outbox)
    begun = bytes(next(writing))
    outbox.put(SMALL)
    assert stream.at_once == b""
    outbox.shut(LAST)
    assert begun + b"".join(bytes(chunk) for chunk in writing) == wire(LARGE, SMALL, LAST)
    with pytest.raises(Shut):
        outbox.put(SMALL)


def test_if_the_other_end_is_gone_nothing_more_is_taken() -> None:
    outbox, _ = opened(None)
    outbox.put(SMALL)
    with pytest.raises(Shut):
        outbox.put(SMALL)
    assert list(outbox) == []


def test_what_was_begun_counts_as_waiting() -> None:
    outbox, _ = opened(1)
    for _ in range(3):
        outbox.put(SMALL)
    with pytest.raises(Full, match="3 messages"):
        outbox.put(SMALL)


def test_over_a_real_socket_all_frames_come_whole_and_each_sender_s_in_order() -> None:
    """Of all sizes, by many threads, to an end that reads slower than they write."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        theirs = ByteStream(socket.create_connection(listener.getsockname()))
        ours = ByteStream(listener.accept()[0])
    outbox = Outbox(messages_max=1 << 20, bytes_max=1 << 40, seals=Seals(KEY))

    def write_all() -> None:
        for chunk in outbox:
            ours.write(chunk)

    def send_all(sender: int) -> None:
        rng = np.random.default_rng(sender)
        for number in range(60):
            size = int(rng.choice([0, 1, 1 << 10, 1 << 14, AT_ONCE_BYTES_MAX, 1 << 18, PIECE_BYTES_MAX]))
            batch = pa.RecordBatch.from_pydict({"n": np.full(size, number, np.uint8)})
            outbox.put(encode(Message("count", {"sender": sender, "number": number}, (batch,))))

    writing = threading.Thread(target=write_all)
    writing.start()
    outbox.open(ours.write_at_once)
    heard: list[tuple[int, int]] = []
    with ThreadPoolExecutor(4) as pool:
        sent = [pool.submit(send_all, sender) for sender in range(4)]
        joiner, seals = Joiner(), Seals(KEY)
        while len(heard) < 240:
            frame = read_frame(theirs, seals)
            assert frame is not None
            message = decode(frame)
            if message.kind == "channel.piece":
                whole = joiner.join(message, frame)
                if whole is None:
                    continue
                message = decode(whole)
            number = message.fields["number"]
            assert set(message.batches[0].column(0).to_pylist()) <= {number}
            heard.append((message.fields["sender"], number))
        for each in sent:
            each.result(SECONDS_MAX)
    outbox.shut(LAST)
    writing.join(SECONDS_MAX)
    for sender in range(4):
        assert [number for who, number in heard if who == sender] == list(range(60))
    for stream in (ours, theirs):
        stream.close()
