"""Large frames in pieces, and a line so slow that a frame takes longer than the limit of silence."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pyarrow as pa
import pytest
from channel_kit import HELLO, QUICK, Hub, Recorder
from server_kit import SECONDS_MAX, peer_of

from upriver.net.channel import open_channel
from upriver.net.frames import PIECE, PIECE_BYTES_MAX, Joiner, in_pieces
from upriver.net.server import Server
from upriver.net.wire import Message, decode, encode

LINE_BYTES = 1 << 16
LINE_S = 0.004
"""Seconds for so many bytes."""


def message_of(size: int) -> Message:
    numbers = np.random.default_rng(size).integers(0, 255, size, np.uint8)
    return Message("rows", {"size": size}, (pa.RecordBatch.from_arrays([pa.array(numbers)], ["n"]),))


@pytest.mark.parametrize("size", [1, PIECE_BYTES_MAX - 1, PIECE_BYTES_MAX, PIECE_BYTES_MAX + 1, 3 * PIECE_BYTES_MAX])
def test_a_frame_in_pieces_is_whole_again(size: int) -> None:
    message, joiner = message_of(size), Joiner()
    *before, last = in_pieces(encode(message))
    for piece in before:
        head = decode(piece)
        assert head.kind == PIECE
        assert joiner.join(head, piece) is None
    if before:
        whole = joiner.join(decode(last), last)
        assert whole is not None
        last = whole
    assert decode(last) == message


@contextmanager
def slow_line(server: Server) -> Iterator[str]:
    """An address by which a server's channels go over a relay, through which bytes come slowly."""
    over = threading.Event()
    port = server.port
    sockets: list[socket.socket] = []

    def relay(source: socket.socket, target: socket.socket) -> None:
        try:
            while some := source.recv(LINE_BYTES):
                over.wait(LINE_S * len(some) / LINE_BYTES)
                target.sendall(some)
            target.shutdown(socket.SHUT_WR)
        except OSError:
            return  # one of the two is gone

    def accept(listener: socket.socket) -> None:
        try:
            while True:
                here, _ = listener.accept()
                there = socket.create_connection(("127.0.0.1", port))
                sockets.extend((here, there))
                for pair in ((here, there), (there, here)):
                    threading.Thread(target=relay, args=pair, daemon=True).start()
        except OSError:
            return  # the test is over

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=accept, args=(listener,), daemon=True).start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        over.set()
        listener.shutdown(socket.SHUT_RDWR)
    for each in sockets:
        each.close()


def test_a_message_that_takes_longer_than_the_limit_of_silence_is_no_silence() -> None:
    hub, recorder, message = Hub(), Recorder(), message_of(16 * PIECE_BYTES_MAX)
    assert 3 * QUICK.silence_s_max < LINE_S * 16 * PIECE_BYTES_MAX / LINE_BYTES
    with hub.server() as server, slow_line(server) as address:
        end = open_channel(peer_of(address), HELLO, recorder.receiver, limits=QUICK)
        end.send(message)
        _, their_ear = hub.accepted()
        assert their_ear.messages.get(timeout=6 * SECONDS_MAX) == message
        end.close()
        assert recorder.closing() is None
        assert their_ear.closing() is None
