"""Spine: which members belong to which owner, for many members each. A log-structured merge tree in memory.

Owners and members are slots below 2**32, so that a pair is one 64-bit number, ``owner << 32 | member``, and sorting
numbers sorts pairs by owner, then by member. A batch of pairs becomes a sorted **level**; a level that is not
``GROWTH`` times smaller than the one before it is merged into it. So there are few levels, each pair is moved a few
times per ``GROWTH``-fold growth, and finding an owner's members is a binary search in each level. Members are numbered
in order of arrival, hence found in order of arrival.
"""

import numpy as np
import numpy.typing as npt

from upriver.state.vectors import Positions, Slots

GROWTH = 4
"""How many times smaller than the level before it a level must be to stay on its own."""

_HIGH = np.uint64(32)
_LOW_MASK = np.uint64(0xFFFF_FFFF)

Pairs = npt.NDArray[np.uint64]


class Spine:
    """A growing set of (owner, member) pairs.

    Invariant: each level is sorted, and more than ``GROWTH`` times larger than the next.
    """

    __slots__ = ("_levels",)

    def __init__(self) -> None:
        self._levels: list[Pairs] = []

    @property
    def nbytes(self) -> int:
        return sum(level.nbytes for level in self._levels)

    def insert(self, owners: Slots, members: Slots) -> None:
        """Add pairs, in any order. No pair may be added twice."""
        level = np.sort(_packed(owners, members))
        while self._levels and len(self._levels[-1]) <= GROWTH * len(level):
            # A stable sort finds the two sorted runs and merges them.
            level = np.sort(np.concatenate([self._levels.pop(), level]), kind="stable")
        if len(level):
            self._levels.append(level)

    def find(self, owners: Slots) -> tuple[Positions, Slots]:
        """The members of each owner: for every member the position of its owner in ``owners``, and the member.

        Sorted by position, then by member.
        """
        found = [np.empty(0, np.uint64)]
        low_ends, high_ends = _packed(owners, 0), _packed(owners + 1, 0)
        for level in self._levels:
            starts, stops = np.searchsorted(level, low_ends), np.searchsorted(level, high_ends)
            counts = stops - starts
            if counts.any():
                positions = np.repeat(np.arange(len(owners)), counts)
                # The n-th pair of its owner lies n places after the owner's start.
                nth = np.arange(len(positions)) - np.repeat(np.cumsum(counts) - counts, counts)
                found.append(_packed(positions, 0) | level[starts[positions] + nth] & _LOW_MASK)
        return _unpacked(np.sort(np.concatenate(found)))

    def pairs(self) -> tuple[Slots, Slots]:
        """All owners and members, in no particular order."""
        return _unpacked(np.concatenate([np.empty(0, np.uint64), *self._levels]))


def _packed(high: Slots, low: Slots | int) -> Pairs:
    packed: Pairs = high.astype(np.uint64) << _HIGH
    return packed if isinstance(low, int) else packed | low.astype(np.uint64)


def _unpacked(pairs: Pairs) -> tuple[Slots, Slots]:
    return (pairs >> _HIGH).view(np.int64), (pairs & _LOW_MASK).view(np.int64)
