"""Spark's schemas in Arrow's terms, by a private function of PySpark whose form differs between versions."""

import inspect
import re
from collections.abc import Iterator

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import ArrayType, DataType, MapType, StringType, StructField, StructType, VariantType

from upriver.errors import DeclarationError
from upriver.zones import zone_name

_TAKES_ZONE = "timezone" in inspect.signature(to_arrow_schema).parameters
"""Since Spark 4.2. Spark 4.1 gives every TIMESTAMP the zone UTC."""


def spark_arrow_schema(schema: StructType, timezone: str) -> pa.Schema:
    """The Arrow schema in which Spark passes such rows to Python. timezone: of TIMESTAMP columns; instants stay the
    same. Raises Spark's error for a type that Arrow lacks: PySparkException, TypeError or ValueError."""
    if _TAKES_ZONE:
        return to_arrow_schema(schema, timezone=timezone)
    in_utc: pa.Schema = to_arrow_schema(schema)
    return pa.schema([field.with_type(in_zone(field.type, timezone)) for field in in_utc])


def in_zone(type: pa.DataType, timezone: str) -> pa.DataType:
    """The type, with this zone in place of each zone in it."""
    if pa.types.is_timestamp(type):
        return type if type.tz is None else pa.timestamp(type.unit, timezone)
    if pa.types.is_map(type):
        return pa.map_(_field_in_zone(type.key_field, timezone), _field_in_zone(type.item_field, timezone))
    if pa.types.is_large_list(type):
        return pa.large_list(_field_in_zone(type.value_field, timezone))
    if pa.types.is_list(type):
        return pa.list_(_field_in_zone(type.value_field, timezone))
    if pa.types.is_struct(type):
        return pa.struct([_field_in_zone(type.field(place), timezone) for place in range(type.num_fields)])
    return type


def _field_in_zone(field: pa.Field, timezone: str) -> pa.Field:
    return field.with_type(in_zone(field.type, timezone))


_WRITTEN_TYPE = "__CHAR_VARCHAR_TYPE_STRING"
"""The metadata key under which Spark keeps the declared type of a column that it reads as STRING."""
_CHAR = re.compile(r"\bchar(?:acter)?\(\d+\)")
_VARCHAR = re.compile(r"\bvarchar\(\d+\)")


def arrow_schema(rows: DataFrame, table: str) -> pa.Schema:
    """The Arrow schema in which Spark passes a table's rows to Python.

    Timestamps are in microseconds, with the session's time zone unless they are TIMESTAMP_NTZ.
    """
    for field in rows.schema:
        _check_supported(field, table)
    zone = zone_name(rows.sparkSession.conf.get("spark.sql.session.timeZone") or "UTC")
    if len({name.lower() for name in rows.columns}) < len(rows.columns):
        raise DeclarationError(f"table {table!r}: two of its columns differ at most in case: {', '.join(rows.columns)}")
    try:
        schema = in_arrow(rows.schema, zone)
    except (PySparkException, TypeError, ValueError) as error:
        column = next((field for field in rows.schema if not _is_in_arrow(field, zone)), None)
        about = "" if column is None else f"column {column.name!r} is {column.dataType.simpleString()}: "
        raise DeclarationError(f"table {table!r}: {about}{error} CAST it to STRING, or leave it out") from error
    # Upriver cannot promise that a column is never null: a later batch may promise less than the first.
    return pa.schema([pa.field(field.name, field.type) for field in schema])


def _is_in_arrow(field: StructField, zone: str) -> bool:
    try:
        in_arrow(StructType([field]), zone)
    except (PySparkException, TypeError, ValueError):
        return False
    return True


def _check_supported(field: StructField, table: str) -> None:
    """Refuse types that Arrow would show as another type."""
    about = f"table {table!r}: column {field.name!r}"
    found = list(parts(field.dataType))
    if any(isinstance(part, VariantType) for part in found):
        raise DeclarationError(
            f"{about} is {field.dataType.simpleString()}; VARIANT is not supported: "
            f"CAST it to STRING, or make columns of its parts (variant_get)"
        )
    collated = [part for part in found if isinstance(part, StringType) and not part.isUTF8BinaryCollation()]
    if collated:
        raise DeclarationError(
            f"{about} has the collation {collated[0].collation}; only UTF8_BINARY is supported: "
            f"CAST it to STRING COLLATE UTF8_BINARY"
        )
    written = str(field.metadata.get(_WRITTEN_TYPE, field.dataType.simpleString()))
    if _CHAR.search(written):
        as_string = _VARCHAR.sub("string", _CHAR.sub("string", written))
        raise DeclarationError(
            f"{about} is {written}; CHAR, which Spark pads and compares padded, is not supported: "
            f"CAST it to {as_string}, and rtrim() it if blanks at its end are not to count"
        )


def parts(type: DataType) -> Iterator[DataType]:
    """The type and all types nested in it."""
    yield type
    match type:
        case ArrayType():
            yield from parts(type.elementType)
        case MapType():
            yield from parts(type.keyType)
            yield from parts(type.valueType)
        case StructType():
            for field in type:
                yield from parts(field.dataType)


def in_arrow(schema: StructType, timezone: str) -> pa.Schema:
    """The schema in Arrow's terms; nested fields may be null, for the same reason.

    timezone: of timestamps that have one. Raises PySparkException or TypeError for a type that Arrow lacks.
    """
    return pa.schema([field.with_type(_relaxed(field.type)) for field in spark_arrow_schema(schema, timezone)])


def _relaxed(type: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(type):
        return pa.struct([pa.field(field.name, _relaxed(field.type)) for field in type])
    if pa.types.is_map(type):
        return pa.map_(_relaxed(type.key_type), _relaxed(type.item_type))
    if pa.types.is_list(type):
        return pa.list_(pa.field(type.value_field.name, _relaxed(type.value_type)))
    return type
