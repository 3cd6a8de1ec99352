"""The running app, in the driver: lake, coordinator, workers and ingest, started and stopped together."""

import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any

from pyspark.sql import SparkSession

from upriver import logs
from upriver.coordinator.checkpoints import OUTGROWN_EPOCHS
from upriver.coordinator.control import placement_at_start
from upriver.coordinator.coordinator import CoordinatorMachine
from upriver.coordinator.epochs import LoggedVersions
from upriver.coordinator.group import MembershipConfig
from upriver.coordinator.restarts import Claim, PlaceHistory
from upriver.errors import WaitTimeout
from upriver.ids import Epoch, FlowId, WorkerId
from upriver.lake.change_upkeep import ChangeUpkeep
from upriver.lake.change_writer import ChangePublisher, with_marks
from upriver.lake.checkpoint_keeper import CheckpointKeeper
from upriver.lake.control import FoundControl, find_control
from upriver.lake.control_keeper import ControlKeeper
from upriver.lake.ingest_history import IngestHistory, check_taken, fence
from upriver.lake.lake import Lake, LakeRecord, OwnedLake
from upriver.lake.manifests import LakeEpochs
from upriver.lake.repair import replace_damaged
from upriver.net.handshake import HandshakeKeys
from upriver.net.remote import Remote
from upriver.net.server import Listen, Piece
from upriver.net.tls import TlsIdentity
from upriver.options import Checkpoints, Compaction, Standbys, Tokens
from upriver.plan.flows import RunningPlans, flows_of
from upriver.plan.plan import DataflowPlan, TableSpec
from upriver.plan.provenance import indexes_of
from upriver.progress import Told
from upriver.protocol.freshness import SourceState
from upriver.runtime.clock_ticks import TICK_S, ClockTicks
from upriver.runtime.coordinator_loop import CoordinatorLoop
from upriver.runtime.coordinator_service import CoordinatorRecords, CoordinatorService
from upriver.runtime.function_process import FUNCTION_TIMEOUT_S
from upriver.runtime.leaf_reads import LeafReads, RunningActions
from upriver.runtime.leases import USUAL, FailureDetection
from upriver.runtime.worker import WorkerConfig
from upriver.shutdown import run_all
from upriver.spark.compaction import Compactor
from upriver.spark.declared_tables import COMPARISON_S_MAX, DeclaredTables, StartedSource
from upriver.spark.host import WorkerHost, runs_elsewhere
from upriver.spark.ingest import EpochLog
from upriver.spark.placement import wait_for_hosts
from upriver.spark.probe import check_executors, packages_for
from upriver.spark.retention import begun_retention
from upriver.spark.runs import TASK_MEMORY, warm_up
from upriver.spark.session import (
    check_session,
    checked_settings,
    free_slots,
    is_local,
    require_slots,
    slots_in_words,
    spark_hosts,
    stop_unlogged,
    wait_for_slots,
)
from upriver.spark.startup import Startup
from upriver.spark.tables import Backfill
from upriver.state.checkpoint import FoundCheckpoints
from upriver.vnodes import Placement
from upriver.worker.memory import require_memory

_LOG = logging.getLogger("upriver.app")

