"""Ingest: from a Spark DataFrame, streaming or not, to published epochs. Runs in the driver.

Exactly once: a batch's runs are written first, and count only when its manifest is published, by a create that fails
if the epoch is there. Each manifest names its batch, so a batch that Spark replays after a crash is recognised and
skipped. Rules I1 to I5: ``docs/design/lake.md``.
"""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol
from uuid import uuid4

from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from upriver.dataflow.plan import TableSpec, lake_channel
from upriver.errors import CorruptFile, DeclarationError, IngestFailed, UpriverError, WaitTimeout
from upriver.ids import Channel, Epoch
from upriver.shell.lake import Lake, Manifest
from upriver.shell.owned_lake import OwnedLake
from upriver.spark.drain import Drain
from upriver.spark.runs import Lot, RunWriter, quoted, rewrite_runs, write_runs, write_small_runs
from upriver.spark.small_batches import SmallBatches
from upriver.state.runs import RunInfo

LOAD_EPOCH_ROWS = 1_000_000
"""Rows of one epoch of a DataFrame that is not streaming, about; one key's rows are not parted."""
LOAD_QUERY = "load"
"""Stands in a manifest for the streaming query's id when the table's DataFrame is not streaming."""
STOP_POLL_S = 0.2
"""Seconds between two attempts to interrupt a load."""


