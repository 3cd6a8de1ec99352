"""Tables in Spark: their declaration, their rows in the lake, and views that Spark computes from them.

A declaration is checked here: the columns that it names, and their types.

A table's rows of all epochs up to one are a Spark DataFrame. Each task reads a group of vnodes, and finds the manifests
itself, so the driver reads nothing, however long the history is. The rows of a table that were set aside are another
DataFrame. Spark can compute a view from the tables in the lake (:mod:`upriver.spark.view_frames`). So a view can be
read whole even if the workers keep only its looked-up keys.

Backfill gives a table an index when it has rows already. It runs in the driver, before ingest starts or beside it. It
takes the rows from the table's own runs, some epochs at a time, and writes them once more in the order of the new
index. The result for each epoch is kept in a supplement to its manifest. When no epoch lacks the index, its record is
written, and from then on readers see it. Interrupted work continues with the next epoch that has no supplement. Rules
lake.*: ``docs/internals/lake.md``.
"""

import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from uuid import uuid4

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructField, StructType

from upriver.arguments import as_spelled, class_name, names, text
from upriver.client.keys import distinct_keys
from upriver.engine.stateful import check_order
from upriver.errors import DeclarationError, IngestFailed, UpriverError
from upriver.hashing import Hashes, check_hashable, hash64
from upriver.ids import Epoch
from upriver.lake.compaction import dated
from upriver.lake.lake import Lake, OwnedLake
from upriver.lake.manifests import LakeEpochs
from upriver.lake.rejected import Rejected, rejected_schema
from upriver.lake.scan import TableScan, scan_key
from upriver.plan.plan import TableSpec, lake_channel
from upriver.plan.retention import retain_of
from upriver.spark.analyser import SparkAnalyser, own_session
from upriver.spark.host import cause_of_job_failure
from upriver.spark.ingest import STOP_POLL_S, Layout
from upriver.spark.leaf_plans import numbered
from upriver.spark.runs import Lot, check_columns, rewrite_runs
from upriver.spark.schema import arrow_schema, spark_arrow_schema
from upriver.spark.session import cancel_jobs, jobs_described, map_in_arrow, unless_stopped
from upriver.sql.views import deletion
from upriver.vnodes import VnodeGroup, hashes_in

Columns = str | Sequence[str]


def declared_table(
    name: str,
    rows: DataFrame,
    *,
    key: Columns,
    primary_key: Columns,
    order_by: Columns,
    deletes: str | None,
    retain: object = None,
) -> TableSpec:
    """The table that a user declares; parameters as for :meth:`upriver.App.table`.

    Raises DeclarationError, KeyTypeError, UnsupportedSql.
    """
    if not isinstance(rows, DataFrame):
        raise DeclarationError(f"table {name!r}: give a Spark DataFrame, not a {class_name(rows)}{_way_to_spark(rows)}")
    schema = arrow_schema(rows, name)
    check_columns(schema, name)
    unique = _columns(name, "primary_key", primary_key, schema)
    table = TableSpec(
        name=name,
        schema=schema,
        key=_columns(name, "key", key, schema) or unique,
        order_by=_columns(name, "order_by", order_by, schema),
        primary_key=unique,
        retain=retain_of(f"table {name!r}: retain={retain!r}", schema, retain),
    )
    _check(table, deletes)
    if deletes is None:
        return table
    condition = text(f"table {name!r}: deletes", deletes)
    analyser = SparkAnalyser(rows.sparkSession, {name: table})
    return replace(table, deletes=deletion(condition, table, analyser), deletes_sql=condition)


_TO_SPARK = {
    "pandas": "spark.createDataFrame(rows)",
    "pyarrow": "spark.createDataFrame(rows)",
    "polars": "spark.createDataFrame(rows.to_arrow())",
    "list": "spark.createDataFrame(rows, schema)",
}
"""By the package of the given object, or the name of its type: how to make a Spark DataFrame of it."""


def _way_to_spark(rows: object) -> str:
    module = type(rows).__module__
    if module.startswith("pyspark.sql.connect."):
        return ": the DataFrame of a session that is not Spark Connect's"
    way = _TO_SPARK.get(type(rows).__name__ if module == "builtins" else module.partition(".")[0])
    return "" if way is None else f": {way}"


def _columns(table: str, what: str, named: Columns, schema: pa.Schema) -> tuple[str, ...]:
    columns = as_spelled(names(f"table {table!r}: {what}", named), schema.names)
    for column in columns:
        if column not in schema.names:
            raise DeclarationError(
                f"table {table!r}: {what} names {column!r}; its columns are {', '.join(schema.names)}"
            )
    if len(set(columns)) < len(columns):
        raise DeclarationError(f"table {table!r}: {what} names a column twice")
    return columns


