"""Spark's types in Arrow's terms are the same with every supported version of Spark."""

import pyarrow as pa
import pytest
from pyspark.sql.types import ArrayType, StructType, TimestampNTZType, TimestampType

from upriver.spark.schema import in_zone, spark_arrow_schema

pytestmark = pytest.mark.smoke

ZONE = "Europe/Berlin"
NTZ, INSTANT = pa.timestamp("us"), pa.timestamp("us", ZONE)


def test_a_schema_has_the_zone_that_is_asked_for() -> None:
    schema = StructType().add("a", TimestampType()).add("b", TimestampNTZType()).add("c", ArrayType(TimestampType()))
    found = spark_arrow_schema(schema, ZONE)
    assert [field.type for field in found] == [INSTANT, NTZ, pa.list_(pa.field("element", INSTANT))]


@pytest.mark.parametrize(
    "shape",
    [
        lambda at: at,
        lambda at: pa.list_(at),
        lambda at: pa.large_list(pa.field("element", at, nullable=False)),
        lambda at: pa.struct([pa.field("at", at, metadata={"k": "v"}), pa.field("n", pa.int64())]),
        lambda at: pa.map_(at, pa.list_(at)),
    ],
)
def test_zones_are_replaced_at_every_depth(shape: object) -> None:
    assert callable(shape)
    assert in_zone(shape(pa.timestamp("us", "UTC")), ZONE) == shape(INSTANT)
    assert in_zone(shape(NTZ), ZONE) == shape(NTZ)
