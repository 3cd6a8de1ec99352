"""Exact sums against fractions."""

import math
from fractions import Fraction

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from state_kit import MANY

from upriver.state.digits import Digits, ExactSums, parts_of

FLOATS = st.floats(allow_nan=False, allow_infinity=False) | st.sampled_from([2.0**53, 1.0, 0.5, 5e-324, -5e-324])
CHANGES = st.lists(st.tuples(st.integers(0, 2), FLOATS, st.integers(-3, 3)), max_size=12)


def _add(sums: ExactSums, changes: list[tuple[int, float, int]]) -> None:
    slots, numbers, weight = (np.array([change[place] for change in changes]) for place in range(3))
    sums.add(slots.astype(np.int64), *parts_of(numbers.astype(np.float64)), weight.astype(np.int64))


def _nearest(number: Fraction) -> float:
    try:
        return float(number)
    except OverflowError:
        return math.inf if number > 0 else -math.inf


def _number(digits: Digits, column: int) -> Fraction:
    exponents = range(digits.place, digits.place + len(digits.rows))
    pairs = zip(exponents, digits.rows[:, column].tolist(), strict=True)
    return sum((Fraction(2) ** (32 * place) * digit for place, digit in pairs), Fraction())


@MANY
@given(st.lists(CHANGES, max_size=4))
def test_sums_are_exact_and_rounded_once(batches: list[list[tuple[int, float, int]]]) -> None:
    sums, truth = ExactSums(), [Fraction()] * 3
    sums.resize(3)
    for changes in batches:
        _add(sums, changes)
        for slot, number, weight in changes:
            truth[slot] += Fraction(number) * weight
    digits = sums.digits(np.arange(3))
    assert [_number(digits, slot) for slot in range(3)] == truth
    assert digits.divided().tolist() == list(map(_nearest, truth))


@MANY
@given(CHANGES, CHANGES)
def test_a_saved_sum_depends_on_the_sum_alone(
    changes: list[tuple[int, float, int]], more: list[tuple[int, float, int]]
) -> None:
    """Not on what has gone, nor on what else is there."""
    direct, detour, copy = ExactSums(), ExactSums(), ExactSums()
    for sums in (direct, detour, copy):
        sums.resize(3)
    _add(direct, changes)
    _add(detour, more)
    _add(detour, changes)
    _add(detour, [(slot, number, -weight) for slot, number, weight in more])
    slots = np.array([2, 0, 1])
    assert detour.state(slots).equals(direct.state(slots))
    copy.install(np.array([1, 0]), direct.state(slots)[1:])
    assert copy.state(np.array([0])).equals(direct.state(np.array([1])))
    assert copy.digits(np.arange(2)).divided().tolist() == direct.digits(np.array([1, 0])).divided().tolist()
    assert pa.types.is_large_list(direct.state(slots[:0]).type)


@MANY
@given(st.lists(st.tuples(FLOATS, FLOATS, st.integers(0, 2**62)), min_size=1, max_size=5))
def test_products_and_differences_are_exact(rows: list[tuple[float, float, int]]) -> None:
    left, right = ExactSums(), ExactSums()
    for sums, place in ((left, 0), (right, 1)):
        sums.resize(len(rows))
        sums.add(np.arange(len(rows)), *parts_of(np.array([row[place] for row in rows])), None)
    slots = np.arange(len(rows))
    numbers = Digits.of(np.array([row[2] for row in rows]))
    found = numbers.times(left.digits(slots)).minus(left.digits(slots).times(right.digits(slots)))
    for place, (one, other, number) in enumerate(rows):
        assert _number(found, place) == number * Fraction(one) - Fraction(one) * Fraction(other)


def test_a_number_may_come_very_often() -> None:
    sums = ExactSums()
    sums.resize(2)
    weight = np.array([2**62 - 1, -(2**50) - 7, 1])
    sums.add(np.array([0, 1, 1]), *parts_of(np.array([0.1, 1e18, 3.0])), weight)
    digits = sums.digits(np.arange(2))
    assert _number(digits, 0) == Fraction(0.1) * (2**62 - 1)
    assert _number(digits, 1) == 3 - 10**18 * (2**50 + 7)


def test_two_numbers_that_nearly_cancel_out_are_divided() -> None:
    sums = ExactSums()
    sums.resize(1)
    for number in (1e300, 3.0, -1e300):
        sums.add(np.array([0]), *parts_of(np.array([number])), None)
    assert sums.digits(np.array([0])).divided(np.array([4.0])).tolist() == [0.75]
