"""The coordinator's event loop, in the driver: one thread that feeds the machine and carries out its actions."""

import itertools
import logging
import queue
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass
from typing import Any, Protocol, assert_never

from upriver.coordinator.coordinator import CoordinatorMachine
from upriver.coordinator.freshness import Freshness, FreshnessReport, Progress, ReadThrough
from upriver.coordinator.restarts import PlaceHistory
from upriver.errors import ClusterError, NotReady, ProtocolError, UpriverError, UserError, WaitTimeout, WorkerLost
from upriver.ids import Channel, Epoch, Incarnation, SnapshotId, VnodeId, WorkerId
from upriver.lake.checkpoint_keeper import CheckpointKeeper
from upriver.lake.lake import Manifest
from upriver.net.wire import error_from_json
from upriver.plan.plan import DataflowPlan
from upriver.protocol.coordinator_events import (
    AbortWanted,
    AppFailed,
    CheckpointFailed,
    CheckpointReady,
    CoordinatorAction,
    CoordinatorEvent,
    EpochEnded,
    EpochPublished,
    EvictionOver,
    EvictWanted,
    ForgetCheckpoints,
    LeaseOver,
    LeaversOverdue,
    PlansTaken,
    PlansWanted,
    PublishCheckpoint,
    ReplaceWorker,
    RescaleBegun,
    RescaleEnded,
    RescaleWanted,
    SnapshotAsked,
    SnapshotFailed,
    SnapshotReady,
    StartWorkers,
    StopAsked,
    Tell,
    WorkerGone,
    WorkerRegistered,
    WorkerSaid,
)
from upriver.protocol.messages import FromWorker, Moved, TookOver, ToWorker, WorkerLoad
from upriver.protocol.strategies import Strategy
from upriver.runtime.source_supervisor import SourceSupervisor, source_failure
from upriver.runtime.status import Recoveries, RescaleReports, app_status
from upriver.vnodes import VnodeMap

_LOG = logging.getLogger("upriver")

COMMITS_KEPT_MAX = 10_000
"""How many epochs, the last ones, have their commit time kept in memory."""


class WorkerEnd(Protocol):
    """Our end of the channel to one incarnation."""

    def tell(self, message: ToWorker) -> None:
        """Send, in order, without blocking. Raises ClusterError if the channel is gone."""

    def close(self) -> None: ...

    def give_up(self, error: UpriverError) -> None:
        """Cut the channel: the worker is lost, because of this error."""


@dataclass(frozen=True, slots=True)
class _Joined:
    """A registered process: its end of the channel, and where it serves."""

    worker: WorkerId
    address: str
    end: WorkerEnd


