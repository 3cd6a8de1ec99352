"""Ingest: from a Spark DataFrame, streaming or not, to published epochs. Runs in the driver.

Exactly once: a batch's runs are written first, and count only when its manifest is published, by a create that fails if
the epoch is there. Each manifest names its batch, so a batch that Spark replays after a crash is recognised and
skipped. Rules lake.*: ``docs/internals/lake.md``.

Each task of a micro-batch writes its own rows. The number of tasks follows the last batch: with few rows, one task
costs about half of what several do; with many rows, or rows that take long to compute, several tasks finish sooner.
"""

import logging
import math
import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any
from uuid import uuid4

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from upriver.coordinator.sources import SourceFailure
from upriver.engine.retention import Retention, retained_after
from upriver.errors import DeclarationError, IngestFailed, WaitTimeout
from upriver.ids import Channel, Epoch
from upriver.lake.address import spark_address
from upriver.lake.files import open_files
from upriver.lake.ingest_history import IngestHistory
from upriver.lake.lake import FORMAT, TASKS_FORMAT, OwnedLake
from upriver.lake.manifests import Manifest
from upriver.lake.source_records import SourceRecord
from upriver.lake.spark_checkpoint import sweep_checkpoint
from upriver.plan.plan import TableSpec, lake_channel
from upriver.plan.retention import Retain
from upriver.plan.row_steps import RowSteps
from upriver.runtime.source_supervisor import Seen
from upriver.spark.callback import BatchCallback, revive_callback_server
from upriver.spark.drain import Drain
from upriver.spark.file_scans import NotAScan, scan_of, steps_of
from upriver.spark.parquet import NotAsArrow
from upriver.spark.runs import (
    TASK_MEMORY,
    BatchRows,
    BatchSizes,
    FileRows,
    Lot,
    RunWriter,
    SparkRows,
    rewrite_runs,
    runs_python,
    shuffle_runs,
    write_runs,
)
from upriver.spark.session import SessionSetting, jobs_described, unless_stopped
from upriver.spark.sources import failure_of, failure_of_query, source_names, takes_all_files
from upriver.state.runs import RunInfo

_LOG = logging.getLogger("upriver.ingest")

TASK_BYTES = 8 << 20
"""Bytes of runs of one index that one task writes, if there are tasks enough."""
TASK_S = 2.0
"""Seconds that one task may work on a batch. If it takes longer, more tasks might be faster."""
UNSHUFFLED_TASKS_MAX = 8
"""Tasks of a batch that each write their own rows. With more, a lookup would have to look into too many runs of an
epoch, and a worker to read too many small ranges: rows are shuffled, so that each key is in the runs of one task."""


class BatchTasks:
    """What the last batch of a table tells of the next one. next: how many tasks write it, as many as the last one had
    work for. row_bytes: of a row of the last batch that had rows, on average; ``None`` before one."""

    def __init__(self, tasks_max: int) -> None:
        self._tasks_max = tasks_max
        # Before the first batch nothing is known, and there may be much to catch up with.
        self.next = min(tasks_max, UNSHUFFLED_TASKS_MAX)
        self.row_bytes: float | None = None

    def wrote(self, runs: Iterable[RunInfo], seconds: float) -> None:
        """Note that ``next`` tasks have written a batch in so many seconds. runs: those of one index."""
        runs = tuple(runs)
        size, rows = sum(run.bytes for run in runs), sum(run.rows for run in runs)
        self.row_bytes = size / rows if rows else self.row_bytes
        work = max(size / TASK_BYTES, self.next * seconds / TASK_S)
        self.next = max(1, min(self._tasks_max, math.ceil(work)))