def _check(table: TableSpec, deletes: str | None) -> None:
    if not table.key:
        raise DeclarationError(f"table {table.name!r}: its key has no column")
    for column in dict.fromkeys([*table.key, *table.primary_key]):
        check_hashable(table.schema.field(column).type, column)
    check_order(f"table {table.name!r}", table)
    if table.primary_key and not table.order_by:
        raise DeclarationError(
            f"table {table.name!r} has a primary key and no order_by, which says which version of a row is the last"
        )
    if deletes is not None and not table.primary_key:
        raise DeclarationError(
            f"table {table.name!r} has deletes and no primary_key, which says which row it is that is deleted"
        )


def table_as_of(
    spark: SparkSession,
    root: str,
    table: TableSpec,
    epoch: Epoch,
    index: tuple[str, ...] | None = None,
    wanted: Hashes | None = None,
) -> DataFrame:
    """A table's rows as views have them at the end of ``epoch``: for an upsert table, the last version of each row.

    epoch: a published one, or 0. index: one of the table's, as for TableScan; by default its ``scan_key``. wanted: only
    rows that have one of these hash64 (ascending, each once) by the index. If versions tie in ``order_by`` and came in
    one epoch, which is the last is as arbitrary as the order of such rows in an index. An action on it raises what
    reading the lake raises, above all CorruptFile. It raises RowError, in Spark's PythonException, for a version on
    which the deletion predicate fails.
    """
    record = Lake(root).record()
    vnodes = 1 if record is None else record.vnodes
    groups = VnodeGroup.all(vnodes, min(vnodes, spark.sparkContext.defaultParallelism))
    if wanted is not None:
        groups = tuple(group for group in groups if len(wanted[hashes_in(group.hashes, wanted)]))
    scan = TableScan(root, table, index or scan_key(table))
    task = _ScanTask(scan, epoch, groups, wanted)
    return map_in_arrow(numbered(spark, len(groups)), task.rows, _rows_schema(table)).toDF(*table.schema.names)


def _rows_schema(table: TableSpec) -> StructType:
    """With numbered columns: their own names may be anything."""
    types = [field.dataType for field in from_arrow_schema(table.schema, prefer_timestamp_ntz=True)]
    return StructType([StructField(f"c{number}", type) for number, type in enumerate(types)])


