"""The pace of a rescale in one worker's loop."""

import numpy as np

from upriver.ids import MapVersion
from upriver.migration.messages import Acquire
from upriver.migration.pace import KEYS_FIRST
from upriver.protocol.peers import Envelope, ForRegion, Installed
from upriver.runtime.pace import Mover

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
