"""The coordinator machine: who the workers are, which epochs there are, and when each one ends.

Theory of operation. The coordinator owns the vnode map. A worker registers under its place; the coordinator assigns it
its vnodes and opens the epochs for it from the first one on, at most ``EPOCHS_AHEAD_MAX`` beyond what it has
finished. An epoch ends when every place of the map has finished it, and as many rows came out of every channel as the
epoch's manifest says went in. A worker that is lost leaves its place empty until another incarnation registers; that
one starts from nothing and applies all epochs again, while the others go on.

A snapshot is a consistent cut through all workers. Its cut is the highest epoch that any worker has been sent, so
none can be past it, and each takes its part when it gets there.

Rules C1 to C4: ``docs/design/0001-river.md``.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from upriver.dataflow.plan import ViewPlan
from upriver.errors import ProtocolError, UnknownView, UpriverError, WaitTimeout, WorkerLost
from upriver.ids import Channel, Epoch, Incarnation, SnapshotId, WorkerId
from upriver.machines.messages import (
    Assign,
    DropSnapshot,
    EpochFinished,
    FromWorker,
    OpenEpoch,
    Retire,
    SnapshotTaken,
    TakeSnapshot,
    ToWorker,
    WorkerFailed,
)
from upriver.machines.rules import ALL_RULES, Rules
from upriver.vnodes import VnodeMap

EPOCHS_AHEAD_MAX = 4
"""Epochs that a worker is sent before it has reported them."""
SNAPSHOTS_HELD_MAX = 16
"""Snapshots that the workers hold at one time; one more lets the oldest go."""

# Events ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRegistered:
    """A process has come to fill a worker's place. Incarnations are given in order of registration."""

    worker: WorkerId
    incarnation: Incarnation


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerGone:
    """An incarnation's channel has closed."""

    incarnation: Incarnation


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochPublished:
    """The epoch's manifest is in the lake. rows: per channel, over all vnodes."""

    epoch: Epoch
    rows: Mapping[Channel, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSaid:
    """A message from a worker."""

    incarnation: Incarnation
    message: FromWorker


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotAsked:
    """Somebody wants to scan a view. ticket: names the asker."""

    ticket: int
    view: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StopAsked:
    """The app is stopping."""


CoordinatorEvent = WorkerRegistered | WorkerGone | EpochPublished | WorkerSaid | SnapshotAsked | StopAsked

# Actions --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Tell:
    """Send to an incarnation."""

    incarnation: Incarnation
    message: ToWorker


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochEnded:
    """Every worker has applied every row of the epoch, and of those before it."""

    epoch: Epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotReady:
    """Every worker holds its part of the view as of ``epoch``."""

    ticket: int
    snapshot: SnapshotId
    epoch: Epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotFailed:
    """The snapshot cannot be had; asking again may help."""

    ticket: int
    error: UpriverError


@dataclass(frozen=True, slots=True, kw_only=True)
class AppFailed:
    """The river cannot go on. kind: class name of the error."""

    kind: str
    error: str


CoordinatorAction = Tell | EpochEnded | SnapshotReady | SnapshotFailed | AppFailed

# State ----------------------------------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class Member:
    """The current incarnation in one worker's place."""

    worker: WorkerId
    incarnation: Incarnation
    sent: Epoch = field(default=Epoch(0))
    finished: Epoch = field(default=Epoch(0))
    stats: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class PendingSnapshot:
    """A snapshot on its way. asked: the incarnations that each keep a part of it. awaiting: all and only those of
    them that have not taken theirs."""

    ticket: int
    at: Epoch
    asked: frozenset[Incarnation]
    awaiting: set[Incarnation]


class CoordinatorMachine:
    """``step(event) -> actions``; see the module's docstring."""

    def __init__(self, vnode_map: VnodeMap, plans: tuple[ViewPlan, ...], rules: Rules = ALL_RULES) -> None:
        self.vnode_map = vnode_map
        self.plans = plans
        self.published = Epoch(0)
        self.ended = Epoch(0)
        self.members: dict[WorkerId, Member] = {}
        self._rules = rules
        self._promised: dict[Epoch, Mapping[Channel, int]] = {}
        """Rows per channel that feeds a view, of all and only the epochs that have not ended."""
        self._received: dict[Epoch, dict[WorkerId, Mapping[Channel, int]]] = {}
        """What current incarnations report of epochs that have not ended."""
        self._snapshots: dict[SnapshotId, PendingSnapshot] = {}
        self._held: list[SnapshotId] = []
        self._last_snapshot = SnapshotId(0)
        self._stopping = False

    def step(self, event: CoordinatorEvent) -> list[CoordinatorAction]:
        """Advance by one event."""
        match event:
            case WorkerRegistered():
                return self._registered(event)
            case WorkerGone():
                return self._gone(event.incarnation)
            case EpochPublished():
                return self._published(event)
            case WorkerSaid():
                return self._said(event)
            case SnapshotAsked():
                return self._snapshot_asked(event)
            case StopAsked():
                self._stopping = True
                return [Tell(incarnation=m.incarnation, message=Retire()) for m in self._by_worker()]

    def _by_worker(self) -> list[Member]:
        return [self.members[worker] for worker in sorted(self.members)]

    # Members

    def _registered(self, event: WorkerRegistered) -> list[CoordinatorAction]:
        retire = Tell(incarnation=event.incarnation, message=Retire())
        if self._stopping or event.worker not in self.vnode_map.workers:
            return [retire]
        actions: list[CoordinatorAction] = []
        old = self.members.get(event.worker)
        if old is not None:
            actions += [Tell(incarnation=old.incarnation, message=Retire()), *self._gone(old.incarnation)]
        member = Member(worker=event.worker, incarnation=event.incarnation)
        self.members[event.worker] = member
        assign = Assign(
            worker=event.worker,
            vnodes_total=len(self.vnode_map.owners),
            vnodes=self.vnode_map.vnodes_of_worker(event.worker),
            plans=self.plans,
            serve_from=self.published,
        )
        actions.append(Tell(incarnation=event.incarnation, message=assign))
        return [*actions, *self._open_epochs(member)]

    def _gone(self, incarnation: Incarnation) -> list[CoordinatorAction]:
        lost = [m for m in self._by_worker() if m.incarnation == incarnation]
        for member in lost:
            del self.members[member.worker]
            for received in self._received.values():
                received.pop(member.worker, None)
        failed = [s for s in sorted(self._snapshots) if incarnation in self._snapshots[s].asked]
        error = WorkerLost("a worker was lost while the snapshot was taken; scan again")
        return [SnapshotFailed(ticket=self._snapshots.pop(s).ticket, error=error) for s in failed]

    # Epochs

    def _published(self, event: EpochPublished) -> list[CoordinatorAction]:
        if event.epoch != self.published + 1:
            raise ProtocolError(f"epoch {event.epoch} was published after {self.published}")
        self.published = event.epoch
        fed = {plan.channel for plan in self.plans}
        self._promised[event.epoch] = {channel: event.rows.get(channel, 0) for channel in fed}
        return [action for member in self._by_worker() for action in self._open_epochs(member)]

    def _open_epochs(self, member: Member) -> list[CoordinatorAction]:
        until = min(self.published, member.finished + EPOCHS_AHEAD_MAX)
        first, member.sent = member.sent + 1, Epoch(max(member.sent, until))
        return [
            Tell(incarnation=member.incarnation, message=OpenEpoch(epoch=Epoch(epoch)))
            for epoch in range(first, until + 1)
        ]

    def _said(self, event: WorkerSaid) -> list[CoordinatorAction]:
        member = next((m for m in self._by_worker() if m.incarnation == event.incarnation), None)
        if member is None:
            if self._rules.c2_current_incarnation_only:  # C2
                return []
            member = self._by_worker()[0]
        match event.message:
            case EpochFinished():
                return self._finished(member, event.message)
            case SnapshotTaken():
                return self._snapshot_taken(member, event.message)
            case WorkerFailed():
                return [AppFailed(kind=event.message.kind, error=event.message.error)]

    def _finished(self, member: Member, message: EpochFinished) -> list[CoordinatorAction]:
        member.finished = message.epoch
        member.stats = message.stats
        if message.epoch > self.ended:
            self._received.setdefault(message.epoch, {})[member.worker] = message.received
        return [*self._end_epochs(), *self._open_epochs(member)]

    def _end_epochs(self) -> list[CoordinatorAction]:
        actions: list[CoordinatorAction] = []
        while (epoch := Epoch(self.ended + 1)) in self._received:
            received = self._received[epoch]
            if self._rules.c1_all_workers_finish and set(received) != set(self.vnode_map.workers):  # C1
                break
            wrong = _mismatch(self._promised[epoch], received)
            if wrong and self._rules.c1_all_workers_finish:
                return [*actions, AppFailed(kind="ProtocolError", error=f"epoch {epoch}: {wrong}")]
            del self._received[epoch], self._promised[epoch]
            self.ended = epoch
            actions.append(EpochEnded(epoch=epoch))
        return actions

    # Snapshots

    def _snapshot_asked(self, event: SnapshotAsked) -> list[CoordinatorAction]:
        if all(plan.name != event.view for plan in self.plans):
            error: UpriverError = UnknownView.among(event.view, (plan.name for plan in self.plans))
            return [SnapshotFailed(ticket=event.ticket, error=error)]
        missing = sorted(set(self.vnode_map.workers) - set(self.members))
        if missing:
            error = WorkerLost(f"workers {missing} are not up; scan again when they are")
            return [SnapshotFailed(ticket=event.ticket, error=error)]
        snapshot = self._last_snapshot = SnapshotId(self._last_snapshot + 1)
        members = self._by_worker()
        pick = max if self._rules.c4_cut_ahead_of_all else min
        cut = pick(member.sent for member in members)  # C4
        asked = frozenset(member.incarnation for member in members)
        self._snapshots[snapshot] = PendingSnapshot(ticket=event.ticket, at=cut, asked=asked, awaiting=set(asked))
        take = TakeSnapshot(snapshot=snapshot, view=event.view, at=cut)
        return [*(Tell(incarnation=m.incarnation, message=take) for m in members), *self._hold(snapshot)]

    def _hold(self, snapshot: SnapshotId) -> list[CoordinatorAction]:
        """Account for one more snapshot at the workers; the oldest one goes when there are too many."""
        self._held.append(snapshot)
        if len(self._held) <= SNAPSHOTS_HELD_MAX:
            return []
        oldest = self._held.pop(0)
        drop = DropSnapshot(snapshot=oldest)
        actions: list[CoordinatorAction] = [Tell(incarnation=m.incarnation, message=drop) for m in self._by_worker()]
        pending = self._snapshots.pop(oldest, None)
        if pending is not None:
            late = WaitTimeout(
                f"{SNAPSHOTS_HELD_MAX} later snapshots pushed this one out before it was ready; scan again"
            )
            actions.append(SnapshotFailed(ticket=pending.ticket, error=late))
        return actions

    def _snapshot_taken(self, member: Member, message: SnapshotTaken) -> list[CoordinatorAction]:
        pending = self._snapshots.get(message.snapshot)
        if pending is None:
            return []
        pending.awaiting.discard(member.incarnation)
        if pending.awaiting:
            return []
        del self._snapshots[message.snapshot]
        return [SnapshotReady(ticket=pending.ticket, snapshot=message.snapshot, epoch=pending.at)]


def _mismatch(promised: Mapping[Channel, int], received: Mapping[WorkerId, Mapping[Channel, int]]) -> str | None:
    """Which channel gave more or fewer rows than went in, in words; ``None`` if none did."""
    channels = set(promised).union(*received.values())
    for channel in sorted(channels):
        went_in, came_out = promised.get(channel, 0), sum(r.get(channel, 0) for r in received.values())
        if came_out != went_in:
            return f"{came_out} rows came out of {channel} and {went_in} went in"
    return None
