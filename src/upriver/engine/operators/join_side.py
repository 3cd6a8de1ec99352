"""The rows of one input of a join: a multiset, whose rows are reached by their key's owner.

Equal rows are one *entry*: a slot with a count. An index over all columns finds a row's entry, so that a row comes and
goes at the same cost however many others share its key; a multimap knows the entries of each owner.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from upriver.engine.operators.join_shape import SideShape
from upriver.errors import ProtocolError
from upriver.state.entries import Entries
from upriver.state.multimap import Multimap
from upriver.state.vectors import Positions, Slots, Vector, Weights, run_lengths, run_starts
from upriver.xxh64 import Hashes

FOUND_MIN = 64
"""So few entries, if found though they are gone, do not matter."""


@dataclass(frozen=True, slots=True)
class Changes:
    """Entries whose count has changed, grouped by owner.

    Of a group: its owner (ascending), the hash64 of its routing key, and how many entries it has, which may be none.
    Of an entry: its slot, and by how much its count has changed, which is not zero.
    """

    owners: Slots
    routed: Hashes
    sizes: Positions
    slots: Slots
    weight: Weights

    @property
    def hash64(self) -> Hashes:
        """Of each entry's routing key."""
        return np.repeat(self.routed, self.sizes)


@dataclass(frozen=True, slots=True)
class Members:
    """The entries of some owners, one owner after the other. Of an owner: how many it has. Of an entry: its slot."""

    sizes: Positions
    slots: Slots


class JoinSide:
    """One side's entries."""

    __slots__ = ("_by_owner", "_entries", "counts", "held", "matches")

    def __init__(self, shape: SideShape) -> None:
        self._entries = Entries(shape.kept, exact=shape.kept.names)
        self._by_owner = Multimap()
        self.counts: Vector[np.int64] = Vector(np.int64)
        """How often each entry's row is there. An entry whose count falls to zero is forgotten."""
        self.matches: Vector[np.int64] | None = Vector(np.int64) if shape.counted else None
        """How many rows of the other side each entry's row matches, if that is counted."""
        self.held = 0
        """How many entries there are."""

    def resize(self, size: int) -> None:
        """Make place for so many owners."""
        self._by_owner.resize(size)

    @property
    def slots(self) -> int:
        """How many slots are in use, those of forgotten entries too."""
        return len(self._entries)

    @property
    def nbytes(self) -> int:
        matches = 0 if self.matches is None else self.matches.nbytes
        return self._entries.nbytes + self._by_owner.nbytes + self.counts.nbytes + matches

    def change(self, rows: Sequence[pa.Array], owners: Slots, routed: Hashes, weight: Weights | None) -> Changes:
        """Add rows, or take them away. rows: the kept columns. owners, routed: the key and the hash64 of each.

        Raises ProtocolError if a row is taken away that is not there.
        """
        known = self.slots
        slots = self._assign(rows, len(owners))
        order, heads = _runs(owners << 32 | slots)
        net = run_lengths(heads, len(order)) if weight is None else np.add.reduceat(weight[order], heads)
        firsts = order[heads]
        owners, slots, routed = owners[firsts], slots[firsts], routed[firsts]
        self._count(known, owners, slots, self.counts.cells[slots] + net)
        changed = net != 0
        groups = run_starts(owners)
        sizes = np.add.reduceat(changed.astype(np.int64), groups)
        return Changes(owners[groups], routed[groups], sizes, slots[changed], net[changed])

    def _count(self, known: int, owners: Slots, slots: Slots, counts: Weights) -> None:
        """Set the counts of these entries, each named once. Those from slot ``known`` on are new."""
        if (counts < 0).any():
            raise ProtocolError("a row was retracted more often than it is there")
        self.counts.cells[slots] = counts
        gone, new = counts == 0, slots >= known
        self.held += int(np.count_nonzero(new)) - int(np.count_nonzero(gone))
        if gone.any():
            self._entries.forget(slots[gone])
            self._by_owner.remove(owners[gone], slots[gone])
            new &= ~gone
        self._by_owner.insert(owners[new], slots[new])

    def members(self, owners: Slots) -> Members:
        """The entries of these owners, each named once; those of one owner in order of age."""
        positions, slots = self._by_owner.find(owners)
        there = self.counts.cells[slots] > 0
        sizes = np.bincount(positions, minlength=len(owners))
        if there.all():
            return Members(sizes, slots)
        members = Members(np.bincount(positions[there], minlength=len(owners)), slots[there])
        self._tidy(owners, sizes, members)
        return members

    def _tidy(self, owners: Slots, sizes: Positions, members: Members) -> None:
        """Where most of what was found is gone, see to it that it is not found again. sizes: how many were found."""
        stale = sizes > FOUND_MIN + 2 * members.sizes
        if stale.any():
            of_stale = np.repeat(stale, members.sizes)
            self._by_owner.replace(owners[stale], members.sizes[stale], members.slots[of_stale])

    def column(self, place: int, slots: Slots) -> pa.Array:
        """One of the kept columns, of these entries."""
        return self._entries.column(place, slots)

    def columns(self, slots: Slots) -> list[pa.Array]:
        """All of the kept columns, of these entries."""
        return self._entries.columns(slots)

    def install(self, rows: Sequence[pa.Array], owners: Slots, counts: Weights, matches: Weights | None) -> None:
        """Keep these entries, which are not here yet."""
        slots = self._assign(rows, len(owners))
        self.counts.cells[slots] = counts
        if self.matches is not None and matches is not None:
            self.matches.cells[slots] = matches
        self.held += len(slots)
        order = np.argsort(owners, kind="stable")
        self._by_owner.insert(owners[order], slots[order])

    def forget(self, slots: Slots) -> None:
        """These entries are not there any more."""
        self._entries.forget(slots)
        self.counts.cells[slots] = 0
        self.held -= len(slots)

    def _assign(self, rows: Sequence[pa.Array], count: int) -> Slots:
        """The slot of each row; unseen rows get one."""
        slots = self._entries.assign(rows, count)
        self.counts.resize(self.slots)
        if self.matches is not None:
            self.matches.resize(self.slots)
        return slots


def _runs(numbers: Slots) -> tuple[Positions, Positions]:
    """The order that sorts the numbers, and where in it each run of equal ones begins."""
    order = np.argsort(numbers)
    return order, run_starts(numbers[order])
