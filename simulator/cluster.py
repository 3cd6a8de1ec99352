"""The machines of a simulated cluster and the channels between them; what the machines want done is done here."""

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from random import Random
from typing import assert_never

from simulator import checkers
from simulator.bad_rows import BadRows, StepKilled
from simulator.change_store import FakeChangeLog
from simulator.checkers import require
from simulator.clients import answers_apart, as_clients_ask
from simulator.control_store import FakeControl
from simulator.fake_checkpoints import FakeCheckpoints
from simulator.lake import FakeLake
from simulator.lookup_observer import LookupObserver
from simulator.network import Network
from simulator.oracle import Oracle
from simulator.other_flows import OtherFlows
from simulator.process import Process, SharePart
from simulator.rescale_observer import RescaleObserver
from simulator.tables import NO_RETENTION, RowSource
from simulator.view_observer import ViewObserver
from simulator.watcher import Watcher
from upriver.coordinator.control import placement_at_start
from upriver.coordinator.coordinator import CoordinatorMachine
from upriver.coordinator.group import MembershipConfig
from upriver.coordinator.replication import NO_STANDBYS
from upriver.errors import NotWritten
from upriver.ids import BEGINNING, Epoch, FlowId, Incarnation, WorkerId
from upriver.lake.spans import EpochSpan, single, span_after
from upriver.migration.messages import Acquire
from upriver.plan.flows import as_one, readers_of
from upriver.plan.plan import NOT_WANTED, TableSpec
from upriver.plan.retention import Retain
from upriver.protocol.coordinator_events import (
    AppFailed,
    CheckpointFailed,
    CheckpointReady,
    CheckpointsFailed,
    CheckpointsTaken,
    CheckpointWanted,
    ControlUnwritten,
    CoordinatorAction,
    CoordinatorEvent,
    DrainBegun,
    EpochEnded,
    EpochPublished,
    EvictionOver,
    EvictWanted,
    ForgetCheckpoints,
    HorizonAsked,
    HorizonIs,
    LeaseOver,
    LinksBroken,
    LinksOverdue,
    MeetingDue,
    MeetingPostponed,
    MoveWorker,
    PlansTaken,
    PlansWanted,
    PublishChanges,
    PublishCheckpoint,
    ReplaceWorker,
    RescaleBegun,
    RescaleEnded,
    SegmentPublished,
    SegmentsRewritten,
    SnapshotAsked,
    SnapshotFailed,
    SnapshotReady,
    StartWorkers,
    Tell,
    WorkerGone,
    WorkerRegistered,
    WorkerSaid,
    WriteControl,
)
from upriver.protocol.messages import (
    Assign,
    DropFlow,
    EpochFinished,
    FlowStep,
    ForShare,
    FromWorker,
    Meet,
    OfShare,
    OpenEpoch,
    PeersLost,
    Resume,
    RowsApplied,
    StartedAnew,
    WorkerFailed,
)
from upriver.protocol.peers import Envelope, ForRegion, PeerLookupAnswered
from upriver.protocol.rules import Rules
from upriver.protocol.worker_events import (
    Answer,
    AnswerTogether,
    EpochRead,
    FetchRows,
    ForgetSnapshot,
    ForgetState,
    HoldSnapshot,
    LakeAnswer,
    LakeWish,
    LookupAsked,
    MeetPeers,
    PeerLost,
    PeerSaid,
    ReadEpoch,
    ReadKeys,
    ReadState,
    Refuse,
    Report,
    SealState,
    SendPeer,
    SetRowsAside,
    ShareHears,
    ShareWants,
    Stop,
    WorkerAction,
    WorkerEvent,
    WriteChanges,
    WriteState,
)
from upriver.vnodes import Placement, VnodeMap
from upriver.worker.held_events import Rest
from upriver.worker.regions import BuildRegion
from upriver.worker.step_mark import marked
from upriver.worker.worker import WorkerMachine

