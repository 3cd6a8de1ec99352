"""Rows of Arrow tables and batches as tuples, and of DataFrames compared."""

from collections import Counter
from typing import Any

import pyarrow as pa
from state_kit import plain_rows


def rows_of(table: pa.Table | pa.RecordBatch) -> list[tuple[Any, ...]]:
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))


def differing_rows(ours: Any, theirs: Any) -> int:
    """As :func:`upriver.spark.frames.differing_rows`, for so few rows that they may be collected: Spark, which takes
    longer to plan a query than to run it, computes each DataFrame once, and not twice."""
    assert ours.dtypes == theirs.dtypes
    found, wanted = (Counter(map(repr, plain_rows(frame.toArrow()))) for frame in (ours, theirs))
    return ((found - wanted) + (wanted - found)).total()
