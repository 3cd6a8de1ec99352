"""Digests of rows: whether a DataFrame has the rows that were loaded, in any order.

A *digest* describes the rows of a DataFrame in a few numbers: it tells whether the rows are the same as when they were
loaded, in any order. Each row is hashed over all its columns and the hashes are added up, so rows may come in any order
and equal rows count as often as they are there. Columns that Spark cannot hash, of maps and variants, have sums of
their own, over texts. The record of a load by version 0.2 lacks these: a change in such columns alone is not seen then.

Spark computes a digest of its rows. Of rows that tasks read from files, the tasks compute the same numbers over Arrow:
the record of a load is good for both.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial, reduce
from operator import xor
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    AtomicType,
    CalendarIntervalType,
    DataType,
    MapType,
    NullType,
    StringType,
    StructType,
    VariantType,
)

from upriver.hashing import hash64
from upriver.plan.plan import TableSpec
from upriver.spark.runs import FileRows, gathered, quoted, report, reports

Digest = dict[str, Any]
"""``rows``, how many; ``keys``, the ``xor`` of their keys' hashes, ``None`` without rows; sums of parts of the rows'
hashes."""

DIGEST_ROWS_MAX, DIGEST_BYTES_MAX = 500_000, 64 << 20
"""Rows and bytes that are hashed at once."""
_PARTS = {"low": (0, 22), "middle": (22, 22), "high": (44, 20)}
"""Parts of a hash: the first bit and the number of bits. Sums of so few bits do not overflow below 2 ** 41 rows."""


def rows_digest(rows: DataFrame, key_hash: Column) -> Digest:
    """The digest of a DataFrame's rows. One Spark job."""
    plain = [part for field in rows.schema for part in _parts(field.name, field.dataType)]
    others = [
        _hashable(F.col(quoted(field.name)), field.dataType)
        for field in rows.schema
        if not _can_be_hashed(field.dataType)
    ]
    sums = _sums("", plain)
    if others:  # the hash of the whole row, so that values that change places are seen
        sums += _sums("nested_", [*plain, *others])
    found = rows.agg(F.count(F.lit(1)).alias("rows"), F.bit_xor(key_hash).alias("keys"), *sums).first()
    assert found is not None
    return found.asDict()


def files_digest(rows: FileRows, table: TableSpec, tasks: int) -> Digest:
    """The same of rows in files, whose columns are all of plain types, with one job of so many tasks. table: in the
    columns that are covered. Raises as :func:`reports`."""
    told = [json.loads(each) for _, each in reports(rows, partial(_digest_of_task, table), table, tasks)]
    sums = {name: sum(each[name] for each in told) for name in ("rows", *_PARTS)}
    return {**sums, "keys": reduce(xor, (each["keys"] for each in told)) if sums["rows"] else None}


def _digest_of_task(table: TableSpec, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """A task's share of a digest."""
    found = dict.fromkeys(("rows", "keys", *_PARTS), 0)
    for rows in gathered(batches, DIGEST_ROWS_MAX, DIGEST_BYTES_MAX):
        named = rows.rename_columns(table.schema.names).cast(table.schema)
        found["rows"] += len(named)
        keys = hash64([named.column(name) for name in table.key])
        found["keys"] ^= int(np.bitwise_xor.reduce(keys).view(np.int64))
        parts = [part for column in named.columns for part in (column, column.is_null())]
        hashes = hash64([pa.repeat(pa.scalar(0, pa.int32()), len(named)), *parts])
        for name, (first, bits) in _PARTS.items():
            found[name] += int((hashes >> np.uint64(first) & np.uint64((1 << bits) - 1)).sum())
    yield report(0, json.dumps(found))


def _sums(prefix: str, parts: Sequence[Column]) -> list[Column]:
    hashed = F.xxhash64(F.lit(0), *parts)
    return [
        F.coalesce(F.sum(F.shiftrightunsigned(hashed, first).bitwiseAND(F.lit((1 << bits) - 1))), F.lit(0)).alias(
            f"{prefix}{name}"
        )
        for name, (first, bits) in _PARTS.items()
    ]


def _hashable(column: Column, type: DataType) -> Column:
    """A value with maps or variants in it as text: maps by their entries, in the order of these."""
    match type:
        case MapType():
            entries = F.transform(
                F.map_entries(column),
                lambda entry: F.to_json(
                    F.array(_hashable(entry["key"], type.keyType), _hashable(entry["value"], type.valueType))
                ),
            )
            text = F.to_json(F.array_sort(entries))
        case ArrayType():
            text = F.to_json(F.transform(column, lambda element: _hashable(element, type.elementType)))
        case StructType():
            fields = F.array(*(_hashable(column[field.name], field.dataType) for field in type))
            text = F.when(column.isNotNull(), F.to_json(fields))
        case _:
            text = column.cast("string")
    return F.coalesce(F.concat(F.lit("+"), text), F.lit("-"))


Columns = tuple[tuple[str, str], ...]
"""Names of columns and Spark's names of their types."""


def columns_of(rows: DataFrame, names: Sequence[str]) -> Columns:
    """Those of these columns that the rows have."""
    types = {field.name: field.dataType.simpleString() for field in rows.schema}
    return tuple((name, types[name]) for name in names if name in types)


def in_columns(rows: DataFrame, columns: Columns) -> DataFrame:
    """The rows in those of these columns that they have, with these types. A value that its type lacks is null."""
    types = dict(columns_of(rows, rows.columns))
    return rows.select(
        *(
            F.col(quoted(name)) if types[name] == type else F.col(quoted(name)).try_cast(type).alias(name)
            for name, type in columns
            if name in types
        )
    )


def is_same(kept: Mapping[str, Any], found: Mapping[str, Any]) -> bool:
    """Whether two digests describe the same rows. An old digest may lack numbers, which are then not compared."""
    return all(kept[name] == found[name] for name in found if name in kept)


def _parts(name: str, type: DataType) -> list[Column]:
    """The part of a column that a row's hash covers. Spark's hash skips nulls, so their places are included, too."""
    column = F.col(quoted(name))
    if not _can_be_hashed(type):
        return []
    if isinstance(type, StringType):
        column = column.cast("binary")  # independent of its collation
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