CROWD_KEYS = 1  # the views have few keys, and upqueries are to rest often
ROWS_MADE_UP = 1_000_000
ANSWER_ROWS = 2  # so are their rows: longer answers are read some rows at a time


class SimulatedCluster:
    """One coordinator, its workers' processes, and what is on its way between them.

    processes: all that run, or may still be heard of. latest: by place, the last process to come, running or not.
    trace: what has happened, in lines. torn: how likely a read goes wrong. memory_budget: of each worker.
    """

    def __init__(
        self,
        rng: Random,
        vnode_map: VnodeMap,
        view_observer: ViewObserver,
        rules: Rules,
        build_region: BuildRegion,
        takes_checkpoints: bool,
        membership: MembershipConfig = NO_STANDBYS,
        memory_budget: int | None = None,
        bad_rows: BadRows | None = None,
        retains: Mapping[str, Retain] = NO_RETENTION,
        outgrown_epochs: int | None = None,
    ) -> None:
        bad_rows = bad_rows or BadRows()
        vnodes = len(vnode_map.owners)
        self.trace: list[str] = []
        self.torn = 0.0
        self.spoil = 0.0
        self.free_slots = 0.0
        """How likely a file of the checkpoints is found damaged when a worker reads it."""
        self._damaged: set[tuple[str, Epoch]] = set()
        """Checkpoints, by the first view of a flow, with a file that is damaged from now on."""
        self.view_observer = view_observer
        possible, kept = tuple(view_observer.possible.values()), tuple(view_observer.kept.values())
        self.lake = FakeLake((*possible, *view_observer.later.values()), vnodes, retains, rules)
        self.lake.keep(kept)
        self.oracle = Oracle([replace(plan, full_because=NOT_WANTED) for plan in possible], vnodes, build_region)
        self.checkpoints = FakeCheckpoints(vnodes)
        self.change_log = FakeChangeLog(self.oracle)
        self.control = FakeControl()
        self._membership = membership
        self._memory_budget = memory_budget
        self._takes_checkpoints = takes_checkpoints
        self._outgrown_epochs = outgrown_epochs
        self.coordinator = CoordinatorMachine(
            vnode_map,
            kept,
            rules,
            {} if takes_checkpoints else None,
            membership=membership,
            outgrown_epochs=outgrown_epochs,
        )
        self.processes: dict[Incarnation, Process] = {}
        self.latest: dict[WorkerId, Process] = {}
        self.leases: list[Incarnation] = []
        """Of processes that are gone, and could still answer."""
        self.postponed: int | None = None
        """The meeting that has failed, if the next one is to be due."""
        self._meet: Meet | None = None
        """The last meeting that processes were called to."""
        self.links_broken: int | None = None
        """The time when links broke, if the coordinator is to hear that they have been broken for long."""
        self.network = Network(self.processes.get)
        self.bad_rows = bad_rows
        self.watcher = Watcher(view_observer, vnode_map.workers, self.lake, self.oracle, self.network, bad_rows)
        self.lookup_observer = LookupObserver(view_observer, self.lake, self.oracle, self.watcher.counters, bad_rows)
        self._first = Placement(vnode_map.workers, vnode_map)
        self.rescale_observer = RescaleObserver(self.watcher, view_observer, self._first)
        self._rng = rng
        self._row_source = RowSource(rng)
        self.vnodes = vnodes
        self._rules = rules
        self.build_region = build_region
        rules_of_workers = replace(rules, flows_fail_alone=False)  # the checkers must see a fault of the machine
        self._new_machine = partial(
            WorkerMachine, bad_rows.built_by(build_region), rules_of_workers, memory_budget, CROWD_KEYS, ANSWER_ROWS
        )
        self._died_in: dict[WorkerId, FlowStep] = {}
        """By place: the mark that its last process has left."""
        self._incarnations = count(1)
        self.segments = deque[SegmentPublished | SegmentsRewritten]()
        """The segments that are not announced to the coordinator yet."""
        self._horizon = BEGINNING

    def begin_again(self, workers: int | None) -> None:
        """The driver dies, and all workers with it; another one starts on what is in the lake. workers: how many it
        wants; ``None``: as the lake says."""
        found = self.control.begin_again() or self._first
        self.rescale_observer.another_driver(found)
        placement = placement_at_start(found, workers, self.vnodes)
        for process in self.running:
            process.waiting.clear()
            process.end()
        self.processes.clear()
        self.latest.clear()
        self.leases.clear()
        self.postponed = self.links_broken = self._meet = None
        self._died_in.clear()
        self.view_observer = self.view_observer.of_another_driver()
        self.network = Network(self.processes.get)
        self.watcher = self.watcher.of_another_driver(self.view_observer, placement.workers, self.network)
        self.lookup_observer = LookupObserver(
            self.view_observer, self.lake, self.oracle, self.watcher.counters, self.bad_rows
        )
        self.rescale_observer = RescaleObserver(self.watcher, self.view_observer, placement, found)
        kept = tuple(self.view_observer.kept.values())
        found_by_view = self.checkpoints.begin_again(kept, self.lake.is_within_a_segment)
        self.coordinator = CoordinatorMachine(
            placement.vnode_map,
            kept,
            self._rules,
            found_by_view if self._takes_checkpoints else None,
            membership=self._membership,
            workers=placement.workers,
            outgrown_epochs=self._outgrown_epochs,
            logs=self.change_log.begin_again(self.view_observer.kept, self.lake.is_within_a_segment),
        )
        self.segments.clear()
        for event in self.lake.events():
            self.step_coordinator(event)

    # Segments

    def compact(self, rng: Random) -> EpochSpan | None:
        """Make some segment of epochs that none needs apart; the coordinator will hear of it."""
        due = self.lake.due(self._asked_horizon())
        if not due:
            return None
        span = self.lake.compact(
            rng.choice([due[0], *(span for span in due if len(span) == len(due[0]))]), self._horizon
        )
        if span is not None and span.rewritten:
            self.segments.append(SegmentsRewritten(as_of=span.rewritten, segments=(self._segment(span),)))
        elif span is not None:
            self.segments.append(self._segment(span))
        return span

    def rewrite(self, rng: Random) -> list[EpochSpan]:
        """Rewrite some segments without rows that have left; the coordinator will hear of all at once."""
        horizon = self._asked_horizon()
        spans = self.lake.rewrite(horizon, rng) if horizon > self.lake.newest_rewrite else []
        if spans:
            told = SegmentsRewritten(as_of=horizon, segments=tuple(map(self._segment, spans)))
            self.segments.append(told)
        return spans

    def _segment(self, span: EpochSpan) -> SegmentPublished:
        return SegmentPublished(epoch=span.last, after=span.after, rows=self.lake.rows(span))

    def collect(self) -> None:
        """Remove what segments have replaced."""
        self.lake.collect(self._asked_horizon(), self._is_read)

    def hear_of_segments(self) -> None:
        """The coordinator hears of the segments that were made."""
        while self.segments:
            self.step_coordinator(self.segments.popleft())

    def _asked_horizon(self) -> Epoch:
        self.hear_of_segments()  # one thread makes them, tells of them and asks
        self.step_coordinator(HorizonAsked(ticket=0))
        return self._horizon

    def _has(self, action: ReadEpoch) -> bool:
        return self.lake.has(self.lake.opened(span_after(action.epoch, action.after), action.as_of))

    def _is_read(self, segment: EpochSpan) -> bool:
        """segments.grace: whether a read that has begun may need the segment's epochs apart."""
        if not self._rules.segments_grace:
            return False
        return any(process.cuts(segment) for process in self.running)

    @property
    def running(self) -> list[Process]:
        return [process for process in self.processes.values() if process.runs]

    # What comes from outside

    def publish(self, table: TableSpec, count: int) -> int:
        """One more epoch, of so many rows; returns its number."""
        rows = self._row_source.rows(table, count)
        epoch = self.lake.publish(table.name, rows)
        self.oracle.publish(epoch, self.lake)
        self.bad_rows.doomed.update(self.oracle.failed)
        self.watcher.counters["rows"] += rows.num_rows
        self.step_coordinator(
            EpochPublished(epoch=epoch, rows=self.lake.rows(single(epoch)), clock=self.lake.clock(epoch))
        )
        return epoch

    def wants(self, wish: SnapshotAsked | EvictWanted | CheckpointWanted) -> None:
        """A client requests something, and waits for it."""
        self.watcher.wanted(wish)
        self.step_coordinator(wish)

    def start(self, worker: WorkerId) -> Process:
        """A process comes to a worker's place."""
        incarnation = Incarnation(next(self._incarnations))
        process = Process(worker=worker, incarnation=incarnation, machine=self._new_machine(), rules=self._rules)
        self.processes[incarnation] = self.latest[worker] = process
        self.watcher.joined(process)
        self.step_coordinator(
            WorkerRegistered(
                worker=worker,
                incarnation=incarnation,
                address=str(process),
                instance=str(worker),
                died_in=self._died_in.pop(worker, None),
            )
        )
        return process

    def crash(self, process: Process) -> None:
        """The process dies; of what it has sent, only a part has left it."""
        for _ in range(self._rng.randint(0, len(process.up))):
            process.up.pop()
        process.waiting.clear()
        process.end()
        self.watcher.losses += 1
        self.network.ended(process, self._rng, died=True)

    def miss(self, process: Process) -> None:
        """The coordinator hears that a process is gone."""
        process.noticed_gone = True
        self.watcher.lost(process)
        self.leases.append(process.incarnation)
        self.step_coordinator(WorkerGone(incarnation=process.incarnation))
        self._forget(process)

    def lease_over(self) -> None:
        """A process that is gone answers no client any more."""
        self.step_coordinator(LeaseOver(incarnation=self.leases.pop(0)))

    def hear(self, process: Process) -> None:
        """The coordinator hears what comes next from a process."""
        message = process.up.popleft()
        if isinstance(message, OfShare) and isinstance(message.message, StartedAnew):
            # a channel keeps the order: nothing of the share from before comes after this
            kept = [said for said in process.heard if getattr(said, "flow", None) != message.flow]
            process.heard = deque(kept, process.heard.maxlen)
        process.heard.append(message)
        self._hear(process, message)
        self._forget(process)

    def hear_again(self, process: Process) -> FromWorker:
        """The coordinator hears again what it has heard from a process."""
        message = self._rng.choice(process.heard)
        self._hear(process, message)
        return message

    def _hear(self, process: Process, message: FromWorker) -> None:
        is_late = isinstance(message, OfShare) and message.flow in self.view_observer.gone
        actions = self.step_coordinator(WorkerSaid(incarnation=process.incarnation, message=message))
        if is_late:
            self.watcher.counters["late_at_the_coordinator"] += 1
            require(checkers.what_is_late_changes_nothing, actions)

    def hear_nonsense(self, process: Process) -> FromWorker:
        """The coordinator hears from a process that it fails, or what cannot be: an epoch that no worker was sent, or
        rows that no worker has sent. The latter fails a view, all else replaces the process."""
        part = self._rng.choice(list(process.parts.values()))
        plan = self._rng.choice(part.plans)
        rows = RowsApplied(epoch=part.applied, applied={self._rng.choice(plan.spread).name: ROWS_MADE_UP})
        unsent = EpochFinished(epoch=Epoch(self.lake.published + 1), read={}, applied={}, stats={})
        of_share = (OfShare(flow=part.flow, message=rows), OfShare(flow=part.flow, message=unsent))
        message = self._rng.choice((*of_share, WorkerFailed(kind="OSError", error="the disk is gone")))
        if message is of_share[0]:
            self.bad_rows.doomed.update((plan.name, *readers_of(part.plans, plan.name)))
        self.step_coordinator(WorkerSaid(incarnation=process.incarnation, message=message))
        return message

    def _forget(self, process: Process) -> None:
        if process.noticed_gone and not process.up:
            self.processes.pop(process.incarnation, None)

    def cut(self, *, one_way: bool = False) -> list[tuple[Process, Process]]:
        """A channel breaks, if there is one; returns its two ends."""
        between = self.network.cut(self._rng, one_way=one_way)
        self.watcher.losses += between is not None
        return [] if between is None else [between]

    def sever(self, *, one_way: bool) -> list[tuple[Process, Process]]:
        """A channel breaks, if there is one, and its link stays broken; returns its two ends."""
        between = self.cut(one_way=one_way)
        for ends in between:
            self.network.sever(ends)
        return between

    def meet_again(self) -> None:
        """The time for another meeting has come."""
        assert self.postponed is not None
        due, self.postponed = MeetingDue(meeting=self.postponed), None
        self.step_coordinator(due)

    def links_overdue(self) -> None:
        """A lease could have run out since links broke."""
        assert self.links_broken is not None
        overdue, self.links_broken = LinksOverdue(time=self.links_broken), None
        self.step_coordinator(overdue)

    # The lake

    def write_control(self, count: int) -> None:
        """The lake takes so many control records."""
        written = self.control.write(count)
        self.rescale_observer.recorded(written.number)
        self.step_coordinator(written)

    def refuse_control(self, count: int) -> None:
        """The lake does not take so many control records for now."""
        number = self.control.waiting[count - 1].number
        unwritten = ControlUnwritten(number=number, error=NotWritten("the disk is full"))
        self.rescale_observer.unrecorded(self.control.refuse(unwritten))
        self.step_coordinator(unwritten)

    # Workers

    def answer(self, process: Process, part: SharePart, answer: LakeAnswer) -> None:
        """A share hears what has become of its reads and writes of the lake."""
        self.step_worker(process, ShareHears(flow=part.flow, event=answer))

    def step_worker(self, process: Process, event: WorkerEvent) -> None:
        """Give a process an event, and do what it wants done; but the event waits for a share that waits itself."""
        if process.passes(event):
            self.work(process, event)

    def step_held(self, process: Process) -> WorkerEvent | Rest | None:
        """A process takes what it has held, if anything can be taken yet; returns it."""
        held = process.next_held()
        if isinstance(held, Rest):
            for flow in sorted(held.flows):
                process.note_rest(flow, held.event)
                for action in process.machine.step_rest(flow, held.event):
                    self._carry_out(process, held.event, action)
        elif held is not None:
            self.work(process, held)
        return held

    def work(self, process: Process, event: WorkerEvent) -> None:
        """Give a process an event that need not wait: it has time for some work."""
        match event:
            case ForShare(flow=flow, message=OpenEpoch() as opened) if flow in process.parts:
                if opened not in process.parts[flow].opened:  # else it comes again
                    self.watcher.opened(process.parts[flow], opened)
        others = OtherFlows.before(process, event)
        process.note(event)
        if isinstance(event, LookupAsked):
            self.lookup_observer.asks(process, event)
        try:
            actions = process.machine.step(as_clients_ask(event) if isinstance(event, LookupAsked) else event)
        except StepKilled:
            self._die_in_step(process)
            return
        except Exception as error:
            raise checkers.machines_do_not_fail(error) from error
        others.check(process, actions, have_room=self._memory_budget is None)
        require(checkers.no_share_of_a_gone_flow, process.machine.shares.keys() & process.gone)
        if isinstance(event, ShareHears) and isinstance(event.event, EpochRead) and event.flow in process.parts:
            self._notice_torn(process, process.parts[event.flow])
        for action in actions:
            self._carry_out(process, event, action)
        if isinstance(event, PeerSaid):
            self._look_at_load(process, event.envelope)
        if isinstance(event, LookupAsked):
            self.lookup_observer.asked(process, event)

    def _die_in_step(self, process: Process) -> None:
        step = marked(process.machine.mark.memory)
        assert step is not None
        self._died_in[process.worker] = step
        self.trace.append(f"{process} dies in a step of flow {step.flow} at epoch {step.epoch}")
        self.watcher.counters["deaths_in_steps"] += 1
        self.crash(process)

    def hear_late(self, process: Process) -> WorkerEvent:
        """A process hears of a flow that it was told is gone."""
        event = process.late.pop(self._rng.randrange(len(process.late)))
        self.step_worker(process, event)
        return event

    def _notice_torn(self, process: Process, part: SharePart) -> None:
        """The views of the flow that read the channel have failed at the process."""
        channel = part.torn
        if channel is None:
            return
        self.trace.append(f"{process} notices that it has read other rows of {channel} than there are")
        self.watcher.counters["torn_reads_noticed"] += 1
        self.bad_rows.doomed.update(
            plan.name for plan in part.plans if channel in as_one(part.plans, plan.name).channels
        )
        part.torn = None

    def _want(self, process: Process, part: SharePart, action: LakeWish) -> None:
        """A share wants something of the lake."""
        match action:
            case ReadEpoch():
                self.watcher.reads(process, part, action)
                if not (self._is_current(process, part) or self._has(action)):
                    return  # it was replaced, or dropped, and its files are gone: it is held up until it hears so
                tear = not part.reads_mixed and self._rng.random() < self.torn
                part.start_reading(action, self.lake, tear, self._rng)
            case ReadKeys() | FetchRows():
                part.upqueries.append((action, self.lake.published))
                self.watcher.counters["upqueries"] += 1
            case ReadState():
                self._restore(process, part, action)
            case WriteState() | SealState():
                part.writing.queue.append(action)
            case ForgetState():
                part.writing.forget(action.checkpoint)
            case WriteChanges():
                part.changes.append(action)
            case SetRowsAside():
                self.watcher.set_aside(action)
            case _:
                assert_never(action)

    def _is_current(self, process: Process, part: SharePart) -> bool:
        """Whether the coordinator reckons with this share."""
        return self.watcher.is_current(process) and part.flow not in self.view_observer.gone

    def _restore(self, process: Process, part: SharePart, action: ReadState) -> None:
        self.watcher.counters["restored"] += 1
        checkpoints, flow = self.checkpoints.of(part.plans), part.plans[0].name
        if not checkpoints.has(action.chain):
            if self._is_current(process, part):
                self.lake.missed.update(f"checkpoint {epoch} of {flow}" for epoch in action.chain)
            return  # it was replaced, or dropped
        chain = [(flow, epoch) for epoch in action.chain]
        if self.spoil and self._rng.random() < self.spoil:
            self._damaged.add(self._rng.choice(chain))
        if self._damaged.intersection(chain):
            self.watcher.counters["damaged_checkpoints"] += 1
            part.fail_to_restore()
        else:
            part.start_restoring(action, checkpoints, self._rng)

    def _carry_out(self, process: Process, event: WorkerEvent, action: WorkerAction) -> None:
        match action:
            case ShareWants(flow=flow, action=wish):
                if flow in process.parts:  # else there is nothing of it to forget
                    self._want(process, process.parts[flow], wish)
            case Report(message=message):
                if isinstance(message, OfShare) and isinstance(message.message, EpochFinished):
                    self.watcher.finished(process, process.parts[message.flow], message.message)
                process.up.append(message)
            case SendPeer():
                self._send(process, action)
            case MeetPeers():
                self.network.meet(process, action.meet)
            case Answer():
                self.lookup_observer.answered(process, action, self.watcher.is_current(process))
            case AnswerTogether():
                for answer in answers_apart(action):
                    self.lookup_observer.answered(process, answer, self.watcher.is_current(process))
            case Refuse():
                self.lookup_observer.refused(process, action, event)
            case HoldSnapshot():
                process.held[action.snapshot] = action.rows
                self.watcher.holds(action)
            case ForgetSnapshot():
                process.held.pop(action.snapshot, None)
            case Stop():
                require(checkers.nobody_is_left_waiting, process.waiting)
                process.end()
                self.network.ended(process, self._rng, died=False)
            case _:
                assert_never(action)

    def _send(self, process: Process, action: SendPeer) -> None:
        content, flow = action.envelope.content, action.envelope.flow
        is_torn = flow in process.parts and process.parts[flow].torn is not None
        if isinstance(content, PeerLookupAnswered) and (is_torn or not self.watcher.is_current(process)):
            self.lookup_observer.doubtful.add(content.ticket)
        has_channel = self.network.send(process, action.to, action.envelope)
        is_doomed = process.has_lost or self.watcher.is_to_begin(process, flow)
        require(checkers.peers_are_spoken_to_over_a_channel, has_channel, is_doomed)
        if not has_channel:
            process.inbox.append(PeerLost(peer=action.to, why=f"no channel to {action.to}"))
        self._look_at_load(process, action.envelope)

    def _look_at_load(self, process: Process, envelope: Envelope) -> None:
        content = envelope.content
        if isinstance(content, ForRegion) and isinstance(content.message, Acquire):
            self.watcher.keys_moved(process, envelope.flow, content.region)

    # The coordinator

    def step_coordinator(self, event: CoordinatorEvent) -> list[CoordinatorAction]:
        """Give the coordinator an event, and do what it wants done. Returns that."""
        before = tuple(self.view_observer.flows)
        try:
            actions = self.coordinator.step(event)
        except Exception as error:
            raise checkers.machines_do_not_fail(error) from error
        if isinstance(event, WorkerSaid) and isinstance(event.message, PeersLost):
            self._check_link(event.incarnation, event.message, actions)
        for action in actions:
            self._carry_out_for_all(action)
        if isinstance(event, PlansWanted):
            self._check_others(event, before, actions)
        return actions

    def _check_link(self, incarnation: Incarnation, lost: PeersLost, actions: Sequence[CoordinatorAction]) -> None:
        """The coordinator has heard of a broken link. While no key moves, and it knows of both ends, no process begins
        anew that was called to the meeting."""
        meet, peer = self._meet, lost.peer if lost.unreached is None else lost.unreached
        if meet is None or peer is None or meet.meeting != lost.meeting or self.rescale_observer.is_on:
            return
        called = {incarnation for incarnation, _ in meet.peers.values()}
        ends = [self.processes.get(incarnation), self.latest.get(peer)]
        if all(end is not None and end.incarnation in called and self.watcher.is_current(end) for end in ends):
            anew = {
                action.incarnation
                for action in actions
                if isinstance(action, Tell) and isinstance(action.message, ForShare)
                if isinstance(action.message.message, Assign)
            }
            link = f"worker {peer} and #{incarnation}"
            require(checkers.a_broken_link_makes_nobody_begin_anew, anew & called, link)

    def _check_others(
        self, wish: PlansWanted, before: Collection[FlowId], actions: Sequence[CoordinatorAction]
    ) -> None:
        """Views have perhaps changed: only flows that come are told to begin, from the first that comes or goes to
        the answer. before: the flows that some worker was told of by then."""
        told: set[FlowId] = set()
        is_change = False
        for action in actions:
            match action:
                case PlansTaken(ticket=wish.ticket):
                    break
                case Tell(message=DropFlow()):
                    is_change = True
                case Tell(message=ForShare(flow=flow, message=Assign() | Resume())):
                    is_change |= flow not in before
                    told |= {flow} if is_change else set()
        require(checkers.others_do_not_notice, told & set(before), {}, {})

    def _carry_out_for_all(self, action: CoordinatorAction) -> None:
        match action:
            case Tell():
                self._tell(action)
            case EpochEnded():
                self.trace.append(f"  epoch {action.epoch} ends in flow {action.flow}")
                require(checkers.no_flow_comes_back, action.flow, self.view_observer.gone)
                self.watcher.ended(action.flow, action.epoch)
            case HorizonIs():
                self._horizon = action.epoch
            case SnapshotReady():
                self.watcher.snapshot_ready(action)
            case SnapshotFailed():
                self.watcher.snapshot_failed(action)
            case PlansTaken():
                self.trace.append(f"  views {action.ticket} are taken")
                self.view_observer.taken(action)
                self.watcher.counters["views_changed"] += 1
            case EvictionOver():
                self.trace.append(f"  eviction {action.ticket} is over")
                self.watcher.eviction_over(action.ticket)
            case PublishCheckpoint():
                self.checkpoints.waiting.append(action)
            case PublishChanges():
                self.change_log.waiting.append(action)
            case CheckpointReady():
                self.trace.append(f"  checkpoint of {action.epoch} is ready in flow {action.flow}")
                self.checkpoints.sweep(self.view_observer.plans_of(action.flow), action.chain)
            case ForgetCheckpoints():
                self.trace.append(f"  checkpoints of flow {action.flow} are of no use any more")
                self.watcher.counters["checkpoints_forgotten"] += 1
                self.checkpoints.of(self.view_observer.plans_of(action.flow)).forget()
            case CheckpointFailed():
                self.trace.append(f"  checkpoint of {action.epoch} is given up in flow {action.flow}: {action.why}")
                self.watcher.counters["checkpoints_given_up"] += 1
            case CheckpointsTaken() | CheckpointsFailed():
                self.watcher.checkpoint_over((action.ticket,))
            case StartWorkers():
                self.rescale_observer.starts(action)
            case RescaleBegun():
                self.trace.append(f"  rescale {action.ticket} begins: {action.before} to {action.after} workers")
                self.rescale_observer.begun(action)
            case MeetingPostponed(meeting=meeting):
                self.trace.append(f"  meeting {meeting} has failed")
                self.postponed = meeting
            case LinksBroken(time=time):
                self.links_broken = time
            case MoveWorker():
                self._move(action)
            case DrainBegun():
                self.trace.append(f"  rescale {action.ticket} waits for open epochs to end")
                self.rescale_observer.drains = action.ticket
            case RescaleEnded():
                self.trace.append(f"  rescale {action.ticket} is {action.outcome}")
                self.rescale_observer.ended(action)
            case WriteControl():
                self.control.waiting.append(action)
                self.rescale_observer.records(action)
            case ReplaceWorker():
                self.trace.append(f"  #{action.incarnation} is to be replaced: {action.error}")
                self.watcher.counters["workers_replaced"] += 1
                process = self.processes.get(action.incarnation)
                if process is not None and process.runs:
                    self.crash(process)
            case AppFailed():
                require(checkers.the_app_does_not_fail, action.kind, action.error)
            case _:
                assert_never(action)

    def _move(self, action: MoveWorker) -> None:
        """There may be a free slot on another host, whose links to all others are whole."""
        process = self.processes.get(action.incarnation)
        if process is not None and process.runs and self._rng.random() < self.free_slots:
            self.trace.append(f"  {process} moves to another host: {action.error}")
            self.watcher.counters["workers_moved"] += 1
            self.network.mend(process.worker)
            self.crash(process)

    def _tell(self, action: Tell) -> None:
        process = self.processes.get(action.incarnation)
        if isinstance(action.message, Meet):
            self._meet = action.message
        self.view_observer.told(action.message, rescale_is_on=self.rescale_observer.is_on)
        self.watcher.told(process, action.message)
        if process is not None and process.runs:  # else it is lost
            process.down.append(action.message)

    def maps(self) -> Mapping[str, VnodeMap]:
        """The coordinator's, by what they are for."""
        cluster = self.coordinator.cluster
        return {"readers": cluster.reading, **{f"region {region}": found for region, found in cluster.maps.items()}}
