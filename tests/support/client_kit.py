"""What tests of the client share: a coordinator and workers that are real servers with canned answers."""

import queue
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from lookup_kit import Answering, Given, KeysAsked
from server_kit import TOKEN, calls_server, keys_of
from tls_kit import OWN

from upriver.client.client import Client, connect
from upriver.errors import UnknownView, WaitTimeout, WrongOwner
from upriver.hashing import hash64
from upriver.ids import Epoch, WorkerId
from upriver.net.handshake import Purpose
from upriver.net.lookups import LookupService
from upriver.net.server import Action, Calls, Piece, Server, Service
from upriver.net.tls import TlsIdentity
from upriver.protocol.freshness import FreshnessReport
from upriver.protocol.lookups import Routing, ViewRoute
from upriver.vnodes import VnodeMap, vnodes_of

VNODES = 16
EPOCH = 5
"""What every worker stands at."""

Row = tuple[Any, ...]


@dataclass(frozen=True)
class View:
    """A view's whole contents."""

    route: ViewRoute
    rows: Sequence[Row]

    def rows_of(self, key: Row) -> list[Row]:
        return [row for row in self.rows if row[: len(self.route.key)] == key]


PLANES = View(
    ViewRoute(("tailnum",), pa.schema([("tailnum", pa.string()), ("flights", pa.int64())])),
    [*((f"N{number}", number) for number in range(100)), (None, -1)],
)
ROUTES = View(
    ViewRoute(("origin", "dest"), pa.schema([("origin", pa.string()), ("dest", pa.int32()), ("carrier", pa.string())])),
    [(o, d, c) for o in ("EWR", "JFK", None) for d in (1, 2, None) for c in ("UA", "AA", "B6")[: (d or 0) + 1]],
)
VIEWS = {"planes": PLANES, "routes": ROUTES}


@dataclass
class Worker:
    """One worker's server. ``before`` is called by each lookup and may fail it. epoch: at whose end it stands;
    comes_to: where it goes when it is asked for a later one. relays: whether it asks others for what is not its own."""

    number: WorkerId
    cluster: "Cluster"
    before: Callable[[int], object] = lambda keys: None
    asked: "queue.Queue[int]" = field(default_factory=queue.Queue)
    epoch: int = EPOCH
    comes_to: int = EPOCH
    relays: bool = False
    together: bool | None = None
    """Of the last lookup."""
    committed_at: float | None = None
    """When its epoch was."""

    def __post_init__(self) -> None:
        services: dict[Purpose, Service] = {
            Purpose.LOOKUPS: LookupService(Answering(self.lookup)),
            Purpose.CALLS: Calls(),
        }
        self.server = Server(keys_of(self.cluster.tls), services)

    def stop(self) -> None:
        self.server.stop()

    def lookup(self, wanted: KeysAsked) -> Given:
        view, keys, at_least = wanted.view, wanted.keys, wanted.at_least
        self.together = wanted.together
        self.asked.put(keys.num_rows)
        self.before(keys.num_rows)
        assert np.array_equal(wanted.hash64, hash64(keys.columns, keys.num_rows))
        vnodes = vnodes_of(wanted.hash64, VNODES)
        foreign = bool((self.cluster.vnode_map.owners_of(vnodes) != self.number).any())
        if foreign and not self.relays:
            raise WrongOwner(f"not all of these are worker {self.number}'s")
        self.epoch = max(self.epoch, min(at_least or 0, self.comes_to))
        if (at_least or 0) > self.epoch:
            raise WaitTimeout(f"view {view!r}: epoch {at_least} was not reached in {wanted.timeout:.0f} s")
        known = self.cluster.views[view]
        if keys.schema != known.route.key_schema:
            raise UnknownView(f"no view {view!r} with the key ({keys.schema})")
        asked = zip(*(column.to_pylist() for column in keys.columns), strict=True)
        rows = [row for key in sorted(asked, key=str) for row in known.rows_of(key)]  # in an order of its own
        columns = list(zip(*rows, strict=True)) or [()] * len(known.route.schema)
        arrays = [pa.array(values, column.type) for values, column in zip(columns, known.route.schema, strict=True)]
        rows = pa.RecordBatch.from_arrays(arrays, schema=known.route.schema)
        version = self.cluster.vnode_map.version
        return Given.of(rows, self.epoch, version, relayed=foreign, committed_at=self.committed_at)


class Cluster:
    """A coordinator that knows the routing, and some workers. actions: what the coordinator has besides, or instead.
    pieces: its actions that give rows, too. tls: what all of them show; clients then trust ``OWN``."""

    def __init__(
        self,
        workers: int,
        actions: Mapping[str, Action] | None = None,
        pieces: Mapping[str, Piece] | None = None,
        tls: TlsIdentity | None = None,
    ) -> None:
        self.tls = tls
        self.trusted = None if tls is None else OWN
        self.vnode_map = VnodeMap.initial(VNODES, [WorkerId(number) for number in range(workers)])
        self.views = dict(VIEWS)
        self.freshness = FreshnessReport(Epoch(EPOCH), {})
        self.commits: dict[int, float] = {}
        """When epochs were committed, as the coordinator tells."""
        self.asked_freshness: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        self.workers = {WorkerId(number): Worker(WorkerId(number), self) for number in range(workers)}
        self.addresses = {number: worker.server.address for number, worker in self.workers.items()}
        self._pieces = dict(pieces or {})
        self._actions: dict[str, Action] = {
            "routing": self._routing,
            "freshness": self._told_freshness,
            "status": lambda _: {"epoch": EPOCH},
            "explain": self._explain,
            **(actions or {}),
        }
        self.coordinator = calls_server(self._actions, pieces=self._pieces, tls=tls)

    def restart(self) -> None:
        """Stop the coordinator, and start another one at its address."""
        self.coordinator.stop()
        self.coordinator = calls_server(self._actions, pieces=self._pieces, port=self.coordinator.port, tls=self.tls)

    def _routing(self, _: Mapping[str, Any]) -> Mapping[str, Any]:
        views = {name: view.route for name, view in self.views.items()}
        return Routing(self.vnode_map, self.addresses, views, Epoch(EPOCH), self.freshness).to_json()

    def _told_freshness(self, asked: Mapping[str, Any]) -> Mapping[str, Any]:
        self.asked_freshness.put(asked["epoch"])
        return {**self.freshness.to_json(), "committed_at": self.commits.get(asked["epoch"])}

    def _explain(self, asked: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"view": asked["view"], "partial": False}

    def connect(self) -> Client:
        return connect(self.coordinator.address, TOKEN, tls=self.trusted)

    def stop(self) -> None:
        for worker in self.workers.values():
            worker.stop()
        self.coordinator.stop()
