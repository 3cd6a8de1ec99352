"""Spark's schemas in Arrow's terms."""

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StringType

from upriver.errors import DeclarationError


def arrow_schema(rows: DataFrame, table: str) -> pa.Schema:
    """The Arrow schema in which Spark hands a table's rows to Python.

    Timestamps are in microseconds, with the session's time zone unless they are TIMESTAMP_NTZ.
    """
    for field in rows.schema:
        if isinstance(field.dataType, StringType) and not field.dataType.isUTF8BinaryCollation():
            raise DeclarationError(
                f"table {table!r}: column {field.name!r} has the collation {field.dataType.collation}; "
                f"only UTF8_BINARY is supported: CAST it to STRING"
            )
    zone = rows.sparkSession.conf.get("spark.sql.session.timeZone") or "UTC"
    if len({name.lower() for name in rows.columns}) < len(rows.columns):
        raise DeclarationError(f"table {table!r}: two of its columns differ at most in case: {', '.join(rows.columns)}")
    try:
        schema = to_arrow_schema(rows.schema, timezone=zone)
    except (PySparkException, TypeError) as error:
        raise DeclarationError(f"table {table!r}: {error}") from error
    # Whether a column may be null is not for us to promise: a later batch may know less than the first.
    return pa.schema([pa.field(field.name, field.type) for field in schema])
