"""Retention, as a user declares it: ``retain=("at", "30 days")`` (docs/internals/retention.md).

A row leaves its table once the newest ``at`` that the table has got is so much later. Times are counted as whole
numbers: microseconds of a TIMESTAMP, days of a DATE, the value itself of an integer column.
"""

import re
from dataclasses import dataclass
from datetime import timedelta
from types import MappingProxyType

import pyarrow as pa

from upriver.arguments import as_spelled, class_name
from upriver.errors import DeclarationError

DAY_US = 86_400_000_000
"""Microseconds of a day: 24 hours in every time zone."""
INTERVAL_MAX = 2**62
"""The longest interval, in the column's unit."""
_UNITS_US = MappingProxyType(
    {
        "microsecond": 1,
        "millisecond": 1_000,
        "second": 1_000_000,
        "minute": 60_000_000,
        "hour": 3_600_000_000,
        "day": DAY_US,
        "week": 7 * DAY_US,
    }
)
_PART = re.compile(r"(\d+)\s*([a-z]+)")
_EXAMPLE = 'give a column and an interval, such as ("at", "30 days")'


@dataclass(frozen=True, slots=True)
class Retain:
    """column: of the table. interval: in the column's unit, above 0; ``None``: no further row leaves the table, and the
    rows that have left it stay away. words: the interval as the user gave it."""

    column: str
    interval: int | None
    words: str


def retain_of(about: str, schema: pa.Schema, given: object) -> Retain | None:
    """The retention that a user declares; ``None`` for none. about: begins the message of an error. schema: of the
    rows. Raises DeclarationError."""
    if given is None:
        return None
    if not isinstance(given, tuple | list) or len(given) != 2 or not isinstance(given[0], str):
        raise DeclarationError(f"{about}: {_EXAMPLE}")
    (column,), interval = as_spelled(given[:1], schema.names), given[1]
    if column not in schema.names:
        raise DeclarationError(f"{about} names {column!r}; its columns are {', '.join(schema.names)}")
    type = schema.field(column).type
    if not (pa.types.is_timestamp(type) or pa.types.is_date(type) or pa.types.is_signed_integer(type)):
        raise DeclarationError(f"{about}: column {column!r} is {type}; it must be a TIMESTAMP, a DATE or an integer")
    if interval is None:
        return Retain(column, None, "no interval")
    if pa.types.is_signed_integer(type):
        length = _whole(about, column, interval)
    else:
        length = interval_us(about, interval)
        length = length if pa.types.is_timestamp(type) else -(-length // DAY_US)
    if not 0 < length <= INTERVAL_MAX:
        raise DeclarationError(
            f"{about}: the interval must be above 0, and at most {INTERVAL_MAX} of the column's unit"
        )
    return Retain(column, length, str(interval))


def _whole(about: str, column: str, interval: object) -> int:
    if isinstance(interval, bool) or not isinstance(interval, int):
        raise DeclarationError(
            f"{about}: column {column!r} is an integer, so the interval is a whole number, not {interval!r}, a "
            f"{class_name(interval)}"
        )
    return interval


def interval_us(about: str, interval: object) -> int:
    """Microseconds of an interval: a text such as ``"30 days"``, or a timedelta. about: begins the message of an error.
    Raises DeclarationError."""
    if isinstance(interval, timedelta):
        return interval // timedelta(microseconds=1)
    if not isinstance(interval, str):
        raise DeclarationError(
            f'{about}: give the interval as a text, such as "30 days", or as a timedelta, not as a '
            f"{class_name(interval)}"
        )
    text = interval.strip().lower().removeprefix("interval ")
    if not re.fullmatch(rf"\s*{_PART.pattern}(\s+{_PART.pattern})*\s*", text):
        raise DeclarationError(f'{about}: the interval cannot be read; give a text such as "30 days" or "12 hours"')
    length = 0
    for number, unit in _PART.findall(text):
        name = unit.removesuffix("s")
        if name not in _UNITS_US:
            why = ", and months and years differ in length" if name in ("month", "quarter", "year") else ""
            raise DeclarationError(f"{about}: {unit!r} is none of the units, {', '.join(_UNITS_US)}{why}")
        length += int(number) * _UNITS_US[name]
    return length
