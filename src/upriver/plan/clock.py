"""Tests of the clock, ``value op f(now())``, and values of the clock, ``f(now())``, where ``f`` never goes down as time
passes.

A test of a row changes at most twice: when the row begins to pass it, and when it no longer does. A value changes each
time that ``f`` goes up, for all rows at once. The plan has ``f`` as steps over whole numbers: microseconds of a
TIMESTAMP, days of a DATE, and others. ``engine/clock.py`` finds the instants. docs/internals/clock.md.
"""

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum

import pyarrow as pa


class ClockStepKind(StrEnum):
    """What a step makes of its number. ``n`` is the step's ``amount``, and days are those since 1970.

    MOVED: n more. DIVIDED: whole units of n. TIMES: n times as much. DAY: the day of an instant, in the zone.
    MIDNIGHT: the instant at which a day begins, in the zone. MONTHS: the day n months later, as add_months(). MONTH_OF:
    the first day of the day's unit of n months. WEEK_OF: the Monday of the day. YEAR: the day's year.
    """

    MOVED = "moved"
    DIVIDED = "divided"
    TIMES = "times"
    DAY = "day"
    MIDNIGHT = "midnight"
    MONTHS = "months"
    MONTH_OF = "month_of"
    WEEK_OF = "week_of"
    YEAR = "year"


@dataclass(frozen=True, slots=True)
class ClockStep:
    kind: ClockStepKind
    amount: int = 0


class Comparison(StrEnum):
    LESS = "<"
    AT_MOST = "<="
    EQUAL = "="
    UNEQUAL = "<>"
    AT_LEAST = ">="
    MORE = ">"


@dataclass(frozen=True, slots=True)
class ClockTest:
    """``column comparison f(now())``. column: of the input, a TIMESTAMP, DATE or whole number. steps: ``f``, from the
    epoch's instant in microseconds since 1970 on. zone: for the steps that need one. output: the BOOLEAN column that
    says whether a row passes; NULL where ``column`` is. sql: of ``f(now())``, for ``explain``."""

    column: str
    comparison: Comparison
    steps: tuple[ClockStep, ...]
    zone: str
    output: str
    sql: str


@dataclass(frozen=True, slots=True)
class ClockColumn:
    """``f(now())`` as a column. steps, zone, sql: as of a :class:`ClockTest`. type: a TIMESTAMP, DATE or whole number.
    output: the column; never NULL."""

    steps: tuple[ClockStep, ...]
    zone: str
    type: pa.DataType
    output: str
    sql: str

    @property
    def pace(self) -> str:
        """How often it changes, in words."""
        found = [_PACES[step.kind] for step in self.steps if step.kind in _PACES]
        units = [step.amount for step in self.steps if step.kind is ClockStepKind.DIVIDED]
        if found:
            return min(found, key=_SLOWEST_FIRST.index)
        return f"every {units[0] / 1_000_000:g} s" if units else _EACH_EPOCH


_EACH_EPOCH = "in each epoch"
_PACES = {
    ClockStepKind.YEAR: "once a year",
    ClockStepKind.MONTH_OF: "once a month or less often",
    ClockStepKind.WEEK_OF: "once a week",
    ClockStepKind.DAY: "once a day",
}
_SLOWEST_FIRST = tuple(_PACES.values())


@dataclass(frozen=True, slots=True)
class ClockOp:
    """All rows, each with the result of each test, and with each value, at the instant of the last epoch. One input,
    whose columns come first, then those of ``tests``, then those of ``columns``."""

    tests: tuple[ClockTest, ...]
    columns: tuple[ClockColumn, ...] = ()

    @property
    def outputs(self) -> frozenset[str]:
        """The names of the results."""
        return frozenset(field.name for field in self.fields)

    def only(self, outputs: Collection[str]) -> "ClockOp":
        """With these results alone."""
        return ClockOp(
            tuple(test for test in self.tests if test.output in outputs),
            tuple(column for column in self.columns if column.output in outputs),
        )

    @property
    def fields(self) -> tuple[pa.Field, ...]:
        """Names and types of the results."""
        passes = (pa.field(test.output, pa.bool_()) for test in self.tests)
        return (*passes, *(pa.field(column.output, column.type) for column in self.columns))
