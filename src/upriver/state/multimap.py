"""Multimap: which members belong to which owner, where most owners have one, and members come and go.

An owner's only member is kept at the owner's own place: one look finds it, and one that takes the place of another
leaves nothing behind. The members of all other owners are in :class:`Lists`, each owner's under a number of its own.
"""

import numpy as np

from upriver.state.lists import Lists
from upriver.state.vectors import Positions, Slots, Vector, run_lengths, run_starts, true_at

_NONE = -1
"""The place of an owner without members. That of an owner with a list is below it: the first list's is next to it."""


class Multimap:
    """Owners and members are slots; a member has one owner."""

    __slots__ = ("_lists", "_places")

    def __init__(self) -> None:
        self._places: Vector[np.int64] = Vector(np.int64, fill=_NONE)
        """By owner: its only member, or where its list is, or ``_NONE``."""
        self._lists = Lists()

    @property
    def nbytes(self) -> int:
        return self._places.nbytes + self._lists.nbytes

    def resize(self, size: int) -> None:
        """Make place for so many owners."""
        self._places.resize(size)

    def insert(self, owners: Slots, members: Slots) -> None:
        """Add members. owners: of each, ascending."""
        heads = run_starts(owners)
        sizes = run_lengths(heads, len(owners))
        owners = owners[heads]
        places = self._places.cells[owners]
        only = (places == _NONE) & (sizes == 1)
        self._places.cells[owners[only]] = members[heads[only]]
        if not only.all():
            lists = self._lists_of(owners[~only])
            had_one = places[~only] > _NONE
            moved, more = places[~only][had_one], members[np.repeat(~only, sizes)]
            lists = np.concatenate([lists[had_one], np.repeat(lists, sizes[~only])])
            self._lists.append(lists, np.concatenate([moved, more]))

    def find(self, owners: Slots) -> tuple[Positions, Slots]:
        """The members of each owner: for every member the position of its owner in ``owners``, and the member.

        Sorted by position, then in order of arrival. Members that were removed may be among them.
        """
        places = self._places.cells[owners]
        single, listed = true_at(places > _NONE), true_at(places < _NONE)
        if not listed.size:
            return single, places[single]
        positions, members = self._lists.find(_NONE - 1 - places[listed])
        positions = np.concatenate([single, listed[positions]])
        order = np.argsort(positions, kind="stable")
        return positions[order], np.concatenate([places[single], members])[order]

    def remove(self, owners: Slots, members: Slots) -> None:
        """These are members no more; if they are not the only ones of their owners, they may still be found."""
        only = self._places.cells[owners] == members
        self._places.cells[owners[only]] = _NONE

    def replace(self, owners: Slots, sizes: Positions, members: Slots) -> None:
        """These owners, each named once, have just these members now. sizes: how many each has."""
        self._lists.replace(self._lists_of(owners), sizes, members)

    def _lists_of(self, owners: Slots) -> Slots:
        """The list of each of these owners, each named once; one without a list gets one."""
        places = self._places.cells[owners]
        new = true_at(places >= _NONE)
        if new.size:
            known = len(self._lists)
            self._lists.resize(known + len(new))
            places[new] = _NONE - 1 - np.arange(known, known + len(new))
            self._places.cells[owners] = places
        return _NONE - 1 - places
