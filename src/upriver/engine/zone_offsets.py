"""The wall clock of an instant in a time zone, and back, over whole columns of microseconds.

Python knows the offset of one moment; a table of a zone's changes is made from that once. From some year on a zone's
rules repeat every 400 years, so later years take the offsets of an earlier one.
"""

from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from upriver.zones import zone_info

ZONES_MAX = 1_024
"""Zones whose changes are kept: all that there are, since a text may name any."""

Micros = npt.NDArray[np.int64]
_SECOND = 1_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST, _LAST = 1800, 2500
_STEP_DAYS = 7
"""Days between the moments at which a zone is asked for its offset; none changes it and back within so few."""
_DAY_S = 86_400
_CYCLE_S = 146_097 * _DAY_S
"""Seconds of 400 years."""


@lru_cache(ZONES_MAX)
def _changes(zone: str) -> tuple[Micros, Micros]:
    """The seconds at which the zone's offset changes, after a first one before all times; and the offsets."""
    info = zone_info(zone)
    begins, offsets = [np.iinfo(np.int64).min], [_offset(info, datetime(_FIRST, 1, 1, tzinfo=UTC))]
    moment, end = datetime(_FIRST, 1, 1, tzinfo=UTC), datetime(_LAST, 1, 1, tzinfo=UTC)
    while moment < end:
        following = moment + timedelta(days=_STEP_DAYS)
        if _offset(info, following) != offsets[-1]:
            at = _first_with(info, moment, following)
            begins.append(int((at - _EPOCH).total_seconds()))
            offsets.append(_offset(info, at))
        moment = following
    return np.array(begins, np.int64), np.array(offsets, np.int64)


def _offset(info: tzinfo, moment: datetime) -> int:
    offset = moment.astimezone(info).utcoffset()
    assert offset is not None
    return int(offset.total_seconds())


def _first_with(info: tzinfo, before: datetime, after: datetime) -> datetime:
    """The first second that has the offset of ``after``; ``before`` has another."""
    while after - before > timedelta(seconds=1):
        middle = before + timedelta(seconds=(after - before) // timedelta(seconds=2))
        if _offset(info, middle) == _offset(info, after):
            after = middle
        else:
            before = middle
    return after


def _in_table(seconds: Micros) -> Micros:
    """The seconds, those after the table moved back by whole cycles."""
    last = int((datetime(_LAST - 1, 1, 1, tzinfo=UTC) - _EPOCH).total_seconds())
    cycles: Micros = np.maximum(-(-(seconds - last) // _CYCLE_S), 0)
    return seconds - cycles * _CYCLE_S


def wall_clocks_of(instants: Micros, zone: str) -> Micros:
    begins, offsets = _changes(zone)
    places = np.searchsorted(begins, _in_table(instants // _SECOND), side="right") - 1
    return instants + offsets[places] * _SECOND


def instants_of(clocks: Micros, zone: str) -> Micros:
    """Of a wall clock that comes twice, the first instant; one that is skipped moves on by what is skipped."""
    begins, offsets = _changes(zone)
    seconds = _in_table(clocks // _SECOND)
    # A change takes effect for wall clocks at the later of its two readings.
    readings = begins[1:] + np.maximum(offsets[1:], offsets[:-1])
    places = np.searchsorted(readings, seconds, side="right")
    # In a gap the offset before it holds, which is the smaller one: the reading is that after the gap.
    return clocks - offsets[places] * _SECOND


def instants_near(clocks: Micros, zone: str, moments: Micros) -> Micros:
    """As :func:`instants_of`, but a wall clock that comes twice has the offset that the zone has at the moment."""
    near = clocks - (wall_clocks_of(moments, zone) - moments)
    found: Micros = np.where(wall_clocks_of(near, zone) == clocks, near, instants_of(clocks, zone))
    return found


def day_starts_of(clocks: Micros, zone: str) -> Micros:
    """The first instants of the days that begin at these wall clocks; where midnight is skipped, that of the change."""
    begins, _ = _changes(zone)
    instants = instants_of(clocks, zone)
    seconds = instants // _SECOND
    places = np.searchsorted(begins, _in_table(seconds), side="right") - 1
    changes = (begins[places] + seconds - _in_table(seconds)) * _SECOND
    found: Micros = np.where(wall_clocks_of(instants, zone) == clocks, instants, changes)
    return found


def days_go_back(zone: str) -> bool:
    """Whether the zone's date goes back at some change from 2020 on: its clocks are then put back over midnight."""
    begins, offsets = _changes(zone)
    before, after = begins[1:] - 1 + offsets[:-1], begins[1:] + offsets[1:]
    recent = begins[1:] >= int((datetime(2020, 1, 1, tzinfo=UTC) - _EPOCH).total_seconds())
    return bool((after[recent] // _DAY_S < before[recent] // _DAY_S).any())
