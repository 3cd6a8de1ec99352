"""Lengths of time, as they are written: ``'5 minutes'``, and what is behind INTERVAL."""

import re
from dataclasses import dataclass
from decimal import Decimal

from sqlglot import exp

_MICROS = {
    "microsecond": 1,
    "millisecond": 1_000,
    "second": 1_000_000,
    "minute": 60_000_000,
    "hour": 3_600_000_000,
    "day": 86_400_000_000,
    "week": 604_800_000_000,
}
_MONTHS = {"month": 1, "year": 12}
_PART = re.compile(r"\s*([+-]?\d+(?:\.\d{1,6})?)\s+([a-z]+?)s?(?=\s|$)")

DAY_MICROS = _MICROS["day"]


@dataclass(frozen=True, slots=True)
class Interval:
    """Months, or microseconds; never both, as in Spark's ANSI intervals. in_days: whether only days are named."""

    months: int
    micros: int
    in_days: bool


def micros_of(text: str) -> int | None:
    """The length in microseconds; ``None`` if it is none, or is of months."""
    interval = _read(text)
    return interval.micros if interval is not None and interval.months == 0 else None


def interval_of(node: exp.Expr) -> Interval | None:
    """What ``INTERVAL ...`` is, if it is written as one number and one unit, or as such pairs in quotes."""
    value, unit = node.this, node.args.get("unit")
    sign = ""
    if isinstance(value, exp.Neg):
        sign, value = "-", value.this
    if not isinstance(value, exp.Literal) or not (unit is None or isinstance(unit, exp.Var)):
        return None
    return _read(f"{sign}{value.this}" if unit is None else f"{sign}{value.this} {unit.name}")


def _read(text: str) -> Interval | None:
    text = re.sub(r"^\s*interval\b", "", text.lower()).rstrip()
    months = micros = at = 0
    units: set[str] = set()
    while at < len(text):
        part = _PART.match(text, at)
        if part is None or part[2] not in _MICROS | _MONTHS or ("." in part[1] and part[2] != "second"):
            return None
        units.add(part[2])
        months += int(part[1]) * _MONTHS[part[2]] if part[2] in _MONTHS else 0
        micros += int(Decimal(part[1]) * _MICROS[part[2]]) if part[2] in _MICROS else 0
        at = part.end()
    mixed = not units or (not units.isdisjoint(_MONTHS) and not units.isdisjoint(_MICROS))
    return None if mixed else Interval(months, micros, in_days=units <= {"day", "week"})
