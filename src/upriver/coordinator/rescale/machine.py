"""The machine of rescales, from request to end; rules coordinator.lock_step, coordinator.between_epochs and
coordinator.leave_when_dry.

A rescale waits until a control record says what it leads to (``Recording``). Then the joining workers come up
(``Starting``), and all members open channels to each other (``Meeting``). It then waits until every open epoch has
ended (``Draining``). Then keys move (``Moving``), until all workers have settled what they were told; each epoch opens
when all before it have ended. ``restart`` moves nothing: all workers begin anew by the new map and read everything
again (``Reloading``). When a worker is lost while keys move, all begin anew by the old map. With ``learner``, slices
change hands one by one, as the leader decides, while everything goes on (``Learning``). Then the staying workers meet
without the leavers, so that none of them depends on a leaver (``Parting``). ``docs/internals/rescale.md``.

``RescaleQueue``: the rescales that wait, in the order of the requests (icadd.one_rescale_at_a_time).
"""

from collections.abc import Collection, Mapping
from dataclasses import replace

from upriver.coordinator.cluster import Cluster, ServedFlow
from upriver.coordinator.control import Control
from upriver.coordinator.meetings import Meetings
from upriver.coordinator.places import WorkerProcess, listed
from upriver.coordinator.replication import Leader
from upriver.coordinator.rescale.plan import AnnouncedPlan, RescalePlan, first
from upriver.coordinator.rescale.stages import (
    PERMITS,
    AcceptedRescale,
    Draining,
    Idle,
    Learning,
    Meeting,
    Moving,
    Parting,
    Permits,
    Recording,
    Reloading,
    Stage,
    Starting,
)
from upriver.errors import DeclarationError, IllegalEvent, UpriverError, WorkerLost
from upriver.ids import MapVersion, WorkerId
from upriver.migration.events import AbortAsked, RescaleAnnounced
from upriver.protocol.coordinator_events import (
    AbortWanted,
    ControlUnwritten,
    DrainBegun,
    RescaleEnded,
    RescaleOutcome,
    RescaleWanted,
    StartWorkers,
)
from upriver.protocol.messages import CloseInput, MigrationOrder, Moved, PeerLeft, PeersLost, Retire, Settled
from upriver.protocol.strategies import Strategy
from upriver.vnodes import VnodeMap, resized

QUEUE_REQUESTS_MAX = 16
"""Requests that wait; one more is refused."""


