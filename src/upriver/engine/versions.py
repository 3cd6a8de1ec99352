"""The versions of an upsert table that still count, of many in a file: compaction keeps no others."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from upriver.engine.operators.operator import ExpressionEvaluator
from upriver.engine.operators.topk import SortKey, in_order
from upriver.errors import RowError
from upriver.plan.plan import TableSpec
from upriver.state.indexes import Entries
from upriver.state.vectors import Positions, true_at


def newest_versions(
    hashes: np.ndarray, rows: pa.RecordBatch, table: TableSpec, evaluator: ExpressionEvaluator
) -> Positions:
    """Which rows (their positions, ascending) are the newest version of their primary key, of those with one hash64.

    hashes: of each row. rows: in order of arrival, where their hash64 is the same: of versions that tie, the last one
    counts. A version for which ``deletes`` cannot be evaluated is set aside by every view; if there is one, all
    versions stay.
    """
    everything = np.arange(len(rows))
    if table.deletes is not None:
        try:
            evaluator.mask(rows, table.deletes)
        except RowError:
            return everything
    key = pa.schema([rows.schema.field(name) for name in table.primary_key])
    slots = Entries(key).assign([rows.column(name) for name in key.names], len(rows), None)
    _, hash_places = np.unique(hashes, return_inverse=True)
    _, groups = np.unique(hash_places * (slots.max(initial=0) + 1) + slots, return_inverse=True)
    order, _ = in_order(groups, _sort_keys(rows.schema, table.order_by), lambda place, at: rows.column(place).take(at))
    last = order[true_at(np.diff(groups[order], append=-1))]
    last.sort()
    return last


def _sort_keys(schema: pa.Schema, names: Sequence[str]) -> list[SortKey]:
    return [SortKey(schema.get_field_index(name), schema.field(name).type) for name in names]
