"""Spine: which members belong to which owner, for many members each. A log-structured merge tree in memory.

Owners and members are slots below 2**32, so that a pair is one 64-bit number, ``owner << 32 | member``, and sorting
numbers sorts pairs by owner, then by member. A batch of pairs becomes a sorted **level**; a level that is not
``GROWTH`` times smaller than the one before it, or stands after a small one, is merged into it. So there are few
levels, each pair is moved a few times per ``GROWTH``-fold growth, and finding an owner's members is a binary search in
each level. Members are numbered in order of arrival, hence found in order of arrival.
"""

from itertools import pairwise

import numpy as np
import numpy.typing as npt

from upriver.errors import ProtocolError
from upriver.state.ragged import spread
from upriver.state.vectors import Positions, Slots

GROWTH = 4
"""How many times smaller than the level before it a level must be to stay on its own."""

SMALL_PAIRS = 1024
"""Up to so many pairs, merging a level at every insertion costs less than searching one more."""

_HIGH = np.uint64(32)
_NEXT = np.uint64(1 << 32)
"""From the lowest pair of an owner to that of the next one."""
_LOW_MASK = np.uint64(0xFFFF_FFFF)

Pairs = npt.NDArray[np.uint64]


class ManyMembers(ProtocolError):
    """There are more members than are to be found in one go."""


class Spine:
    """A growing set of (owner, member) pairs.

    Invariant: each level is sorted, and before another one larger than ``SMALL_PAIRS`` and than ``GROWTH`` times it.
    """

    __slots__ = ("_levels",)

    def __init__(self) -> None:
        self._levels: list[Pairs] = []

    @property
    def nbytes(self) -> int:
        return sum(level.nbytes for level in self._levels)

    def insert(self, owners: Slots, members: Slots) -> None:
        """Add pairs, in any order. No pair may be added twice."""
        level = np.sort(_packed(owners) | members.astype(np.uint64))
        while self._levels and len(self._levels[-1]) <= max(GROWTH * len(level), SMALL_PAIRS):
            # A stable sort finds the two sorted runs and merges them.
            level = np.sort(np.concatenate([self._levels.pop(), level]), kind="stable")
        if len(level):
            self._levels.append(level)

    def find(self, owners: Slots, members_max: int | None = None) -> tuple[Positions, Slots]:
        """The members of each owner: for every member the position of its owner in ``owners``, and the member.

        Sorted by position, then by member. Raises ManyMembers, before much was done, if there are more members than
        ``members_max``.
        """
        if len(owners) == 1:
            return self._of_one(owners, members_max)
        order = owners.argsort()
        bounds, positions = bounds_of(owners[order]), _packed(order)
        found, held = [np.empty(0, np.uint64)], 0
        for level in self._levels:
            starts, stops = segments(level, bounds)
            counts = stops - starts
            if count := int(counts.sum()):
                held = _checked(held + count, members_max)
                found.append(positions.repeat(counts) | level[spread(starts, counts)] & _LOW_MASK)
        return _unpacked(np.sort(np.concatenate(found)))

    def _of_one(self, owner: Slots, members_max: int | None) -> tuple[Positions, Slots]:
        """As ``find``. One owner may have most of all members; nearly always those of a level come before those of the
        next."""
        bounds = bounds_of(owner)
        parts, held = [np.empty(0, np.uint64)], 0
        for level in self._levels:
            start, stop = level.searchsorted(bounds).tolist()
            if start < stop:
                held = _checked(held + stop - start, members_max)
                parts.append(level[start:stop])
        found = parts[1] if len(parts) == 2 else np.concatenate(parts)
        ends = [(before[-1], after[0]) for before, after in pairwise(parts[1:])]
        if any(before > after for before, after in ends):
            found = np.sort(found)
        return np.zeros(len(found), np.int64), (found & _LOW_MASK).view(np.int64)

    def pairs(self) -> tuple[Slots, Slots]:
        """All owners and members, in no particular order."""
        return _unpacked(np.concatenate([np.empty(0, np.uint64), *self._levels]))


def bounds_of(owners: Slots) -> Pairs:
    """Between which pairs each owner's lie, the lower one before the upper one."""
    bounds = _packed(owners.repeat(2))
    bounds[1::2] += _NEXT
    return bounds


def segments(level: Pairs, bounds: Pairs) -> tuple[Positions, Positions]:
    """Where each owner's pairs begin in a level, and end.

    A search leaves in the processor's cache what one for a pair nearby needs: so both bounds of an owner are searched
    for side by side, and owners are found several times as fast if they ascend.
    """
    starts, stops = level.searchsorted(bounds).reshape(-1, 2).T
    return starts, stops


def _checked(members: int, members_max: int | None) -> int:
    if members_max is not None and members > members_max:
        raise ManyMembers(f"more than {members_max:,} members")
    return members


def _packed(owners: Slots) -> Pairs:
    """The lowest pair of each owner."""
    packed: Pairs = owners.astype(np.uint64) << _HIGH
    return packed


def _unpacked(pairs: Pairs) -> tuple[Slots, Slots]:
    return (pairs >> _HIGH).view(np.int64), (pairs & _LOW_MASK).view(np.int64)
