"""Lasting: an operator whose memory comes back. Its store is turned over as :mod:`turning` says."""

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import pyarrow as pa

from upriver.dataflow.batch import Batch
from upriver.dataflow.operators.consolidate import concatenated
from upriver.dataflow.operators.turning import Store, Turning
from upriver.state.vectors import Hashes


class WorkingStore(Store, Protocol):
    """A store that works as an operator does."""

    def apply(self, port: int, batch: Batch) -> Batch: ...


Turner = Callable[[Callable[[], WorkingStore]], Turning[WorkingStore]]
"""Turns over what the function makes."""


class Lasting:
    """What :class:`upriver.dataflow.operators.operator.Stateful` asks for. ``schema``: of the output."""

    __slots__ = ("_stores", "schema")

    def __init__(self, schema: pa.Schema, stores: Turning[WorkingStore]) -> None:
        """stores: each collects one batch."""
        self.schema = schema
        self._stores = stores

    @property
    def parts(self) -> int:
        return 1

    @property
    def held(self) -> int:
        return self._stores.held

    @property
    def nbytes(self) -> int:
        return self._stores.nbytes

    def apply(self, port: int, batch: Batch) -> Batch:
        """Take in changes; returns those that follow.

        Raises ProtocolError for a retraction of a row that is not there.
        """
        changes = [
            store.apply(port, batch.filtered(share))
            for store, share in self._stores.shares(batch.hash64)
            if share.any()
        ]
        self._stores.tidy()
        return concatenated(changes) if changes else _no_changes(self.schema)

    def hashes_between(self, least: int, most: int) -> Hashes:
        return self._stores.hashes_between(least, most)

    def collect(self, keys: Hashes) -> tuple[pa.RecordBatch, ...]:
        return self._stores.collect(keys)

    def install(self, state: Sequence[pa.RecordBatch]) -> None:
        """Raises ProtocolError if something is kept of these keys already."""
        self._stores.install(state)

    def drop(self, keys: Hashes) -> None:
        self._stores.drop(keys)


def _no_changes(schema: pa.Schema) -> Batch:
    rows = pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)
    return Batch(rows, np.empty(0, np.uint64), np.empty(0, np.int64))