SECRET_BYTES = 32
"""Bytes of the cluster's secret: made at each start, and kept only in this process and in the workers."""
STOP_SECONDS_MAX = 30.0
"""Seconds that workers have to retire before their tasks are cancelled."""
FAILED_STOP_S_MAX = 1.0
"""The same after a failed start, and seconds that their tasks have to end then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AppConfig:
    """How an app runs. root: of the lake. workers: ``None`` for as many as the lake says. listen: the coordinator's
    address. tls: what the app's processes show; ``None``: they do not encrypt. groups: ingest tasks at most.
    task_memory: bytes of one.

    migration_step_budget_ms: milliseconds that one step of moving keys may take. memory_budget: bytes of each worker's
    state; ``None``: no limit. failure_detection: how soon a silent worker is given up and replaced. clock_tick_s:
    seconds between two epochs at most, if a view depends on the clock. function_timeout_s: seconds after which a call
    of a user's function fails.
    """

    root: str
    workers: int | None
    vnodes: int
    tokens: Tokens
    listen: Listen
    groups: int | None
    tls: TlsIdentity | None = None
    task_memory: int = TASK_MEMORY
    migration_step_budget_ms: float = 5.0
    memory_budget: int | None = None
    standbys: Standbys = field(default_factory=Standbys)
    checkpoints: Checkpoints = field(default_factory=Checkpoints)
    compaction: Compaction = field(default_factory=Compaction)
    failure_detection: FailureDetection = USUAL
    clock_tick_s: float = TICK_S
    function_timeout_s: float = FUNCTION_TIMEOUT_S


def changed_map(name: str) -> str:
    """What a start says of a stateful map with another function than the last driver ran."""
    return (
        f"stateful map {name!r} has another function than when the app last ran: its states and rows, and "
        "those of what reads it, are computed anew from the tables' rows"
    )


def recounted_map(name: str) -> str:
    """What a start says of a stateful map of changes that begins with merged epochs."""
    return (
        f"stateful map {name!r} gets changes, and is computed anew from epochs that the lake has merged since: it gets "
        "the net changes of all of them at once, so that its rows, and those of what reads it, may differ from before; "
        "their change logs begin anew"
    )


class RunningApp:
    """One app's running parts. ``start`` once, ``stop`` once."""

    def __init__(
        self,
        spark: SparkSession,
        config: AppConfig,
        sources: Sequence[StartedSource],
        plans: Sequence[DataflowPlan],
        together: Sequence[DataflowPlan],
        pieces: Mapping[str, Piece] = MappingProxyType({}),
    ) -> None:
        """plans: of the views, each by itself. together: as they run (:func:`.plan_together`). pieces: what clients may
        ask of the coordinator's address besides its own."""
        self._pieces = pieces
        self._spark = spark
        self._config = config
        self._tables = DeclaredTables(spark, sources, config.task_memory)
        self._declared = tuple(plans)
        self._plans = with_marks(together, plans)
        """As they run."""
        self._began_with = RunningPlans(plans, self._plans)
        self._placement: Placement | None = None
        """What the app begins with, once that is known."""
        self._control: ControlKeeper | None = None
        self._running: CoordinatorLoop | None = None
        self._lake: OwnedLake | None = None
        self._service: CoordinatorService | None = None
        self._host: WorkerHost | None = None
        self._log: EpochLog | None = None
        self._backfill: Backfill | None = None
        self._background: list[ClockTicks | Compactor | ChangeUpkeep] = []
        """What goes on beside ingest and the workers."""
        self._supervisor = self._tables.supervisor
        self.told_of_maps: list[str] = []
        """What the start says of stateful maps that are computed anew."""

    @property
    def address(self) -> str:
        """Where the coordinator answers, ``host:port``."""
        assert self._service is not None
        return self._service.address

    @property
    def remote(self) -> Remote:
        """The coordinator, for readers in the app's own processes."""
        tls = self._config.tls
        return Remote(self.address, self._config.tokens.operator.encode(), None if tls is None else tls.client_trust)

    def start(self, seconds: float, told: Told = lambda _: None) -> None:
        """Bring everything up; returns when every worker has joined. An error is raised, and leaves nothing up.

        Raises WaitTimeout if that takes longer than so many seconds. Stopping what has come up by then takes a small
        multiple of ``FAILED_STOP_S_MAX``. told: takes each step.
        """
        require_memory(self._plans, self._config.memory_budget)
        startup = Startup(self._spark, seconds, self._abandon, told)
        try:
            startup.run(partial(self._bring_up, startup), self._why_late)
        except BaseException as error:
            _LOG.error("the app has not started: %s: %s", type(error).__name__, error)
            try:
                self._stop(FAILED_STOP_S_MAX, 0.0, FAILED_STOP_S_MAX)
            except Exception as other:
                _LOG.warning("stopping: %s: %s", type(other).__name__, other)
            if isinstance(error, Exception):
                check_session(self._spark)  # its end is the cause, and the error may not say so
            raise

    def _bring_up(self, startup: Startup) -> None:
        """The steps of a start."""
        startup.at(f"looking into the lake {self._config.root}")
        self._plan_placement(Lake(self._config.root))
        startup.at("waiting for task slots")
        wait_for_slots(self._spark, len(self._begun_with.workers), startup.seconds_left)
        if not spark_hosts(self._spark).executors_are_here:
            wait_for_hosts(self._spark.sparkContext, len(self._begun_with.workers), startup.seconds_left())
        if runs_elsewhere(self._spark):
            startup.at("running a first task on an executor")
            check_executors(self._spark, packages_for(self._config.root))
        startup.at(f"opening the lake {self._config.root}")
        settings = checked_settings(self._spark)
        declared = LakeRecord(self._config.vnodes, self._tables.specs, self._indexes(), settings)
        self._lake = OwnedLake(self._config.root, declared, self._facts())
        found = self._plan_placement(self._lake)  # another driver may have had the root a moment ago
        maps_before = {} if found.record is None else found.record.maps
        self._tell_changed_maps(maps_before)
        self._control = ControlKeeper(self._lake, found, self._begun_with)
        repaired = replace_damaged(self._lake)
        fence(self._lake)
        startup.at("completing indexes in the lake")
        self._tables.open(self._lake, self._groups())
        self._backfill = self._complete_indexes(self._lake, declared)
        startup.at("reading the lake's epochs")
        self._running = self._coordinator_of(self._lake, maps_before)
        self._lake.on_succeeded(self._running.fail)
        self._running.start()
        self._log = self._replay(self._lake, startup.check)
        startup.at("starting workers")
        self._serve()
        self._lake.announce(self.address)
        startup.at("warming up")
        warm_up(self._spark, self._tables.ways_of_batches(startup.check))
        startup.at("waiting for workers")
        try:
            self._coordinator.wait_joined(max(0.0, startup.seconds_left()))
        except WaitTimeout:
            raise WaitTimeout(f"{startup.late()}{self._why_late()}") from None
        self._control.wait_written(max(0.0, startup.seconds_left()))
        startup.at("starting ingest")
        startup.outlive()
        compactor = Compactor(
            self._spark,
            self._lake,
            self._lake_tables,
            self._coordinator,
            self._backfill.history_lock,
            self._config.compaction,
            repaired,
        )
        files = self._config.compaction
        changes = ChangeUpkeep(self._lake, files.changes_retention_s, files.grace_s)
        self._coordinator.show_lake(compactor.status, changes.status)
        self._background += [compactor, changes]
        compactor.start(self._lake.run_paths())
        changes.start()
        self._tables.start()
        ticks = ClockTicks(self._log.tick, self._is_clocked, self._config.clock_tick_s)
        self._background.append(ticks)
        ticks.start()
        _LOG.info("the app is up at %s, with %d workers", self.address, len(self._begun_with.workers))

    def _is_clocked(self) -> bool:
        """Whether a view depends on the clock."""
        return any(plan.is_clocked for plan in self._plans)

    def _plan_placement(self, lake: Lake) -> FoundControl:
        """Decide how many workers there are, and what each owns. Returns what the lake knows."""
        config, found = self._config, find_control(lake)
        recorded = None if found.record is None else found.record.to_begin_with
        vnodes = config.vnodes if recorded is None else len(recorded.vnode_map.owners)
        self._placement = placement_at_start(recorded, config.workers, vnodes)
        return found

    @property
    def _begun_with(self) -> Placement:
        assert self._placement is not None
        return self._placement

    def _lake_tables(self) -> dict[str, TableSpec]:
        """All tables in the lake, declared or not."""
        assert self._lake is not None
        record = self._lake.kept_record()
        return {table.name: table for table in record.tables}

    def _serve(self) -> None:
        """Start the coordinator's service and the workers."""
        config = self._config
        tokens = config.tokens
        keys = HandshakeKeys(tokens.operator, secrets.token_bytes(SECRET_BYTES), tokens.reader, config.tls)
        self._service = CoordinatorService(
            self._coordinator,
            self._declared,
            self._tables.specs,
            config.listen,
            keys,
            CoordinatorRecords(
                partial(require_slots, self._spark),
                self._claim,
                self._is_current,
                self._worker_lost,
                self._end_attempt,
            ),
            config.failure_detection,
            config.root,
            self._pieces,
        )
        worker_config = WorkerConfig(
            root=config.root,
            coordinator=self._service.address,
            keys=keys,
            bind=config.listen.host,
            plans=self._plans,
            migration_step_budget_ms=config.migration_step_budget_ms,
            memory_budget=config.memory_budget,
            failure_detection=config.failure_detection,
            is_local=is_local(self._spark),
            logs=logs.settings(),
            function_timeout_s=config.function_timeout_s,
        )
        self._host = WorkerHost(self._spark, worker_config, self._coordinator.fail)
        for worker in self._begun_with.workers:
            self._host.start(worker)

    def _why_late(self) -> str:
        """What a start is waiting for, as far as known."""
        missing = "" if self._host is None else self._coordinator.why_missing()
        return "".join(f"; {part}" for part in (missing, slots_in_words(self._spark)) if part)

    def _abandon(self) -> None:
        """A step of the start has returned after the start was given up."""
        if self._lake is not None:
            self._lake.release()

    def _coordinator_of(self, lake: OwnedLake, maps_before: Mapping[str, str]) -> CoordinatorLoop:
        """A coordinator that begins with the newest checkpoint, if there is one of these views. maps_before: the
        stateful maps of the last driver."""
        config = self._config
        checkpoints, standbys = config.checkpoints, config.standbys
        keeper = CheckpointKeeper(lake, checkpoints.interval_s, lambda: self._tables.set_aside)
        flows = enumerate(flows_of(self._plans), 1)
        found = {flow[0].name: keeper.begin(FlowId(number), flow) for number, flow in flows}
        recounted = self._recounted(lake, found)
        counting = [plan for plan in recounted if plan.counts_changes]
        self._tell(recounted_map(name) for plan in counting for name in plan.maps if name in maps_before)
        changes = ChangePublisher(lake, self._plans, anew=[plan.name for plan in recounted])
        machine = CoordinatorMachine(
            self._begun_with.vnode_map,
            self._plans,
            checkpoints=found,
            checkpoint_epochs=checkpoints.interval_epochs,
            membership=MembershipConfig(
                num_standby_replicas=standbys.replicas,
                max_warmup_replicas=standbys.warmup_replicas,
                scale_down_timeout_ms=standbys.leave_timeout_ms,
                learner_partial_rebalance=standbys.partial_rebalance,
            ),
            workers=self._begun_with.workers,
            outgrown_epochs=OUTGROWN_EPOCHS
            if (checkpoints.interval_s, checkpoints.interval_epochs) == (None, None)
            else None,
            logs=LoggedVersions(changes.found, changes.ended),
        )
        leavers_s = None if standbys.leave_timeout_ms is None else standbys.leave_timeout_ms / 1000
        return CoordinatorLoop(
            machine,
            self._start_worker,
            keeper,
            leavers_s,
            self._histories,
            self._supervisor,
            self._control,
            changes,
            self._move_worker,
            self._config.failure_detection.lease_s,
        )

    @property
    def _coordinator(self) -> CoordinatorLoop:
        assert self._running is not None
        return self._running

    def _start_worker(self, worker: WorkerId) -> None:
        assert self._host is not None
        self._host.start(worker)

    def _move_worker(self, worker: WorkerId, give_up: Callable[[], None]) -> None:
        assert self._host is not None
        self._host.move(worker, give_up)

    def _claim(self, worker: WorkerId, life: int, attempt: int, holder_has_lease: bool) -> Claim:
        if self._host is None:
            return Claim.OUTDATED
        return self._host.claim(worker, life, attempt, holder_has_lease)

    def _is_current(self, worker: WorkerId, life: int) -> bool:
        return self._host is not None and self._host.is_current(worker, life)

    def _worker_lost(self, worker: WorkerId, life: int, why: str) -> None:
        if self._host is not None and not self._coordinator.has_failed:
            self._host.lost(worker, life, why)

    def _end_attempt(self, attempt: int, why: str) -> None:
        assert self._host is not None
        self._host.end_attempt(attempt, why)

    def _histories(self) -> Mapping[WorkerId, PlaceHistory]:
        return {} if self._host is None else self._host.history()

    def _indexes(self) -> dict[str, tuple[tuple[str, ...], ...]]:
        return indexes_of(self._tables.specs, self._plans)

    def _facts(self) -> dict[str, Any]:
        """About this driver."""
        return {
            "host": socket.gethostname(),
            "process": os.getpid(),
            "started_at": time.time(),
            "set_aside": self._tables.set_aside,
        }

    def _recounted(self, lake: OwnedLake, found: Mapping[str, FoundCheckpoints]) -> list[DataflowPlan]:
        """The views that may have other rows than before: stateful maps of their flow get net changes of epochs that
        have been merged since, and there is no checkpoint to begin with."""
        if not lake.segments():
            return []
        flows = [flow for flow in flows_of(self._plans) if not found[flow[0].name].chain]
        return [plan for flow in flows if any(one.counts_changes for one in flow) for plan in flow]

    def _tell_changed_maps(self, before: Mapping[str, str]) -> None:
        maps = {name: now for plan in self._plans for name, now in plan.maps.items()}
        self._tell(changed_map(name) for name, now in maps.items() if before.get(name, now) != now)

    def _tell(self, texts: Iterable[str]) -> None:
        for text in texts:
            _LOG.warning("%s", text)
            self.told_of_maps.append(text)

    def _complete_indexes(self, lake: OwnedLake, declared: LakeRecord) -> Backfill:
        """Give the tables their declared indexes that they lack, before any process reads or writes."""
        backfill, kept = Backfill(self._spark, lake), lake.kept_record()
        for table, index in kept.lacking(declared):
            backfill.run(self._tables.layout(table), index, lake.last_epoch())
        return backfill

    def add_index(self, table: str, index: tuple[str, ...]) -> None:
        """Keep a table in one more order; returns when all epochs up to now have it, and all later ones will.

        Blocks while Spark rewrites the table's history; ingest goes on. Returns at once if the table has the index
        already. Raises IngestFailed, LakeError; the caller may then try again, and the work continues where it was.
        """
        assert self._log is not None
        assert self._backfill is not None
        self._backfill.run(self._tables.layout(table), index, self._log.keep(table, index))

    def replan(self, plans: Sequence[DataflowPlan], seconds: float, told: Told = lambda _: None) -> None:
        """Keep these views from now on: those that stay the same do not notice. Missing indexes are made first. Workers
        answer for a view that is added once they have read the existing rows. told: takes each step.

        Raises BudgetExceeded, in which case nothing changes; WaitTimeout if this has not begun in so many seconds;
        IngestFailed, LakeError.
        """
        running = self._began_with.of(plans)
        require_memory(running, self._config.memory_budget)
        assert self._log is not None
        assert self._lake is not None
        assert self._service is not None
        assert self._host is not None
        self._declared, self._plans = tuple(plans), running
        for table, indexes in self._indexes().items():
            for index in indexes:
                told(f"table {table}: completing its index ({', '.join(index)})")
                self.add_index(table, index)
        assert self._backfill is not None
        told("giving the workers the views")
        self._host.replan(self._plans)
        with self._backfill.history_lock:  # no segment is made meanwhile
            epochs = [self._lake.epochs(span) for span in self._lake.spans(self._log.last)]
            self._coordinator.replan(self._plans, epochs, seconds)
        self._service.replan(self._declared)

    def add_table(self, source: StartedSource, seconds: float, told: Told = lambda _: None) -> None:
        """Add a table, and start its source beside the others; returns when that runs. told: takes each step.

        Raises DeclarationError, IngestFailed, LakeError, or WaitTimeout after so many seconds. Then the table is not
        known.
        """
        assert self._backfill is not None
        assert self._service is not None
        self._tables.add(source, seconds, self._backfill.history_lock, self.add_index, told)
        self._service.serve_tables(self._tables.specs)

    def drop_table(self, table: str, seconds: float, told: Told = lambda _: None) -> None:
        """End a table's source, and forget the table, which no view reads. told: takes each step.

        Raises WaitTimeout if the source has not ended in so many seconds: the table stays until another call.
        """
        assert self._service is not None
        told(f"table {table}: ending its source")
        self._tables.drop(table, seconds)
        self._service.serve_tables(self._tables.specs)

    def _replay(self, lake: OwnedLake, check: Callable[[], None]) -> EpochLog:
        """Tell the coordinator of all existing epochs, and remove unfinished files."""
        history = IngestHistory()
        for span in lake.spans(lake.last_epoch()):
            check()
            epochs = lake.epochs(span)
            history.add(epochs)
            self._published(epochs)
        check_taken(lake, history)
        lake.sweep()
        retains = begun_retention(self._spark, lake.root, history, self._tables.specs)
        log = EpochLog(lake, history, self._published, retains=retains, wrote=self._coordinator.progress.epochs.wrote)
        log.retire_rows()
        assert self._control is not None
        self._tables.expect(log, self._control, self._coordinator.progress)
        return log

    def _published(self, epochs: LakeEpochs) -> None:
        """Note that an epoch is in the lake."""
        self._supervisor.published(epochs)
        self._coordinator.published(epochs)

    def _groups(self) -> int:
        """Tasks that write a batch at most: as many as can run beside the workers."""
        if self._config.groups is not None:
            return self._config.groups
        free = max(1, free_slots(self._spark) - len(self._begun_with.workers))
        # A local master may have far more slots than processors.
        return min(free, os.cpu_count() or 1) if str(self._spark.sparkContext.master).startswith("local[") else free

    def leaf_reads(self, actions: RunningActions) -> LeafReads:
        """What answers the tasks that read leaves. actions: what Spark says of them."""
        assert self._service is not None
        return LeafReads(self._service, actions, lambda: self._tables.set_aside)

    @property
    def epoch(self) -> Epoch:
        """The last epoch that every view reflects."""
        return self._coordinator.progress.ended

    def wait(self, seconds: float, view: str | None = None) -> Epoch:
        """Wait until every worker reflects all rows that the sources had at the call; returns the epoch of that.

        view: only the sources of this view's tables; raises what made it fail, if it has failed."""
        deadline = time.monotonic() + min(seconds, threading.TIMEOUT_MAX)

        def seconds_left() -> float:
            self._coordinator.check()
            return deadline - time.monotonic()

        assert self._log is not None
        assert self._service is not None
        self._coordinator.check()
        tables = None if view is None else self._service.plan_of(view).tables
        self._supervisor.drain(seconds_left, tables)
        epoch = self._log.last
        self._coordinator.wait_ended(epoch, max(0.0, seconds_left()), view)
        if view is not None:
            self._coordinator.check_view(view)
        return epoch

    def left(self, view: str | None = None) -> list[str]:
        """What is left of each table, or of those of a view, until its views reflect it: a line each."""
        assert self._service is not None
        wanted = None if view is None else self._service.plan_of(view).tables
        failed = [f"view {name} has failed: {error}" for name, error in self._coordinator.failed_views().items()]
        sources, left = self._supervisor.status(), self._coordinator.progress.epochs.left()
        return failed + [
            f"{table}: {_left_in_words(told, *left.get(table, (0, 0)))}"
            for table, told in sources.items()
            if wanted is None or table in wanted
        ]

    @property
    def is_ready(self) -> bool:
        """Whether every table is ready; see :mod:`upriver.coordinator.freshness`."""
        return self._coordinator.progress.lacks() is None

    def wait_ready(self, seconds: float) -> None:
        """Wait until every table is ready. Raises IngestFailed as soon as a source has failed for good, NotReady after
        so many seconds, or the error that made the app fail."""
        self._coordinator.wait_ready(seconds)

    def warn(self, seconds: float) -> None:
        """Warn the caller of :meth:`upriver.App.start` of sources that have failed for good. Waits until loads are
        compared with earlier ones, for so many seconds and ``COMPARISON_S_MAX`` at most; warns of later failures as
        they come."""
        self._supervisor.warn(min(seconds, COMPARISON_S_MAX))

    def status(self) -> dict[str, Any]:
        return self._coordinator.status()

    def metrics(self) -> str:
        assert self._service is not None
        return self._service.metrics.render().decode()

    def rescales(self) -> list[dict[str, Any]]:
        return self._coordinator.rescale_history()

    def restart_source(self, table: str) -> None:
        self._supervisor.restart(table)

    def checkpoint(self, seconds: float) -> Epoch:
        return self._coordinator.checkpoint(seconds)

    def check_view(self, view: str) -> None:
        """Raise UnknownView for a view that does not exist, and a failed view's own error."""
        self.explain(view)
        self._coordinator.check_view(view)

    def explain(self, view: str) -> dict[str, Any]:
        assert self._service is not None
        return self._service.explain(view)

    def stop(self, told: Told = lambda _: None) -> None:
        """Stop ingest, retire the workers, release the root. Published epochs stay. told: takes each step."""
        _LOG.info("the app stops")
        self._stop(STOP_SECONDS_MAX, STOP_SECONDS_MAX, STOP_SECONDS_MAX, told)
        _LOG.info("the app has stopped")

    def _stop(self, retire_s: float, end_s: float, cancel_s: float, told: Told = lambda _: None) -> None:
        """retire_s: seconds that workers have to retire. end_s: seconds that their tasks have to end after that.
        cancel_s: the same after their jobs were cancelled."""
        steps: list[Callable[[], object]] = [partial(told, "ending the sources"), self._supervisor.stop]
        steps += [part.stop for part in reversed(self._background)]
        if self._backfill is not None:
            steps.append(self._backfill.stop)
        if self._host is not None:
            steps.append(self._host.stop_restarts)
        steps.append(partial(told, "retiring the workers"))
        if self._running is not None:
            steps.append(partial(self._running.stop, retire_s))
        if self._host is not None:
            steps.append(partial(self._host.stop, end_s, cancel_s))
        if self._service is not None:
            steps.append(self._service.stop)
        if self._lake is not None:
            steps.append(self._lake.release)
        with stop_unlogged(self._spark):
            run_all(*steps)


def _left_in_words(told: Mapping[str, Any], epochs: int, rows: int) -> str:
    """How far a table is. told: its source, as in the status. epochs, rows: what is committed and not reflected."""
    committed, state = told["rows"], told["state"]
    if epochs:
        views = f"{rows:,} of them not in the views yet, in {epochs:,} epoch{'s' if epochs > 1 else ''}"
    elif committed:
        views = "all of them in the views"
    else:
        views = "it has none" if state == SourceState.FINISHED else "none has been committed yet"
    source = f"source {state}: {told['error']}" if told["error"] else f"source {state}"
    return f"{committed:,} rows, {source}; {views}"
