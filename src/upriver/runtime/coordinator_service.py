"""The coordinator on the network: workers open channels to it, clients call actions."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import pyarrow as pa

from upriver.arguments import seconds, whole
from upriver.coordinator.restarts import Claim
from upriver.errors import (
    DeclarationError,
    DuplicateAttempt,
    NotReady,
    ProtocolError,
    UnknownView,
    UpriverError,
    WorkerLost,
)
from upriver.hashing import HASH64_MAX
from upriver.ids import Epoch, FlowId, Incarnation, SnapshotId, VnodeId, WorkerId
from upriver.lake.lake import Lake
from upriver.lake.scan import LakeScan, TableScan, ViewScan, scan_key
from upriver.net.channel import ChannelEnd, Channels, Receiver
from upriver.net.codec import decode_from_worker, encode_message
from upriver.net.handshake import HandshakeKeys, Purpose
from upriver.net.server import Action, Caller, Calls, Listen, Piece, Server, Service
from upriver.net.wire import Message
from upriver.plan.explain import explain
from upriver.plan.plan import DataflowPlan, TableSpec
from upriver.plan.schemas import schema_to_json
from upriver.protocol.lookups import Routing, ViewRoute
from upriver.protocol.messages import FlowStep, ToWorker
from upriver.protocol.strategies import Strategy
from upriver.runtime.change_pieces import ChangePieces
from upriver.runtime.coordinator_loop import CoordinatorLoop, SnapshotParts
from upriver.runtime.exit_witness import ExitNotices
from upriver.runtime.leases import USUAL, FailureDetection, WorkerSlots
from upriver.runtime.measures import LookupTotals
from upriver.runtime.metrics import Metrics
from upriver.runtime.snapshots import SharedScans

REGISTER = "register"
"""The hello of a worker: ``{"worker": id, "life": number, "attempt": of its task, "address": where it serves,
"instance": the executor that it is lost with, "died_in": flow and epoch of the step in which the slot's last process
has ended, or null}``."""
SILENCED = "silenced"
"""Message of a worker that answers no more lookups, and lives on only for scans of the snapshots that it holds."""
MEASURED = "measured"
"""Message of a worker with what its process has counted: ``{"views": as ``WorkerMeasures.to_json`` has it,
"upqueries": {view: number}}``."""
PROGRESS_WAIT_S_MAX = 1.0
"""At most how many seconds a ``rescale_progress`` call waits for another state."""
SNAPSHOT_S_MAX = 60.0
EVICTION_S_MAX = 60.0
"""Seconds that the workers have to take a snapshot."""


@dataclass(frozen=True, slots=True)
class _ToWorker:
    """Our end of a worker's channel, as the loop needs it."""

    end: ChannelEnd

    def tell(self, *messages: ToWorker) -> None:
        self.end.send_together([*map(encode_message, messages)])

    def close(self) -> None:
        self.end.close()

    def give_up(self, error: UpriverError) -> None:
        self.end.give_up(error)


@dataclass(frozen=True, slots=True)
class _SlotHolder:
    """The last process in a worker's slot. life, attempt: of its hello."""

    life: int
    attempt: int
    end: ChannelEnd
    incarnation: Incarnation


@dataclass(frozen=True, slots=True)
class CoordinatorRecords:
    """Callbacks of whatever fills the slots of workers. check_slots: raises TooFewSlots if there is no room for so many
    workers.

    claim: what becomes of an attempt of a worker's task (worker, life, attempt, whether the process in its slot has a
    lease). is_current: whether a worker of this life may still fill its slot. lost: told which worker was given up, and
    why; returns soon. end_attempt: kills an attempt, and tells Spark why.
    """

    check_slots: Callable[[int], None] = lambda _: None
    claim: Callable[[WorkerId, int, int, bool], Claim] = lambda *_: Claim.ADMITTED
    is_current: Callable[[WorkerId, int], bool] = lambda *_: True
    lost: Callable[[WorkerId, int, str], None] = lambda *_: None
    end_attempt: Callable[[int, str], None] = lambda *_: None


