"""RoutedIndex: entries that are found by their columns, and by the hash64 of their routing key.

An entry's columns are the routing key, or hold it. If they are the routing key, its hash is the entry's, too. If they
are finer, entries are hashed over all their columns, and a :class:`Fanout` knows the entries of each routing key, by
its hash alone: keys whose hash64 are equal move together.
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from upriver.hashing import hash64
from upriver.state.entries import Entries, Hasher
from upriver.state.fanout import Fanout
from upriver.state.vectors import Slots, Vector, first_of_each, true_at
from upriver.xxh64 import Hashes


class RoutedIndex:
    """Entries under routing keys. An entry is *kept* until it is forgotten."""

    __slots__ = ("_entries", "_fanout", "_kept", "_routed", "held")

    def __init__(self, schema: pa.Schema, routing: Sequence[str], hasher: Hasher = hash64) -> None:
        """schema: of the entries. routing: the routing key's columns, all in the schema. hasher: of finer entries."""
        finer = any(name not in routing for name in schema.names)
        self._entries = Entries(schema, hasher=hasher)
        self._fanout = Fanout([]) if finer else None
        self._routed: Vector[np.uint64] = Vector(np.uint64)
        """Of each entry, the hash64 of its routing key, if entries are finer than that."""
        self._kept: Vector[np.bool_] = Vector(np.bool_, fill=True)
        self.held = 0
        """How many entries are kept."""

    def __len__(self) -> int:
        """How many slots are in use, those of forgotten entries too."""
        return len(self._kept)

    @property
    def nbytes(self) -> int:
        fanout = 0 if self._fanout is None else self._fanout.nbytes
        return self._entries.nbytes + self._routed.nbytes + self._kept.nbytes + fanout

    def assign(self, routed: Hashes, columns: Sequence[pa.Array]) -> Slots:
        """The slot of each row; unseen ones get the next slots, in order of their first row.

        routed: the hash64 of their routing keys.
        """
        known = len(self)
        slots = self._entries.assign(columns, len(routed), routed if self._fanout is None else None)
        self._kept.resize(len(self._entries))
        self.held += len(self) - known
        if self._fanout is not None and len(self) > known:
            theirs = routed[first_of_each(slots, true_at(slots >= known))]
            self._routed.extend(theirs)
            owners = self._fanout.owners(theirs, [])
            self._fanout.link(owners, np.arange(known, len(self)))
            self._fanout.count(owners, None)
        return slots

    def column(self, place: int, slots: Slots) -> pa.Array:
        """One column of these entries, forgotten or not: one form for each number."""
        return self._entries.column(place, slots)

    def columns(self, slots: Slots) -> list[pa.Array]:
        """All columns of these entries."""
        return self._entries.columns(slots)

    def hashes(self, slots: Slots) -> Hashes:
        """The hash64 of the routing key of each of these entries."""
        hashes: Hashes = (self._entries.index.hashes if self._fanout is None else self._routed.cells)[slots]
        return hashes

    def hashes_between(self, least: int, most: int) -> Hashes:
        """The hash64, in no particular order, of routing keys that have an entry."""
        if self._fanout is not None:
            return self._fanout.hashes_between(least, most)
        slots = self._entries.index.between(least, most)
        return self.hashes(slots[self._kept.cells[slots]])

    def with_hash(self, routed: Hashes) -> Slots:
        """The entries kept of routing keys with these hash64, ascending and unique; sorted by hash64, then by age."""
        if self._fanout is None:
            slots = self._entries.index.with_hash(routed)
            return slots[np.lexsort((slots, self.hashes(slots)))]
        _, _, slots = self._fanout.with_hash(routed)
        slots = slots[self._kept.cells[slots]]
        return slots[np.argsort(self.hashes(slots), kind="stable")]

    def forget(self, slots: Slots) -> None:
        """These entries, each named once, are kept no longer."""
        if not slots.size:
            return
        self._entries.forget(slots)
        self._kept.cells[slots] = False
        self.held -= len(slots)
        if self._fanout is not None:
            owners = self._fanout.owners(self.hashes(slots), [])
            self._fanout.count(owners, np.full(len(owners), -1))
