"""Tables of Parquet files that come one by one, and what Spark says of views: for tests of partial views on Spark."""

import os
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from state_kit import plain_rows

from upriver.app import App

OLDEST_S = 1_700_000_000

Rows = Mapping[Any, Counter[tuple[Any, ...]]]
"""By key: how often each row is there."""


def write_file(directory: Path, number: int, schema: pa.Schema, rows: Sequence[tuple[Any, ...]]) -> None:
    """Add these rows to a table; its stream reads files in the order of their numbers."""
    columns = [pa.array(column, field.type) for column, field in zip(zip(*rows, strict=True), schema, strict=True)]
    directory.mkdir(exist_ok=True)
    hidden = directory / f".{number}"
    pq.write_table(pa.table(columns, schema=schema), hidden)
    os.utime(hidden, (OLDEST_S + number,) * 2)
    hidden.rename(directory / f"{number}.parquet")


def stream(spark: Any, directory: Path, schema: str) -> Any:
    """Of the rows of a table, a file at a time. schema: in Spark's DDL."""
    return spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(directory))


def rows_by_key(rows: pa.Table, key: str) -> Rows:
    found: dict[Any, Counter[tuple[Any, ...]]] = defaultdict(Counter)
    place = rows.schema.get_field_index(key)
    for row in plain_rows(rows):
        found[row[place]][row] += 1
    return dict(found)


def assert_right(app: App, view: str, key: str, expected: Rows, keys: Collection[Any]) -> None:
    """The view's rows of these keys are what is expected of them."""
    found = rows_by_key(app.lookup(view, list(keys), timeout=60), key)
    for wanted in keys:
        assert found.get(wanted) == expected.get(wanted), (view, wanted)
    assert found.keys() <= set(keys)