@dataclass(frozen=True, slots=True)
class SnapshotParts:
    """A snapshot that some workers hold. addresses: where its parts are, in order of worker."""

    snapshot: SnapshotId
    epoch: Epoch
    addresses: tuple[str, ...]


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
    ) -> None:
        """leavers_s: seconds for which a rescale by learners waits for workers that leave; ``None``: as long as it
        takes. sources: those of the app's tables, for the status; without them, the status has no tables. start_worker:
        fills a slot, some time after it has returned; without it, no rescale can add workers. keeper: without it, the
        machine must take no checkpoints. histories: of the workers' slots."""
        self._machine = machine
        self._keeper = keeper
        self._start_worker = start_worker
        self._leavers_s = leavers_s
        self._histories = histories
        self._sources = sources
        self._inbox: queue.SimpleQueue[CoordinatorEvent | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="upriver-coordinator", daemon=True)
        self._incarnations = itertools.count(1)
        self._tickets = itertools.count()
        self._joined: dict[Incarnation, _Joined] = {}
        self._asked: dict[int, Future[SnapshotParts]] = {}
        self._undone: dict[int, Future[None]] = {}
        """By ticket, requests that are not done: a caller waits for each, or has given up waiting."""
        self._recoveries = Recoveries()
        self._changed = threading.Condition()
        """Guards and announces ``_ended``, ``_failure``, ``_joined``, ``_rescale_reports`` and ``_freshness``."""
        self._rescale_reports = RescaleReports(self._changed.notify_all)
        self._freshness = Freshness()
        self._ended = Epoch(0)
        self._failure: UpriverError | None = None
        self._commits: dict[Epoch, float] = {}
        """When the last epochs were committed, in seconds since 1970. One thread at a time writes it."""

    def start(self) -> None:
        self._thread.start()
        if self._keeper is not None:
            self._keeper.start(self._inbox.put)

    @property
    def lookup_map(self) -> VnodeMap:
        """The worker that answers lookups of each vnode now."""
        return self._machine.cluster.lookup_map

    @property
    def ended(self) -> Epoch:
        """The last epoch that has ended at every worker."""
        return self._ended

    # Reports from other threads

    def register(self, worker: WorkerId, address: str, end: WorkerEnd, instance: str = "") -> Incarnation:
        """A worker's process has registered; it serves at ``address``. instance: the executor that it is lost with."""
        incarnation = Incarnation(next(self._incarnations))
        with self._changed:
            self._joined[incarnation] = _Joined(worker, address, end)
            self._changed.notify_all()
        registered = WorkerRegistered(worker=worker, incarnation=incarnation, address=address, instance=instance)
        self._inbox.put(registered)
        return incarnation

    def hear(self, incarnation: Incarnation, message: FromWorker) -> None:
        """A worker has sent a message."""
        with self._changed:
            joined = self._joined.get(incarnation)
            if joined is not None and isinstance(message, Moved):
                self._rescale_reports.moved(joined.worker, message)
            elif joined is not None and isinstance(message, WorkerLoad):
                self._rescale_reports.took_load(joined.worker, message)
            elif isinstance(message, TookOver):
                self._rescale_reports.took_over(message)
        self._inbox.put(WorkerSaid(incarnation=incarnation, message=message))

    def lost(self, incarnation: Incarnation, lease_s: float = 0.0) -> None:
        """A worker's channel has closed. lease_s: seconds for which it may still answer lookups."""
        with self._changed:
            self._joined.pop(incarnation, None)
            self._changed.notify_all()
        self._inbox.put(WorkerGone(incarnation=incarnation))
        self._later(lease_s, LeaseOver(incarnation=incarnation))

    def _later(self, seconds: float, event: CoordinatorEvent) -> None:
        timer = threading.Timer(seconds, self._inbox.put, (event,))
        timer.daemon = True
        timer.start()

    def published(self, manifest: Manifest) -> None:
        """An epoch is in the lake."""
        if manifest.committed_at is not None:
            self._commits[manifest.epoch] = manifest.committed_at
            if len(self._commits) > COMMITS_KEPT_MAX:
                del self._commits[next(iter(self._commits))]
        self._inbox.put(EpochPublished(epoch=manifest.epoch, rows=manifest.rows()))

    def expect_sources(self, tables: Mapping[str, bool], committed: Epoch) -> None:
        """The sources are about to start. tables: by name, whether the lake has rows of the table. committed: the last
        epoch in the lake."""
        with self._changed:
            self._freshness = Freshness(tables, committed)

    def read_through(self, table: str, at: float, epoch: Epoch) -> None:
        """Every row that the table's source had offered by ``at``, monotonic, is in epochs up to ``epoch``."""
        with self._changed:
            self._freshness.read_through(table, ReadThrough(at, epoch))
            self._changed.notify_all()

    def source_stands(self, table: str, state: str, error: str | None = None) -> None:
        """As :meth:`Freshness.stands`."""
        with self._changed:
            self._freshness.stands(table, state, error)
            self._changed.notify_all()

    def fail(self, error: UpriverError) -> None:
        """The app cannot go on: every waiting call raises, and the workers end. The first failure counts."""
        with self._changed:
            if self._failure is not None:
                return
            self._failure = error
            self._changed.notify_all()
        _LOG.error("%s: %s", type(error).__name__, error)
        if self._keeper is not None:
            self._keeper.fail(error)
        for pending in (self._asked, self._undone):
            for ticket in list(pending):
                if (asker := pending.pop(ticket, None)) is not None:
                    asker.set_exception(_copy(error))
        with self._changed:
            joined = list(self._joined.values())
        for member in joined:
            member.end.close()

    # Requests from other threads

    @property
    def has_failed(self) -> bool:
        """Whether the app cannot go on."""
        return self._failure is not None

    def check(self) -> None:
        """Raise the failure, if there is one."""
        with self._changed:
            self._raise_failure()

    def check_view(self, view: str) -> None:
        """Raise the error of a view that has failed."""
        failure = self._machine.cluster.failed.get(view)
        if failure is not None:
            raise failure.raised()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise _copy(self._failure)

    def wait_ended(self, epoch: Epoch, seconds: float) -> None:
        """Block until the epoch has ended at every worker, and every worker slot is filled."""
        with self._changed:
            reached = self._changed.wait_for(lambda: self._failure or self._stands_at(epoch), seconds)
            self._raise_failure()
        if not reached:
            behind = {m.worker: m.finished for m in self._machine.members.values() if m.finished < epoch}
            where = f"epoch {epoch} is not reflected by every worker: they are at {behind or 'no worker'}"
            why = [f"; worker {m.worker} cannot read {m.held_up}" for m in self._machine.members.values() if m.held_up]
            raise WaitTimeout(where + "".join(why))

    def _stands_at(self, epoch: Epoch) -> bool:
        return self._ended >= epoch and not self._missing()

    def wait_joined(self, seconds: float) -> None:
        """Block until every worker slot is filled. Raises WaitTimeout, which says why one is not, if that is known."""
        with self._changed:
            reached = self._changed.wait_for(lambda: self._failure or not self._missing(), seconds)
            self._raise_failure()
            if not reached:
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

    def committed_at(self, epoch: Epoch) -> float | None:
        """When an epoch was committed, in seconds since 1970; ``None`` if that is not known, or was long ago."""
        return self._commits.get(epoch)

    def freshness(self) -> FreshnessReport:
        """How fresh each table is, and what it lacks to be ready."""
        with self._changed:
            return self._freshness_now()

    def _freshness_now(self) -> FreshnessReport:
        progress = Progress(self._ended, self._machine.published, tuple(sorted(self._missing())))
        return self._freshness.report(progress, time.monotonic())

    def wait_ready(self, seconds: float) -> None:
        """Block until every table is ready. Raises NotReady after so many seconds, with what is lacking."""
        with self._changed:
            if self._changed.wait_for(lambda: self._failure or self._lacking() is None, seconds):
                self._raise_failure()
            elif lacking := self._lacking():
                raise NotReady(f"the app is not ready after {seconds:g} s: {lacking}")

    def _lacking(self) -> str | None:
        report = self._freshness_now()
        return report.lacks(report.tables)

    def _missing(self) -> set[WorkerId]:
        return set(self._machine.cluster.workers) - {joined.worker for joined in self._joined.values()}

    def snapshot(self, view: str, seconds: float) -> SnapshotParts:
        """A consistent snapshot of a view; the workers hold it until newer ones replace it."""
        ticket, asker = next(self._tickets), Future[SnapshotParts]()
        self._asked[ticket] = asker
        self.check()
        self._inbox.put(SnapshotAsked(ticket=ticket, view=view))
        try:
            return asker.result(seconds)
        except FutureTimeout as error:
            raise WaitTimeout(f"view {view!r}: no snapshot in {seconds:g} s") from error
        finally:
            self._asked.pop(ticket, None)

    def replan(self, plans: tuple[DataflowPlan, ...], epochs: Sequence[Mapping[Channel, int]], seconds: float) -> None:
        """Keep these views from now on. epochs: of each epoch in the lake, from the first on, the rows per channel.

        Returns when all workers have begun anew; they answer when they have caught up. Raises WaitTimeout after so many
        seconds; the change happens all the same.
        """
        ticket = next(self._tickets)
        wanted = PlansWanted(ticket=ticket, plans=plans, epochs=tuple(epochs))
        late = f"the views have not changed in {seconds:g} s: a rescale is on, or a worker is missing"
        self._until_done(ticket, wanted, seconds, late)

    def evict(self, view: str, keys: tuple[int, ...] | None, seconds: float) -> None:
        """Have all workers evict these keys of a partial view. keys: their hash64; ``None`` for all.

        Returns when they have done so. Raises WaitTimeout after so many seconds; the eviction happens all the same.
        """
        ticket = next(self._tickets)
        wanted = EvictWanted(ticket=ticket, view=view, keys=keys)
        self._until_done(ticket, wanted, seconds, f"view {view!r}: not every worker has evicted in {seconds:g} s")

    def _until_done(self, ticket: int, wanted: CoordinatorEvent, seconds: float, late: str) -> None:
        """Send a request, and block until it is done. late: the error's text if that takes longer."""
        done = self._undone[ticket] = Future[None]()
        self.check()
        self._inbox.put(wanted)
        try:
            done.result(seconds)
        except FutureTimeout:
            raise WaitTimeout(late) from None

    def checkpoint(self, seconds: float) -> Epoch:
        """As :meth:`CheckpointKeeper.take`."""
        assert self._keeper is not None
        return self._keeper.take(seconds)

    # Rescales

    def rescale(
        self, workers: int | None, moves: Mapping[VnodeId, WorkerId] | None, strategy: Strategy, keys_max: int | None
    ) -> int:
        """Request a rescale; returns its ticket. The rescale's report says if anything is wrong with it."""
        ticket = next(self._tickets)
        wanted = RescaleWanted(ticket=ticket, workers=workers, moves=moves, strategy=strategy, keys_max=keys_max)
        with self._changed:
            self._rescale_reports.wanted(wanted)
        self._inbox.put(wanted)
        return ticket

    def workers_to_be(self) -> tuple[WorkerId, ...]:
        """The workers that there will be if all requested rescales succeed."""
        with self._changed:
            wanted = self._rescale_reports.workers_wanted()
        return self._machine.cluster.workers if wanted is None else tuple(map(WorkerId, range(wanted)))

    def abort_rescale(self, ticket: int) -> None:
        """Raises UserError for a ticket that is not known; a rescale that is over stays over."""
        with self._changed:
            self._rescale_reports.case(ticket)
        self._inbox.put(AbortWanted(ticket=ticket))

    def rescale_progress(self, ticket: int, unless: str | None = None, wait_s: float = 0.0) -> dict[str, Any]:
        """How far a rescale is. While its state is ``unless``, wait for another state, at most ``wait_s`` seconds.

        Raises UserError for a ticket that is not known, and the failure if the app has failed.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._failure or self._rescale_reports.case(ticket).state != unless, wait_s)
            self._raise_failure()
            return self._rescale_reports.case(ticket).progress()

    def rescale_report(self, ticket: int) -> dict[str, Any]:
        """The report of a rescale. Raises UserError if it is not over, or the ticket is not known."""
        with self._changed:
            case = self._rescale_reports.case(ticket)
            if not case.is_over:
                raise UserError(f"rescale {ticket} is not over: it is {case.state}")
            return case.report()

    def addresses(self) -> dict[WorkerId, str]:
        """The address of each worker that is up; of two incarnations, the later one's."""
        with self._changed:
            joined = [self._joined[incarnation] for incarnation in sorted(self._joined)]
        return {member.worker: member.address for member in joined}

    def status(self) -> dict[str, Any]:
        """Epochs, tables, workers and what the views hold, as last reported."""
        with self._changed:
            rescales = self._rescale_reports.status()
        tables = {} if self._sources is None else self._sources.status()
        return {
            **app_status(self._machine, self.addresses(), self._ended, self._histories()),
            **rescales,
            "recoveries": self._recoveries.status(),
            "checkpoint": None if self._keeper is None else self._keeper.status(),
            "tables": tables,
            "failure": str(self._failure) if self._failure else source_failure(tables),
        }

    def stop(self, seconds: float) -> bool:
        """Retire all workers and end the loop; returns whether all have gone in time."""
        self._recoveries.end()
        self._inbox.put(StopAsked())
        members = {member.incarnation for member in self._machine.members.values()}
        with self._changed:
            for incarnation, joined in self._joined.items():
                if incarnation not in members:
                    joined.end.close()  # it has left, and waits for scans that will not come any more
            gone = self._changed.wait_for(lambda: not self._joined, seconds)
            left = list(self._joined.values())
        for joined in left:
            joined.end.close()
        if self._keeper is not None:
            self._keeper.stop()
        self._inbox.put(None)
        self._thread.join()
        self._start_worker, self._histories = (
            None,
            dict,
        )  # they hold references to the app, and Spark's callback threads hold one to this loop
        return bool(gone)

    # The loop

    def _run(self) -> None:
        while (event := self._inbox.get()) is not None:
            if self.has_failed:
                continue  # the machine may be in the middle of a step
            try:
                for action in self._machine.step(event):
                    self._carry_out(action)
                self._recoveries.look(self._machine.cluster)
            except Exception as error:  # a fault of ours: no caller must wait in vain
                _LOG.debug("the coordinator has failed", exc_info=error)
                self.fail(_fault(error))

    def _carry_out(self, action: CoordinatorAction) -> None:
        match action:
            case Tell():
                self._tell(action)
            case EpochEnded():
                with self._changed:
                    self._ended = action.epoch
                    self._changed.notify_all()
            case SnapshotReady():
                if (asker := self._asked.pop(action.ticket, None)) is not None:
                    self._tell_parts(asker, action)
            case SnapshotFailed():
                if (asker := self._asked.pop(action.ticket, None)) is not None:
                    asker.set_exception(action.error)
            case PlansTaken() | EvictionOver():
                if (done := self._undone.pop(action.ticket, None)) is not None:
                    done.set_result(None)
            case PublishCheckpoint() | CheckpointReady() | CheckpointFailed() | ForgetCheckpoints():
                assert self._keeper is not None
                self._keeper.carry_out(action, self._machine.plans)
            case StartWorkers():
                for worker in action.workers:
                    assert self._start_worker is not None
                    self._start_worker(worker)
            case RescaleBegun():
                with self._changed:
                    self._rescale_reports.begun(action)
                if self._leavers_s is not None:
                    self._later(self._leavers_s, LeaversOverdue(ticket=action.ticket))
            case RescaleEnded():
                with self._changed:
                    self._rescale_reports.ended(action)
            case ReplaceWorker():
                self._replace(action)
            case AppFailed():
                self.fail(error_from_json({"error": action.kind, "message": action.error}))
            case _:
                assert_never(action)

    def _tell_parts(self, asker: Future[SnapshotParts], ready: SnapshotReady) -> None:
        """Return the parts of all workers, or fail: a worker may be lost without the machine knowing yet."""
        addresses = self.addresses()
        if addresses.keys() >= set(ready.workers):
            parts = tuple(addresses[worker] for worker in ready.workers)
            asker.set_result(SnapshotParts(ready.snapshot, ready.epoch, parts))
        else:
            asker.set_exception(WorkerLost("a worker was lost while the snapshot was taken; scan again"))

    def _replace(self, action: ReplaceWorker) -> None:
        with self._changed:
            joined = self._joined.get(action.incarnation)
        if joined is not None:  # without one, its channel is closed, and its slot about to be filled
            joined.end.give_up(WorkerLost(f"worker {joined.worker} failed: {action.error}"))

    def _tell(self, action: Tell) -> None:
        with self._changed:
            joined = self._joined.get(action.incarnation)
        if joined is None:
            return
        try:
            joined.end.tell(action.message)
        except ClusterError:
            joined.end.close()  # its closing comes back as ``lost``


def _copy(error: UpriverError) -> UpriverError:
    """Another error of the same class and text: each thread raises one of its own."""
    return type(error)(*error.args)


def _fault(error: Exception) -> UpriverError:
    """The app's failure, in one line, after an unexpected error of the coordinator."""
    *_, (frame, line) = traceback.walk_tb(error.__traceback__)
    place = f"{frame.f_globals.get('__name__')}:{line}"
    said = " ".join(f"{type(error).__name__}: {error}".split())
    return ProtocolError(
        f"the coordinator has failed, which is a fault of Upriver: {said} (at {place}). The lake is whole: call stop() "
        f"and start() again, and please report this line"
    )
