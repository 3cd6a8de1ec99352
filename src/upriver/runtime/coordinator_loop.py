"""The coordinator's event loop, in the driver: one thread that feeds the machine and carries out its actions."""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any, assert_never

from upriver.coordinator.coordinator import CoordinatorMachine
from upriver.coordinator.restarts import PlaceHistory
from upriver.errors import IngestFailed, NotReady, ProtocolError, UpriverError, WaitTimeout, WorkerLost
from upriver.ids import Epoch, FlowId, Incarnation, SnapshotId, VnodeId, WorkerId
from upriver.lake.change_writer import ChangePublisher
from upriver.lake.checkpoint_keeper import CheckpointKeeper
from upriver.lake.control_keeper import ControlKeeper
from upriver.lake.manifests import LakeEpochs, Segment
from upriver.net.wire import error_from_json
from upriver.plan.flows import as_one
from upriver.plan.plan import DataflowPlan
from upriver.protocol.coordinator_events import (
    AppFailed,
    CheckpointFailed,
    CheckpointReady,
    CheckpointsFailed,
    CheckpointsTaken,
    ControlWritten,
    CoordinatorAction,
    CoordinatorEvent,
    DrainBegun,
    DrainOverdue,
    EpochEnded,
    EpochPublished,
    EvictionOver,
    EvictWanted,
    FlowBeginning,
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
    RescaleWanted,
    SegmentPublished,
    SegmentsRewritten,
    SnapshotAsked,
    SnapshotFailed,
    SnapshotReady,
    StartWorkers,
    StopAsked,
    Tell,
    WorkerGone,
    WorkerRegistered,
    WorkerSaid,
    WriteControl,
)
from upriver.protocol.messages import EpochFinished, FlowStep, FromWorker, OfShare, ToWorker
from upriver.protocol.strategies import Strategy
from upriver.runtime.app_progress import AppProgress
from upriver.runtime.coordinator_requests import AppFailure, CoordinatorInbox, PendingRequests
from upriver.runtime.joined_workers import JoinedWorkers, WorkerEnd
from upriver.runtime.journal import CoordinatorJournal
from upriver.runtime.leases import USUAL
from upriver.runtime.rescales import Rescales
from upriver.runtime.source_supervisor import SourceSupervisor, source_failure
from upriver.runtime.status import Recoveries, app_status, view_stats
from upriver.shutdown import run_all
from upriver.state.checkpoint import FoundCheckpoints
from upriver.state.failure import told_with_place
from upriver.vnodes import VnodeMap, resized

_LOG = logging.getLogger("upriver.app")


DRAIN_S_MAX = 10.0
"""Seconds for which a rescale waits until the open epochs of all flows have ended. A flow that takes longer begins anew
by the new map."""
MEET_AGAIN_S = 0.5
"""Seconds between a meeting that has failed, because a link between two workers is broken, and the next one."""
UNTOLD_MAX = 256
"""Messages to workers that wait at most while the coordinator has further events to handle."""


@dataclass(frozen=True, slots=True)
class SnapshotParts:
    """A snapshot that some workers hold. addresses: where its parts are, in order of worker."""

    snapshot: SnapshotId
    epoch: Epoch
    addresses: tuple[str, ...]


def _no_lake_status() -> dict[str, Any]:
    return {"lake": {}, "changes": {}}


@dataclass(frozen=True, slots=True)
class LakeKeepers:
    """What writes to the lake for the coordinator, each on a thread of its own. ``None``: nothing does."""

    checkpoints: CheckpointKeeper | None
    control: ControlKeeper | None
    changes: ChangePublisher | None

    def start(self, hear: Callable[[CoordinatorEvent], None]) -> None:
        """hear: tells the coordinator, from any thread."""
        for keeper in (self.checkpoints, self.control, self.changes):
            if keeper is not None:
                keeper.start(hear)

    def stop(self) -> None:
        run_all(*(keeper.stop for keeper in (self.checkpoints, self.control, self.changes) if keeper is not None))


