"""The coordinator machine: it keeps track of the workers, opens each flow's epochs, and decides when each has ended.

Theory of operation. The coordinator owns the vnode map, and an app's *flows*: each of one view or more, with epochs,
checkpoints and failures of its own. A worker registers under its place. The coordinator tells it what it keeps of each
flow, and opens the flow's epochs for it from the first one on. At most ``EPOCHS_AHEAD_MAX`` epochs are open beyond
those that the worker has finished. A flow's epoch ends when every place has finished it, and as many rows were applied
to every view as the epoch's manifest says went in. A lost worker leaves its place empty until another incarnation
registers. That one starts from the newest checkpoints and applies the epochs since, while the other workers go on.

A view that is added while the app runs is a flow more, beside the others, which do not notice. It is *building* until
it has caught up. A view that is dropped is a flow less.

Rules coordinator.*: ``docs/internals/epochs.md``. Rescales, coordinator.*: ``docs/internals/rescale.md``. Flows:
``docs/internals/flows.md``.

A requested eviction is over when every worker that was told has done it or is gone.
"""

from collections.abc import Iterable, Mapping

from upriver.coordinator.changes import ChangePublication
from upriver.coordinator.checkpoints import CheckpointRequests
from upriver.coordinator.cluster import CheckpointRules, Cluster, ServedFlow
from upriver.coordinator.control import Control
from upriver.coordinator.epochs import LoggedVersions
from upriver.coordinator.flow import Member
from upriver.coordinator.group import MembershipConfig
from upriver.coordinator.meetings import Meetings
from upriver.coordinator.places import WorkerPlaces, WorkerProcess
from upriver.coordinator.replication import NO_STANDBYS, Leader
from upriver.coordinator.rescale.machine import RescaleMachine
from upriver.coordinator.view_changes import ViewChange, ViewChanges
from upriver.errors import ProtocolError, ViewCrashed
from upriver.ids import Epoch, FlowId, Incarnation, WorkerId
from upriver.plan.flows import flows_of
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
    DrainOverdue,
    EpochEnded,
    EpochPublished,
    EvictionOver,
    EvictWanted,
    HorizonAsked,
    HorizonIs,
    LeaseOver,
    LeaversOverdue,
    LinksOverdue,
    MeetingDue,
    PlansTaken,
    PlansWanted,
    ReplaceWorker,
    RescaleWanted,
    SegmentPublished,
    SegmentsRewritten,
    SnapshotAsked,
    SnapshotFailed,
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
    FlowStep,
    FromShare,
    HeldUp,
    Here,
    KeysUnfilled,
    MetPeers,
    Moved,
    OfShare,
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
from upriver.state.checkpoint import FoundCheckpoints
from upriver.state.failure import ViewFailure, told_with_place
from upriver.vnodes import VnodeMap

FAULTS_MAX = 5
"""workers.faults_are_theirs: how many faults of workers' messages are contained at most until an epoch ends, or all
workers have caught up."""

DEATHS_MAX = 3
"""flows.fail_when_deadly: how often running a worker's process dies in steps of a flow at one epoch until it fails."""


