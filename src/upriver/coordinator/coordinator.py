"""The coordinator machine: it keeps track of the workers, opens epochs, and decides when each epoch ends.

Theory of operation. The coordinator owns the vnode map. A worker registers under its place. The coordinator tells it
what it keeps, and opens the epochs for it from the first one on. At most ``EPOCHS_AHEAD_MAX`` epochs are open beyond
those that the worker has finished. An epoch ends when every place has finished it, and as many rows were applied to
every view as the epoch's manifest says went in. A lost worker leaves its place empty until another incarnation
registers. That one starts from the newest checkpoint and applies the epochs since, while the other workers go on.

Rules coordinator.*: ``docs/internals/epochs.md``. Rescales, coordinator.*: ``docs/internals/rescale.md``.

A requested eviction is over when every worker that was told has done it or is gone.
"""

from collections.abc import Sequence

from upriver.coordinator.changes import ChangePublication
from upriver.coordinator.checkpoints import CheckpointTaker
from upriver.coordinator.cluster import Cluster, Member
from upriver.coordinator.control import Control
from upriver.coordinator.epochs import Ledger, LoggedVersions
from upriver.coordinator.group import MembershipConfig
from upriver.coordinator.meetings import Meetings
from upriver.coordinator.replication import NO_STANDBYS, Leader
from upriver.coordinator.rescale.machine import RescaleMachine
from upriver.coordinator.scans import Scans
from upriver.coordinator.view_changes import ViewChange, ViewChanges
from upriver.errors import ProtocolError
from upriver.ids import Epoch, Incarnation, WorkerId
from upriver.plan.plan import DataflowPlan
from upriver.protocol.coordinator_events import (
    AbortWanted,
    AppFailed,
    ChangesPublished,
    ChangesUnpublished,
    CheckpointPublished,
    CheckpointUnpublished,
    CheckpointWanted,
    ControlUnwritten,
    ControlWritten,
    CoordinatorAction,
    CoordinatorEvent,
    EpochEnded,
    EpochPublished,
    EvictionOver,
    EvictWanted,
    HorizonAsked,
    HorizonIs,
    LeaseOver,
    LeaversOverdue,
    PlansTaken,
    PlansWanted,
    ReplaceWorker,
    RescaleWanted,
    SegmentPublished,
    SegmentsRewritten,
    SnapshotAsked,
    StopAsked,
    Tell,
    WorkerGone,
    WorkerRegistered,
    WorkerSaid,
)
from upriver.protocol.messages import (
    BeginStage,
    CaughtUp,
    ChangesNotWritten,
    ChangesWritten,
    CheckpointNotTaken,
    CheckpointWritten,
    Counted,
    EpochFinished,
    EpochOver,
    Evict,
    Evicted,
    FailView,
    FeedEnded,
    FromWorker,
    HeldUp,
    Here,
    KeysUnfilled,
    MetPeers,
    Moved,
    PeerLeft,
    PeersLost,
    Restored,
    Retire,
    RowsApplied,
    RowsSettled,
    Settled,
    SnapshotNotTaken,
    SnapshotTaken,
    StageDone,
    StartedAnew,
    Still,
    TookOver,
    Unrestored,
    ViewFailed,
    WorkerFailed,
    WorkerLoad,
)
from upriver.protocol.rules import ALL_RULES, Rules
from upriver.protocol.strategies import Strategy
from upriver.state.checkpoint import Checkpoint
from upriver.state.failure import ViewFailure, told_with_place
from upriver.vnodes import VnodeMap

FAULTS_MAX = 5
"""workers.faults_are_theirs: how many faults of workers' messages are contained at most until an epoch ends, or all
workers have caught up."""