class CoordinatorLoop:
    """Runs the coordinator. Every public method may be called by any thread."""

    def __init__(
        self,
        machine: CoordinatorMachine,
        start_worker: Callable[[WorkerId], None] | None = None,
        keeper: CheckpointKeeper | None = None,
        leavers_s: float | None = None,
        histories: Callable[[], Mapping[WorkerId, PlaceHistory]] = dict,
        sources: SourceSupervisor | None = None,
        control: ControlKeeper | None = None,
        changes: ChangePublisher | None = None,
        move_worker: Callable[[WorkerId, Callable[[], None]], None] = lambda *_: None,
        lease_s: float = USUAL.lease_s,
    ) -> None:
        """leavers_s: seconds for which a rescale by learners waits for workers that leave; ``None``: as long as it
        takes. sources: those of the app's tables, for the status; without them, the status has no tables. start_worker:
        fills a slot, some time after it has returned; without it, no rescale can add workers. keeper: without it, the
        machine must take no checkpoints. histories: of the workers' slots. control: without it, no control record is
        written. changes: without it, no view may be logged. move_worker: looks for a free slot on another host
        than the worker's, and calls back if there is one, some time after it has returned. lease_s: of the workers."""
        self._machine = machine
        self._flows = count(len(machine.cluster.flows) + 1)
        """The numbers of flows to come: those that the app begins with have the first ones."""
        self._keepers = LakeKeepers(keeper, control, changes)
        self._start_worker = start_worker
        self._move_worker = move_worker
        self._lease_s = lease_s
        self._histories = histories
        self._sources = sources
        self._lake_status: Callable[[], dict[str, Any]] = _no_lake_status
        self._inbox = CoordinatorInbox()
        self._thread = threading.Thread(target=self._run, name="upriver-coordinator", daemon=True)
        changed = threading.Condition()
        self._failure = AppFailure(changed)
        self._requests = PendingRequests(self._inbox, self._failure)
        self._workers = JoinedWorkers(changed)
        self._untold: dict[Incarnation, list[ToWorker]] = {}
        """What workers are to be told, in order."""
        self._recoveries = Recoveries()
        self.rescales = Rescales(changed, self._failure, self._inbox, leavers_s, lambda: machine.vnodes_handed_over)
        self.progress = AppProgress(changed, lambda: machine.published, self._missing, self._record_marks)

    def start(self) -> None:
        self._thread.start()
        self._keepers.start(self._inbox.put)

    @property
    def lookup_map(self) -> VnodeMap:
        """The worker that answers lookups of each vnode now."""
        return self._machine.cluster.lookup_map

    # Reports from other threads

    def register(
        self,
        worker: WorkerId,
        address: str,
        end: WorkerEnd,
        instance: str = "",
        died_in: FlowStep | None = None,
    ) -> Incarnation:
        """A worker's process has registered; it serves at ``address``. instance, died_in: as of
        :class:`WorkerRegistered`."""
        incarnation = self._workers.join(worker, address, end)
        registered = WorkerRegistered(
            worker=worker, incarnation=incarnation, address=address, instance=instance, died_in=died_in
        )
        self._inbox.put(registered)
        return incarnation

    def hear(self, incarnation: Incarnation, message: FromWorker) -> None:
        """A worker has sent a message."""
        self.rescales.hear(self._workers.worker_of(incarnation), message)
        if isinstance(message, OfShare) and isinstance(message.message, EpochFinished):
            self.progress.epochs.finished(message.message.epoch, time.monotonic())
        self._inbox.put(WorkerSaid(incarnation=incarnation, message=message))

    def lost(self, incarnation: Incarnation, lease_s: float = 0.0) -> None:
        """A worker's channel has closed. lease_s: seconds for which it may still answer lookups."""
        self._workers.leave(incarnation)
        self._inbox.put(WorkerGone(incarnation=incarnation))
        self._inbox.put_later(lease_s, LeaseOver(incarnation=incarnation))

    def lease_over(self, incarnation: Incarnation) -> None:
        """A worker whose channel has closed answers no more lookups, sooner than :meth:`lost` was told."""
        self._inbox.put(LeaseOver(incarnation=incarnation))

    def published(self, epochs: LakeEpochs) -> None:
        """An epoch is in the lake, or at the start a segment."""
        self.progress.commit(epochs)
        self._inbox.put(as_published(epochs))

    def compacted(self, segment: Segment) -> None:
        """A segment of epochs that were published apart is in the lake."""
        self.progress.lake.add(segment)
        self._inbox.put(as_segment(segment))

    def rewritten(self, as_of: Epoch, segments: Iterable[Segment]) -> None:
        """These segments are in the lake without rows that have left by the end of an epoch."""
        rewritten = tuple(segments)
        self.progress.lake.add_all(rewritten)
        self._inbox.put(SegmentsRewritten(as_of=as_of, segments=tuple(map(as_segment, rewritten))))

    def horizon(self, seconds: float) -> Epoch:
        """The last epoch that none needs apart from those before it. Raises WaitTimeout."""
        ticket = self._requests.new_ticket()
        late = f"the coordinator has not answered in {seconds:g} s"
        epoch: Epoch = self._requests.request(ticket, HorizonAsked(ticket=ticket), seconds, late)
        return epoch

    def fail(self, error: UpriverError) -> None:
        """The app cannot go on: every waiting call raises, and the workers end. The first failure counts."""
        if not self._failure.set(error):
            return
        _LOG.error("%s: %s", type(error).__name__, error)
        if self._keepers.checkpoints is not None:
            self._keepers.checkpoints.fail(error)
        self._requests.refuse_all(error)
        self._workers.close()

    # Requests from other threads

    @property
    def has_failed(self) -> bool:
        """Whether the app cannot go on."""
        return self._failure.error is not None

    def check(self) -> None:
        """Raise the failure, if there is one."""
        self._failure.check()

    def failed_views(self) -> dict[str, str]:
        """By view that has failed, why."""
        failed = self._machine.cluster.failed
        return {view: f"{failure.kind}: {failure.error}" for view, failure in failed.items()}

    def plan_of(self, view: str) -> DataflowPlan:
        """What a view is computed from: its plan, with the regions of the maps that feed it. Raises UnknownView."""
        flow = self._machine.cluster.flow_of(view)
        if flow is None:
            raise self._machine.cluster.unknown(view)
        return as_one(flow.plans, view)

    def check_view(self, view: str) -> None:
        """Raise the error of a view that has failed."""
        failure = self._machine.cluster.failed.get(view)
        if failure is not None:
            raise failure.raised()

    def wait_ended(self, epoch: Epoch, seconds: float, view: str | None = None) -> None:
        """Block until a view reflects the epoch at every worker, or all views do (``None``), and every worker slot is
        filled."""
        if not self._failure.wait_for(lambda: self.progress.reflects(epoch, view) and not self._missing(), seconds):
            processes, behind = dict(self._machine.cluster.processes), dict[WorkerId, Epoch]()
            for flow in self._machine.cluster:
                if view is None or any(plan.name == view for plan in flow.views):
                    for worker, share in flow.members.copy().items():
                        if share.finished < epoch:
                            behind[worker] = min(share.finished, behind.get(worker, epoch))
            where = f"epoch {epoch} is not reflected by every worker: they are at {behind or 'no worker'}"
            why = [f"; worker {p.worker} cannot read {p.held_up}" for p in processes.values() if p.held_up]
            raise WaitTimeout(where + "".join(why))

    def wait_joined(self, seconds: float) -> None:
        """Block until every worker slot is filled. Raises WaitTimeout, which says why one is not, if that is known."""
        if not self._failure.wait_for(lambda: not self._missing(), seconds):
            raise WaitTimeout(f"workers have not come up in {seconds:g} s: {self.why_missing()}")

    def why_missing(self) -> str:
        """Which workers are missing, and why each was lost or its task has failed."""
        histories, why = self._histories(), dict[str | None, list[str]]()
        for worker in sorted(self._missing()):
            failure = histories[worker].last_failure if worker in histories else None
            why.setdefault(failure, []).append(str(worker))
        return "; ".join(
            f"worker {', '.join(workers)}: {failure or 'no task of it has registered'}"
            for failure, workers in why.items()
        )

    def wait_ready(self, seconds: float) -> None:
        """Block until every table is ready. Raises IngestFailed as soon as a source has failed for good, and NotReady
        after so many seconds, with what is lacking."""
        self._failure.wait_for(lambda: bool(self.lasting_failures()) or self.progress.lacks() is None, seconds)
        if failures := self.lasting_failures():
            raise IngestFailed(" ".join(failures))
        if lacking := self.progress.lacks():
            raise NotReady(f"the app is not ready after {seconds:g} s: {lacking}")

    def lasting_failures(self) -> list[str]:
        """As :meth:`SourceSupervisor.lasting_failures`."""
        return [] if self._sources is None else self._sources.lasting_failures()

    def _missing(self) -> set[WorkerId]:
        return self._workers.missing(self._machine.cluster.workers)

    def snapshot(self, view: str, seconds: float) -> SnapshotParts:
        """A consistent snapshot of a view; the workers hold it until newer ones replace it."""
        ticket = self._requests.new_ticket()
        asked, late = SnapshotAsked(ticket=ticket, view=view), f"view {view!r}: no snapshot in {seconds:g} s"
        parts: SnapshotParts = self._requests.request(ticket, asked, seconds, late)
        return parts

    def replan(self, plans: tuple[DataflowPlan, ...], epochs: Iterable[LakeEpochs], seconds: float) -> None:
        """Keep these views from now on: those that stay the same do not notice. epochs: all in the lake, from the first
        on.

        Returns when all workers are told; they answer for views that are added when they have caught up. Raises
        WaitTimeout after so many seconds; the change happens all the same. Raises CorruptFile.
        """
        ticket = self._requests.new_ticket()
        kept = tuple(epochs)
        self.progress.lake.add_all(kept)  # with the runs of new indexes
        before = self._machine.plans
        begins = {plan.name: self._begin(plan) for plan in plans if plan not in before}
        wanted = PlansWanted(ticket=ticket, plans=plans, epochs=tuple(map(as_published, kept)), begins=begins)
        late = f"the views have not changed in {seconds:g} s: a rescale is on"
        self._requests.request(ticket, wanted, seconds, late)

    def _begin(self, plan: DataflowPlan) -> FlowBeginning:
        """A flow more, with the checkpoints that there are of its view."""
        flow, keeper = FlowId(next(self._flows)), self._keepers.checkpoints
        found = FoundCheckpoints() if keeper is None else keeper.begin(flow, (plan,))
        return FlowBeginning(flow=flow, found=found)

    def evict(self, view: str, keys: tuple[int, ...] | None, seconds: float) -> None:
        """Have all workers evict these keys of a partial view. keys: their hash64; ``None`` for all.

        Returns when they have done so. Raises WaitTimeout after so many seconds; the eviction happens all the same.
        """
        ticket = self._requests.new_ticket()
        wanted = EvictWanted(ticket=ticket, view=view, keys=keys)
        self._requests.request(ticket, wanted, seconds, f"view {view!r}: not every worker has evicted in {seconds:g} s")

    def checkpoint(self, seconds: float) -> Epoch:
        """As :meth:`CheckpointKeeper.take`."""
        assert self._keepers.checkpoints is not None
        return self._keepers.checkpoints.take(seconds)

    # Rescales

    def rescale(
        self, workers: int | None, moves: Mapping[VnodeId, WorkerId] | None, strategy: Strategy, keys_max: int | None
    ) -> int:
        """Request a rescale; returns its ticket. The rescale's report says if anything is wrong with it."""
        ticket = self._requests.new_ticket()
        wanted = RescaleWanted(ticket=ticket, workers=workers, moves=moves, strategy=strategy, keys_max=keys_max)
        self.rescales.request(wanted)
        return ticket

    def workers_to_be(self) -> tuple[WorkerId, ...]:
        """The workers that there will be if all requested rescales succeed."""
        wanted = self.rescales.workers_wanted()
        return resized(self._machine.cluster.places.staying(wanted), wanted)

    def rescale_history(self) -> list[dict[str, Any]]:
        """As :meth:`ControlKeeper.rescales`."""
        return [] if self._keepers.control is None else self._keepers.control.rescales()

    def view_history(self) -> list[dict[str, Any]]:
        """As :meth:`ControlKeeper.views`."""
        return [] if self._keepers.control is None else self._keepers.control.views()

    def addresses(self) -> dict[WorkerId, str]:
        """The address of each worker that is up; of two incarnations, the later one's."""
        return self._workers.addresses()

    def status(self) -> dict[str, Any]:
        """Epochs, tables, workers and what the views hold, as last reported."""
        tables = {} if self._sources is None else self._sources.status()
        return {
            **app_status(self._machine, self.addresses(), self.progress.ended, self._histories()),
            **self.rescales.status(),
            "recoveries": self._recoveries.status(),
            "checkpoint": None if self._keepers.checkpoints is None else self._keepers.checkpoints.status(),
            "unrecorded": None if self._keepers.control is None else self._keepers.control.unwritten(),
            **self._lake_status(),
            "clock": self._clock_status(),
            "tables": tables,
            "failure": str(self._failure.error) if self.has_failed else source_failure(tables),
        }

    def ingested(self) -> dict[str, int]:
        """As :meth:`SourceSupervisor.ingested`."""
        return {} if self._sources is None else self._sources.ingested()

    def view_stats(self) -> dict[tuple[str, WorkerId], dict[str, int]]:
        """What each worker has last reported of each view, as :func:`upriver.runtime.status.view_stats` adds it up."""
        return {
            (plan.name, worker): view_stats(plan, (share,))
            for flow in self._machine.cluster
            for plan in flow.views
            for worker, share in flow.members.copy().items()
            if share.stats
        }

    def _clock_status(self) -> dict[str, float] | None:
        """The instant that the views' clock shows, in seconds since 1970, and its age; ``None`` if no view depends on
        it."""
        shown = self.progress.committed_at(self.progress.ended)
        if shown is None or not any(plan.is_clocked for plan in self._machine.plans):
            return None
        return {"at": shown, "age_s": round(max(0.0, time.time() - shown), 1)}

    def show_lake(self, lake: Callable[[], dict[str, Any]], changes: Callable[[], dict[str, Any]]) -> None:
        """The status of compaction and of the change log, from now on."""
        self._lake_status = lambda: {"lake": lake(), "changes": changes()}

    def stop(self, seconds: float) -> bool:
        """Retire all workers and end the loop; returns whether all have gone in time."""
        self._recoveries.end()
        self._inbox.put(StopAsked())
        processes = {process.incarnation for process in dict(self._machine.cluster.processes).values()}
        self._workers.close(but=processes)  # the others have left, and wait for scans that will not come any more
        try:
            return self._workers.wait_gone(seconds)
        finally:
            self._record_marks()
            run_all(self._workers.close, self._keepers.stop, self._inbox.close, self._thread.join)
            # Both hold references to the app, and Spark's callback threads hold one to this loop.
            self._start_worker, self._histories, self._lake_status = None, dict, _no_lake_status
            self._move_worker = lambda *_: None

    # The loop

    def _run(self) -> None:
        journal = CoordinatorJournal(self._machine, self.rescales)
        for event in self._inbox.events():
            if self.has_failed:
                continue  # the machine may be in the middle of a step
            try:
                actions = self._machine.step(event)
                self._note_ended(event, actions)  # before a caller that waits for the progress hears its answer
                for action in actions:
                    if not isinstance(action, Tell | EpochEnded):
                        self._tell()  # all actions take effect in order
                    self._carry_out(action)
                if self._inbox.is_empty or sum(map(len, self._untold.values())) >= UNTOLD_MAX:
                    self._tell()
            except Exception as error:  # a fault of ours: no caller must wait in vain
                _LOG.debug("the coordinator has failed", exc_info=error)
                self.fail(_fault(error))
                continue
            try:
                self._recoveries.look(self._machine.cluster)
                self.rescales.waits(self._machine.rescale_waits_for)
                journal.note(event, actions)
            except Exception as error:  # of any class: these only show what the coordinator does
                _LOG.error("the status and the log lack a step of the coordinator: %s", told_with_place(error))

    def _tell(self) -> None:
        """Send what workers are to be told: all that each of them is told goes together."""
        untold, self._untold = self._untold, {}
        for incarnation, messages in untold.items():
            self._workers.tell(incarnation, *messages)

    def _carry_out(self, action: CoordinatorAction) -> None:
        match action:
            case Tell():
                self._untold.setdefault(action.incarnation, []).append(action.message)
            case EpochEnded():
                pass  # ``_note_ended``
            case HorizonIs():
                self._requests.answer(action.ticket, action.epoch)
            case SnapshotReady():
                self._answer_parts(action)
            case SnapshotFailed():
                self._requests.refuse(action.ticket, action.error)
            case PlansTaken() | EvictionOver():
                self._requests.answer(action.ticket)
            case (
                PublishCheckpoint()
                | CheckpointReady()
                | CheckpointFailed()
                | ForgetCheckpoints()
                | CheckpointsTaken()
                | CheckpointsFailed()
            ):
                assert self._keepers.checkpoints is not None
                self._keepers.checkpoints.carry_out(action)
                if isinstance(action, CheckpointReady):
                    self._record_marks()
                if isinstance(action, ForgetCheckpoints) and action.flow not in self._machine.cluster.flows:
                    self._keepers.checkpoints.forget(action.flow)
            case PublishChanges():
                assert self._keepers.changes is not None
                self._keepers.changes.carry_out(action, self._machine.plans)
            case StartWorkers():
                for worker in action.workers:
                    assert self._start_worker is not None
                    self._start_worker(worker)
            case RescaleBegun():
                self.rescales.begun(action)
            case DrainBegun(ticket=ticket):
                self._inbox.put_later(DRAIN_S_MAX, DrainOverdue(ticket=ticket))
            case MeetingPostponed(meeting=meeting):
                self._inbox.put_later(MEET_AGAIN_S, MeetingDue(meeting=meeting))
            case LinksBroken(time=time):
                self._inbox.put_later(self._lease_s, LinksOverdue(time=time))
            case MoveWorker():
                self._move_worker(action.worker, partial(self._workers.give_up, action.incarnation, action.error))
            case RescaleEnded():
                self.rescales.ended(action)
            case WriteControl():
                self._write_control(action)
            case ReplaceWorker():
                self._workers.give_up(action.incarnation, action.error)
            case AppFailed():
                self.fail(error_from_json({"error": action.kind, "message": action.error}))
            case _:
                assert_never(action)

    def _note_ended(self, event: CoordinatorEvent, actions: Iterable[CoordinatorAction]) -> None:
        """Note which epochs views reflect, if that may have changed."""
        if isinstance(event, EpochPublished) or any(isinstance(action, EpochEnded | PlansTaken) for action in actions):
            self.progress.stand(self._machine.cluster.ended, self._machine.cluster.ended_by_view())

    def _record_marks(self) -> None:
        """Record how far the sources are read: the next driver serves from that."""
        if self._keepers.control is not None:
            self._keepers.control.read_through(self.progress.marks())

    def _write_control(self, action: WriteControl) -> None:
        if self._keepers.control is None:
            self._inbox.put(ControlWritten(number=action.number))
            return
        strategy = "" if action.begins is None else self.rescales.strategy(action.begins.ticket)
        cost = None if action.ends is None else self.rescales.cost(action.ends.ticket)
        self._keepers.control.carry_out(action, self._machine.plans, strategy, cost)

    def _answer_parts(self, ready: SnapshotReady) -> None:
        """Return the parts of all workers, or fail: a worker may be lost without the machine knowing yet."""
        addresses = self.addresses()
        if addresses.keys() >= set(ready.workers):
            parts = tuple(addresses[worker] for worker in ready.workers)
            self._requests.answer(ready.ticket, SnapshotParts(ready.snapshot, ready.epoch, parts))
        else:
            self._requests.refuse(
                ready.ticket, WorkerLost("a worker was lost while the snapshot was taken; scan again")
            )


def as_published(epochs: LakeEpochs) -> EpochPublished:
    """What the coordinator machine is told of epochs in the lake."""
    span = epochs.span
    return EpochPublished(
        epoch=epochs.epoch, rows=epochs.rows(), after=span.after, rewritten=span.rewritten, clock=epochs.clock
    )


def as_segment(segment: Segment) -> SegmentPublished:
    """What the coordinator machine is told of a segment whose epochs were published apart."""
    return SegmentPublished(epoch=segment.epoch, after=segment.span.after, rows=segment.rows())


def _fault(error: Exception) -> UpriverError:
    """The app's failure, in one line, after an unexpected error of the coordinator."""
    return ProtocolError(
        f"the coordinator has failed, which is a fault of Upriver: {told_with_place(error)}. The lake is whole: call "
        f"stop() and start() again, and please report this line"
    )
