"""Spark's types in Arrow's terms, by a private function of PySpark whose form differs between versions."""

import inspect

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

_TAKES_ZONE = "timezone" in inspect.signature(to_arrow_schema).parameters
"""Since Spark 4.2. Spark 4.1 gives every TIMESTAMP the zone UTC."""


def spark_arrow_schema(schema: StructType, timezone: str) -> pa.Schema:
    """The Arrow schema in which Spark hands such rows to Python. timezone: of TIMESTAMP columns; instants stay what
    they are. Raises what Spark raises for a type that Arrow lacks: PySparkException, TypeError or ValueError."""
    if _TAKES_ZONE:
        return to_arrow_schema(schema, timezone=timezone)
    in_utc: pa.Schema = to_arrow_schema(schema)
    return pa.schema([field.with_type(in_zone(field.type, timezone)) for field in in_utc])


def in_zone(type: pa.DataType, timezone: str) -> pa.DataType:
    """The type, with this zone in place of each zone that occurs in it."""
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
