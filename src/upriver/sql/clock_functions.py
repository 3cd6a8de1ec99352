"""Functions of the clock that never go down as time passes: their comparisons with values of a row, and their values.

Any other function of the clock is computed from such values, like from columns.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import pyarrow as pa
from sqlglot import exp

from upriver.engine.zone_offsets import days_go_back
from upriver.errors import UserError
from upriver.plan.clock import ClockColumn, ClockStep, ClockStepKind, ClockTest, Comparison
from upriver.plan.relation import Scalar
from upriver.plan.types import is_date, is_instant, is_integer, is_wall_clock
from upriver.sql.casts import cast
from upriver.sql.clock import COMPARISONS, NOW, TODAY, has_clock, is_clock
from upriver.sql.logic import cast_type
from upriver.sql.operators import DAY_MICROS, Interval, interval_of
from upriver.sql.scalars import UTC_ZONES, Context, typed_name
from upriver.sql.scope import bare
from upriver.zones import zone_name

_TURNED = {
    Comparison.LESS: Comparison.MORE,
    Comparison.AT_MOST: Comparison.AT_LEAST,
    Comparison.AT_LEAST: Comparison.AT_MOST,
    Comparison.MORE: Comparison.LESS,
}
_SECOND = 1_000_000
_DAY = ClockStep(ClockStepKind.DAY)
_MIDNIGHT = ClockStep(ClockStepKind.MIDNIGHT)
_DATE, _LONG, _INT = pa.date32(), pa.int64(), pa.int32()
_WALL = pa.timestamp("us")
_DAYS_FAR = 100_000
"""A value of the clock moved by more days or months is computed like any other date, with Spark's errors."""
_CLOCK_UNITS = {"MICROSECOND": 1, "MILLISECOND": 1_000, "SECOND": _SECOND, "MINUTE": 60 * _SECOND}
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


def clock_test(context: Context, node: exp.Expr, value: Scalar, column: str, output: str) -> tuple[ClockTest, Scalar]:
    """The test of a comparison; and the value of the row, as it is compared. value: of :func:`tested`. column, output:
    names."""
    turned = has_clock(node.this)
    side = node.this if turned else node.expression
    found = _Functions(context).of(side)
    value, found = _alike(context, node, value, found)
    comparison = COMPARISONS[type(node)]
    comparison = _TURNED.get(comparison, comparison) if turned else comparison
    sql = side.sql("spark", normalize_functions=False).replace("`", "")
    return ClockTest(column, comparison, found.steps, zone_name(context.timezone), output, sql), value


def is_tested(context: Context, node: exp.Expr) -> bool:
    """Whether the expression is a function of the clock that never goes down."""
    return _found(context, node) is not None


def is_shown(context: Context, node: exp.Expr) -> bool:
    """Whether the expression is a function of the clock that :func:`clock_column` takes. It takes no sums of numbers,
    whose type depends on both."""
    found = _found(context, node)
    if found is None or (is_integer(found.type) and isinstance(node.unnest(), exp.Add | exp.Sub)):
        return False
    in_days = False
    for step in found.steps:
        far = _DAYS_FAR if in_days or step.kind is ClockStepKind.MONTHS else _DAYS_FAR * DAY_MICROS
        if step.kind in (ClockStepKind.MOVED, ClockStepKind.MONTHS) and abs(step.amount) > far:
            return False
        in_days = step.kind is not ClockStepKind.TIMES and (in_days or step.kind is ClockStepKind.DAY)
        in_days = in_days and step.kind is not ClockStepKind.MIDNIGHT
    return True


def _found(context: Context, node: exp.Expr) -> ClockValue | None:
    try:
        return _Functions(context).of(node.copy())
    except UserError:
        return None


def clock_column(context: Context, node: exp.Expr, output: str) -> ClockColumn:
    """The value as a column of this name."""
    found = _Functions(context).of(node.copy())
    sql = node.sql("spark", normalize_functions=False).replace("`", "")
    return ClockColumn(found.steps, zone_name(context.timezone), found.type, output, sql)


