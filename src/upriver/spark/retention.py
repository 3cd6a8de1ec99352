"""Retention at the start of an app: what tables declare, and what the lake has of it (docs/internals/retention.md)."""

from collections.abc import Iterable
from dataclasses import replace

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from upriver.engine.retention import Retention
from upriver.errors import DeclarationError
from upriver.ids import Epoch
from upriver.lake.ingest_history import IngestHistory
from upriver.plan.plan import TableSpec
from upriver.plan.retention import Retain
from upriver.spark.runs import quoted
from upriver.spark.tables import table_as_of
from upriver.state.span import TimeSpan


def begun_retention(
    spark: SparkSession, root: str, history: IngestHistory, tables: Iterable[TableSpec]
) -> dict[str, Retain]:
    """The retention of the tables that declare one. A table that has rows and no retention yet gets its newest time in
    ``history``, computed by Spark.

    Raises DeclarationError for a table that rows have left, and that declares no retention, or one by another column.
    """
    for table in tables:
        if (first := first_retention(spark, root, history, table)) is not None:
            history.retain(table.name, first)
    return {table.name: table.retain for table in tables if table.retain is not None}


def first_retention(spark: SparkSession, root: str, history: IngestHistory, table: TableSpec) -> Retention | None:
    """The retention of a table that has rows and declares one that is new; ``None`` for any other. Raises as
    :func:`begun_retention`."""
    known, retain = history.retained.get(table.name), table.retain
    if known is not None and known.cut is not None and (retain is None or retain.column != known.column):
        raise DeclarationError(
            f"table {table.name!r}: rows have left it by the column {known.column!r} in {root}. Declare "
            f"retain=({known.column!r}, ...), with any interval; with the interval None no further rows leave."
        )
    is_new = known is None or (retain is not None and retain.column != known.column)
    if retain is None or not is_new or table.name not in history.queries:
        return None
    return Retention(retain.column, _newest_time(spark, root, table, retain.column, history.last))


def _newest_time(spark: SparkSession, root: str, table: TableSpec, column: str, last: Epoch) -> int | None:
    """The newest time of all rows, or versions, of the epochs up to ``last``; ``None`` if none has one."""
    rows = table_as_of(spark, root, replace(table, primary_key=()), last)
    span = TimeSpan.of(rows.agg(F.max(F.col(quoted(column)))).toArrow().column(0))
    return None if span is None else span.newest
