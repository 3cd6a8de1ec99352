"""The client's side of lookups: streams to workers, a lookup over several workers, and batches of several lookups.

``LookupStreams``: lines to workers, lent to one thread at a time; see :mod:`upriver.net.lookups`.

``ask_owners``: one lookup over several workers. It asks each key of its owner, all owners at once.

``LookupBatches``: lookups of many threads of one client, asked as one. A round trip, and a call of a worker, cost
about the same for one lookup and for twenty. So while more than a few lookups are under way, new ones wait for the
batch under way to end, and form the next batch: one of their threads asks for all. More threads make larger batches; a
single lookup waits for no other. (Databases group the commits of transactions in this way.)

``JoinedKeys``: several lookups of a view as one: their keys joined, and the found rows dealt out again.
"""

import math
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from upriver.client.keys import KeyColumns, distinct_keys
from upriver.errors import (
    Busy,
    ClusterError,
    ProtocolError,
    UnknownView,
    UpriverError,
    WaitTimeout,
    WorkerLost,
    WrongOwner,
)
from upriver.hashing import Hashes, hash64
from upriver.ids import WorkerId
from upriver.net.byte_stream import Latch, Watch
from upriver.net.handshake import Purpose
from upriver.net.line import ANSWER_TERMS, Line
from upriver.net.remote import IDLE_S_MAX, Connection, Remote, dial
from upriver.net.wire import error_from_json, refusing_malformed
from upriver.protocol.lookups import Answered, KeysAsked, Routing, ViewRoute
from upriver.state.columns import taken
from upriver.state.vectors import is_any_twice, spread
from upriver.vnodes import vnodes_of

IDLE_STREAMS_MAX = 16
"""Open streams that a client keeps for one worker while no thread uses them."""

FRESH_S = 1.0
"""Seconds after its last use for which a stream counts as open, without a look at its socket."""


class LookupStream:
    """A stream of lookups: one thread at a time asks, then takes the answer. Raises WorkerLost.

    A stream is in step while every question has its answer, even an error; a stream out of step is of no more use.
    """

    def __init__(self, remote: Remote, timeout: float) -> None:
        """timeout: seconds for reaching the worker. Also raises AccessDenied."""
        self.address = remote.address
        stream, _ = dial(remote, Purpose.LOOKUPS, timeout, WorkerLost)
        self._line = Line(stream, ANSWER_TERMS)
        self.is_in_step = True
        self._why_ended = "has ended the stream"

    def may_be_used(self, idle_s: float) -> bool:
        """Whether the worker has not closed the stream, and is not about to, after so many idle seconds."""
        return idle_s < FRESH_S or (idle_s < IDLE_S_MAX and self._line.is_quiet)

    def ask(self, wanted: KeysAsked) -> None:
        """Send a question."""
        self.is_in_step = False
        head = {
            "view": wanted.view,
            "at_least": wanted.at_least,
            "together": wanted.together,
            "timeout": wanted.timeout,
        }
        try:
            self._line.send(head, wanted.keys, wanted.hash64)
        except OSError as error:
            raise self._lost(error) from None

    def answer(self) -> Answered:
        """Wait for the answer to the last question. Raises the worker's error, if it sent one."""
        try:
            answer = self._line.receive()
        except OSError as error:
            raise self._lost(error) from None
        if answer is None:
            raise WorkerLost(f"{self.address} {self._why_ended}")
        if answer.batch is None and "error" in answer.head:
            self.is_in_step = True
            raise error_from_json(answer.head)
        with refusing_malformed(self.address):
            answered = Answered.of(answer.head, answer.batch)
        self.is_in_step = True
        return answered

    def cancel(self, why: str) -> None:
        """Make another thread's ``answer`` raise WorkerLost. why: the error's text behind the worker's address."""
        self._why_ended = why
        self._line.cut()

    def close(self) -> None:
        """End the stream at once."""
        self._line.close()

    def _lost(self, error: OSError) -> UpriverError:
        return WorkerLost(f"{self.address} cannot be reached: {error}")


