"""Batch: what operators exchange: Arrow rows, the hash64 of their routing key, and a signed weight."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from upriver.hashing import Hashes as Hashes
from upriver.plan.row_order import EPOCH_COLUMN, has_order

Weights = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows in the order in which they are applied.

    rows: user columns only. hash64: of the region's routing key, one per row.
    weight: +1 adds a row, -1 retracts one; ``None`` means that every row has weight +1.
    """

    rows: pa.RecordBatch
    hash64: Hashes
    weight: Weights | None = None

    def __len__(self) -> int:
        return int(self.rows.num_rows)

    def replaced(self, rows: pa.RecordBatch) -> "Batch":
        """The same rows with other columns."""
        return Batch(rows, self.hash64, self.weight)

    @property
    def undated(self) -> "Batch":
        """The same rows without the column of their epochs."""
        names = self.rows.schema.names
        return self.replaced(self.rows.drop_columns([EPOCH_COLUMN])) if has_order(names) else self

    def slice(self, start: int, stop: int) -> "Batch":
        """The rows from ``start`` to before ``stop``."""
        weight = None if self.weight is None else self.weight[start:stop]
        return Batch(self.rows.slice(start, stop - start), self.hash64[start:stop], weight)

    def repeated(self) -> "Batch":
        """Each row repeated by its weight, which is not below zero; each copy with weight +1."""
        if self.weight is None:
            return self
        places = np.repeat(np.arange(len(self)), self.weight)
        return Batch(self.rows.take(pa.array(places)), self.hash64[places])

    def filtered(self, mask: npt.NDArray[np.bool_]) -> "Batch":
        """The rows where ``mask`` is true, in order."""
        if mask.all():
            return self
        weight = None if self.weight is None else self.weight[mask]
        return Batch(self.rows.filter(pa.array(mask)), self.hash64[mask], weight)


def no_rows(schema: pa.Schema) -> Batch:
    """An empty batch."""
    return Batch(pa.RecordBatch.from_pylist([], schema), np.empty(0, np.uint64))


@dataclass(frozen=True, slots=True)
class Outgoing:
    """Rows that leave a region over an exchange edge, hashed by the receiver's routing key.

    to: the receiving region. port: the port at which they come in.
    """

    to: str
    port: int
    batch: Batch


def one_batch(parts: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """All rows of one part or more, of one schema, in order. A single part is not copied."""
    return parts[0] if len(parts) == 1 else pa.concat_batches(parts)
