"""What a line reads that is no frame."""

import socket
import time

import pytest

from upriver.shell.line import Line

SECONDS_MAX = 10.0
"""Seconds for what must come at once."""


def test_bytes_that_come_bit_by_bit_have_no_more_time_for_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        theirs = socket.create_connection(listener.getsockname())
        line = Line(listener.accept()[0])
    theirs.sendall(b"abcd")
    with pytest.raises(TimeoutError):
        line.read(5, time.monotonic())
    theirs.sendall(b"ef")
    assert line.read(5, time.monotonic() + SECONDS_MAX) == b"abcde"
    theirs.close()
    assert line.read(5, time.monotonic() + SECONDS_MAX) == b"f"
    line.close()
