"""What the benchmarks work on: Parquet files of seeded events, uniform in key and value, and a view of them."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from upriver.errors import UserError

TABLE = "events"
VIEW = "totals"
TOTALS = "SELECT k, count(*) AS n, sum(v) AS total FROM events GROUP BY k"
"""The view that is measured, in Spark SQL: a count and a sum by key."""
SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])
VALUES_MAX = 1_000
"""Values are from minus this up to but without this: sums of both signs, far from overflow."""
ROW_GROUP_ROWS = 100_000
"""Rows of a row group: one task reads at least one, so that a file can keep more than one processor busy."""
_DONE = "_events.json"
"""Written last: what the directory holds. Spark passes over names that start with an underscore."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventsSpec:
    """What to generate. rows: of all files together. keys: uniform from 0 up to but without it. columns: the key, the
    value, and others that no view reads; every third one of these is a text."""

    rows: int
    keys: int
    files: int = 10
    seed: int = 1
    columns: int = 2

    def __post_init__(self) -> None:
        if not 1 <= self.files <= self.rows:
            raise UserError(f"{self.rows} rows in {self.files} files: each file has one at least")
        if self.columns < len(SCHEMA):
            raise UserError(f"columns={self.columns}: at least {len(SCHEMA)} are needed")
        if self.keys < 1:
            raise UserError(f"keys={self.keys}: at least 1 is needed")

    def events(self, file: int) -> pa.Table:
        """The rows of one file; they depend on the seed and the file's number alone."""
        rows = self.rows * (file + 1) // self.files - self.rows * file // self.files
        rng = np.random.default_rng([self.seed, file])
        columns = [rng.integers(0, self.keys, rows), rng.integers(-VALUES_MAX, VALUES_MAX, rows)]
        events = pa.table(columns, schema=SCHEMA)
        for number in range(len(SCHEMA), self.columns):
            more = pa.array(rng.integers(0, 1 << 40, rows))
            events = events.append_column(f"c{number}", more.cast(pa.string()) if number % 3 == 0 else more)
        return events


def write_events(directory: Path, spec: EventsSpec) -> None:
    """Fill an empty or absent directory; one that holds just these events is left as it is.

    Raises UserError if anything else is there.
    """
    directory.mkdir(parents=True, exist_ok=True)
    done = directory / _DONE
    if done.exists() and json.loads(done.read_text()) == asdict(spec):
        return
    if any(directory.iterdir()):
        raise UserError(f"{directory} holds something else than {spec}: give an empty directory")
    for file in range(spec.files):
        path = directory / f"events-{file:06d}.parquet"
        pq.write_table(spec.events(file), path, row_group_size=ROW_GROUP_ROWS)
    done.write_text(json.dumps(asdict(spec)))