class LookupStreams:
    """A client's open streams, lent to one thread at a time, and one connection to each worker, for calls."""

    def __init__(self, remote: Remote) -> None:
        self._remote = remote
        self._lock = threading.Lock()
        """Guards all that follows."""
        self._connections: dict[str, Connection] = {}
        self._idle: dict[str, list[tuple[LookupStream, float]]] = {}
        """By address, each with the time of its last use, by the monotonic clock."""
        self._lent: set[LookupStream] = set()
        self._is_closed = False

    def borrow(self, address: str, timeout: float) -> LookupStream:
        """A stream that is in step; the caller must give it back. timeout: seconds for reaching the worker.

        Raises WorkerLost, AccessDenied, ClusterError once closed.
        """
        with self._lock:
            if self._is_closed:
                raise ClusterError("the client is closed")
            idle = self._idle.get(address, [])
            while idle:
                stream, used_at = idle.pop()
                if stream.may_be_used(time.monotonic() - used_at):
                    self._lent.add(stream)
                    return stream
                stream.close()
            remote = self._connection(address).remote
        stream = LookupStream(remote, timeout)
        with self._lock:
            if not self._is_closed:
                self._lent.add(stream)
                return stream
        stream.close()
        raise ClusterError("the client is closed")

    def connection(self, address: str) -> Connection:
        """For calls to a worker. Raises ClusterError once closed."""
        with self._lock:
            if self._is_closed:
                raise ClusterError("the client is closed")
            return self._connection(address)

    def _connection(self, address: str) -> Connection:
        if address not in self._connections:
            self._connections[address] = Connection(self._remote.at(address), WorkerLost)
        return self._connections[address]

    def return_stream(self, stream: LookupStream) -> None:
        """Keep the stream for the next lookup, or end it if it is of no more use."""
        with self._lock:
            self._lent.discard(stream)
            if stream.is_in_step and stream.address in self._connections:
                idle = self._idle.setdefault(stream.address, [])
                if len(idle) < IDLE_STREAMS_MAX:
                    idle.append((stream, time.monotonic()))
                    return
        stream.close()

    def keep_only(self, addresses: Collection[str]) -> None:
        """Drop the connections to all other workers; lookups that wait for their answers raise WorkerLost."""
        with self._lock:
            for stream in self._lent:
                if stream.address not in addresses:
                    stream.cancel("is no longer a worker of the app")
            gone = [self._connections.pop(address) for address in set(self._connections) - set(addresses)]
            idle = [self._idle.pop(address) for address in list(self._idle) if address not in self._connections]
        for stream, _ in chain.from_iterable(idle):
            stream.close()
        for connection in gone:
            connection.close()

    def close(self) -> None:
        """End all streams; a lookup that waits for an answer raises."""
        with self._lock:
            self._is_closed = True
            for stream in self._lent:
                stream.cancel("was cancelled: the client is closed")
        self.keep_only(())


Places = npt.NDArray[np.int64]

REACH_S_MAX = 2.0
"""Seconds in which a worker must be reached; after that the client refreshes the routing: the worker may have been
replaced."""
ANSWER_GRACE_S = 1.0
"""Seconds beyond a lookup's time in which a worker may still report that its time ran out."""


@dataclass(frozen=True, slots=True)
class Lookup:
    """A lookup without its keys. at_least: epoch. together: whether all rows must be as of the end of one epoch.
    timeout: seconds. give_up_at: when they are over, monotonic."""

    view: str
    route: ViewRoute
    at_least: int | None
    together: bool
    timeout: float
    give_up_at: float


