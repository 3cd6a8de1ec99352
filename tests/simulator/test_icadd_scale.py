"""The cost of a rescale is that of what moves: slices times workers, whatever the number of vnodes and keys."""

import pytest

from simulator.icadd_scale import count_messages


@pytest.mark.parametrize(
    ("before", "after", "vnodes"), [(2, 4, 256), (4, 3, 256), (20, 21, 4096), (21, 20, 4096), (300, 301, 16_384)]
)
def test_messages_are_those_of_the_moving_slices(before: int, after: int, vnodes: int) -> None:
    counted = count_messages(before, after, vnodes)
    moved, peers = counted["moved"], max(before, after) - 1
    assert counted["touched"] == moved
    assert moved - counted["least"] < max(before, after)
    assert counted["messages"] == {
        "Acquire": moved,
        "Done": moved * peers,
        "Mark": moved * peers,
        "RelayedMark": moved * peers,
    }


@pytest.mark.long
def test_a_thousand_workers_and_one_more() -> None:
    counted = count_messages(1_000, 1_001, 65_536)
    assert counted["moved"] == counted["touched"] == 65
    assert sum(counted["messages"].values()) == 65 * (1 + 3 * 1_000)
