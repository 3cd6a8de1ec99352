"""Sets of keys as sorted arrays behave as Python's sets do."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from upriver.state.vectors import NO_KEYS, contains, key_set

HASHES = st.lists(st.one_of(st.integers(0, 20), st.integers(0, 2**64 - 1)), max_size=30)


def array(numbers: list[int]) -> np.ndarray:
    return np.array(numbers, np.uint64)


@given(HASHES, HASHES)
def test_a_key_set_is_the_union_in_order(first: list[int], second: list[int]) -> None:
    keys = key_set(array(first), array(second))
    assert keys.tolist() == sorted({*first, *second})
    assert keys.dtype == np.uint64


@given(HASHES, HASHES)
def test_contains_says_it_for_every_row(members: list[int], rows: list[int]) -> None:
    keys = key_set(array(members))
    assert contains(keys, array(rows)).tolist() == [row in set(members) for row in rows]


def test_no_keys_hold_nothing() -> None:
    assert len(key_set()) == 0
    assert contains(NO_KEYS, array([0, 2**64 - 1])).tolist() == [False, False]
    assert not NO_KEYS.flags.writeable
