"""Tables of Parquet files that come one by one, and what Spark says of views: for tests of partial views on Spark."""

import os
from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
from state_kit import plain_rows

from upriver.app import App
from upriver.settings import MEMORY_BUDGET_MIN

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


Files = Mapping[str, tuple[pa.Schema, Sequence[tuple[Any, ...]]]]
"""By table: the columns and rows of one more file."""


@dataclass
class Sources(ABC):
    """Writes the tables' files, one of each at a time, at random. files, rows: so many, of each and in all."""

    directory: Path
    rng: Random
    files: int = 0
    rows: int = 0

    def write(self) -> None:
        self.files += 1
        for table, (schema, rows) in self.draw().items():
            write_file(self.directory / table, self.files, schema, rows)

    @abstractmethod
    def draw(self) -> Files:
        """The next file of each table."""

    def number(self) -> int:
        """One that no row has."""
        self.rows += 1
        return self.rows


Written = TypeVar("Written", bound=Sources)


def app_on(spark: Any, directory: Path) -> App:
    """An app without tables and views; with as little memory as can be asked for."""
    lake = str(directory / "lake")
    return App(spark, lake, workers=2, vnodes=64, ingest_tasks=1, memory_budget=MEMORY_BUDGET_MIN)


def running(app: App, sources: Written) -> Iterator[tuple[App, Written]]:
    """The app, while it runs, once it has taken what there is."""
    with app:
        app.start()
        app.wait(timeout=120)
        yield app, sources


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
