"""Lookups over the wire: the worker's side of a client's line.

A client authenticates by its token (:mod:`.server`), and has one :class:`upriver.net.line.Line` to a worker for all its
threads and tasks. A request has the keys of one lookup or more, all of one view, one after the other, under
``{"view": name, "lookups": [[number, keys, at_least or null, together, seconds], ...]}``, best with the hash64 of each
key, which the client has computed anyway to find the keys' owner.

Answers come lookup by lookup, in any order: rows under ``{"view", "answers": [[number, rows], ...]}`` and the fields of
an :class:`.Answered`, or ``{"refused": [[number, class, message], ...]}``. An answer of many bytes comes in pieces.
Each but the last has ``"more": true``, and other answers may come between them. ``"taken"`` says up to which number the
worker has looked at lookups: then those that wait are answered later, and the client may send the next request. A
request that makes no sense is answered with one error and no number. The line goes on, either way.

The thread that has an answer writes it, if it is small and the client keeps up. All else is written by a thread of the
connection that lives as long as there is something to write.
"""

import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import msgspec
import numpy as np
import pyarrow as pa

from upriver.errors import Busy, ProtocolError, SealBroken, UpriverError
from upriver.hashing import Hashes, hash64
from upriver.net.line import ERROR_TEXT_CHARS_MAX, LOOKUP_TERMS, Frame, Line, LineBroken
from upriver.net.server import Caller
from upriver.net.wire import error_to_json
from upriver.protocol.lookups import Answered, LookupTerms
from upriver.state.vectors import Positions

LOOKUPS_MAX = 16_384
"""Lookups of one connection that have no answer; one more is refused."""
SMALL_BYTES_MAX = 1 << 16
"""Bytes of rows that the thread which has them writes itself, and that limits on traffic ignore."""
PIECE_BYTES = 4 << 20
"""About how many bytes of rows go in one frame."""
UNSENT_BYTES_MAX = 64 << 20
"""Bytes of small answers that a client leaves unread until its connection is cut."""


@dataclass(slots=True, eq=False)
class LookupRequest:
    """Lookups of one view that have come in one frame. keys, hash64: of all of them, one lookup after the other.
    came_at: by ``time.perf_counter``. left: lookups without an answer. held: bytes that count as under way."""

    view: str
    keys: pa.RecordBatch
    hash64: Hashes
    lookups: Sequence[LookupTerms]
    connection: "LookupConnection"
    came_at: float
    left: int
    held: int = 0


class LookupHandler(Protocol):
    """Answers lookups. Called by many threads at once."""

    def ask(self, request: LookupRequest) -> None:
        """Answer the request's lookups on its connection, now or later; does not wait."""

    def leave(self, connection: "LookupConnection") -> None:
        """The connection is over: its client no longer waits for its lookups."""


class AnswerLease(Protocol):
    """A worker's right to give out answers."""

    @property
    def is_held(self) -> bool: ...

    def check(self) -> None:
        """Wait until it is held. Raises UpriverError if that takes too long."""


class LookupCounts(Protocol):
    """Counts and times what is answered."""

    def answered(self, view: str, lookups: int, keys: int, seconds: float, *, held_up: bool) -> None: ...

    def refused(self, view: str, error: UpriverError) -> None: ...


class Unconditional:
    """A lease that is always held, and counts that count nothing."""

    is_held = True

    def check(self) -> None:
        """Nothing: it is held."""

    def answered(self, view: str, lookups: int, keys: int, seconds: float, *, held_up: bool) -> None:
        """Nothing."""

    def refused(self, view: str, error: UpriverError) -> None:
        """Nothing."""


_ALWAYS = Unconditional()


class LookupService:
    """The service of lookups at a worker: a thread of its server reads each connection."""

    def __init__(
        self,
        handler: LookupHandler,
        lease: AnswerLease = _ALWAYS,
        counts: LookupCounts = _ALWAYS,
    ) -> None:
        self._handler = handler
        self._lease = lease
        self._counts = counts

    def serve(self, caller: Caller) -> None:
        LookupConnection(caller, self._handler, self._lease, self._counts).serve()

    def stop(self) -> None:
        """Do nothing: lookups under way end with their lines."""


