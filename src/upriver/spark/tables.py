"""What may be a table: the columns that a declaration names, and their types."""

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa
from pyspark.sql import DataFrame

from upriver.engine.stateful import check_order
from upriver.errors import DeclarationError
from upriver.given import class_name, names, text
from upriver.hashing import check_hashable
from upriver.plan.plan import TableSpec
from upriver.spark.runs import check_columns
from upriver.spark.schema import arrow_schema
from upriver.spark.typer import SparkTyper
from upriver.sql.deletes import deletion

Columns = str | Sequence[str]


def declared_table(
    name: str, rows: DataFrame, *, key: Columns, primary_key: Columns, order_by: Columns, deletes: str | None
) -> TableSpec:
    """The table that a user declares; parameters as of :meth:`upriver.App.table`.

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
    )
    _check(table, deletes)
    if deletes is None:
        return table
    condition = text(f"table {name!r}: deletes", deletes)
    return replace(table, deletes=deletion(condition, table, SparkTyper(rows.sparkSession, {name: table})))


_TO_SPARK = {
    "pandas": "spark.createDataFrame(rows)",
    "pyarrow": "spark.createDataFrame(rows)",
    "polars": "spark.createDataFrame(rows.to_arrow())",
    "list": "spark.createDataFrame(rows, schema)",
}
"""By the package of what is given instead, or the name of its type: how a DataFrame of Spark's is had."""


def _way_to_spark(rows: object) -> str:
    module = type(rows).__module__
    if module.startswith("pyspark.sql.connect."):
        return ": the DataFrame of a session that is not Spark Connect's"
    way = _TO_SPARK.get(type(rows).__name__ if module == "builtins" else module.partition(".")[0])
    return "" if way is None else f": {way}"


def _columns(table: str, what: str, named: Columns, schema: pa.Schema) -> tuple[str, ...]:
    columns = names(f"table {table!r}: {what}", named)
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
