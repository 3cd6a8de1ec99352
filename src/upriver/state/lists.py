"""Lists: for each owner a list of members, all of them in one pool.

An owner's list lies in a stretch of the pool that has some room behind it. A list that outgrows its room moves to the
end of the pool and gets half as much again; the stretch that it leaves is of no use until the whole pool goes. So
reading a list costs one jump, however many owners there are.
"""

import numpy as np

from upriver.state.ragged import spread
from upriver.state.vectors import Mask, Positions, Slots, Vector

PIECE_MEMBERS = 1 << 15
"""A piece of a long list takes no more members than so many, unless one call adds more."""


class Lists:
    """Growing lists of slots."""

    __slots__ = ("_lengths", "_pool", "_rooms", "_starts")

    def __init__(self) -> None:
        self._pool: Vector[np.int64] = Vector(np.int64)
        self._starts: Vector[np.int64] = Vector(np.int64)
        self._lengths: Vector[np.int64] = Vector(np.int64)
        self._rooms: Vector[np.int64] = Vector(np.int64)
        """By owner: where its list begins, how many members it has, and how many it has room for."""

    def __len__(self) -> int:
        """How many owners there are."""
        return len(self._lengths)

    @property
    def nbytes(self) -> int:
        return self._pool.nbytes + self._starts.nbytes + self._lengths.nbytes + self._rooms.nbytes

    def resize(self, size: int) -> None:
        """Make place for so many owners; new ones have no members."""
        for vector in (self._starts, self._lengths, self._rooms):
            vector.resize(size)

    def lengths(self, owners: Slots) -> Positions:
        """How many members each of these owners has."""
        lengths: Positions = self._lengths.cells[owners]
        return lengths

    def find(self, owners: Slots) -> tuple[Positions, Slots]:
        """The members of each owner in the order of its list: the owner's position in ``owners``, and the member."""
        lengths = self._lengths.cells[owners]
        positions, places = np.repeat(np.arange(len(lengths)), lengths), spread(self._starts.cells[owners], lengths)
        return positions, self._pool.cells[places]

    def append(self, owners: Slots, members: Slots) -> None:
        """Add each member to the end of its owner's list."""
        order = np.argsort(owners, kind="stable")
        touched, counts = np.unique(owners, return_counts=True)
        lengths = self._lengths.cells[touched]
        self._make_room(touched, lengths + counts)
        places = spread(self._starts.cells[touched] + lengths, counts)
        self._pool.cells[places] = members[order]
        self._lengths.cells[touched] = lengths + counts

    def replace(self, owners: Slots, lengths: Positions, members: Slots) -> None:
        """Give these owners, each named once, new lists. members: of the first owner, then of the next, and so on."""
        self._lengths.cells[owners] = 0
        self._make_room(owners, lengths)
        places = spread(self._starts.cells[owners], lengths)
        self._pool.cells[places] = members
        self._lengths.cells[owners] = lengths

    def _make_room(self, owners: Slots, lengths: Positions) -> None:
        """Move those of these lists that have no room for so many members to where they have."""
        narrow = lengths > self._rooms.cells[owners]
        if not narrow.any():
            return
        moving, wanted = owners[narrow], lengths[narrow]
        _, members = self.find(moving)
        rooms = wanted + (wanted >> 1)
        ends = len(self._pool) + np.cumsum(rooms)
        self._pool.resize(int(ends[-1]))
        self._starts.cells[moving], self._rooms.cells[moving] = ends - rooms, rooms
        places = spread(ends - rooms, self._lengths.cells[moving])
        self._pool.cells[places] = members


class LongLists:
    """Growing lists of slots, of any length: each is made of pieces, so that no call moves a whole list."""

    __slots__ = ("_last", "_members", "_pieces")

    def __init__(self) -> None:
        self._pieces = Lists()
        """By owner."""
        self._last: Vector[np.int64] = Vector(np.int64, fill=-1)
        """By owner: the piece that grows; -1 if there is none yet."""
        self._members = Lists()
        """By piece."""

    def __len__(self) -> int:
        """How many owners there are."""
        return len(self._last)

    @property
    def nbytes(self) -> int:
        return self._pieces.nbytes + self._last.nbytes + self._members.nbytes

    def resize(self, size: int) -> None:
        """Make place for so many owners; new ones have no members."""
        self._pieces.resize(size)
        self._last.resize(size)

    def find(self, owners: Slots) -> tuple[Positions, Slots]:
        """The members of each owner in the order of its list: the owner's position in ``owners``, and the member."""
        positions, pieces = self._pieces.find(owners)
        places, members = self._members.find(pieces)
        return positions[places], members

    def append(self, owners: Slots, members: Slots) -> None:
        """Add each member to the end of its owner's list."""
        touched, counts = np.unique(owners, return_counts=True)
        last = self._last.cells[touched]
        full = last < 0
        full[~full] = self._members.lengths(last[~full]) + counts[~full] > PIECE_MEMBERS
        known = len(self._members)
        pieces = np.arange(known, known + np.count_nonzero(full))
        self._members.resize(known + len(pieces))
        self._pieces.append(touched[full], pieces)
        self._last.cells[touched[full]] = pieces
        self._members.append(self._last.cells[owners], members)

    def keep(self, owners: Slots, kept: Mask) -> None:
        """Of all members that :meth:`find` gives of these owners, each named once, leave these in their lists."""
        _, pieces = self._pieces.find(owners)
        places, members = self._members.find(pieces)
        self._members.replace(pieces, np.bincount(places[kept], minlength=len(pieces)), members[kept])
