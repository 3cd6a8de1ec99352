"""Tests of the clock: ``value op f(now())``, where ``f`` never goes down as time passes.

Such a test of a row changes at most twice: when the row begins to pass it, and when it no longer does. The plan has
``f`` as steps over whole numbers: microseconds of a TIMESTAMP, days of a DATE, and others. ``engine/clock.py`` finds
the two instants of each row. docs/internals/clock.md.
"""

from dataclasses import dataclass
from enum import StrEnum


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
class ClockOp:
    """All rows, each with the result of each test at the instant of the last epoch. One input, whose columns come
    first."""

    tests: tuple[ClockTest, ...]

    @property
    def outputs(self) -> frozenset[str]:
        """The names of the results."""
        return frozenset(test.output for test in self.tests)
