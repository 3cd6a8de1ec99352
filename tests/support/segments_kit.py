"""Lakes of a few small epochs, for tests of segments: an append table and an upsert table, each with two indexes."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pyarrow as pa

from upriver.hashing import hash64
from upriver.ids import Channel, Epoch, VnodeId
from upriver.lake.lake import Lake, LakeRecord, OwnedLake
from upriver.lake.manifests import LakeEpochs, Manifest, Segment
from upriver.lake.spans import single
from upriver.lake.upkeep import compact
from upriver.plan.plan import TableSpec, lake_channel
from upriver.state.run_order import sorted_order
from upriver.state.runs import RunInfo, describe_run, encode_run, run_schema

VNODES = 8
ALL = frozenset(map(VnodeId, range(VNODES)))
Row = tuple[Any, ...]

EVENTS = TableSpec("events", pa.schema([("k", pa.int64()), ("n", pa.int64())]), ("k",))
USERS = TableSpec(
    "users",
    pa.schema([("id", pa.int64()), ("version", pa.int64()), ("town", pa.string())]),
    ("id",),
    order_by=("version",),
    primary_key=("id",),
)
INDEXES: Mapping[str, tuple[tuple[str, ...], ...]] = {"events": (("k",), ("n",)), "users": (("id",), ("town",))}
TABLES = {table.name: table for table in (EVENTS, USERS)}
BY_K, BY_N = lake_channel("events", ("k",)), lake_channel("events", ("n",))
BY_ID, BY_TOWN = lake_channel("users", ("id",)), lake_channel("users", ("town",))


@contextmanager
def owned(root: Path | str, indexes: Mapping[str, tuple[tuple[str, ...], ...]] = INDEXES) -> Iterator[OwnedLake]:
    address = root if isinstance(root, str) else str(root)
    lake = OwnedLake(address, LakeRecord(VNODES, (EVENTS, USERS), indexes), {})
    try:
        yield lake
    finally:
        lake.release()


def hashes_of(table: TableSpec, index: Sequence[str], rows: Sequence[Row]) -> np.ndarray:
    columns = [
        pa.array([row[table.schema.get_field_index(name)] for row in rows], table.schema.field(name).type)
        for name in index
    ]
    return hash64(columns, len(rows))


def write_run(lake: Lake, table: TableSpec, index: tuple[str, ...], rows: Sequence[Row], task: int = 0) -> RunInfo:
    hashes = hashes_of(table, index, rows)
    columns = [pa.array([row[place] for row in rows], field.type) for place, field in enumerate(table.schema)]
    batch = pa.RecordBatch.from_arrays([pa.array(hashes), *columns], schema=run_schema(table.schema))
    order = sorted_order(hashes, batch, table.order_by)
    whole = pa.Table.from_batches([batch]).take(pa.array(order))
    encoded, path = encode_run(whole), f"tables/{lake_channel(table.name, index)}/{uuid4().hex}.arrow"
    lake.files.create(path, encoded)
    return replace(describe_run(path, encoded, hashes[order], VNODES), task=task)


def publish(
    lake: OwnedLake,
    table: TableSpec,
    rows: Sequence[Row],
    indexes: Iterable[tuple[str, ...]] = (),
    tasks: Sequence[int] = (),
) -> None:
    """The next epoch. indexes: that it has, if not all that the table has in a new lake. tasks: which task writes each
    row, if not one writes all."""
    epoch = Epoch(lake.last_epoch() + 1)
    of_tasks: dict[int, list[Row]] = {}
    for row, task in zip(rows, tasks or [0] * len(rows), strict=True):
        of_tasks.setdefault(task, []).append(row)
    runs = {
        lake_channel(table.name, index): tuple(
            write_run(lake, table, index, of_tasks[task], task) for task in sorted(of_tasks)
        )
        for index in indexes or INDEXES[table.name]
    }
    manifest = Manifest(
        epoch=epoch, term=lake.term, table=table.name, query="q", batch=epoch, committed_at=1000.0 + epoch, runs=runs
    )
    lake.publish(manifest)


def compacted(lake: OwnedLake, through: int | None = None) -> list[Segment]:
    """The segments that are made, of all epochs up to one."""
    return list(compact(lake, lake.last_epoch() if through is None else Epoch(through)))


def table_of(channel: Channel) -> TableSpec:
    return TABLES[channel.partition("/")[0]]


def rows_in(lake: Lake, epochs: LakeEpochs, channel: Channel) -> list[Row]:
    """(hash64, columns ...) of all rows in an epoch or a segment, as they are read."""
    found: list[Row] = []
    for batch in lake.read(epochs, channel, ALL, table_of(channel)):
        found += zip(*(column.to_pylist() for column in batch.columns), strict=True)
    return found


def rows_through(lake: Lake, channel: Channel, through: int | None = None) -> list[Row]:
    """The rows of all epochs up to one, sorted by hash64, those of one key as they are read."""
    last = lake.last_epoch() if through is None else Epoch(through)
    found = [row for span in lake.spans(last) for row in rows_in(lake, lake.epochs(span), channel)]
    return sorted(found, key=lambda row: row[0])


def named(lake: Lake) -> set[str]:
    """The paths of all runs that a manifest or a segment names."""
    spans = {*map(single, lake.numbers("epochs")), *lake.segments()}
    return {run.path for span in spans for runs in lake.epochs(span).runs.values() for run in runs}


def check_clean(root: Path, levels: list[int]) -> None:
    """Nothing is left to do, and nothing that is not needed. levels: epochs of each span."""
    lake = Lake(str(root))
    assert [len(span) for span in lake.spans(lake.last_epoch())] == levels
    assert set(lake.run_paths()) == named(lake)
    assert len(list(lake.numbers("epochs"))) == levels.count(1)
    assert lake.files.names("unfinished") == []
