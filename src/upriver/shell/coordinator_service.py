"""The coordinator on the network: workers open channels to it, everybody else calls actions."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from upriver.dataflow.explain import explain
from upriver.dataflow.graph import DataflowPlan
from upriver.dataflow.plan import TableSpec
from upriver.errors import DeclarationError, ProtocolError, UnknownView, UpriverError
from upriver.ids import Incarnation, VnodeId, WorkerId
from upriver.machines.messages import ToWorker
from upriver.machines.strategies import Strategy
from upriver.shell.channel import ChannelEnd, ChannelExchange, Receiver
from upriver.shell.codec import decode_from_worker, encode
from upriver.shell.coordinator_loop import CoordinatorLoop
from upriver.shell.flight import FlightBase, Listen
from upriver.shell.routing import Routing, ViewRoute
from upriver.shell.scans import Scans
from upriver.shell.wire import Message

REGISTER = "register"
"""The hello of a worker: ``{"worker": id, "address": where it serves}``."""
SNAPSHOT_S_MAX = 60.0
EVICTION_S_MAX = 60.0
"""Seconds that the workers have to take a snapshot."""


@dataclass(frozen=True, slots=True)
class _ToWorker:
    """Our end of a worker's channel, as the loop needs it."""

    end: ChannelEnd

    def tell(self, message: ToWorker) -> None:
        self.end.send(encode(message))

    def close(self) -> None:
        self.end.close()


def _any_number(workers: int) -> None:
    """There is room."""


class CoordinatorService:
    """Serves a coordinator from construction until ``stop``.

    Actions, JSON in and out: ``routing``, ``status``, ``explain`` (``view``), ``scan`` (``view``,
    and ``scan``, a name of the caller's choice: who gives the same one reads the same snapshot), ``rescale``
    (``workers`` or ``moves``, ``strategy``, ``keys_max``), which gives the ``ticket`` that ``rescale_progress``,
    ``rescale_report`` and ``rescale_abort`` ask for.
    """

    def __init__(
        self,
        loop: CoordinatorLoop,
        plans: Sequence[DataflowPlan],
        tables: Iterable[TableSpec],
        bind: str,
        token: str,
        check_slots: Callable[[int], None] = _any_number,
    ) -> None:
        """check_slots: raises TooFewSlots if there is no room for so many workers."""
        self._loop = loop
        self._check_slots = check_slots
        self._scans = Scans(loop.snapshot)
        self._tables = {table.name: table for table in tables}
        self._plans: dict[str, DataflowPlan] = {}
        self._views: dict[str, ViewRoute] = {}
        self.replan(plans)
        actions = {
            "routing": self._routing,
            "status": lambda _: loop.status(),
            "explain": lambda asked: self.explain(str(asked["view"])),
            "scan": self._scan,
            "evict": self._evict,
            "rescale": self._rescale,
            "rescale_progress": lambda asked: loop.rescale_progress(int(asked["ticket"])),
            "rescale_report": lambda asked: loop.rescale_report(int(asked["ticket"])),
            "rescale_abort": self._abort_rescale,
        }
        exchange = ChannelExchange(self._registered)
        self._server = FlightBase(token, listen=Listen(host=bind), exchanges={"channel": exchange}, actions=actions)

    @property
    def address(self) -> str:
        """``host:port`` to tell others."""
        return str(self._server.address)

    def stop(self) -> None:
        """Refuse further calls and end those that are on."""
        self._server.stop()

    def replan(self, plans: Sequence[DataflowPlan]) -> None:
        """The views are these from now on."""
        self._plans = {plan.name: plan for plan in plans}
        self._views = {plan.name: ViewRoute(plan.key, plan.schema) for plan in plans}

    def explain(self, view: str) -> dict[str, Any]:
        """How a view is kept. Raises UnknownView."""
        if view not in self._plans:
            raise UnknownView.among(view, self._plans)
        return explain(self._plans[view], self._tables)

    def _registered(self, end: ChannelEnd, hello: Message) -> Receiver:
        if hello.kind != REGISTER:
            raise ProtocolError(f"a channel began with {hello.kind!r}, not {REGISTER!r}")
        worker, address = WorkerId(hello.fields["worker"]), str(hello.fields["address"])
        incarnation = self._loop.register(worker, address, _ToWorker(end))

        def on_message(message: Message) -> None:
            self._loop.hear(incarnation, decode_from_worker(message))

        def on_close(_: UpriverError | None) -> None:
            self._loop.lost(Incarnation(incarnation))

        return Receiver(on_message, on_close)

    def _routing(self, _: Mapping[str, Any]) -> dict[str, Any]:
        self._loop.check()
        return Routing(self._loop.vnode_map, self._loop.addresses(), self._views, self._loop.ended).to_json()

    def _scan(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        parts = self._scans.parts(str(asked["view"]), str(asked["scan"]), SNAPSHOT_S_MAX)
        return {"snapshot": parts.snapshot, "epoch": parts.epoch, "addresses": list(parts.addresses)}

    def _evict(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        view, keys = str(asked["view"]), asked["keys"]
        if view not in self._plans:
            raise UnknownView.among(view, self._plans)
        if (why := self._plans[view].full_because) is not None:
            raise DeclarationError(f"view {view!r} keeps every key, and none can be evicted: {why}")
        self._loop.evict(view, None if keys is None else tuple(int(key) for key in keys), EVICTION_S_MAX)
        return {}

    def _rescale(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        self._loop.check()
        workers, moves = asked["workers"], asked["moves"]
        vnodes = len(self._loop.vnode_map.owners)
        if workers is not None:
            if not 1 <= workers <= vnodes:
                raise DeclarationError(f"workers={workers}: there are 1 to {vnodes} workers, as many as vnodes at most")
            self._check_slots(workers)
        parsed = None if moves is None else {VnodeId(int(v)): WorkerId(int(w)) for v, w in moves.items()}
        ticket = self._loop.rescale(workers, parsed, _strategy(asked["strategy"]), asked["keys_max"])
        return {"ticket": ticket}

    def _abort_rescale(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        self._loop.abort_rescale(int(asked["ticket"]))
        return {}


def _strategy(name: str) -> Strategy:
    if name not in list(Strategy):
        raise DeclarationError(f"strategy {name!r}: there are {', '.join(Strategy)}")
    return Strategy(name)
