"""Short words for tests of the coordinator machine: two workers, events, and what came out of a step."""

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import TypeVar, cast, get_args

import pyarrow as pa
from relation_kit import dataflow
from relation_kit import scan as scan_of

from upriver.coordinator.coordinator import CoordinatorMachine
from upriver.coordinator.flow import Member
from upriver.ids import Channel, Epoch, FlowId, Incarnation, MapVersion, SnapshotId, VnodeId, WorkerId
from upriver.plan.plan import DataflowPlan, TableSpec
from upriver.protocol.coordinator_events import (
    AbortWanted,
    ControlWritten,
    CoordinatorAction,
    CoordinatorEvent,
    DrainBegun,
    EpochEnded,
    EpochPublished,
    RescaleEnded,
    RescaleWanted,
    SnapshotAsked,
    SnapshotFailed,
    Tell,
    WorkerGone,
    WorkerRegistered,
    WorkerSaid,
    WriteControl,
)
from upriver.protocol.messages import (
    EpochFinished,
    FlowStep,
    ForShare,
    FromShare,
    FromWorker,
    MetPeers,
    Moved,
    OfShare,
    OpenEpoch,
    PeerLeft,
    RowsApplied,
    Settled,
    SnapshotTaken,
    StartedAnew,
    Still,
    TakeSnapshot,
    ToShare,
    ToWorker,
)
from upriver.protocol.rules import ALL_RULES, Rules
from upriver.protocol.strategies import Strategy
from upriver.vnodes import VnodeMap

CHANNEL, FEEDS_NOTHING = Channel("t/k"), Channel("t/other")
TABLE = TableSpec("t", pa.schema([("k", pa.string()), ("j", pa.string())]), ("k",))


def planned(name: str = "rows", key: str = "k") -> DataflowPlan:
    """A view of the table's rows."""
    return dataflow(name, scan_of(TABLE), (key,), TABLE)


PLAN = planned()
OWNERS = (0, 1, 0, 1)
"""What workers 0 and 1 own; a third one would take vnode 3."""


def vnode_map(owners: Sequence[int] = OWNERS, version: int = 0) -> VnodeMap:
    return VnodeMap(MapVersion(version), tuple(map(WorkerId, owners)))


# What happens --------------------------------------------------------------------------------------------------------


def came(worker: int, incarnation: int, died_in: FlowStep | None = None) -> WorkerRegistered:
    address = f"host-{incarnation}"
    return WorkerRegistered(
        worker=WorkerId(worker), incarnation=Incarnation(incarnation), address=address, died_in=died_in
    )


def gone(incarnation: int) -> WorkerGone:
    return WorkerGone(incarnation=Incarnation(incarnation))


def published(epoch: int, rows: int = 0) -> EpochPublished:
    return EpochPublished(epoch=Epoch(epoch), rows={CHANNEL: rows, FEEDS_NOTHING: rows + 1})


def published_empty(count: int) -> tuple[EpochPublished, ...]:
    """The first epochs, without rows."""
    return tuple(EpochPublished(epoch=Epoch(epoch), rows={}) for epoch in range(1, count + 1))


def scan(ticket: int, view: str = "rows") -> SnapshotAsked:
    return SnapshotAsked(ticket=ticket, view=view)


def wanted(
    ticket: int,
    workers: int | None = None,
    moves: Mapping[int, int] | None = None,
    strategy: Strategy = Strategy.ICADD,
) -> RescaleWanted:
    named = None if moves is None else {VnodeId(vnode): WorkerId(worker) for vnode, worker in moves.items()}
    return RescaleWanted(ticket=ticket, workers=workers, moves=named, strategy=strategy)


def abort(ticket: int) -> AbortWanted:
    return AbortWanted(ticket=ticket)


def said(incarnation: int, message: FromWorker | FromShare, flow: int = 1) -> WorkerSaid:
    """flow: whose share says it, if a share does."""
    is_of_share = isinstance(message, get_args(FromShare))
    told = OfShare(flow=FlowId(flow), message=cast(FromShare, message)) if is_of_share else cast(FromWorker, message)
    return WorkerSaid(incarnation=Incarnation(incarnation), message=told)


def moved(incarnation: int, *gone: int, view: str = "rows") -> WorkerSaid:
    """These slices have gone."""
    progress = Moved(
        region=view,
        phase="Collecting",
        keys=1,
        bytes=8,
        keys_left=0,
        vnodes_left=0,
        gone=tuple(map(VnodeId, gone)),
        forwarded=0,
        bounced=0,
    )
    return said(incarnation, progress)


def anew(incarnation: int, generation: int = 1, flow: int = 1) -> WorkerSaid:
    return said(incarnation, StartedAnew(generation=generation), flow)


def finished(incarnation: int, epoch: int, applied: int = 0, flow: int = 1, view: str = "rows") -> WorkerSaid:
    report = EpochFinished(epoch=Epoch(epoch), read={CHANNEL: applied}, applied={view: applied}, stats={})
    return said(incarnation, report, flow)


def late(incarnation: int, epoch: int, applied: int) -> WorkerSaid:
    return said(incarnation, RowsApplied(epoch=Epoch(epoch), applied={"rows": applied}))


def taken(incarnation: int, snapshot: int) -> WorkerSaid:
    return said(incarnation, SnapshotTaken(snapshot=SnapshotId(snapshot), rows=0))


