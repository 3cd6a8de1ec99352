"""Rows of Arrow tables and batches as tuples."""

from typing import Any

import pyarrow as pa


def rows_of(table: pa.Table | pa.RecordBatch) -> list[tuple[Any, ...]]:
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))
