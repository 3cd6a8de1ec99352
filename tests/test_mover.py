"""The pace of a rescale in one worker's loop."""

import numpy as np

from upriver.ids import MapVersion
from upriver.migration.messages import Acquire, Redistribute
from upriver.migration.pace import KEYS_FIRST, REST_SHARE_IDLE, REST_SHARE_MAX, REST_SHARE_MIN
from upriver.protocol.messages import Moved
from upriver.protocol.peers import Envelope, ForRegion, Installed
from upriver.runtime.pacing import Mover

KEYS = np.arange(KEYS_FIRST, dtype=np.uint64)


def moved(mover: Mover, region: str, seconds: float) -> None:
    """One step has moved ``KEYS`` of a region, and its receiver needed so long for it."""
    mover.step_begins()
    load = Acquire(version=MapVersion(1), keys=KEYS, state=())
    mover.sends(Envelope(generation=0, content=ForRegion(region=region, message=load)))
    mover.gave()
    mover.hears(Envelope(generation=0, content=Installed(region=region, seconds=seconds)))


def test_each_region_has_a_pace_of_its_own() -> None:
    mover = Mover(0.005)
    moved(mover, "dear", 1.0)
    assert mover.keys("dear") < KEYS_FIRST
    assert mover.keys("cheap") == KEYS_FIRST


def test_what_the_user_has_said_holds_for_every_region() -> None:
    mover = Mover(0.005)
    mover.begin(7)
    moved(mover, "dear", 1.0)
    assert (mover.keys("dear"), mover.keys("cheap")) == (7, 7)


def test_another_rescale_begins_with_no_pace() -> None:
    mover = Mover(0.005)
    moved(mover, "dear", 1.0)
    mover.begin(None)
    assert mover.keys("dear") == KEYS_FIRST


def reported(mover: Mover, slices_left: int) -> None:
    """The coordinator is told that so many slices are left."""
    mover.reports(
        Moved(
            region="r",
            phase="Collecting",
            keys=0,
            bytes=0,
            keys_left=0,
            vnodes_left=slices_left,
            gone=(),
            forwarded=0,
            bounced=0,
        )
    )


def test_rests_follow_from_how_much_there_is_to_give_if_somebody_looks_keys_up() -> None:
    mover = Mover(0.005)
    assert mover.rest_share == REST_SHARE_IDLE
    mover.asked()
    assert mover.rest_share == REST_SHARE_MAX
    reported(mover, 10**9)
    moved(mover, "r", 0.0)
    reported(mover, 10**9 - 1)
    assert mover.rest_share == REST_SHARE_MIN
    mover.begin(None)
    assert mover.rest_share == REST_SHARE_MAX


def test_keys_on_hold_do_not_wait_for_long_rests() -> None:
    mover = Mover(0.005)
    mover.asked()
    for following, share in ((KEYS, REST_SHARE_MIN), (KEYS[:0], REST_SHARE_MAX)):
        mover.step_begins()
        for message in (
            Acquire(version=MapVersion(1), keys=KEYS, state=()),
            Redistribute(version=MapVersion(1), keys=KEYS, following=following, added=KEYS[:0]),
        ):
            mover.sends(Envelope(generation=0, content=ForRegion(region="r", message=message)))
        mover.gave()
        assert mover.rest_share == share
