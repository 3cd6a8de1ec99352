"""How long rests from moving keys are, by how much there is to give."""

import pytest

from upriver.migration.pace import GENTLE_S, REST_SHARE_MAX, REST_SHARE_MIN, Rests

SLICES = 64


def seconds_in_all(step_s: float, steps_per_slice: int, regions: int = 1) -> float:
    """What it takes to give the slices of so many regions, one after the other: steps and the rests after them."""
    rests, seconds = Rests(), 0.0
    for region in range(regions):
        rests.told(f"region {region}", SLICES)
    for region in range(regions):
        for left in reversed(range(SLICES)):
            for _ in range(steps_per_slice):
                rests.took(step_s)
                seconds += step_s * (1 + rests.share)
            rests.told(f"region {region}", left)
    return seconds


def test_as_long_as_may_be_before_anything_is_given() -> None:
    rests = Rests()
    assert rests.share == REST_SHARE_MAX
    rests.told("totals", SLICES)
    rests.took(1.0)
    assert rests.share == REST_SHARE_MAX


@pytest.mark.parametrize("steps_s", [0.15, 0.3, 0.45])
@pytest.mark.parametrize("regions", [1, 3])
def test_what_can_be_given_in_less_takes_about_so_many_seconds(steps_s: float, regions: int) -> None:
    seconds = seconds_in_all(steps_s / SLICES / 2 / regions, 2, regions)
    assert seconds == pytest.approx(GENTLE_S, rel=0.15)


@pytest.mark.parametrize(("steps_s", "share"), [(0.01, REST_SHARE_MAX), (0.6, REST_SHARE_MIN), (6.0, REST_SHARE_MIN)])
def test_rests_are_neither_longer_nor_shorter_than_they_may_be(steps_s: float, share: float) -> None:
    assert seconds_in_all(steps_s / SLICES, 1) == pytest.approx(steps_s * (1 + share), rel=0.1)


def test_slices_that_come_to_be_known_later_count_too() -> None:
    rests = Rests()
    rests.told("totals", 10)
    rests.took(0.1)
    rests.told("totals", 5)
    before = rests.share
    rests.told("sizes", 10)
    assert REST_SHARE_MIN < rests.share < before
