"""The rows of constant edges, as if the first epoch had them: of VALUES, and the row with which an aggregate without
GROUP BY begins."""

import numpy as np
import pyarrow as pa

from upriver.engine.batch import Batch
from upriver.hashing import hash64
from upriver.ids import VnodeId
from upriver.plan.plan import ConstantEdge
from upriver.plan.schemas import rows_from_bytes
from upriver.vnodes import vnodes_of


def constant_rows(edge: ConstantEdge) -> Batch:
    """All rows of the edge, sorted by hash64."""
    rows = rows_from_bytes(edge.rows)
    hashes = hash64([rows.column(column) for column in edge.key], rows.num_rows)
    order = np.argsort(hashes, kind="stable")
    return Batch(rows.take(pa.array(order)), hashes[order])


def constant_rows_of(edge: ConstantEdge, vnodes: frozenset[VnodeId], count: int) -> Batch:
    """The rows that these vnodes have, out of so many."""
    batch = constant_rows(edge)
    return batch.filtered(np.isin(vnodes_of(batch.hash64, count), np.array(sorted(vnodes), np.int64)))
