"""Wanted: the keys that the next upqueries are to read."""

import numpy as np

from upriver.state.keysets import NO_KEYS, contains
from upriver.state.vectors import Mask
from upriver.xxh64 import Hashes


class Wanted:
    """Keys, each once. They are put in order when somebody looks at them, not whenever one comes: many may come one by
    one while an upquery is under way."""

    def __init__(self) -> None:
        self._in_order: Hashes = NO_KEYS
        self._more: list[Hashes] = []
        """Some may have come before."""

    def __len__(self) -> int:
        """How many there are, those counted again that have come more than once since somebody looked."""
        return len(self._in_order) + sum(map(len, self._more))

    @property
    def keys(self) -> Hashes:
        """All of them, ascending."""
        if self._more:
            self._in_order, self._more = np.unique(np.concatenate([self._in_order, *self._more])), []
        return self._in_order

    def add(self, keys: Hashes) -> None:
        if len(keys):
            self._more.append(keys)

    def among(self, keys: Hashes) -> Mask:
        """Which of these are wanted."""
        return contains(self.keys, keys)

    def take(self, keys_max: int) -> Hashes:
        """The first ones, which are not wanted any more."""
        keys = self.keys
        self._in_order = keys[keys_max:].copy()  # a slice, of none even, would keep all of them in memory
        return keys[:keys_max]

    def remove(self, keys: Hashes) -> None:
        """These are not wanted any more."""
        self._in_order = np.setdiff1d(self.keys, keys)