@dataclass(frozen=True, slots=True)
class KeySet:
    """Keys, each once. hash64, places: one per key; its hash, and its place among all keys of the lookup."""

    keys: pa.RecordBatch
    hash64: Hashes
    places: Places

    @staticmethod
    def of(keys: pa.RecordBatch) -> "KeySet":
        """The keys of a lookup, each once, in the order of first appearance."""
        distinct, hashes = distinct_keys(keys, hash64(keys.columns, keys.num_rows))
        return KeySet(distinct, hashes, np.arange(len(hashes)))

    @staticmethod
    def concat(parts: Sequence["KeySet"]) -> "KeySet":
        """All keys of at least one part."""
        return KeySet(
            pa.concat_batches([part.keys for part in parts]),
            np.concatenate([part.hash64 for part in parts]),
            np.concatenate([part.places for part in parts]),
        )

    def split(self, parts: npt.NDArray[np.int64]) -> Iterator[tuple[int, "KeySet"]]:
        """The keys of each part, in order. parts: of each key, the part's number."""
        if not len(parts):
            return
        if (parts == parts[0]).all():
            yield int(parts[0]), self
            return
        order = parts.argsort(kind="stable")
        sorted_keys, hashes, places = taken(self.keys, order), self.hash64[order], self.places[order]
        in_turn = parts[order]
        (ends,) = (in_turn[1:] != in_turn[:-1]).nonzero()
        start = 0
        for stop in (*(ends + 1).tolist(), len(order)):
            keys = sorted_keys.slice(start, stop - start)
            yield int(in_turn[start]), KeySet(keys, hashes[start:stop], places[start:stop])
            start = stop

    def places_of(self, row_keys: pa.RecordBatch) -> Places:
        """The place of each row's key, given the key columns of the found rows. Raises ProtocolError for a row of a key
        that was not asked for.

        Two keys with one hash64 count as one here.
        """
        if row_keys.equals(self.keys):
            return self.places  # one row for each key, in order: the usual case
        if not row_keys.num_columns:  # all rows of a view without a key are of the one key that there is
            return np.broadcast_to(self.places[:1], row_keys.num_rows)
        row_hashes = hash64(row_keys.columns)
        by_hash = np.argsort(self.hash64)
        found = by_hash.take(np.searchsorted(self.hash64, row_hashes, sorter=by_hash), mode="clip")
        if (self.hash64[found] != row_hashes).any():
            raise ProtocolError("an answer has rows of keys that were not asked for")
        return self.places[found]


@dataclass(frozen=True, slots=True)
class Found:
    """A worker's answer for some keys. places: for each row, its key's place among all keys of the lookup."""

    keys: KeySet
    answered: Answered
    places: Places


def in_key_order(found: Sequence[Found], asked: KeySet, schema: pa.Schema) -> pa.Table:
    """All rows in the order of the keys asked for; rows of one key stay as they are. asked: all keys, in that order."""
    if len(found) == 1 and found[0].places is asked.places:  # one row for each key, all together
        return pa.Table.from_batches([found[0].answered.rows], schema)
    places = np.concatenate([part.places for part in found] or [np.arange(0)])
    if (places[1:] >= places[:-1]).all():
        return pa.Table.from_batches([part.answered.rows for part in found], schema)
    rows = pa.concat_batches([part.answered.rows for part in found])
    return pa.Table.from_batches([taken(rows, np.argsort(places, kind="stable"))], schema)


@dataclass(frozen=True, slots=True)
class WorkerRequest:
    """Keys of one owner. address: ``None`` if the owner is not up."""

    worker: WorkerId
    address: str | None
    keys: KeySet


@dataclass(frozen=True, slots=True)
class UnansweredLookup:
    """A question to ask again after a refresh of the routing. A view that is in the routing, but unknown to a worker,
    is new or was just dropped."""

    question: WorkerRequest
    error: WrongOwner | WorkerLost | UnknownView | Busy

    def final_error(self, lookup: Lookup) -> ClusterError:
        """The error if there is no time to ask again."""
        kind = WorkerLost if isinstance(self.error, WorkerLost) else WaitTimeout
        worker = self.question.worker
        return kind(f"view {lookup.view!r}: no answer from worker {worker} in {lookup.timeout:g} s: {self.error}")


def ask_owners(
    lookup: Lookup, asked: KeySet, seconds_left: float, routing: Routing, streams: LookupStreams, watch: Watch
) -> tuple[list[Found], list[UnansweredLookup]]:
    """Send all questions, then take all answers: the found rows, and the questions to ask again.

    Raises the first error that a worker answered, unless the question is worth asking again.
    """
    found: list[Found] = []
    unanswered: list[UnansweredLookup] = []
    errors: list[UpriverError] = []
    waiting: list[tuple[WorkerRequest, LookupStream]] = []
    try:
        for question in _by_owner(asked, routing):
            try:
                waiting.append((question, _put(lookup, question, seconds_left, streams)))
            except (WrongOwner, WorkerLost) as error:
                unanswered.append(UnansweredLookup(question, error))
        with watch.limit(lookup.give_up_at + ANSWER_GRACE_S, lambda: _cancel(waiting)):
            for question, stream in waiting:
                try:
                    found.append(_found(lookup, question.keys, stream.answer()))
                except (WrongOwner, WorkerLost, UnknownView, Busy) as error:
                    unanswered.append(UnansweredLookup(question, error))
                except UpriverError as error:
                    errors.append(error)  # take the other answers first: they are on their way
    finally:
        for _, stream in waiting:
            streams.return_stream(stream)
    if errors:
        raise errors[0]
    return found, unanswered


