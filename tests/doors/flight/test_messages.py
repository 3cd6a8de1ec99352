"""The sizes of messages are read from HTTP/2's frames, however they are cut into pieces."""

import random
from collections.abc import Sequence

import pytest

from upriver.doors.flight.messages import MESSAGE_BYTES_MAX, UNFINISHED_BYTES_MAX, MessageRefused, MessageSizes

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEADERS, DATA, SETTINGS = 1, 0, 4
FRAME_BYTES = 16_384


def frame(kind: int, stream: int, payload: bytes, padding: int | None = None) -> bytes:
    """padding: its bytes; ``None``: the frame is not padded."""
    if padding is not None:
        payload = bytes([padding]) + payload + b"\xff" * padding
    flags = 0 if padding is None else 8
    return len(payload).to_bytes(3) + bytes([kind, flags]) + stream.to_bytes(4) + payload


def message(length: int, flag: int = 0) -> bytes:
    return bytes([flag]) + length.to_bytes(4) + b"\xff" * length


def frames_of(stream: int, content: bytes, random_: random.Random) -> list[bytes]:
    """Frames of any length and padding, which have this content."""
    found, place = [], 0
    while place < len(content):
        count = random_.choice((0, 1, 3, 5, 100, FRAME_BYTES))
        found.append(frame(DATA, stream, content[place : place + count], random_.choice((None, None, 0, 7))))
        place += count
    return found


def mixed(queues: Sequence[list[bytes]], random_: random.Random) -> bytes:
    """The frames of several streams, each in its order."""
    said = [PREFACE, frame(SETTINGS, 0, b"\xff" * 12)]
    while waiting := [queue for queue in queues if queue]:
        said.append(random_.choice(waiting).pop(0))
        said.append(frame(HEADERS, 1, b"\xff" * random_.choice((0, 40))))
    return b"".join(said)


def hear(said: bytes, random_: random.Random) -> None:
    sizes, place = MessageSizes(), 0
    while place < len(said):
        count = random_.choice((1, 2, 9, 1_000, 1 << 18))
        sizes.hear(said[place : place + count])
        place += count


TOO_LARGE = bytes(1) + (MESSAGE_BYTES_MAX + 1).to_bytes(4)


@pytest.mark.parametrize("seed", range(20))
def test_messages_that_are_not_too_large_pass_and_the_first_that_is_does_not(seed: int) -> None:
    random_ = random.Random(seed)
    contents = [b"".join(message(random_.choice((0, 1, 500, 40_000))) for _ in range(4)) for _ in range(3)]
    hear(mixed([frames_of(number, content, random_) for number, content in enumerate(contents)], random_), random_)
    contents[seed % 3] += TOO_LARGE
    queues = [frames_of(number, content, random_) for number, content in enumerate(contents)]
    with pytest.raises(MessageRefused, match="a message of 16,777,217 bytes: at most 16,777,216 are taken"):
        hear(mixed(queues, random_), random_)


def test_a_compressed_message_is_refused() -> None:
    with pytest.raises(MessageRefused, match="compressed"):
        hear(PREFACE + frame(DATA, 1, message(3, flag=1)), random.Random(0))


def test_messages_that_a_caller_does_not_finish_are_few() -> None:
    sizes, part = MessageSizes(), frame(DATA, 1, message(MESSAGE_BYTES_MAX)[: 1 << 20])
    sizes.hear(PREFACE)
    for stream in range(UNFINISHED_BYTES_MAX >> 20):
        sizes.hear(part[:5] + stream.to_bytes(4) + part[9:])
    with pytest.raises(MessageRefused, match="messages of more than 67,108,864 bytes at a time"):
        sizes.hear(part[:5] + b"\xff" * 4 + part[9:])


def test_finished_messages_may_be_any_number() -> None:
    sizes, whole = MessageSizes(), frame(DATA, 1, message(1 << 20))
    sizes.hear(PREFACE)
    for stream in range(2 * UNFINISHED_BYTES_MAX >> 20):
        sizes.hear(whole[:5] + stream.to_bytes(4) + whole[9:])
    with pytest.raises(MessageRefused):
        sizes.hear(frame(DATA, 1, TOO_LARGE))