@dataclass(frozen=True, slots=True)
class _ScanTask:
    """A scan of the lake as Spark's tasks share it, a group of vnodes for each; picklable."""

    scan: TableScan
    epoch: Epoch
    groups: tuple[VnodeGroup, ...]
    wanted: Hashes | None

    def rows(self, numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rows of a task's groups. numbers: of its groups."""
        schema = _as_spark_takes(_rows_schema(self.scan.table))
        for number in (number for batch in numbers for number in batch.column(0).to_pylist()):
            for rows in self.scan.rows(self.epoch, self.groups[number], self.wanted):
                yield rows.rename_columns(schema.names).cast(schema)


def _as_spark_takes(schema: StructType) -> pa.Schema:
    """In UTC, whatever the session's zone."""
    return spark_arrow_schema(schema, "UTC")


def read_rejected(spark: SparkSession, root: str, table: TableSpec) -> DataFrame:
    """The rows when an action reads them. One task reads them: only a single task knows which rows it has seen."""
    schema = from_arrow_schema(rejected_schema(table), prefer_timestamp_ntz=True)
    # Spark takes rows in UTC, whatever the session's zone.
    read = partial(_read, root, table, spark_arrow_schema(schema, "UTC"))
    return map_in_arrow(spark.range(0, 1, 1, 1), read, schema)


def _read(root: str, table: TableSpec, schema: pa.Schema, _: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for rows in Rejected(Lake(root), table).read():
        yield rows.cast(schema)


PLACE = "place of the key"
"""The name of a column beside those of a view."""


def rows_of_keys(view: DataFrame, keys: pa.RecordBatch) -> pa.Table:
    """A view's rows of some keys, in the order in which the keys are given; each key once. A null is a key like any
    other. keys: the view's key columns. Blocks while Spark computes."""
    asked, _ = distinct_keys(keys, hash64(keys.columns, keys.num_rows))
    wanted, is_asked = _among(view, asked)
    return view.join(F.broadcast(wanted), is_asked).orderBy(PLACE).select(view["*"]).toArrow()


def only_keys(view: DataFrame, keys: pa.RecordBatch) -> DataFrame:
    """A view's rows of some keys. A null is a key like any other. keys: the view's key columns."""
    wanted, is_asked = _among(view, keys)
    return view.join(F.broadcast(wanted), is_asked, "left_semi")


def _among(view: DataFrame, keys: pa.RecordBatch) -> tuple[DataFrame, list[Column]]:
    """The keys as a DataFrame with their places, and the conditions under which a row of the view is of a key."""
    names = [f"key {place}" for place in range(keys.num_columns)]
    places = pa.array(np.arange(keys.num_rows))
    table = pa.Table.from_arrays([*keys.columns, places], [*names, PLACE])
    # In a session whose zone pyarrow can name. Points in time are the same in any zone; a wall clock must not become
    # one.
    session = own_session(view.sparkSession, "UTC")
    wanted = session.createDataFrame(table, from_arrow_schema(table.schema, prefer_timestamp_ntz=True))
    pairs = zip(keys.schema.names, names, strict=True)
    return wanted, [view[f"`{own}`"].eqNullSafe(wanted[f"`{name}`"]) for own, name in pairs]


JOB_EPOCHS_MAX = 64
JOB_ROWS = 10_000_000
"""Epochs of one Spark job, and their rows; an epoch is not split, even if it is larger."""


class Backfill:
    """Gives tables indexes, one after the other. Called from any thread."""

    def __init__(
        self, spark: SparkSession, lake: OwnedLake, epochs_max: int = JOB_EPOCHS_MAX, rows_max: int = JOB_ROWS
    ) -> None:
        """epochs_max, rows_max: of one Spark job."""
        self._spark = spark
        self._lake = lake
        self._epochs_max = epochs_max
        self._rows_max = rows_max
        self._tag = f"upriver-backfill-{uuid4().hex}"
        self.history_lock = threading.Lock()
        """Held by what rewrites a table's history: an index at a time, or segments (compaction.py)."""
        self._stopping = threading.Event()

    def run(self, layout: Layout, index: tuple[str, ...], last: Epoch) -> None:
        """Give the table an index. All epochs after ``last`` have it, or will have it when they are published.

        Blocks until it is complete; returns at once if it is. Raises IngestFailed, LakeError.
        """
        what = f"table {layout.table.name!r}: its index ({', '.join(index)})"
        with self.history_lock:
            context = self._spark.sparkContext
            context.addJobTag(self._tag)
            try:
                with jobs_described(context, f"Upriver: backfill {layout.table.name} ({', '.join(index)})"):
                    self._run(layout, index, last)
            except UpriverError:
                raise
            except Exception as error:
                why = "the app was stopped" if self._stopping.is_set() else cause_of_job_failure(error)
                raise IngestFailed(f"{what} is not complete: {why}") from error
            finally:
                with unless_stopped(self._spark):
                    context.removeJobTag(self._tag)

    def _run(self, layout: Layout, index: tuple[str, ...], last: Epoch) -> None:
        record = self._lake.kept_record()
        if index in record.indexes[layout.table.name]:
            return
        for manifests in self._jobs(self._lacking(layout, index, last)):
            if self._stopping.is_set():
                raise InterruptedError
            self._rewrite(layout, index, manifests)
        self._lake.complete(layout.table.name, index)  # lake.supplement_for_each_epoch

    def _lacking(self, layout: Layout, index: tuple[str, ...], last: Epoch) -> Iterator[LakeEpochs]:
        """The manifests and segments that lack the index, in themselves and in a supplement."""
        channel = lake_channel(layout.table.name, index)
        supplemented = self._lake.supplemented(channel)
        within = (span.last for span in self._lake.segments() if last in span)  # made since ``last`` was published
        for span in self._lake.spans(max([last, *within]), as_of=self._lake.last_epoch()):
            if span not in supplemented:
                epochs = self._lake.epochs(span)
                if layout.table.name in epochs.batches and channel not in epochs.runs:
                    yield epochs

    def _jobs(self, manifests: Iterable[LakeEpochs]) -> Iterator[list[LakeEpochs]]:
        """The same, as many at a time as the limits allow."""
        held: list[LakeEpochs] = []
        rows = 0
        for manifest in manifests:
            own = max(manifest.rows().values(), default=0)  # all indexes of a table have about the same
            if held and (len(held) == self._epochs_max or rows + own > self._rows_max):
                yield held
                held, rows = [], 0
            held.append(manifest)
            rows += own
        if held:
            yield held

    def _rewrite(self, layout: Layout, index: tuple[str, ...], manifests: list[LakeEpochs]) -> None:
        table = layout.table
        writer = layout.writer(*(Lot(manifest.batches[table.name].batch, index) for manifest in manifests))
        writer = replace(writer, table=dated(table))
        sources = [manifest.whole_runs(table) for manifest in manifests]
        for manifest, runs in zip(manifests, rewrite_runs(self._spark, sources, writer), strict=True):
            epoch = max((run.epoch for run in manifest.whole_runs(table)), default=0)
            dated_runs = [replace(run, epoch=epoch) for run in runs]
            self._lake.supplement(lake_channel(table.name, index), manifest.span, dated_runs)

    def stop(self) -> None:
        """End the work under way, and begin no other; it continues when the app next starts."""
        self._stopping.set()
        while not self.history_lock.acquire(timeout=STOP_POLL_S):
            cancel_jobs(self._spark, self._tag)
        self.history_lock.release()
