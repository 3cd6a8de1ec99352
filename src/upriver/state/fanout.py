"""Fanout: from exact keys to the many slots that each key owns, in order of arrival.

Where a region keeps several things for one routing key (rows, or groups finer than the key) the things are numbered
densely by whoever keeps them; a fanout knows which key they belong to. Keys have slots of their own, *owners*.
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from upriver.state.slots import SlotIndex
from upriver.state.spine import Spine
from upriver.state.vectors import Positions, Slots, Tally, Weights, true_at
from upriver.xxh64 import Hashes


class Fanout:
    """Keys, each with any number of members. A member may be linked before it counts and after it ceases to."""

    __slots__ = ("_index", "_spine", "_tally")

    def __init__(self, types: Sequence[pa.DataType]) -> None:
        """types: of the key's columns; without any, the hash is the key."""
        self._index = SlotIndex(types)
        self._spine = Spine()
        self._tally = Tally()

    @property
    def held(self) -> int:
        """How many keys have a member that counts."""
        return self._tally.held

    @property
    def nbytes(self) -> int:
        return self._index.nbytes + self._spine.nbytes + self._tally.nbytes

    def owners(self, hashes: Hashes, keys: Sequence[pa.Array]) -> Slots:
        """The owner for each key; unseen keys get one."""
        owners = self._index.assign(hashes, keys)
        self._tally.resize(len(self._index))
        return owners

    def link(self, owners: Slots, members: Slots) -> None:
        """Put each member under its owner, once and for all."""
        self._spine.insert(owners, members)

    def count(self, owners: Slots, weight: Weights | None) -> None:
        """Note that each owner has so many more members that count; ``None`` is one for each."""
        self._tally.add(owners, weight)

    def find(self, hashes: Hashes, keys: Sequence[pa.Array], members_max: int | None = None) -> tuple[Positions, Slots]:
        """All members linked to each key: the key's position, and the member; sorted by both. Raises ManyMembers as
        :meth:`Spine.find`."""
        owners = self._index.find(hashes, keys)
        known = true_at(owners >= 0)
        positions, members = self._spine.find(owners[known], members_max)
        return positions if len(known) == len(hashes) else known[positions], members

    def with_hash(self, hashes: Hashes) -> tuple[Slots, Hashes, Slots]:
        """All there is of the keys with any of these hashes, which are unique.

        Returns the owners; and of every member linked to one of them the key's hash, and the member, sorted by owner,
        then by arrival.
        """
        owners = self._index.with_hash(hashes)
        positions, members = self._spine.find(owners)
        return owners, self._index.hashes[owners[positions]], members

    def hashes_between(self, least: int, most: int) -> Hashes:
        """The hashes, in no particular order, of keys that have a member that counts."""
        return self._index.hashes[self._tally.of_those_held(self._index.between(least, most))]

    def forget(self, owners: Slots) -> None:
        """These keys are unseen from now on; their members are found no more."""
        self._index.forget(owners)
        self._tally.clear(owners)

    def by_hash(self) -> Slots:
        """All members linked, sorted by their key's hash, then by key, then by arrival."""
        owners, members = self._spine.pairs()
        rank = np.empty(len(self._index), np.int64)
        rank[np.argsort(self._index.hashes, kind="stable")] = np.arange(len(self._index))
        return members[np.lexsort((members, rank[owners]))]
