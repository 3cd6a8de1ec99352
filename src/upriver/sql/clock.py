"""The clock in Spark's analysed plans: which comparisons are tests of it, and which expressions are values of it.

A function of the clock that never goes down as time passes can be compared with a value of a row:
``value op f(now())``. It can be a value itself: ``f(now())``. Any other function of the clock is computed from such
values, like from columns.

Differences such as ``datediff(current_date(), d) < 7`` are ``current_date() < date_add(d, 7)``.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import pyarrow as pa

from upriver.engine.zone_offsets import days_go_back
from upriver.plan.clock import ClockStep, ClockStepKind, Comparison
from upriver.plan.types import is_date, is_instant, is_integer, is_wall_clock
from upriver.sql.expressions import CLOCKS, interval_of, mode
from upriver.sql.functions.arithmetic import DAY_MICROS
from upriver.sql.functions.scalars import UTC_ZONES
from upriver.sql.tree import TreeNode
from upriver.zones import zone_name

COMPARISONS: Mapping[str, Comparison] = {
    "EqualTo": Comparison.EQUAL,
    "GreaterThan": Comparison.MORE,
    "GreaterThanOrEqual": Comparison.AT_LEAST,
    "LessThan": Comparison.LESS,
    "LessThanOrEqual": Comparison.AT_MOST,
}
TURNED: Mapping[Comparison, Comparison] = {
    Comparison.LESS: Comparison.MORE,
    Comparison.AT_MOST: Comparison.AT_LEAST,
    Comparison.AT_LEAST: Comparison.AT_MOST,
    Comparison.MORE: Comparison.LESS,
}
_SECOND = 1_000_000
_DATE, _LONG, _INT = pa.date32(), pa.int64(), pa.int32()
_DAY, _MIDNIGHT = ClockStep(ClockStepKind.DAY), ClockStep(ClockStepKind.MIDNIGHT)
_DAYS_FAR = 100_000
"""A value of the clock moved by more days or months is computed like any other date, with Spark's errors."""
_CLOCK_UNITS = {
    "MICROSECOND": 1,
    "MILLISECOND": 1_000,
    "SECOND": _SECOND,
    "MINUTE": 60 * _SECOND,
    "HOUR": 3_600 * _SECOND,
}
_UNITS_OF_UTC = frozenset({"MINUTE", "HOUR"})
"""Units that begin elsewhere in a zone whose offset has minutes or seconds."""
_MONTH_UNITS = {
    **dict.fromkeys(("MONTH", "MON", "MM"), 1),
    "QUARTER": 3,
    **dict.fromkeys(("YEAR", "YYYY", "YY"), 12),
}


@dataclass(frozen=True, slots=True)
class ClockValue:
    """A function of the clock. type: of its values. steps: how they are computed from the instant."""

    type: pa.DataType
    steps: tuple[ClockStep, ...]

    def then(self, type: pa.DataType, *steps: ClockStep) -> "ClockValue":
        return ClockValue(type, (*self.steps, *steps))


@dataclass(frozen=True, slots=True)
class ClockComparison:
    """``value comparison clock``. value: of a row. written: the clock as it is written."""

    value: TreeNode
    comparison: Comparison
    clock: ClockValue
    written: TreeNode


# Finding -------------------------------------------------------------------------------------------------------------


def names_clock(node: TreeNode) -> bool:
    """Whether the clock is anywhere in an expression."""
    return any(one.kind in CLOCKS for one in node.walk())


def has_clock(node: TreeNode) -> bool:
    """Whether a value is computed from the clock itself: not from comparisons with it alone."""
    if node.kind in COMPARISONS or node.kind == "In":
        return False
    return node.kind in CLOCKS or any(map(has_clock, node.children))


def comparison_of(node: TreeNode, zone: str) -> ClockComparison | None:
    """What a node compares with the clock; ``None`` if it is no such comparison, or of a function that may go down."""
    if node.kind not in COMPARISONS or has_clock(node.children[0]) == has_clock(node.children[1]):
        return None
    value, clock = node.children
    comparison = COMPARISONS[node.kind]
    if has_clock(value):
        value, clock, comparison = clock, value, TURNED.get(comparison, comparison)
    while clock.references:
        found = _parted(clock, value, zone)
        if found is None:
            return None
        clock, value, is_turned = found
        comparison = TURNED.get(comparison, comparison) if is_turned else comparison
    found_clock = clock_value(clock, zone)
    if found_clock is None or not _are_alike(value.type, found_clock.type):
        return None
    return ClockComparison(value, comparison, found_clock, clock)


