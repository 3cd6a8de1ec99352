"""The keys of a join: a number for each, its *owner*, which both sides use, and the weight of the rows of each side.

If the join's key is finer than the routing key, keys are hashed over all their columns, and a :class:`Fanout` knows the
keys of each routing key, by its hash alone: keys whose hash64 are equal move together.
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from upriver.hashing import hash64
from upriver.state.fanout import Fanout
from upriver.state.slots import SlotIndex
from upriver.state.vectors import Hashes, Mask, Slots, Vector, Weights, first_of_each


class JoinKeys:
    """Keys that have rows on one side or on both. A key that has none any more is forgotten."""

    __slots__ = ("_fanout", "_index", "_totals")

    def __init__(self, types: Sequence[pa.DataType], finer: bool) -> None:
        """types: of the key's columns. finer: than the routing key."""
        self._index = SlotIndex(types)
        self._fanout = Fanout([]) if finer else None
        self._totals: tuple[Vector[np.int64], Vector[np.int64]] = (Vector(np.int64), Vector(np.int64))

    @property
    def nbytes(self) -> int:
        fanout = 0 if self._fanout is None else self._fanout.nbytes
        return self._index.nbytes + sum(totals.nbytes for totals in self._totals) + fanout

    def __len__(self) -> int:
        """How many owners there are, those of forgotten keys too."""
        return len(self._index)

    def owners(self, routed: Hashes, keys: Sequence[pa.Array]) -> Slots:
        """The owner of each key; unseen keys get one. routed: the hash64 of their routing keys."""
        known = len(self)
        owners = self._index.assign(routed if self._fanout is None else hash64(keys), keys)
        for totals in self._totals:
            totals.resize(len(self))
        if self._fanout is not None and len(self) > known:
            first = first_of_each(owners, np.flatnonzero(owners >= known))
            groups = self._fanout.owners(routed[first], [])
            self._fanout.link(groups, owners[first])
            self._fanout.count(groups, None)
        return owners

    def total(self, port: int, owners: Slots) -> Weights:
        """How many rows each of these keys has on that side."""
        total: Weights = self._totals[port].cells[owners]
        return total

    def add(self, port: int, owners: Slots, weight: Weights) -> None:
        """These keys, which may be named often, have so many more rows on that side."""
        np.add.at(self._totals[port].cells, owners, weight)

    def forget_empty(self, owners: Slots, routed: Hashes) -> None:
        """Of these keys, each named once, forget those without rows. routed: the hash64 of their routing keys."""
        empty = ~self._have_rows(owners)
        self._index.forget(owners[empty])
        if self._fanout is not None and empty.any():
            groups = self._fanout.owners(routed[empty], [])
            self._fanout.count(groups, np.full(len(groups), -1))

    def hashes_between(self, least: int, most: int) -> Hashes:
        """The hash64, in no particular order, of routing keys that have rows."""
        if self._fanout is not None:
            return self._fanout.hashes_between(least, most)
        owners = self._index.between(least, most)
        return self._index.hashes[owners[self._have_rows(owners)]]

    def with_hash(self, routed: Hashes) -> tuple[Hashes, Slots]:
        """The keys that have rows, of routing keys with these hash64, which are unique: the hash64, and the owner.

        Sorted by hash64; of those with one hash64, the keys that have left rows come first, then by age. Whoever
        numbers them as they come in the left rows, then as they come in the right ones, has them in this order again.
        """
        if self._fanout is None:
            owners = self._index.with_hash(routed)
            hashes = self._index.hashes[owners]
        else:
            _, hashes, owners = self._fanout.with_hash(routed)
        some = self._have_rows(owners)
        hashes, owners = hashes[some], owners[some]
        order = np.lexsort((owners, self.total(0, owners) == 0, hashes))
        return hashes[order], owners[order]

    def drop(self, routed: Hashes) -> Slots:
        """Forget all keys of routing keys with these hash64, which are unique; returns their owners."""
        _, owners = self.with_hash(routed)
        self._index.forget(owners)
        for totals in self._totals:
            totals.cells[owners] = 0
        if self._fanout is not None:
            groups, _, _ = self._fanout.with_hash(routed)
            self._fanout.forget(groups)
        return owners

    def _have_rows(self, owners: Slots) -> Mask:
        left, right = self._totals
        some: Mask = (left.cells[owners] > 0) | (right.cells[owners] > 0)
        return some