class CoordinatorService:
    """Serves a coordinator from construction until ``stop``.

    Actions, JSON in and out: ``routing``, ``freshness`` (``epoch``: the epoch to return the commit time of, or null),
    ``status``, ``metrics`` (``text``, for Prometheus), ``explain`` (``view``), ``source`` (``name``, of a view or a
    table: what a scan of it must know), ``scan`` (``view``, which may be a table too, and ``scan``, a name of the
    caller's choice: callers that give the same name read the same snapshot, or the lake as of the same epoch),
    ``change_log`` (``view``: the ``root`` of the lake that has its changes), ``change_last`` (``view``: its ``last``
    version), ``evict`` (``view``, ``keys``), ``rescales`` and ``views`` (the history of both), and ``rescale``
    (``workers`` or ``moves``, ``strategy``, ``keys_max``). ``rescale`` returns the ``ticket`` that
    ``rescale_progress``, ``rescale_report`` and ``rescale_abort`` take. The progress comes at once. If a state is
    given as ``unless``, it comes when the state is another one, or after ``wait_s`` seconds,
    ``PROGRESS_WAIT_S_MAX`` at most. The piece ``changes`` is that of :class:`.ChangePieces`. Only operators may
    call ``evict``, ``rescale`` and ``rescale_abort``.
    """

    def __init__(
        self,
        loop: CoordinatorLoop,
        plans: Sequence[DataflowPlan],
        tables: Iterable[TableSpec],
        listen: Listen,
        keys: HandshakeKeys,
        keeper: CoordinatorRecords = CoordinatorRecords(),
        failure_detection: FailureDetection = USUAL,
        root: str = "",
        pieces: Mapping[str, Piece] = MappingProxyType({}),
    ) -> None:
        """keys: the clients' tokens, and the secret of the workers that may register. failure_detection: the workers',
        too. root: of the lake. pieces: further ones, which are no affair of the coordinator's."""
        self._loop = loop
        self._keeper = keeper
        self._root = root
        self._worker_slots = WorkerSlots(failure_detection)
        self._holders: dict[WorkerId, _SlotHolder] = {}
        self._scans = SharedScans(self._take)
        self._pieces = ChangePieces(Lake(root))
        self._lookups = LookupTotals()
        self.metrics = Metrics(loop, self._lookups)
        self._tables = {table.name: table for table in tables}
        self._plans: dict[str, DataflowPlan] = {}
        self._views: dict[str, ViewRoute] = {}
        self.replan(plans)
        actions: dict[str, Action] = {
            "routing": self._routing,
            "freshness": self._freshness,
            "status": lambda _: loop.status(),
            "metrics": lambda _: {"text": self.metrics.render().decode()},
            "explain": lambda asked: self.explain(str(asked["view"])),
            "source": self._source,
            "scan": self._scan,
            "change_log": self._change_log,
            "change_last": lambda asked: self._pieces.last(asked),
            "rescales": lambda _: {"rescales": loop.rescale_history()},
            "views": lambda _: {"views": loop.view_history()},
            "rescale_progress": self._rescale_progress,
            "rescale_report": lambda asked: loop.rescales.report(whole("ticket", asked["ticket"])),
        }
        operations: dict[str, Action] = {
            "evict": self._evict,
            "rescale": self._rescale,
            "rescale_abort": self._abort_rescale,
        }
        channels = Channels(self._registered, failure_detection.limits)
        services: dict[Purpose, Service] = {
            Purpose.CALLS: Calls(actions, operations=operations, pieces={"changes": self._changes, **pieces}),
            Purpose.CHANNEL: channels,
            Purpose.EXIT: ExitNotices(self._exited),
        }
        self._server = Server(keys, services, listen=listen)

    @property
    def address(self) -> str:
        """``host:port`` for other processes."""
        return self._server.address

    def stop(self) -> None:
        """Refuse further calls and end those under way."""
        self._pieces.stop()
        self._server.stop()

    def replan(self, plans: Sequence[DataflowPlan]) -> None:
        """Serve these views from now on."""
        self._plans = {plan.name: plan for plan in plans}
        self._views = {plan.name: ViewRoute(plan.key, plan.schema, plan.tables) for plan in plans}

    def serve_tables(self, tables: Iterable[TableSpec]) -> None:
        """Let clients read these tables from now on."""
        self._tables = {table.name: table for table in tables}

    def plan_of(self, view: str) -> DataflowPlan:
        """The plan of a view. Raises UnknownView."""
        if not isinstance(view, str) or view not in self._plans:
            raise UnknownView.among(view, self._tables_by_view(), self._tables)
        return self._plans[view]

    def full_plan(self, name: str) -> DataflowPlan | None:
        """The plan of a full view; ``None`` for a table or a partial view."""
        plan = self._plans.get(name)
        return None if plan is None or plan.full_because is None else plan

    def _tables_by_view(self) -> dict[str, Sequence[str]]:
        return {name: plan.tables for name, plan in self._plans.items()}

    def explain(self, view: str) -> dict[str, Any]:
        """How a view is kept. Raises UnknownView."""
        self.plan_of(view)
        return explain(self._loop.plan_of(view), self._tables)

    def _registered(self, end: ChannelEnd, hello: Message) -> Receiver:
        if hello.kind != REGISTER:
            raise ProtocolError(f"a channel began with {hello.kind!r}, not {REGISTER!r}")
        self._loop.check()
        numbers: list[Any] = [hello.fields.get(name) for name in ("worker", "life", "attempt")]
        texts: list[Any] = [hello.fields.get(name) for name in ("address", "instance")]
        if not all(type(number) is int and number >= 0 for number in numbers) or not all(
            isinstance(text, str) for text in texts
        ):
            raise ProtocolError(f"a worker has registered with {dict(hello.fields)!r:.200}")
        worker, life, attempt = WorkerId(numbers[0]), numbers[1], numbers[2]
        self._admit(worker, life, attempt)
        self._worker_slots.make_room(worker)
        if not self._keeper.is_current(worker, life):
            raise _outdated(worker)  # leases.given_up_stays_out
        self._worker_slots.enter(worker, end)
        address, instance = texts
        died_in = self._died_in(worker, hello.fields.get("died_in"))
        incarnation = self._loop.register(worker, address, _ToWorker(end), instance, died_in)
        self._holders[worker] = _SlotHolder(life, attempt, end, incarnation)

        def on_message(message: Message) -> None:
            if message.kind == SILENCED:
                self._worker_slots.leave(worker, end, is_silenced=True)
            elif message.kind == MEASURED:
                self._lookups.hear(worker, incarnation, message.fields)
            else:
                self._loop.hear(incarnation, decode_from_worker(message))

        def on_close(error: UpriverError | None) -> None:
            held_slot = self._worker_slots.leave(worker, end, is_silenced=error is None)
            self._lookups.forget(incarnation)
            self._loop.lost(Incarnation(incarnation), self._worker_slots.free_in(worker) if held_slot else 0.0)
            if held_slot and error is not None:
                self._keeper.lost(worker, life, str(error))

        return Receiver(on_message, on_close)

    def _exited(self, told: Mapping[str, Any]) -> None:
        """leases.over_when_ended: a worker's process has exited, says the witness on its host."""
        worker = WorkerId(told["worker"])
        holder = self._holders.get(worker)
        if holder is None or (holder.life, holder.attempt) != (told["life"], told["attempt"]):
            return
        if self._worker_slots.exited(worker, holder.end):
            self._loop.lease_over(holder.incarnation)

    def _died_in(self, worker: WorkerId, told: Any) -> FlowStep | None:
        """The step that has ended the slot's last process. One that the coordinator gave up was ended by Spark, perhaps
        in mid-step: that is no fault of the step."""
        if told is None or not self._worker_slots.has_died(worker):
            return None
        if not isinstance(told, list) or [*map(type, told)] != [int, int]:
            raise ProtocolError(f"worker {worker}: {told!r:.100} is no step in which a process has ended")
        flow, epoch = told
        return FlowStep(FlowId(flow), Epoch(epoch))

    def _admit(self, worker: WorkerId, life: int, attempt: int) -> None:
        """Raise unless this attempt may fill the slot: leases.given_up_stays_out, leases.one_attempt_stays."""
        match self._keeper.claim(worker, life, attempt, self._worker_slots.has_lease(worker)):
            case Claim.OUTDATED:
                raise _outdated(worker)
            case Claim.COPY:
                why = f"worker {worker}: another attempt of the same task is the worker"
                self._keeper.end_attempt(attempt, why)
                raise DuplicateAttempt(why)

    def _routing(self, _: Mapping[str, Any]) -> dict[str, Any]:
        self._loop.check()
        loop = self._loop
        return Routing(
            loop.lookup_map, loop.addresses(), self._views, loop.progress.ended, loop.progress.freshness()
        ).to_json()

    def _freshness(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        self._loop.check()
        epoch = asked.get("epoch")
        committed_at = None if epoch is None else self._loop.progress.committed_at(Epoch(whole("epoch", epoch)))
        return {**self._loop.progress.freshness().to_json(), "committed_at": committed_at}

    def _source(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        name = str(asked["name"])
        return self.source_of(name, self.lake_scan(name))

    def source_of(self, name: str, scan: LakeScan | None) -> dict[str, Any]:
        """What a scan of a view or a table must know. scan: how it is read from the lake; ``None`` for a full view."""
        key, schema = (self._plans[name].key, self._plans[name].schema) if scan is None else (scan.key, scan.schema)
        vnode_map = self._loop.lookup_map
        return {
            "key": list(key),
            "schema": schema_to_json(schema),
            "vnodes": len(vnode_map.owners),
            "workers": len(vnode_map.workers),
            "lake": None if scan is None else scan.to_json(),
        }

    def lake_scan(self, name: str, *, computes_full: bool = False) -> LakeScan | None:
        """The scan of a table or a partial view; ``None`` for a full view, unless ``computes_full``. Raises
        UnknownView, and the error of a view that has failed."""
        if name in self._tables:
            table = self._tables[name]
            return TableScan(self._root, table, scan_key(table))
        if name not in self._plans:
            raise UnknownView.among(name, dict.fromkeys([*self._plans, *self._tables], ()))
        self._loop.check_view(name)
        plan = self._plans[name]
        if plan.full_because is not None and not computes_full:
            return None
        return ViewScan(self._root, plan, tuple(self._tables[table] for table in plan.tables))

    def _take(self, name: str, seconds: float) -> SnapshotParts:
        """What one scan reads. No worker has a part of what is read from the lake."""
        if self.full_plan(name) is not None:
            return self._loop.snapshot(name, seconds)
        self.lake_scan(name)
        return SnapshotParts(SnapshotId(0), self._loop.progress.ended, ())

    def snapshot(self, view: str, seconds: float) -> SnapshotParts:
        """A snapshot of a full view, within so many seconds."""
        return self._loop.snapshot(view, seconds)

    @property
    def ended(self) -> Epoch:
        """The last epoch that every view reflects."""
        return self._loop.progress.ended

    def check_ready(self, name: str) -> None:
        """Raise NotReady for a view that does not reflect its tables yet."""
        if name in self._plans and (lacks := self._loop.progress.freshness().lacks(self._plans[name].tables)):
            raise NotReady(f"view {name!r} is not ready: {lacks}. Wait with app.wait()")

    def _scan(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        name = str(asked["view"])
        self.check_ready(name)
        parts = self._scans.parts(name, str(asked["scan"]), SNAPSHOT_S_MAX)
        scan = self.lake_scan(name) if not parts.addresses else None
        return {
            "snapshot": parts.snapshot,
            "epoch": parts.epoch,
            "addresses": list(parts.addresses),
            "lake": None if scan is None else scan.to_json(),
        }

    def _change_log(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        self.plan_of(str(asked["view"]))
        return {"root": str(self._root)}

    def _changes(self, asked: Mapping[str, Any], _: Caller) -> tuple[Mapping[str, Any], pa.RecordBatch | None]:
        self.plan_of(str(asked["view"]))
        return self._pieces.piece(asked)

    def _evict(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        view, keys = str(asked["view"]), asked["keys"]
        if (why := self.plan_of(view).full_because) is not None:
            raise DeclarationError(f"view {view!r} keeps every key, and none can be evicted: {why}")
        self._loop.evict(view, None if keys is None else tuple(_hash64(key) for key in keys), EVICTION_S_MAX)
        return {}

    def _rescale(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        self._loop.check()
        workers, moves, keys_max = (asked[name] for name in ("workers", "moves", "keys_max"))
        vnodes = len(self._loop.lookup_map.owners)
        if workers is not None:
            if not 1 <= whole("workers", workers) <= vnodes:
                raise DeclarationError(f"workers={workers}: there are 1 to {vnodes} workers, as many as vnodes at most")
            self._keeper.check_slots(workers)
        if keys_max is not None and whole("keys_max", keys_max) < 1:
            raise DeclarationError(f"keys_max={keys_max}: there is at least 1 key at a time")
        parsed = None if moves is None else _moves(moves)
        _check_owners((parsed or {}).values(), self._loop.workers_to_be())
        ticket = self._loop.rescale(workers, parsed, _strategy(asked["strategy"]), keys_max)
        return {"ticket": ticket}

    def _rescale_progress(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        wait_s = min(seconds("wait_s", asked.get("wait_s", 0.0)), PROGRESS_WAIT_S_MAX)
        return self._loop.rescales.progress(whole("ticket", asked["ticket"]), asked.get("unless"), wait_s)

    def _abort_rescale(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        self._loop.rescales.abort(whole("ticket", asked["ticket"]))
        return {}


def _outdated(worker: WorkerId) -> WorkerLost:
    return WorkerLost(f"worker {worker} was given up, and another process takes its slot")


def _hash64(number: int) -> int:
    if not 0 <= whole("keys", number) <= HASH64_MAX:
        raise DeclarationError(f"keys: {number} is no hash64: there are 0 to {HASH64_MAX}")
    return number


def _check_owners(owners: Iterable[WorkerId], workers: Sequence[WorkerId]) -> None:
    """Raise DeclarationError for a worker that does not exist and is not about to."""
    for worker in owners:
        if worker not in workers:
            numbers = ", ".join(map(str, workers))
            raise DeclarationError(
                f"moves: there is no worker {worker}: give one of {numbers}, or ask for more workers first"
            )


def _moves(moves: Any) -> dict[VnodeId, WorkerId]:
    if not isinstance(moves, dict) or not all(vnode.isdecimal() and len(vnode) < 10 for vnode in moves):
        raise DeclarationError(f"moves={moves!r:.100}: give a mapping, {{vnode: worker}}")
    return {VnodeId(int(vnode)): WorkerId(whole("moves", worker)) for vnode, worker in moves.items()}


def _strategy(name: str) -> Strategy:
    if name not in list(Strategy):
        raise DeclarationError(f"strategy {name!r}: there are {', '.join(Strategy)}")
    return Strategy(name)
