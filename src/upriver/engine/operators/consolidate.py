"""Changes as few rows: what was added and taken back in the meantime leaves no trace."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from upriver.engine.batch import Batch
from upriver.hashing import hash64
from upriver.state.columns import canonical
from upriver.state.entries import is_hashable
from upriver.state.slots import first_equal
from upriver.state.vectors import true_at
from upriver.xxh64 import Hashes

SAMPLE_ROWS = 512
"""Looked at before all rows are compared with each other."""


def concatenated(batches: Sequence[Batch]) -> Batch:
    """Batches of one schema, one or more, as one."""
    if len(batches) == 1:
        return batches[0]
    schema = batches[0].rows.schema
    weights = [np.ones(len(batch), np.int64) if batch.weight is None else batch.weight for batch in batches]
    return Batch(
        pa.concat_batches([_of_schema(batch.rows, schema) for batch in batches]),
        np.concatenate([batch.hash64 for batch in batches]),
        None if all(batch.weight is None for batch in batches) else np.concatenate(weights),
    )


def consolidated(batch: Batch) -> Batch:
    """The same changes without rows that take each other back, and without rows of weight zero.

    Equal rows become one, with the sum of their weights; unless nothing is taken back and few rows seem to be equal,
    so that comparing them would save nothing. Equal is as :mod:`upriver.plan.ops` says. Each row keeps the hash64
    of the first of its equals.
    """
    weight = np.ones(len(batch), np.int64) if batch.weight is None else batch.weight
    if (weight > 0).all() and not _repeats(batch.rows):
        return batch
    if not weight.all():
        batch, weight = batch.filtered(weight != 0), weight[weight != 0]
    columns = [canonical(column) for column in batch.rows.columns]
    first = first_equal(_row_hashes(columns, len(batch)), columns)
    net = np.zeros(len(batch), np.int64)
    np.add.at(net, first, weight)
    kept = true_at(net)
    return Batch(batch.rows.take(pa.array(kept)), batch.hash64[kept], net[kept])


def _repeats(rows: pa.RecordBatch) -> bool:
    """Whether many rows are equal, as far as a sample of them tells."""
    places = np.linspace(0, rows.num_rows - 1, min(rows.num_rows, SAMPLE_ROWS)).astype(np.int64)
    hashes = _row_hashes([canonical(column.take(pa.array(places))) for column in rows.columns], len(places))
    return 2 * len(np.unique(hashes)) < len(places)


def _row_hashes(columns: Sequence[pa.Array], rows: int) -> Hashes:
    """Equal for equal rows. What cannot be hashed is left out; equality is looked at later."""
    return hash64([column for column in columns if is_hashable(column.type)], rows)


def _of_schema(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Schemas of one relation may differ in what may be null, as joins see it."""
    return rows if rows.schema is schema else pa.RecordBatch.from_arrays(rows.columns, schema=schema)
