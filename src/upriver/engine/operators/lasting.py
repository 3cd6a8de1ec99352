"""Lasting: an operator whose memory comes back, as :mod:`turning` says, and whose store works as an operator does."""

from collections.abc import Callable
from typing import Protocol

import numpy as np
import pyarrow as pa

from upriver.engine.batch import Batch
from upriver.engine.operators.consolidate import concatenated
from upriver.engine.operators.turning import USUAL, Eagerness, KeyedStore, Turning


class WorkingStore(KeyedStore, Protocol):
    """A store that works as an operator does."""

    def apply(self, port: int, batch: Batch) -> Batch: ...


class Lasting(Turning[WorkingStore]):
    """What :class:`upriver.engine.operators.operator.Stateful` asks for. ``schema``: of the output."""

    __slots__ = ("schema",)

    parts = 1

    def __init__(self, schema: pa.Schema, build: Callable[[], WorkingStore], eagerness: Eagerness = USUAL) -> None:
        """build: makes an empty store, which collects one batch."""
        super().__init__(build, eagerness)
        self.schema = schema

    def apply(self, port: int, batch: Batch) -> Batch:
        """Take in changes; returns those that follow.

        Raises ProtocolError for a retraction of a row that is not there.
        """
        changes = [store.apply(port, part) for store, part in self.split(batch)]
        self.tidy()
        return concatenated(changes) if changes else _no_changes(self.schema)


def _no_changes(schema: pa.Schema) -> Batch:
    rows = pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)
    return Batch(rows, np.empty(0, np.uint64), np.empty(0, np.int64))
