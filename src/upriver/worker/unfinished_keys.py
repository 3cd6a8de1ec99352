"""The keys of a region that have some of an epoch's rows, and may get more of them: rule worker.whole_keys.

A key of a region with one lake edge gets all its rows of an epoch at once. If there are several edges, or a node that
waits for the rest of the epoch, its state is in between until the epoch is over.
"""

import numpy as np

from upriver.hashing import Hashes
from upriver.ids import Epoch
from upriver.state.vectors import Mask, contains

UNFINISHED_KEYS_MAX = 1 << 20
"""Keys of an epoch that are known one by one. If it has rows of more, all keys of the region count as unfinished."""


class UnfinishedKeys:
    """By epoch that is not over."""

    def __init__(self) -> None:
        self._of: dict[Epoch, list[Hashes]] = {}
        """Sorted hash64 of each lot of rows."""
        self._uncounted: set[Epoch] = set()
        """The epochs that have rows of too many keys."""

    def note(self, epoch: Epoch, hashes: Hashes) -> None:
        """Some rows of these keys have come. hashes: in any order, each any number of times."""
        if epoch in self._uncounted:
            return
        lots = self._of.setdefault(epoch, [])
        lots.append(np.unique(hashes))
        if sum(map(len, lots)) > UNFINISHED_KEYS_MAX:
            lots.clear()
            self._uncounted.add(epoch)

    def over(self, epoch: Epoch) -> None:
        """All rows of this epoch, and of those before it, are applied."""
        self._of = {later: lots for later, lots in self._of.items() if later > epoch}
        self._uncounted = {later for later in self._uncounted if later > epoch}

    def among(self, hashes: Hashes) -> Mask:
        """Which of these keys are unfinished."""
        if self._uncounted:
            return np.ones(len(hashes), np.bool_)
        found = np.zeros(len(hashes), np.bool_)
        for lots in self._of.values():
            for lot in lots:
                found |= contains(lot, hashes)
        return found

    def __bool__(self) -> bool:
        return bool(self._of)
