"""One lookup over several workers: each key is asked of its owner, all owners at once."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from upriver.client.keys import distinct_keys
from upriver.client.lookup_streams import LookupStream, LookupStreams
from upriver.errors import Busy, ClusterError, UnknownView, UpriverError, WaitTimeout, WorkerLost, WrongOwner
from upriver.hashing import hash64
from upriver.ids import WorkerId
from upriver.net.lookup import Answered, KeysAsked
from upriver.net.routing import Routing, ViewRoute
from upriver.net.watch import Watch
from upriver.state.columns import taken
from upriver.vnodes import vnodes_of
from upriver.xxh64 import Hashes

Places = npt.NDArray[np.int64]

REACH_S_MAX = 2.0
"""Seconds in which a worker must be reached; else the routing is asked for again: it may have been replaced."""
ANSWER_GRACE_S = 1.0
"""Seconds beyond a lookup's time in which a worker may still say itself that time ran out."""


@dataclass(frozen=True, slots=True)
class Lookup:
    """What is the same for all keys. at_least: epoch. together: whether all are to be as of the end of one epoch.
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
        """The place of each row's key, given the key columns of rows that were found.

        Two keys with one hash64 count as one here.
        """
        if row_keys.equals(self.keys):
            return self.places  # one row for each key, in order: so it is most of the time
        row_hashes = hash64(row_keys.columns, row_keys.num_rows)
        by_hash = np.argsort(self.hash64)
        return self.places[by_hash[np.searchsorted(self.hash64, row_hashes, sorter=by_hash)]]


@dataclass(frozen=True, slots=True)
class Found:
    """What a worker has answered for some keys. places: of each row, its key's place among all keys of the lookup."""

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
class Question:
    """Keys of one owner. address: ``None`` if the owner is not up."""

    worker: WorkerId
    address: str | None
    keys: KeySet


@dataclass(frozen=True, slots=True)
class Unanswered:
    """A question to ask again, once the routing is known anew. A view that a worker does not know, though the routing
    has it, is new or was dropped just now."""

    question: Question
    error: WrongOwner | WorkerLost | UnknownView | Busy

    def final_error(self, lookup: Lookup) -> ClusterError:
        """What to raise when there is no time to ask again."""
        kind = WorkerLost if isinstance(self.error, WorkerLost) else WaitTimeout
        worker = self.question.worker
        return kind(f"view {lookup.view!r}: no answer from worker {worker} in {lookup.timeout:g} s: {self.error}")


def ask_owners(
    lookup: Lookup, asked: KeySet, seconds_left: float, routing: Routing, streams: LookupStreams, watch: Watch
) -> tuple[list[Found], list[Unanswered]]:
    """Put all questions, then take all answers: the rows found, and what is to be asked again.

    Raises what a worker answered, unless that was WrongOwner or UnknownView.
    """
    found: list[Found] = []
    unanswered: list[Unanswered] = []
    errors: list[UpriverError] = []
    waiting: list[tuple[Question, LookupStream]] = []
    try:
        for question in _by_owner(asked, routing):
            try:
                waiting.append((question, _put(lookup, question, seconds_left, streams)))
            except (WrongOwner, WorkerLost) as error:
                unanswered.append(Unanswered(question, error))
        with watch.limit(lookup.give_up_at + ANSWER_GRACE_S, lambda: _cancel(waiting)):
            for question, stream in waiting:
                try:
                    found.append(_found(lookup, question.keys, stream.answer()))
                except (WrongOwner, WorkerLost, UnknownView, Busy) as error:
                    unanswered.append(Unanswered(question, error))
                except UpriverError as error:
                    errors.append(error)  # the other answers are taken first: they are on their way
    finally:
        for _, stream in waiting:
            streams.give_back(stream)
    if errors:
        raise errors[0]
    return found, unanswered


def _found(lookup: Lookup, keys: KeySet, answered: Answered) -> Found:
    """Raises UnknownView if the rows are of another view than was asked for."""
    if not answered.rows.schema.equals(lookup.route.schema):
        raise UnknownView(f"no view {lookup.view!r} with the columns {', '.join(lookup.route.schema.names)}")
    places = keys.places_of(answered.rows.select(lookup.route.key))
    return Found(keys, answered, places)


def _by_owner(asked: KeySet, routing: Routing) -> Iterator[Question]:
    owners = routing.vnode_map.owners_of(vnodes_of(asked.hash64, len(routing.vnode_map.owners)))
    for owner, keys in asked.split(owners):
        worker = WorkerId(owner)
        yield Question(worker, routing.addresses.get(worker), keys)


def _put(lookup: Lookup, question: Question, seconds_left: float, streams: LookupStreams) -> LookupStream:
    """Put a question, on a stream that now waits for the answer."""
    if question.address is None:
        raise WorkerLost(f"worker {question.worker} is not up")
    stream = streams.borrow(question.address, min(seconds_left, REACH_S_MAX))
    try:
        keys = question.keys
        stream.ask(KeysAsked(lookup.view, keys.keys, keys.hash64, lookup.at_least, lookup.together, seconds_left))
    except BaseException:
        streams.give_back(stream)
        raise
    return stream


def _cancel(waiting: Sequence[tuple[Question, LookupStream]]) -> None:
    for _, stream in waiting:
        stream.cancel("is not done; ask for fewer keys at a time, or with a longer timeout")