def _found(lookup: Lookup, keys: KeySet, answered: Answered) -> Found:
    """The found rows. Raises UnknownView if they are of another view than the lookup's."""
    if not answered.rows.schema.equals(lookup.route.schema):
        raise UnknownView(f"no view {lookup.view!r} with the columns {', '.join(lookup.route.schema.names)}")
    places = keys.places_of(answered.rows.select(lookup.route.key))
    return Found(keys, answered, places)


def _by_owner(asked: KeySet, routing: Routing) -> Iterator[WorkerRequest]:
    owners = routing.vnode_map.owners_of(vnodes_of(asked.hash64, len(routing.vnode_map.owners)))
    for owner, keys in asked.split(owners):
        worker = WorkerId(owner)
        yield WorkerRequest(worker, routing.addresses.get(worker), keys)


def _put(lookup: Lookup, question: WorkerRequest, seconds_left: float, streams: LookupStreams) -> LookupStream:
    """Send a question; returns the stream, which now waits for the answer."""
    if question.address is None:
        raise WorkerLost(f"worker {question.worker} is not up")
    stream = streams.borrow(question.address, min(seconds_left, REACH_S_MAX))
    try:
        keys = question.keys
        stream.ask(KeysAsked(lookup.view, keys.keys, keys.hash64, lookup.at_least, lookup.together, seconds_left))
    except BaseException:
        streams.return_stream(stream)
        raise
    return stream


def _cancel(waiting: Sequence[tuple[WorkerRequest, LookupStream]]) -> None:
    for _, stream in waiting:
        stream.cancel("has not answered in time; ask for fewer keys at a time, or with a longer timeout")


@dataclass(frozen=True, slots=True)
class JoinedKeys:
    """asked: each key once. wanted: the places in it of the keys of one lookup after the other. ends: where each
    lookup's keys end in ``wanted``."""

    asked: KeySet
    wanted: Places
    ends: Places

    @classmethod
    def of(cls, lookups: Sequence[KeyColumns], schema: pa.Schema) -> Self | None:
        """The joined keys of several lookups, each with at least one key. ``None`` if two keys have one hash."""
        columns = [pa.concat_arrays(parts) for parts in zip(*lookups, strict=True)]
        keys = pa.RecordBatch.from_arrays(columns, schema=schema)
        hashes, ends = hash64(columns), np.cumsum([len(columns[0]) for columns in lookups])
        distinct, firsts, wanted = np.unique(hashes, return_index=True, return_inverse=True)
        asked = KeySet(taken(keys, firsts), distinct, np.arange(len(distinct)))
        if not taken(asked.keys, wanted).equals(keys):
            return None
        of_lookup = np.repeat(np.arange(len(lookups)), np.diff(ends, prepend=0)) * len(distinct)
        each = of_lookup + wanted
        if not is_any_twice(each):
            return cls(asked, wanted, ends)
        kept = np.sort(np.unique(each, return_index=True)[1])  # a lookup wants each of its keys once
        return cls(asked, wanted[kept], np.searchsorted(kept, ends))

    def deal(self, found: Sequence[Found], schema: pa.Schema) -> list[pa.Table]:
        """Each lookup's rows, in the order of its keys. Raises ValueError if there are too many for one batch."""
        places = np.concatenate([part.places for part in found])
        of_key = np.bincount(places, minlength=len(self.asked.hash64))
        begins, counts = (of_key.cumsum() - of_key)[self.wanted], of_key[self.wanted]
        rows = pa.concat_batches([part.answered.rows for part in found])
        dealt = pa.Table.from_batches([taken(rows, places.argsort(kind="stable")[spread(begins, counts)])], schema)
        stops = counts.cumsum()[self.ends - 1].tolist()
        return [dealt.slice(start, stop - start) for start, stop in pairwise([0, *stops])]


