"""How many keys move at a time, by what steps have taken."""

import math
import random

import pytest

from upriver.migration.pace import (
    AIM_SHARE,
    BARE_TIMES,
    KEYS_FIRST,
    KEYS_MAX,
    LONG_TIMES,
    OVER_TIMES,
    SMALLER_EVERY,
    SMALLER_TIMES,
    WITHIN_SHARE,
    Pace,
    aimed_at,
)

BUDGET_S = 0.005


def steps(bare_s: float, key_s: float, count: int = 200, noise: float = 0.0, seed: int = 1) -> list[tuple[int, float]]:
    """The keys and seconds of so many steps, of which each takes some seconds and some more for each key. noise: by
    what factor they vary, as a standard deviation of its logarithm."""
    pace, rng, taken = Pace(BUDGET_S), random.Random(seed), []
    for _ in range(count):
        seconds = (bare_s + key_s * pace.keys) * math.exp(rng.gauss(0, noise))
        taken.append((pace.keys, seconds))
        pace.took(*taken[-1])
    return taken


def longest(bare_s: float, key_s: float) -> float:
    """Seconds of the longest of the steps by which the pace has settled."""
    return max(seconds for _, seconds in steps(bare_s, key_s)[-SMALLER_EVERY:])


def test_steps_take_the_share_of_the_budget_that_is_aimed_at() -> None:
    assert longest(0.0, 1e-6) == pytest.approx(AIM_SHARE * BUDGET_S, rel=0.01)
    assert longest(0.05 * BUDGET_S, 1e-6) == pytest.approx(AIM_SHARE * BUDGET_S, rel=0.01)


def test_a_key_that_takes_more_than_the_budget_moves_alone() -> None:
    assert {keys for keys, _ in steps(0.0, 2 * BUDGET_S)[-SMALLER_EVERY:]} == {1}


@pytest.mark.parametrize("bare_s", [0.25 * BUDGET_S, 0.3 * BUDGET_S, 0.5 * BUDGET_S])
def test_where_steps_are_dear_with_few_keys_a_third_of_their_time_is_of_use(bare_s: float) -> None:
    """More than is aimed at goes by before the first key. With fewer and fewer keys that would be all there is."""
    assert longest(bare_s, 1e-6) == pytest.approx(BARE_TIMES * bare_s, rel=0.01)


@pytest.mark.parametrize("bare_s", [0.65 * BUDGET_S, 0.7 * BUDGET_S])
def test_where_steps_are_dear_they_stay_within_the_budget_all_the_same(bare_s: float) -> None:
    assert longest(bare_s, 1e-6) == pytest.approx(WITHIN_SHARE * BUDGET_S, rel=0.01)


@pytest.mark.parametrize("bare_s", [0.9 * BUDGET_S, BUDGET_S, 3 * BUDGET_S])
def test_steps_that_are_longer_than_the_budget_by_themselves_are_not_made_many_in_vain(bare_s: float) -> None:
    assert longest(bare_s, 1e-6) == pytest.approx(OVER_TIMES * bare_s, rel=0.02)


@pytest.mark.parametrize("bare_s", [0.0, 0.2 * BUDGET_S, 0.8 * BUDGET_S, 2 * BUDGET_S])
def test_steps_that_vary_take_what_is_aimed_at_on_the_whole(bare_s: float) -> None:
    taken = [seconds for _, seconds in steps(bare_s, 2e-5, count=400, noise=0.3)[100:]]
    aim_s = aimed_at(BUDGET_S, AIM_SHARE, bare_s)
    assert 0.6 * aim_s < sum(taken) / len(taken) < 1.3 * aim_s


def test_one_step_in_some_has_a_fraction_of_the_keys() -> None:
    keys = [keys for keys, _ in steps(0.1 * BUDGET_S, 1e-6)]
    smaller = keys[SMALLER_EVERY * 20 - 1]
    assert keys[SMALLER_EVERY * 20] == pytest.approx(SMALLER_TIMES * smaller, rel=0.01)


def test_after_a_step_that_was_too_long_there_are_half_as_many_keys() -> None:
    pace = Pace(BUDGET_S)
    for _ in range(SMALLER_EVERY * 20):
        pace.took(pace.keys, 1e-6 * pace.keys)
    before = pace.keys
    pace.took(before, 2 * LONG_TIMES * AIM_SHARE * BUDGET_S)
    assert pace.keys <= before / 2


@pytest.mark.parametrize("bare_s", [0.8 * BUDGET_S, 2 * BUDGET_S])
@pytest.mark.parametrize("seed", range(6))
def test_dear_steps_that_vary_never_end_with_next_to_no_keys(bare_s: float, seed: int) -> None:
    """A line by chance that puts all of the time down to the keys makes them few, and so all lines after it worse."""
    taken = steps(bare_s, 1.5e-5, count=400, noise=0.3, seed=seed)[100:]
    assert sum(keys for keys, _ in taken) / len(taken) > KEYS_FIRST / 2


def test_keys_at_most_double_and_are_never_more_than_the_most() -> None:
    pace, before = Pace(BUDGET_S), KEYS_FIRST
    for step in range(1, 40):
        pace.took(pace.keys, 1e-9)
        if (step + 1) % SMALLER_EVERY:
            assert before <= pace.keys <= min(8 * before, KEYS_MAX)
            before = pace.keys
    assert before == KEYS_MAX


def test_a_step_of_no_keys_says_nothing() -> None:
    pace = Pace(BUDGET_S)
    pace.took(0, 10.0)
    assert pace.keys == KEYS_FIRST


def test_a_fixed_number_of_keys_is_used() -> None:
    pace = Pace(BUDGET_S, 7)
    for _ in range(SMALLER_EVERY):
        pace.took(7, 10.0)
        assert pace.keys == 7
