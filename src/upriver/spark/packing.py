"""Rows packed for Spark's shuffle, and unpacked in order.

Spark's shuffle and sort handle rows one at a time, and so cost more than all else that happens to a row on its way
into the lake. So a task first gathers rows, orders them by vnode and packs them in Arrow; what goes through the shuffle
is a few large binary values instead. Between a table's vnodes and a task stands the *shelf*, a contiguous range of
vnodes: one packed value holds rows of one shelf, and Spark sorts the values by shelf, so a task that unpacks them
holds one shelf at a time.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from upriver.hashing import hash64
from upriver.state.ordering import sorted_by
from upriver.state.runs import HASH_COLUMN, run_schema
from upriver.vnodes import vnodes_of

SHELVES_PER_GROUP = 8
"""Shelves of one vnode group, unless it has fewer vnodes."""
PACK_ROWS_MAX = 500_000
PACK_BYTES_MAX = 64 << 20
"""Rows and bytes that are gathered before they are packed."""
PACKED_SQL = "partition int, shelf int, rows binary"
_PACKED = pa.schema([("partition", pa.int32()), ("shelf", pa.int32()), ("rows", pa.binary())])


@dataclass(frozen=True, slots=True)
class Shelves:
    """Where vnodes go: ``groups`` contiguous ranges of vnodes, each cut into the same number of shelves."""

    vnodes: int
    groups: int

    @property
    def per_group(self) -> int:
        return max(1, min(SHELVES_PER_GROUP, self.vnodes // self.groups))

    def of(self, hashes: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint16]:
        """The shelf of each row, counted over all groups."""
        shelves = vnodes_of(hashes, self.vnodes).astype(np.int64) * (self.groups * self.per_group) // self.vnodes
        return shelves.astype(np.uint16)


def pack(
    rows: pa.Table, schema: pa.Schema, lots: Mapping[int, Sequence[str]], shelves: Shelves
) -> Iterator[pa.RecordBatch]:
    """The rows once per lot, as packed values. schema: of the table; ``rows`` has its columns, in its order.

    lots: numbers of lots, and the columns by which each is kept. Lot ``n`` has the partitions from ``n * groups`` on.
    """
    batch = _as_kept(rows, schema)
    for number, key in lots.items():
        hashes = hash64([batch.column(name) for name in key], batch.num_rows)
        shelf_of = shelves.of(hashes)
        order = np.argsort(shelf_of, kind="stable")  # a radix sort, since shelves are 16-bit
        taken = pa.array(order)
        hashed = pa.RecordBatch.from_arrays(
            [pa.array(hashes[order]), *(column.take(taken) for column in batch.columns)], schema=run_schema(schema)
        )
        used, starts = np.unique(shelf_of[order], return_index=True)
        ends = [*starts[1:].tolist(), len(order)]
        packed = [
            hashed.slice(start, end - start).serialize().to_pybytes() for start, end in zip(starts, ends, strict=True)
        ]
        partitions = number * shelves.groups + used.astype(np.int32) // shelves.per_group
        columns = [pa.array(partitions, pa.int32()), pa.array(used, pa.int32()), pa.array(packed, pa.binary())]
        yield pa.RecordBatch.from_arrays(columns, schema=_PACKED)


def in_order(rows: pa.Table, schema: pa.Schema, key: Sequence[str], order_by: Sequence[str]) -> pa.RecordBatch:
    """Rows as :func:`unpack` gives them, without having been packed. schema: of the table, as for :func:`pack`."""
    batch = _as_kept(rows, schema)
    hashes = pa.array(hash64([batch.column(name) for name in key], batch.num_rows))
    return _in_order([pa.RecordBatch.from_arrays([hashes, *batch.columns], schema=run_schema(schema))], order_by)


def _as_kept(rows: pa.Table, schema: pa.Schema) -> pa.RecordBatch:
    """The rows with the names and the types of the table."""
    return pa.Table.from_arrays(rows.columns, names=schema.names).cast(schema).combine_chunks().to_batches()[0]


def unpack(packed: Iterable[pa.RecordBatch], schema: pa.Schema, order_by: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """The rows of packed values that come by shelf: by hash64, and for one hash64 in the order of ``order_by``.

    schema: of the table. One batch a shelf, with a run's schema.
    """
    held: list[pa.RecordBatch] = []
    shelf: int | None = None
    for batch in packed:
        for number, rows in zip(batch.column("shelf").to_pylist(), batch.column("rows"), strict=True):
            if number != shelf and held:
                yield _in_order(held, order_by)
                held = []
            shelf = number
            held.append(pa.ipc.read_record_batch(rows.as_buffer(), run_schema(schema)))
    if held:
        yield _in_order(held, order_by)


def _in_order(parts: Sequence[pa.RecordBatch], order_by: Sequence[str]) -> pa.RecordBatch:
    table = pa.Table.from_batches(parts).combine_chunks()
    hashes = table.column(HASH_COLUMN).chunk(0).to_numpy()
    if not order_by:
        return table.take(pa.array(np.argsort(hashes, kind="stable"))).combine_chunks().to_batches()[0]
    keys = pa.table(
        [table.column(HASH_COLUMN), *(_sortable(table.column(name)) for name in order_by)], _names(order_by)
    )
    order = pc.sort_indices(keys, **sorted_by([(name, "ascending") for name in keys.column_names], "at_start"))
    return table.take(order).combine_chunks().to_batches()[0]


def _names(order_by: Sequence[str]) -> list[str]:
    """Names for the columns to sort by, none of which can be taken for a path into a nested column."""
    return [f"k{place}" for place in range(1 + len(order_by))]


def _sortable(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Values that Arrow orders as Spark orders the column's: for floats, NaN comes last and -0.0 is 0.0."""
    if not pa.types.is_floating(column.type):
        return column
    values = column.cast(pa.float64()).combine_chunks()
    numbers = values.fill_null(0.0).to_numpy(zero_copy_only=False) + 0.0  # the sum of -0.0 and 0.0 is 0.0
    bits = np.where(np.isnan(numbers), np.nan, numbers).view(np.int64)
    ordered = bits ^ ((bits >> 63) & np.int64(0x7FFF_FFFF_FFFF_FFFF))
    return pa.chunked_array([pa.array(ordered, mask=values.is_null().to_numpy(zero_copy_only=False))])
