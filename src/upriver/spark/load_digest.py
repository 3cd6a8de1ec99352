"""What rows a DataFrame has, in a few numbers: whether it has the same as when it was loaded, in whatever order.

Each row is hashed over all its columns and the hashes are added up, so that rows may come in any order and equal rows
count as often as they are there. Columns that Spark cannot hash, maps above all, are left out: a change in these alone
is not seen.
"""

from collections.abc import Mapping
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    AtomicType,
    CalendarIntervalType,
    DataType,
    NullType,
    StringType,
    StructType,
    VariantType,
)

from upriver.spark.runs import quoted

_PARTS = {"low": (0, 22), "middle": (22, 22), "high": (44, 20)}
"""Of a hash: the first bit and the number of bits. Sums of so few bits do not overflow below 2 ** 41 rows."""


def rows_digest(rows: DataFrame, key_hash: Column) -> dict[str, int | None]:
    """The number of rows, the ``xor`` of their keys' hashes, and sums of their hashes. One Spark job."""
    hashed = F.xxhash64(F.lit(0), *(part for field in rows.schema for part in _parts(field.name, field.dataType)))
    sums = [
        F.coalesce(F.sum(F.shiftrightunsigned(hashed, first).bitwiseAND(F.lit((1 << bits) - 1))), F.lit(0)).alias(name)
        for name, (first, bits) in _PARTS.items()
    ]
    found = rows.agg(F.count(F.lit(1)).alias("rows"), F.bit_xor(key_hash).alias("keys"), *sums).first()
    assert found is not None
    return found.asDict()


def is_same(kept: Mapping[str, Any], found: Mapping[str, Any]) -> bool:
    """Whether two digests are of the same rows. An old one may lack numbers that are not compared then."""
    return all(kept[name] == found[name] for name in found if name in kept)


def _parts(name: str, type: DataType) -> list[Column]:
    """What of a column goes into a row's hash. Spark's hash passes over nulls, so where they are goes into it, too."""
    column = F.col(quoted(name))
    if not _can_be_hashed(type):
        return []
    if isinstance(type, StringType):
        column = column.cast("binary")  # whatever its collation
    parts = [column, column.isNull()]
    return [*parts, column.cast("string")] if isinstance(type, ArrayType | StructType) else parts


def _can_be_hashed(type: DataType) -> bool:
    match type:
        case ArrayType():
            return _can_be_hashed(type.elementType)
        case StructType():
            return all(_can_be_hashed(field.dataType) for field in type)
        case VariantType():
            return False
        case _:
            return isinstance(type, AtomicType | NullType | CalendarIntervalType)
