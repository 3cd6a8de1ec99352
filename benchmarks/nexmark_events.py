"""NEXMark's events as Arrow tables and as Parquet files, from a seed."""

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.nexmark_model import CYCLE_EVENTS, TABLES, Draw
from upriver.errors import UserError

BLOCK_EVENTS = 1_000 * CYCLE_EVENTS
"""Events that are drawn together. Where blocks begin does not depend on what is asked for."""
ROW_GROUP_ROWS = 25_000
"""Rows of a row group: one task reads at least one, so that a file can keep more than one processor busy."""
_DONE = "_nexmark.json"
"""Written last: what the directory holds. Spark passes over names that start with an underscore."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NexmarkSpec:
    """Which events. events: of all kinds. events_per_s: of event time. Events do not depend on how many come after."""

    events: int
    seed: int = 1
    events_per_s: int = 10_000

    def __post_init__(self) -> None:
        if self.events < 1 or self.events_per_s < 1:
            raise UserError(f"{self}: at least one event is needed, and one a second")

    def rows(self, table: str, first: int = 0, end: int | None = None) -> pa.Table:
        """Those of the events from ``first`` up to but without ``end`` that are rows of the table, in order."""
        end = self.events if end is None else end
        kind = TABLES[table].kind
        blocks = range(first // BLOCK_EVENTS, max(first, end - 1) // BLOCK_EVENTS + 1)
        drawn = pa.Table.from_batches([self._block(table, block) for block in blocks])
        before, start, stop = kind.before(np.array([blocks.start * BLOCK_EVENTS, first, end])).tolist()
        return drawn.slice(start - before, stop - start)

    def _block(self, table: str, block: int) -> pa.RecordBatch:
        kind = TABLES[table].kind
        start, stop = kind.before(np.array([block, block + 1]) * BLOCK_EVENTS).tolist()
        rng = np.random.default_rng([self.seed, kind.first, block])
        columns = TABLES[table].columns(Draw(rng, kind, np.arange(start, stop), self.events_per_s))
        return pa.RecordBatch.from_pydict(columns)


def write_nexmark(directory: Path, spec: NexmarkSpec, files: int, tables: Sequence[str] = tuple(TABLES)) -> None:
    """Write ``<table>/<number>.parquet`` for each of the tables, each with the rows of an even share of the events.

    An empty or absent directory is filled, and one that holds just this is left as it is. Modification times ascend,
    the order in which a Spark file stream takes the files. Raises UserError if anything else is there.
    """
    if not 1 <= files <= spec.events:
        raise UserError(f"{spec.events} events in {files} files: each file has one at least")
    directory.mkdir(parents=True, exist_ok=True)
    done, holds = directory / _DONE, asdict(spec) | {"files": files, "tables": sorted(tables)}
    if done.exists() and json.loads(done.read_text()) == holds:
        return
    if any(directory.iterdir()):
        raise UserError(f"{directory} holds something else than {holds}: give an empty directory")
    cuts = [spec.events * file // files for file in range(files + 1)]
    for table in tables:
        (directory / table).mkdir()
        for file, (first, end) in enumerate(pairwise(cuts)):
            path = directory / table / f"{file:06d}.parquet"
            pq.write_table(spec.rows(table, first, end), path, row_group_size=ROW_GROUP_ROWS)
            os.utime(path, (file, file))  # a file system's clock may tick slower than we write
    done.write_text(json.dumps(holds))
