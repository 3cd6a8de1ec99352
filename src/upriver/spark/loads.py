"""Tables from DataFrames that are not streaming: cut into epochs, each row once, wherever a load is resumed.

The lake records what was loaded, so that a start with other rows is noticed. The new rows are refused, or taken in as
an additional load, as the user chooses.

A load has two passes over the rows. The first computes their *digest* (``digests.py``). In the second, each task cuts
its rows into slices and writes the runs of each; then the driver commits the slices, one epoch each.

The record of a load names the columns that its digest covers. If the DataFrame has other columns now, the rows are the
same if they are in those columns; rows in the lake have null in a column that is new. A digest that covers a column
that is gone cannot be compared: then the number of rows and their keys are.
"""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial, reduce
from operator import or_
from typing import Any, Self
from uuid import uuid4

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from upriver.coordinator.sources import SourceFailure
from upriver.errors import DeclarationError, WaitTimeout
from upriver.hashing import is_plain_key_type
from upriver.ids import Channel, Epoch
from upriver.lake.lake import OwnedLake
from upriver.plan.plan import TableSpec
from upriver.records import typed
from upriver.runtime.source_supervisor import Seen
from upriver.spark.digests import Columns, Digest, columns_of, files_digest, in_columns, is_same, rows_digest
from upriver.spark.drain import POLL_S
from upriver.spark.ingest import (
    LOAD_QUERY,
    STOP_POLL_S,
    STOP_S_MAX,
    UNENDED_S_MAX,
    UNSHUFFLED_TASKS_MAX,
    EpochLog,
    Layout,
    Runs,
    WayIn,
    commit,
    unended,
)
from upriver.spark.parquet import NotAsArrow
from upriver.spark.runs import BatchRows, FileRows, KeySlice, Lot, SparkRows, quoted, write_lots
from upriver.spark.schema import spark_arrow_schema
from upriver.spark.session import cancel_jobs
from upriver.spark.sources import failure_of
from upriver.spark.tables import table_as_of

LOAD_EPOCH_ROWS = 1_000_000
"""Rows of one epoch of a DataFrame that is not streaming, approximately; one key's rows stay together."""
PASS_SLICES_MAX = 64
"""Slices of one pass over the rows: each task writes at least one run for each."""
TASK_ROWS = 250_000
"""Rows that a task of a pass takes, if there are not more tasks than may write without a shuffle."""


class OnChange(StrEnum):
    """What happens to a DataFrame whose rows differ from those that were loaded before."""

    REFUSE = "refuse"
    """The table's source fails with an error that says so."""
    TAKE_IN = "take_in"
    """A table with a primary key loads all rows again, as versions. Any other table adds the rows that are new; the
    load is refused if rows are gone."""


@dataclass(frozen=True, slots=True)
class _Load:
    """A load that has begun. digest: of the DataFrame's rows. first: its first batch, of ``slices``.

    since: only rows are loaded that the table lacked at the end of this epoch; ``None``: all. columns: that the digest
    covers; ``None`` in a record that is older than this field: the first columns that the table has had.
    """

    digest: Mapping[str, Any]
    first: int
    slices: int
    since: Epoch | None
    columns: Columns | None

    def to_json(self) -> dict[str, Any]:
        own = {"first": self.first, "slices": self.slices, "since": self.since, "columns": self.columns}
        return {**self.digest, **own}

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Self:
        digest = dict(record)
        slices, first, since = digest.pop("slices"), digest.pop("first", 0), digest.pop("since", None)
        columns = digest.pop("columns", None)
        covered = None if columns is None else tuple((name, type) for name, type in columns)
        return typed(cls(digest, first, slices, None if since is None else Epoch(since), covered))


def _load_path(table: str, number: int) -> str:
    return f"loads/{table}/{number}.json" if number else f"loads/{table}.json"


class _LoadAttempt:
    """One run of a load, in a thread of its own. load: runs until it is done or ``stopping`` is set."""

    def __init__(self, number: int, table: str, load: Callable[["_LoadAttempt"], None]) -> None:
        self.number = number
        self.batches = 0
        """Committed."""
        self.doing = ""
        self.error: Exception | None = None
        self.is_compared = threading.Event()
        """Whether the rows are the same as at an earlier load is known, or there was none; or the attempt is over."""
        self.done = threading.Event()
        self.stopping = threading.Event()
        self.tag = f"upriver-load-{uuid4().hex}"
        """The tag of its Spark jobs."""
        self._load = load
        self.thread = threading.Thread(target=self._run, name=f"upriver-load-{table}", daemon=True)

    def _run(self) -> None:
        try:
            self._load(self)
        except Exception as error:  # the supervisor sees it
            if not self.stopping.is_set():
                self.error = error
        self.done.set()
        self.is_compared.set()


