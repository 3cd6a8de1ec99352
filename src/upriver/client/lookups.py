"""A lookup over several workers, as steps that the client takes on a thread or in an event loop.

A lookup's steps do not wait: they yield a request for it (``Asked``, ``Delay``, ``BlockingCall``), and
:class:`.Client` and :class:`.AsyncClient` wait, each in its way. Each key is asked of its owner, all owners at once.
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from upriver.client.keys import distinct_keys
from upriver.client.lookup_lines import KeyBatch, KeyRequest, ShortKey, WorkerAnswer
from upriver.errors import (
    Busy,
    ClusterError,
    ProtocolError,
    SealBroken,
    UnknownView,
    UpriverError,
    UserError,
    WaitTimeout,
    WorkerLost,
    WrongOwner,
)
from upriver.hashing import Hashes, hash64
from upriver.ids import WorkerId
from upriver.protocol.lookups import Answered, Routing, ViewRoute
from upriver.state.columns import taken
from upriver.vnodes import vnodes_of

FEW_ROWS = 4
"""Up to so few rows are checked one by one, because calls of numpy have a fixed cost."""

Places = npt.NDArray[np.int64]
T = TypeVar("T")


class Asked(NamedTuple):
    """Send these requests, and wait until each has an outcome."""

    requests: Sequence[KeyRequest]


class Delay(NamedTuple):
    """Wait for some seconds."""

    seconds: float


class BlockingCall(NamedTuple):
    """BlockingCall a function that blocks; the step's value is its result."""

    function: Callable[[], Any]


Steps = Generator[Asked | Delay | BlockingCall, Any, T]


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

    def request(
        self, keys: "ShortKey | KeySet", worker: WorkerId, routing: Routing, at_least: int | None = None
    ) -> KeyRequest:
        """What to ask a worker. at_least: an epoch later than the lookup's."""
        return KeyRequest(
            self.view,
            self.route,
            keys,
            self.at_least if at_least is None else at_least,
            self.together,
            self.give_up_at,
            worker,
            routing.addresses.get(worker),
        )


class KeySet(KeyBatch):
    """Keys, each once. hash64, places: one per key; its hash, and its place among all keys of the lookup."""

    __slots__ = ("places",)

    def __init__(self, keys: pa.RecordBatch, hash64: Hashes, places: Places) -> None:
        super().__init__(keys, hash64)
        self.places = places

    @staticmethod
    def of(keys: pa.RecordBatch) -> "KeySet":
        """The keys of a lookup, each once, in the order of first appearance."""
        distinct, hashes = distinct_keys(keys, hash64(keys.columns, keys.num_rows))
        return KeySet(distinct, hashes, np.arange(len(hashes)))

    @staticmethod
    def of_short(key: ShortKey, schema: pa.Schema) -> "KeySet":
        columns = [pa.array([value], type) for value, type in zip(key.values, schema.types, strict=True)]
        keys = pa.RecordBatch.from_arrays(columns, schema=schema)
        return KeySet(keys, np.array([key.hash], np.uint64), np.arange(1))

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
            raise _foreign_rows()
        return self.places[found]


@dataclass(frozen=True, slots=True)
class Found:
    """A worker's answer for some keys. places: for each row, its key's place among all keys of the lookup."""

    keys: KeySet
    answered: Answered
    rows: pa.RecordBatch
    places: Places


def in_key_order(found: Sequence[Found], asked: KeySet, schema: pa.Schema) -> pa.Table:
    """All rows in the order of the keys asked for; rows of one key stay as they are. asked: all keys, in that order."""
    if len(found) == 1 and found[0].places is asked.places:  # one row for each key, all together
        return pa.Table.from_batches([found[0].rows], schema)
    places = np.concatenate([part.places for part in found] or [np.arange(0)])
    if (places[1:] >= places[:-1]).all():
        return pa.Table.from_batches([part.rows for part in found], schema)
    rows = pa.concat_batches([part.rows for part in found])
    return pa.Table.from_batches([taken(rows, np.argsort(places, kind="stable"))], schema)


