"""Spark writes runs: hash64, sort, files. Runs in executors and in the driver. Rows come from Spark, or
from files that its tasks read.

One Spark job writes all *lots*: a lot is the rows of one batch in the order of one index. Each task sorts its own rows,
once per lot, and writes them. Rows that are too many to be sorted at once are sorted in chunks, which lie on a local
disk, and merged.

Rows that are in the lake get into another order in the same way, for an index that a table gets later.

With very many tasks, readers would look for a key in too many runs. So these rows go through Spark's shuffle. The first
stage packs the rows, once per lot. Spark shuffles the packed values, so that partition ``lot * groups + group`` holds
exactly one lot's rows of one contiguous group of vnodes. The second stage unpacks them in order and writes them.

Spark's shuffle and sort handle rows one at a time. This would cost more than the rest of a row's way into the lake. So
a task first gathers rows, orders them by vnode and packs them in Arrow: the shuffle then moves a few large binary
values. A *shelf* is a contiguous range of vnodes, smaller than a task's group. One packed value holds rows of one
shelf, and Spark sorts the values by shelf, so a task that unpacks them holds one shelf at a time.
"""

import json
import logging
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Protocol, Self
from uuid import uuid4
from weakref import WeakSet

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark import TaskContext
from pyspark.errors import PySparkException, PythonException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import (
    BooleanType,
    DateType,
    DayTimeIntervalType,
    NumericType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from upriver.errors import DeclarationError, ProtocolError
from upriver.hashing import hash64
from upriver.ids import Channel
from upriver.lake.files import Files, open_files
from upriver.lake.lake import Lake
from upriver.plan.plan import TableSpec, lake_channel
from upriver.spark.host import cause_of_job_failure, raised_in_task
from upriver.spark.parquet import FileChanged, FileScan, NotAsArrow, cut
from upriver.spark.partitions import partitioned_by
from upriver.spark.session import java_class, map_in_arrow
from upriver.state.run_order import merged, sorted_order
from upriver.state.runs import HASH_COLUMN, RESERVED_COLUMNS, RunInfo, describe_run, encode_run, run_schema
from upriver.state.span import TimeSpan
from upriver.vnodes import vnodes_of

if TYPE_CHECKING:
    from upriver.spark.file_scans import PlannedScan  # the SQL front end comes with it, which tasks do without

_LOG = logging.getLogger("upriver.ingest")

SHELVES_PER_GROUP = 8
"""Shelves of one vnode group, unless it has fewer vnodes."""
PACK_ROWS_MAX = 500_000
"""Rows that are gathered before they are packed."""
BATCH_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"
BATCH_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
UNTOUCHED = f"{64 << 20}b"
"""Spark's own limit of a batch's bytes, as it is told."""
UNLIMITED = str((1 << 31) - 1)
"""The only number that Spark takes for no limit."""
UNCHECKED_BYTES_MAX = 64 << 20
"""Bytes that a batch of rows is to have without being measured."""
UNCHECKED_ROW_BYTES_MAX = 64 << 10
"""Bytes of a row, on average, up to which the next rows are handed over without being measured."""
UNCHECKED_ROWS_MAX = 256
"""Rows of such a batch: a quarter of a GiB if they are of 1 MiB after all."""
FIXED_BYTES_MAX = 17
"""Bytes of a value of a fixed width in Arrow, with its share of the validity."""
_PYTHON_NODES = re.compile("InArrow|InPandas|InPySpark|Python|PandasUDF")
"""In names of nodes of plans."""
_FIXED_WIDTH = (NumericType, BooleanType, DateType, TimestampType, TimestampNTZType, DayTimeIntervalType)
PACKED_SQL = "partition int, shelf int, rows binary"
_PACKED = pa.schema([("partition", pa.int32()), ("shelf", pa.int32()), ("rows", pa.binary())])


@dataclass(frozen=True, slots=True)
class Shelves:
    """Where vnodes go: ``groups`` contiguous ranges of vnodes, each cut into the same number of shelves."""

    vnodes: int
    groups: int

    @property
    def per_group(self) -> int:
        return max(1, min(SHELVES_PER_GROUP, self.vnodes // self.groups))

    def of(self, hashes: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint16]:
        """The shelf of each row, counted over all groups."""
        shelves = vnodes_of(hashes, self.vnodes).astype(np.int64) * (self.groups * self.per_group) // self.vnodes
        return shelves.astype(np.uint16)


def pack(
    rows: pa.Table, schema: pa.Schema, lots: Mapping[int, Sequence[str]], shelves: Shelves
) -> Iterator[pa.RecordBatch]:
    """The rows once per lot, as packed values. schema: of the table; ``rows`` has its columns, in its order.

    lots: numbers of lots, and the columns by which each is kept. The partitions of lot ``n`` begin at ``n * groups``.
    """
    batch = _as_kept(rows, schema)
    for number, key in lots.items():
        hashes = hash64([batch.column(name) for name in key], batch.num_rows)
        shelf_of = shelves.of(hashes)
        order = np.argsort(shelf_of, kind="stable")  # a radix sort, since shelves are 16-bit
        taken = pa.array(order)
        hashed = pa.RecordBatch.from_arrays(
            [pa.array(hashes[order]), *(column.take(taken) for column in batch.columns)], schema=run_schema(schema)
        )
        used, starts = np.unique(shelf_of[order], return_index=True)
        ends = [*starts[1:].tolist(), len(order)]
        packed = [
            hashed.slice(start, end - start).serialize().to_pybytes() for start, end in zip(starts, ends, strict=True)
        ]
        partitions = number * shelves.groups + used.astype(np.int32) // shelves.per_group
        columns = [pa.array(partitions, pa.int32()), pa.array(used, pa.int32()), pa.array(packed, pa.binary())]
        yield pa.RecordBatch.from_arrays(columns, schema=_PACKED)


def in_order(rows: pa.Table, schema: pa.Schema, key: Sequence[str], order_by: Sequence[str]) -> pa.RecordBatch:
    """Rows in the form that :func:`unpack` gives, without packing. schema: of the table, as for :func:`pack`."""
    batch = _as_kept(rows, schema)
    hashes = hash64([batch.column(name) for name in key], batch.num_rows)
    order = pa.array(sorted_order(hashes, batch, order_by))
    columns = [pa.array(hashes).take(order), *(column.take(order) for column in batch.columns)]
    return pa.RecordBatch.from_arrays(columns, schema=run_schema(schema))


def _as_kept(rows: pa.Table, schema: pa.Schema) -> pa.RecordBatch:
    """The rows with the names and the types of the table."""
    return pa.Table.from_arrays(rows.columns, names=schema.names).cast(schema).combine_chunks().to_batches()[0]


def unpack(packed: Iterable[pa.RecordBatch], schema: pa.Schema, order_by: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """The rows of packed values that come by shelf: by hash64, and for one hash64 in the order of ``order_by``.

    schema: of the table. One batch a shelf, with a run's schema.
    """
    held: list[pa.RecordBatch] = []
    shelf: int | None = None
    for batch in packed:
        for number, rows in zip(batch.column("shelf").to_pylist(), batch.column("rows"), strict=True):
            if number != shelf and held:
                yield _in_order(held, order_by)
                held = []
            shelf = number
            held.append(pa.ipc.read_record_batch(rows.as_buffer(), run_schema(schema)))
    if held:
        yield _in_order(held, order_by)


def _in_order(parts: Sequence[pa.RecordBatch], order_by: Sequence[str]) -> pa.RecordBatch:
    rows = pa.concat_batches(parts)
    return rows.take(pa.array(sorted_order(rows.column(0).to_numpy(), rows, order_by)))


RUN_ROWS_MAX = 4_000_000
RUN_BYTES_MAX = 128 << 20
"""Rows and bytes of one run; a task that has more writes several."""
CHUNK_ROWS_MAX = 4_000_000
"""Rows that a task sorts at once. If it has more, it writes them sorted to a local disk, and merges them."""
TASK_MEMORY = 1 << 30
"""Bytes of memory of a task, by default."""
TASK_MEMORY_FIXED = 256 << 20
"""Bytes of it that Python, its libraries and the parts of chunks that are merged take, however few the others are."""
CHUNK_SHARE, RUN_SHARE = 16, 8
"""Of the others, a task sorts one of so many parts at once, and a run is at most one of so many. The task holds a chunk
up to four times (the next one, rows under way, copies), or a run three times."""
SPILL_BATCH_BYTES = 1 << 18
"""About so many bytes of each sorted chunk are in memory while they are merged."""

_REPORT = pa.schema([("number", pa.int32()), ("told", pa.string())])
_REPORT_SQL = "number int, told string"
"""A task's report of what it has done; of a run that it has written, the number is its lot's."""
_UNREAD, _CHANGED = -1, -2
"""In place of such a number: the task could not read its files, or one has changed. It says why."""

WARM_UP_ROWS = 100_000
"""Made-up rows that test a table's way into the lake before the first batch."""
_WARM: WeakSet[SparkSession] = WeakSet()
"""Sessions in which an app has warmed up: their Python processes run, and the JVM has compiled most of its code."""

REWRITE_ROWS = 10_000
"""Rows of a run that are read at a time."""


MapTask = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]


@dataclass(frozen=True, slots=True)
class KeySlice:
    """One of several parts of rows, cut by the hash of the table's key: the rows of a key are in one part."""

    number: int
    of: int


@dataclass(frozen=True, slots=True)
class Lot:
    """A batch's rows in the order of one index. of_rows: which of the writer's rows are in the batch; ``None``: all."""

    batch: int
    index: tuple[str, ...]
    of_rows: KeySlice | None = None


@dataclass(frozen=True, slots=True)
class RunWriter:
    """The parameters of a writing task; picklable. groups: tasks per lot of a shuffle. rows_max: of one run.
    chunk_rows_max: that a task sorts at once. memory: bytes of a task."""

    root: str
    table: TableSpec
    lots: tuple[Lot, ...]
    vnodes: int
    groups: int
    rows_max: int = RUN_ROWS_MAX
    chunk_rows_max: int = CHUNK_ROWS_MAX
    memory: int = TASK_MEMORY

    @property
    def chunk_bytes_max(self) -> int:
        """Bytes that a task sorts at once."""
        return (self.memory - TASK_MEMORY_FIXED) // CHUNK_SHARE

    @property
    def run_bytes_max(self) -> int:
        """Bytes of one run."""
        return min(RUN_BYTES_MAX, (self.memory - TASK_MEMORY_FIXED) // RUN_SHARE)

    def channel(self, lot: int) -> Channel:
        """The lake edge that a lot's index feeds."""
        return lake_channel(self.table.name, self.lots[lot].index)

    def lot_keys(self) -> dict[int, tuple[str, ...]]:
        """The lots by their numbers, and the columns by which each is kept."""
        return {number: lot.index for number, lot in enumerate(self.lots)}


def check_columns(schema: pa.Schema, table: str) -> None:
    """Refuse the column names that runs reserve."""
    for column in schema.names:
        if column.lower() in RESERVED_COLUMNS:
            raise DeclarationError(f"table {table!r}: the column name {column!r} is reserved; rename it")


class BatchRows(Protocol):
    """A batch's rows, as the tasks of a Spark job get them."""

    @property
    def spark(self) -> SparkSession:
        """The session of the job."""

    def mapped(self, task: MapTask, schema: str, table: TableSpec, tasks: int) -> DataFrame:
        """What the function gives for the rows of each of at most so many tasks. schema: of what it gives. It gets the
        table's columns, in its order, under any names."""


@dataclass(frozen=True, slots=True)
class SparkRows:
    """Rows that Spark computes."""

    rows: DataFrame

    @property
    def spark(self) -> SparkSession:
        return self.rows.sparkSession

    def mapped(self, task: MapTask, schema: str, table: TableSpec, tasks: int) -> DataFrame:
        return map_in_arrow(_numbered(self.rows, table).coalesce(tasks), task, schema)


@dataclass(frozen=True, slots=True)
class FileRows:
    """Rows of files that tasks read themselves. The job's error is NotAsArrow if they cannot."""

    scan: "PlannedScan"
    spark: SparkSession

    def mapped(self, task: MapTask, schema: str, table: TableSpec, tasks: int) -> DataFrame:
        scan = self.scan.of_table(table, tasks)
        numbers = self.spark.range(0, len(scan.tasks), 1, len(scan.tasks))
        return map_in_arrow(numbers, partial(_of_files, scan, task), schema)


def _of_files(scan: FileScan, task: MapTask, numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    return task(rows for batch in numbers for number in batch.column(0).to_pylist() for rows in scan.rows(number))


def reports(rows: BatchRows, task: MapTask, table: TableSpec, tasks: int) -> list[tuple[int, str]]:
    """Run a Spark job of at most so many tasks over a batch's rows; returns what they report (:func:`report`).

    Raises NotAsArrow if they cannot read their files, DeclarationError if such a file has changed, the error of Upriver
    that a task has raised, or the job's own error.
    """
    return _collected(rows.mapped(partial(_telling, task), _REPORT_SQL, table, tasks))


def _telling(task: MapTask, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """A failure of the task would only be tried again in vain."""
    try:
        yield from task(batches)
    except NotAsArrow as error:
        yield report(_UNREAD, str(error))
    except FileChanged as error:
        yield report(_CHANGED, str(error))


def _collected(job: DataFrame) -> list[tuple[int, str]]:
    try:
        told = [(row["number"], row["told"]) for row in job.collect()]
    except PythonException as error:
        raise raised_in_task(error) from error
    for number, why in told:
        if number == _UNREAD:
            raise NotAsArrow(why)
        if number == _CHANGED:
            raise DeclarationError(f"{why}. Make the DataFrame anew, and the app with it.")
    return told


def write_runs(rows: BatchRows, writer: RunWriter, tasks: int) -> dict[Channel, tuple[RunInfo, ...]]:
    """Write a batch's runs with one Spark job of at most so many tasks; when this returns they are in the lake, and in
    no manifest.

    Each of the writer's lots is all of ``rows``, or one slice of them. Each task writes its own rows: runs of several
    tasks may have the same keys. Raises NotWritten if the lake refuses a file, and as :func:`reports`; the next start
    of the app sweeps files that the job has written by then.
    """
    return _by_channel(write_lots(rows, writer, tasks), writer)


def write_lots(rows: BatchRows, writer: RunWriter, tasks: int) -> list[tuple[RunInfo, ...]]:
    """As :func:`write_runs`, for lots of several batches; returns the runs of each lot."""
    return _of_lots(reports(rows, partial(write_own_partition, writer), writer.table, tasks), writer)


def shuffle_runs(rows: BatchRows, writer: RunWriter) -> dict[Channel, tuple[RunInfo, ...]]:
    """The same, with as many tasks as the writer has groups, after a shuffle: no two runs have the same keys, but a run
    may end between two rows of one key."""
    return _by_channel(_written(_packed(rows, writer), writer), writer)


def _by_channel(lots: Iterable[tuple[RunInfo, ...]], writer: RunWriter) -> dict[Channel, tuple[RunInfo, ...]]:
    return {writer.channel(lot): runs for lot, runs in enumerate(lots)}


def rewrite_runs(
    spark: SparkSession, sources: Sequence[Sequence[RunInfo]], writer: RunWriter
) -> list[tuple[RunInfo, ...]]:
    """Rewrite rows that are in the lake, with one Spark job: lot ``n`` is the rows of the runs ``sources[n]``. One task
    writes a lot, so its rows keep their order where the new one does not tell.

    Returns the runs of each lot, which no manifest names. Raises as :func:`write_runs`.
    """
    named = [(lot, json.dumps([run.to_json() for run in runs])) for lot, runs in enumerate(sources)]
    lots = spark.createDataFrame(named, "lot int, runs string").repartition(max(1, min(writer.groups, len(named))))
    return _of_lots(_collected(map_in_arrow(lots, partial(rewrite_lots, writer), _REPORT_SQL)), writer)


def _written(packed: DataFrame, writer: RunWriter) -> list[tuple[RunInfo, ...]]:
    """Each lot's runs, once they are in the lake."""
    ordered = _partitioned(packed, writer)
    return _of_lots(_collected(map_in_arrow(ordered, partial(write_partition, writer), _REPORT_SQL)), writer)


def _of_lots(told: Iterable[tuple[int, str]], writer: RunWriter) -> list[tuple[RunInfo, ...]]:
    """Each lot's runs, in the order in which they are read."""
    runs: list[list[RunInfo]] = [[] for _ in writer.lots]
    for lot, run in told:
        runs[lot].append(RunInfo.from_json(json.loads(run)))
    # By task, by first vnode, then by name, which numbers the parts of one task: the order of the sort.
    return [tuple(sorted(infos, key=lambda run: (run.task, run.vnode_rows[0][0], run.path))) for infos in runs]


def _packed(rows: BatchRows, writer: RunWriter) -> DataFrame:
    # More tasks than groups would only wait for slots.
    return rows.mapped(partial(pack_partition, writer), PACKED_SQL, writer.table, writer.groups)


def runs_python(rows: DataFrame) -> bool:
    """Whether a DataFrame's plan has functions in Python, whose batches are to stay measured."""
    plan = rows._jdf.queryExecution().analyzed()
    pattern = java_class(rows.sparkSession, "org.apache.spark.sql.catalyst.trees.TreePattern").PYTHON_UDF()
    return bool(plan.containsPattern(pattern)) or _PYTHON_NODES.search(plan.toString()) is not None


class BatchSizes:
    """How many rows of a stream Spark hands to Python at once.

    By default it measures a batch after each row, which is two fifths of the work. This cannot be needed where all
    columns have a fixed width and the rows are few; and it is left out where the rows before were small. Changes
    settings of the stream's own session, which no other query has; where the user has set a size, all stays.
    """

    def __init__(self, rows: DataFrame, runs_python: bool) -> None:
        """rows: of the first batch. runs_python: whether the stream has functions in Python."""
        self._settings = rows.sparkSession.conf
        self._count = int(self._settings.get(BATCH_ROWS) or 0)
        self._is_ours = self._settings.get(BATCH_BYTES) == UNTOUCHED and not runs_python
        width = len(rows.schema) * FIXED_BYTES_MAX
        is_fixed = all(isinstance(field.dataType, _FIXED_WIDTH) for field in rows.schema)
        self._is_small = is_fixed and 0 < self._count * width <= UNCHECKED_BYTES_MAX

    def follow(self, row_bytes: float | None) -> None:
        """Set the size of the next batch. row_bytes: of a row of the last one, on average; ``None`` if not known."""
        if not self._is_ours:
            return
        count, size = self._count, UNTOUCHED
        if self._is_small:
            size = UNLIMITED
        elif row_bytes is not None and row_bytes <= UNCHECKED_ROW_BYTES_MAX:
            count = min(count, UNCHECKED_ROWS_MAX) if count > 0 else UNCHECKED_ROWS_MAX
            size = UNLIMITED
        self._settings.set(BATCH_ROWS, str(count))
        self._settings.set(BATCH_BYTES, size)


def _numbered(rows: DataFrame, table: TableSpec) -> DataFrame:
    """The table's columns under names that mapInArrow takes: none with dots or backticks. A column that the source
    does not have any more is null."""
    given = set(rows.columns)
    types = from_arrow_schema(table.schema, prefer_timestamp_ntz=True)
    return rows.select(
        *(
            (F.col(quoted(name)) if name in given else F.lit(None).cast(types[place].dataType)).alias(f"c{place}")
            for place, name in enumerate(table.schema.names)
        )
    )


def _partitioned(packed: DataFrame, writer: RunWriter) -> DataFrame:
    """The packed values, a partition for each lot and vnode group, by shelf."""
    return partitioned_by(packed, writer.groups * len(writer.lots), F.col("partition")).sortWithinPartitions("shelf")


def warm_up(spark: SparkSession, tables: Iterable[tuple[StructType, RunWriter]]) -> None:
    """Sort made-up rows of each table as those of a batch, and write nothing: the first batch then finds running
    Python processes and compiled code. An app that starts later in the same session finds both, so nothing runs for it.
    A failure is logged, because only time is lost. tables: Spark's schema of each, and its writer.
    """
    if spark in _WARM:
        return
    for rows, writer in tables:
        _warm_up(spark, rows, writer)
    _WARM.add(spark)


def _warm_up(spark: SparkSession, rows: StructType, writer: RunWriter) -> None:
    columns = [F.lit(None).cast(field.dataType).alias(field.name) for field in rows]
    made_up = _numbered(spark.range(0, WARM_UP_ROWS, 1, writer.groups).select(*columns), writer.table)
    try:
        map_in_arrow(made_up, partial(_sort_only, writer), "rows long").collect()
    except (Py4JJavaError, PySparkException) as error:  # a process of a task was killed
        _LOG.warning("the first batch of %s takes longer: %s", writer.table.name, cause_of_job_failure(error))


def _sort_only(writer: RunWriter, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    lots = _ordered(writer, batches)
    yield pa.RecordBatch.from_pydict({"rows": [sum(len(rows) for ordered in lots for rows in ordered)]})


def quoted(column: str) -> str:
    """A column's name in the form that Spark's expressions take, whatever characters it has."""
    return "`" + column.replace("`", "``") + "`"


def pack_partition(writer: RunWriter, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Pack one task's rows, for every lot."""
    shelves = Shelves(writer.vnodes, writer.groups)
    for rows in gathered(batches, PACK_ROWS_MAX, writer.chunk_bytes_max):
        yield from pack(rows, writer.table.schema, writer.lot_keys(), shelves)


def rewrite_lots(writer: RunWriter, named: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Write the rows of the runs that each of a task's lots names; yields a report of each run that it writes."""
    schema, lake = writer.table.schema, Lake(writer.root)
    for lot, listed in ((row["lot"], row["runs"]) for batch in named for row in batch.to_pylist()):
        pieces = (
            piece.select(schema.names)
            for run in map(RunInfo.from_json, json.loads(listed))
            for piece in lake.open_run(run, run_schema(schema)).batches(REWRITE_ROWS)
        )
        alone = replace(writer, lots=(writer.lots[lot],))
        for ordered in _ordered(alone, pieces):
            for run in _write_lot(writer, lot, ordered):
                yield _reported(lot, run)


def write_partition(writer: RunWriter, packed: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Write one task's rows, in order, as runs of bounded size; yields a report of each."""
    context = TaskContext.get()
    assert context is not None
    lot, group = divmod(context.partitionId(), writer.groups)
    for run in _write_lot(writer, lot, unpack(packed, writer.table.schema, writer.table.order_by)):
        _check_group(run, writer, group)
        yield _reported(lot, run)


def write_own_partition(writer: RunWriter, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Write all rows of one task, for every lot, as runs of bounded size; yields a report of each."""
    context = TaskContext.get()
    task = 0 if context is None else context.partitionId()
    for lot, ordered in enumerate(_ordered(writer, batches)):
        for run in _write_lot(writer, lot, ordered):
            yield _reported(lot, replace(run, task=task))


def _ordered(writer: RunWriter, batches: Iterable[pa.RecordBatch]) -> Iterator[Iterable[pa.RecordBatch]]:
    """For each lot, the rows of a task in its order, within the task's memory."""
    return sorted_lots(writer, gathered(batches, writer.chunk_rows_max, writer.chunk_bytes_max))


def sorted_lots(writer: RunWriter, chunks: Iterable[pa.Table]) -> Iterator[Iterable[pa.RecordBatch]]:
    """For each lot, its rows of all chunks in its order. Of several chunks at most two are in memory, then a small part
    of each."""
    table, given = writer.table, iter(chunks)
    chunk = next(given, None)
    following = next(given, None)
    if chunk is None:
        return
    if following is None:
        for lot, rows in zip(writer.lots, _cut(chunk, writer), strict=True):
            yield [in_order(rows, table.schema, lot.index, table.order_by)] if len(rows) else []
        return
    with SpillFile(run_schema(table.schema)) as spill:
        places: list[list[range]] = [[] for _ in writer.lots]
        while chunk is not None:
            for lot, of_lot, rows in zip(writer.lots, places, _cut(chunk, writer), strict=True):
                if len(rows):
                    of_lot.append(spill.add(in_order(rows, table.schema, lot.index, table.order_by)))
            chunk, following = following, next(given, None)
        for of_lot in places:
            yield merged([spill.read(chunk_at) for chunk_at in of_lot], table.order_by)


def _cut(rows: pa.Table, writer: RunWriter) -> Iterator[pa.Table]:
    """The rows of each lot."""
    if all(lot.of_rows is None for lot in writer.lots):
        yield from (rows for _ in writer.lots)
        return
    table = writer.table
    named = rows.rename_columns(table.schema.names)
    keys = [named.column(name).cast(table.schema.field(name).type) for name in table.key]
    # A signed hash, as Spark's pmod takes it: a load that an earlier version has begun goes on with the same slices.
    hashes = hash64(keys).view(np.int64)
    cuts: dict[int, tuple[pa.Table, npt.NDArray[np.int64]]] = {}
    for lot in writer.lots:
        if (cut := lot.of_rows) is None:
            yield rows
            continue
        if cut.of not in cuts:
            numbers = hashes % cut.of
            order = np.argsort(numbers, kind="stable")
            cuts[cut.of] = rows.take(pa.array(order)), numbers[order].searchsorted(np.arange(cut.of + 1))
        in_parts, starts = cuts[cut.of]
        yield in_parts.slice(starts[cut.number], starts[cut.number + 1] - starts[cut.number])


class SpillFile:
    """Rows in a file on a local disk of Spark's, which is gone once this is closed, or Spark has removed its files."""

    def __init__(self, schema: pa.Schema) -> None:
        directory = os.environ.get("SPARK_LOCAL_DIRS", "").partition(",")[0]
        self._open = ExitStack()
        self._name = self._open.enter_context(tempfile.TemporaryDirectory(dir=directory or None)) + "/rows"
        self._sink = self._open.enter_context(pa.OSFile(self._name, "wb"))
        self._writer = pa.ipc.new_file(self._sink, schema)
        self._reader: pa.ipc.RecordBatchFileReader | None = None
        self._batches = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def add(self, rows: pa.RecordBatch) -> range:
        """Write rows; returns where they are."""
        first = self._batches
        for batch in cut(rows, SPILL_BATCH_BYTES):
            self._writer.write_batch(batch)
            self._batches += 1
        return range(first, self._batches)

    def read(self, places: range) -> Iterator[pa.RecordBatch]:
        """The rows that are there. None can be added from now on."""
        if self._reader is None:
            self._writer.close()
            self._sink.close()
            self._reader = pa.ipc.open_file(self._open.enter_context(pa.OSFile(self._name, "rb")))
        return map(self._reader.get_batch, places)


def _write_lot(writer: RunWriter, lot: int, ordered: Iterable[pa.RecordBatch]) -> Iterator[RunInfo]:
    """Write rows that come in order as runs of bounded size."""
    files = open_files(writer.root)
    # A task that Spark runs twice must not write one file twice: hence an id per attempt.
    attempt = f"tables/{writer.channel(lot)}/{writer.lots[lot].batch:012d}-{uuid4().hex}"
    for part, rows in enumerate(gathered(cut_batches(ordered, writer.rows_max), writer.rows_max, writer.run_bytes_max)):
        yield _write_run(files, writer, f"{attempt}-{part:05d}.arrow", rows)


def cut_batches(batches: Iterable[pa.RecordBatch], rows_max: int) -> Iterator[pa.RecordBatch]:
    """The same rows in batches of at most ``rows_max``."""
    for batch in batches:
        for start in range(0, batch.num_rows, rows_max):
            yield batch.slice(start, rows_max)


def _reported(lot: int, run: RunInfo) -> pa.RecordBatch:
    return report(lot, json.dumps(run.to_json()))


def report(number: int, told: str) -> pa.RecordBatch:
    """What a task tells the driver."""
    return pa.RecordBatch.from_pydict({"number": [number], "told": [told]}, schema=_REPORT)


def gathered(batches: Iterable[pa.RecordBatch], rows_max: int, bytes_max: int) -> Iterator[pa.Table]:
    """The same rows in tables as large as the limits allow; a batch is not split, even if it is larger."""
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        if rows and (rows + batch.num_rows > rows_max or size + batch.nbytes > bytes_max):
            yield pa.Table.from_batches(held)
            held, rows, size = [], 0, 0
        held.append(batch)
        rows += batch.num_rows
        size += batch.nbytes
    if rows:
        yield pa.Table.from_batches(held)


def _write_run(files: Files, writer: RunWriter, path: str, rows: pa.Table) -> RunInfo:
    rows = rows.combine_chunks()
    encoded = encode_run(rows)
    files.create(path, encoded)
    run = describe_run(path, encoded, rows.column(HASH_COLUMN).chunk(0).to_numpy(), writer.vnodes)
    retain = writer.table.retain
    return run if retain is None else replace(run, span=TimeSpan.of(rows.column(retain.column)))


def _check_group(run: RunInfo, writer: RunWriter, group: int) -> None:
    """Check that Spark has put each vnode group into its own partition: a key's rows lie in one task's runs."""
    groups = {vnode * writer.groups // writer.vnodes for vnode, _ in run.vnode_rows}
    if groups != {group}:
        raise ProtocolError(f"{run.path}: rows of vnode groups {sorted(groups)} in partition of group {group}")