class LoadIngest:
    """A DataFrame that is not streaming: one epoch per slice of about ``epoch_rows`` rows.

    A slice is a set of the table's keys, chosen by their hash, so that the same rows fall into the same slices when a
    load is resumed after a crash.
    """

    def __init__(
        self,
        rows: DataFrame,
        layout: Layout,
        log: EpochLog,
        lake: OwnedLake,
        on_change: OnChange = OnChange.REFUSE,
        epoch_rows: int = LOAD_EPOCH_ROWS,
        stop_s_max: float = STOP_S_MAX,
    ) -> None:
        self._rows = rows
        self._layout = layout
        self._given = replace(layout.table, schema=_given(layout.table, rows))
        """The table in the columns that the DataFrame has."""
        self._log = log
        self._lake = lake
        self._on_change = on_change
        self._epoch_rows = epoch_rows
        self._stop_s_max = stop_s_max
        self._way = WayIn(layout.table.name, rows, is_fixed=True)
        self._running: _LoadAttempt | None = None

    def start(self, attempt: int) -> None:
        """Start to load, in a thread."""
        if (before := self._running) is not None:
            before.thread.join(UNENDED_S_MAX)
            if before.thread.is_alive():
                raise unended(before.number)
        self._running = _LoadAttempt(attempt, self._layout.table.name, self._load)
        self._running.thread.start()

    def _load(self, attempt: _LoadAttempt) -> None:
        table, context = self._layout.table, self._rows.sparkSession.sparkContext
        context.addJobTag(attempt.tag)
        context.setJobDescription(f"Upriver: load {table.name}")
        before = self._log.query_of(table.name)
        if before not in (None, LOAD_QUERY):
            raise DeclarationError(f"it was fed by a stream in {self._layout.root}; feed it one again.")
        # Planned anew for each load: Spark keeps the plan of a DataFrame, with the files that there were.
        planned = self._rows.select("*")._jdf.queryExecution().executedPlan
        self._way.take(self._rows, planned, partial(self._take, attempt))

    def _take(self, attempt: _LoadAttempt, given: BatchRows) -> None:
        with ExitStack() as cached:
            rows: DataFrame | None = None
            if isinstance(given, FileRows):
                digest_of = partial(self._digest_of_files, given)
            else:
                rows = cached.enter_context(_computed_once(self._rows))
                given, digest_of = SparkRows(rows), partial(self._digest_of_rows, rows)
            if self._last_load() is None:
                attempt.is_compared.set()
            attempt.doing = "reading its rows, to compare them"
            load = self._begun(rows, digest_of)
            attempt.is_compared.set()
            if load.since is not None:
                added = self._added(_compared_by_spark(rows), load.since)
                given = SparkRows(cached.enter_context(_computed_once(added)))
            self._publish(given, load, attempt)

    def _digest_of_rows(self, rows: DataFrame, columns: Columns) -> Digest:
        key_hash = F.xxhash64(*(F.col(quoted(column)) for column in self._given.key))
        return rows_digest(in_columns(rows, columns), key_hash)

    def _digest_of_files(self, given: FileRows, columns: Columns) -> Digest:
        types = dict(columns_of(self._rows, self._rows.columns))
        if changed := [name for name, type in columns if types.get(name, type) != type]:
            raise NotAsArrow(f"column {changed[0]!r} had another type when it was loaded")
        schema = spark_arrow_schema(self._rows.schema, "UTC")
        covered = pa.schema([schema.field(name) for name, _ in columns if name in types])
        if nested := [field.name for field in covered if not is_plain_key_type(field.type)]:
            raise NotAsArrow(f"column {nested[0]!r} is of a type that Spark compares in its own way")
        return files_digest(given, replace(self._given, schema=covered), self._tasks)

    @property
    def _tasks(self) -> int:
        """Tasks of a pass at most."""
        tasks = min(self._layout.groups, UNSHUFFLED_TASKS_MAX)
        return 1 if self._layout.must_shuffle(tasks) else tasks

    def _publish(self, given: BatchRows, load: "_Load", attempt: _LoadAttempt) -> None:
        """Publish the slices of a load that are not in the lake yet."""
        name, slices = self._layout.table.name, load.slices
        tasks = min(self._tasks, max(1, -(-load.digest["rows"] // TASK_ROWS)))
        end, began = load.first + slices, time.monotonic()
        begin = first = max(load.first, self._log.last_batch(name) + 1)
        while begin < end and not attempt.stopping.is_set():
            of_pass = range(begin, min(end, begin + PASS_SLICES_MAX))
            sorting = f"{of_pass.start - load.first} of {slices} epochs are there, and {len(of_pass)} are being sorted"
            attempt.doing = sorting + _estimate(time.monotonic() - began, begin - first, end - begin)
            pass_began = time.monotonic()
            written = self._written(given, load, of_pass, tasks)
            for batch, runs in written.items():
                if attempt.stopping.is_set():
                    return
                commit(given.spark, self._layout, self._log, LOAD_QUERY, batch, runs)
                attempt.batches += 1
            self._log.wrote(time.monotonic() - pass_began)
            begin = of_pass.stop

    def _written(
        self, given: BatchRows, load: "_Load", batches: Iterable[int], tasks: int
    ) -> dict[int, dict[Channel, Runs]]:
        """The runs of some batches, each a slice of the rows, after one pass over these."""
        indexes = self._log.indexes(self._layout.table.name)
        slices = {batch: None if load.slices == 1 else KeySlice(batch - load.first, load.slices) for batch in batches}
        writer = self._layout.writer(*(Lot(batch, index, cut) for batch, cut in slices.items() for index in indexes))
        written: dict[int, dict[Channel, Runs]] = {}
        for number, (lot, runs) in enumerate(zip(writer.lots, write_lots(given, writer, tasks), strict=True)):
            written.setdefault(lot.batch, {})[writer.channel(number)] = runs
        return written

    def _begun(self, rows: DataFrame | None, digest_of: Callable[[Columns], Digest]) -> "_Load":
        """The load of these rows, as it is recorded in the lake, or recorded now."""
        last, columns = self._last_load(), columns_of(self._rows, self._given.schema.names)
        if last is None:
            digest = digest_of(columns)
            return self._record(0, _Load(digest, 0, self._slices(digest["rows"]), None, columns))
        number, load = last
        covered = self._first_columns() if load.columns is None else load.columns
        found = digest_of(covered)
        has_all = {name for name, _ in covered} <= set(self._rows.columns)
        digest = found if covered == columns else digest_of(columns)
        comparable = found if has_all else {name: found[name] for name in ("rows", "keys")}
        if is_same(load.digest, comparable) and not self._loads_new_values(rows, covered):
            if covered == columns:
                return load
            self._check_whole(load)
            return self._record(number + 1, replace(load, digest=digest, columns=columns))
        if self._on_change is OnChange.REFUSE:
            way = (
                "to load all of them again as versions"
                if self._layout.table.primary_key
                else "to take in what is new; if rows change or go, give it a primary_key, on another root"
            )
            raise DeclarationError(
                f"the DataFrame has other rows than were loaded into {self._layout.root} ({load.digest['rows']:,} rows "
                f"then, {digest['rows']:,} now). Declare the table with on_changed_rows='take_in' {way}; use a "
                f"streaming DataFrame for rows that keep coming; or start on another root."
            )
        first = self._log.last_batch(self._layout.table.name) + 1
        if self._layout.table.primary_key:  # of each row, the last version counts, however often it comes
            return self._record(number + 1, _Load(digest, first, self._slices(digest["rows"]), None, columns))
        since, compared = self._log.last, _compared_by_spark(rows)
        added = self._added(compared, since)
        self._check_none_gone(compared, since)
        return self._record(number + 1, _Load(digest, first, self._slices(added.count()), since, columns))

    def _loads_new_values(self, rows: DataFrame | None, covered: Columns) -> bool:
        """Whether to load all rows again because they have values in columns that were not there at the last load."""
        if self._on_change is OnChange.REFUSE or not self._layout.table.primary_key:
            return False
        known = {name for name, _ in covered}
        new = [F.col(quoted(name)).isNotNull() for name in self._given.schema.names if name not in known]
        return bool(new) and not _compared_by_spark(rows).where(reduce(or_, new)).isEmpty()

    def _first_columns(self) -> Columns:
        """The first columns that the table has had."""
        schema = self._lake.run_schemas(self._layout.table.name)[0].remove(0)
        types = from_arrow_schema(schema, prefer_timestamp_ntz=True)
        return tuple((field.name, field.dataType.simpleString()) for field in types)

    def _check_whole(self, load: _Load) -> None:
        """The rows that a load lacks are told by all columns, so those must be the same until it has all rows."""
        if load.since is not None and self._log.last_batch(self._layout.table.name) < load.first + load.slices - 1:
            raise DeclarationError(
                "its last load was interrupted, and the DataFrame's columns have changed since. Start once with the "
                "columns as they were, until the table is loaded."
            )

    def _slices(self, rows: int) -> int:
        return max(1, -(-rows // self._epoch_rows))

    def _last_load(self) -> "tuple[int, _Load] | None":
        """The last load that has begun, and its number: 0, plus one for each time that rows had changed."""
        table = self._layout.table.name
        number = self._lake.last_number(f"loads/{table}")
        try:
            return number, self._lake.read_as(_load_path(table, number), _Load.from_json)
        except FileNotFoundError:
            return None

    def _record(self, number: int, load: "_Load") -> "_Load":
        self._lake.write_record(_load_path(self._layout.table.name, number), load.to_json())
        return load

    def _added(self, rows: DataFrame, since: Epoch) -> DataFrame:
        """Rows that the table lacked at the end of an epoch; of equal rows, as many as it lacked."""
        return self._compared(rows).exceptAll(self._loaded(rows, since))

    def _check_none_gone(self, rows: DataFrame, since: Epoch) -> None:
        if not self._loaded(rows, since).exceptAll(self._compared(rows)).isEmpty():
            raise DeclarationError(
                f"rows that were loaded into {self._layout.root} have changed, or are gone from the DataFrame, and a "
                f"table without a primary_key keeps all rows. Start on another root; give a primary_key if rows change."
            )

    def _compared(self, rows: DataFrame) -> DataFrame:
        return rows.select(*(F.col(quoted(name)) for name in self._given.schema.names))

    def _loaded(self, rows: DataFrame, since: Epoch) -> DataFrame:
        return table_as_of(rows.sparkSession, self._layout.root, self._given, since)

    def look(self) -> Seen:
        """The state of the load."""
        running = self._running
        assert running is not None
        is_over = running.done.is_set()  # before its error, which is set by then
        failure = None if running.error is None else self.failure_of(running.error)
        return Seen(
            running.number,
            running.batches,
            is_over=is_over,
            failure=failure,
            doing=running.doing,
            way=self._way.told(),
        )

    def wait_compared(self, seconds: float) -> None:
        assert self._running is not None
        self._running.is_compared.wait(max(0.0, seconds))

    def wait_begun(self, seconds: float) -> None:
        """Wait until the rows are compared, or the load is over."""
        self.wait_compared(seconds)

    def has_jobs(self) -> bool:
        """Whether Spark runs a job for the load."""
        assert self._running is not None
        tracker = self._rows.sparkSession.sparkContext._jsc.sc().statusTracker()
        return not set(tracker.getActiveJobIds()).isdisjoint(tracker.getJobIdsForTag(self._running.tag))

    def failure_of(self, error: Exception) -> SourceFailure:
        """The meaning of an error of the load."""
        return failure_of(error)

    def drain(self, since: float, seconds_left: Callable[[], float]) -> None:
        running = self._running
        assert running is not None
        while not running.done.wait(POLL_S):
            if seconds_left() <= 0:
                raise WaitTimeout(f"table {self._layout.table.name!r} is still being loaded; wait longer")

    def stop(self) -> None:
        """End the load, in ``stop_s_max`` seconds; a slice in flight is abandoned and comes again with the next
        attempt. Raises WaitTimeout."""
        if (running := self._running) is None:
            return
        running.stopping.set()
        give_up_at = time.monotonic() + self._stop_s_max
        while running.thread.is_alive():
            cancel_jobs(self._rows.sparkSession, running.tag)
            running.thread.join(STOP_POLL_S)
            if time.monotonic() > give_up_at:
                raise WaitTimeout(
                    f"a load has not ended in {self._stop_s_max:g} s; its last word was {running.doing!r}"
                )


def _compared_by_spark(rows: DataFrame | None) -> DataFrame:
    """The rows that Spark has cached, so that all that is compared is of one moment. ``None``: they are in files."""
    if rows is None:
        raise NotAsArrow("Spark compares its rows, which have changed, with those in the lake")
    return rows


def _estimate(seconds: float, done: int, left: int) -> str:
    """How long slices still take, judged by those that are done."""
    return f"; about {seconds / done * left:.0f} s are left" if done else ""


def _given(table: TableSpec, rows: DataFrame) -> pa.Schema:
    """The columns of a table that the rows have."""
    return pa.schema([field for field in table.schema if field.name in rows.columns])


@contextmanager
def _computed_once(rows: DataFrame) -> Iterator[DataFrame]:
    """The same rows, cached by Spark meanwhile. A DataFrame that the user has cached stays cached afterwards."""
    level = rows.storageLevel
    if level.useMemory or level.useDisk:
        yield rows
        return
    cached = rows.persist()
    try:
        yield cached
    finally:
        cached.unpersist()
