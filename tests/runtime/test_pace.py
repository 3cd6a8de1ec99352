"""The pace of a rescale in one worker's loop.

How many keys a slice has, by what slices have taken.
"""

import numpy as np
import pytest

from upriver.ids import FlowId, MapVersion
from upriver.migration.messages import Acquire
from upriver.migration.pace import KEYS_FIRST as MOVED_FIRST
from upriver.protocol.peers import Envelope, ForRegion, Installed
from upriver.runtime.pace import AIM_SHARE, KEYS_FIRST, KEYS_MAX, KEYS_MIN, Mover, SlicePace

KEYS = np.arange(MOVED_FIRST, dtype=np.uint64)


def moved(mover: Mover, region: str, seconds: float) -> None:
    """One step has moved ``KEYS`` of a region, and its receiver needed so long for it."""
    mover.step_begins()
    load = Acquire(version=MapVersion(1), keys=KEYS, state=())
    mover.sends(Envelope(flow=FlowId(1), generation=0, content=ForRegion(region=region, message=load)))
    mover.gave()
    mover.hears(Envelope(flow=FlowId(1), generation=0, content=Installed(region=region, seconds=seconds)))


def test_each_region_has_a_pace_of_its_own() -> None:
    mover = Mover(0.005)
    moved(mover, "dear", 1.0)
    assert mover.keys("dear") < MOVED_FIRST
    assert mover.keys("cheap") == MOVED_FIRST


def test_what_the_user_has_said_holds_for_every_region() -> None:
    mover = Mover(0.005)
    mover.begin(7)
    moved(mover, "dear", 1.0)
    assert (mover.keys("dear"), mover.keys("cheap")) == (7, 7)


def test_another_rescale_begins_with_no_pace() -> None:
    mover = Mover(0.005)
    moved(mover, "dear", 1.0)
    mover.begin(None)
    assert mover.keys("dear") == MOVED_FIRST


BUDGET_S = 0.005


def settled(fixed_s: float, key_s: float) -> int:
    """Keys of a slice after many slices, each of which took some seconds and some more for each key."""
    pace = SlicePace(BUDGET_S)
    for _ in range(100):
        pace.took(pace.keys, fixed_s + key_s * pace.keys)
    return pace.keys


def test_slices_take_the_share_of_the_budget_that_is_aimed_at() -> None:
    assert settled(0.0, 1e-6) == pytest.approx(AIM_SHARE * BUDGET_S / 1e-6, rel=0.01)


def test_a_key_that_takes_more_than_the_budget_moves_alone() -> None:
    assert settled(0.0, 2 * BUDGET_S) == 1


@pytest.mark.parametrize("share", [0.1, 0.25, 0.3, 0.9])
def test_few_keys_that_take_long_take_at_most_twice_the_budget(share: float) -> None:
    pace = SlicePace(BUDGET_S)
    pace.took(KEYS_FIRST, share * BUDGET_S * KEYS_FIRST)
    for _ in range(100):
        seconds = share * BUDGET_S * pace.keys
        assert seconds <= 2 * BUDGET_S
        pace.took(pace.keys, seconds)


@pytest.mark.parametrize("bare_s", [0.25 * BUDGET_S, 0.3 * BUDGET_S, 0.45 * BUDGET_S])
def test_where_slices_are_dear_with_few_keys_half_of_their_time_is_of_use(bare_s: float) -> None:
    """More than is aimed at goes by before the first key. With fewer and fewer keys that would be all there is."""
    assert settled(bare_s, 1e-6) * 1e-6 == pytest.approx(bare_s, rel=0.05)


def test_where_slices_are_dear_they_stay_within_the_budget_all_the_same() -> None:
    keys = settled(0.7 * BUDGET_S, 1e-6)
    assert 0.7 * BUDGET_S + keys * 1e-6 == pytest.approx(BUDGET_S, rel=0.02)


def test_after_a_step_that_was_too_long_keys_become_more_again() -> None:
    pace = SlicePace(BUDGET_S)
    pace.took(KEYS_FIRST, 1.0)
    assert pace.keys == 1
    for keys in (2, 4, 8, KEYS_MIN, KEYS_MIN):
        pace.took(pace.keys, 0.9 * BUDGET_S)
        assert pace.keys == keys


def test_keys_at_most_double_and_are_never_more_than_the_most() -> None:
    pace, before = SlicePace(BUDGET_S), KEYS_FIRST
    while before < KEYS_MAX:
        pace.took(pace.keys, 1e-9)
        assert pace.keys == min(2 * before, KEYS_MAX)
        before = pace.keys
