"""Spark's schemas in Arrow's terms."""

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import ArrayType, DataType, MapType, StringType, StructType, VariantType

from upriver.errors import DeclarationError


def arrow_schema(rows: DataFrame, table: str) -> pa.Schema:
    """The Arrow schema in which Spark hands a table's rows to Python.

    Timestamps are in microseconds, with the session's time zone unless they are TIMESTAMP_NTZ.
    """
    for field in rows.schema:
        if _holds_variant(field.dataType):
            raise DeclarationError(
                f"table {table!r}: column {field.name!r} is {field.dataType.simpleString()}; VARIANT is not supported: "
                f"CAST it to STRING, or make columns of its parts (variant_get)"
            )
        if isinstance(field.dataType, StringType) and not field.dataType.isUTF8BinaryCollation():
            raise DeclarationError(
                f"table {table!r}: column {field.name!r} has the collation {field.dataType.collation}; "
                f"only UTF8_BINARY is supported: CAST it to STRING"
            )
    zone = rows.sparkSession.conf.get("spark.sql.session.timeZone") or "UTC"
    if len({name.lower() for name in rows.columns}) < len(rows.columns):
        raise DeclarationError(f"table {table!r}: two of its columns differ at most in case: {', '.join(rows.columns)}")
    try:
        schema = in_arrow(rows.schema, zone)
    except (PySparkException, TypeError, ValueError) as error:
        raise DeclarationError(f"table {table!r}: {error}") from error
    # Whether a column may be null is not for us to promise: a later batch may know less than the first.
    return pa.schema([pa.field(field.name, field.type) for field in schema])


def _holds_variant(type: DataType) -> bool:
    match type:
        case ArrayType():
            return _holds_variant(type.elementType)
        case MapType():
            return _holds_variant(type.keyType) or _holds_variant(type.valueType)
        case StructType():
            return any(_holds_variant(field.dataType) for field in type)
    return isinstance(type, VariantType)


def in_arrow(schema: StructType, timezone: str) -> pa.Schema:
    """The schema in Arrow's terms; what a nested value is made of may be null, for the same reason.

    timezone: of timestamps that have one. Raises PySparkException or TypeError for what Arrow does not have.
    """
    return pa.schema([field.with_type(_relaxed(field.type)) for field in to_arrow_schema(schema, timezone=timezone)])


def _relaxed(type: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(type):
        return pa.struct([pa.field(field.name, _relaxed(field.type)) for field in type])
    if pa.types.is_map(type):
        return pa.map_(_relaxed(type.key_type), _relaxed(type.item_type))
    if pa.types.is_list(type):
        return pa.list_(pa.field(type.value_field.name, _relaxed(type.value_type)))
    return type