class RescaleQueue:
    """The requests that wait for their turn."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._waiting: list[RescaleWanted] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, request: RescaleWanted) -> None:
        """Queue a request, or refuse it if it cannot be met or there is no room."""
        if request.strategy is Strategy.LEARNER and request.moves is not None:
            self._refuse(request, "strategy 'learner' finds the places of slices by itself: give a number of workers")
        elif len(self._waiting) >= QUEUE_REQUESTS_MAX:
            self._refuse(request, f"{QUEUE_REQUESTS_MAX} rescales wait already")
        else:
            self._waiting.append(request)

    def take(self) -> tuple[RescaleWanted, RescalePlan] | None:
        """The next request, and what it comes to. ``None`` if it cannot be met: then it is refused."""
        request, cluster = self._waiting.pop(0), self._cluster
        if not cluster.maps:
            self._refuse(request, "there is no view, and so nothing to rescale")
            return None
        try:
            workers = resized(cluster.places.staying(request.workers), request.workers)
            return request, RescalePlan.made(cluster.maps, cluster.workers, workers, request.moves)
        except DeclarationError as error:
            self._refused(request, error)
            return None

    def drop(self, ticket: int) -> bool:
        """Withdraw a request. Returns whether it was in the queue."""
        left = [request for request in self._waiting if request.ticket != ticket]
        has_waited, self._waiting = len(left) < len(self._waiting), left
        if has_waited:
            self._cluster.act(RescaleEnded(ticket=ticket, outcome=RescaleOutcome.ABORTED, vnodes=0))
        return has_waited

    def _refuse(self, request: RescaleWanted, why: str) -> None:
        self._refused(request, DeclarationError(why))

    def _refused(self, request: RescaleWanted, error: DeclarationError) -> None:
        refused = RescaleEnded(ticket=request.ticket, outcome=RescaleOutcome.REFUSED, vnodes=0, error=error)
        self._cluster.act(refused)


class RescaleMachine:
    """The coordinator calls ``advance`` after every step, the other methods when their event happens."""

    def __init__(self, cluster: Cluster, meetings: Meetings, leader: Leader, control: Control) -> None:
        self.stage: Stage = Idle()
        self.queue = RescaleQueue(cluster)
        self._cluster = cluster
        self._leader = leader
        self._meetings = meetings
        self._control = control

    @property
    def is_over(self) -> bool:
        """Whether no rescale is on."""
        return isinstance(self.stage, Idle)

    @property
    def permits(self) -> Permits:
        """What else may go on."""
        return PERMITS[type(self.stage)]

    @property
    def opens_epochs(self) -> bool:
        """Whether epochs may be opened that no worker has had yet. Before keys move, before leavers take leave and
        before the end, each flow's open epoch has to end."""
        match self.stage:
            case Draining():
                return not self._cluster.rules.coordinator_between_epochs
            case Starting(drains=drains):
                return not (drains and any(flow.ledger.is_staged for flow in self._cluster.taking_part))
            case Moving(announced=announced, leaving=leaving):
                return not (self._cluster.rules.coordinator_lock_step and (leaving or announced.is_over))
            case Learning():
                return not self._leader.has_learned
        return True

    @property
    def _have_ended_stages(self) -> bool:
        """Whether no epoch is open that goes through stages."""
        return all(flow.is_quiet() for flow in self._cluster.taking_part if flow.ledger.is_staged)

    def _are_all_here(self, stage: Starting) -> bool:
        """Whether every worker is up, those that join too."""
        return self._cluster.processes.keys() >= {*self._cluster.workers, *stage.rescale.plan.joining}

    @property
    def in_lock_step(self) -> bool:
        """coordinator.lock_step: whether epochs are opened when those before them have ended."""
        return isinstance(self.stage, Moving) and self._cluster.rules.coordinator_lock_step

    @property
    def holds_still(self) -> bool:
        """Whether keys that move can be told to stop where they are."""
        return isinstance(self.stage, Moving) and self.stage.rescale.request.strategy.holds_still

    def awaits(self, worker: WorkerId) -> bool:
        """Whether the worker is joining: it is told what it keeps when all workers are there."""
        return isinstance(self.stage, Starting | Draining) and worker in self.stage.rescale.plan.joining

    # Users' requests

    def abort_wanted(self, event: AbortWanted) -> None:
        """Abort the rescale. A restart that is reloading goes on: by then, no map says which keys are back."""
        if self.queue.drop(event.ticket) or not self._is_current(event.ticket):
            return
        match self.stage:
            case Learning(rescale, before):
                # The workers that joined leave again. Slices that have moved to staying workers remain there.
                self._leader.learn(rescale.plan.joining)
                self.stage = Learning(rescale, before, RescaleOutcome.ABORTED)
                self._control.abandon(rescale.plan)
            case Moving(announced=announced, is_aborted=False) as stage if not announced.is_over:
                stage.is_aborted = True
                self._control.abandon(announced.plan)
                for worker, region in announced.unsettled():
                    self._order(worker, region, AbortAsked(version=announced.plan.version))
            case Recording(rescale) | Starting(rescale) | Meeting(rescale) | Draining(rescale):
                self._send_joiners_home(rescale.plan)
                self._end(rescale, RescaleOutcome.ABORTED, 0)

    def unrecorded(self, event: ControlUnwritten) -> None:
        """The lake does not take a control record. A rescale that waits for it is refused."""
        match self.stage:
            case Recording(rescale, number) if number <= event.number:
                self._end(rescale, RescaleOutcome.REFUSED, 0, event.error)

    def drain_overdue(self, ticket: int) -> None:
        """The rescale no longer waits for flows whose open epochs have not ended."""
        is_starting = isinstance(self.stage, Starting)
        if self._is_current(ticket) and isinstance(self.stage, Starting | Draining):
            for flow in self._cluster:
                if not flow.is_quiet() and (flow.ledger.is_staged or not is_starting):
                    flow.stand_aside()

    def overdue(self, ticket: int) -> None:
        """The rescale no longer waits for its leavers."""
        if self._is_current(ticket):
            self._leader.is_overdue()

    def _is_current(self, ticket: int) -> bool:
        return not isinstance(self.stage, Idle) and self.stage.rescale.request.ticket == ticket

    # Workers' messages

    def moved(self, flow: ServedFlow, message: Moved) -> None:
        if isinstance(self.stage, Moving):
            self.stage.handover.gone(flow.name_of(message.region), message.gone)

    def settled(self, flow: ServedFlow, process: WorkerProcess, message: Settled) -> None:
        stage, region = (
            self._moving(f"worker {process.worker} settled {message.region!r}"),
            flow.name_of(message.region),
        )
        if stage is None or self._is_late(stage.announced.has_settled(process.worker, region, message.version)):
            return
        stage.announced = stage.announced.settled(process.worker, region, message.version, message.kept)
        if stage.announced.is_leaver(process.worker):
            stage.leaving[process.worker] = stage.announced.workers
            self._cluster.read_by(first(stage.announced.maps))
        self._tidy(stage)

    def peer_left(self, flow: ServedFlow, process: WorkerProcess, message: PeerLeft) -> None:
        stage, region = (
            self._moving(f"worker {message.peer} left worker {process.worker}"),
            flow.name_of(message.region),
        )
        if stage is None or self._is_late(stage.announced.has_left(process.worker, region, message.peer)):
            return
        stage.announced = stage.announced.peer_left(process.worker, region, message.peer)
        self._tidy(stage)

    def _is_late(self, is_over: bool) -> bool:
        """Whether the machine ignores reports of something that is over."""
        return is_over and self._cluster.rules.coordinator_late_reports_change_nothing

    def _moving(self, what: str) -> Moving | None:
        """The current stage; ``None`` if no keys move any more. Raises IllegalEvent then, if such a report counts."""
        if isinstance(self.stage, Moving):
            return self.stage
        if not self._is_late(True):
            raise IllegalEvent(f"{what} unasked: the rescale is {type(self.stage).__name__}")
        return None

    def lost(self, process: WorkerProcess) -> None:
        """A worker is lost. While keys move, its state may have been on its way, so all workers begin anew. Before
        that, the rescale waits for another one in its place."""
        match self.stage:
            case Moving(rescale, announced):
                why = f"worker {process.worker} was lost; all workers start anew by the old map"
                self._fail(rescale, announced.plan, why)
            case Starting(rescale, left) | Meeting(rescale, left) | Draining(rescale, left):
                if process.worker in rescale.plan.joining:
                    self._cluster.leave_out([process.worker])
                self._begin_again(rescale, left)

    def begin_anew(self, flows: Collection[ServedFlow]) -> None:
        """All shares of these flows begin anew, not because of this rescale. The rescale, which moves no keys yet, goes
        on."""
        assert not isinstance(self.stage, Moving)
        for flow in flows:
            self._start_flow_anew(flow)
        if len(flows) == len(self._cluster.flows):
            self._meetings.forget()
            self._leader.all_began_anew()
        match self.stage:
            case Meeting(rescale, left) | Draining(rescale, left):
                self._begin_again(rescale, left)

    def _begin_again(self, rescale: AcceptedRescale, meetings_left: int) -> None:
        """Wait for all workers again. Flows that were not to be waited for may end their epochs meanwhile."""
        for flow in self._cluster:
            flow.join_in()
        self.stage = Starting(rescale, meetings_left)

    def channel_lost(self, process: WorkerProcess, message: PeersLost) -> None:
        """A channel is lost. While keys move, messages may be lost with it. Before that, workers only open it again."""
        why = f"worker {process.worker}: {message.why}"
        match self.stage:
            case Moving(rescale, announced):
                self._fail(rescale, announced.plan, f"{why}; all workers start anew by the old map")
            case Meeting(rescale, 0) | Draining(rescale, 0):
                self._send_joiners_home(rescale.plan)
                self._end(rescale, RescaleOutcome.FAILED, 0, WorkerLost(f"{why}; no key has moved"))
            case Meeting(rescale, left) | Draining(rescale, left):
                self._begin_again(rescale, left - 1)

    @property
    def waits_for(self) -> str | None:
        """What the current rescale waits for before keys move, in words for users; ``None`` once they move, and if no
        rescale is on."""
        cluster = self._cluster
        match self.stage:
            case Recording():
                return "the lake, to record the rescale"
            case Starting(rescale):
                missing = {*cluster.workers, *rescale.plan.joining} - cluster.processes.keys()
                return f"{listed(missing)} to start" if missing else self._open_epochs
            case Meeting():
                return f"{listed(self._meetings.lacking)} to reach all other workers"
            case Draining():
                return self._open_epochs if cluster.is_complete() else "all workers to restore their state"
        return None

    @property
    def vnodes_handed_over(self) -> int:
        """How many vnodes answer at their new workers already, while the current rescale moves them. Another thread may
        call it."""
        match self.stage:
            case Moving(rescale, is_aborted=False):
                before, after = first(rescale.plan.before), first(rescale.plan.after)
                owners = self._cluster.reading.owners
                return sum(owners[vnode] == now for vnode, (_, now) in before.diff(after).items())
            case Learning(before=before):
                return len(before.diff(self._cluster.reading))
        return 0

    @property
    def _open_epochs(self) -> str:
        flows = self._cluster.taking_part
        late = [member for flow in flows for member in flow.by_worker() if member.finished < member.sent]
        if not late:
            return "snapshots to be taken" if self._cluster.is_scanned() else "the last epoch to end"
        through = max(member.sent for member in late)
        return f"{listed({member.worker for member in late})} to finish epoch {through}"

    # From stage to stage

    def open_next(self, flow: ServedFlow) -> None:
        """coordinator.lock_step: open the flow's next epoch, if every open one has ended. Slices that have moved are
        read at their new owners."""
        if not flow.may_open_next:
            return
        keys_move = isinstance(self.stage, Moving)
        if isinstance(self.stage, Moving) and not self.stage.leaving:
            reading = self.stage.handover.take()
            if reading is not None:
                self._cluster.read_by(reading)
        flow.open_next(keys_move=keys_move)

    def advance(self, *, takes_up: bool) -> None:
        """Go on to the next stage, if this one is finished. takes_up: a waiting request may begin."""
        before = None
        while before != (self.stage, len(self.queue)):
            before = self.stage, len(self.queue)
            self._advance(takes_up)

    def _advance(self, takes_up: bool) -> None:
        cluster = self._cluster
        match self.stage:
            case Idle() if self.queue and takes_up:
                self._take_up()
            case Recording(rescale, number) if self._control.through >= number:
                self._begin(rescale)
            case Starting(drains=False) as stage if self._are_all_here(stage):
                self._drain(stage.rescale)
                self.stage = replace(stage, drains=True)
            case Starting() as stage if self._are_all_here(stage) and self._have_ended_stages:
                self._meet(stage)
            case Meeting() as stage if self._meetings.is_over:
                self._met(stage)
            case Draining(rescale):
                quiet = cluster.is_quiet() and not cluster.is_scanned()
                if quiet or not cluster.rules.coordinator_between_epochs:
                    self._drained(rescale)
            case Moving() as stage:
                self._part_or_settle(stage)
            case Learning() as stage if self._has_learned():
                self._part(stage)
            case Parting() as stage if self._meetings.is_over:
                self._parted(stage)
            case Reloading(rescale, until, vnodes) if all(
                flow.has_caught_up(until[flow.id]) for flow in cluster if flow.id in until
            ):
                self._end(rescale, RescaleOutcome.FINISHED, vnodes)

    def _take_up(self) -> None:
        """A request's turn has come."""
        taken = self.queue.take()
        if taken is None:
            return
        request, plan = taken
        rescale = AcceptedRescale(request, plan)
        if plan.changes_nothing:
            self._settle(rescale, plan.before, plan.old, RescaleOutcome.FINISHED)
            return
        number = self._control.begin(plan, rescale.begun)
        if self._cluster.rules.control_record_before_begin:  # control.record_before_begin
            self.stage = Recording(rescale, number)
        else:
            self._begin(rescale)

    def _begin(self, rescale: AcceptedRescale) -> None:
        """The lake knows what the rescale leads to."""
        self._cluster.act(rescale.begun)
        if joining := rescale.plan.joining:
            self._cluster.act(StartWorkers(workers=joining))
        self.stage = Starting(rescale)

    def _meet(self, stage: Starting) -> None:
        """All workers are there. Joining workers take part in epochs from now on, though they keep and read nothing. A
        restart needs neither them nor channels before it is done."""
        cluster, request, joining = self._cluster, stage.rescale.request, stage.rescale.plan.joining
        if request.strategy is Strategy.RESTART:
            self._drain(stage.rescale)
            self.stage = Draining(stage.rescale, stage.meetings_left)
            return
        for worker in joining:
            cluster.join(cluster.processes[worker])
        cluster.admit(joining)
        by = Strategy.ICADD if request.strategy is Strategy.LEARNER else request.strategy
        self._meetings.call(by, request.keys_max)
        self.stage = Meeting(stage.rescale, stage.meetings_left)

    def _met(self, stage: Meeting) -> None:
        """All workers have channels to each other."""
        rescale = stage.rescale
        if rescale.request.strategy is Strategy.LEARNER:
            self._leader.learn(set(rescale.plan.old) - set(rescale.plan.new))
            self.stage = Learning(rescale, self._cluster.reading, RescaleOutcome.FINISHED)
        else:
            self._drain(rescale)
            self.stage = Draining(rescale, stage.meetings_left)

    def _drain(self, rescale: AcceptedRescale) -> None:
        """Let each flow's open epochs end. A flow that is built is not waited for."""
        for flow in self._cluster:
            if flow.is_building:
                flow.stand_aside()
        self._cluster.act(DrainBegun(ticket=rescale.request.ticket))

    def _drained(self, rescale: AcceptedRescale) -> None:
        """The flows that take part are quiet: their keys move, or all workers begin anew by the new map."""
        self._leader.keys_move()
        regions = {flow.name_of(region) for flow in self._cluster.taking_part for region in flow.maps}
        if rescale.request.strategy is Strategy.RESTART or not regions:
            vnodes = self._cluster.adopt(rescale.plan.after, rescale.plan.new)
            self._start_anew()
            until = {flow.id: flow.ledger.ended for flow in self._cluster}
            self.stage = Reloading(rescale, until, vnodes)
        else:
            self.stage = Moving.begun(replace(rescale, plan=rescale.plan.of(regions)))
            self._announce(self.stage.announced)

    # Moving

    def _announce(self, announced: AnnouncedPlan) -> None:
        for worker, region in announced.unsettled():
            self._order(worker, region, announced.order(region))

    def _order(self, worker: WorkerId, name: str, order: RescaleAnnounced | AbortAsked) -> None:
        flow, region = self._cluster.region(name)
        flow.tell(flow.members[worker], MigrationOrder(region=region, order=order))

    def _tidy(self, stage: Moving) -> None:
        """After an abort, one more round gives all regions one map and retires the workers that own nothing."""
        if stage.is_aborted and stage.announced.is_over:
            tidying = stage.announced.tidying()
            if tidying is not None:
                stage.announced = AnnouncedPlan.of(tidying)
                self._announce(stage.announced)

    def _part_or_settle(self, stage: Moving) -> None:
        """Close the input of leavers between two epochs. When all keys have moved, only the open epoch has to end."""
        cluster, leaving, announced = self._cluster, stage.leaving, stage.announced
        if cluster.is_quiet() or not cluster.rules.coordinator_leave_when_dry:
            for worker in sorted(leaving):
                cluster.leave_out([worker])
                flows = tuple(flow.id for flow in cluster.taking_part)
                cluster.places.tell(cluster.processes[worker], CloseInput(flows=flows, peers=leaving[worker]))
            leaving.clear()
        are_pending = any(flow.scans.are_pending for flow in cluster)  # a leaver may hold a part of one
        at_end = cluster.is_quiet() and not are_pending
        if announced.is_over and (at_end or not cluster.rules.coordinator_lock_step):
            outcome = RescaleOutcome.ABORTED if stage.is_aborted else RescaleOutcome.FINISHED
            self._settle(stage.rescale, announced.maps, announced.workers, outcome)

    # Learning

    def _has_learned(self) -> bool:
        """Whether the leavers hold nothing any more, and nothing is under way."""
        has_learned = self._leader.has_learned and self._meetings.have_all_met
        return has_learned and self._cluster.is_quiet() and not self._cluster.is_scanned()

    def _part(self, stage: Learning) -> None:
        cluster, leaving = self._cluster, self._leader.leaving
        leavers = [cluster.remove(worker) for worker in sorted(leaving & cluster.processes.keys())]
        cluster.leave_out(leaving)
        if leavers:
            cluster.lose_changes()
            self._meetings.call(Strategy.ICADD, None)
        self.stage = Parting(stage.rescale, stage.before, stage.outcome, tuple(leavers))

    def _parted(self, stage: Parting) -> None:
        for leaver in stage.leavers:
            self._cluster.places.tell(leaver, Retire())
        self._leader.stop_learning()
        self._end(stage.rescale, stage.outcome, len(stage.before.diff(self._cluster.reading)))

    # The end

    def _settle(
        self,
        rescale: AcceptedRescale,
        maps: Mapping[str, VnodeMap],
        workers: tuple[WorkerId, ...],
        outcome: RescaleOutcome,
    ) -> None:
        """All keys are at their new owners: these maps and workers hold from now on."""
        vnodes = self._cluster.adopt(maps, workers)
        self._cluster.read_by(self._cluster.reading)
        for flow in self._cluster:
            flow.scans.all_have_moved()
            if flow.join_in():
                self._start_flow_anew(flow)
        self._end(rescale, outcome, vnodes)

    def _start_anew(self) -> None:
        for flow in self._cluster:
            self._start_flow_anew(flow)
        self._meetings.forget()
        self._leader.all_began_anew()

    def _start_flow_anew(self, flow: ServedFlow) -> None:
        flow.join_in()
        flow.scans.start_anew()
        flow.start_anew()
        self._leader.flow_began_anew(flow)

    def _fail(self, rescale: AcceptedRescale, told: RescalePlan, why: str) -> None:
        """Go back to the old map: state on its way is lost, and every worker reads everything again. told: the last
        plan that workers may know."""
        cluster, version = self._cluster, MapVersion(told.version + 1)
        cluster.go_by({region: VnodeMap(version, vnode_map.owners) for region, vnode_map in cluster.maps.items()})
        self._send_joiners_home(rescale.plan)
        self._start_anew()
        self._end(rescale, RescaleOutcome.FAILED, 0, WorkerLost(why))

    def _send_joiners_home(self, plan: RescalePlan) -> None:
        """Retire the workers that joined: the workers are those of before the rescale."""
        cluster = self._cluster
        for joiner in cluster.go_back_to(plan.old):
            cluster.places.tell(joiner, Retire())
        self._meetings.forget()  # a worker may have been told to meet one that goes

    def _end(
        self, rescale: AcceptedRescale, outcome: RescaleOutcome, vnodes: int, error: UpriverError | None = None
    ) -> None:
        self.stage = Idle()
        for flow in self._cluster:
            flow.join_in()
        self._control.end(RescaleEnded(ticket=rescale.request.ticket, outcome=outcome, vnodes=vnodes, error=error))
