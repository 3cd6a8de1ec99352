"""A client's lines to the workers: lookups of all threads or tasks that are made while a request is under way to a
worker go together in the next one.

A request is under way until the worker says that it has looked at all of its lookups (``taken``). Answers come lookup
by lookup, in any order; see :mod:`upriver.net.lookups` for the frames. So nothing waits for a timer, a lookup that
finds no request under way goes at once, and a lookup that waits at the worker holds up no other.

``WorkerLine``: the line to one worker, without any wait: it sends, and takes in what has come.

``ThreadLine``: a line of threads. A thread that waits for its answer reads for all that wait, if no other thread does.
Once it has its own answer, another waiting thread goes on. So a single thread is never woken by another one.
"""

import itertools
import select
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from upriver.errors import Busy, ClusterError, ProtocolError, UpriverError, WorkerLost
from upriver.hashing import Hashes, hash64
from upriver.ids import WorkerId
from upriver.net.byte_stream import ByteStream, Latch
from upriver.net.handshake import Purpose, Session
from upriver.net.line import ANSWER_TERMS, Frame, Line
from upriver.net.remote import IDLE_S_MAX, Remote, dial
from upriver.net.wire import error_from_json
from upriver.protocol.lookups import Answered, LookupTerms, ViewRoute

REQUEST_LOOKUPS_MAX = 1_024
"""Lookups of one request; more wait for the next one."""
REQUEST_KEYS_MAX = 8_192
"""Keys of one request, unless a single lookup has more."""
REQUEST_BYTES_MAX = 4 << 20
"""Bytes of the keys of one request, unless a single lookup has more."""
WAITING_MAX = 65_536
"""Lookups that wait for a request under way to one worker; one more is refused."""
READ_BYTES = 1 << 18
"""Bytes that are read at a time, if they are there."""
FRESH_S = 1.0
"""Seconds after its last use for which a line counts as open, without a look at its socket."""
REACH_S_MAX = 2.0
"""Seconds in which a worker must be reached; after that the client refreshes the routing: the worker may have been
replaced."""
ANSWER_GRACE_S = 1.0
"""Seconds beyond a lookup's time in which a worker may still report that its time ran out."""
RECHECK_S = 0.5
"""Seconds after which a waiting lookup checks whether its workers are still there."""


class ShortKey:
    """A single key of plain values: numbers, texts and nulls, one for each column."""

    __slots__ = ("hash", "values")

    count = 1

    def __init__(self, values: tuple[Any, ...], hash: int) -> None:
        self.values = values
        self.hash = hash

    @property
    def nbytes(self) -> int:
        """About how many bytes it has."""
        return sum(len(value) if type(value) is str else 8 for value in self.values)


class KeyBatch:
    """Keys in columns, each once."""

    __slots__ = ("hash64", "keys")

    def __init__(self, keys: pa.RecordBatch, hash64: Hashes) -> None:
        self.keys = keys
        self.hash64 = hash64

    @property
    def count(self) -> int:
        return len(self.hash64)

    @property
    def nbytes(self) -> int:
        return int(self.keys.nbytes)


class AnswerRows:
    """The rows of one answer of a worker, to several lookups. What is made of them is made once for all."""

    __slots__ = ("_dicts", "_hashes", "batch")

    def __init__(self, batch: pa.RecordBatch) -> None:
        self.batch = batch
        self._dicts: list[dict[str, Any]] | None = None
        self._hashes: Hashes | None = None

    def dicts(self, start: int, stop: int) -> list[dict[str, Any]]:
        """Some of the rows, by column name."""
        dicts = self._dicts
        if dicts is None:
            try:
                dicts = self._dicts = _dicts_of(self.batch)
            except Exception:  # of a value that Python cannot hold, perhaps in a row of another lookup
                return _dicts_of(self.batch.slice(start, stop - start))
        return dicts[start:stop]

    def key_hashes(self, key: Sequence[str]) -> Hashes:
        """The hash64 of the key of each row."""
        if self._hashes is None:
            self._hashes = hash64([self.batch.column(name) for name in key], self.batch.num_rows)
        return self._hashes


