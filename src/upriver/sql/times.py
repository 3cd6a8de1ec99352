"""Dates and times, and ``date_format``.

``date_format`` takes patterns of letters that mean the same to Java and to DuckDB's strftime. A TIMESTAMP has a date
and an hour only in a time zone: functions that need them require a session in UTC.
"""

import re

import pyarrow as pa
from sqlglot import exp

from upriver.plan.relation import Scalar
from upriver.plan.source import ELSEWHERE
from upriver.plan.types import is_date, is_instant, is_wall_clock
from upriver.sql.casts import cast
from upriver.sql.scalars import Context, Rule, macro, opaque, strict, string_sql, typed_name
from upriver.sql.signatures import (
    RAISES,
    Function,
    OperandKind,
    Operands,
    Special,
    constant_text,
    take,
)

_INT, _LONG, _DATE = pa.int32(), pa.int64(), pa.date32()
_MILLIONTH = "CAST('0.000001' AS DECIMAL(7, 6))"
_DATE_UNITS = {
    **dict.fromkeys(("YEAR", "YYYY", "YY"), "year"),
    **dict.fromkeys(("MONTH", "MON", "MM"), "month"),
    "QUARTER": "quarter",
    "WEEK": "week",
}
_CLOCK_UNITS = _DATE_UNITS | {
    **dict.fromkeys(("DAY", "DD"), "day"),
    "HOUR": "hour",
    "MINUTE": "minute",
    "SECOND": "second",
    "MILLISECOND": "millisecond",
    "MICROSECOND": "microsecond",
}


def _clock(context: Context, node: exp.Expr, what: str, value: Scalar) -> Scalar:
    """The wall clock of a TIMESTAMP; what is read from it, for a refusal."""
    clock = take(context, node, OperandKind.CLOCK, value)
    if is_instant(clock.type):
        context.need_utc(node, what)
    return clock


def _clock_part(unit: str) -> Special:
    def rule(context: Context, node: exp.Expr, operands: Operands) -> Scalar:
        clock = _clock(context, node, f"the {unit} of a TIMESTAMP", operands[0])
        return strict(f"CAST({unit}({clock.sql}) AS INTEGER)", _INT, (clock,))

    return rule


_OF_DATE = {
    **dict.fromkeys(("year", "y", "years", "yr", "yrs"), "year({0})"),
    **dict.fromkeys(("quarter", "qtr"), "quarter({0})"),
    **dict.fromkeys(("month", "mon", "mons", "months"), "month({0})"),
    **dict.fromkeys(("week", "w", "weeks"), "weekofyear({0})"),
    **dict.fromkeys(("day", "d", "days"), "day({0})"),
    **dict.fromkeys(("dayofweek", "dow"), "dayofweek({0}) + 1"),
    **dict.fromkeys(("dayofweek_iso", "dow_iso"), "isodow({0})"),
    "doy": "dayofyear({0})",
    "yearofweek": "isoyear({0})",
}
_OF_CLOCK = {
    **dict.fromkeys(("hour", "h", "hours", "hr", "hrs"), "hour"),
    **dict.fromkeys(("minute", "m", "min", "mins", "minutes"), "minute"),
}
_SECONDS = ("second", "s", "sec", "secs", "seconds")


def _of_date(sql: str) -> str:
    return f"CAST({sql} AS INTEGER)"


def _part(context: Context, node: exp.Expr, name: str, value: Scalar) -> Scalar:
    """``EXTRACT(name FROM value)``."""
    field = name.lower()
    if field in _OF_CLOCK:
        return _clock_part(_OF_CLOCK[field])(context, node, (value,))
    if field in _SECONDS:
        clock = _clock(context, node, "the second of a TIMESTAMP", value)
        return strict(f"CAST(microsecond({clock.sql}) * {_MILLIONTH} AS DECIMAL(8, 6))", pa.decimal128(8, 6), (clock,))
    if field not in _OF_DATE:
        fields = "year, quarter, month, week, day, dayofweek, doy, hour, minute, second"
        raise context.unsupported(node, f"the field {name}", f"Take one of {fields}.")
    day = take(context, node, OperandKind.DATE, value)
    return strict(_of_date(_OF_DATE[field]).format(day.sql), _INT, (day,))


def _extract(context: Context, node: exp.Expr) -> Scalar:
    context.only(node, "this", "expression")
    return _part(context, node, node.this.name, context.translate(node.expression))


def _date_part_of(context: Context, node: exp.Expr, operands: Operands) -> Scalar:
    return _part(context, node, constant_text(context, node, "date_part", operands[0]), operands[1])


def _truncated_date(context: Context, node: exp.Expr, operands: Operands) -> Scalar:
    """``trunc(date, unit)``, a DATE."""
    written = constant_text(context, node, "trunc", operands[1])
    unit = _DATE_UNITS.get(written.upper())
    if unit is None:
        raise context.unsupported(node, f"trunc() to {written!r}", f"Take one of {', '.join(_DATE_UNITS)}.")
    day = take(context, node, OperandKind.DATE, operands[0])
    return opaque(strict(f"CAST(date_trunc('{unit}', {day.sql}) AS DATE)", _DATE, (day,)))


