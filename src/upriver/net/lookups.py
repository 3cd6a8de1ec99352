"""Lookups over the wire: which worker answers for each key, and the worker's side of a client's line.

``Routing``: which worker answers lookups of each key. The coordinator reports it, and clients keep it. Each client
thread has one line to a worker, and each lookup is one round trip.

A client authenticates by its token (:mod:`.server`), and has a :class:`upriver.net.line.Line`. A question is a batch of
keys under ``{"view": name, "at_least": epoch or null, "together": bool, "timeout": seconds}``, best with the hash64 of
each, which the client has computed anyway to find the keys' owner. Its answer is a batch of rows under
``{"view": name, "epoch": epoch, "map_version": version, "relayed": bool, "held_up": bool, "committed_at": seconds or
null}``, or an error in JSON and no rows. The line goes on, either way.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, Self

import pyarrow as pa

from upriver.arguments import seconds, whole
from upriver.coordinator.freshness import NOTHING_KNOWN, FreshnessReport
from upriver.errors import ProtocolError, UnknownView
from upriver.hashing import Hashes, hash64
from upriver.ids import Epoch, WorkerId
from upriver.net.line import LOOKUP_TERMS, Frame, Line, answer_all
from upriver.net.server import Caller
from upriver.plan.plan import key_schema, schema_to_json
from upriver.protocol.json_forms import record_form
from upriver.vnodes import VnodeMap, check_vnodes


@dataclass(frozen=True, slots=True)
class KeysAsked:
    """A client's question to a worker. hash64: one for each row of ``keys``. at_least: epoch that the rows must
    reflect. together: all rows must be as of the end of one epoch. timeout: seconds, which the worker keeps to."""

    view: str
    keys: pa.RecordBatch
    hash64: Hashes
    at_least: int | None
    together: bool
    timeout: float


@dataclass(frozen=True, slots=True)
class Answered:
    """The rows of some keys, as of ``epoch`` at least; with ``together``, as of its end. version: of the map that the
    keys are kept by. relayed: whether another worker keeps some of them. held_up: whether some were not present at
    first, or about to move. committed_at: when ``epoch`` was committed, in seconds since 1970; ``None`` if the worker
    does not know."""

    rows: pa.RecordBatch
    epoch: int
    version: int
    relayed: bool
    held_up: bool
    committed_at: float | None = None


class LookupHandler(Protocol):
    """Answers a lookup; called by many threads at once."""

    def __call__(self, wanted: KeysAsked) -> Answered:
        """The rows of the keys, if ``together`` all as of the end of the answer's epoch. Blocks.

        Raises WrongOwner if some key is not this worker's, WaitTimeout if ``at_least`` is not reached in ``timeout``
        seconds.
        """


class LookupService:
    """The service of lookups at a worker, on the threads of its server."""

    def __init__(self, lookup: LookupHandler) -> None:
        self._lookup = lookup

    def serve(self, caller: Caller) -> None:
        answer_all(Line(caller.stream, LOOKUP_TERMS, caller.traffic), self._answer)

    def stop(self) -> None:
        """Do nothing: lookups under way end with their lines."""

    def _answer(self, question: Frame) -> tuple[dict[str, Any], pa.RecordBatch]:
        answered = self._lookup(_wanted(question))
        return _beside(question.head["view"], answered), answered.rows


def _beside(view: str, answered: Answered) -> dict[str, Any]:
    return {
        "view": view,
        "epoch": answered.epoch,
        "map_version": answered.version,
        "relayed": answered.relayed,
        "held_up": answered.held_up,
        "committed_at": answered.committed_at,
    }


def answered_of(answer: Frame) -> Answered:
    """The inverse of ``_beside`` and its rows. Raises LookupError or TypeError for a malformed answer."""
    head, rows, _ = answer
    epoch, version, relayed, held_up, committed_at = map(
        head.__getitem__, ("epoch", "map_version", "relayed", "held_up", "committed_at")
    )
    are_flags = type(relayed) is bool and type(held_up) is bool
    is_time = committed_at is None or type(committed_at) in (int, float)
    if rows is None or type(epoch) is not int or type(version) is not int or not are_flags or not is_time:
        raise TypeError(f"{head!r:.200}")
    return Answered(rows, epoch, version, relayed, held_up, committed_at)


def _wanted(question: Frame) -> KeysAsked:
    """A wrong hash finds nothing, since the worker compares the keys themselves. So the client's hashes are as good as
    our own."""
    head, keys, hashes = question
    given: tuple[Any, ...] = tuple(map(head.get, ("view", "at_least", "together", "timeout")))
    view, at_least, together, timeout = given
    if keys is None:
        raise ProtocolError(f"view {view!r}: a lookup without keys")
    if not isinstance(view, str) or not isinstance(together, bool):  # not all clients are ours
        raise ProtocolError(f"view {view!r}, together {together!r}: a lookup is of a view by name, together or not")
    at_least, timeout = None if at_least is None else whole("at_least", at_least), seconds("timeout", timeout)
    if len(hashes) != keys.num_rows:
        hashes = hash64(keys.columns, keys.num_rows)
    return KeysAsked(view, keys, hashes, at_least, together, timeout)


@dataclass(frozen=True)
class ViewRoute:
    """A view, as clients know it. key: columns of ``schema``, in the order of hashing. tables: those that it reads."""

    key: tuple[str, ...]
    schema: pa.Schema
    tables: tuple[str, ...] = ()

    @cached_property
    def key_schema(self) -> pa.Schema:
        """Names and types of the key."""
        return key_schema(self.key, self.schema)

    def to_json(self) -> dict[str, Any]:
        return {"key": list(self.key), "schema": schema_to_json(self.schema), "tables": list(self.tables)}


def route_among(view: str, routes: Mapping[str, ViewRoute]) -> ViewRoute:
    """The route of one view. Raises UnknownView, which names those that there are."""
    if view not in routes:
        raise UnknownView.among(view, routes)
    return routes[view]


@dataclass(frozen=True, slots=True)
class Routing:
    """The worker that answers for each vnode. addresses: of the workers that are up, ``host:port``. epoch: the last one
    that has ended. freshness: of the tables."""

    vnode_map: VnodeMap
    addresses: Mapping[WorkerId, str]
    views: Mapping[str, ViewRoute]
    epoch: Epoch
    freshness: FreshnessReport = NOTHING_KNOWN

    def to_json(self) -> dict[str, Any]:
        return {
            "vnode_map": self.vnode_map.to_json(),
            "map_version": self.vnode_map.version,
            "addresses": {str(worker): address for worker, address in self.addresses.items()},
            "views": {name: view.to_json() for name, view in self.views.items()},
            "epoch": self.epoch,
            "freshness": self.freshness.to_json(),
        }

    @classmethod
    def from_json(cls, json: Mapping[str, Any]) -> Self:
        """The inverse of :meth:`to_json`. Raises as ``refusing_malformed`` has it for what is malformed."""
        _, from_json = record_form(Routing)
        routing: Self = from_json(json)
        check_vnodes(len(routing.vnode_map.owners))
        for route in routing.views.values():
            key_schema(route.key, route.schema)  # a key without its column is malformed, too
        return routing
