"""The keys of a join: a number for each, its *owner*, which both sides use, and how many rows each side has of it."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from upriver.engine.operators.join_shape import JoinShape
from upriver.state.routed import RoutedIndex
from upriver.state.vectors import Mask, Slots, Vector, Weights
from upriver.xxh64 import Hashes


class JoinKeys:
    """Keys that have rows on one side or on both. A key that has none any more is forgotten."""

    __slots__ = ("_index", "_totals")

    def __init__(self, shape: JoinShape) -> None:
        self._index = RoutedIndex(shape.key, shape.routing)
        self._totals: tuple[Vector[np.int64], Vector[np.int64]] = (Vector(np.int64), Vector(np.int64))

    def __len__(self) -> int:
        """How many owners there are, those of forgotten keys too."""
        return len(self._index)

    @property
    def nbytes(self) -> int:
        return self._index.nbytes + sum(totals.nbytes for totals in self._totals)

    def owners(self, routed: Hashes, keys: Sequence[pa.Array]) -> Slots:
        """The owner of each key; unseen keys get one. routed: the hash64 of their routing keys."""
        owners = self._index.assign(routed, keys)
        for totals in self._totals:
            totals.resize(len(self))
        return owners

    def total(self, port: int, owners: Slots) -> Weights:
        """How many rows each of these keys has on that side."""
        total: Weights = self._totals[port].cells[owners]
        return total

    def add(self, port: int, owners: Slots, weight: Weights) -> None:
        """These keys, which may be named often, have so many more rows on that side."""
        np.add.at(self._totals[port].cells, owners, weight)

    def forget_empty(self, owners: Slots) -> None:
        """Of these keys, each named once, forget those without rows."""
        self._index.forget(owners[~self._have_rows(owners)])

    def hashes_between(self, least: int, most: int) -> Hashes:
        """The hash64, in no particular order, of routing keys that have rows."""
        return self._index.hashes_between(least, most)

    def with_hash(self, routed: Hashes) -> tuple[Hashes, Slots]:
        """The keys of routing keys with these hash64, ascending and unique: of each the hash64, and the owner.

        Sorted by hash64; of those with one hash64, the keys that have left rows come first, then by age. Whoever
        numbers them as they come in the left rows, then as they come in the right ones, has them in this order again.
        """
        owners = self._index.with_hash(routed)
        hashes = self._index.hashes(owners)
        order = np.lexsort((owners, self.total(0, owners) == 0, hashes))
        return hashes[order], owners[order]

    def drop(self, routed: Hashes) -> Slots:
        """Forget all keys of routing keys with these hash64, ascending and unique; returns their owners."""
        owners = self._index.with_hash(routed)
        self._index.forget(owners)
        return owners

    def _have_rows(self, owners: Slots) -> Mask:
        left, right = self._totals
        some: Mask = (left.cells[owners] > 0) | (right.cells[owners] > 0)
        return some