def _dicts_of(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    names = batch.schema.names
    values = [column.to_pylist() for column in batch.columns]
    return [dict(zip(names, row, strict=True)) for row in zip(*values, strict=True)] if names else batch.to_pylist()


class WorkerAnswer:
    """The answer to some keys of a lookup: these rows of what has come."""

    __slots__ = ("answered", "rows", "start", "stop")

    def __init__(self, answered: Answered, rows: AnswerRows, start: int, stop: int) -> None:
        self.answered = answered
        self.rows = rows
        self.start = start
        self.stop = stop

    @property
    def batch(self) -> pa.RecordBatch:
        rows = self.rows.batch
        return rows if self.stop - self.start == rows.num_rows else rows.slice(self.start, self.stop - self.start)


class KeyRequest:
    """Keys of one lookup that one worker is asked for. view, route: of the lookup. at_least, together: see
    ``LookupTerms``. give_up_at: by the monotonic clock. address: of the worker; ``None`` if it is not up.

    outcome: the answer or the error, once there is one. wake: what then wakes the thread or task that waits.
    """

    __slots__ = (
        "address",
        "at_least",
        "give_up_at",
        "is_given_up",
        "keys",
        "outcome",
        "parts",
        "route",
        "together",
        "view",
        "wake",
        "worker",
    )

    def __init__(
        self,
        view: str,
        route: ViewRoute,
        keys: "ShortKey | KeyBatch",
        at_least: int | None,
        together: bool,
        give_up_at: float,
        worker: WorkerId,
        address: str | None,
    ) -> None:
        self.view = view
        self.route = route
        self.keys = keys
        self.at_least = at_least
        self.together = together
        self.give_up_at = give_up_at
        self.worker = worker
        self.address = address
        self.outcome: WorkerAnswer | UpriverError | None = None
        self.parts: list[pa.RecordBatch] = []
        """The pieces of a long answer that have come."""
        self.wake: Callable[[], None] | None = None
        self.is_given_up = False
        """Its thread or task no longer waits: it need not be sent."""

    def settle(self, outcome: WorkerAnswer | UpriverError) -> None:
        if self.outcome is None:
            self.outcome = outcome
            self.nudge()

    def nudge(self) -> None:
        """Wake the thread or task that waits, if there is one."""
        wake, self.wake = self.wake, None
        if wake is not None:
            wake()

    @property
    def due_at(self) -> float:
        """Until when the answer is waited for."""
        return self.give_up_at + ANSWER_GRACE_S


class _AnswerHead(msgspec.Struct):
    """The head of a frame of a worker; see :mod:`upriver.net.lookups`."""

    epoch: int = 0
    map_version: int = 0
    relayed: bool = False
    held_up: bool = False
    committed_at: float | None = None
    answers: list[tuple[int, int]] = []
    more: bool = False
    refused: list[tuple[int, str, str]] = []
    taken: int | None = None
    error: str | None = None
    message: str = ""


class WorkerLine:
    """The line to one worker, as far as nothing waits. The lock guards everything but what the reader alone uses."""

    def __init__(self, remote: Remote) -> None:
        self.remote = remote
        self.address = remote.address
        self._lock = threading.Lock()
        self._waiting: deque[KeyRequest] = deque()
        """What goes in the next request."""
        self._sent: dict[int, KeyRequest] = {}
        """By number, what has no outcome yet."""
        self._numbers = itertools.count(1)
        self._under_way = 0
        """The highest number that was sent and that the worker has not taken; 0: no request is under way."""
        self._under_way_from = 0
        """The lowest number of the last request that was sent."""
        self._stream: ByteStream | None = None
        self._line: Line | None = None
        self._outgoing: list[memoryview] = []
        """What is left to write of the request under way."""
        self._came = bytearray()
        """What has come of the next frame. The reader's."""
        self._wanted = 0
        """At least how many bytes the next frame has. The reader's."""
        self._used_at = 0.0
        """When a request was sent last, by the monotonic clock."""
        self.why_ended: UpriverError | None = None
        """The line is over for good."""
        self._is_read = False
        """Whether a thread connects or reads: all that is the reader's is this thread's."""
        self._cut: list[ByteStream] = []
        """Streams that are cut, and that the thread which reads is to close."""

    # For the caller that holds the lock

    def _put(self, request: KeyRequest) -> None:
        """Queue a request. Settles it at once if the line is over, or if too many wait."""
        if self.why_ended is not None:
            request.settle(self.why_ended)
        elif len(self._waiting) >= WAITING_MAX:
            request.settle(Busy(f"{WAITING_MAX:,} lookups wait for {self.address} already: ask again soon"))
        else:
            self._waiting.append(request)

    def _may_send(self) -> bool:
        """Whether the line is open, and what waits can go at once."""
        if self._under_way or self._stream is None:
            return False
        idle_s = 0.0 if self._sent else time.monotonic() - self._used_at
        if idle_s >= FRESH_S and (idle_s >= IDLE_S_MAX or not self._stream.is_quiet()):
            self._disconnect()  # the worker has closed it, or is about to
            return False
        return True

    def _connect(self, stream: ByteStream, session: Session) -> None:
        """Use a stream on which nothing was sent yet."""
        self._stream, self._line = stream, Line(stream, ANSWER_TERMS, session)
        self._came, self._wanted, self._used_at = bytearray(), 0, time.monotonic()

    def _unwatch(self) -> None:
        """The stream is about to be closed."""

    def _disconnect(self) -> None:
        self._unwatch()
        if self._stream is not None:
            self._stream.cut()
            self._cut.append(self._stream)
            if not self._is_read:
                self._close_cut()
        self._stream = self._line = None
        self._outgoing, self._under_way = [], 0

    def _close_cut(self) -> None:
        while self._cut:
            self._cut.pop().close()

    def _send_waiting(self) -> None:
        """Send the next request: all that waits, as far as it has room. What cannot be written at once is left in
        ``_outgoing``."""
        groups: dict[tuple[str, int], list[KeyRequest]] = {}
        lookups = keys = nbytes = 0
        while self._waiting and lookups < REQUEST_LOOKUPS_MAX:
            request = self._waiting[0]
            if request.is_given_up:
                self._waiting.popleft()
                continue
            keys += request.keys.count
            nbytes += request.keys.nbytes
            if lookups and (keys > REQUEST_KEYS_MAX or nbytes > REQUEST_BYTES_MAX):
                break
            self._waiting.popleft()
            lookups += 1
            groups.setdefault((request.view, id(request.route)), []).append(request)
        if not groups:
            return
        self._used_at = now = time.monotonic()
        self._under_way_from = 0
        parts: list[bytes | memoryview] = []
        for group in groups.values():
            try:
                parts += self._encoded(group, now)
            except (pa.ArrowException, ProtocolError) as error:
                for request in group:
                    request.settle(ProtocolError(f"view {request.view!r}: its keys cannot be sent: {error}"))
        self._write(parts)

    def _encoded(self, group: list[KeyRequest], now: float) -> Sequence[bytes | memoryview]:
        """The frame of lookups of one view."""
        assert self._line is not None
        group, keys, hashes = _joined(group)
        terms = []
        numbers = []
        for request in group:
            number = next(self._numbers)
            numbers.append(number)
            left = max(0.0, request.give_up_at - now)
            terms.append(LookupTerms(number, request.keys.count, request.at_least, request.together, left))
        encoded = self._line.encoded({"view": group[0].view, "lookups": terms}, keys, hashes)
        self._sent.update(zip(numbers, group, strict=True))
        self._under_way, self._under_way_from = numbers[-1], self._under_way_from or numbers[0]
        return encoded

    def _write(self, parts: Sequence[bytes | memoryview]) -> None:
        """Write what goes without waiting, behind what is left of before."""
        self._outgoing += map(memoryview, parts)
        self._write_on()

    def _write_on(self) -> None:
        assert self._stream is not None
        try:
            while self._outgoing:
                data = self._outgoing[0]
                written = self._stream.write_at_once(data)
                if written < len(data):
                    self._outgoing[0] = data[written:]
                    return
                del self._outgoing[0]
        except OSError as error:
            self._lose(WorkerLost(f"{self.address} cannot be reached: {error}"))

    def _lose(self, error: UpriverError) -> None:
        """The line is broken: all that was sent or waits has this outcome. The next request opens it anew."""
        self._disconnect()
        lost = [*self._sent.values(), *self._waiting]
        self._sent.clear()
        self._waiting.clear()
        for request in lost:
            request.settle(error)

    def _forget_given_up(self) -> None:
        """Forget what was given up; an answer to it that comes is dropped. If nothing else waits for the request under
        way, the worker or the network has dropped it: the line is opened anew, since no other request may go."""
        for number in [number for number, request in self._sent.items() if request.is_given_up]:
            del self._sent[number]
        if self._under_way and not self._outgoing and next(reversed(self._sent), 0) < self._under_way_from:
            self._lose(no_answer_in_time(self.address))

    # For the reader

    def _take_in(self) -> bool:
        """Take in what comes next, and send the next request if it may go. Waits as long as the stream does; returns
        whether anything has come."""
        stream, line = self._stream, self._line
        if stream is None or line is None:
            return True
        try:
            data = stream.read_at_once(max(READ_BYTES, self._wanted - len(self._came)))
        except OSError as error:
            self._lose_stream(stream, WorkerLost(f"{self.address} cannot be reached: {error}"))
            return True
        if data is None:
            return False
        if not data:
            self._lose_stream(stream, WorkerLost(f"{self.address} has ended the stream"))
            return True
        try:
            if not self._came:
                rest = self._take_frames(line, data)
                self._came += memoryview(data)[rest:]
            else:
                self._came += data
                if len(self._came) >= self._wanted:
                    rest = self._take_frames(line, self._came)
                    del self._came[:rest]
        except UpriverError as error:
            self._lose_stream(stream, error)
        except Exception as error:  # of Arrow's, in what it makes of the rows
            what = f"{self.address} sent a malformed answer: {type(error).__name__}: {error}"
            self._lose_stream(stream, ProtocolError(what))
        return True

    def _take_frames(self, line: Line, data: bytes | bytearray) -> int:
        """Take in the frames that are whole; returns where the next one begins."""
        start = 0
        with memoryview(data) as whole:
            while True:
                with whole[start:] as rest:
                    frame, size = line.received(rest)
                if frame is None:
                    self._wanted = size
                    return start
                self._take_frame(line, frame)
                start += size

    def _take_frame(self, line: Line, frame: Frame) -> None:
        try:
            head = msgspec.convert(frame.head, _AnswerHead)
        except msgspec.ValidationError as error:
            raise ProtocolError(f"{self.address} sent a malformed answer: {error}") from None
        with self._lock:
            if self._line is not line:
                return  # another thread has lost it meanwhile: the frame is no answer to what waits now
            if head.answers:
                self._take_answers(head, frame.batch)
            for number, kind, message in head.refused:
                if (request := self._sent.pop(number, None)) is not None:
                    request.settle(error_from_json({"error": kind, "message": message}))
            if head.error is not None:
                self._take_complaint(error_from_json({"error": head.error, "message": head.message}))
            if head.taken is not None and head.taken >= self._under_way:
                self._under_way = 0
                if self._waiting:
                    self._send_waiting()

    def _take_answers(self, head: _AnswerHead, batch: pa.RecordBatch | None) -> None:
        counts = sum(count for _, count in head.answers)
        if batch is None or counts != batch.num_rows or min(count for _, count in head.answers) < 0:
            raise ProtocolError(f"{self.address} sent a malformed answer: other rows than it says")
        rows, start = AnswerRows(batch), 0
        answered = Answered(head.epoch, head.map_version, head.relayed, head.held_up, head.committed_at)
        for number, count in head.answers:
            stop = start + count
            if head.more:
                if (request := self._sent.get(number)) is not None:
                    request.parts.append(batch.slice(start, count))
            elif (request := self._sent.pop(number, None)) is not None:
                if request.parts:
                    whole = AnswerRows(pa.concat_batches([*request.parts, batch.slice(start, count)]))
                    request.settle(WorkerAnswer(answered, whole, 0, whole.batch.num_rows))
                else:
                    request.settle(WorkerAnswer(answered, rows, start, stop))
            start = stop

    def _take_complaint(self, error: UpriverError) -> None:
        """The worker could not read the request under way."""
        sent, self._sent = self._sent, {}
        self._under_way = 0
        for request in sent.values():
            request.settle(error)
        if self._waiting:
            self._send_waiting()

    def _lose_stream(self, stream: ByteStream | None, error: UpriverError) -> None:
        """As ``_lose``, if the line still uses this stream."""
        with self._lock:
            if self._stream is stream:
                self._lose(error)


def no_answer_in_time(address: str) -> WorkerLost:
    return WorkerLost(f"{address} has not answered in time; ask for fewer keys at a time, or with a longer timeout")


def _joined(group: list[KeyRequest]) -> tuple[list[KeyRequest], pa.RecordBatch, Hashes]:
    """The requests, those of short keys first, and the keys and hashes of all of them."""
    schema = group[0].route.key_schema
    short: list[KeyRequest] = []
    values: list[tuple[Any, ...]] = []
    short_hashes: list[int] = []
    batches: list[KeyRequest] = []
    columns: list[list[pa.Array]] = []
    hashes: list[Hashes] = []
    for request in group:
        keys = request.keys
        if isinstance(keys, ShortKey):
            short.append(request)
            values.append(keys.values)
            short_hashes.append(keys.hash)
        else:
            batches.append(request)
            columns.append(keys.keys.columns)
            hashes.append(keys.hash64)
    if short:
        of_short = [
            pa.array(column, type) for column, type in zip(zip(*values, strict=True), schema.types, strict=True)
        ]
        columns.insert(0, of_short)
        hashes.insert(0, np.array(short_hashes, np.uint64))
    if len(columns) == 1:
        return short or batches, pa.RecordBatch.from_arrays(columns[0], schema=schema), hashes[0]
    arrays = [pa.concat_arrays(parts) for parts in zip(*columns, strict=True)]
    return short + batches, pa.RecordBatch.from_arrays(arrays, schema=schema), np.concatenate(hashes)


class ThreadLine(WorkerLine):
    """A line of threads. recheck: called when a thread has waited for ``RECHECK_S``; returns at once."""

    def __init__(self, remote: Remote, recheck: Callable[[], None]) -> None:
        super().__init__(remote)
        self._recheck = recheck
        self._followers: dict[KeyRequest, None] = {}
        """The requests whose threads wait for another one to read."""

    def ask(self, request: KeyRequest) -> None:
        """Send a request, at once or with the next ones. Waits for a connection, if there is none."""
        must_write = must_connect = False
        stream = self._stream
        try:
            with self._lock:
                self._put(request)
                if request.outcome is not None:
                    return
                if self._may_send():
                    self._send_waiting()
                    must_write = bool(self._outgoing) and self._is_read
                elif self._stream is None and not self._is_read:
                    must_connect = self._is_read = True
        except BaseException:  # an interrupt, perhaps between two bytes: the line is opened anew
            if stream is not None:
                self._lose_stream(stream, WorkerLost(f"the line to {self.address} was interrupted"))
            raise
        if must_connect:
            try:
                self._dial(request)
            finally:
                self._let_others_read()
        elif must_write:  # the thread that reads does not know
            self._write_rest(request)

    def _dial(self, request: KeyRequest) -> None:
        """Connect, and send what waits. For the thread that reads."""
        seconds = min(REACH_S_MAX, max(0.0, request.give_up_at - time.monotonic()))
        try:
            stream, session = dial(self.remote, Purpose.LOOKUPS, seconds, WorkerLost)
        except UpriverError as error:
            self._lose_stream(None, error)
            return
        stream.limit(RECHECK_S, RECHECK_S)
        with self._lock:
            if self.why_ended is not None:
                stream.close()
                return
            self._connect(stream, session)
            self._send_waiting()

    def _write_rest(self, request: KeyRequest) -> None:
        """Write the rest of a large request, while another thread reads."""
        while True:
            with self._lock:
                if self._stream is None or not self._outgoing:
                    return
                self._write_on()
                if self._stream is None or not self._outgoing:
                    return
                stream = self._stream
            if not _ready(stream, select.POLLOUT, request.due_at - time.monotonic()):
                self._lose_stream(stream, WorkerLost(f"{self.address} has not read a request in time"))
                return

    def wait(self, request: KeyRequest) -> None:
        """Return when the request has its outcome. Gives one to it if its time is over."""
        try:
            while request.outcome is None:
                with self._lock:
                    if request.outcome is not None:
                        return
                    reads = not self._is_read
                    if reads:
                        self._is_read = True
                    else:
                        latch = Latch()
                        request.wake = latch.open
                        self._followers[request] = None
                if reads:
                    self._read_for(request)
                else:
                    self._follow(request, latch)
        finally:
            if request.outcome is None:  # an interrupt
                with self._lock:
                    request.is_given_up, request.wake = True, None
                    self._followers.pop(request, None)
            if self._followers:
                self._wake_a_reader()

    def _read_for(self, request: KeyRequest) -> None:
        """Read until the request has its outcome, or its time is over."""
        try:
            while request.outcome is None:
                stream, left = self._stream, request.due_at - time.monotonic()
                if left <= 0:
                    self._give_up(request)
                elif stream is None:
                    self._dial(request)
                elif not self._write_and_read(stream, left):
                    self._recheck()
        finally:
            self._let_others_read()

    def _write_and_read(self, stream: ByteStream, seconds: float) -> bool:
        """Write what is left, or take in what comes. Returns whether anything happened, in so many seconds and
        ``RECHECK_S`` at most."""
        try:
            if self._outgoing or seconds < RECHECK_S:  # else the socket's own limit is right, and costs no call
                events = select.POLLIN | (select.POLLOUT if self._outgoing else 0)
                ready = _ready(stream, events, min(seconds, RECHECK_S))
                if ready & select.POLLOUT:
                    with self._lock:
                        if self._stream is stream:
                            self._write_on()
                if not ready & ~select.POLLOUT:
                    return bool(ready)
            return self._take_in()
        except BaseException:  # an interrupt, perhaps between two bytes: the line is opened anew
            self._lose_stream(stream, WorkerLost(f"the line to {self.address} was interrupted"))
            raise

    def _follow(self, request: KeyRequest, latch: Latch) -> None:
        """Wait until the request has its outcome, or its thread may read, or its time is over."""
        left = request.due_at - time.monotonic()
        is_woken = latch.wait(min(left, RECHECK_S))
        with self._lock:
            self._followers.pop(request, None)
            request.wake = None
        if is_woken:
            return
        if left <= RECHECK_S:
            self._give_up(request)
        else:
            self._recheck()

    def _give_up(self, request: KeyRequest) -> None:
        with self._lock:
            request.is_given_up = True
            request.settle(no_answer_in_time(self.address))
            self._forget_given_up()

    def _let_others_read(self) -> None:
        with self._lock:
            self._is_read = False
            self._close_cut()
        if self._followers:
            self._wake_a_reader()

    def _wake_a_reader(self) -> None:
        """Wake a thread that waits, to read for all, if no thread does."""
        with self._lock:
            while self._followers and not self._is_read:
                request = next(iter(self._followers))
                del self._followers[request]
                if request.outcome is None:
                    request.nudge()
                    return

    def end(self, why: UpriverError) -> None:
        """Cut the line for good: all that waits for it has this outcome."""
        with self._lock:
            self.why_ended = why
            self._lose(why)


def _ready(stream: ByteStream, events: int, seconds: float) -> int:
    """Wait until the stream can be read or written, at most so many seconds; returns which, as ``select.poll`` does."""
    poll = select.poll()
    poll.register(stream.fileno, events)
    return next((ready for _, ready in poll.poll(max(0.0, seconds) * 1000)), 0)


class ThreadLines:
    """A client's lines to all workers, for threads. recheck: see :class:`ThreadLine`."""

    def __init__(self, remote: Remote, recheck: Callable[[], None]) -> None:
        self._remote = remote
        self._recheck = recheck
        self._lock = threading.Lock()
        """Guards all that follows."""
        self._lines: dict[str, ThreadLine] = {}
        """By address."""
        self._is_closed = False

    def ask(self, requests: Sequence[KeyRequest]) -> None:
        """Send these requests, then wait until each has its outcome."""
        asked: list[tuple[ThreadLine, KeyRequest]] = []
        try:
            for request in requests:
                line = self._line(request)
                if line is not None:
                    line.ask(request)
                    asked.append((line, request))
            for line, request in asked:
                if request.outcome is None:
                    line.wait(request)
        except BaseException:  # an interrupt
            for _, request in asked:
                request.is_given_up = True
            raise

    def _line(self, request: KeyRequest) -> ThreadLine | None:
        """The line to the request's worker; ``None`` if there is none, which settles the request."""
        address = request.address
        if address is None:
            request.settle(WorkerLost(f"worker {request.worker} is not up"))
            return None
        line = self._lines.get(address)
        if line is None:
            with self._lock:
                if self._is_closed:
                    request.settle(_closed())
                    return None
                line = self._lines.get(address)
                if line is None:
                    line = self._lines[address] = ThreadLine(self._remote.at(address), self._recheck)
        return line

    def keep_only(self, addresses: Collection[str]) -> None:
        """End the lines to all other workers; lookups that wait for their answers are asked anew."""
        with self._lock:
            gone = [self._lines.pop(address) for address in set(self._lines) - set(addresses)]
        for line in gone:
            line.end(WorkerLost(f"{line.address} is no longer a worker of the app"))

    def close(self) -> None:
        """End all lines; a lookup that waits for an answer fails."""
        with self._lock:
            self._is_closed = True
            lines, self._lines = self._lines, {}
        for line in lines.values():
            line.end(_closed())


def _closed() -> ClusterError:
    return ClusterError("the client is closed")