LOAD_QUERY = "load"
"""Replaces the streaming query's id in a manifest, if the table's DataFrame is not streaming."""
BEGUN_POLL_S = 0.02
"""Seconds between two looks at a query that has just begun."""
STOP_POLL_S = 0.2
"""Seconds between two attempts to interrupt a load."""
STOP_S_MAX = 60.0
"""Seconds in which an attempt that is stopped must have ended."""
STOPPING = SessionSetting("spark.sql.streaming.stopTimeout", f"{STOP_S_MAX:.0f}s")
UNENDED_S_MAX = 1.0
"""Seconds for which the start of an attempt waits for the end of the one before."""
POLL_MS = 100
"""Milliseconds between two questions of Spark for new rows of an idle source. With Spark's own 10 an idle app of one
table takes a fifth of a processor."""
_POLLING = SessionSetting("spark.sql.streaming.pollingDelay", f"{POLL_MS}ms")
_IDLE = "Waiting for"
"""The beginning of Spark's status of a query that has no data, or whose next trigger is not due."""
_ASKING = ("Getting offsets", "Initializing sources")
"""The same of one that waits for an answer of its source."""
_ENDING_TRIGGERS = frozenset({"availableNow", "once"})
"""Triggers with which a query ends by itself, when it has taken all rows there were."""


_RAISED_IN_TASK = re.compile(rf"{NotAsArrow.__qualname__}: (.*)")
_PROCESS_DIED = "Python worker exited unexpectedly"
"""In Spark's error of a job, if a process that ran Python for a task has died, and did so again."""

Runs = tuple[RunInfo, ...]
NO_RETENTION: Mapping[str, Retain] = MappingProxyType({})