class Evictions:
    """The evictions that are under way."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._waiting: dict[int, set[Incarnation]] = {}
        """By ticket: the incarnations that were told and have not answered."""

    def wanted(self, event: EvictWanted) -> None:
        self._waiting[event.ticket] = {member.incarnation for member in self._cluster.by_worker()}
        self._cluster.tell_all(Evict(eviction=event.ticket, view=event.view, keys=event.keys))

    def done(self, incarnation: Incarnation, eviction: int) -> None:
        self._waiting.get(eviction, set()).discard(incarnation)

    def end(self) -> None:
        """Report the evictions that are over. A lost worker has forgotten everything, so none waits for it."""
        here = {member.incarnation for member in self._cluster.by_worker()}
        for ticket in [ticket for ticket, waiting in self._waiting.items() if not waiting & here]:
            del self._waiting[ticket]
            self._cluster.act(EvictionOver(ticket=ticket))


class CoordinatorMachine:
    """``step(event) -> actions``; see the module's docstring."""

    def __init__(
        self,
        vnode_map: VnodeMap,
        plans: tuple[DataflowPlan, ...],
        rules: Rules = ALL_RULES,
        checkpoints: Sequence[Checkpoint] | None = None,
        checkpoint_epochs: int | None = None,
        membership: MembershipConfig = NO_STANDBYS,
        workers: tuple[WorkerId, ...] | None = None,
        outgrown_epochs: int | None = None,
        logs: LoggedVersions | None = None,
    ) -> None:
        """checkpoints: a chain, newest first, from which workers restore these views; ``None``: the app has none and
        takes none. checkpoint_epochs: how many epochs end between two; ``None``: only on request. workers: in order;
        by default those that own vnodes. outgrown_epochs: how many epochs end until a checkpoint is dropped if none
        follows; ``None``: any number. logs: the change logs in the lake."""
        self._rules = rules
        self._ledger = Ledger(plans, rules, logs)
        failed = checkpoints[0].failed if checkpoints else {}
        self.cluster = Cluster(
            plans=plans,
            rules=rules,
            workers=vnode_map.workers if workers is None else workers,
            reading=vnode_map,
            maps={region.name: vnode_map for plan in plans for region in plan.spread},
            ledger=self._ledger,
            chain=None if checkpoints is None else tuple(checkpoint.epoch for checkpoint in checkpoints),
            failed={plan.name: failed[plan.name] for plan in plans if plan.name in failed},
        )
        if checkpoints:
            self._ledger.resume(checkpoints[0].epoch)
        self._leader = Leader(self.cluster, membership)
        self._checkpoints = CheckpointTaker(self.cluster, checkpoints or (), checkpoint_epochs, outgrown_epochs)
        self._changes = ChangePublication(self.cluster)
        self._scans = Scans(self.cluster)
        self._meetings = Meetings(self.cluster)
        self._control = Control(self.cluster)
        self._rescales = RescaleMachine(self.cluster, self._scans, self._meetings, self._leader, self._control)
        self._evictions = Evictions(self.cluster)
        self._is_torn = False
        """coordinator.anew_when_torn: exchanged rows may be lost, so all workers must begin anew."""
        self._wanted = ViewChanges()
        self._faults = 0
        """Faults of workers' messages since an epoch last ended, or all workers had caught up
        (workers.faults_are_theirs)."""
        self._stopping = False

    @property
    def plans(self) -> tuple[DataflowPlan, ...]:
        return self.cluster.plans

    @property
    def rescale_waits_for(self) -> str | None:
        """As :attr:`RescaleMachine.waits_for`."""
        return self._rescales.waits_for

    @property
    def vnodes_handed_over(self) -> int:
        """As :attr:`RescaleMachine.vnodes_handed_over`."""
        return self._rescales.vnodes_handed_over

    @property
    def vnode_map(self) -> VnodeMap:
        """The owner of each vnode; while a rescale is on, the owner before it."""
        return self.cluster.vnode_map

    @property
    def leader(self) -> Leader:
        """The leader, which knows the standbys."""
        return self._leader

    @property
    def published(self) -> Epoch:
        return self._ledger.published

    @property
    def members(self) -> dict[WorkerId, Member]:
        return dict(self.cluster.members)

    def step(self, event: CoordinatorEvent) -> list[CoordinatorAction]:
        """Advance by one event."""
        self.cluster.begin_step()
        try:
            self._step(event)
        except Exception as error:  # of any class: the sender's message is at fault, or what it has led to
            if not isinstance(event, WorkerSaid) or not self._rules.workers_faults_are_theirs:
                raise
            self._contain(event.incarnation, error)
        return self.cluster.actions

    def _step(self, event: CoordinatorEvent) -> None:
        match event:
            case WorkerRegistered():
                self._registered(event)
            case WorkerGone():
                self._gone(event.incarnation)
            case LeaseOver():
                self._leader.lease_over(event.incarnation)
            case LeaversOverdue():
                self._rescales.overdue(event.ticket)
            case EpochPublished():
                self._ledger.epochs.add(event)
            case SegmentPublished() | SegmentsRewritten():
                self._ledger.epochs.compacted(event)
                self._wanted.compacted(event)
            case HorizonAsked():
                self.cluster.act(HorizonIs(ticket=event.ticket, epoch=self.cluster.horizon(self._cuts)))
            case WorkerSaid():
                self._said(event)
            case SnapshotAsked():
                self._scans.asked(event)
            case PlansWanted():
                self._wanted.put(event)
            case EvictWanted():
                self._evictions.wanted(event)
            case CheckpointWanted():
                self._checkpoints.wanted(event)
            case CheckpointPublished():
                self._checkpoints.published(event)
            case CheckpointUnpublished():
                self._checkpoints.unpublished(event)
            case ChangesPublished():
                self._changes.published(event)
            case ChangesUnpublished():
                self._changes.unpublished(event)
            case RescaleWanted():
                self._rescales.queue.put(event)
            case AbortWanted():
                self._rescales.abort_wanted(event)
            case ControlWritten(number=number):
                self._control.written(number)
            case ControlUnwritten(number=number):
                self._control.unwritten(number)
                self._rescales.unrecorded(event)
            case StopAsked():
                self._stopping = True
                for _, member in sorted(self.cluster.members.items()):
                    self.cluster.tell(member, Retire())
        self._evictions.end()
        if not self._stopping:
            self._go_on()
            if self._rescales.is_over:
                self._control.see(self._leader.vacant)

    def _contain(self, incarnation: Incarnation, error: Exception) -> None:
        """workers.faults_are_theirs: a worker's message has led to an error, and the coordinator has done a part of
        what follows from it. So the worker is replaced, and all workers begin anew: the coordinator keeps nothing of
        what it knew of them. Raises the error if this has not helped ``FAULTS_MAX`` times."""
        self._faults += 1
        if self._faults > FAULTS_MAX:
            raise error
        self.cluster.act(ReplaceWorker(incarnation=incarnation, error=told_with_place(error)))
        member = self.cluster.of_incarnation(incarnation)
        if member is not None and not self._stopping:
            self._checkpoints.torn()
            self._changes.torn()
            self._remove(member)
            self._give_up(member)
        self._is_torn = True

    def _go_on(self) -> None:
        """Do whatever has become possible."""
        if self._is_torn and self.cluster.is_filled():
            self._is_torn = False
            self._rescales.all_begin_anew()
        self._end_epochs()
        self._fail_miscounted()
        if self._faults and self._ledger.next is None and self.cluster.is_quiet():
            self._faults = 0
        self._adopt_segments()
        self._let_slices_change_hands()
        if self._leader.has_learned:  # perhaps by a round that moves nothing: no message follows it
            self._let_slices_change_hands()
        while self._wanted and (self._may_replan() or not self._rules.coordinator_views_change_between_epochs):
            self._replan(self._wanted.take())
        self._checkpoints.drop_outgrown()
        if self.cluster.in_step:
            self._see_that_all_have_met()
        if self._may_checkpoint():
            self._checkpoints.begin()
        if self._may_take_changes():
            self._changes.begin()
        rescales, scans = self._rescales, self._scans
        if rescales.permits.scans:
            scans.take_now()
        elif rescales.holds_still and self.cluster.is_quiet():
            scans.take_still()
        if rescales.in_lock_step or self.cluster.in_step:
            if not (rescales.in_lock_step or self._ledger.is_staged):  # workers that are behind catch up
                self.cluster.open_ahead(self.cluster.opened)
            ready = self._opens_epochs and (self._meetings.have_all_met or not self.cluster.in_step)
            if ready and not (scans.wants_pause and rescales.holds_still):
                rescales.open_next()
        else:  # while nothing new is opened, workers that are behind get the epochs that other workers had
            self.cluster.open_ahead(self._ledger.published if self._opens_epochs else self.cluster.opened)

    def _adopt_segments(self) -> None:
        if self._ledger.epochs.has_waiting and not self._wanted:  # a wish for other views names the epochs as they are
            self.cluster.adopt_segments(self._cuts)

    @property
    def _cuts(self) -> list[Epoch]:
        """The epochs as of whose end snapshots, a checkpoint and changes are being taken."""
        return [*self._scans.cuts, *self._checkpoints.cuts, *self._changes.cuts]

    @property
    def _opens_epochs(self) -> bool:
        """Whether epochs may be opened that no worker has had yet."""
        return self._rescales.opens_epochs and not (self._wanted and self._rescales.is_over)

    def _may_checkpoint(self) -> bool:
        """checkpoints.keys_stay: whether the app takes checkpoints, and no key moves or is about to."""
        if self.cluster.chain is None or self._is_torn or not self._leader.is_settled:
            return False
        return self._rescales.is_over or not self._rules.checkpoints_keys_stay

    def _may_take_changes(self) -> bool:
        """changes.keys_stay: whether no key moves or is about to."""
        if self._is_torn or not self._leader.is_settled:
            return False
        return self._rescales.is_over or not self._rules.changes_keys_stay

    @property
    def _is_uncut(self) -> bool:
        """Whether no worker has yet to come to the cut of a checkpoint or of changes."""
        return self._checkpoints.is_idle and self._changes.is_idle

    def _may_replan(self) -> bool:
        """Whether nothing is under way that forbids the views to change."""
        is_idle = self._scans.is_idle and self._is_uncut and self._changes.is_settled and not self._leader.takes_over
        return self._rescales.is_over and self.cluster.is_quiet() and is_idle

    def _replan(self, change: ViewChange) -> None:
        """The views change: all workers begin anew, and read what there is
        (coordinator.views_change_between_epochs)."""
        wanted = change.wanted
        self._checkpoints.forget()
        self._changes.forget()
        self.cluster.replan(wanted.plans, wanted.epochs, change.since)
        self._rescales.replanned()
        self._leader.replanned()
        self.cluster.start_anew()
        self._adopt_segments()
        self.cluster.act(PlansTaken(ticket=wanted.ticket))

    def _let_slices_change_hands(self) -> None:
        """Slices change hands by a rescale or a decision of the leader. After the latter all workers meet again: they
        speak as another generation."""
        takes_up = not self._wanted and self._is_uncut and self._leader.is_settled
        self._rescales.advance(takes_up=takes_up)
        born = self.cluster.generation.born
        free = self._rescales.permits.rounds and self._scans.is_idle and self._is_uncut and not self._is_torn
        if self._leader.advance(channels=self._meetings.have_all_met, may_change_hands=free):
            self._meetings.forget()
        if born != self.cluster.generation.born:
            self._scans.start_anew()

    def _see_that_all_have_met(self) -> None:
        """With exchange edges, no epoch is opened before every worker has a channel to every other
        (coordinator.anew_when_torn)."""
        if self._rescales.permits.meetings and not self._meetings.is_of_all and self.cluster.is_quiet():
            self._meetings.call(Strategy.ICADD, None)

    # Members

    def _registered(self, event: WorkerRegistered) -> None:
        old = self.cluster.members.get(event.worker)
        if old is not None and not self._stopping:
            self.cluster.tell(old, Retire())
            self._gone(old.incarnation)  # which may end the rescale, and with it the place
            self._leader.lease_over(old.incarnation)
        joins = self._rescales.awaits(event.worker) or self._leader.awaits(event.worker)
        if self._stopping or not (joins or event.worker in self.cluster.workers):
            self.cluster.act(Tell(incarnation=event.incarnation, message=Retire()))
            return
        self._leader.came(event.worker)
        member = Member(
            worker=event.worker, incarnation=event.incarnation, address=event.address, instance=event.instance
        )
        self.cluster.enter(member)
        if not (joins or self._is_torn):
            self.cluster.assign_place(member)

    def _gone(self, incarnation: Incarnation) -> None:
        member = self.cluster.of_incarnation(incarnation)
        if member is None:
            return
        others_take_over = self._rescales.permits.take_over and not self._is_torn and self._leader.can_replace(member)
        if not (self._stopping or others_take_over):
            self._tear()  # while it is known what was opened for it
        self._checkpoints.torn()
        self._changes.torn()
        self._remove(member)
        if self._stopping:
            return
        if others_take_over:
            self._leader.lost(member)
        else:
            self._give_up(member)

    def _remove(self, member: Member) -> None:
        """Forget the incarnation, and what it applied and holds."""
        self.cluster.remove(member.worker)
        self._ledger.forget(member.worker)
        self._scans.lost(member.incarnation)

    def _give_up(self, member: Member) -> None:
        """No standby takes over from the worker: another one begins in its place."""
        self._leader.given_up(member)
        self._rescales.lost(member)
        self._assign_who_waits()

    def _assign_who_waits(self) -> None:
        """A worker that waits in a place whose slices standbys could not take over keeps them after all."""
        for worker in self.cluster.workers:
            member = self.cluster.members.get(worker)
            if member is not None and not (member.assigned or self._is_torn or self._rescales.awaits(worker)):
                self.cluster.assign_place(member)

    def _tear(self) -> None:
        """A worker or a channel was lost, and exchanged rows perhaps with it. While keys move, the rescale makes all
        workers begin anew. Before the first epoch there is nothing to lose."""
        exchanges = self._ledger.is_staged and self.cluster.has_begun and not self._rescales.in_lock_step
        if exchanges and self._rules.coordinator_anew_when_torn:
            self._checkpoints.torn()
            self._changes.torn()
            self._is_torn = True

    # Workers' messages

    def _said(self, event: WorkerSaid) -> None:
        member = self.cluster.of_incarnation(event.incarnation)
        if member is None:
            if self._rules.coordinator_current_incarnation_only or not self.cluster.members:
                return
            member = self.cluster.by_worker()[0]
        if isinstance(event.message, StartedAnew):
            member.heard(event.message, keeps_highest=self._rules.coordinator_late_reports_change_nothing)
        if self._is_heard(member, event.message):
            self._heard(member, event.message)

    def _is_heard(self, member: Member, message: FromWorker) -> bool:
        """worker.own_generation_only: a message of an earlier generation counts only if the worker cannot go on, has
        evicted, or has ended a feed. A view's failure counts until all workers begin anew. Raises ProtocolError for an
        epoch that the worker was never sent."""
        current = member.generation == self.cluster.generation.number or not self._rules.worker_own_generation_only
        current |= isinstance(message, ViewFailed) and member.generation >= self.cluster.generation.born
        if current and self._rules.coordinator_late_reports_change_nothing:
            _check_sent(member, message)
        return current or isinstance(message, WorkerFailed | Evicted | FeedEnded)

    def _heard(self, member: Member, message: FromWorker) -> None:
        member.heard(message, keeps_highest=self._rules.coordinator_late_reports_change_nothing)
        match message:
            case EpochFinished():
                self._ledger.finished(member.worker, message)
            case Evicted():
                self._evictions.done(member.incarnation, message.eviction)
            case RowsApplied():
                self._ledger.applied(member.worker, message)
            case RowsSettled():
                self._ledger.settled(member.worker, message)
            case StageDone():
                self._ledger.stage_done(member.worker, message)
            case Unrestored():
                self._unrestored(member, message)
            case CheckpointWritten():
                self._checkpoints.written(member, message)
            case CheckpointNotTaken():
                self._checkpoints.not_taken(member, message)
            case ChangesWritten():
                self._changes.written(member, message)
            case ChangesNotWritten():
                self._changes.not_written(message)
            case SnapshotTaken():
                self._scans.taken(member, message)
            case SnapshotNotTaken():
                self._scans.not_taken(message)
            case Still():
                self._scans.still(member, message)
            case MetPeers():
                self._meetings.met(member, message)
            case PeersLost(meeting=meeting):
                if meeting == self._meetings.number:
                    self._channel_lost(member, message)
            case CaughtUp() | FeedEnded():
                self._leader.heard(message)
            case Here():
                if self._leader.here(message):
                    self._tear()
            case Settled():
                self._rescales.settled(member, message)
            case PeerLeft():
                self._rescales.peer_left(member, message)
            case Moved():
                self._scans.some_have_moved()
                self._rescales.moved(message)
            case StartedAnew() | Counted() | KeysUnfilled() | Restored() | HeldUp():
                pass  # the member has noted them
            case WorkerLoad() | TookOver():
                pass  # for users: the runtime shows them
            case ViewFailed():
                self._view_failed(message)
            case WorkerFailed():
                self._worker_failed(member, message)

    def _worker_failed(self, member: Member, message: WorkerFailed) -> None:
        """Replace the worker, whatever the error: a full disk gets room again, a file is repaired. A row that breaks a
        view is no failure of the worker. Each restart waits longer, so a worker that always fails costs little."""
        if self._rules.workers_failed_are_replaced:  # workers.failed_are_replaced
            self.cluster.act(ReplaceWorker(incarnation=member.incarnation, error=message.error))
        else:
            self.cluster.act(AppFailed(kind=message.kind, error=message.error))

    def _unrestored(self, member: Member, message: Unrestored) -> None:
        """checkpoints.damaged_is_skipped: the worker begins with an older checkpoint, or with nothing. Where workers
        speak to each other, or have only just begun, all workers do so."""
        self._checkpoints.damaged(message)
        has_just_begun = self._ledger.through > self._ledger.ended
        if has_just_begun:
            self._ledger.resume(self.cluster.start_at)
        if has_just_begun or self.cluster.in_step or not self._rescales.is_over:
            self._is_torn = True
        else:
            self.cluster.assign_place(member)

    def _view_failed(self, message: ViewFailed) -> None:
        """views.fail_everywhere: the view fails at all workers, also at later ones. The first failure counts."""
        cluster = self.cluster
        if message.view in cluster.failed or message.view not in [plan.name for plan in cluster.plans]:
            return
        cluster.fail(message.view, message.failure)
        if self._rules.views_fail_everywhere:  # views.fail_everywhere
            cluster.tell_all(FailView(view=message.view, failure=message.failure))

    def _channel_lost(self, member: Member, message: PeersLost) -> None:
        """If the peer may be lost and standbys can take over from it, the coordinator probes it first."""
        self._meetings.forget()
        if not (self._rescales.permits.take_over and not self._is_torn and self._leader.doubts(message.peer)):
            self._tear()
        self._rescales.channel_lost(member, message)

    def _fail_miscounted(self) -> None:
        for view, what in self._ledger.miscounted.items():
            where = f"view {view!r}: its rows are miscounted, which is a fault of Upriver"
            self._view_failed(ViewFailed(view=view, failure=ViewFailure.of(ProtocolError(what), where)))

    def _end_epochs(self) -> None:
        due = self._ledger.stage_due(self.cluster.workers)
        if due is not None:
            epoch, stage = due
            for worker in self.cluster.workers:
                self.cluster.tell(self.cluster.members[worker], BeginStage(epoch=epoch, stage=stage))
        if self.cluster.is_complete():
            self.cluster.act(*(EpochEnded(epoch=epoch) for epoch in self._ledger.end_what_was_passed_over()))
        before = self._ledger.ended
        following = self._ledger.next
        if following is None or not self._leader.has(following):  # replication.epoch_waits_for_followers
            return
        for epoch in self._ledger.end(self.cluster.workers):
            self._faults = 0
            if epoch > before:  # else the workers repeat it
                self.cluster.act(EpochEnded(epoch=epoch))
            if self._rescales.in_lock_step or self.cluster.in_step:
                self.cluster.tell_all(EpochOver(epoch=epoch))


def _check_sent(member: Member, message: FromWorker) -> None:
    """Raise ProtocolError for the report of an epoch that the worker was never sent."""
    counts = EpochFinished | RowsApplied | RowsSettled | StageDone
    if isinstance(message, counts) and message.epoch > member.sent:
        raise ProtocolError(f"worker {member.worker} reports epoch {message.epoch}, and was sent {member.sent}")
