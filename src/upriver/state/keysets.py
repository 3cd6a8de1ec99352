"""Sets of keys as ascending arrays of hash64 without repeats: small, and quick to test a whole batch against."""

import numpy as np

from upriver.hashing import Hashes
from upriver.state.vectors import Mask

"""One truth value per row of a batch."""

NO_KEYS: Hashes = np.empty(0, np.uint64)
NO_KEYS.setflags(write=False)


def key_set(*hashes: Hashes) -> Hashes:
    """The set of all these hashes, in any order and with any repeats."""
    if not hashes:
        return NO_KEYS
    ordered = np.sort(np.concatenate(hashes))  # np.unique takes ten times as long where most are different
    return ordered[np.concatenate(([True], ordered[1:] != ordered[:-1]))[: len(ordered)]]


def contains(keys: Hashes, hashes: Hashes) -> Mask:
    """For each of ``hashes``, whether the set ``keys`` holds it."""
    if not len(keys):
        return np.zeros(len(hashes), np.bool_)
    places = np.minimum(np.searchsorted(keys, hashes), len(keys) - 1)
    found: Mask = keys[places] == hashes
    return found