FREE_LOOKUPS_MAX = 4
"""So many lookups at once do not wait for a batch."""
WAIT_S_MAX = 0.01
"""Seconds that a lookup waits for the batch under way; after that it leads a batch itself."""
BATCH_LOOKUPS_MAX = 64
"""Lookups of a batch."""
LOOKUP_KEYS_MAX = 1_000
"""At most how many keys a lookup has that waits for a batch; larger lookups gain nothing by it."""
APART_S = 1.0
"""Seconds in which no lookup of a view waits for a batch, after missing or moving keys held a lookup of it up: in a
batch it would wait for other lookups' keys."""


class FoundRows(NamedTuple):
    """The answer to a lookup. epoch: the one that the rows reflect to its end; 0 for no keys. committed_at: when the
    epoch was committed, in seconds since 1970; ``None`` if that is not known."""

    rows: pa.Table
    epoch: int
    committed_at: float | None


class _Kind(NamedTuple):
    """What the lookups of one batch have in common."""

    view: str
    route: ViewRoute
    together: bool


class _QueuedLookup:
    """A lookup in a batch, or waiting for one. ``is_told`` opens once: the thread then has its answer, or must lead a
    batch (``leads``), or, with neither, must ask by itself. If the latch does not open in time, the thread also asks by
    itself: an interrupt may have ended the leader."""

    __slots__ = ("answer", "is_told", "keys", "kind", "leads", "lookup")

    def __init__(self, lookup: Lookup, keys: KeyColumns) -> None:
        self.lookup = lookup
        self.keys = keys
        self.kind = _Kind(lookup.view, lookup.route, lookup.together)
        self.answer: FoundRows | None = None
        self.leads = False
        self.is_told = Latch()