class EpochLog:
    """Assigns epochs to batches, in one order over all tables. Called from several threads.

    on_published: gets each epoch, in order, once its manifest is in the lake. clock: seconds since 1970.
    """

    def __init__(
        self,
        lake: OwnedLake,
        history: IngestHistory,
        on_published: Callable[[Manifest], None],
        clock: Callable[[], float] = time.time,
        retains: Mapping[str, Retain] = NO_RETENTION,
        wrote: Callable[[float], None] = lambda _: None,
    ) -> None:
        """retains: by table, for those that declare it. The history must name the same columns for them. wrote: is
        given the seconds that a batch has taken, once it is committed."""
        record = lake.kept_record()
        self._lake = lake
        self._history = history
        self._on_published = on_published
        self._clock = clock
        self._retains = dict(retains)
        self.wrote = wrote
        self._indexes = dict(record.indexes)
        self._lock = threading.Lock()
        self._is_unsure = False
        """Whether the next epoch may be in the lake: a publish has failed, and its answer may have been lost."""

    @property
    def last(self) -> Epoch:
        """The highest epoch published."""
        return self._history.last

    def query_of(self, table: str) -> str | None:
        """The query that gave the table's last epoch; ``None`` if it has no epochs."""
        return self._history.queries.get(table)

    def last_batch(self, table: str) -> int:
        """The highest batch of that query that is published; -1 if none."""
        return self._history.batches.get(table, -1)

    @property
    def history(self) -> IngestHistory:
        """The batches in the lake; the caller only reads."""
        return self._history

    def declare(self, table: TableSpec, indexes: Iterable[tuple[str, ...]], retention: Retention | None) -> None:
        """Take epochs of one more table from now on. indexes: those that the lake keeps. retention: with which its rows
        begin to leave, if that is new."""
        with self._lock:
            self._indexes[table.name] = tuple(dict.fromkeys([*self._indexes.get(table.name, ()), *indexes]))
            if retention is not None:
                self._history.retain(table.name, retention)
            if table.retain is not None:
                self._retains[table.name] = table.retain

    def undeclare(self, table: str) -> None:
        """The table gets no epochs until it is declared again, and no further row leaves it."""
        with self._lock:
            self._retains.pop(table, None)

    def indexes(self, table: str) -> tuple[tuple[str, ...], ...]:
        """The indexes that the table's next epoch will have; more may come until it is published."""
        return self._indexes[table]

    def keep(self, table: str, index: tuple[str, ...]) -> Epoch:
        """Give every epoch of the table this index too from now on; returns the last epoch that may lack it
        (lake.no_epoch_lacks_the_index)."""
        with self._lock:
            self._settle()
            self._indexes[table] = tuple(dict.fromkeys([*self._indexes[table], index]))
            return self._history.last

    def publish(self, table: str, query: str, batch: int, runs: Mapping[Channel, Runs]) -> tuple[tuple[str, ...], ...]:
        """Commit a batch as the next epoch, unless the table has got indexes that the runs lack: returns those."""
        with self._lock:
            found = self._settle()
            if found is not None and (found.table, found.query, found.batch) == (table, query, batch):
                return ()
            lacking = tuple(index for index in self._indexes[table] if lake_channel(table, index) not in runs)
            if not lacking:
                self._commit(table, query, batch, runs)
            return lacking

    def tick(self, idle_s: float) -> float:
        """Commit an epoch without rows, if none was committed for so long and there is any. Returns the seconds until
        the next one is due."""
        with self._lock:
            self._settle()
            due_s = self._history.committed_at + idle_s - self._clock()
            table = next(iter(self._history.queries), None)
            if due_s > 0 or table is None:
                return min(idle_s, max(due_s, 0.0)) or idle_s
            runs = {lake_channel(table, index): () for index in self._indexes[table]}
            self._commit(table, self._history.queries[table], self._history.batches[table], runs)
            return idle_s

    def _commit(self, table: str, query: str, batch: int, runs: Mapping[Channel, Runs]) -> None:
        """Commit the next epoch; the caller holds the lock."""
        manifest = Manifest(
            epoch=Epoch(self._history.last + 1),
            term=self._lake.term,
            table=table,
            query=query,
            batch=batch,
            committed_at=max(self._clock(), self._history.committed_at),  # lake.instants_never_fall
            runs=runs,
            retained=self._retained_after(table, next(iter(runs.values()))),
        )
        self._is_unsure = True
        self._lake.publish(manifest)
        self._note(manifest)

    def _retained_after(self, table: str, runs: Iterable[RunInfo]) -> dict[str, Retention]:
        """runs: of one index of the table's next epoch."""
        spans = [run.span for run in runs if run.span is not None]
        newest = max(spans, key=lambda span: span.newest, default=None)
        return retained_after(self._history.retained, table, self._retains.get(table), newest)

    def retire_rows(self) -> None:
        """Publish an epoch without rows for each table whose rows leave it at once, because its retention is new or
        shorter than before."""
        for table, retain in list(self._retains.items()):
            now = self._history.retained.get(table)
            query = self.query_of(table)
            if now is None or query is None or now.advanced(retain.interval, None).cut == now.cut:
                continue
            runs = {lake_channel(table, index): () for index in self._indexes[table]}
            self.publish(table, query, self.last_batch(table), runs)

    def _settle(self) -> Manifest | None:
        """The next epoch, if a publish that seemed to fail has put it into the lake (lake.own_epoch_is_found)."""
        epoch = Epoch(self._history.last + 1)
        if self._is_unsure and self._lake.has_epoch(epoch):
            manifest = self._lake.manifest(epoch)
            if manifest.term == self._lake.term:
                self._note(manifest)
                return manifest
        return None

    def _note(self, manifest: Manifest) -> None:
        self._is_unsure = False
        self._history.add(manifest)
        self._on_published(manifest)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How a table is kept. groups: Spark tasks that write a batch at most. format: of the root. task_memory: bytes of
    memory of such a task."""

    root: str
    table: TableSpec
    vnodes: int
    groups: int
    format: int = FORMAT
    task_memory: int = TASK_MEMORY

    def writer(self, *lots: Lot) -> RunWriter:
        groups = min(self.groups, self.vnodes)
        return RunWriter(
            root=self.root, table=self.table, lots=lots, vnodes=self.vnodes, groups=groups, memory=self.task_memory
        )

    def must_shuffle(self, tasks: int) -> bool:
        """Whether no two of so many tasks may have rows of one key."""
        return tasks > (UNSHUFFLED_TASKS_MAX if self.format >= TASKS_FORMAT else 1)


class WayIn:
    """How a source's rows come into Arrow: from Parquet files that Spark's tasks read themselves, or as rows of Spark.

    The first batch whose files tasks cannot read decides for the later ones.
    """

    def __init__(self, table: str, declared: DataFrame, *, is_fixed: bool = False) -> None:
        """declared: the table's DataFrame. is_fixed: files that change after Spark has listed them are refused."""
        self._table = table
        self._declared = declared
        self._is_fixed = is_fixed
        self._why_rows: str | None = None
        self._reads_files = False

    def told(self) -> str | None:
        """The way, in a few words; ``None`` before the first batch."""
        if self._why_rows is not None:
            return f"rows of Spark: {self._why_rows}"
        return "files as Arrow" if self._reads_files else None

    def take(self, rows: DataFrame, plan_of: Callable[[], Any], take: Callable[[BatchRows], None]) -> None:
        """Take rows from files, if they are nothing else. plan_of: gives Spark's physical plan of ``rows``. take: may
        be called again if it has failed because of a file."""
        files = self._files(rows, plan_of)
        if files is not None:
            try:
                take(files)
                return
            except (NotAsArrow, PySparkException, Py4JJavaError) as error:
                if not self._leaves_files(error):
                    raise
        take(SparkRows(rows))

    def _files(self, rows: DataFrame, plan_of: Callable[[], Any]) -> FileRows | None:
        if self._why_rows is not None:
            return None
        try:
            scan = scan_of(plan_of(), rows, is_fixed=self._is_fixed, steps_of=lambda: self._steps)
        except NotAScan as error:
            self._why_rows = str(error)
            return None
        self._reads_files = True
        return FileRows(scan, rows.sparkSession)

    @cached_property
    def _steps(self) -> RowSteps:
        return steps_of(self._declared)

    def _leaves_files(self, error: Exception) -> bool:
        """Whether the error means that tasks cannot read the files; from now on they do not."""
        if isinstance(error, NotAsArrow):
            self._why_rows = str(error)
        elif found := _RAISED_IN_TASK.search(str(error)):
            self._why_rows = found[1]
        elif _PROCESS_DIED in str(error):
            self._why_rows = "a process that read its files has died"
        else:
            return False
        _LOG.warning(
            "table %s: its source goes on with rows of Spark, which takes longer: %s", self._table, self._why_rows
        )
        return True


