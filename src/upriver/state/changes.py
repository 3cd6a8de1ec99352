"""Which keys of a region have changed since the last checkpoint, and which of them are yet to be copied for the next.

A checkpoint is of the end of an epoch, and is copied while the next ones flow: so a key is copied before it changes,
or when there is time, whichever comes first (rule V1).
"""

import numpy as np

from upriver.state.keysets import NO_KEYS, contains, key_set
from upriver.state.vectors import Mask, true_at
from upriver.xxh64 import Hashes

LOGGED_MIN = 65_536
"""Hashes that are logged before repeats are taken out."""


class Changes:
    """The keys of one region at one worker, by hash64. Rules V1, V4 and V8: ``docs/design/checkpoints.md``."""

    __slots__ = ("_cursor", "_cut", "_is_copied", "_logged", "_repeats_due", "_since")

    def __init__(self) -> None:
        self._logged: list[Hashes] = []
        """Keys that have changed since the last cut, in any order and with repeats."""
        self._since = 0
        """How many these are."""
        self._repeats_due = LOGGED_MIN
        self._cut: Hashes = NO_KEYS
        """What the checkpoint that is being taken is to have, ascending and unique."""
        self._is_copied: Mask = np.empty(0, np.bool_)
        """Of each key of the cut."""
        self._cursor = 0
        """Before this place of the cut all are copied."""

    @property
    def left(self) -> bool:
        """Whether keys of the cut are yet to be copied."""
        return self._cursor < len(self._cut)

    @property
    def logged(self) -> int:
        """How many keys have changed since the last cut, or a little more."""
        return self._since

    def note(self, hashes: Hashes) -> None:
        """These keys change, or are gone."""
        if not len(hashes):
            return
        fresh = hashes[true_at(hashes[1:] != hashes[:-1])]  # batches are sorted: most repeats are neighbours
        self._logged += [fresh, hashes[-1:]]
        self._since += len(fresh) + 1
        if self._since > self._repeats_due:
            self._logged = [key_set(*self._logged)]
            self._since = len(self._logged[0])
            self._repeats_due = max(LOGGED_MIN, 2 * self._since)

    def cut(self, everything: Hashes | None = None) -> None:
        """A checkpoint is taken here and now: of what has changed since the last one, or of ``everything``, ascending
        and unique."""
        self._cut = key_set(*self._logged) if everything is None else everything
        self._logged, self._since, self._repeats_due = [], 0, LOGGED_MIN
        self._is_copied, self._cursor = np.zeros(len(self._cut), np.bool_), 0

    def before(self, hashes: Hashes) -> Hashes:
        """Of keys that are about to change, those to be copied first; they count as copied. Ascending, unique."""
        if not self.left:
            return NO_KEYS
        touched = key_set(hashes)
        mine = touched[contains(self._cut, touched)]
        places = np.searchsorted(self._cut, mine)
        due = mine[~self._is_copied[places]]
        self._is_copied[places] = True
        return due

    def next(self, keys_max: int) -> Hashes:
        """So many keys that are to be copied now, if there are as many; they count as copied. Ascending, unique."""
        due: list[Hashes] = []
        wanted = keys_max
        while wanted > 0 and self.left:
            end = min(self._cursor + wanted, len(self._cut))
            due.append(self._cut[self._cursor : end][~self._is_copied[self._cursor : end]])
            self._is_copied[self._cursor : end] = True
            wanted -= len(due[-1])
            self._cursor = end
        return np.concatenate(due) if due else NO_KEYS

    def keep(self) -> None:
        """The checkpoint is kept: what it has need not be in the next one."""
        self._cut, self._is_copied, self._cursor = NO_KEYS, np.empty(0, np.bool_), 0

    def drop(self) -> None:
        """The checkpoint is given up: what it was to have has still changed."""
        self.note(self._cut)
        self.keep()
