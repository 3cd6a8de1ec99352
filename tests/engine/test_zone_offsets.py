"""Wall clocks and instants of whole columns are those that Python computes one by one."""

from datetime import UTC, datetime, timedelta
from random import Random
from zoneinfo import ZoneInfo

import numpy as np
import pytest

from upriver.engine.zone_offsets import instants_near, instants_of, wall_clocks_of

EPOCH = datetime(1970, 1, 1)
SECOND = timedelta(seconds=1)
ZONES = ("Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "America/Havana", "Asia/Kathmandu", "UTC")


def moments(zone: str) -> list[int]:
    """Seconds at random, and on both sides of each change of the last years."""
    draw, info = Random(1), ZoneInfo(zone)
    found = [draw.randrange(-5_000_000_000, 250_000_000_000) for _ in range(300)]
    hours = range(1_600_000_000, 1_760_000_000, 3600)
    offsets = [datetime.fromtimestamp(second, info).utcoffset() for second in hours]
    changes = [second for second, a, b in zip(hours, offsets, offsets[1:], strict=False) if a != b]
    return found + [second + minutes * 60 for second in changes for minutes in range(-300, 301, 15)]


@pytest.mark.parametrize("zone", ZONES)
def test_wall_clocks_and_instants_are_pythons(zone: str) -> None:
    info, seconds = ZoneInfo(zone), moments(zone)
    micros = np.array(seconds, np.int64) * 1_000_000
    clocks = [(EPOCH + second * SECOND).replace(tzinfo=UTC).astimezone(info).replace(tzinfo=None) for second in seconds]
    assert wall_clocks_of(micros, zone).tolist() == [(clock - EPOCH) // SECOND * 1_000_000 for clock in clocks]
    instants = [(EPOCH + second * SECOND).replace(tzinfo=info).astimezone(UTC) for second in seconds]
    expected = [(instant.replace(tzinfo=None) - EPOCH) // SECOND * 1_000_000 for instant in instants]
    assert instants_of(micros, zone).tolist() == expected


@pytest.mark.parametrize("zone", ZONES)
def test_a_clock_that_comes_twice_is_near_the_moment(zone: str) -> None:
    info = ZoneInfo(zone)
    micros = np.array(moments(zone), np.int64) * 1_000_000
    clocks = wall_clocks_of(micros, zone)
    assert instants_near(clocks, zone, micros).tolist() == micros.tolist(), "the same clock is the same moment"
    days = clocks - clocks % 86_400_000_000 - 86_400_000_000
    near = instants_near(days, zone, micros)
    for found, day, moment in zip(near.tolist(), days.tolist(), micros.tolist(), strict=True):
        offset = (EPOCH + moment // 1_000_000 * SECOND).replace(tzinfo=UTC).astimezone(info).utcoffset()
        clock = (EPOCH + day // 1_000_000 * SECOND).replace(tzinfo=info)
        both = [clock.replace(fold=fold) for fold in (0, 1)]
        chosen = next((one for one in both if one.utcoffset() == offset), both[0])
        wanted = chosen.astimezone(UTC).replace(tzinfo=None)
        assert found == (wanted - EPOCH) // SECOND * 1_000_000
