"""Time zones: what Spark calls them, and what pyarrow, pandas and Python can read.

Spark takes every name that Java takes: ``+5:30``, ``UTC+01:00``, ``PST``, ``Z``. A table that leaves Upriver names its
zone as ``+05:30`` or as a region, ``America/Los_Angeles``; both sides read these alike.
"""

import re
from datetime import UTC, timedelta, timezone, tzinfo
from functools import lru_cache
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from upriver.errors import DeclarationError

OFFSET_HOURS_MAX = 18
"""Hours that a zone may be away from UTC, for Java."""

_SHORT = {
    "ACT": "Australia/Darwin",
    "AET": "Australia/Sydney",
    "AGT": "America/Argentina/Buenos_Aires",
    "ART": "Africa/Cairo",
    "AST": "America/Anchorage",
    "BET": "America/Sao_Paulo",
    "BST": "Asia/Dhaka",
    "CAT": "Africa/Harare",
    "CNT": "America/St_Johns",
    "CST": "America/Chicago",
    "CTT": "Asia/Shanghai",
    "EAT": "Africa/Addis_Ababa",
    "ECT": "Europe/Paris",
    "EST": "-05:00",
    "HST": "-10:00",
    "IET": "America/Indiana/Indianapolis",
    "IST": "Asia/Kolkata",
    "JST": "Asia/Tokyo",
    "MIT": "Pacific/Apia",
    "MST": "-07:00",
    "NET": "Asia/Yerevan",
    "NST": "Pacific/Auckland",
    "PLT": "Asia/Karachi",
    "PNT": "America/Phoenix",
    "PRT": "America/Puerto_Rico",
    "PST": "America/Los_Angeles",
    "SST": "Pacific/Guadalcanal",
    "VST": "Asia/Ho_Chi_Minh",
}
"""Java's short names; some mean another zone in Python, such as BST."""
_UTC_NAMES = frozenset({"Z", "UTC", "UT", "GMT", "GMT0"})
_OFFSET = re.compile(r"(?:UTC|UT|GMT)?([+-])(?:(\d)|(\d\d)(?:(\d\d)(\d\d)?|:(\d\d)(?::(\d\d))?)?)", re.ASCII)
_ONE_HOUR_DIGIT = re.compile(r"([+-])(\d):", re.ASCII)
_ONE_MINUTE_DIGIT = re.compile(r"([+-]\d\d:)(\d)\Z", re.ASCII)
_SYSTEM_V = re.compile(r"SystemV/(?:AST|EST|CST|MST|PST|YST|HST)(\d{1,2})([A-Z]{3})?", re.ASCII)
_NOT_IN_JAVA = re.compile(r"Factory|ROC|localtime|posixrules|(?:posix|right)/.*")
_PLAIN_OFFSET = re.compile(r"([+-])(\d{2}):(\d{2})")


def zone_name(zone: str) -> str:
    """The zone that Spark calls ``zone``, by the name that pyarrow knows it by: ``UTC``, ``+05:30`` or a region.

    Raises DeclarationError for one that pyarrow cannot name, with the way out.
    """
    name = _SHORT.get(zone, zone)
    if name in _UTC_NAMES:
        return "UTC"
    if (away := _seconds(name)) is not None:
        return _offset(zone, away)
    if (fixed := _SYSTEM_V.fullmatch(name)) is not None and not fixed[2]:
        return _offset(zone, -3600 * int(fixed[1]))
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise _unnamed(zone, "a region, as Europe/Berlin") from error
    return name


def zone_info(name: str) -> tzinfo:
    """The zone that :func:`zone_name` gave this name."""
    if name == "UTC":
        return UTC
    fixed = _PLAIN_OFFSET.fullmatch(name)
    if fixed is None:
        return ZoneInfo(name)
    away = timedelta(hours=int(fixed[2]), minutes=int(fixed[3]))
    return timezone(-away if fixed[1] == "-" else away)


def zone_of_text(zone: str) -> int | str | None:
    """The zone that Java reads in a text: its seconds from UTC, or the name of a region; ``None`` if it is none.

    Raises ValueError for a region that Java has and Python has not.
    """
    name = _SHORT.get(zone, zone)
    away = 0 if name in _UTC_NAMES else _seconds(name)
    if away is not None:
        return away if abs(away) <= OFFSET_HOURS_MAX * 3600 else None
    if (fixed := _SYSTEM_V.fullmatch(name)) is not None:
        if fixed[2]:
            raise ValueError(f"the time zone {zone} is not known here")
        return -3600 * int(fixed[1])
    return name if name in _regions() else None


@lru_cache(1)
def _regions() -> frozenset[str]:
    return frozenset(name for name in available_timezones() if not _NOT_IN_JAVA.fullmatch(name))


def _seconds(name: str) -> int | None:
    """The seconds from UTC that Spark reads in the name; ``None`` if it is no offset."""
    name = _ONE_HOUR_DIGIT.sub(r"\g<1>0\2:", name, count=1)
    name = _ONE_MINUTE_DIGIT.sub(r"\g<1>0\2", name)
    fixed = _OFFSET.fullmatch(name)
    if fixed is None:
        return None
    hours, minutes, seconds = (int(fixed[a] or fixed[b] or 0) for a, b in ((2, 3), (4, 6), (5, 7)))
    if minutes > 59 or seconds > 59:
        return None
    away = hours * 3600 + minutes * 60 + seconds
    return -away if fixed[1] == "-" else away


def _offset(zone: str, away: int) -> str:
    sign, (minutes, seconds) = "-" if away < 0 else "+", divmod(abs(away), 60)
    hours, minutes = divmod(minutes, 60)
    if seconds:
        raise _unnamed(zone, f"one without seconds, {sign}{hours:02}:{minutes:02}")
    if abs(away) > OFFSET_HOURS_MAX * 3600:
        raise _unnamed(zone, "an offset of at most 18 hours")
    return f"{sign}{hours:02}:{minutes:02}" if away else "UTC"


def _unnamed(zone: str, instead: str) -> DeclarationError:
    return DeclarationError(
        f"the Spark session's time zone, spark.sql.session.timeZone = {zone}, has no name that pyarrow can read: "
        f"set it to {instead}"
    )
