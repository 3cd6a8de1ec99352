"""Lasting: an operator whose memory comes back. Its store is turned over as :mod:`turning` says."""

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import pyarrow as pa

from upriver.dataflow.batch import Batch
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
        changes = [store.apply(port, batch.filtered(share)) for store, share in self._stores.shares(batch.hash64)]
        self._stores.tidy()
        return joined(changes)

    def hashes_between(self, least: int, most: int) -> Hashes:
        return self._stores.hashes_between(least, most)

    def collect(self, keys: Hashes) -> tuple[pa.RecordBatch, ...]:
        return self._stores.collect(keys)

    def install(self, state: Sequence[pa.RecordBatch]) -> None:
        """Raises ProtocolError if something is kept of these keys already."""
        self._stores.install(state)

    def drop(self, keys: Hashes) -> None:
        self._stores.drop(keys)


def joined(batches: Sequence[Batch]) -> Batch:
    """Changes of one schema, one or more batches of them, as one."""
    if len(batches) == 1:
        return batches[0]
    weights = [np.ones(len(batch), np.int64) if batch.weight is None else batch.weight for batch in batches]
    return Batch(
        pa.concat_batches([batch.rows for batch in batches]),
        np.concatenate([batch.hash64 for batch in batches]),
        np.concatenate(weights),
    )