def _truncated_clock(context: Context, node: exp.Expr, operands: Operands) -> Scalar:
    """``date_trunc(unit, time)``: Spark first makes any argument a TIMESTAMP."""
    written = constant_text(context, node, "date_trunc", operands[0])
    unit = _CLOCK_UNITS.get(written.upper())
    if unit is None:
        raise context.unsupported(node, f"date_trunc() to {written!r}", f"Take one of {', '.join(_CLOCK_UNITS)}.")
    context.need_utc(node, "date_trunc()")
    moment = cast(context, node, operands[1], pa.timestamp("us", tz=context.timezone))
    return opaque(strict(f"date_trunc('{unit}', {moment.sql})", moment.type, (moment,)))


def _instant_of(micros: int) -> Special:
    """``timestamp_seconds`` and its kin, of integers."""

    def rule(context: Context, node: exp.Expr, operands: Operands) -> Scalar:
        count = take(context, node, OperandKind.WHOLE, operands[0])
        sql = f"make_timestamp({count.sql} * CAST({micros} AS BIGINT))"
        return strict(sql, pa.timestamp("us", tz=context.timezone), (count,), fails=True)

    return rule


def _unix_timestamp(context: Context, node: exp.Expr, operands: Operands) -> Scalar:
    """``unix_timestamp(time)``: seconds without a fraction, also before 1970, where ``unix_seconds`` rounds down."""
    moment = operands[0]
    if not (is_instant(moment.type) or is_wall_clock(moment.type) or is_date(moment.type)):
        what = f"unix_timestamp() of {typed_name(moment)}"
        raise context.unsupported(node, what, f"Give it a DATE or a TIMESTAMP. {ELSEWHERE}")
    instant = cast(context, node, moment, pa.timestamp("us", tz=context.timezone))
    return opaque(strict(f"(epoch_us({instant.sql}) // CAST(1000000 AS BIGINT))", _LONG, (instant,)))


_LETTERS = {
    "yyyy": "%Y",
    "yy": "%y",
    "MM": "%m",
    "M": "%-m",
    "MMM": "%b",
    "MMMM": "%B",
    "dd": "%d",
    "d": "%-d",
    **dict.fromkeys(("E", "EE", "EEE"), "%a"),
    "EEEE": "%A",
    "HH": "%H",
    "H": "%-H",
    "hh": "%I",
    "h": "%-I",
    "a": "%p",
    "mm": "%M",
    "m": "%-M",
    "ss": "%S",
    "s": "%-S",
    "SSS": "%g",
    "SSSSSS": "%f",
}
_PART = re.compile(r"([A-Za-z])\1*|'(?:[^']|'')*'|[^A-Za-z'\[\]{}#]")
_INSTEAD = f"Give one in quotes, of these: {' '.join(_LETTERS)}."


def _strftime(pattern: str) -> str | None:
    """The pattern in strftime's terms; ``None`` for letters that are not supported."""
    parts: list[str] = []
    at = 0
    while at < len(pattern):
        match = _PART.match(pattern, at)
        text = None if match is None else _strftime_part(match[0])
        if match is None or text is None:
            return None
        parts.append(text)
        at = match.end()
    return "".join(parts)


def _strftime_part(text: str) -> str | None:
    if text[0].isascii() and text[0].isalpha():
        return _LETTERS.get(text)
    quoted = text[1:-1].replace("''", "'") or "'" if text[0] == "'" else text
    return quoted.replace("%", "%%")


def _formatted(context: Context, node: exp.Expr, operands: Operands) -> Scalar:
    """``date_format(time, pattern)``: Spark first makes any argument a TIMESTAMP."""
    pattern = operands[1].constant
    form = _strftime(pattern) if isinstance(pattern, str) else None
    if form is None:
        raise context.unsupported(node, f"date_format() by {pattern!r}" if pattern else "this date_format()", _INSTEAD)
    context.need_utc(node, "date_format()")
    moment = cast(context, node, operands[0], pa.timestamp("us", tz=context.timezone))
    return strict(
        macro("spark_formatted", moment.sql, string_sql(form)), pa.string(), (moment, operands[1]), fails=True
    )


CLOCK_NAMES = frozenset({"unix_timestamp"})
_DAY, _COUNT, _CLOCK = OperandKind.DATE, OperandKind.INT, OperandKind.CLOCK
_INSTANT, _MOMENT, _WRITTEN, _WHOLE = OperandKind.INSTANT, OperandKind.MOMENT, OperandKind.WRITTEN, OperandKind.WHOLE
_RANGE = "where the result is out of range"


def _day_part(names: str, sql: str) -> Function:
    return Function(names, (_DAY,), _of_date(sql), _INT)


def _hour_part(unit: str) -> Function:
    samples = "; ".join(f"{unit}({column})" for column in ("n", "t", "ntz", "ltz"))
    return Function(unit, (_CLOCK,), _clock_part(unit), "INT", samples=samples)