def _are_alike(value: pa.DataType | None, clock: pa.DataType) -> bool:
    """Whether they are compared as whole numbers, dates or times. Spark has cast both to one type."""
    if value is None:
        return False
    kinds = (is_integer, is_date, is_instant, is_wall_clock)
    return any(kind(value) and kind(clock) for kind in kinds)


# What is of the row to the other side --------------------------------------------------------------------------------


def _parted(mixed: TreeNode, result: TreeNode, zone: str) -> tuple[TreeNode, TreeNode, bool] | None:
    """The part of a sum or a difference that has the clock; what it is compared with instead, if the whole is compared
    with ``result``; and whether the part is taken off, so that the comparison turns."""
    how = _PARTED.get(mixed.kind)
    if how is None or len(mixed.children) != 2:
        return None
    first, second = mixed.children
    if has_clock(first) == has_clock(second):
        return None
    clock, rest, is_taken_off = (first, second, False) if has_clock(first) else (second, first, mixed.kind != "Add")
    value = how(mixed, rest, result, is_taken_off, zone)
    return None if value is None else (clock, value, is_taken_off)


def _of_numbers(mixed: TreeNode, rest: TreeNode, result: TreeNode, is_taken_off: bool, zone: str) -> TreeNode | None:
    """Of ``clock + rest``, ``clock - rest`` or ``rest - clock``, the value that the clock is compared with."""
    if mixed.type is None or not is_integer(mixed.type) or mode(mixed) != "ANSI":
        return None
    if mixed.kind == "Add":
        return replace(mixed, kind="Subtract", name="subtract", children=(result, rest))
    kind = "Subtract" if is_taken_off else "Add"
    return replace(mixed, kind=kind, name=kind.lower(), children=(rest, result))


def _of_days(mixed: TreeNode, rest: TreeNode, result: TreeNode, is_taken_off: bool, zone: str) -> TreeNode | None:
    """Of ``datediff(clock, rest)`` or ``datediff(rest, clock)``."""
    return _date_moved(rest, result, is_taken_off)


def _of_moved_day(mixed: TreeNode, rest: TreeNode, result: TreeNode, is_taken_off: bool, zone: str) -> TreeNode | None:
    """Of a date and a number of days, the date that the clock is compared with."""
    if is_taken_off or result.type is None or not is_date(result.type):
        return None
    return _date_moved(result, rest, is_earlier=mixed.kind == "DateAdd")


def _date_moved(date: TreeNode, days: TreeNode, is_earlier: bool) -> TreeNode:
    kind, name = ("DateSub", "date_sub") if is_earlier else ("DateAdd", "date_add")
    return TreeNode(kind, {}, (date, days), _DATE, name=name, place=date.place, end=date.end)