class LookupBatches:
    """The lookup batches of one client. Usable by many threads.

    ask: finds the rows of keys, for one lookup or for several as one; blocks. wait_s_max, clock: seconds.
    """

    def __init__(
        self,
        ask: Callable[[Lookup, KeySet], list[Found]],
        *,
        wait_s_max: float = WAIT_S_MAX,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ask = ask
        self._wait_s_max = wait_s_max
        self._clock = clock
        self._lock = threading.Lock()
        """Guards all that follows."""
        self._lookups = 0
        """How many lookups are under way, in batches or not."""
        self._batches = 0
        """How many batches are under way. While there is none, no lookup waits for one."""
        self._waiting: dict[_Kind, list[_QueuedLookup]] = {}
        """The waiting lookups, in the order in which they came."""
        self._apart_until: dict[str, float] = {}
        """By view, until when its lookups wait for no batch; monotonic."""

    def look_up(self, lookup: Lookup, keys: KeyColumns) -> FoundRows:
        """The rows of the keys, in the order in which the keys are first given, each key once.

        Raises the errors of ``ask`` for this lookup alone, whatever happens to a batch that it was in.
        """
        with self._lock:
            self._lookups += 1
            is_free = self._lookups <= FREE_LOOKUPS_MAX or not self._may_wait(lookup, keys)
            queued = None if is_free else self._queued(lookup, keys)
        try:
            answer = None if queued is None else self._with_others(queued)
            return answer or self._by_itself(lookup, keys)
        finally:
            with self._lock:
                self._lookups -= 1

    def _may_wait(self, lookup: Lookup, keys: KeyColumns) -> bool:
        if lookup.at_least is not None or not 0 < len(keys[0]) <= LOOKUP_KEYS_MAX:
            return False
        return self._apart_until.get(lookup.view, -math.inf) < self._clock()

    def _by_itself(self, lookup: Lookup, keys: KeyColumns) -> FoundRows:
        asked = KeySet.of(pa.RecordBatch.from_arrays(keys, schema=lookup.route.key_schema))
        if lookup.together and len(asked.hash64) < 2:
            lookup = replace(lookup, together=False)
        found = self._found(lookup, asked)
        return FoundRows(in_key_order(found, asked, lookup.route.schema), *_epoch_of(found))

    def _found(self, lookup: Lookup, asked: KeySet) -> list[Found]:
        found = self._ask(lookup, asked)
        if any(part.answered.held_up for part in found):
            with self._lock:
                self._apart_until[lookup.view] = self._clock() + APART_S
        return found

    # Batches

    def _queued(self, lookup: Lookup, keys: KeyColumns) -> _QueuedLookup:
        """Queue a lookup; it leads a batch if none is under way. The caller holds the lock."""
        queued = _QueuedLookup(lookup, keys)
        self._waiting.setdefault(queued.kind, []).append(queued)
        if not self._batches:
            self._begin(queued)
        return queued

    def _begin(self, leader: _QueuedLookup) -> None:
        """Begin a batch with only its leader so far, which waits no more. The caller holds the lock."""
        waiting = self._waiting[leader.kind]
        waiting.remove(leader)
        if not waiting:
            del self._waiting[leader.kind]
        self._batches += 1
        leader.leads = True

    def _with_others(self, queued: _QueuedLookup) -> FoundRows | None:
        """A batch's answer to a lookup, if it has one."""
        try:
            if not queued.leads and not queued.is_told.wait(self._wait_s_max) and not self._leads_now(queued):
                # The leader waits no longer than the shortest timeout of its batch. A leader may be gone: limit this.
                queued.is_told.wait(queued.lookup.give_up_at + ANSWER_GRACE_S - self._clock())
        except BaseException:  # an interrupt: other lookups must not wait for this thread
            self._leads_now(queued)
            if queued.leads:
                self._end([queued])
            raise
        if queued.leads:
            self._lead(queued)
        return queued.answer

    def _leads_now(self, queued: _QueuedLookup) -> bool:
        """Make a lookup that still waits lead a batch; returns whether it does."""
        with self._lock:
            if queued not in self._waiting.get(queued.kind, ()):
                return False
            self._begin(queued)
            return True

    def _lead(self, leader: _QueuedLookup) -> None:
        """Ask for all lookups of a batch."""
        batch = [leader]
        try:
            batch += self._batchmates(leader.kind)
            if len(batch) == 1:
                leader.answer = self._by_itself(leader.lookup, leader.keys)
            else:
                with suppress(Exception):  # each lookup then asks by itself, and raises its own error
                    self._answer_all(batch)
        finally:
            self._end(batch)

    def _batchmates(self, kind: _Kind) -> list[_QueuedLookup]:
        """Take the lookups that wait by the time that their leader's thread runs, as far as the batch has room."""
        with self._lock:
            waiting = self._waiting.pop(kind, [])
            if len(waiting) >= BATCH_LOOKUPS_MAX:
                self._waiting[kind] = waiting[BATCH_LOOKUPS_MAX - 1 :]
            return waiting[: BATCH_LOOKUPS_MAX - 1]

    def _answer_all(self, batch: Sequence[_QueuedLookup]) -> None:
        urgent = min((queued.lookup for queued in batch), key=lambda lookup: lookup.give_up_at)
        joined = JoinedKeys.of([queued.keys for queued in batch], urgent.route.key_schema)
        if joined is None:
            return
        found = self._found(urgent, joined.asked)
        epoch, committed_at = _epoch_of(found)
        for queued, rows in zip(batch, joined.deal(found, urgent.route.schema), strict=True):
            queued.answer = FoundRows(rows, epoch, committed_at)

    def _end(self, batch: list[_QueuedLookup]) -> None:
        """End a batch: begin the next, unless another is under way, and let this batch's lookups go on."""
        leader = None
        with self._lock:
            self._batches -= 1
            if self._waiting and not self._batches:
                leader = next(iter(self._waiting.values()))[0]
                self._begin(leader)
        if leader is not None:
            leader.is_told.open()
        for queued in batch[1:]:
            queued.is_told.open()


def _epoch_of(found: Sequence[Found]) -> tuple[int, float | None]:
    """The lowest epoch of the answers, and when it was committed."""
    if not found:
        return 0, None
    oldest = min((part.answered for part in found), key=lambda answered: answered.epoch)
    return oldest.epoch, oldest.committed_at
