"""The tables of a running app, and the sources that feed them: those that it began with, and those that come and go.

A table that is added is first written to the lake's record, because workers look there when a view of it is assigned.
Then its source starts. If the source fails at once, the table is taken back, and all is as before. A dropped table is
for the lake what a table is that a start does not declare: its rows, its indexes and Spark's checkpoint stay. So a
table that is declared again goes on from there, as after a restart.
"""

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from threading import TIMEOUT_MAX, Lock
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from upriver.errors import UpriverError, WaitTimeout
from upriver.lake.control_keeper import ControlKeeper
from upriver.lake.lake import LakeRecord, OwnedLake
from upriver.lake.source_records import SourceRecord, is_new, source_of
from upriver.plan.plan import TableSpec
from upriver.plan.provenance import indexes_of
from upriver.progress import Told
from upriver.runtime.app_progress import AppProgress
from upriver.runtime.source_supervisor import Ingest, SourceSupervisor
from upriver.spark.ingest import EpochLog, Layout, StreamIngest
from upriver.spark.loads import LoadIngest, OnChange
from upriver.spark.retention import first_retention
from upriver.spark.runs import TASK_MEMORY, Lot, RunWriter
from upriver.spark.session import checked_settings
from upriver.spark.sources import source_digest

_LOG = logging.getLogger("upriver.app")

