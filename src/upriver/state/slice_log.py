"""Which keys of some slices are to be copied to whoever follows them: at first all, then those that have changed.

A copy of a key may be as of any moment: what changes it afterwards is logged, and the key is copied again. So when
nothing is left to copy at the end of an epoch, whoever has all copies has the slices as of that end.
"""

from collections.abc import Collection

import numpy as np

from upriver.ids import VnodeId
from upriver.state.changes import Changes
from upriver.state.vectors import Mask
from upriver.vnodes import vnodes_of
from upriver.xxh64 import Hashes

ALL_KEYS = 2**63 - 1
PASS_KEYS_MIN = 4_096
"""Keys that have changed while others were copied: fewer wait for the epoch's end."""


class SliceLog:
    """Of one region at one worker, for one follower."""

    __slots__ = ("_changes", "_mine")

    def __init__(self, vnodes: Collection[VnodeId], count: int, everything: Hashes) -> None:
        """count: the lake's vnodes. everything: the keys of these that have state by now, ascending and unique."""
        self._mine = np.zeros(count, np.bool_)
        self._mine[list(vnodes)] = True
        self._changes = Changes()
        self._changes.cut(everything[self._of_mine(everything)])

    def note(self, hashes: Hashes) -> None:
        """These keys, whoever's they are, change."""
        self._changes.note(hashes[self._of_mine(hashes)])

    @property
    def left(self) -> bool:
        """Whether keys are to be copied before the next epoch's end."""
        return self._changes.left or self._changes.logged >= PASS_KEYS_MIN

    def next(self, keys_max: int) -> Hashes:
        """So many of these, if there are as many. Ascending, unique."""
        if not self._changes.left:
            self._changes.cut()
        return self._kept(self._changes.next(keys_max))

    def rest(self) -> Hashes:
        """At the end of an epoch, when none are left before it: all that have changed. Ascending, unique."""
        self._changes.cut()
        return self._kept(self._changes.next(ALL_KEYS))

    def keep_only(self, vnodes: Collection[VnodeId]) -> None:
        """The other slices are followed no more."""
        kept = np.zeros(len(self._mine), np.bool_)
        kept[list(vnodes)] = True
        self._mine &= kept

    def _kept(self, keys: Hashes) -> Hashes:
        return keys[self._of_mine(keys)]

    def _of_mine(self, hashes: Hashes) -> Mask:
        mine: Mask = self._mine[vnodes_of(hashes, len(self._mine))]
        return mine