def publish_batch(
    rows: BatchRows, layout: Layout, log: EpochLog, query: str, batch: int, tasks: BatchTasks | None = None
) -> None:
    """Write a batch's runs, and commit them as the next epoch. tasks: of the table's batches; by default this is the
    first."""
    table, began = layout.table.name, time.monotonic()
    tasks = BatchTasks(layout.groups) if tasks is None else tasks
    # The epoch is known when it is committed: another table's batch may be quicker.
    with jobs_described(rows.spark.sparkContext, f"Upriver: ingest {table}, epoch {log.last + 1}"):
        writer = layout.writer(*(Lot(batch, index) for index in log.indexes(table)))
        shuffles = layout.must_shuffle(tasks.next)
        runs = shuffle_runs(rows, writer) if shuffles else write_runs(rows, writer, tasks.next)
        tasks.wrote(next(iter(runs.values())), time.monotonic() - began)
        commit(rows.spark, layout, log, query, batch, runs)
    log.wrote(time.monotonic() - began)


def commit(
    spark: SparkSession, layout: Layout, log: EpochLog, query: str, batch: int, runs: Mapping[Channel, Runs]
) -> None:
    """Commit a batch's runs, which are in the lake, as the next epoch."""
    source = next(iter(runs.values()))
    while lacking := log.publish(layout.table.name, query, batch, runs):
        # The rows are taken from the runs: if the source were read again, it might not give the same.
        writer = layout.writer(*(Lot(batch, index) for index in lacking))
        rewritten = rewrite_runs(spark, [source] * len(lacking), writer)
        runs = {**runs, **{writer.channel(lot): written for lot, written in enumerate(rewritten)}}


@dataclass(frozen=True, slots=True)
class _QueryAttempt:
    """One run of a table's streaming query."""

    number: int
    query: StreamingQuery
    drain: Drain
    outcome: "_Outcome"
    callback: BatchCallback

    def let_go(self) -> None:
        """The query is over: keep no thread, and nothing for the callback."""
        self.drain.stop()
        self.callback.forget()


