"""Multimap: which members belong to which owner, where most owners have one, and members come and go.

An owner's only member is kept at the owner's own place: one look finds it, and one that takes the place of another
leaves nothing behind. The members of all other owners are in a :class:`Spine`, each owner under a number of its own,
its *fan*. Nothing is ever taken out of a spine; an owner with more dead members than live ones is given a new fan.
"""

import numpy as np

from upriver.state.spine import Spine
from upriver.state.vectors import Positions, Slots, Vector

_NONE = -1
"""The place of an owner without members. Below it are the fans, the first one next to it."""


class Multimap:
    """Owners and members are slots below 2**32; a member has one owner."""

    __slots__ = ("_fans", "_places", "_spine")

    def __init__(self) -> None:
        self._places: Vector[np.int64] = Vector(np.int64, fill=_NONE)
        """By owner: its only member, or its fan, or ``_NONE``."""
        self._fans = 0
        """How many fans there have been."""
        self._spine = Spine()

    @property
    def nbytes(self) -> int:
        return self._places.nbytes + self._spine.nbytes

    def resize(self, size: int) -> None:
        """Make place for so many owners."""
        self._places.resize(size)

    def insert(self, owners: Slots, members: Slots) -> None:
        """Add members. owners: of each, ascending."""
        heads = np.flatnonzero(np.diff(owners, prepend=-1))
        sizes = np.diff(heads, append=len(owners))
        owners = owners[heads]
        places = self._places.cells[owners]
        only = (places == _NONE) & (sizes == 1)
        self._places.cells[owners[only]] = members[heads[only]]
        if not only.all():
            fans = self._fans_of(owners[~only])
            had_one = places[~only] > _NONE
            moved, more = places[~only][had_one], members[np.repeat(~only, sizes)]
            fans = np.concatenate([fans[had_one], np.repeat(fans, sizes[~only])])
            self._spine.insert(fans, np.concatenate([moved, more]))

    def find(self, owners: Slots) -> tuple[Positions, Slots]:
        """The members of each owner: for every member the position of its owner in ``owners``, and the member.

        Sorted by position, then by member. Members that were removed may be among them.
        """
        places = self._places.cells[owners]
        ones, fanned = np.flatnonzero(places > _NONE), np.flatnonzero(places < _NONE)
        if not fanned.size:
            return ones, places[ones]
        positions, members = self._spine.find(_NONE - 1 - places[fanned])
        positions = np.concatenate([ones, fanned[positions]])
        order = np.argsort(positions, kind="stable")
        return positions[order], np.concatenate([places[ones], members])[order]

    def remove(self, owners: Slots, members: Slots) -> None:
        """These are members no more; if they are not the only ones of their owners, they may still be found."""
        only = self._places.cells[owners] == members
        self._places.cells[owners[only]] = _NONE

    def replace(self, owners: Slots, sizes: Positions, members: Slots) -> None:
        """These owners, ascending, have just these members now. sizes: how many each has."""
        self._places.cells[owners] = _NONE
        self.insert(np.repeat(owners, sizes), members)

    def _fans_of(self, owners: Slots) -> Slots:
        """The fan of each owner; an owner without one gets one."""
        places = self._places.cells[owners]
        new = np.flatnonzero(places >= _NONE)
        places[new] = _NONE - 1 - np.arange(self._fans, self._fans + len(new))
        self._fans += len(new)
        self._places.cells[owners] = places
        return _NONE - 1 - places