def _epochs(name: str, micros: int) -> Function:
    samples = f"{name}(i); {name}(l)" + (f"; {name}(lmax)" if micros > 1 else "")
    fails = _RANGE if micros > 1 else ""
    return Function(name, (_WHOLE,), _instant_of(micros), "TIMESTAMP", fails=fails, lenient=RAISES, samples=samples)


TIMES: tuple[Function, ...] = (
    _day_part("year", "year({0})"),
    _day_part("quarter", "quarter({0})"),
    _day_part("month", "month({0})"),
    _day_part("day dayofmonth", "day({0})"),
    _day_part("dayofweek", "dayofweek({0}) + 1"),
    _day_part("dayofyear", "dayofyear({0})"),
    _day_part("weekday", "isodow({0}) - 1"),
    _day_part("weekofyear", "weekofyear({0})"),
    _hour_part("hour"),
    _hour_part("minute"),
    _hour_part("second"),
    Function(
        "date_part datepart",
        (_WRITTEN, _MOMENT),
        _date_part_of,
        "INT; DECIMAL(8,6) for seconds",
        samples="date_part('month', t); datepart('hour', n); date_part('second', n); date_part('dow_iso', d); "
        "date_part('yearofweek', d); date_part('SECONDS', t); datepart('year', d)",
    ),
    Function(
        "date_trunc",
        (_WRITTEN, _MOMENT),
        _truncated_clock,
        "TIMESTAMP",
        is_opaque=True,
        samples="date_trunc('month', d); date_trunc('hour', t); date_trunc('week', n); date_trunc('hour', ltz)",
    ),
    Function(
        "trunc",
        (_DAY, _WRITTEN),
        _truncated_date,
        "DATE",
        is_opaque=True,
        samples="trunc(d, 'month'); trunc(e, 'week'); trunc(n, 'year'); trunc(o, 'month')",
    ),
    Function(
        "date_format",
        (_MOMENT, _WRITTEN),
        _formatted,
        "STRING",
        samples="date_format(n, 'yyyy-MM-dd'); date_format(t, 'HH:mm'); date_format(d, 'E d')",
    ),
    Function(
        "to_date",
        (OperandKind.ANY,),
        lambda context, node, operands: cast(context, node, operands[0], _DATE),
        "DATE",
        fails="where a text is no date",
        samples="to_date(days); to_date(n); to_date(d)",
    ),
    Function(
        "date_add dateadd",
        (_DAY, _COUNT),
        "({0} + {1})",
        _DATE,
        fails=_RANGE,
        lenient="another date",
        samples="date_add(e, j); dateadd(d, 30)",
    ),
    Function(
        "date_sub",
        (_DAY, _COUNT),
        "({0} - {1})",
        _DATE,
        fails=_RANGE,
        lenient="another date",
        samples="date_sub(e, j); date_sub(n, 1)",
    ),
    Function(
        "datediff date_diff",
        (_DAY, _DAY),
        "CAST({0} - {1} AS INTEGER)",
        _INT,
        samples="datediff(d, e); date_diff(e, n); datediff(o, d)",
    ),
    Function(
        "add_months",
        (_DAY, _COUNT),
        "CAST({0} + to_months({1}) AS DATE)",
        _DATE,
        fails=_RANGE,
        lenient=RAISES,
        samples="add_months(e, j); add_months(d, 1); add_months(e, -13)",
    ),
    Function(
        "make_date",
        (_COUNT, _COUNT, _COUNT),
        "make_date({0}, {1}, {2})",
        _DATE,
        fails="where there is no such day",
        samples="make_date(y, j, i); make_date(2000 + i, 1 + abs(y), 1); make_date(imax, 1, 1)",
    ),
    Function("date_from_unix_date", (_COUNT,), "spark_epoch_day", _DATE),
    Function("dayname", (_DAY,), "left(dayname({0}), 3)", pa.string()),
    Function("monthname", (_DAY,), "left(monthname({0}), 3)", pa.string()),
    Function("last_day", (_DAY,), "last_day({0})", _DATE),
    Function(
        "unix_date", (_DAY,), "CAST({0} - DATE '1970-01-01' AS INTEGER)", _INT, samples="unix_date(d); unix_date(o)"
    ),
    Function(
        "unix_timestamp to_unix_timestamp",
        (_MOMENT,),
        _unix_timestamp,
        "BIGINT",
        is_opaque=True,
        samples="unix_timestamp(t); unix_timestamp(n); to_unix_timestamp(d); to_unix_timestamp(ltz)",
    ),
    Function("unix_seconds", (_INSTANT,), "spark_unix_seconds", _LONG),
    Function("unix_millis", (_INSTANT,), "spark_unix_millis", _LONG),
    Function("unix_micros", (_INSTANT,), "epoch_us({0})", _LONG),
    _epochs("timestamp_seconds", 1_000_000),
    _epochs("timestamp_millis", 1_000),
    _epochs("timestamp_micros", 1),
)
"""Of dates and times."""

TIME_RULES: dict[type[exp.Expr], Rule] = {exp.Extract: _extract}