@dataclass(eq=False)
class _AnswerFrame:
    """A frame that the connection sends. numbers: of the lookups that it answers or refuses. held: bytes that count as
    under way."""

    head: dict[str, Any]
    rows: pa.RecordBatch | None = None
    numbers: Sequence[int] = ()
    held: int = 0
    row: int = 0
    """The first row that is not sent yet."""

    @cached_property
    def bytes(self) -> int:
        """Of the rows; of few bytes, perhaps too many."""
        if self.rows is None:
            return 0
        at_most = int(self.rows.get_total_buffer_size())  # many times as fast
        return at_most if at_most <= SMALL_BYTES_MAX else int(self.rows.nbytes)

    def refused(self, error: UpriverError) -> "_AnswerFrame":
        """The frame that refuses the lookups instead."""
        taken = {"taken": self.head["taken"]} if "taken" in self.head else {}
        return _AnswerFrame({"refused": [_refusal(number, error) for number in self.numbers], **taken})

    def next_piece(self) -> tuple[dict[str, Any], pa.RecordBatch | None, bool]:
        """The next head and rows to send, and whether they are the last ones. Only the answer to a single lookup goes
        in pieces."""
        size, rows = self.bytes, self.rows
        if rows is None or size <= PIECE_BYTES or len(self.numbers) > 1:
            return self.head, rows, True
        part = rows.slice(self.row, max(1, rows.num_rows * PIECE_BYTES // size))
        self.row += part.num_rows
        is_last = self.row >= rows.num_rows
        head = {**self.head, "answers": [(self.numbers[0], part.num_rows)], "more": not is_last}
        self.head.pop("taken", None)
        return head, part, is_last


class LookupConnection:
    """A client's connection. Any thread answers; one thread calls ``serve``."""

    def __init__(self, caller: Caller, handler: LookupHandler, lease: AnswerLease, counts: LookupCounts) -> None:
        self._stream = caller.stream
        self._traffic = caller.traffic
        self._line = Line(caller.stream, LOOKUP_TERMS, caller.session, caller.traffic)
        self._handler = handler
        self._lease = lease
        self._counts = counts
        self._lock = threading.Lock()
        """Guards all that follows, and the line's sending end."""
        self._left = 0
        """Lookups without an answer."""
        self._large: set[LookupRequest] = set()
        """The requests with lookups without an answer, of those whose bytes count as under way."""
        self._ready: list[_AnswerFrame] = []
        """What the next ``flush`` sends."""
        self._unsent: deque[_AnswerFrame | bytes] = deque()
        """What the writer is to write, in order."""
        self._unsent_bytes = 0
        self._writer: threading.Thread | None = None
        """Lives while there is something unsent."""
        self._is_over = False

    # Requests

    def serve(self) -> None:
        """Read request after request until the client closes the line, or breaks it. Raises OSError."""
        try:
            while self._read():
                pass
        finally:
            self._handler.leave(self)
            self._end()

    def _read(self) -> bool:
        """Read a request; returns whether the line goes on."""
        try:
            frame = self._line.receive()
            if frame is None:
                return False
            request = self._request(frame)
        except LineBroken as error:
            self._complain(ProtocolError(str(error)))
            return False
        except (Busy, SealBroken) as error:  # the rest of the request is not read
            self._complain(error)
            return False
        except UpriverError as error:
            self._complain(error)
            return True
        if request is not None:
            try:
                self._handler.ask(request)
            except Exception as error:  # of any class: it answers the request, and the line goes on
                for place in range(len(request.lookups)):
                    self.refuse(request, place, as_upriver(error))
                self.flush()
        return True

    def _request(self, frame: Frame) -> LookupRequest | None:
        """The request of a frame; ``None`` if there are too many already. Raises ProtocolError.

        A wrong hash finds nothing, since the worker compares the keys themselves. So the client's hashes are as good as
        our own."""
        head, keys, hashes = frame
        view = head.get("view")
        if not isinstance(view, str) or keys is None:
            raise ProtocolError(f"view {view!r:.100}: a lookup is of a view by name, and has keys")
        try:
            lookups = msgspec.convert(head.get("lookups"), list[LookupTerms])
        except msgspec.ValidationError as error:
            raise ProtocolError(f"view {view!r}: malformed lookups: {error}") from None
        if not lookups or sum(lookup.keys for lookup in lookups) != keys.num_rows:
            raise ProtocolError(f"view {view!r}: {len(lookups)} lookups have other keys than the {keys.num_rows} given")
        if len(hashes) != keys.num_rows:
            hashes = hash64(keys.columns, keys.num_rows)
        count = len(lookups)
        request = LookupRequest(view, keys, hashes, lookups, self, time.perf_counter(), count, self._line.keep_held())
        with self._lock:
            if request.held:
                self._large.add(request)
            self._left += count
            is_refused = self._left > LOOKUPS_MAX
        if is_refused:
            too_many = Busy(f"{LOOKUPS_MAX:,} lookups of this client wait already: ask again soon")
            for place in range(count):
                self.refuse(request, place, too_many)
            self.take(request)
            self.flush()
        return None if is_refused else request

    def _complain(self, error: UpriverError) -> None:
        """Answer a request that makes no sense."""
        self._add(_AnswerFrame(_told(error)))
        self.flush()

    # Answers

    def answer(
        self, request: LookupRequest, places: Sequence[int], rows: pa.RecordBatch, ends: Positions, answered: Answered
    ) -> None:
        """The rows of the request's lookups at these places, to be sent with the next ``flush``. ends: where those of
        each end."""
        lookups = request.lookups
        numbers = [lookups[place].number for place in places]
        counts = [rows.num_rows] if len(places) == 1 else np.diff(ends, prepend=0).tolist()
        keys = request.keys.num_rows if len(places) == len(lookups) else sum(lookups[place].keys for place in places)
        self._counts.answered(
            request.view, len(places), keys, time.perf_counter() - request.came_at, held_up=answered.held_up
        )
        head = {
            "view": request.view,
            "epoch": answered.epoch,
            "map_version": answered.version,
            "relayed": answered.relayed,
            "held_up": answered.held_up,
            "committed_at": answered.committed_at,
            "answers": list(zip(numbers, counts, strict=True)),
        }
        self._settled(request, len(numbers))
        self._add(_AnswerFrame(head, rows, numbers))

    def refuse(self, request: LookupRequest, place: int, error: UpriverError) -> None:
        """The request's lookup at this place has no answer but an error, to be sent with the next ``flush``."""
        self._counts.refused(request.view, error)
        self._settled(request, 1)
        self._add(_AnswerFrame({"refused": [_refusal(request.lookups[place].number, error)]}))

    def take(self, request: LookupRequest) -> None:
        """All that waits for nothing was answered: tell the client with the next ``flush``."""
        number = request.lookups[-1].number
        with self._lock:
            if self._ready:
                self._ready[-1].head["taken"] = number
                return
        self._add(_AnswerFrame({"taken": number}))

    def flush(self) -> None:
        """Send what is ready."""
        with self._lock:
            frames, self._ready = self._ready, []
            if self._is_over:
                self._forget(frames)
                return
            if not self._unsent and self._writer is None and self._lease.is_held:
                frames = self._write_at_once(frames)
            self._unsent.extend(frames)
            self._unsent_bytes += sum(frame.bytes for frame in frames if not frame.held)
            if self._unsent_bytes > UNSENT_BYTES_MAX:
                self._stream.cut()
            if self._unsent and self._writer is None:
                self._writer = threading.Thread(target=self._write, name="upriver-lookups-writer", daemon=True)
                self._writer.start()

    def _write_at_once(self, frames: list[_AnswerFrame]) -> list[_AnswerFrame]:
        """Write small answers as far as the client keeps up. Returns those that are left. The caller holds the lock."""
        small = next((place for place, frame in enumerate(frames) if frame.held), len(frames))
        data = b"".join([part for frame in frames[:small] for part in self._line.encoded(frame.head, frame.rows)])
        try:
            written = self._stream.write_at_once(data)
        except OSError:  # the client is gone, which the reading thread notices
            written = len(data)
        if written < len(data):
            self._unsent.append(data[written:])
            self._unsent_bytes += len(data) - written
        return frames[small:]

    def _add(self, frame: _AnswerFrame) -> None:
        if frame.bytes > SMALL_BYTES_MAX:
            try:
                self._traffic.hold(frame.bytes)
                frame.held = frame.bytes
            except Busy as error:
                frame = frame.refused(error)
        with self._lock:
            self._ready.append(frame)

    def _settled(self, request: LookupRequest, count: int) -> None:
        with self._lock:
            self._left -= count
            request.left -= count
            is_over = not request.left and request in self._large
            if is_over:
                self._large.remove(request)
        if is_over:
            self._traffic.release(request.held)

    # The writer

    def _write(self) -> None:
        while True:
            with self._lock:
                if not self._unsent or self._is_over:
                    self._writer = None
                    return
                frame = self._unsent.popleft()
                self._unsent_bytes -= len(frame) if isinstance(frame, bytes) else 0 if frame.held else frame.bytes
            is_sent = True
            try:
                is_sent = self._write_some(frame)
            except OSError:
                self._stream.cut()
            with self._lock:
                if not is_sent:
                    self._unsent.append(frame)  # other answers go between two pieces
                elif isinstance(frame, _AnswerFrame):
                    self._traffic.release(frame.held)

    def _write_some(self, frame: _AnswerFrame | bytes) -> bool:
        """Write the frame, or its next piece. Returns whether all of it is written."""
        if isinstance(frame, bytes):
            self._stream.write(frame)
            return True
        try:
            if frame.numbers and not frame.row:
                self._lease.check()
        except UpriverError as error:
            self._stream.write_together(self._line.encoded(frame.refused(error).head))
            return True
        head, rows, is_last = frame.next_piece()
        with self._traffic.limit(frame.held, self._stream.cut) if frame.held else nullcontext():
            self._stream.write_together(self._line.encoded(head, rows))
        return is_last

    def _end(self) -> None:
        with self._lock:
            self._is_over = True
            writer = self._writer
        self._stream.cut()
        if writer is not None:
            writer.join()
        with self._lock:
            self._forget([frame for frame in self._unsent if isinstance(frame, _AnswerFrame)])
            self._unsent.clear()
            while self._large:
                self._traffic.release(self._large.pop().held)
        self._line.release()

    def _forget(self, frames: Sequence[_AnswerFrame]) -> None:
        for frame in frames:
            self._traffic.release(frame.held)


def _told(error: Exception) -> dict[str, str]:
    return error_to_json(error, ERROR_TEXT_CHARS_MAX)


def _refusal(number: int, error: UpriverError) -> tuple[int, str, str]:
    told = _told(error)
    return number, told["error"], told["message"]


def as_upriver(error: Exception) -> UpriverError:
    """The error for the client."""
    return error if isinstance(error, UpriverError) else ProtocolError(f"{type(error).__name__}: {error}")