def requests_of(lookup: Lookup, asked: KeySet, routing: Routing, at_least: int | None = None) -> list[KeyRequest]:
    """What to ask the owners of the keys."""
    owners = routing.vnode_map.owners_of(vnodes_of(asked.hash64, len(routing.vnode_map.owners)))
    return [lookup.request(keys, WorkerId(owner), routing, at_least) for owner, keys in asked.split(owners)]


def answer_of(request: KeyRequest) -> WorkerAnswer:
    """The answer of a request that has its outcome. Raises the error that is the outcome, and UnknownView if the rows
    are of another view than the lookup's."""
    outcome = request.outcome
    if not isinstance(outcome, WorkerAnswer):
        assert outcome is not None
        raise outcome
    schema = request.route.schema
    if not outcome.rows.batch.schema.equals(schema):
        raise UnknownView(f"no view {request.view!r} with the columns {', '.join(schema.names)}")
    return outcome


def found_of(request: KeyRequest) -> Found:
    """The found rows. Raises as :func:`answer_of` does."""
    answer, keys = answer_of(request), request.keys
    if isinstance(keys, ShortKey):
        check_short(request, answer)
        asked = KeySet.of_short(keys, request.route.key_schema)
        places = np.broadcast_to(asked.places, answer.stop - answer.start)
        return Found(asked, answer.answered, answer.batch, places)
    assert isinstance(keys, KeySet)
    rows = answer.batch
    return Found(keys, answer.answered, rows, keys.places_of(rows.select(request.route.key)))


def check_short(request: KeyRequest, answer: WorkerAnswer) -> None:
    """Raise ProtocolError for a row of another key than the one that was asked for."""
    assert isinstance(request.keys, ShortKey)
    count = answer.stop - answer.start
    if count > FEW_ROWS:
        hashes = answer.rows.key_hashes(request.route.key)[answer.start : answer.stop]
        is_foreign = bool((hashes != request.keys.hash).any())
    else:
        rows = answer.rows.batch
        is_foreign = any(
            rows.column(name)[place].as_py() != value
            for name, value in zip(request.route.key, request.keys.values, strict=True)
            for place in range(answer.start, answer.stop)
        )
    if is_foreign:
        raise _foreign_rows()


def only_row(request: KeyRequest, key: Any) -> dict[str, Any] | None:
    """The only row of a short key; ``None`` if there is none. Raises as :func:`answer_of` does, and UserError for
    several rows."""
    answer, keys = answer_of(request), request.keys
    assert isinstance(keys, ShortKey)
    if answer.stop - answer.start > 1:
        raise several_rows(request.view, key, answer.stop - answer.start)
    if answer.stop == answer.start:
        return None
    (row,) = answer.rows.dicts(answer.start, answer.stop)
    for name, value in zip(request.route.key, keys.values, strict=True):
        if row[name] != value:
            raise _foreign_rows()
    return row


def is_worth_another_try(error: UpriverError) -> bool:
    """Whether a refresh of the routing may help. A view that is in the routing, but unknown to a worker, is new or was
    just dropped."""
    return isinstance(error, WrongOwner | WorkerLost | SealBroken | UnknownView | Busy)


def final_error(lookup: Lookup, request: KeyRequest, error: UpriverError) -> ClusterError:
    """The error if there is no time to ask again."""
    kind = next((kind for kind in (WorkerLost, SealBroken) if isinstance(error, kind)), WaitTimeout)
    return kind(f"view {lookup.view!r}: no answer from worker {request.worker} in {lookup.timeout:g} s: {error}")


def several_rows(view: str, key: Any, count: int) -> UserError:
    return UserError(f"view {view!r}: key {key!r} has {count} rows: use lookup, which gives all")


def _foreign_rows() -> ProtocolError:
    return ProtocolError("an answer has rows of keys that were not asked for")