def met(incarnation: int, meeting: int = 1) -> WorkerSaid:
    return said(incarnation, MetPeers(meeting=meeting))


def settled(incarnation: int, version: int = 1, kept: Sequence[int] = (), view: str = "rows") -> WorkerSaid:
    return said(incarnation, Settled(region=view, version=MapVersion(version), kept=tuple(map(VnodeId, kept))))


def left(incarnation: int, peer: int) -> WorkerSaid:
    return said(incarnation, PeerLeft(region="rows", peer=WorkerId(peer)))


def still(incarnation: int, pause: int = 1, given: int = 0, taken: int = 0) -> WorkerSaid:
    return said(incarnation, Still(pause=pause, given=given, taken=taken))


BOTH: list[CoordinatorEvent] = [came(0, 1), came(1, 2)]
"""Workers 0 and 1, incarnations 1 and 2."""
UP: list[CoordinatorEvent] = [*BOTH, wanted(1, workers=3), came(2, 3), met(1), met(2), met(3)]
"""A third worker joins, incarnation 3; vnode 3 moves to it from worker 1."""
DOWN: list[CoordinatorEvent] = [*BOTH, wanted(1, workers=1), met(1), met(2)]
"""Worker 1 leaves; vnodes 1 and 3 move to worker 0."""


def unwrapped(actions: Iterable[CoordinatorAction]) -> list[CoordinatorAction]:
    """The actions; what is told to a share, as if it were told to the worker."""
    return [
        Tell(incarnation=action.incarnation, message=cast(ToWorker, action.message.message))
        if isinstance(action, Tell) and isinstance(action.message, ForShare)
        else action
        for action in actions
    ]


class Recorded(CoordinatorMachine):
    """A coordinator whose lake takes each control record at once. Its actions are those besides, and besides waiting
    for epochs to end."""

    @cached_property
    def records(self) -> list[WriteControl]:
        """All control records up to now."""
        return []

    def of_shares(self, event: CoordinatorEvent, kind: type[ToShare]) -> list[tuple[int, int]]:
        """The flows and incarnations whose shares are told something of that kind."""
        return [
            (action.message.flow, action.incarnation)
            for action in super().step(event)
            if isinstance(action, Tell) and isinstance(action.message, ForShare)
            if isinstance(action.message.message, kind)
        ]

    def step(self, event: CoordinatorEvent) -> list[CoordinatorAction]:
        actions = unwrapped(super().step(event))
        records = only(WriteControl, actions)
        self.records.extend(records)
        actions = [action for action in actions if not isinstance(action, WriteControl | DrainBegun)]
        if records:
            actions += self.step(ControlWritten(number=records[-1].number))
        return actions


def share(machine: CoordinatorMachine, worker: WorkerId, flow: int = 1) -> Member:
    """What the coordinator knows of the share of a flow at a worker."""
    return machine.cluster.flows[FlowId(flow)].members[worker]


def coordinator(
    *events: CoordinatorEvent, plans: Sequence[DataflowPlan] = (PLAN,), rules: Rules = ALL_RULES
) -> Recorded:
    """A machine of two workers, 0 and 1, that has lived through these events."""
    machine = Recorded(vnode_map(), tuple(plans), rules)
    for event in events:
        machine.step(event)
    return machine


# What came out -------------------------------------------------------------------------------------------------------

Kind = TypeVar("Kind")


def only(kind: type[Kind], actions: Sequence[CoordinatorAction]) -> list[Kind]:
    """The actions of that kind, or the messages of that kind that were told to workers."""
    told = [action.message for action in actions if isinstance(action, Tell)]
    return [found for found in [*actions, *told] if isinstance(found, kind)]


def listeners(kind: type[ToWorker | ToShare], actions: Iterable[CoordinatorAction]) -> list[int]:
    """The incarnations that are told something of that kind."""
    return [a.incarnation for a in actions if isinstance(a, Tell) and isinstance(a.message, kind)]


def tell(incarnation: int, message: ToWorker | ToShare) -> Tell:
    return Tell(incarnation=Incarnation(incarnation), message=cast(ToWorker, message))


def opened(incarnation: int, *epochs: int, mixed: bool = False) -> list[Tell]:
    return [tell(incarnation, OpenEpoch(epoch=Epoch(e), mixed=mixed, after=Epoch(e - 1))) for e in epochs]


def take(incarnation: int, snapshot: int, at: int) -> Tell:
    return tell(incarnation, TakeSnapshot(snapshot=SnapshotId(snapshot), view="rows", at=Epoch(at)))


def ended(*epochs: int, flow: int = 1) -> list[EpochEnded]:
    return [EpochEnded(flow=FlowId(flow), epoch=Epoch(epoch)) for epoch in epochs]


def outcomes(actions: Iterable[CoordinatorAction]) -> list[tuple[int, str, int]]:
    """Of rescales that have ended: ticket, outcome, vnodes moved."""
    return [(a.ticket, str(a.outcome), a.vnodes) for a in actions if isinstance(a, RescaleEnded)]


def failures(actions: Iterable[CoordinatorAction]) -> dict[int, type[Exception]]:
    """Of snapshots, by ticket."""
    return {a.ticket: type(a.error) for a in actions if isinstance(a, SnapshotFailed)}