class _Outcome:
    """The result of the micro-batches of one attempt."""

    def __init__(self) -> None:
        self.batches = 0
        """Committed."""
        self.error: Exception | None = None
        """The error that has ended the query, as raised here; Spark repeats it among the lines of its stack."""


def unended(attempt: int) -> IngestFailed:
    """The error of a start while the attempt before goes on."""
    return IngestFailed(f"attempt {attempt} was to end, and has not: another one would take its rows a second time")


class StreamIngest:
    """A streaming DataFrame: one epoch per micro-batch. An attempt is one run of its query.

    trigger: as for ``DataStreamWriter.trigger``; by default the next batch starts when the last one is done. source:
    the record of the source. stopping: Spark's limit of a query's end.
    """

    def __init__(
        self,
        rows: DataFrame,
        layout: Layout,
        log: EpochLog,
        trigger: Mapping[str, Any],
        source: SourceRecord,
        stopping: SessionSetting = STOPPING,
    ) -> None:
        self._rows = rows
        self._source = source
        self._stopping = stopping
        self._layout = layout
        self._log = log
        self._trigger = trigger
        self._table = layout.table.name
        self._tasks = BatchTasks(layout.groups)
        self._sizes: BatchSizes | None = None
        self._way = WayIn(self._table, rows)
        self._runs_python = runs_python(rows)
        names = source_names(rows)
        self._reads = f"it reads {names}" if names else ""
        self._running: _QueryAttempt | None = None

    def start(self, attempt: int) -> None:
        """Start the query; its checkpoint lies in the lake. Leftovers of a killed driver there are swept."""
        self._check_ended()
        self._tasks, self._sizes = BatchTasks(self._layout.groups), None  # after a failure nothing is sure of the rows
        files = open_files(self._layout.root)
        has_epochs = self._log.query_of(self._table) not in (None, self._source.replaces)
        sweep_checkpoint(files, self._source.directory(self._table), has_epochs)
        files.make_directory("ingest")  # Spark's files are as private as it
        # Two apps in one session may have tables of one name, but Spark allows no two queries of one name.
        name = f"upriver-{self._table}-{uuid4().hex[:8]}"
        outcome, started, ids = _Outcome(), threading.Event(), list[str]()

        def take(rows: DataFrame, batch: int) -> str | None:
            started.wait()
            try:
                self._publish_batch(rows, batch, ids[0])
                outcome.batches += 1
            except Exception as error:
                outcome.error = error
                return self.failure_of(error).error
            return None

        callback = BatchCallback(take)
        writer = self._rows.writeStream.queryName(name).foreachBatch(callback)
        if self._trigger:
            writer = writer.trigger(**self._trigger)
        with _POLLING.of(self._rows.sparkSession):
            query = writer.option("checkpointLocation", self._checkpoint).start()
        ids.append(str(query.id))
        drain = Drain(query, takes_all_files=takes_all_files(self._rows, self._trigger))
        self._running = _QueryAttempt(attempt, query, drain, outcome, callback)
        started.set()

    def _check_ended(self) -> None:
        """Raise IngestFailed if the attempt before goes on: nothing is swept, or taken, beside it."""
        if self._running is not None:
            thread = self._running.query._jsq.streamingQuery().queryExecutionThread()
            thread.join(int(1000 * UNENDED_S_MAX))
            if thread.isAlive():
                raise unended(self._running.number)

    @property
    def _checkpoint(self) -> str:
        """Where Spark records what it has read."""
        return f"{spark_address(self._layout.root)}/{self._source.directory(self._table)}"

    def _publish_batch(self, rows: DataFrame, batch: int, query: str) -> None:
        table = self._table
        before = self._log.query_of(table)
        if not self._source.accepts(before, query):  # lake.one_spark_checkpoint
            what = (
                f"it was loaded from a DataFrame that is not streaming in {self._layout.root}; give it that one again"
                if before == LOAD_QUERY
                else f"its Spark checkpoint ({self._checkpoint}) is not the one its rows came from, so they would come "
                f"twice; restore the checkpoint"
            )
            raise DeclarationError(
                f"{what}, declare the table with replace_source=True to add all rows of this stream to those that are "
                f"there, or start on another root."
            )
        if before == query and batch <= self._log.last_batch(table):  # lake.published_is_skipped
            return
        self._sizes = self._sizes or BatchSizes(rows, self._runs_python)
        self._sizes.follow(self._tasks.row_bytes)
        self._way.take(
            rows,
            lambda: self._planned(batch),
            lambda given: publish_batch(given, self._layout, self._log, query, batch, self._tasks),
        )

    def _planned(self, batch: int) -> Any:
        """Spark's physical plan of a batch under way."""
        assert self._running is not None
        execution = self._running.query._jsq.streamingQuery().lastExecution()
        if execution.currentBatchId() != batch:
            raise NotAScan("Spark's plan of a batch cannot be found")
        return execution.executedPlan()

    def look(self) -> Seen:
        """The query, as Spark has it."""
        running = self._running
        assert running is not None
        query, batches = running.query, running.outcome.batches
        if revive_callback_server(self._rows.sparkSession):
            _LOG.warning(
                "py4j had stopped accepting the JVM's calls, as it does without descriptors; it accepts them again"
            )
        if not query.isActive:
            running.let_go()
            failure = self._failure(running)
            return Seen(running.number, running.outcome.batches, is_over=True, failure=failure)
        doing = str(query.status["message"])
        read_through = running.drain.read_through()
        at = f"{doing} ({self._reads})" if self._reads else doing
        return Seen(
            running.number,
            batches,
            is_idle=doing.startswith(_IDLE),
            is_asking=doing.startswith(_ASKING),
            read_through=read_through,
            doing=at,
            way=self._way.told(),
        )

    def _failure(self, running: _QueryAttempt) -> SourceFailure | None:
        """The error that ended the query; ``None`` if it was to take all rows there were, and has done so."""
        failure = failure_of_query(running.query, self._place)
        if failure is not None:
            return failure if running.outcome.error is None else self.failure_of(running.outcome.error)
        if self._trigger.keys() & _ENDING_TRIGGERS:
            return None
        return SourceFailure("its Spark query was stopped by another than the app.", is_permanent=True)

    def wait_compared(self, seconds: float) -> None:
        """The rows of a stream are not compared."""

    def wait_begun(self, seconds: float) -> None:
        """Wait until the query has finished a batch, has nothing to do, or is over."""
        give_up_at = time.monotonic() + seconds
        while time.monotonic() < give_up_at:
            seen = self.look()
            if seen.is_over or seen.is_idle or seen.batches:
                return
            time.sleep(BEGUN_POLL_S)

    def failure_of(self, error: Exception) -> SourceFailure:
        """The meaning of a query's error. Spark may not say where it could not read or write."""
        return failure_of(error, self._place)

    @property
    def _place(self) -> str:
        places = [f"its checkpoint is {self._checkpoint}", self._reads]
        return f" ({'; '.join(filter(None, places))})"

    def has_jobs(self) -> bool:
        """Whether Spark runs a job for the query."""
        assert self._running is not None
        tracker = self._rows.sparkSession.sparkContext.statusTracker()
        of_query = tracker.getJobIdsForGroup(str(self._running.query.runId))
        return not set(tracker.getActiveJobsIds()).isdisjoint(of_query)

    def drain(self, since: float, seconds_left: Callable[[], float]) -> None:
        running = self._running
        assert running is not None
        if not running.drain.wait(since, seconds_left):
            raise WaitTimeout(f"table {self._table!r}: its source has rows that Spark has not taken yet; wait longer")

    def stop(self) -> None:
        """Stop the query, which has a limit; a batch in flight is abandoned and comes again with the next
        attempt."""
        if (running := self._running) is not None:
            try:
                with unless_stopped(self._rows.sparkSession), self._stopping.of(self._rows.sparkSession):
                    running.query.stop()
            finally:
                running.let_go()
