"""The rows of one input of a join: a multiset, whose rows are reached by their key's owner.

Equal rows are one *entry*: a slot with a count. An index over all columns finds a row's entry, so that a row comes and
goes at the same cost however many others share its key; a spine knows the entries of each owner.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from upriver.dataflow.operators.join_shape import SideShape
from upriver.errors import KeyTypeError, ProtocolError
from upriver.hashing import check_hashable, hash64
from upriver.state.columns import Column, column_of
from upriver.state.slots import SlotIndex
from upriver.state.spine import Spine
from upriver.state.vectors import Hashes, Positions, Slots, Vector, Weights, first_of_each


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

    __slots__ = ("_as_text", "_exact", "_index", "_schema", "_spine", "counts", "held", "matches")

    def __init__(self, shape: SideShape) -> None:
        self._schema = shape.kept
        self._as_text = [not _is_hashable(field.type) for field in shape.kept]
        types = [pa.string() if text else field.type for text, field in zip(self._as_text, shape.kept, strict=True)]
        self._index = SlotIndex(types)
        self._exact: dict[int, Column] = {
            place: column_of(field.type)
            for place, field in enumerate(shape.kept)
            if self._as_text[place] or pa.types.is_floating(field.type)
        }
        """By place, the columns that the index does not keep as they are."""
        self._spine = Spine()
        self.counts: Vector[np.int64] = Vector(np.int64)
        """How often each entry's row is there. An entry whose count falls to zero is forgotten."""
        self.matches: Vector[np.int64] | None = Vector(np.int64) if shape.counted else None
        """How many rows of the other side each entry's row matches, if that is counted."""
        self.held = 0
        """How many entries there are."""

    @property
    def slots(self) -> int:
        """How many slots are in use, those of forgotten entries too."""
        return len(self._index)

    @property
    def nbytes(self) -> int:
        exact = sum(column.nbytes for column in self._exact.values())
        matches = 0 if self.matches is None else self.matches.nbytes
        return self._index.nbytes + exact + self._spine.nbytes + self.counts.nbytes + matches

    def change(self, rows: Sequence[pa.Array], owners: Slots, routed: Hashes, weight: Weights | None) -> Changes:
        """Add rows, or take them away. rows: the kept columns. owners, routed: the key and the hash64 of each.

        Raises ProtocolError if a row is taken away that is not there.
        """
        known = self.slots
        slots = self._entries(rows)
        order, heads = _runs(owners << 32 | slots)
        net = np.diff(heads, append=len(order)) if weight is None else np.add.reduceat(weight[order], heads)
        firsts = order[heads]
        owners, slots, routed = owners[firsts], slots[firsts], routed[firsts]
        self._count(known, owners, slots, self.counts.cells[slots] + net)
        changed = net != 0
        groups = np.flatnonzero(np.diff(owners, prepend=-1))
        sizes = np.add.reduceat(changed.astype(np.int64), groups)
        return Changes(owners[groups], routed[groups], sizes, slots[changed], net[changed])

    def _count(self, known: int, owners: Slots, slots: Slots, counts: Weights) -> None:
        """Set the counts of these entries, each named once. Those from slot ``known`` on are new."""
        if (counts < 0).any():
            raise ProtocolError("a row was retracted more often than it is there")
        self.counts.cells[slots] = counts
        gone, new = counts == 0, slots >= known
        self.held += int(np.count_nonzero(new)) - int(np.count_nonzero(gone))
        self._index.forget(slots[gone])
        born = new & ~gone
        self._spine.insert(owners[born], slots[born])

    def members(self, owners: Slots) -> Members:
        """The entries of these owners, those of one owner in order of age."""
        positions, slots = self._spine.find(owners)
        there = self.counts.cells[slots] > 0
        if not there.all():
            positions, slots = positions[there], slots[there]
        return Members(np.bincount(positions, minlength=len(owners)), slots)

    def column(self, place: int, slots: Slots) -> pa.Array:
        """One of the kept columns, of these entries."""
        exact = self._exact.get(place)
        return self._index.column(place, slots) if exact is None else exact.take(slots)

    def columns(self, slots: Slots) -> list[pa.Array]:
        """All of the kept columns, of these entries."""
        return [self.column(place, slots) for place in range(len(self._schema))]

    def install(self, rows: Sequence[pa.Array], owners: Slots, counts: Weights, matches: Weights | None) -> None:
        """Keep these entries, which are not here yet."""
        slots = self._entries(rows)
        self.counts.cells[slots] = counts
        if self.matches is not None and matches is not None:
            self.matches.cells[slots] = matches
        self.held += len(slots)
        self._spine.insert(owners, slots)

    def forget(self, slots: Slots) -> None:
        """These entries are not there any more."""
        self._index.forget(slots)
        self.counts.cells[slots] = 0
        self.held -= len(slots)

    def _entries(self, rows: Sequence[pa.Array]) -> Slots:
        """The slot of each row; unseen rows get one."""
        known = self.slots
        identity = [_text(column) if text else column for text, column in zip(self._as_text, rows, strict=True)]
        slots = self._index.assign(hash64(identity), identity)
        self.counts.resize(self.slots)
        if self.matches is not None:
            self.matches.resize(self.slots)
        if self._exact and self.slots > known:
            first = pa.array(first_of_each(slots, np.flatnonzero(slots >= known)))
            for place, column in self._exact.items():
                column.append(rows[place].take(first))
        return slots


def _is_hashable(type: pa.DataType) -> bool:
    try:
        check_hashable(type, "")
    except KeyTypeError:
        return False
    return True


def _text(column: pa.Array) -> pa.Array:
    """Values that Arrow does not compare, such as lists, as texts that are equal when they are."""
    return pa.array([repr(value) for value in column.to_pylist()], pa.string())


def _runs(numbers: Slots) -> tuple[Positions, Positions]:
    """The order that sorts the numbers, and where in it each run of equal ones begins."""
    order = np.argsort(numbers)
    in_order = numbers[order]
    return order, np.flatnonzero(np.diff(in_order, prepend=-1))
