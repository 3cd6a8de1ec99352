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
from upriver.sql.signatures import Functions, OperandKind, Operands, Signature, Spoken, call, constant_text, take

_INT, _LONG, _DATE = pa.int32(), pa.int64(), pa.date32()
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


def _date_part(sql: str) -> Signature:
    return Signature((OperandKind.DATE,), f"CAST({sql} AS INTEGER)", _INT)


def _clock_part(unit: str) -> Spoken:
    def rule(context: Context, node: exp.Expr, operands: Operands) -> Scalar:
        clock = take(context, node, OperandKind.CLOCK, operands[0])
        if is_instant(clock.type):
            context.need_utc(node, f"the {unit} of a TIMESTAMP")
        return strict(f"CAST({unit}({clock.sql}) AS INTEGER)", _INT, (clock,))

    return Spoken((1, 1), rule)


_YEAR = _date_part("year({0})")
_DAY = _date_part("day({0})")
_DAY_OF_WEEK = _date_part("dayofweek({0}) + 1")
_WEEK = _date_part("weekofyear({0})")
_DAY_OF_YEAR = _date_part("dayofyear({0})")
_PARTS: Functions = {
    "year": _YEAR,
    "quarter": _date_part("quarter({0})"),
    "month": _date_part("month({0})"),
    "week": _WEEK,
    "day": _DAY,
    "dayofweek": _DAY_OF_WEEK,
    "doy": _DAY_OF_YEAR,
    "hour": _clock_part("hour"),
    "minute": _clock_part("minute"),
}


def _part(context: Context, node: exp.Expr, name: str, value: Scalar) -> Scalar:
    function = _PARTS.get(name.lower())
    if function is None:
        raise context.unsupported(node, f"the field {name}", f"Take one of {', '.join(_PARTS)}.")
    return call(context, node, name, function, (value,))


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


def _instant_of(micros: int) -> Spoken:
    """``timestamp_seconds`` and its kin, of integers."""

    def rule(context: Context, node: exp.Expr, operands: Operands) -> Scalar:
        count = take(context, node, OperandKind.WHOLE, operands[0])
        sql = f"make_timestamp({count.sql} * CAST({micros} AS BIGINT))"
        return strict(sql, pa.timestamp("us", tz=context.timezone), (count,), fails=True)

    return Spoken((1, 1), rule)


def _unix_timestamp(context: Context, node: exp.Expr, operands: Operands) -> Scalar:
    """``unix_timestamp(time)``: seconds without a fraction, also before 1970, where ``unix_seconds`` rounds down."""
    moment = operands[0]
    if not (is_instant(moment.type) or is_wall_clock(moment.type) or is_date(moment.type)):
        what = f"unix_timestamp() of {typed_name(moment)}"
        raise context.unsupported(node, what, f"Give it a DATE or a TIMESTAMP. {ELSEWHERE}")
    instant = cast(context, node, moment, pa.timestamp("us", tz=context.timezone))
    return opaque(strict(f"(epoch_us({instant.sql}) // CAST(1000000 AS BIGINT))", _LONG, (instant,)))


CLOCKS = frozenset({"unix_timestamp"})
"""Functions that give the time of the call, without operands."""
_DATE_ADD = Signature((OperandKind.DATE, OperandKind.INT), "({0} + {1})", _DATE, fails=True)
_DATE_DIFF = Signature((OperandKind.DATE, OperandKind.DATE), "CAST({0} - {1} AS INTEGER)", _INT)

TIMES: Functions = {
    "year": _YEAR,
    "quarter": _PARTS["quarter"],
    "month": _PARTS["month"],
    "day": _DAY,
    "dayofmonth": _DAY,
    "dayofweek": _DAY_OF_WEEK,
    "dayofyear": _DAY_OF_YEAR,
    "weekday": _date_part("isodow({0}) - 1"),
    "weekofyear": _WEEK,
    "hour": _PARTS["hour"],
    "minute": _PARTS["minute"],
    "second": _clock_part("second"),
    "date_part": Spoken((2, 2), _date_part_of),
    "datepart": Spoken((2, 2), _date_part_of),
    "date_trunc": Spoken((2, 2), _truncated_clock),
    "trunc": Spoken((2, 2), _truncated_date),
    "to_date": Spoken((1, 1), lambda context, node, operands: cast(context, node, operands[0], _DATE)),
    "date_add": _DATE_ADD,
    "dateadd": _DATE_ADD,
    "date_sub": Signature((OperandKind.DATE, OperandKind.INT), "({0} - {1})", _DATE, fails=True),
    "datediff": _DATE_DIFF,
    "date_diff": _DATE_DIFF,
    "add_months": Signature(
        (OperandKind.DATE, OperandKind.INT), "CAST({0} + to_months({1}) AS DATE)", _DATE, fails=True
    ),
    "make_date": Signature(
        (OperandKind.INT, OperandKind.INT, OperandKind.INT), "make_date({0}, {1}, {2})", _DATE, fails=True
    ),
    "date_from_unix_date": Signature((OperandKind.INT,), "spark_epoch_day", _DATE),
    "dayname": Signature((OperandKind.DATE,), "left(dayname({0}), 3)", pa.string()),
    "monthname": Signature((OperandKind.DATE,), "left(monthname({0}), 3)", pa.string()),
    "last_day": Signature((OperandKind.DATE,), "last_day({0})", _DATE),
    "unix_date": Signature((OperandKind.DATE,), "CAST({0} - DATE '1970-01-01' AS INTEGER)", _INT),
    "unix_timestamp": Spoken((1, 1), _unix_timestamp),
    "to_unix_timestamp": Spoken((1, 1), _unix_timestamp),
    "unix_seconds": Signature((OperandKind.INSTANT,), "spark_unix_seconds", _LONG),
    "unix_millis": Signature((OperandKind.INSTANT,), "spark_unix_millis", _LONG),
    "unix_micros": Signature((OperandKind.INSTANT,), "epoch_us({0})", _LONG),
    "timestamp_seconds": _instant_of(1_000_000),
    "timestamp_millis": _instant_of(1_000),
    "timestamp_micros": _instant_of(1),
}

TIME_RULES: dict[type[exp.Expr], Rule] = {exp.Extract: _extract}


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


FORMATS: Functions = {"date_format": Spoken((2, 2), _formatted)}
