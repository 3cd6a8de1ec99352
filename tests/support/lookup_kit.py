"""Lookups past any client: a handler that answers each lookup by a function, and a line that asks one at a time."""

import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from server_kit import KEYS, SECONDS_MAX, client_of

from upriver.errors import WorkerLost
from upriver.hashing import Hashes, hash64
from upriver.net.handshake import Purpose
from upriver.net.line import ANSWER_TERMS, Frame, Line
from upriver.net.lookups import LookupConnection, LookupHandler, LookupRequest, LookupService, as_upriver
from upriver.net.remote import Remote, dial
from upriver.net.server import Server
from upriver.net.wire import error_from_json
from upriver.protocol.lookups import Answered, LookupTerms

SIZES_BYTES = 16
"""Of a frame's sizes."""


@dataclass(frozen=True)
class KeysAsked:
    """One lookup."""

    view: str
    keys: pa.RecordBatch
    hash64: Hashes
    at_least: int | None = None
    together: bool = False
    timeout: float = 10.0

    @staticmethod
    def of(view: str, keys: pa.RecordBatch, at_least: int | None = None, together: bool = False) -> "KeysAsked":
        return KeysAsked(view, keys, hash64(keys.columns, keys.num_rows), at_least, together)


@dataclass(frozen=True)
class Given:
    """The answer to one lookup."""

    rows: pa.RecordBatch
    answered: Answered

    @staticmethod
    def of(rows: pa.RecordBatch, epoch: int = 0, version: int = 0, **fields: object) -> "Given":
        return Given(rows, Answered(epoch, version, **fields))  # type: ignore[arg-type]


class Answering:
    """Answers each lookup by a function, which may block, or fail, on a thread of its own."""

    def __init__(self, answer: Callable[[KeysAsked], Given]) -> None:
        self._answer = answer

    def ask(self, request: LookupRequest) -> None:
        start = 0
        for place, lookup in enumerate(request.lookups):
            asked = KeysAsked(
                request.view,
                request.keys.slice(start, lookup.keys),
                request.hash64[start : start + lookup.keys],
                lookup.at_least,
                lookup.together,
                lookup.timeout,
            )
            start += lookup.keys
            threading.Thread(target=self._answer_one, args=(request, place, asked), daemon=True).start()
        request.connection.take(request)
        request.connection.flush()

    def _answer_one(self, request: LookupRequest, place: int, asked: KeysAsked) -> None:
        try:
            given = self._answer(asked)
        except Exception as error:
            request.connection.refuse(request, place, as_upriver(error))
        else:
            request.connection.answer(request, [place], given.rows, np.array([given.rows.num_rows]), given.answered)
        request.connection.flush()

    def leave(self, connection: LookupConnection) -> None:
        """Nothing: the functions end by themselves."""


class LookupStream:
    """A line on which one lookup at a time is asked. Raises WorkerLost."""

    def __init__(self, remote: Remote, timeout: float) -> None:
        self.address = remote.address
        self.stream, session = dial(remote, Purpose.LOOKUPS, timeout, WorkerLost)
        self.line = Line(self.stream, ANSWER_TERMS, session)
        self._number = 0

    def ask(self, asked: KeysAsked) -> None:
        self._number += 1
        terms = LookupTerms(self._number, asked.keys.num_rows, asked.at_least, asked.together, asked.timeout)
        try:
            self.line.send({"view": asked.view, "lookups": [terms]}, asked.keys, asked.hash64)
        except OSError as error:
            raise WorkerLost(f"{self.address} cannot be reached: {error}") from None

    def answer(self) -> Given:
        """Wait for the answer to the last lookup. Raises its error."""
        parts: list[pa.RecordBatch] = []
        while True:
            try:
                frame = self.line.receive()
            except OSError as error:
                raise WorkerLost(f"{self.address} cannot be reached: {error}") from None
            if frame is None:
                raise WorkerLost(f"{self.address} has ended the stream")
            head = frame.head
            if "error" in head:
                raise error_from_json(head)
            for number, kind, message in head.get("refused", ()):
                if number == self._number:
                    raise error_from_json({"error": kind, "message": message})
            for number, count in head.get("answers", ()):
                assert (number, count) == (self._number, frame.batch.num_rows if frame.batch is not None else 0)
                assert frame.batch is not None
                parts.append(frame.batch)
                if not head.get("more"):
                    answered = Answered(
                        head["epoch"], head["map_version"], head["relayed"], head["held_up"], head["committed_at"]
                    )
                    return Given(parts[0] if len(parts) == 1 else pa.concat_batches(parts), answered)

    def cut(self) -> None:
        """Make another thread's ``answer`` raise WorkerLost."""
        self.line.cut()

    def close(self) -> None:
        self.line.close()


class RawLine(Line):
    """A client's line that also sends what no client would: any bytes, sealed in their turn. stream: below it."""

    def __init__(self, remote: Remote, purpose: Purpose = Purpose.LOOKUPS) -> None:
        self.stream, self.session = dial(remote, purpose, SECONDS_MAX)
        super().__init__(self.stream, ANSWER_TERMS, self.session)

    def write(self, frame: bytes) -> None:
        """frame: without its seals."""
        self._write(self._sealed((frame[:SIZES_BYTES], frame[SIZES_BYTES:], b"", b"")))

    def announce(self, *sizes: int) -> bytes:
        """The beginning of a large frame: sizes that have their seal."""
        told = struct.pack("<IIQ", *sizes)
        return told + self._send_seals.of_sizes(told)


def answer_on(line: Line) -> Frame | None:
    """The next frame that answers or refuses something; ``None`` if the other end has closed the line."""
    while (frame := line.receive()) is not None:
        if frame.head.keys() != {"taken"}:
            return frame
    return None


def refusal_on(line: Line) -> str:
    """The message of the next frame, which is a refusal."""
    frame = answer_on(line)
    assert frame is not None
    return str(frame.head["message"] if "error" in frame.head else frame.head["refused"][0][2])


class Served:
    """A server of lookups, and lines to it, each used by one thread at a time."""

    def __init__(self, handler: LookupHandler) -> None:
        self.server = Server(KEYS, {Purpose.LOOKUPS: LookupService(handler)})
        self._lock = threading.Lock()
        self._idle: list[LookupStream] = []

    def look_up(self, asked: KeysAsked) -> Given:
        with self._lock:
            stream = self._idle.pop() if self._idle else LookupStream(client_of(self.server.address), SECONDS_MAX)
        try:
            stream.ask(asked)
            return stream.answer()
        finally:
            with self._lock:
                self._idle.append(stream)

    def stop(self) -> None:
        for stream in self._idle:
            stream.close()
        self.server.stop()
