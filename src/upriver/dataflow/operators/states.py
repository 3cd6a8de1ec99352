"""States: one row of state for each key, which any batch may replace. What a user's function keeps.

A :class:`SlotIndex` gives each key a slot, and the state's columns are addressed by it. What is dropped, and some of
what is replaced, leaves its memory behind: :mod:`upriver.dataflow.operators.turning` gives it back.
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from upriver.errors import ProtocolError
from upriver.state.columns import array_of, cells_of
from upriver.state.replaceable import replaceable_of
from upriver.state.slots import SlotIndex
from upriver.state.vectors import Hashes, Mask, Slots, Vector


class States:
    """The states of keys, found by the routing key's hash64.

    Where keys are finer than the routing key, all those of one routing key have one hash64. That is right, but meant
    for few of them.
    """

    __slots__ = ("_columns", "_index", "_key", "_present", "_state", "held")

    def __init__(self, key: pa.Schema, state: pa.Schema) -> None:
        self._key = key
        self._state = state
        self._index = SlotIndex(key.types)
        self._columns = [replaceable_of(type) for type in state.types]
        self._present: Vector[np.bool_] = Vector(np.bool_)
        """Which slots have a state."""
        self.held = 0
        """How many keys have a state."""

    @property
    def slots(self) -> int:
        """For how many states there is memory, those that are gone too."""
        return max([len(self._index), *(column.places for column in self._columns)])

    @property
    def nbytes(self) -> int:
        return self._index.nbytes + self._present.nbytes + sum(column.nbytes for column in self._columns)

    def read(self, hashes: Hashes, keys: Sequence[pa.Array]) -> tuple[pa.RecordBatch, Mask]:
        """The state of each key, a row of nulls for one without, and which keys have one."""
        slots = self._index.find(hashes, keys)
        known = slots >= 0
        columns = [column.take(slots[known]) for column in self._columns]
        if not known.all():
            places = pa.array(np.cumsum(known) - 1, mask=~known)
            columns = [column.take(places) for column in columns]
        return pa.RecordBatch.from_arrays(columns, schema=self._state), known

    def write(self, hashes: Hashes, keys: Sequence[pa.Array], states: pa.RecordBatch) -> None:
        """Each key, named once, has this state from now on."""
        slots = self._index.assign(hashes, keys)
        self._present.resize(len(self._index))
        self.held += len(slots) - int(np.count_nonzero(self._present.cells[slots]))
        self._present.cells[slots] = True
        for column, values in zip(self._columns, states.columns, strict=True):
            column.resize(len(self._index))
            column.put(slots, values)

    def forget(self, hashes: Hashes, keys: Sequence[pa.Array]) -> None:
        """These keys, which have a state, have none from now on."""
        self._forget(self._index.find(hashes, keys))

    def hashes_between(self, least: int, most: int) -> Hashes:
        """The hash64, in no particular order, of keys that have a state."""
        slots = self._index.between(least, most)
        return self._index.hashes[slots[self._present.cells[slots]]]

    def collect(self, keys: Hashes) -> tuple[pa.RecordBatch, ...]:
        """A row for each key with one of these hash64: that, the key's columns, the state's."""
        slots = self._index.with_hash(keys)
        columns = [array_of(pa.uint64(), self._index.hashes[slots])]
        columns += [self._index.column(place, slots) for place in range(len(self._key))]
        columns += [column.take(slots) for column in self._columns]
        return (pa.RecordBatch.from_arrays(columns, [str(place) for place in range(len(columns))]),)

    def install(self, state: Sequence[pa.RecordBatch]) -> None:
        """Raises ProtocolError for a key that has a state already."""
        width = 1 + len(self._key)
        for batch in state:
            hashes, keys = cells_of(batch.column(0)), batch.columns[1:width]
            if (present := self._index.find(hashes, keys) >= 0).any():
                raise ProtocolError(f"{present.sum()} keys of {len(present)} that came have a state here already")
            self.write(hashes, keys, pa.RecordBatch.from_arrays(batch.columns[width:], schema=self._state))

    def drop(self, keys: Hashes) -> None:
        self._forget(self._index.with_hash(keys))

    def _forget(self, slots: Slots) -> None:
        """The index finds no slot that has no state."""
        self._index.forget(slots)
        self._present.cells[slots] = False
        self.held -= len(slots)
