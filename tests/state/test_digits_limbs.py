"""Sums in limbs against Python's own numbers."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from state_kit import MANY

from upriver.state.digits import add_at, from_ints, join, outside, split, to_ints

WIDE = st.integers(-(2**127), 2**127 - 1) | st.integers(-3, 3) | st.sampled_from([10**38 - 1, 1 - 10**38])


def _words(numbers: list[int]) -> np.ndarray[Any, Any]:
    return from_ints(numbers, 16)


@MANY
@given(st.lists(WIDE, max_size=20))
def test_splitting_and_joining_changes_nothing(numbers: list[int]) -> None:
    words = _words(numbers)
    assert to_ints(words) == numbers
    assert to_ints(join(split(words), words.dtype)) == numbers


@MANY
@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=20))
def test_a_long_has_two_limbs(numbers: list[int]) -> None:
    longs = np.array(numbers, np.int64)
    limbs = split(longs)
    assert [high * 2**32 + low for low, high in zip(*(limb.tolist() for limb in limbs), strict=True)] == numbers
    assert join(limbs, np.int64).tolist() == numbers


@MANY
@given(st.lists(st.tuples(st.integers(0, 3), WIDE, st.integers(-3, 3)), max_size=30), st.booleans())
def test_sums_are_exact_beyond_the_range(rows: list[tuple[int, int, int]], weighted: bool) -> None:
    places = np.array([place for place, _, _ in rows], np.int64)
    weight = np.array([times for _, _, times in rows], np.int64) if weighted else None
    totals = split(_words([0] * 4))
    add_at(totals, places, split(_words([number for _, number, _ in rows])), weight)
    expected = [sum(n * (w if weighted else 1) for at, n, w in rows if at == place) for place in range(4)]
    assert [sum(int(limb[place]) << 32 * nth for nth, limb in enumerate(totals)) for place in range(4)] == expected
    least, most = -(10**38), 10**37
    assert outside(totals, least, most).tolist() == [not least <= total <= most for total in expected]


@pytest.mark.parametrize("count", [1, 65_536])
def test_a_full_batch_of_the_greatest_numbers_does_not_wrap(count: int) -> None:
    totals = split(np.array([0]))
    add_at(totals, np.zeros(count, np.int64), split(np.full(count, 2**63 - 1)), None)
    assert (int(totals[1][0]) << 32) + int(totals[0][0]) == count * (2**63 - 1)