class EpochLog:
    """Gives published batches their epochs, in one order over all tables. Called from several threads.

    on_published: told of each epoch, in order, once its manifest is in the lake. clock: seconds since 1970.
    """

    def __init__(
        self,
        lake: OwnedLake,
        history: "History",
        on_published: Callable[[Manifest], None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        record = lake.record()
        assert record is not None
        self._lake = lake
        self._history = history
        self._on_published = on_published
        self._clock = clock
        self._indexes = dict(record.indexes)
        self._lock = threading.Lock()

    @property
    def last(self) -> Epoch:
        """The highest epoch published."""
        return self._history.last

    def query_of(self, table: str) -> str | None:
        """The query whose batches the table's epochs hold; ``None`` if it has no epochs."""
        return self._history.queries.get(table)

    def last_batch(self, table: str) -> int:
        """The highest batch of the table that is published; -1 if none."""
        return self._history.batches.get(table, -1)

    def indexes(self, table: str) -> tuple[tuple[str, ...], ...]:
        """The indexes that the table's next epoch will have; more may come until it is published."""
        return self._indexes[table]

    def keep(self, table: str, index: tuple[str, ...]) -> Epoch:
        """From now on give every epoch of the table this index too; returns the last epoch that may lack it (I5)."""
        with self._lock:
            self._indexes[table] = tuple(dict.fromkeys([*self._indexes[table], index]))
            return self._history.last

    def publish(
        self, table: str, query: str, batch: int, runs: Mapping[Channel, tuple[RunInfo, ...]]
    ) -> tuple[tuple[str, ...], ...]:
        """Commit a batch as the next epoch, unless the table has got indexes that the runs lack: returns those."""
        with self._lock:
            lacking = tuple(index for index in self._indexes[table] if lake_channel(table, index) not in runs)
            if not lacking:
                epoch = Epoch(self._history.last + 1)
                manifest = Manifest(
                    epoch=epoch,
                    term=self._lake.term,
                    table=table,
                    query=query,
                    batch=batch,
                    committed_at=self._clock(),
                    runs=runs,
                )
                self._lake.publish(manifest)
                self._history.add(manifest)
                self._on_published(manifest)
            return lacking


class History:
    """What the manifests in a lake say about which batches are in it."""

    def __init__(self) -> None:
        self.last = Epoch(0)
        self.queries: dict[str, str] = {}
        self.batches: dict[str, int] = {}

    def add(self, manifest: Manifest) -> None:
        """Take note of the next epoch's manifest."""
        self.last = manifest.epoch
        self.queries[manifest.table] = manifest.query
        self.batches[manifest.table] = max(manifest.batch, self.batches.get(manifest.table, -1))


def check_taken(lake: Lake, history: History) -> None:
    """Raise CorruptFile if the lake lacks a batch that Spark will not give again: its epoch's manifest is gone."""
    for table in lake.files.names("ingest"):
        commits = f"ingest/{table}/commits"
        taken = max((int(name) for name in lake.files.names(commits) if name.isdecimal()), default=-1)
        if taken > history.batches.get(table, -1):
            raise CorruptFile(
                f"{lake.root}/epochs: the last manifests are gone: batch {taken} of table {table!r} was taken, says "
                f"{commits}, and no epoch has it. Restore them, or start on another root"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How a table is kept. groups: Spark tasks that write one index of a batch."""

    root: str
    table: TableSpec
    vnodes: int
    groups: int

    def writer(self, *lots: Lot) -> RunWriter:
        groups = min(self.groups, self.vnodes)
        return RunWriter(root=self.root, table=self.table, lots=lots, vnodes=self.vnodes, groups=groups)


Runs = dict[Channel, tuple[RunInfo, ...]]


def write_as_expected(small: SmallBatches, rows: DataFrame, writer: RunWriter) -> Runs:
    """Write a batch's runs with one task if it is expected to be small and is no larger than that, or with several."""
    if small.expected:
        began = time.monotonic()
        runs = write_small_runs(rows, writer)
        if runs is not None:
            small.wrote_alone(next(iter(runs.values())), time.monotonic() - began)
            return runs
        small.was_too_large()
    runs = write_runs(rows, writer)
    small.wrote_shared(next(iter(runs.values())))
    return runs


def publish_batch(
    rows: DataFrame,
    layout: Layout,
    log: EpochLog,
    query: str,
    batch: int,
    write: Callable[[DataFrame, RunWriter], Runs] = write_runs,
) -> None:
    """Write a batch's runs, and commit them as the next epoch."""
    table = layout.table.name
    runs = write(rows, layout.writer(*(Lot(batch, index) for index in log.indexes(table))))
    while lacking := log.publish(table, query, batch, runs):
        # The rows are taken from the runs: if the source were read again, it might not give the same.
        writer, source = layout.writer(*(Lot(batch, index) for index in lacking)), next(iter(runs.values()))
        rewritten = rewrite_runs(rows.sparkSession, [source] * len(lacking), writer)
        runs |= {writer.channel(lot): written for lot, written in enumerate(rewritten)}


class Ingest(Protocol):
    """One table's way into the lake."""

    def start(self) -> None: ...

    def drain(self, seconds_left: Callable[[], float]) -> None:
        """Wait until what the source had at the call is published.

        Raises IngestFailed if the source has failed, WaitTimeout when no time is left.
        """

    def read_through(self) -> float | None:
        """The latest known moment, in seconds of the epoch, until which all that the source had is published; ``None``
        if none is known. Returns at once. Raises as :meth:`drain` does if the source has failed."""

    def stop(self) -> None: ...


class StreamIngest:
    """A streaming DataFrame: one epoch per micro-batch.

    trigger: as for ``DataStreamWriter.trigger``; by default the next batch starts when the last one is done.
    """

    def __init__(self, rows: DataFrame, layout: Layout, log: EpochLog, trigger: Mapping[str, Any]) -> None:
        self._rows = rows
        self._layout = layout
        self._log = log
        self._trigger = trigger
        self._table = layout.table.name
        self._small = SmallBatches()
        self._query: StreamingQuery | None = None
        self._drain: Drain | None = None
        self._started = threading.Event()
        self._failure: UpriverError | None = None
        """Of ours, with which the query has failed: Spark has it, too, among the lines of its stack."""

    def start(self) -> None:
        """Start the query; its checkpoint lies in the lake."""
        writer = self._rows.writeStream.queryName(f"upriver-{self._table}").foreachBatch(self._take)
        if self._trigger:
            try:
                writer = writer.trigger(**self._trigger)
            except (PySparkException, TypeError, ValueError) as error:
                said = str(error).strip().split("\n")[0]
                raise DeclarationError(f"table {self._table!r}: trigger={self._trigger!r}: {said}") from error
        self._query = writer.option("checkpointLocation", self._checkpoint).start()
        self._drain = Drain(self._query)
        self._started.set()

    @property
    def _checkpoint(self) -> str:
        """Where Spark writes what it has taken."""
        return f"{self._layout.root}/ingest/{self._table}"

    def _take(self, rows: DataFrame, batch: int) -> None:
        try:
            self._publish_batch(rows, batch)
        except UpriverError as error:
            self._failure = error
            raise

    def _publish_batch(self, rows: DataFrame, batch: int) -> None:
        self._started.wait()
        assert self._query is not None
        table, query = self._table, str(self._query.id)
        before = self._log.query_of(table)
        if before == LOAD_QUERY:
            raise DeclarationError(
                f"table {table!r} was loaded from a DataFrame that is not streaming in {self._layout.root}; give it "
                f"that one again, or start on another root"
            )
        if before not in (None, query):  # I3
            raise DeclarationError(
                f"table {table!r}: its Spark checkpoint ({self._checkpoint}) is not the one its "
                f"rows came from, so they would come twice; restore the checkpoint, or start on another root"
            )
        if batch <= self._log.last_batch(table):  # I2
            return
        publish_batch(rows, self._layout, self._log, query, batch, partial(write_as_expected, self._small))

    def drain(self, seconds_left: Callable[[], float]) -> None:
        assert self._query is not None
        assert self._drain is not None
        drained = self._drain.wait(seconds_left)
        self._check(self._query)
        if not drained:
            raise WaitTimeout(f"table {self._table!r}: its source has rows that Spark has not taken yet; wait longer")

    def read_through(self) -> float | None:
        if self._query is None or self._drain is None:
            return None
        until = self._drain.read_through()
        if self._query.isActive:
            return until
        self._check(self._query)
        return time.time()  # it has taken all that its trigger lets it take

    def _check(self, query: StreamingQuery) -> None:
        """Raise IngestFailed if the query has failed."""
        cause = query.exception()
        if cause is not None:
            why = self._failure or self._of_spark(cause)
            raise IngestFailed(f"table {self._table!r}: its Spark query has failed: {why}") from cause

    def _of_spark(self, cause: StreamingQueryException) -> str:
        """What Spark says, without its plans. It may be that it could not write, and it does not say where."""
        said, _, _ = str(cause).partition("\n=== Streaming Query ===")
        return (
            f"{said.strip()} (its checkpoint is {self._checkpoint}). When the cause is mended, start the app again on "
            f"the same root: it goes on where it was"
        )

    def stop(self) -> None:
        """Stop the query; a batch in flight is abandoned and comes again when the app next starts."""
        if self._query is not None:
            self._query.stop()


class LoadIngest:
    """A DataFrame that is not streaming: one epoch per slice of about ``epoch_rows`` rows.

    A slice is a set of the table's keys, chosen by their hash, so that the same rows fall into the same slices when
    a load is taken up again after a crash.
    """

    def __init__(
        self, rows: DataFrame, layout: Layout, log: EpochLog, lake: OwnedLake, epoch_rows: int = LOAD_EPOCH_ROWS
    ) -> None:
        self._rows = rows
        self._layout = layout
        self._log = log
        self._lake = lake
        self._epoch_rows = epoch_rows
        self._tag = f"upriver-load-{uuid4().hex}"
        self._thread = threading.Thread(target=self._run, name=f"upriver-load-{layout.table.name}", daemon=True)
        self._done = threading.Event()
        self._stopping = threading.Event()
        self._failure: Exception | None = None

    def start(self) -> None:
        """Start to load, in a thread."""
        self._thread.start()

    def _run(self) -> None:
        self._rows.sparkSession.sparkContext.addJobTag(self._tag)
        try:
            self._load()
        except Exception as error:  # told to whoever waits
            if not self._stopping.is_set():
                self._failure = error
        self._done.set()

    def _load(self) -> None:
        table = self._layout.table
        before = self._log.query_of(table.name)
        if before not in (None, LOAD_QUERY):
            raise DeclarationError(
                f"table {table.name!r} was fed by a stream in {self._layout.root}; feed it one again"
            )
        key_hash = F.xxhash64(*(F.col(quoted(column)) for column in table.key))
        with _computed_once(self._rows) as rows:
            slices = self._slices(rows, key_hash)
            number = F.pmod(key_hash, F.lit(slices))
            for batch in range(self._log.last_batch(table.name) + 1, slices):
                if self._stopping.is_set():
                    return
                publish_batch(rows.where(number == batch), self._layout, self._log, LOAD_QUERY, batch)

    def _slices(self, rows: DataFrame, key_hash: Column) -> int:
        """Into how many epochs the rows go: decided once per lake, for these keys."""
        table = self._layout.table.name
        path = f"loads/{table}.json"
        found = rows.agg(F.count(F.lit(1)).alias("rows"), F.bit_xor(key_hash).alias("keys")).first()
        assert found is not None
        try:
            kept = self._lake.read_record(path)
        except FileNotFoundError:
            slices = max(1, -(-int(found["rows"]) // self._epoch_rows))
            self._lake.write_record(path, {**found.asDict(), "slices": slices})
            return slices
        if (kept["rows"], kept["keys"]) != (found["rows"], found["keys"]):
            raise DeclarationError(
                f"table {table!r} was loaded from {kept['rows']} rows and the DataFrame now has {found['rows']}, or "
                f"other keys; use a streaming DataFrame for rows that keep coming, or another root"
            )
        return int(kept["slices"])

    def drain(self, seconds_left: Callable[[], float]) -> None:
        if not self._done.wait(max(0.0, seconds_left())):
            raise WaitTimeout(f"table {self._layout.table.name!r} is still being loaded; wait longer")
        self._check()

    def read_through(self) -> float | None:
        if not self._done.is_set():
            return None
        self._check()
        return time.time()

    def _check(self) -> None:
        """Raise what has ended the load, if it has failed."""
        if isinstance(self._failure, UpriverError):
            raise self._failure
        if self._failure is not None:
            raise IngestFailed(f"table {self._layout.table.name!r}: {self._failure}") from self._failure

    def stop(self) -> None:
        """End the load; a slice in flight is abandoned and comes again when the app next starts."""
        self._stopping.set()
        while self._thread.is_alive():
            # Not interruptTag, which knows only the tags of the thread that calls it.
            self._rows.sparkSession.sparkContext.cancelJobsWithTag(self._tag)
            self._thread.join(STOP_POLL_S)


@contextmanager
def _computed_once(rows: DataFrame) -> Iterator[DataFrame]:
    """The same rows, kept by Spark meanwhile. What the user has cached already stays so afterwards."""
    level = rows.storageLevel
    if level.useMemory or level.useDisk:
        yield rows
        return
    cached = rows.persist()
    try:
        yield cached
    finally:
        cached.unpersist()
