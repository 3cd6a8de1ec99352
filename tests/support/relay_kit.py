"""A fixed address in front of an app, as a cluster manager gives a service: the app behind it may be another one."""

import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Self

BYTES_MAX = 65_536
"""Bytes that are passed on at a time."""


class Relay:
    """Passes connections on to ``target``; refuses them while there is none. Usable as a context manager."""

    def __init__(self) -> None:
        self.target: str | None = None
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._threads = [threading.Thread(target=self._serve, name="relay")]
        self._threads[0].start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """The connections must have ended."""
        self._listener.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        self._listener.close()

    def _serve(self) -> None:
        with suppress(OSError):  # closed
            while True:
                caller, _ = self._listener.accept()
                try:
                    host, _, port = (self.target or "").rpartition(":")
                    app = socket.create_connection((host, int(port)))
                except (OSError, ValueError):
                    caller.close()
                    continue
                passing = threading.Thread(target=self.pass_on, args=(caller, app), name="relayed")
                self._threads.append(passing)
                passing.start()

    def pass_on(self, caller: socket.socket, app: socket.socket) -> None:
        """In both directions, until either end has ended."""
        copy_both(caller, app, copied, copied)


Chunks = Callable[[socket.socket], Iterable[bytes]]
"""What is passed on of what comes from an end."""


def copied(source: socket.socket) -> Iterator[bytes]:
    while some := source.recv(BYTES_MAX):
        yield some


def copy_both(caller: socket.socket, app: socket.socket, of_caller: Chunks, of_app: Chunks) -> None:
    with caller, app:
        back = threading.Thread(target=_copy, args=(of_app, app, caller), name="relayed back")
        back.start()
        _copy(of_caller, caller, app)
        back.join()


def _copy(chunks: Chunks, source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        for some in chunks(source):
            sink.sendall(some)
    for end in (source, sink):
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