def _of_dates(mixed: TreeNode, rest: TreeNode, result: TreeNode, is_taken_off: bool, zone: str) -> TreeNode | None:
    """Of a difference of dates, which is an interval."""
    length = interval_of(result)
    if length is None or length.micros % DAY_MICROS:
        return None
    return _date_moved(rest, _literal(length.micros // DAY_MICROS, _INT, "integer"), is_taken_off)


def _of_moments(mixed: TreeNode, rest: TreeNode, result: TreeNode, is_taken_off: bool, zone: str) -> TreeNode | None:
    """Of a difference of times, which is that of their wall clocks: elsewhere than in UTC it may go down."""
    length = interval_of(result)
    if length is None or rest.type is None or not _is_utc(zone):
        return None
    by = _literal(-length.micros if is_taken_off else length.micros, pa.duration("us"), "interval day to second")
    kind, name = "TimestampAddInterval", "timestampaddinterval"
    return TreeNode(kind, {}, (rest, by), rest.type, name=name, place=rest.place, end=rest.end)


def _literal(value: int, type: pa.DataType, written: str) -> TreeNode:
    return TreeNode("Literal", {"value": value, "dataType": written}, type=type, nullable=False, name="literal")


_PARTED: Mapping[str, Callable[[TreeNode, TreeNode, TreeNode, bool, str], TreeNode | None]] = MappingProxyType(
    {
        "Add": _of_numbers,
        "DateAdd": _of_moved_day,
        "DateDiff": _of_days,
        "DateSub": _of_moved_day,
        "Subtract": _of_numbers,
        "SubtractDates": _of_dates,
        "SubtractTimestamps": _of_moments,
    }
)


# Functions that never go down ----------------------------------------------------------------------------------------


def shown_value(node: TreeNode, zone: str) -> ClockValue | None:
    """The function of the clock that a node is, if its values are kept as a column. Sums of whole numbers are not: they
    may overflow."""
    found = clock_value(node, zone)
    if found is None or (is_integer(found.type) and node.kind in ("Add", "Subtract")):
        return None
    in_days = False
    for step in found.steps:
        far = _DAYS_FAR if in_days or step.kind is ClockStepKind.MONTHS else _DAYS_FAR * DAY_MICROS
        if step.kind in (ClockStepKind.MOVED, ClockStepKind.MONTHS) and abs(step.amount) > far:
            return None
        in_days = step.kind is not ClockStepKind.TIMES and (in_days or step.kind is ClockStepKind.DAY)
        in_days = in_days and step.kind is not ClockStepKind.MIDNIGHT
    return found


def clock_value(node: TreeNode, zone: str) -> ClockValue | None:
    """The function of the clock that a node is; ``None`` for any that may go down."""
    rule = _RULES.get(node.kind)
    return None if rule is None else rule(node, zone)


def _is_utc(zone: str) -> bool:
    return zone.upper() in UTC_ZONES


def _operand(node: TreeNode, zone: str, place: int = 0) -> ClockValue | None:
    return clock_value(node.children[place], zone)


def _now(node: TreeNode, zone: str) -> ClockValue | None:
    return ClockValue(pa.timestamp("us", tz=zone), ())


def _today(node: TreeNode, zone: str) -> ClockValue | None:
    return _as_day(ClockValue(pa.timestamp("us", tz=zone), ()), zone)


def _wall_clock(node: TreeNode, zone: str) -> ClockValue | None:
    return ClockValue(pa.timestamp("us"), ()) if _is_utc(zone) else None


def _as_day(value: ClockValue, zone: str) -> ClockValue | None:
    """The day of a moment. In some zones a day begins twice when summer time ends."""
    if is_date(value.type):
        return value
    if not (is_instant(value.type) or is_wall_clock(value.type)):
        return None
    if is_instant(value.type) and days_go_back(zone_name(zone)):
        return None
    return value.then(_DATE, _DAY)


def _cast(node: TreeNode, zone: str) -> ClockValue | None:
    value, to = _operand(node, zone), node.type
    return None if value is None or to is None else _as_type(value, to, zone)


def _as_type(value: ClockValue, to: pa.DataType, zone: str) -> ClockValue | None:
    of_instant, of_wall_clock = is_instant(value.type), is_wall_clock(value.type)
    if is_date(to):
        return _as_day(value, zone)
    if is_instant(to):
        if is_date(value.type):
            return value.then(to, _MIDNIGHT)
        return value.then(to) if of_instant or (of_wall_clock and _is_utc(zone)) else None
    if is_wall_clock(to):
        if is_date(value.type):
            return value.then(to, ClockStep(ClockStepKind.TIMES, DAY_MICROS))
        return value.then(to) if of_wall_clock or (of_instant and _is_utc(zone)) else None
    if to == _LONG and of_instant:
        return value.then(_LONG, ClockStep(ClockStepKind.DIVIDED, _SECOND))
    if is_integer(to) and is_integer(value.type) and to.bit_width >= value.type.bit_width:
        return value.then(to)
    return None


def _days_more(sign: int) -> "_Rule":
    """date_add, date_sub"""

    def rule(node: TreeNode, zone: str) -> ClockValue | None:
        value, days = _day(node, zone), _whole(node.children[1])
        if value is None or days is None:
            return None
        return value.then(_DATE, ClockStep(ClockStepKind.MOVED, sign * days))

    return rule


def _months_more(node: TreeNode, zone: str) -> ClockValue | None:
    value, months = _day(node, zone), _whole(node.children[1])
    return None if value is None or months is None else value.then(_DATE, ClockStep(ClockStepKind.MONTHS, months))


def _day(node: TreeNode, zone: str, place: int = 0) -> ClockValue | None:
    value = _operand(node, zone, place)
    return None if value is None else _as_day(value, zone)


def _whole(node: TreeNode) -> int | None:
    """A whole number that is written out."""
    if node.kind == "UnaryMinus":
        number = _whole(node.children[0])
        return None if number is None else -number
    if node.kind == "Cast" and node.type is not None and is_integer(node.type):
        return _whole(node.children[0])
    if node.kind == "ExtractANSIIntervalDays":
        length = interval_of(node.children[0])
        return None if length is None else int(length.micros / DAY_MICROS)
    value = node.fields["value"] if node.kind == "Literal" else None
    is_number = isinstance(value, int) and node.type is not None and is_integer(node.type)
    return value if is_number else None


def _moved(node: TreeNode, zone: str) -> ClockValue | None:
    """A time and an interval. The time of day some months ago goes back at the end of a month."""
    value, length = _operand(node, zone), interval_of(node.children[1])
    if value is None or length is None:
        return None
    if is_date(value.type):
        return value.then(_DATE, ClockStep(ClockStepKind.MONTHS, length.months)) if length.months else None
    if length.months or (abs(length.micros) >= DAY_MICROS and not _is_utc(zone)):
        return None
    return value.then(value.type, ClockStep(ClockStepKind.MOVED, length.micros))


def _number_moved(sign: int) -> "_Rule":
    """Whole numbers and a constant."""

    def rule(node: TreeNode, zone: str) -> ClockValue | None:
        first, second = node.children
        if sign > 0 and not has_clock(first):
            first, second = second, first
        value, number = clock_value(first, zone), _whole(second)
        if value is None or number is None or not is_integer(value.type):
            return None
        return value.then(value.type, ClockStep(ClockStepKind.MOVED, sign * number))

    return rule


def _read(node: TreeNode, zone: str) -> ClockValue | None:
    """to_date, to_timestamp"""
    value = _operand(node, zone)
    if value is None or node.type is None or node.fields.get("format") is not None:
        return None
    return _as_type(value, node.type, zone)


def _units(micros: int) -> "_Rule":
    """unix_seconds and its kin"""

    def rule(node: TreeNode, zone: str) -> ClockValue | None:
        value = _operand(node, zone)
        if value is None or not is_instant(value.type):
            return None
        return value.then(_LONG, ClockStep(ClockStepKind.DIVIDED, micros))

    return rule


def _of_day(type: pa.DataType, *steps: ClockStep) -> "_Rule":
    """A function of a day."""

    def rule(node: TreeNode, zone: str) -> ClockValue | None:
        value = _day(node, zone)
        return None if value is None else value.then(type, *steps)

    return rule


def _truncated_date(node: TreeNode, zone: str) -> ClockValue | None:
    value, unit = _day(node, zone), _unit(node.children[1])
    return None if value is None or unit is None else value.then(_DATE, unit)


def _truncated_time(node: TreeNode, zone: str) -> ClockValue | None:
    text, value = _text(node.children[0]), _operand(node, zone, 1)
    instant = None if value is None else _as_type(value, pa.timestamp("us", tz=zone), zone)
    if instant is None:
        return None
    if text in _CLOCK_UNITS:
        if text in _UNITS_OF_UTC and not _is_utc(zone):
            return None
        steps = [ClockStep(kind, _CLOCK_UNITS[text]) for kind in (ClockStepKind.DIVIDED, ClockStepKind.TIMES)]
        return instant.then(instant.type, *steps)
    day, unit = _as_day(instant, zone), _unit(node.children[0])
    if day is None or (unit is None and text not in ("DAY", "DD")):
        return None
    return (day if unit is None else day.then(_DATE, unit)).then(instant.type, _MIDNIGHT)


def _unit(node: TreeNode) -> ClockStep | None:
    text = _text(node)
    if text == "WEEK":
        return ClockStep(ClockStepKind.WEEK_OF)
    return ClockStep(ClockStepKind.MONTH_OF, _MONTH_UNITS[text]) if text in _MONTH_UNITS else None


def _text(node: TreeNode) -> str:
    value: Any = node.fields["value"] if node.kind == "Literal" else None
    return value.upper() if isinstance(value, str) else ""


def _same(node: TreeNode, zone: str) -> ClockValue | None:
    return _operand(node, zone)


_Rule = Callable[[TreeNode, str], ClockValue | None]
_RULES: Mapping[str, _Rule] = MappingProxyType(
    {
        "Add": _number_moved(1),
        "AddMonths": _months_more,
        "Cast": _cast,
        "CurrentDate": _today,
        "CurrentTimestamp": _now,
        "DateAdd": _days_more(1),
        "DateAddYMInterval": _moved,
        "DateSub": _days_more(-1),
        "DatetimeSub": _same,
        "KnownNotNull": _same,
        "KnownNullable": _same,
        "LastDay": _of_day(
            _DATE,
            ClockStep(ClockStepKind.MONTH_OF, 1),
            ClockStep(ClockStepKind.MONTHS, 1),
            ClockStep(ClockStepKind.MOVED, -1),
        ),
        "LocalTimestamp": _wall_clock,
        "Now": _now,
        "ParseToDate": _read,
        "ParseToTimestamp": _read,
        "Subtract": _number_moved(-1),
        "TimestampAddInterval": _moved,
        "TruncDate": _truncated_date,
        "TruncTimestamp": _truncated_time,
        "UnixDate": _of_day(_INT),
        "UnixMicros": _units(1),
        "UnixMillis": _units(1_000),
        "UnixSeconds": _units(_SECOND),
        "UnixTimestamp": _units(_SECOND),
        "ToUnixTimestamp": _units(_SECOND),
        "Year": _of_day(_INT, ClockStep(ClockStepKind.YEAR)),
    }
)
"""By Catalyst's class."""
