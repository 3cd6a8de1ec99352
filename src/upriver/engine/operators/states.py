"""States: one row of state for each key, which any batch may replace. What a user's function keeps.

A :class:`RoutedIndex` gives each key a slot, and the state's columns are addressed by it. What is dropped, and some of
what is replaced, leaves its memory behind: :mod:`upriver.engine.operators.turning` gives it back.
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from upriver.engine.operators.parts import check_new, part_of
from upriver.hashing import hash64
from upriver.state.columns import cells_of
from upriver.state.replaceable import replaceable_of
from upriver.state.routed import RoutedIndex
from upriver.state.vectors import Mask, Slots
from upriver.xxh64 import Hashes


class Keys(RoutedIndex):
    """Keys that may be asked for without being there."""

    __slots__ = ()

    def find(self, routed: Hashes, keys: Sequence[pa.Array]) -> Slots:
        """The slot of each key, -1 for one without. routed: the hash64 of their routing keys."""
        return self._entries.index.find(routed if self._fanout is None else hash64(keys, len(routed)), keys)


class States:
    """The states of keys, which are the routing key or finer. Keys go with the hash64 of their routing keys."""

    __slots__ = ("_columns", "_keys", "_state")

    def __init__(self, key: pa.Schema, state: pa.Schema, routing: Sequence[str]) -> None:
        """routing: the routing key's columns, all in the key."""
        self._keys = Keys(key, routing)
        self._state = state
        self._columns = [replaceable_of(type) for type in state.types]

    @property
    def held(self) -> int:
        """How many keys have a state."""
        return self._keys.held

    @property
    def slots(self) -> int:
        """For how many states there is memory, those that are gone too."""
        return max([len(self._keys), *(column.places for column in self._columns)])

    @property
    def nbytes(self) -> int:
        return self._keys.nbytes + sum(column.nbytes for column in self._columns)

    def read(self, hashes: Hashes, keys: Sequence[pa.Array]) -> tuple[pa.RecordBatch, Mask]:
        """The state of each key, a row of nulls for one without, and which keys have one."""
        slots = self._keys.find(hashes, keys)
        known = slots >= 0
        columns = [column.take(slots[known]) for column in self._columns]
        if not known.all():
            places = pa.array(np.cumsum(known) - 1, mask=~known)
            columns = [column.take(places) for column in columns]
        return pa.RecordBatch.from_arrays(columns, schema=self._state), known

    def write(self, hashes: Hashes, keys: Sequence[pa.Array], states: pa.RecordBatch) -> None:
        """Each key, named once, has this state from now on."""
        slots = self._keys.assign(hashes, keys)
        for column, values in zip(self._columns, states.columns, strict=True):
            column.resize(len(self._keys))
            column.put(slots, values)

    def forget(self, hashes: Hashes, keys: Sequence[pa.Array]) -> None:
        """These keys, which have a state, have none from now on."""
        self._keys.forget(self._keys.find(hashes, keys))

    def hashes_between(self, least: int, most: int) -> Hashes:
        """The hash64, in no particular order, of routing keys that have a state."""
        return self._keys.hashes_between(least, most)

    def collect(self, keys: Hashes) -> tuple[pa.RecordBatch, ...]:
        """A row for each key with one of these hash64: that, the key's columns, the state's."""
        slots = self._keys.with_hash(keys)
        states = [column.take(slots) for column in self._columns]
        return (part_of(self._keys.hashes(slots), [*self._keys.columns(slots), *states]),)

    def install(self, state: Sequence[pa.RecordBatch]) -> None:
        """Raises ProtocolError for a key that has a state already."""
        for batch in state:
            hashes, *columns = batch.columns
            keys, states = columns[: -len(self._columns)], columns[-len(self._columns) :]
            check_new(not (self._keys.find(cells_of(hashes), keys) >= 0).any())
            self.write(cells_of(hashes), keys, pa.RecordBatch.from_arrays(states, schema=self._state))

    def drop(self, keys: Hashes) -> None:
        self._keys.forget(self._keys.with_hash(keys))
