"""Spark writes runs: hash64, shuffle by vnode group, sort, one file a task. Runs in executors and in the driver.

One Spark job writes all indexes of a batch: its rows are laid out once per index, so that partition
``index * groups + group`` holds one index's rows of one contiguous group of vnodes, and nothing else.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial, reduce
from uuid import uuid4

import numpy as np
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from upriver.dataflow.plan import TableSpec, lake_channel
from upriver.errors import DeclarationError, ProtocolError
from upriver.ids import Channel
from upriver.shell.files import Files, open_files
from upriver.state.runs import HASH_COLUMN, RunInfo, describe_run, encode_run, run_schema

RUN_ROWS_MAX = 4_000_000
RUN_BYTES_MAX = 2**30
"""Rows and bytes of one run; a task that has more writes several. Arrow keeps 2 GiB of text in one column."""
_PARTITION = "partition"
_UNSIGNED = -(2**63)
"""XOR with this turns the order of signed longs into that of unsigned ones."""


@dataclass(frozen=True, slots=True)
class RunWriter:
    """What a writing task needs to know; picklable. groups: tasks per index. rows_max: of one run."""

    root: str
    table: TableSpec
    indexes: tuple[tuple[str, ...], ...]
    vnodes: int
    groups: int
    batch: int
    rows_max: int = RUN_ROWS_MAX

    def channel(self, index: int) -> Channel:
        """The lake edge that an index feeds."""
        return lake_channel(self.table.name, self.indexes[index])


def check_columns(schema: pa.Schema, table: str) -> None:
    """Refuse the column name that runs keep for themselves."""
    for column in schema.names:
        if column.lower() == HASH_COLUMN:
            raise DeclarationError(f"table {table!r}: the column name {column!r} is reserved; rename it")


def write_runs(rows: DataFrame, writer: RunWriter) -> dict[Channel, tuple[RunInfo, ...]]:
    """Write a batch's runs with one Spark job; when this returns they are in the lake, and in no manifest.

    Raises what the job raises; files that it has written by then are swept when the app next starts.
    """
    laid_out = [_laid_out(rows, writer, index) for index in range(len(writer.indexes))]
    partitions = writer.groups * len(laid_out)
    order_by = [_place_name(writer.table.schema.names.index(column)) for column in writer.table.order_by]
    written = (
        reduce(DataFrame.union, laid_out)
        .repartitionById(partitions, F.col(_PARTITION))
        .drop(_PARTITION)
        .sortWithinPartitions(F.col(HASH_COLUMN).bitwiseXOR(F.lit(_UNSIGNED)), *order_by)
        .mapInArrow(partial(write_partition, writer), "index int, run string")
        .collect()
    )
    runs: dict[Channel, list[RunInfo]] = {writer.channel(index): [] for index in range(len(writer.indexes))}
    for row in written:
        runs[writer.channel(row["index"])].append(RunInfo.from_json(json.loads(row["run"])))
    # By first vnode, then by name, in which the parts of one task are numbered: the order of the sort.
    return {c: tuple(sorted(infos, key=lambda run: (run.vnode_rows[0][0], run.path))) for c, infos in runs.items()}


def _laid_out(rows: DataFrame, writer: RunWriter, index: int) -> DataFrame:
    """The rows with their hash64 in one index's key, and the partition they belong to."""
    hash64 = F.xxhash64(*(F.col(quoted(column)) for column in writer.indexes[index]))
    bits = writer.vnodes.bit_length() - 1
    vnode = F.shiftrightunsigned(hash64, 64 - bits) if bits else F.lit(0)
    group = F.floor(vnode * F.lit(writer.groups) / F.lit(writer.vnodes))
    partition = (F.lit(index * writer.groups) + group).cast("int")
    names = enumerate(writer.table.schema.names)
    columns: list[Column] = [F.col(quoted(name)).alias(_place_name(place)) for place, name in names]
    return rows.select(partition.alias(_PARTITION), hash64.alias(HASH_COLUMN), *columns)


def _place_name(place: int) -> str:
    """A column's name on the way: ``mapInArrow`` does not take names with dots or backticks."""
    return f"c{place}"


def quoted(column: str) -> str:
    """A column's name as Spark's expressions take it, whatever is in it."""
    return "`" + column.replace("`", "``") + "`"


def write_partition(writer: RunWriter, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Write one task's rows, which come sorted, as runs of bounded size; yields what was written."""
    context = TaskContext.get()
    assert context is not None
    index, group = divmod(context.partitionId(), writer.groups)
    files = open_files(writer.root)
    # A task that Spark runs twice must not write one file twice: hence an id per attempt.
    attempt = f"tables/{writer.channel(index)}/{writer.batch:012d}-{uuid4().hex}"
    for part, rows in enumerate(gathered(batches, writer.rows_max, RUN_BYTES_MAX)):
        run = _write_run(files, writer, f"{attempt}-{part:05d}.arrow", rows)
        _check_group(run, writer, group)
        described = {"index": [index], "run": [json.dumps(run.to_json())]}
        yield pa.RecordBatch.from_pydict(described, schema=_WRITTEN)


_WRITTEN = pa.schema([("index", pa.int32()), ("run", pa.string())])


def gathered(batches: Iterable[pa.RecordBatch], rows_max: int, bytes_max: int) -> Iterator[pa.Table]:
    """The same rows in tables as large as the limits allow; a batch is not split, even if it is larger."""
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        if rows and (rows + batch.num_rows > rows_max or size + batch.nbytes > bytes_max):
            yield pa.Table.from_batches(held)
            held, rows, size = [], 0, 0
        held.append(batch)
        rows += batch.num_rows
        size += batch.nbytes
    if rows:
        yield pa.Table.from_batches(held)


def _write_run(files: Files, writer: RunWriter, path: str, rows: pa.Table) -> RunInfo:
    rows = rows.combine_chunks()
    hash64 = rows.column(0).chunk(0).to_numpy().view(np.uint64)
    columns = [pa.array(hash64), *rows.columns[1:]]
    run = pa.Table.from_arrays(columns, names=[HASH_COLUMN, *writer.table.schema.names])
    encoded = encode_run(run.cast(run_schema(writer.table.schema)))
    files.create(path, encoded)
    return describe_run(path, encoded, hash64, writer.vnodes)


def _check_group(run: RunInfo, writer: RunWriter, group: int) -> None:
    """Spark must have put each vnode group into its own partition: a key's rows lie in one task's runs."""
    groups = {vnode * writer.groups // writer.vnodes for vnode, _ in run.vnode_rows}
    if groups != {group}:
        raise ProtocolError(f"{run.path}: rows of vnode groups {sorted(groups)} in partition of group {group}")
