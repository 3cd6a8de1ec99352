"""A man in the middle of connections of the native port: frames go through him, and he may do with each what he likes.

He knows the format of handshakes and of frames, and no key.
"""

import random
import socket
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from functools import partial
from io import BufferedReader
from typing import Self

from relay_kit import Relay, copy_both

from upriver.net.frames import SEAL_BYTES
from upriver.net.handshake import ANSWER, GREETING, HELLO, MAGIC, Purpose
from upriver.net.line import SMALL_FRAME_BYTES_MAX

_LINE, _CHANNEL = struct.Struct("<IIQ"), struct.Struct("<I")


class Toward(Enum):
    """Where a frame goes."""

    SERVER = "to the server"
    CALLER = "to the caller"


class End(Exception):
    """He ends the connection."""


Tamper = Callable[[Toward, bytes], Sequence[bytes]]
"""What he passes on in place of a frame, with its seals. May raise End."""


def untouched(_: Toward, frame: bytes) -> Sequence[bytes]:
    return [frame]


class Middle(Relay):
    """Passes connections on to ``target``. tamper: what he does with each frame from now on. handshake: with each
    message of a handshake."""

    def __init__(self, target: str) -> None:
        self.tamper: Tamper = untouched
        self.handshake: Callable[[Toward, bytes], bytes] = lambda _, message: message
        self._ends: list[socket.socket] = []
        super().__init__()
        self.target = target

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Cuts the connections that are left."""
        for end in self._ends:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        super().__exit__()

    def pass_on(self, caller: socket.socket, app: socket.socket) -> None:
        self._ends += (caller, app)
        purposes: list[Purpose] = []
        copy_both(caller, app, partial(self._of_caller, purposes), partial(self._of_app, purposes))

    def _of_caller(self, purposes: list[Purpose], source: socket.socket) -> Iterator[bytes]:
        with source.makefile("rb") as came:
            if len(hello := came.read(HELLO.size)) < HELLO.size:
                return
            purposes.append(Purpose(hello[len(MAGIC) : len(MAGIC) + 8].rstrip(b"\0").decode()))
            yield self.handshake(Toward.SERVER, hello)
            yield from self._tampered(Toward.SERVER, purposes[0], came)

    def _of_app(self, purposes: list[Purpose], source: socket.socket) -> Iterator[bytes]:
        with source.makefile("rb") as came:
            yield self.handshake(Toward.CALLER, came.read(GREETING.size))
            if answer := came.read(ANSWER.size):
                yield self.handshake(Toward.CALLER, answer)
                yield from self._tampered(Toward.CALLER, purposes[0], came)

    def _tampered(self, toward: Toward, purpose: Purpose, came: BufferedReader) -> Iterator[bytes]:
        while frame := read_frame(came, purpose):
            try:
                yield from self.tamper(toward, frame)
            except End:
                return


def read_frame(came: BufferedReader, purpose: Purpose) -> bytes:
    """The next frame with its seals; nothing at the end."""
    form = _CHANNEL if purpose is Purpose.CHANNEL else _LINE
    sizes = came.read(form.size)
    if len(sizes) < form.size:
        return b""
    size = sum(form.unpack(sizes)) + SEAL_BYTES
    if purpose is not Purpose.CHANNEL and size - SEAL_BYTES > SMALL_FRAME_BYTES_MAX:
        size += SEAL_BYTES
    return sizes + came.read(size)


def flipped(frame: bytes, at: int) -> bytes:
    data = bytearray(frame)
    data[at] ^= 1
    return bytes(data)


@dataclass
class Once:
    """He does one thing, to the first frame that goes one way, and then passes all on."""

    kind: str
    toward: Toward
    is_done: bool = False

    def __call__(self, toward: Toward, frame: bytes) -> Sequence[bytes]:
        if toward is not self.toward or self.is_done:
            return [frame]
        self.is_done = True
        return tampered(self.kind, frame)


@dataclass
class OutOfOrder:
    """He keeps the first frame that goes one way, and passes it on behind the second."""

    toward: Toward
    is_done: bool = False
    _kept: bytes | None = None

    def __call__(self, toward: Toward, frame: bytes) -> Sequence[bytes]:
        if toward is not self.toward or self.is_done:
            return [frame]
        if self._kept is None:
            self._kept = frame
            return []
        self.is_done = True
        return [frame, self._kept]


@dataclass
class NowAndThen:
    """He does something that is noticed at once to one frame out of so many, as a seed says."""

    rng: random.Random
    every: int
    done: int = 0

    def __call__(self, toward: Toward, frame: bytes) -> Sequence[bytes]:
        if self.rng.randrange(self.every):
            return [frame]
        self.done += 1
        return tampered(self.rng.choice(NOTICED_AT_ONCE), frame)


def tampered(kind: str, frame: bytes) -> Sequence[bytes]:
    match kind:
        case "smaller sizes":
            return [(int.from_bytes(frame[:2], "little") - 1).to_bytes(2, "little") + frame[2:]]
        case "larger sizes":
            return [flipped(frame, 3)]  # 16 MiB more
        case "head changed":
            return [flipped(frame, _LINE.size + 3)]
        case "end changed":
            return [flipped(frame, -SEAL_BYTES - 1)]
        case "seal changed":
            return [flipped(frame, -1)]
        case "forged":
            return [frame[:-SEAL_BYTES] + bytes(SEAL_BYTES), frame]
        case "repeated":
            return [frame, frame]
        case "dropped":
            return []
        case "a part dropped":
            return [frame[: len(frame) // 2], frame[len(frame) // 2 + 1 :]]
        case _:
            assert kind == "cut"
            raise End


NOTICED_AT_ONCE = (
    "smaller sizes",
    "larger sizes",
    "head changed",
    "end changed",
    "seal changed",
    "forged",
    "repeated",
    "cut",
)
"""What he may do to a frame, and the end where it goes notices by itself."""
KINDS = (*NOTICED_AT_ONCE, "dropped", "a part dropped")
"""What else he may do: it is noticed with the next frame, or when time is over."""
