"""Time zones: what Spark calls them, and what pyarrow, pandas and Python can read.

Spark takes every name that Java takes: ``+5:30``, ``UTC+01:00``, ``PST``, ``Z``. A table that leaves Upriver names its
zone as ``+05:30`` or as a region, ``America/Los_Angeles``; both sides read these alike.
"""

import re
from datetime import UTC, timedelta, timezone, tzinfo
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

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
_OFFSET = re.compile(r"(?:UTC|UT|GMT)?([+-])(\d{1,2})(?::?(\d{1,2}))?(?::?(\d{2}))?")
_SYSTEM_V = re.compile(r"SystemV/[A-Z]{3}(\d{1,2})")
_PLAIN_OFFSET = re.compile(r"([+-])(\d{2}):(\d{2})")


def zone_name(zone: str) -> str:
    """The zone that Spark calls ``zone``, by the name that pyarrow knows it by: ``UTC``, ``+05:30`` or a region.

    Raises DeclarationError for one that pyarrow cannot name, with the way out.
    """
    name = _SHORT.get(zone, zone)
    if name in _UTC_NAMES:
        return "UTC"
    if (fixed := _OFFSET.fullmatch(name)) is not None:
        sign, hours, minutes, seconds = fixed.groups()
        return _offset(zone, sign, int(hours), int(minutes or 0), int(seconds or 0))
    if (fixed := _SYSTEM_V.fullmatch(name)) is not None:
        return _offset(zone, "-", int(fixed[1]), 0, 0)
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


def _offset(zone: str, sign: str, hours: int, minutes: int, seconds: int) -> str:
    if seconds:
        raise _unnamed(zone, f"one without seconds, {sign}{hours:02}:{minutes:02}")
    if hours * 60 + minutes > OFFSET_HOURS_MAX * 60 or minutes > 59:
        raise _unnamed(zone, "an offset of at most 18 hours")
    return "UTC" if not (hours or minutes) else f"{sign}{hours:02}:{minutes:02}"


def _unnamed(zone: str, instead: str) -> DeclarationError:
    return DeclarationError(
        f"the Spark session's time zone, spark.sql.session.timeZone = {zone}, has no name that pyarrow can read: "
        f"set it to {instead}"
    )
