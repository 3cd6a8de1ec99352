"""The rows of a table that were set aside, as a Spark DataFrame."""

from collections.abc import Iterable, Iterator
from functools import partial

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from upriver.lake.lake import Lake
from upriver.lake.rejected import Rejected, rejected_schema
from upriver.plan.plan import TableSpec
from upriver.spark.arrow_types import spark_arrow_schema


def read_rejected(spark: SparkSession, root: str, table: TableSpec) -> DataFrame:
    """What is there when an action reads it. One task reads it: it alone knows which rows it has seen."""
    schema = from_arrow_schema(rejected_schema(table), prefer_timestamp_ntz=True)
    # Spark takes rows in UTC, whatever the session's zone.
    read = partial(_read, root, table, spark_arrow_schema(schema, "UTC"))
    return spark.range(0, 1, 1, 1).mapInArrow(read, schema)


def _read(root: str, table: TableSpec, schema: pa.Schema, _: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for rows in Rejected(Lake(root), table).read():
        yield rows.cast(schema)
