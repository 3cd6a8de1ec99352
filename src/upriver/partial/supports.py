"""Supports: which keys of a producer region the kept keys of its consumer rest on, for one exchange edge.

A pair says that rows of the producer's key may go to the consumer's key. There may be pairs of which that is true no
more; none may be lacking of a consumer's key that is kept.
"""

import numpy as np

from upriver.state.keysets import NO_KEYS, contains
from upriver.state.ragged import spread
from upriver.state.vectors import Mask, Positions
from upriver.xxh64 import Hashes


class Supports:
    """Pairs of hash64. Adding new ones copies all of them; dropping marks them, and now and then copies those that are
    left."""

    __slots__ = ("_consumers", "_counts", "_gone", "_held", "_known", "_producers")

    def __init__(self) -> None:
        self._consumers, self._producers = NO_KEYS, NO_KEYS
        """The pairs, each once, sorted by consumer, then by producer."""
        self._gone = np.zeros(0, np.bool_)
        """Which of the pairs were dropped."""
        self._held = 0
        """How many were not."""
        self._known, self._counts = NO_KEYS, np.zeros(0, np.int64)
        """The producers, ascending, each once, and how many pairs each is in: 0 if all were dropped."""

    def __len__(self) -> int:
        return self._held

    @property
    def nbytes(self) -> int:
        arrays = (self._consumers, self._producers, self._gone, self._known, self._counts)
        return sum(array.nbytes for array in arrays)

    def add(self, consumers: Hashes, producers: Hashes) -> None:
        """Add these pairs; some may be there already, or be named twice."""
        consumers, producers = _distinct(consumers, producers)
        places = self._places_of(consumers, producers)
        is_there = self._has(places, consumers, producers)
        again = places[is_there][self._gone[places[is_there]]]
        self._gone[again] = False
        self._held += len(again)
        self._count(self._producers[again])
        if not is_there.all():  # in most epochs all are: then only looking them up is paid for
            self._insert(places[~is_there], consumers[~is_there], producers[~is_there])

    def _insert(self, places: Positions, consumers: Hashes, producers: Hashes) -> None:
        self._consumers = np.insert(self._consumers, places, consumers)
        self._producers = np.insert(self._producers, places, producers)
        self._gone = np.insert(self._gone, places, False)
        self._held += len(places)
        self._count(producers)

    def _places_of(self, consumers: Hashes, producers: Hashes) -> Positions:
        """Where each of these pairs is, or is to be put: by halving, all at once."""
        first = self._consumers.searchsorted(consumers)
        end = self._consumers.searchsorted(consumers, "right")
        while (first < end).any():
            middle = (first + end) // 2
            is_open = first < end
            is_after = is_open & (self._producers[np.minimum(middle, len(self._producers) - 1)] < producers)
            first = np.where(is_after, middle + 1, first)
            end = np.where(is_open & ~is_after, middle, end)
        return first

    def _has(self, places: Positions, consumers: Hashes, producers: Hashes) -> Mask:
        """Which of these pairs are there, at their places, dropped or not."""
        if not len(self._consumers):
            return np.zeros(len(consumers), np.bool_)
        at = np.minimum(places, len(self._consumers) - 1)
        mask: Mask = (self._consumers[at] == consumers) & (self._producers[at] == producers)
        return mask

    def _count(self, producers: Hashes) -> None:
        """These producers, named as often as that, are in one more pair each."""
        found, counts = np.unique(producers, return_counts=True)
        places = self._known.searchsorted(found)
        is_known = contains(self._known, found)
        self._counts[places[is_known]] += counts[is_known]
        if not is_known.all():
            self._counts = np.insert(self._counts, places[~is_known], counts[~is_known])
            self._known = np.insert(self._known, places[~is_known], found[~is_known])

    def rests_on(self, producers: Hashes) -> Mask:
        """Which of these producers some consumer rests on."""
        if not len(self._known):
            return np.zeros(len(producers), np.bool_)
        nearest = np.minimum(self._known.searchsorted(producers), len(self._known) - 1)
        mask: Mask = (self._known[nearest] == producers) & (self._counts[nearest] > 0)
        return mask

    def consumers_of(self, producers: Hashes) -> Hashes:
        """The consumers that rest on any of these producers, ascending, each once. Looks at all pairs."""
        return np.unique(self._consumers[np.isin(self._producers, producers) & ~self._gone])

    def of(self, consumers: Hashes) -> tuple[Hashes, Hashes]:
        """The pairs of these consumers (ascending, each once)."""
        places = self._pairs_of(consumers)
        return self._consumers[places], self._producers[places]

    def drop(self, consumers: Hashes) -> Hashes:
        """These consumers (ascending, each once) rest on nothing any more. Returns the producers that nobody rests on
        since, ascending."""
        places = self._pairs_of(consumers)
        lost, counts = np.unique(self._producers[places], return_counts=True)
        self._gone[places] = True
        self._held -= len(places)
        at = self._known.searchsorted(lost)
        self._counts[at] -= counts
        idle: Hashes = lost[self._counts[at] == 0]
        if 2 * self._held < len(self._gone):
            self._forget_dropped()
        return idle

    def _forget_dropped(self) -> None:
        self._consumers, self._producers = self._consumers[~self._gone], self._producers[~self._gone]
        self._gone = np.zeros(self._held, np.bool_)
        is_held = self._counts > 0
        self._known, self._counts = self._known[is_held], self._counts[is_held]

    def _pairs_of(self, consumers: Hashes) -> Positions:
        """The places of the pairs of these consumers that were not dropped."""
        starts = self._consumers.searchsorted(consumers)
        places = spread(starts, self._consumers.searchsorted(consumers, "right") - starts)
        return places[~self._gone[places]]


def _distinct(consumers: Hashes, producers: Hashes) -> tuple[Hashes, Hashes]:
    """Each pair once, sorted by consumer, then by producer."""
    order = np.lexsort((producers, consumers))
    consumers, producers = consumers[order], producers[order]
    is_first = np.ones(len(order), np.bool_)
    is_first[1:] = (consumers[1:] != consumers[:-1]) | (producers[1:] != producers[:-1])
    return consumers[is_first], producers[is_first]
