"""Tables as they are in the lake, as Spark DataFrames: the rows of all epochs up to one.

Spark's tasks share the epochs. Each reads the manifests and the runs of its own, so that the driver reads nothing,
however long the history is. Any one index of an epoch has all its rows.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import BooleanType, LongType, StructField, StructType

from upriver.engine.expressions import Evaluator
from upriver.ids import Epoch
from upriver.lake.lake import SLICE_ROWS_MAX, Lake
from upriver.plan.plan import TableSpec
from upriver.spark.arrow_types import spark_arrow_schema
from upriver.state.runs import run_schema
from upriver.state.vectors import Mask

_EPOCH, _PLACE, _DELETED = "epoch", "place", "deleted"
"""Of a version: the epoch in which it came, which of the epoch's rows it was, and whether it deletes its key's row."""


def table_as_of(spark: SparkSession, root: str, table: TableSpec, epoch: Epoch) -> DataFrame:
    """A table's rows as views have them once ``epoch`` is over: of an upsert table, the last version of each row.

    epoch: one that is published, or 0. Of versions that tie in ``order_by`` and came in one epoch, which is the last
    is as arbitrary as the order of such rows in an index. An action on it raises what reading the lake does, above all
    CorruptFile, and RowError for a version of which it cannot be said whether it deletes, in Spark's PythonException.
    """
    tasks = max(1, min(epoch, spark.sparkContext.defaultParallelism))
    history = _History(root, table, epoch, tasks)
    numbers = spark.range(0, tasks, 1, tasks)
    if table.primary_key:
        rows = _last_versions(numbers.mapInArrow(history.versions, _versions_schema(table)), table)
    else:
        rows = numbers.mapInArrow(history.rows, _rows_schema(table))
    return rows.toDF(*table.schema.names)


def _last_versions(versions: DataFrame, table: TableSpec) -> DataFrame:
    """Spark orders values as Latest does: nulls before all others, NaN behind them, the two zeros equal."""
    order = [F.desc(name) for name in (*_columns(table, table.order_by), _EPOCH, _PLACE)]
    latest_first = Window.partitionBy(*_columns(table, table.primary_key)).orderBy(*order)
    ranked = versions.withColumn("rank", F.row_number().over(latest_first))
    is_row: Column = (F.col("rank") == 1) & ~F.col(_DELETED)
    return ranked.where(is_row).select(*_columns(table, table.schema.names))


def _columns(table: TableSpec, names: Iterable[str]) -> list[str]:
    """What columns are called until the end: numbered, since their own names may be any, and those of versions."""
    return [f"c{table.schema.get_field_index(name)}" for name in names]


def _rows_schema(table: TableSpec) -> StructType:
    types = [field.dataType for field in from_arrow_schema(table.schema, prefer_timestamp_ntz=True)]
    names = _columns(table, table.schema.names)
    return StructType([StructField(name, type) for name, type in zip(names, types, strict=True)])


def _versions_schema(table: TableSpec) -> StructType:
    added = [StructField(_EPOCH, LongType()), StructField(_PLACE, LongType()), StructField(_DELETED, BooleanType())]
    return StructType([*_rows_schema(table).fields, *added])


@dataclass(frozen=True, slots=True)
class _History:
    """A table's rows of the epochs 1 to ``last``, as ``tasks`` tasks read them; picklable."""

    root: str
    table: TableSpec
    last: Epoch
    tasks: int

    def rows(self, numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """All rows of a task's epochs. numbers: the task's own."""
        schema = _as_spark_takes(_rows_schema(self.table))
        for _, _, rows in self._pieces(numbers):
            yield rows.rename_columns(schema.names).cast(schema)

    def versions(self, numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The same of an upsert table, with what else is to be known of versions."""
        schema = _as_spark_takes(_versions_schema(self.table))
        plain = _as_spark_takes(_rows_schema(self.table))
        evaluator = Evaluator()
        for epoch, place, rows in self._pieces(numbers):
            added = [
                pa.array(np.full(rows.num_rows, epoch)),
                pa.array(np.arange(place, place + rows.num_rows)),
                pa.array(self._deleted(rows, evaluator)),
            ]
            columns = rows.rename_columns(plain.names).cast(plain).columns
            yield pa.RecordBatch.from_arrays([*columns, *added], schema=schema)

    def _deleted(self, versions: pa.RecordBatch, evaluator: Evaluator) -> Mask:
        if self.table.deletes is None:
            return np.zeros(versions.num_rows, np.bool_)
        return evaluator.mask(versions, self.table.deletes)

    def _pieces(self, numbers: Iterable[pa.RecordBatch]) -> Iterator[tuple[Epoch, int, pa.RecordBatch]]:
        """(epoch, how many of its rows came before, rows), of every ``tasks``-th epoch: the first are often largest."""
        lake, schema = Lake(self.root), run_schema(self.table.schema)
        for number in (number for batch in numbers for number in batch.column(0).to_pylist()):
            for epoch in map(Epoch, range(number + 1, self.last + 1, self.tasks)):
                manifest = lake.manifest(epoch)
                if manifest.table == self.table.name:
                    place = 0
                    for run in next(iter(manifest.runs.values())):
                        for piece in lake.open_run(run, schema).batches(SLICE_ROWS_MAX):
                            yield epoch, place, piece.select(self.table.schema.names)
                            place += piece.num_rows


def _as_spark_takes(schema: StructType) -> pa.Schema:
    """In UTC, whatever the session's zone."""
    return spark_arrow_schema(schema, "UTC")
