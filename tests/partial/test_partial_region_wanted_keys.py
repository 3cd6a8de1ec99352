"""Keys that the next upqueries are to read."""

import weakref

import numpy as np

from upriver.partial.partial_region import WantedKeys


def test_the_first_ones_are_taken_and_the_others_left() -> None:
    wanted = WantedKeys()
    wanted.add(np.array([7, 3, 3], np.uint64))
    wanted.add(np.array([5], np.uint64))
    assert wanted.take(2).tolist() == [3, 5]
    assert wanted.keys.tolist() == [7]


def test_keys_that_were_taken_are_not_kept_in_memory() -> None:
    wanted = WantedKeys()
    wanted.add(np.arange(10, dtype=np.uint64))
    asked_for = weakref.ref(wanted.keys)
    wanted.take(10)
    assert asked_for() is None
