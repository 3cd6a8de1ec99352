"""What tests of state and operators share: types and their values, batches off a lake edge, and how to compare rows."""

import math
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC
from decimal import Decimal
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from soak import examples

from upriver.engine.batch import Batch
from upriver.engine.operators.compacted import CompactionPace
from upriver.hashing import Hashes, hash64
from upriver.plan.plan import Projection

MANY = settings(
    derandomize=True, deadline=None, max_examples=examples(25), suppress_health_check=[HealthCheck.too_slow]
)
"""How property tests run: the same examples each time, however slow the machine."""

EAGER = CompactionPace(forgotten_min=0, step_rows=1)
"""Memory is given back as soon as it can be, so that it is in a test of a few rows."""

Row = tuple[Any, ...]

_FLOATS = [0.0, -0.0, math.nan, -math.nan, math.inf, -math.inf]


def decimal_of(unscaled: int, scale: int) -> Decimal:
    """Exactly, unlike Decimal's own arithmetic, which keeps 28 digits."""
    return Decimal(f"{unscaled}E-{scale}")


def _decimals(precision: int, scale: int) -> SearchStrategy[Decimal]:
    most = 10**precision - 1
    return st.integers(-most, most).map(lambda unscaled: decimal_of(unscaled, scale))


def _integers(bits: int) -> SearchStrategy[int]:
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


VALUES: dict[pa.DataType, SearchStrategy[Any]] = {
    pa.bool_(): st.booleans(),
    pa.int8(): _integers(8),
    pa.int16(): _integers(16),
    pa.int32(): _integers(32),
    pa.int64(): _integers(64),
    pa.float32(): st.sampled_from(_FLOATS) | st.floats(width=32),
    pa.float64(): st.sampled_from(_FLOATS) | st.floats(),
    pa.decimal128(5, 2): _decimals(5, 2),
    pa.decimal128(28, 6): _decimals(28, 6),
    pa.string(): st.text(max_size=5),
    pa.binary(): st.binary(max_size=5),
    pa.date32(): st.dates(),
    pa.timestamp("us"): st.datetimes(),
    pa.timestamp("us", "UTC"): st.datetimes(timezones=st.just(UTC)),
}
"""Every type that a key or an aggregate can have, with its values."""

TYPES = st.sampled_from(list(VALUES))


def column_values(type: pa.DataType, size: int | None = None) -> SearchStrategy[list[Any]]:
    """Lists of values of a type that repeat and have nulls."""
    values = st.none() | VALUES[type]
    few = st.lists(values, min_size=1, max_size=4)
    least, most = (0, 40) if size is None else (size, size)
    return few.flatmap(lambda pool: st.lists(st.sampled_from(pool) | values, min_size=least, max_size=most))


def batch_of(schema: pa.Schema, rows: Sequence[Row], key: Sequence[str], weight: Sequence[int] | None = None) -> Batch:
    """Rows as they come off a lake edge: sorted by the hash64 of ``key``, otherwise in order.

    No ``key`` columns: all hashes are HASH_SEED, so all keys collide.
    """
    return table_batch(schema, rows, key, lambda columns: hash64(columns, len(rows)), weight)


def table_batch(
    schema: pa.Schema,
    rows: Sequence[Row],
    key: Sequence[str],
    hasher: Callable[[Sequence[pa.Array]], Hashes],
    weight: Sequence[int] | None = None,
) -> Batch:
    """Rows as they come off a lake edge whose keys have these hashes: sorted by hash, otherwise in order."""
    columns = [pa.array([row[place] for row in rows], field.type) for place, field in enumerate(schema)]
    batch = pa.RecordBatch.from_arrays(columns, schema=schema)
    hashes = hasher([batch.column(name) for name in key])
    order = np.argsort(hashes, kind="stable")
    weights = None if weight is None else np.array(weight, np.int64)[order]
    return Batch(batch.take(pa.array(order)), hashes[order], weights)


def through_the_wire(state: Sequence[pa.RecordBatch]) -> tuple[pa.RecordBatch, ...]:
    """The state as another process reads it."""
    copies = []
    for batch in state:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
        copies += list(pa.ipc.open_stream(sink.getvalue()))
    return tuple(copies)


def pieces(batch: Batch, cuts: Iterable[int]) -> list[Batch]:
    """The batch cut before these rows."""
    bounds = sorted({0, len(batch), *(cut % (len(batch) + 1) for cut in cuts)})
    return [
        Batch(
            batch.rows.slice(start, stop - start),
            batch.hash64[start:stop],
            None if batch.weight is None else batch.weight[start:stop],
        )
        for start, stop in pairwise(bounds)
    ]


def keys_of(schema: pa.Schema, keys: Sequence[Row]) -> tuple[Hashes, pa.RecordBatch]:
    """Asked keys with their hashes."""
    columns = [pa.array([key[place] for key in keys], field.type) for place, field in enumerate(schema)]
    return hash64(columns, len(keys)), pa.RecordBatch.from_arrays(columns, schema=schema)


def comings_and_goings(data: st.DataObject, rows: Sequence[Row]) -> tuple[list[tuple[Row, int]], list[Row]]:
    """Rows that come and may go again, each with its weight, no row before it came; and those left, in order.

    Of equal rows, the oldest goes.
    """
    left: list[Row] = []
    changes = []
    for row in rows:
        changes.append((row, 1))
        left.append(row)
        while left and data.draw(st.integers(0, 2)) == 0:
            gone = data.draw(st.sampled_from(left))
            left.remove(gone)
            changes.append((gone, -1))
    return changes, left


def plainly(value: Any) -> Any:
    """A value that is equal to another where SQL groups them together: one zero, one NaN."""
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value + 0.0
    return value


def plain_rows(rows: pa.RecordBatch | pa.Table) -> list[Row]:
    """The rows as tuples that can be compared."""
    columns = [[plainly(value) for value in column.to_pylist()] for column in rows.columns]
    return list(zip(*columns, strict=True))


def order_of(value: Any) -> Any:
    """A sort key: Spark's order, in which NaN is the greatest."""
    if isinstance(value, float):
        return (math.isnan(value), 0.0 if math.isnan(value) else value)
    return value


def plain(schema: pa.Schema, *names: str) -> Projection:
    """A projection to columns of ``schema`` as they are; all of them if none is named."""
    chosen = names or schema.names
    return Projection(tuple(f'"{name}"' for name in chosen), pa.schema([schema.field(name) for name in chosen]))