def _alike(context: Context, node: exp.Expr, value: Scalar, clock: ClockValue) -> tuple[Scalar, ClockValue]:
    """Both in the type in which Spark compares them."""
    if isinstance(value.constant, str):
        value = cast(context, node, value, clock.type)
    if is_integer(value.type) and is_integer(clock.type):
        return cast(context, node, value, _LONG), clock
    if is_date(value.type) and is_date(clock.type):
        return value, clock
    if is_date(clock.type) and is_instant(value.type):
        return value, clock.then(value.type, _MIDNIGHT)
    if is_date(clock.type) and is_wall_clock(value.type):
        return value, clock.then(value.type, ClockStep(ClockStepKind.TIMES, DAY_MICROS))
    moments = [type for type in (value.type, clock.type) if is_instant(type) or is_wall_clock(type)]
    if len(moments) == 2 or (moments and is_date(value.type)):
        instant = next((type for type in moments if is_instant(type)), moments[0])
        return cast(context, node, value, instant), clock
    what = f"comparing {typed_name(value)} with {typed_name(Scalar('', clock.type))} of the clock"
    raise context.unsupported(node, what, "Write the CAST that you mean, around the value of the row.")


class _Functions:
    """Functions of the clock that never go down as time passes."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._instant = pa.timestamp("us", tz=context.timezone)

    def of(self, node: exp.Expr) -> ClockValue:
        """Raises UnsupportedSql for all others."""
        node = bare(node)
        if is_clock(node):
            return self._now(node)
        if isinstance(node, exp.Cast) and not isinstance(node, exp.TryCast):
            return self._cast(node, self.of(node.this), cast_type(self._context, node.args["to"]))
        if isinstance(node, exp.Add | exp.Sub):
            return self._moved(node)
        if isinstance(node, exp.Anonymous) and node.name.lower() in _CALLED and node.expressions:
            return _CALLED[node.name.lower()](self, node)
        raise self._unsupported(node)

    def _now(self, node: exp.Expr) -> ClockValue:
        name = node.name.lower()
        now = ClockValue(self._instant, ())
        if name in NOW:
            return now
        if name in TODAY:
            return self._day(node, now)
        if name == "unix_timestamp":
            return now.then(_LONG, ClockStep(ClockStepKind.DIVIDED, _SECOND))
        self._need_utc(node, "localtimestamp(), which goes back when summer time ends,")
        return now.then(_WALL)

    def _unsupported(self, node: exp.Expr) -> Exception:
        what = f"{node.sql('spark', normalize_functions=False)}, which depends on the clock,"
        instead = (
            "Compare the clock itself, moved by an interval: at > now() - INTERVAL 1 HOUR, d < current_date() - 7."
        )
        if node.find(exp.Column):
            what = f"{node.sql('spark', normalize_functions=False)}, which mixes the clock and the row,"
            instead = "Put the row's columns on the other side: at + INTERVAL 1 HOUR > now()."
        return self._context.unsupported(node, what, instead)

    def _need_utc(self, node: exp.Expr, what: str) -> None:
        if self._context.timezone.upper() not in UTC_ZONES:
            self._context.need_utc(node, what)

    def _day(self, node: exp.Expr, value: ClockValue) -> ClockValue:
        if is_date(value.type):
            return value
        if is_instant(value.type) and days_go_back(zone_name(self._context.timezone)):
            what = f"the date in {self._context.timezone}, where a day begins twice when summer time ends,"
            raise self._context.unsupported(node, what, "Set spark.sql.session.timeZone to UTC.")
        return value.then(_DATE, _DAY)

    def _cast(self, node: exp.Expr, value: ClockValue, to: pa.DataType) -> ClockValue:
        if is_date(to):
            return self._day(node, self._moment(node, value))
        if is_instant(to):
            value = value if is_date(value.type) else self._moment(node, value)
            return value.then(self._instant, *([_MIDNIGHT] if is_date(value.type) else []))
        if is_wall_clock(to):
            if is_date(value.type):
                return value.then(_WALL, ClockStep(ClockStepKind.TIMES, DAY_MICROS))
            self._need_utc(node, "a cast of the clock to TIMESTAMP_NTZ")
            return self._moment(node, value).then(_WALL)
        if to == _LONG and is_instant(value.type):
            return value.then(_LONG, ClockStep(ClockStepKind.DIVIDED, _SECOND))
        raise self._unsupported(node)

    def _moment(self, node: exp.Expr, value: ClockValue) -> ClockValue:
        if is_date(value.type) or is_instant(value.type) or is_wall_clock(value.type):
            return value
        raise self._unsupported(node)

    def _moved(self, node: exp.Expr) -> ClockValue:
        left, right = node.this, node.expression
        if isinstance(node, exp.Add) and not has_clock(left):
            left, right = right, left
        if not has_clock(left) or has_clock(right):
            raise self._unsupported(node)
        value, sign = self.of(left), -1 if isinstance(node, exp.Sub) else 1
        right = bare(right)
        if isinstance(right, exp.Interval):
            interval = interval_of(right)
            if interval is None:
                what = "this INTERVAL"
                raise self._context.unsupported(node, what, "Give it one number and one unit: INTERVAL '5' MINUTE.")
            return self._by(node, value, interval, sign)
        if is_date(value.type) or is_integer(value.type):
            return value.then(value.type, ClockStep(ClockStepKind.MOVED, sign * self._number(node, right)))
        raise self._unsupported(node)

    def _by(self, node: exp.Expr, value: ClockValue, interval: Interval, sign: int) -> ClockValue:
        if is_date(value.type):
            if interval.months:
                return value.then(_DATE, ClockStep(ClockStepKind.MONTHS, sign * interval.months))
            if interval.in_days:
                return value.then(_DATE, ClockStep(ClockStepKind.MOVED, sign * (interval.micros // DAY_MICROS)))
            raise self._context.unsupported(node, "DATE and INTERVAL of less than days", "Write now() instead.")
        if not (is_instant(value.type) or is_wall_clock(value.type)):
            raise self._unsupported(node)
        if interval.months:
            what = "the time of day some months ago, which goes back at the end of a month,"
            raise self._context.unsupported(node, what, "Write current_date() - INTERVAL 1 MONTH, or INTERVAL 30 DAYS.")
        if abs(interval.micros) >= DAY_MICROS:
            self._need_utc(node, "TIMESTAMP and INTERVAL of days or more")
        return value.then(value.type, ClockStep(ClockStepKind.MOVED, sign * interval.micros))

    def _number(self, node: exp.Expr, number: exp.Expr) -> int:
        value = self._context.translate(number)
        if isinstance(value.constant, bool) or not isinstance(value.constant, int):
            what = f"the clock moved by {number.sql('spark')}"
            raise self._context.unsupported(node, what, "Move it by a whole number, as it is written.")
        return value.constant

    # Functions

    def days_more(self, node: exp.Expr, sign: int) -> ClockValue:
        """date_add, date_sub"""
        value = self._day(node, self._moment(node, self._operand(node, 2)))
        return value.then(_DATE, ClockStep(ClockStepKind.MOVED, sign * self._number(node, node.expressions[1])))

    def months_more(self, node: exp.Expr) -> ClockValue:
        """add_months"""
        value = self._day(node, self._moment(node, self._operand(node, 2)))
        return value.then(_DATE, ClockStep(ClockStepKind.MONTHS, self._number(node, node.expressions[1])))

    def date(self, node: exp.Expr) -> ClockValue:
        """date, to_date"""
        return self._cast(node, self._operand(node, 1), _DATE)

    def timestamp(self, node: exp.Expr) -> ClockValue:
        """timestamp, to_timestamp"""
        return self._cast(node, self._operand(node, 1), self._instant)

    def units(self, node: exp.Expr, micros: int) -> ClockValue:
        """unix_seconds and its kin"""
        value = self._operand(node, 1)
        if not is_instant(value.type):
            raise self._unsupported(node)
        return value.then(_LONG, ClockStep(ClockStepKind.DIVIDED, micros))

    def day_number(self, node: exp.Expr) -> ClockValue:
        """unix_date"""
        return self._day(node, self._moment(node, self._operand(node, 1))).then(_INT)

    def year(self, node: exp.Expr) -> ClockValue:
        value = self._day(node, self._moment(node, self._operand(node, 1)))
        return value.then(_INT, ClockStep(ClockStepKind.YEAR))

    def last_day(self, node: exp.Expr) -> ClockValue:
        value = self._day(node, self._moment(node, self._operand(node, 1)))
        first, next = ClockStep(ClockStepKind.MONTH_OF, 1), ClockStep(ClockStepKind.MONTHS, 1)
        return value.then(_DATE, first, next, ClockStep(ClockStepKind.MOVED, -1))

    def trunc(self, node: exp.Expr) -> ClockValue:
        """trunc(date, unit)"""
        value = self._day(node, self._moment(node, self._operand(node, 2)))
        return value.then(_DATE, self._unit(node, self._text(node, node.expressions[1])))

    def date_trunc(self, node: exp.Expr) -> ClockValue:
        """date_trunc(unit, moment)"""
        if len(node.expressions) != 2:
            raise self._unsupported(node)
        unit = self._text(node, node.expressions[0])
        value = self._cast(node, self.of(node.expressions[1]), self._instant)
        if unit in _CLOCK_UNITS or unit == "HOUR":
            if unit in ("MINUTE", "HOUR"):
                self._need_utc(node, f"date_trunc() of the clock to {unit}")
            micros = _CLOCK_UNITS.get(unit, 3_600 * _SECOND)
            steps = [ClockStep(kind, micros) for kind in (ClockStepKind.DIVIDED, ClockStepKind.TIMES)]
            return value.then(self._instant, *steps)
        day = self._day(node, value)
        if unit not in ("DAY", "DD"):
            day = day.then(_DATE, self._unit(node, unit))
        return day.then(self._instant, _MIDNIGHT)

    def _unit(self, node: exp.Expr, unit: str) -> ClockStep:
        if unit == "WEEK":
            return ClockStep(ClockStepKind.WEEK_OF)
        if unit not in _MONTH_UNITS:
            units = ", ".join(["WEEK", *_MONTH_UNITS])
            raise self._context.unsupported(node, f"the unit {unit!r}", f"Take one of {units}.")
        return ClockStep(ClockStepKind.MONTH_OF, _MONTH_UNITS[unit])

    def _text(self, node: exp.Expr, text: exp.Expr) -> str:
        if not isinstance(text, exp.Literal) or not text.is_string:
            raise self._unsupported(node)
        return str(text.this).upper()

    def _operand(self, node: exp.Expr, count: int) -> ClockValue:
        if len(node.expressions) != count:
            raise self._unsupported(node)
        return self.of(node.expressions[0])


_CALLED: Mapping[str, Callable[[_Functions, exp.Expr], ClockValue]] = MappingProxyType(
    {
        "date_add": lambda functions, node: functions.days_more(node, 1),
        "dateadd": lambda functions, node: functions.days_more(node, 1),
        "date_sub": lambda functions, node: functions.days_more(node, -1),
        "add_months": _Functions.months_more,
        "date": _Functions.date,
        "to_date": _Functions.date,
        "timestamp": _Functions.timestamp,
        "to_timestamp": _Functions.timestamp,
        "unix_timestamp": lambda functions, node: functions.units(node, _SECOND),
        "unix_seconds": lambda functions, node: functions.units(node, _SECOND),
        "unix_millis": lambda functions, node: functions.units(node, 1_000),
        "unix_micros": lambda functions, node: functions.units(node, 1),
        "unix_date": _Functions.day_number,
        "year": _Functions.year,
        "last_day": _Functions.last_day,
        "trunc": _Functions.trunc,
        "date_trunc": _Functions.date_trunc,
    }
)