COMPARISON_S_MAX = 10.0
"""Seconds that a start waits to know whether DataFrames that are not streaming have the rows that were loaded, and
that an added table waits for its source to run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartedSource:
    """A declared table and the DataFrame that feeds it. trigger: as for ``DataStreamWriter.trigger``.

    sets_aside: whether a bad row, from which a view cannot be computed, is set aside, or makes the view fail.
    on_change: what happens to a DataFrame, not streaming, whose rows differ from those at the last start.
    replaces_others: whether a streaming DataFrame continues a table that another source has fed.
    """

    table: TableSpec
    rows: DataFrame
    trigger: Mapping[str, Any]
    sets_aside: bool = False
    on_change: OnChange = OnChange.REFUSE
    replaces_others: bool = False


class DeclaredTables:
    """One app's tables. One thread at a time calls ``add`` and ``drop``; any thread may read.

    supervisor: of their sources.
    """

    def __init__(self, spark: SparkSession, sources: Sequence[StartedSource], task_memory: int = TASK_MEMORY) -> None:
        """task_memory: bytes of an ingest task."""
        self._spark = spark
        self._task_memory = task_memory
        self._sources: Mapping[str, StartedSource] = {source.table.name: source for source in sources}
        """Replaced, and never changed, as the next one."""
        self._layouts: Mapping[str, Layout] = {}
        self._groups = 1
        self._lake: OwnedLake | None = None
        self._log: EpochLog | None = None
        self._control: ControlKeeper | None = None
        self._progress: AppProgress | None = None
        self.supervisor = SourceSupervisor(self._sources)

    @property
    def specs(self) -> tuple[TableSpec, ...]:
        """The tables, as declared."""
        return tuple(source.table for source in self._sources.values())

    @property
    def set_aside(self) -> list[str]:
        """Those whose bad rows are set aside."""
        return [name for name, source in self._sources.items() if source.sets_aside]

    def layout(self, table: str) -> Layout:
        """How a table is kept: with all columns that it has ever had."""
        return self._layouts[table]

    # The start

    def open(self, lake: OwnedLake, groups: int) -> None:
        """The lake is this driver's, and its record has the tables. groups: Spark tasks that write a batch at most."""
        self._lake, self._groups = lake, groups
        self._layouts = {name: self._layout_of(source) for name, source in self._sources.items()}

    def _layout_of(self, source: StartedSource) -> Layout:
        assert self._lake is not None
        record = self._lake.kept_record()
        (schema,) = (table.schema for table in record.tables if table.name == source.table.name)
        return Layout(
            root=self._lake.root,
            table=replace(source.table, schema=schema),
            vnodes=record.vnodes,
            groups=self._groups,
            format=record.format,
            task_memory=self._task_memory,
        )

    def expect(self, log: EpochLog, control: ControlKeeper, progress: AppProgress) -> None:
        """All epochs in the lake are known, and the sources are about to start."""
        self._log, self._control, self._progress = log, control, progress
        replaced = [name for name, source in self._sources.items() if self._is_replaced(source)]
        had_rows = {name: log.query_of(name) is not None for name in self._sources}
        progress.expect_sources(had_rows, log.last, control.marks_but_of(replaced))

    def _is_replaced(self, source: StartedSource) -> bool:
        """Whether the source takes the place of another one that has fed the table."""
        assert self._lake is not None
        assert self._log is not None
        table = source.table.name
        return source.replaces_others and is_new(
            self._lake, table, source_digest(source.rows), self._log.query_of(table)
        )

    def ways_of_batches(self, check: Callable[[], None]) -> Iterator[tuple[StructType, RunWriter]]:
        """Spark's schema of each table, and the writer of its batches. check: called before each."""
        assert self._log is not None
        for name, source in self._sources.items():
            check()
            lots = (Lot(0, index) for index in self._log.indexes(name))
            yield source.rows.schema, self._layouts[name].writer(*lots)

    def start(self) -> None:
        """Start the sources."""
        assert self._progress is not None
        ingests = {name: self._ingest_of(source) for name, source in self._sources.items()}
        self.supervisor.start(ingests, self._progress)

    def _ingest_of(self, source: StartedSource) -> Ingest:
        assert self._lake is not None
        assert self._log is not None
        layout = self._layouts[source.table.name]
        if not source.rows.isStreaming:
            return LoadIngest(source.rows, layout, self._log, self._lake, source.on_change)
        return StreamIngest(source.rows, layout, self._log, source.trigger, self._record_of(source))

    def _record_of(self, source: StartedSource) -> SourceRecord:
        """The record of a table's stream."""
        assert self._lake is not None
        assert self._log is not None
        table, reads = source.table.name, source_digest(source.rows)
        last = self._log.query_of(table)
        return source_of(self._lake, table, reads, last, replaces_others=source.replaces_others)

    # While the app runs

    def add(
        self,
        source: StartedSource,
        seconds: float,
        history_lock: Lock,
        complete: Callable[[str, tuple[str, ...]], None],
        told: Told,
    ) -> None:
        """Add a table, and start its source beside the others; returns when that runs.

        history_lock: held by what rewrites the history of tables. complete: gives a table an index that it lacks. told:
        takes each step. Raises DeclarationError, IngestFailed, LakeError, or WaitTimeout after so many seconds. Then
        nothing has changed, but that the lake knows further columns of a table that it had already.
        """
        lake, log, progress = self._lake, self._log, self._progress
        assert lake is not None
        assert log is not None
        assert progress is not None
        give_up_at, name = time.monotonic() + seconds, source.table.name
        kept = lake.kept_record()
        declared = LakeRecord(
            kept.vnodes, (source.table,), indexes_of([source.table], ()), checked_settings(self._spark)
        )
        retention = first_retention(self._spark, lake.root, log.history, source.table)
        is_known = any(table.name == name for table in kept.tables)
        told(f"table {name}: adding it to the lake's record")
        with _held(history_lock if is_known else None, name, seconds):  # runs are merged in the columns that they have
            has_changed = lake.add_table(declared)
        before = self._sources, self._layouts
        try:
            self._sources = {**self._sources, name: source}
            lake.set_bad_rows_aside(self.set_aside)
            self._layouts = {**self._layouts, name: self._layout_of(source)}
            log.declare(source.table, kept.indexes[name] if is_known else declared.indexes[name], retention)
            for _, index in kept.lacking(declared) if is_known else ():
                complete(name, index)
            log.retire_rows()
            told(f"table {name}: starting its source")
            self._expect(source)
            begin_s = min(max(0.0, give_up_at - time.monotonic()), COMPARISON_S_MAX)
            self.supervisor.add(name, self._ingest_of(source), begin_s)
        except BaseException:
            self._sources, self._layouts = before
            log.undeclare(name)
            progress.forget_source(name)
            with suppress(UpriverError):  # the next table that is added, or the next start, writes it
                lake.set_bad_rows_aside(self.set_aside)
            if has_changed and not is_known and log.query_of(name) is None:
                with suppress(UpriverError):  # as if a start had declared it
                    lake.retract_table(name)
            raise
        _LOG.info("table %s is added", name, extra={"table": name})

    def _expect(self, source: StartedSource) -> None:
        """The source of one more table is about to start."""
        assert self._log is not None
        assert self._control is not None
        assert self._progress is not None
        name = source.table.name
        marks = self._control.marks_but_of([name] if self._is_replaced(source) else [])
        self._progress.expect_source(name, had_rows=self._log.query_of(name) is not None, before=marks)

    def drop(self, table: str, seconds: float) -> None:
        """End a table's source, and forget the table; no view may read it. Its rows stay in the lake.

        Raises WaitTimeout if the source has not ended in so many seconds: the table stays until another call.
        """
        assert self._log is not None
        assert self._control is not None
        assert self._progress is not None
        self.supervisor.drop(table, seconds)
        self._control.read_through(self._progress.marks())
        self._progress.forget_source(table)
        self._log.undeclare(table)
        self._sources = {name: source for name, source in self._sources.items() if name != table}
        self._layouts = {name: layout for name, layout in self._layouts.items() if name != table}
        _LOG.info("table %s is dropped", table, extra={"table": table})


@contextmanager
def _held(lock: "Lock | None", table: str, seconds: float) -> Iterator[None]:
    """Hold a lock, if there is one to hold. Raises WaitTimeout after so many seconds."""
    if lock is None:
        yield
        return
    if not lock.acquire(timeout=min(seconds, TIMEOUT_MAX)):
        raise WaitTimeout(f"table {table!r} is not declared in {seconds:g} s: the lake's history is being rewritten")
    try:
        yield
    finally:
        lock.release()