class Evictions:
    """The evictions that are under way."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._waiting: dict[int, tuple[FlowId, set[Incarnation]]] = {}
        """By ticket: the flow, and the incarnations that were told and have not answered."""

    def wanted(self, event: EvictWanted) -> None:
        """A view that was dropped has no key to evict."""
        flow = self._cluster.flow_of(event.view)
        if flow is None:
            self._cluster.act(EvictionOver(ticket=event.ticket))
            return
        self._waiting[event.ticket] = flow.id, {member.incarnation for member in flow.by_worker()}
        flow.tell_all(Evict(eviction=event.ticket, view=event.view, keys=event.keys))

    def done(self, incarnation: Incarnation, eviction: int) -> None:
        if eviction in self._waiting:
            self._waiting[eviction][1].discard(incarnation)

    def end(self) -> None:
        """Report the evictions that are over. A lost worker has forgotten everything, so none waits for it, as none
        does for a flow that is gone."""
        here = {process.incarnation for process in self._cluster.places.by_worker()}
        for ticket, (flow, waiting) in list(self._waiting.items()):
            if not waiting & here or flow not in self._cluster.flows:
                del self._waiting[ticket]
                self._cluster.act(EvictionOver(ticket=ticket))


class CoordinatorMachine:
    """``step(event) -> actions``; see the module's docstring."""

    def __init__(
        self,
        vnode_map: VnodeMap,
        plans: tuple[DataflowPlan, ...],
        rules: Rules = ALL_RULES,
        checkpoints: Mapping[str, FoundCheckpoints] | None = None,
        checkpoint_epochs: int | None = None,
        membership: MembershipConfig = NO_STANDBYS,
        workers: tuple[WorkerId, ...] | None = None,
        outgrown_epochs: int | None = None,
        logs: LoggedVersions | None = None,
    ) -> None:
        """plans: of the views, each behind those that feed it. Those that feed each other are a flow: 1, 2 and so on.
        checkpoints: by the first view of a flow, what there are of it; ``None``: the app has none and takes none.
        checkpoint_epochs: how many epochs end between two; ``None``: only on request. workers: in order; by default
        those that own vnodes. outgrown_epochs: how many epochs end until a checkpoint is dropped if none follows;
        ``None``: any number. logs: the change logs in the lake."""
        self._rules = rules
        every = CheckpointRules(every_epochs=checkpoint_epochs, outgrown_epochs=outgrown_epochs)
        logs = logs or LoggedVersions()
        places = WorkerPlaces(rules=rules, workers=vnode_map.workers if workers is None else workers, reading=vnode_map)
        self.cluster = Cluster(places, None if checkpoints is None else every, logs.ended)
        for flow in flows_of(plans):
            found = (checkpoints or {}).get(flow[0].name, FoundCheckpoints())
            names = [plan.name for plan in flow]
            self.cluster.begin_with(flow, found, {view: at for view, at in logs.found.items() if view in names})
        self._leader = Leader(self.cluster, membership)
        self._checkpoints = CheckpointRequests()
        self._changes = ChangePublication(self.cluster)
        self._meetings = Meetings(self.cluster)
        self._control = Control(self.cluster)
        self._rescales = RescaleMachine(self.cluster, self._meetings, self._leader, self._control)
        self._evictions = Evictions(self.cluster)
        self._wanted = ViewChanges()
        self._faults = 0
        """Faults of workers' messages since an epoch last ended, or all workers had caught up
        (workers.faults_are_theirs)."""
        self._permitted: tuple[object, ...] = ()
        """What all flows were permitted at the end of the last step."""
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
        return self.cluster.published

    def step(self, event: CoordinatorEvent) -> list[CoordinatorAction]:
        """Advance by one event."""
        self.cluster.places.begin_step()
        try:
            self._step(event)
        except Exception as error:  # of any class: the sender's message is at fault, or what it has led to
            if not isinstance(event, WorkerSaid) or not self._rules.workers_faults_are_theirs:
                raise
            self._contain(event.incarnation, error)
        return self.cluster.places.actions

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
            case DrainOverdue():
                self._rescales.drain_overdue(event.ticket)
            case MeetingDue(meeting=meeting):
                self._meetings.due(meeting)
            case LinksOverdue(time=time):
                self._links_overdue(time)
            case EpochPublished():
                self.cluster.publish(event)
            case SegmentPublished() | SegmentsRewritten():
                self.cluster.compacted(event)
                self._wanted.compacted(event)
            case HorizonAsked():
                horizons = [flow.horizon(self._cuts(flow)) for flow in self.cluster]
                self.cluster.act(HorizonIs(ticket=event.ticket, epoch=min(horizons, default=self.cluster.published)))
            case WorkerSaid():
                self._said(event)
            case SnapshotAsked():
                self._snapshot_asked(event)
            case PlansWanted():
                self._wanted.put(event)
            case EvictWanted():
                self._evictions.wanted(event)
            case CheckpointWanted():
                takers = {flow.id: flow.checkpoints for flow in self.cluster}
                self.cluster.act(*self._checkpoints.wanted(event, takers, self.cluster.published))
            case CheckpointPublished():
                for flow in self.cluster:
                    flow.checkpoints.published(event)
            case CheckpointUnpublished():
                for flow in self.cluster:
                    flow.checkpoints.unpublished(event)
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
                for _, process in sorted(self.cluster.processes.items()):
                    self.cluster.places.tell(process, Retire())
        self._evictions.end()
        if not self._stopping:
            self._go_on(event)
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
        process = self.cluster.places.of_incarnation(incarnation)
        if process is not None and not self._stopping:
            self._give_up_cuts()
            self.cluster.remove(process.worker)
            self._give_up(process)
        for flow in self.cluster:
            flow.tear()

    def _give_up_cuts(self) -> None:
        """Checkpoints and changes that were being taken are not."""
        for flow in self.cluster:
            flow.checkpoints.torn()
        self._changes.torn()

    def _snapshot_asked(self, event: SnapshotAsked) -> None:
        flow = self.cluster.flow_of(event.view)
        if flow is None:
            self.cluster.act(SnapshotFailed(ticket=event.ticket, error=self.cluster.unknown(event.view)))
        else:
            flow.scans.asked(event)

    def _go_on(self, event: CoordinatorEvent) -> None:
        """Do whatever has become possible. What a share reports concerns its flow, and the others only if that changes
        what they may do (``_permits``): with many flows, most steps are of one."""
        if self.cluster.is_torn and self.cluster.places.is_filled() and not self._waits_for_links:
            self._begin_anew()
        flows = self._concerned(event)
        for flow in flows:
            self._end_epochs(flow)
            self._fail_miscounted(flow)
        self.cluster.see_what_ended()
        if self._faults and self.cluster.is_quiet() and all(flow.ledger.next is None for flow in self.cluster):
            self._faults = 0
        self._adopt_segments(flows)
        self._let_slices_change_hands()
        if self._leader.has_learned:  # perhaps by a round that moves nothing: no message follows it
            self._let_slices_change_hands()
        if self._wanted and self._may_replan:
            while self._wanted and self._may_replan:
                self._replan(self._wanted.take())
            self._evictions.end()
            self._let_slices_change_hands()  # a rescale may have waited for it, and no message follows it
        if self.cluster.in_step or self._meetings.broken:
            self._see_that_all_have_met()
        for flow in self._unless_others_may_go_on(flows):
            self._take_checkpoint(flow)
        self._changes.go_on()
        if self._may_take_changes():
            self._changes.begin()
        for flow in self._unless_others_may_go_on(flows):
            self._take_snapshots(flow)
            self._open_epochs(flow)
        if self._checkpoints.are_waiting:
            for flow in self.cluster:
                self.cluster.act(*self._checkpoints.answered(flow.id, flow.checkpoints))
        self._permitted = self._permits

    def _concerned(self, event: CoordinatorEvent) -> list[ServedFlow]:
        """The flows that an event is about."""
        if isinstance(event, WorkerSaid) and isinstance(event.message, OfShare):
            flow = self.cluster.flows.get(event.message.flow)
            return [] if flow is None else [flow]
        return list(self.cluster)

    def _unless_others_may_go_on(self, flows: list[ServedFlow]) -> list[ServedFlow]:
        """These flows, or all, if what they may do has changed since the last step."""
        return flows if self._permits == self._permitted else list(self.cluster)

    @property
    def _permits(self) -> tuple[object, ...]:
        """What decides, for all flows, on what they may do."""
        return (
            self._rescales.stage,
            self._opens_epochs,
            self._meetings.have_all_met,
            self._leader.is_settled,
            self._changes.standing,
            [flow.id for flow in self.cluster if flow.is_building or flow.stands_aside],
            len(self.cluster.flows),
        )

    @property
    def _waits_for_links(self) -> bool:
        """coordinator.anew_when_met: whether all workers are there, and some link between two of them is broken."""
        is_broken = bool(self._meetings.broken) and self.cluster.in_step
        return is_broken and self._rules.coordinator_anew_when_met

    @property
    def broken_links(self) -> tuple[tuple[WorkerId, WorkerId], ...]:
        """As :attr:`Meetings.broken`."""
        return self._meetings.broken

    def _begin_anew(self) -> None:
        """All shares of torn flows begin anew. If standbys are about to take over from a worker, they cannot any more:
        so all flows do."""
        if self._leader.takes_over:
            for flow in self.cluster:
                flow.tear()
        self._rescales.begin_anew([flow for flow in self.cluster if flow.is_torn])

    def _take_checkpoint(self, flow: ServedFlow) -> None:
        """Begin a checkpoint that is due."""
        flow.checkpoints.drop_outgrown()
        if self._may_checkpoint(flow):
            flow.checkpoints.begin()

    def _take_snapshots(self, flow: ServedFlow) -> None:
        """Take the snapshots that wait. Those of a flow that is built wait until it has caught up."""
        if flow.is_building:
            return
        if self._rescales.permits.scans:
            flow.scans.take_now()
        elif self._rescales.holds_still and flow.is_quiet():
            flow.scans.take_still()

    def _open_epochs(self, flow: ServedFlow) -> None:
        """Open what the flow's workers may have."""
        rescales = self._rescales
        opens = self._opens_epochs and not (self._changes.holds(flow) or self.cluster.waits_to_be_built(flow))
        if flow.stands_aside:
            return
        if rescales.in_lock_step or flow.in_step:
            if not (rescales.in_lock_step or flow.ledger.is_staged):  # workers that are behind catch up
                flow.open_ahead(flow.opened)
            ready = opens and (not flow.in_step or (self._meetings.have_all_met and flow.speaks_as_one()))
            if ready and not (flow.scans.wants_pause and rescales.holds_still):
                rescales.open_next(flow)
        else:  # while nothing new is opened, workers that are behind get the epochs that other workers had
            flow.open_ahead(flow.ledger.published if opens else flow.opened)

    def _adopt_segments(self, flows: list[ServedFlow]) -> None:
        for flow in flows:
            if flow.ledger.epochs.has_waiting:
                flow.adopt_segments(self._cuts(flow))

    def _cuts(self, flow: ServedFlow) -> list[Epoch]:
        """The epochs as of whose end snapshots, a checkpoint and changes are being taken."""
        return [*flow.scans.cuts, *flow.checkpoints.cuts, *self._changes.cuts]

    @property
    def _opens_epochs(self) -> bool:
        """Whether epochs may be opened that no worker has had yet."""
        return self._rescales.opens_epochs and not (self._leader.wants_quiet() and self._may_change_hands)

    def _may_checkpoint(self, flow: ServedFlow) -> bool:
        """checkpoints.keys_stay: whether the app takes checkpoints, and no key moves or is about to."""
        if flow.chain is None or flow.is_torn or not self._leader.is_settled:
            return False
        return self._rescales.is_over or not self._rules.checkpoints_keys_stay

    def _may_take_changes(self) -> bool:
        """changes.keys_stay: whether no key moves or is about to."""
        if self.cluster.is_torn or not self._leader.is_settled:
            return False
        return self._rescales.is_over or not self._rules.changes_keys_stay

    @property
    def _is_uncut(self) -> bool:
        """Whether no worker has yet to come to the cut of a checkpoint or of changes."""
        return all(flow.checkpoints.is_idle for flow in self.cluster) and self._changes.is_idle

    @property
    def _may_replan(self) -> bool:
        """flows.change_between_rescales. Besides, the change log has all that is on its way."""
        is_between = self._rescales.is_over and not self._leader.takes_over
        return self._changes.is_settled and (is_between or not self._rules.flows_change_between_rescales)

    def _replan(self, change: ViewChange) -> None:
        """The views change: those that stay the same do not notice."""
        wanted = change.wanted
        self.cluster.know(wanted.epochs, change.since)
        for flow in self.cluster:
            left = [plan for plan in flow.views if plan not in wanted.plans]
            if len(left) == len(flow.views):
                self.cluster.drop(flow)
                self.cluster.act(*self._checkpoints.answered(flow.id, flow.checkpoints))
                continue
            for plan in left:
                self.cluster.leave(flow, plan.name)
                self._view_failed(flow, ViewFailed(view=plan.name, failure=ViewFailure.dropped(plan.name)))
        kept = self.cluster.plans
        added = [self.cluster.add(plan, wanted.begins.get(plan.name)) for plan in wanted.plans if plan not in kept]
        self._leader.flows_changed()
        for flow in added:
            self.cluster.build(flow)
            self._end_epochs(flow)  # those that a flow passes over which keeps only what is read
        self.cluster.see_what_ended()
        self.cluster.act(PlansTaken(ticket=wanted.ticket))

    @property
    def _may_change_hands(self) -> bool:
        """Whether nothing is under way that forbids slices to change hands as the leader decides."""
        free = self._rescales.permits.rounds and self._is_uncut
        return free and not (self.cluster.is_scanned() or self.cluster.is_torn)

    def _let_slices_change_hands(self) -> None:
        """Slices change hands by a rescale or a decision of the leader. After the latter all workers meet again: they
        speak as another generation."""
        waits = len(self._rescales.queue) > 0
        self._rescales.advance(takes_up=waits and not self._wanted and self._is_uncut and self._leader.is_settled)
        if self._leader.advance(channels=self._meetings.have_all_met, may_change_hands=self._may_change_hands):
            self._meetings.forget()

    def _links_overdue(self, time: int) -> None:
        """coordinator.move_cut_off: not where no flow needs the links, and not while another worker is lost, too."""
        if self._rules.coordinator_move_cut_off:
            self._meetings.overdue(time, may_move=self.cluster.in_step and self.cluster.places.is_filled())

    def _see_that_all_have_met(self) -> None:
        """With exchange edges, no epoch is opened before every worker has a channel to every other
        (coordinator.anew_when_torn). If links are broken, workers meet again in any case: whether they still are."""
        is_due = self._rescales.permits.meetings and not (self._meetings.is_of_all or self._meetings.is_postponed)
        if is_due and self.cluster.speaks_no_more():
            self._meetings.call(Strategy.ICADD, None)

    # Members

    def _registered(self, event: WorkerRegistered) -> None:
        old = self.cluster.processes.get(event.worker)
        if old is not None and not self._stopping:
            self.cluster.places.tell(old, Retire())
            self._gone(old.incarnation)  # which may end the rescale, and with it the place
            self._leader.lease_over(old.incarnation)
        joins = self._rescales.awaits(event.worker) or self._leader.awaits(event.worker)
        if self._stopping or not (joins or event.worker in self.cluster.workers):
            self.cluster.act(Tell(incarnation=event.incarnation, message=Retire()))
            return
        if event.died_in is not None:
            self._count_death(event.worker, event.died_in)
        self._leader.came(event.worker)
        process = WorkerProcess(
            worker=event.worker, incarnation=event.incarnation, address=event.address, instance=event.instance
        )
        self.cluster.places.enter(process)
        if not joins:
            self.cluster.assign_place(process)

    def _count_death(self, worker: WorkerId, step: FlowStep) -> None:
        """flows.fail_when_deadly: each place counts for itself, because an executor takes several workers along when
        it dies."""
        flow = self.cluster.flows.get(step.flow)
        if flow is None or not self._rules.flows_fail_when_deadly:
            return
        if flow.count_death(worker, step.epoch) < DEATHS_MAX:
            return
        error = ViewCrashed(
            f"the process of worker {worker} has died {DEATHS_MAX} times running while it computed the view at epoch"
            f" {step.epoch}. Perhaps it takes too much memory, or DuckDB or Arrow crashes on its rows: the executor's"
            " log says more. Drop the view, and declare it otherwise, or again if the cause is gone"
        )
        for plan in flow.plans:
            self._view_failed(flow, ViewFailed(view=plan.name, failure=ViewFailure.of(error, f"view {plan.name!r}")))

    def _gone(self, incarnation: Incarnation) -> None:
        process = self.cluster.places.of_incarnation(incarnation)
        if process is None:
            return
        permits, is_torn = self._rescales.permits, self.cluster.is_torn
        others_take_over = permits.take_over and not is_torn and self._leader.can_replace(process.worker)
        if not (self._stopping or others_take_over):
            self._tear(self.cluster)  # while it is known what was opened for it
        self._give_up_cuts()
        self.cluster.remove(process.worker)
        if self._stopping:
            return
        if others_take_over:
            self._leader.lost(process)
        else:
            self._give_up(process)

    def _give_up(self, process: WorkerProcess) -> None:
        """No standby takes over from the worker: another one begins in its place."""
        self._leader.given_up(process)
        self._rescales.lost(process)
        self._assign_who_waits()

    def _assign_who_waits(self) -> None:
        """A worker that waits in a place whose slices standbys could not take over keeps them after all."""
        for worker in self.cluster.workers:
            process = self.cluster.processes.get(worker)
            if process is not None and not (process.assigned or self._rescales.awaits(worker)):
                self.cluster.assign_place(process)

    def _tear_at_channel(self) -> None:
        """A channel was lost. Between two epochs no row is on its way."""
        self._tear([flow for flow in self.cluster if not flow.is_quiet()])

    def _tear(self, flows: Iterable[ServedFlow]) -> None:
        """A worker or a channel was lost, and exchanged rows of these flows perhaps with it. While keys move, the
        rescale makes all workers begin anew. Before the first epoch there is nothing to lose. Flows without exchanges
        go on."""
        if self._rescales.in_lock_step or not self._rules.coordinator_anew_when_torn:
            return
        for flow in flows:
            if flow.ledger.is_staged and flow.has_begun:
                flow.checkpoints.torn()
                self._changes.torn()
                flow.tear()

    # Workers' messages

    def _said(self, event: WorkerSaid) -> None:
        process = self.cluster.places.of_incarnation(event.incarnation)
        if process is None:
            if self._rules.coordinator_current_incarnation_only or not self.cluster.processes:
                return
            process = self.cluster.places.by_worker()[0]
        match event.message:
            case OfShare(flow=number, message=message):
                self._share_said(process, number, message)
            case MetPeers() as message:
                self._meetings.met(process, message)
            case PeersLost() as message:
                if self._meetings.lost(process, message):
                    self._channel_lost(process, message)
            case Here() as message:
                if self._leader.here(message):
                    self._tear_at_channel()
            case HeldUp(error=error):
                process.held_up = error
            case WorkerLoad():
                pass  # for users: the runtime shows it
            case WorkerFailed() as message:
                self._worker_failed(process, message)

    def _share_said(self, process: WorkerProcess, number: FlowId, message: FromShare) -> None:
        """flows.gone_stays_gone: what comes of a flow that is gone changes nothing."""
        flow = self.cluster.flows.get(number)
        member = None if flow is None else flow.members.get(process.worker)
        if flow is None or member is None:
            return
        if isinstance(message, StartedAnew):
            member.heard(message, keeps_highest=self._rules.coordinator_late_reports_change_nothing)
        if self._is_heard(flow, member, message):
            self._heard(flow, member, process, message)

    def _is_heard(self, flow: ServedFlow, member: Member, message: FromShare) -> bool:
        """worker.own_generation_only: a message of an earlier generation counts only if the share has evicted, or has
        ended a feed. A view's failure counts until all shares begin anew. Raises ProtocolError for an epoch that the
        share was never sent."""
        current = member.generation == flow.generation.number or not self._rules.worker_own_generation_only
        current |= isinstance(message, ViewFailed) and member.generation >= flow.generation.born
        if current and self._rules.coordinator_late_reports_change_nothing:
            _check_sent(member, message)
        return current or isinstance(message, Evicted | FeedEnded)

    def _heard(self, flow: ServedFlow, member: Member, process: WorkerProcess, message: FromShare) -> None:
        member.heard(message, keeps_highest=self._rules.coordinator_late_reports_change_nothing)
        match message:
            case EpochFinished():
                flow.ledger.finished(member.worker, message)
            case Evicted():
                self._evictions.done(member.incarnation, message.eviction)
            case RowsApplied():
                flow.ledger.applied(member.worker, message)
            case RowsSettled():
                flow.ledger.settled(member.worker, message)
            case StageDone():
                flow.ledger.stage_done(member.worker, message)
            case Unrestored():
                self._unrestored(flow, process, message)
            case CheckpointWritten():
                flow.checkpoints.written(member, message)
            case CheckpointNotTaken():
                flow.checkpoints.not_taken(member, message)
            case ChangesWritten():
                self._changes.written(flow, member.worker, message)
            case ChangesNotWritten():
                self._changes.not_written(message)
            case SnapshotTaken():
                flow.scans.taken(member, message)
            case SnapshotNotTaken():
                flow.scans.not_taken(message)
            case Still():
                flow.scans.still(member, message)
            case CaughtUp() | FeedEnded():
                self._leader.heard(flow, message)
            case Settled():
                self._rescales.settled(flow, process, message)
            case PeerLeft():
                self._rescales.peer_left(flow, process, message)
            case Moved():
                flow.scans.some_have_moved()
                self._rescales.moved(flow, message)
            case StartedAnew() | Counted() | KeysUnfilled() | Restored():
                pass  # the member has noted them
            case TookOver():
                pass  # for users: the runtime shows it
            case ViewFailed():
                self._view_failed(flow, message)

    def _worker_failed(self, process: WorkerProcess, message: WorkerFailed) -> None:
        """Replace the worker, whatever the error: a full disk gets room again, a file is repaired. A row that breaks a
        view is no failure of the worker. Each restart waits longer, so a worker that always fails costs little."""
        if self._rules.workers_failed_are_replaced:  # workers.failed_are_replaced
            self.cluster.act(ReplaceWorker(incarnation=process.incarnation, error=message.error))
        else:
            self.cluster.act(AppFailed(kind=message.kind, error=message.error))

    def _unrestored(self, flow: ServedFlow, process: WorkerProcess, message: Unrestored) -> None:
        """checkpoints.damaged_is_skipped: the share begins with an older checkpoint, or with nothing. Where workers
        speak to each other, or have only just begun, all shares of the flow do so."""
        flow.checkpoints.damaged(message)
        has_just_begun = flow.ledger.through > flow.ledger.ended
        if has_just_begun:
            flow.ledger.resume(flow.start_at)
        if has_just_begun or flow.in_step or not self._rescales.is_over:
            flow.tear()
        else:
            flow.assign_place(process)

    def _view_failed(self, flow: ServedFlow, message: ViewFailed) -> None:
        """views.fail_everywhere: the view fails at all workers, also at later ones. The first failure counts."""
        if message.view in flow.failed or message.view not in [plan.name for plan in flow.plans]:
            return
        for view, failure in flow.fail(message.view, message.failure).items():
            if self._rules.views_fail_everywhere:  # views.fail_everywhere
                flow.tell_all(FailView(view=view, failure=failure))

    def _channel_lost(self, process: WorkerProcess, message: PeersLost) -> None:
        """If the peer may be lost and standbys can take over from it, the coordinator probes it first."""
        is_torn = self.cluster.is_torn
        if not (self._rescales.permits.take_over and not is_torn and self._leader.doubts(message.peer)):
            self._tear_at_channel()
        self._rescales.channel_lost(process, message)

    def _fail_miscounted(self, flow: ServedFlow) -> None:
        for view, what in flow.ledger.miscounted.items():
            where = f"view {view!r}: its rows are miscounted, which is a fault of Upriver"
            self._view_failed(flow, ViewFailed(view=view, failure=ViewFailure.of(ProtocolError(what), where)))

    def _end_epochs(self, flow: ServedFlow) -> None:
        ledger = flow.ledger
        flow.forget_deaths()
        due = ledger.stage_due(flow.workers)
        if due is not None:
            epoch, stage = due
            for worker in flow.workers:
                flow.tell(flow.members[worker], BeginStage(epoch=epoch, stage=stage))
        if flow.is_complete():
            passed = ledger.end_what_was_passed_over()
            self.cluster.act(*(EpochEnded(flow=flow.id, epoch=epoch) for epoch in passed))
        before = ledger.ended
        following = ledger.next
        if following is None or not flow.feeds.have(following):  # replication.epoch_waits_for_followers
            return
        for epoch in ledger.end(flow.workers):
            self._faults = 0
            if epoch > before:  # else the workers repeat it
                self.cluster.act(EpochEnded(flow=flow.id, epoch=epoch))
            if self._rescales.in_lock_step or flow.in_step:
                flow.tell_all(EpochOver(epoch=epoch))


def _check_sent(member: Member, message: FromShare) -> None:
    """Raise ProtocolError for the report of an epoch that the share was never sent."""
    counts = EpochFinished | RowsApplied | RowsSettled | StageDone
    if isinstance(message, counts) and message.epoch > member.sent:
        raise ProtocolError(f"worker {member.worker} reports epoch {message.epoch}, and was sent {member.sent}")
