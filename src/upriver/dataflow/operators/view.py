"""View: answers. Reads what an aggregate or a rows operator keeps, and gives it the form that the user declared.

Output expressions and HAVING are evaluated when somebody reads, over the rows that are read. A view whose output is
plain columns, and most are, reads just those columns, and no evaluator is called.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Protocol

import numpy as np
import pyarrow as pa

from upriver.dataflow.batch import Batch
from upriver.dataflow.operators import turning
from upriver.dataflow.operators.evaluator import Evaluator
from upriver.dataflow.operators.project import Project
from upriver.dataflow.plan import Projection
from upriver.state.vectors import Hashes, Positions, Slots, is_any_twice

SCAN_ROWS = 65_536
"""Rows that a scan reads at a time."""


class Store(turning.Store, Protocol):
    """Rows of one schema, each with a slot, kept under a routing key."""

    @property
    def schema(self) -> pa.Schema: ...

    @property
    def rows(self) -> int:
        """How many rows there are."""
        ...

    @property
    def keys(self) -> int:
        """How many routing keys have rows."""
        ...

    def apply(self, batch: Batch) -> None:
        """Take in a batch of changes."""
        ...

    def find(self, hashes: Hashes, keys: Sequence[pa.Array]) -> tuple[Positions, Slots]:
        """The rows of each routing key, each with the key's position; in the order of the keys, then of arrival.

        Equal rows may have one slot, which is named once for each.
        """
        ...

    def by_hash(self) -> Slots:
        """All rows, sorted by the routing key's hash64."""
        ...

    def column(self, name: str, slots: Slots) -> pa.Array:
        """One column of these rows."""
        ...


class View:
    """Reads of one view."""

    __slots__ = ("_evaluator", "_having", "_output", "_schema", "_store")

    def __init__(self, store: Store, output: Projection, having: str | None, evaluator: Evaluator) -> None:
        """output, having: over the store's schema."""
        self._store = store
        self._schema = output.schema
        self._output = Project(output, evaluator)
        self._having = having
        self._evaluator = evaluator

    def lookup(self, hashes: Hashes, keys: Sequence[pa.Array]) -> pa.RecordBatch:
        """The view's rows of these keys, each key once, in the order of their first mention."""
        return self._read(_of_each_key_once(*self._store.find(hashes, keys)))

    def lookup_each(self, hashes: Hashes, keys: Sequence[pa.Array], lengths: Sequence[int]) -> list[pa.RecordBatch]:
        """What :meth:`lookup` finds for the first so many keys, for so many that follow, and so on, in one go."""
        positions, slots = self._store.find(hashes, keys)
        bounds = np.searchsorted(positions, np.cumsum([0, *lengths]))
        parts = [_of_each_key_once(positions[start:stop], slots[start:stop]) for start, stop in pairwise(bounds)]
        if self._having is not None:
            return [self._read(part) for part in parts]
        rows = self._read(np.concatenate([np.empty(0, np.int64), *parts]))
        ends = np.cumsum([len(part) for part in parts]).tolist()
        return [rows.slice(end - len(part), len(part)) for end, part in zip(ends, parts, strict=True)]

    def scan(self) -> pa.Table:
        """All of the view's rows, sorted by hash64."""
        slots = self._store.by_hash()
        batches = [self._read(slots[start : start + SCAN_ROWS]) for start in range(0, len(slots), SCAN_ROWS)]
        return pa.Table.from_batches(batches, self._schema)

    def _read(self, slots: Slots) -> pa.RecordBatch:
        plain = self._output.plain
        if plain is not None and self._having is None:
            columns = [self._store.column(name, slots) for name in plain.values()]
            return pa.RecordBatch.from_arrays(columns, schema=self._schema)
        columns = [self._store.column(name, slots) for name in self._store.schema.names]
        rows = pa.RecordBatch.from_arrays(columns, schema=self._store.schema)
        if self._having is not None:
            rows = rows.filter(pa.array(self._evaluator.mask(rows, self._having)))
        return self._output.apply(rows)


def _of_each_key_once(positions: Positions, slots: Slots) -> Slots:
    """Of the rows found for keys at these positions, those of each key's first mention."""
    if not is_any_twice(slots):
        return slots
    # A slot that one key names twice is of two equal rows; one that two keys name is of one key, asked twice.
    _, first, found = np.unique(slots, return_index=True, return_inverse=True)
    once: Slots = slots[positions == positions[first[found]]]
    return once
