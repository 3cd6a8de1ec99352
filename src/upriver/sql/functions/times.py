"""Dates and times. A TIMESTAMP has a date and an hour only in a time zone: the session's."""

from dataclasses import replace

import pyarrow as pa

from upriver.errors import DeclarationError
from upriver.plan.relation import Scalar
from upriver.plan.source import ELSEWHERE, Place
from upriver.plan.types import duck_name, is_date, is_floating, is_instant, is_interval, is_string, is_wall_clock
from upriver.sql.functions.casts import cast, in_zone, local, with_clock
from upriver.sql.functions.scalars import Context, in_order, literal, macro, opaque, strict, typed_name
from upriver.sql.functions.signatures import (
    RAISES,
    Function,
    OperandKind,
    Operands,
    Special,
    as_instant,
    constant_text,
    take,
)
from upriver.sql.functions.time_texts import formatted, parsed
from upriver.sql.functions.tries import tried, tried_cast
from upriver.zones import zone_name

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


def _clock(context: Context, place: Place, value: Scalar) -> Scalar:
    """The wall clock of a TIMESTAMP, or of a time in quotes, in the session's time zone."""
    if isinstance(value.constant, str):
        value = as_instant(context, place, value)
    clock = take(context, place, OperandKind.CLOCK, value)
    return local(context, clock) if is_instant(clock.type) else clock


def _clock_part(unit: str) -> Special:
    def rule(context: Context, place: Place, operands: Operands) -> Scalar:
        clock = _clock(context, place, operands[0])
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


def part(context: Context, place: Place, name: str, value: Scalar) -> Scalar:
    """``EXTRACT(name FROM value)``."""
    field = name.lower()
    if is_interval(value.type):
        return _interval_part(context, place, field, value)
    if field in _OF_CLOCK:
        return _clock_part(_OF_CLOCK[field])(context, place, (value,))
    if field in _SECONDS:
        clock = _clock(context, place, value)
        return strict(f"CAST(microsecond({clock.sql}) * {_MILLIONTH} AS DECIMAL(8, 6))", pa.decimal128(8, 6), (clock,))
    if field not in _OF_DATE:
        fields = "year, quarter, month, week, day, dayofweek, doy, hour, minute, second"
        raise context.unsupported(place, f"the field {name}", f"Take one of {fields}.")
    day = take(context, place, OperandKind.DATE, value)
    return strict(_of_date(_OF_DATE[field]).format(day.sql), _INT, (day,))


def _interval_part(context: Context, place: Place, field: str, value: Scalar) -> Scalar:
    """Days, or hours of the day and so on; all negative in a negative interval."""
    if field in _SECONDS:
        rest = f"(abs({value.sql}) % CAST(60000000 AS BIGINT) * sign({value.sql}))"
        return strict(f"CAST({rest} * {_MILLIONTH} AS DECIMAL(8, 6))", pa.decimal128(8, 6), (value,))
    unit = "day" if _OF_DATE.get(field) == "day({0})" else _OF_CLOCK.get(field)
    if unit is None:
        raise context.unsupported(place, f"the field {field} of an INTERVAL", "Take one of day, hour, minute, second.")
    micros, above, type = _INTERVAL_PARTS[unit]
    whole = f"abs({value.sql}) // CAST({micros} AS BIGINT)"
    part = f"({whole} % CAST({above} AS BIGINT))" if above else f"({whole})"
    return strict(f"CAST({part} * sign({value.sql}) AS {duck_name(type)})", type, (value,))


_INTERVAL_PARTS = {
    "day": (86_400_000_000, None, pa.int32()),
    "hour": (3_600_000_000, 24, pa.int8()),
    "minute": (60_000_000, 60, pa.int8()),
}


def _date_part_of(context: Context, place: Place, operands: Operands) -> Scalar:
    return part(context, place, constant_text(context, place, "date_part", operands[0]), operands[1])


def _truncated_date(context: Context, place: Place, operands: Operands) -> Scalar:
    """``trunc(date, unit)``, a DATE."""
    written = constant_text(context, place, "trunc", operands[1])
    unit = _DATE_UNITS.get(written.upper())
    if unit is None:
        raise context.unsupported(place, f"trunc() to {written!r}", f"Take one of {', '.join(_DATE_UNITS)}.")
    day = take(context, place, OperandKind.DATE, operands[0])
    return opaque(strict(f"CAST(date_trunc('{unit}', {day.sql}) AS DATE)", _DATE, (day,)))


def _truncated_clock(context: Context, place: Place, operands: Operands) -> Scalar:
    """``date_trunc(unit, time)``: Spark first makes any argument a TIMESTAMP."""
    written = constant_text(context, place, "date_trunc", operands[0])
    unit = _CLOCK_UNITS.get(written.upper())
    if unit is None:
        raise context.unsupported(place, f"date_trunc() to {written!r}", f"Take one of {', '.join(_CLOCK_UNITS)}.")
    moment = as_instant(context, place, operands[1])
    if unit == "week":
        monday = strict(f"CAST(date_trunc('week', {local(context, moment).sql}) AS DATE)", _DATE, (moment,))
        return opaque(cast(context, place, monday, moment.type))
    sql = with_clock(context, moment, lambda clock: f"date_trunc('{unit}', {clock})")
    return opaque(strict(sql, moment.type, (moment,)))


def _instant_of(micros: int) -> Special:
    """``timestamp_seconds`` and its kin, of integers."""

    def rule(context: Context, place: Place, operands: Operands) -> Scalar:
        count = take(context, place, OperandKind.WHOLE, operands[0])
        sql = f"make_timestamp({count.sql} * CAST({micros} AS BIGINT))"
        return strict(sql, pa.timestamp("us", tz=context.timezone), (count,), fails=True)

    return rule


def _unix_timestamp(context: Context, place: Place, operands: Operands) -> Scalar:
    """``unix_timestamp(time)`` and ``unix_timestamp(text[, format])``: seconds without a fraction, also before 1970,
    where ``unix_seconds`` rounds down."""
    moment = operands[0]
    if is_string(moment.type):
        form = (*operands, literal("yyyy-MM-dd HH:mm:ss", pa.string()))[1]
        moment = parsed(context, place, "unix_timestamp", moment, form)
    elif not (is_instant(moment.type) or is_wall_clock(moment.type) or is_date(moment.type)):
        what = f"unix_timestamp() of {typed_name(moment)}"
        raise context.unsupported(place, what, f"Give it a DATE or a TIMESTAMP. {ELSEWHERE}")
    is_plain = is_wall_clock(operands[0].type)  # Spark then takes the clock for UTC's
    instant = moment if is_plain else cast(context, place, moment, pa.timestamp("us", tz=context.timezone))
    return opaque(strict(f"(epoch_us({instant.sql}) // CAST(1000000 AS BIGINT))", _LONG, (instant,)))


def _from_unix(context: Context, place: Place, operands: Operands) -> Scalar:
    """``from_unixtime(seconds[, format])``."""
    form = (*operands, literal("yyyy-MM-dd HH:mm:ss", pa.string()))[1]
    count = take(context, place, OperandKind.WHOLE, operands[0])
    type = pa.timestamp("us", tz=context.timezone)
    return formatted(context, place, (strict(macro("spark_near_instant", count.sql), type, (count,), fails=True), form))


def _read(type: pa.DataType) -> Special:
    """``to_date(text[, format])`` and its kin; of other types a cast. type: the result's, in UTC."""

    def rule(context: Context, place: Place, operands: Operands) -> Scalar:
        to = pa.timestamp("us", tz=context.timezone) if is_instant(type) else type
        value = operands[0]
        if len(operands) > 1:
            if not is_string(value.type):
                raise context.unsupported(place, f"a format for {typed_name(value)}", "Leave the format out.")
            value = parsed(context, place, "to_timestamp", value, operands[1])
        return replace(cast(context, place, value, to), constant=None)

    return rule


def _try_read(type: pa.DataType) -> Special:
    def rule(context: Context, place: Place, operands: Operands) -> Scalar:
        to = pa.timestamp("us", tz=context.timezone) if is_instant(type) else type
        return (tried(_read(type)) if len(operands) > 1 else tried_cast(to))(context, place, operands)

    return rule


def _shifted(context: Context, place: Place, operands: Operands) -> Scalar:
    """``timestampadd(unit, n, time)``: days and months move on the wall clock, shorter units on the time line."""
    unit = _unit(context, place, operands[0])
    count, moment = operands[1:]
    moment = moment if is_wall_clock(moment.type) else as_instant(context, place, moment)
    count, moment = in_order(take(context, place, OperandKind.WHOLE, count), moment)

    def later(by: str) -> str:
        return with_clock(context, moment, lambda clock: f"({clock} + {by})")

    if unit in _MONTHS:
        sql = later(f"to_months(CAST({count.sql} * CAST({_MONTHS[unit]} AS BIGINT) AS INTEGER))")
    elif unit in ("DAY", "WEEK"):
        days = _MICROS[unit] // _MICROS["DAY"]
        sql = later(f"to_days(CAST({count.sql} * CAST({days} AS BIGINT) AS INTEGER))")
    else:
        sql = f"({moment.sql} + to_microseconds({count.sql} * CAST({_MICROS[unit]} AS BIGINT)))"
    return opaque(strict(sql, moment.type, (count, moment), fails=True))


def _apart(context: Context, place: Place, operands: Operands) -> Scalar:
    """``timestampdiff(unit, start, end)``: whole units between two wall clocks."""
    unit = _unit(context, place, operands[0])
    moments = in_order(*(as_instant(context, place, value) for value in operands[1:]))
    start, end = (local(context, moment).sql for moment in moments)
    sql = f"((epoch_us({end}) - epoch_us({start})) // CAST({_MICROS.get(unit, 1)} AS BIGINT))"
    if unit in _MONTHS:
        sql = f"({macro('spark_whole_months', start, end)} // CAST({_MONTHS[unit]} AS BIGINT))"
    return opaque(strict(sql, _LONG, moments))


def _unit(context: Context, place: Place, written: Scalar) -> str:
    unit = str(written.constant).upper()
    if unit not in _MONTHS | _MICROS:
        raise context.unsupported(place, f"the unit {unit}", f"Take one of {', '.join(_MICROS | _MONTHS)}.")
    return unit


_MONTHS = {"MONTH": 1, "QUARTER": 3, "YEAR": 12}
_MICROS = {
    "MICROSECOND": 1,
    "MILLISECOND": 1_000,
    "SECOND": 1_000_000,
    "MINUTE": 60_000_000,
    "HOUR": 3_600_000_000,
    "DAY": 86_400_000_000,
    "WEEK": 7 * 86_400_000_000,
}
_DAY_NAMES = ("thursday", "friday", "saturday", "sunday", "monday", "tuesday", "wednesday")


def _next_day(context: Context, place: Place, operands: Operands) -> Scalar:
    """``next_day(date, name)``: the first such day of the week after the date."""
    written = constant_text(context, place, "next_day", operands[1]).lower()
    places = [n for n, day in enumerate(_DAY_NAMES) if written in (day, day[:3], day[:2])]
    if not places:
        raise context.unsupported(place, f"next_day() to {written!r}", "Name a day: 'Monday', 'Mon' or 'Mo'.")
    day = take(context, place, OperandKind.DATE, operands[0])
    return strict(macro("spark_next_day", day.sql, str(places[0])), _DATE, (day,), fails=True)


def _months_between(context: Context, place: Place, operands: Operands) -> Scalar:
    """``months_between(a, b[, round])``: to 8 places unless round is FALSE."""
    rounds = operands[2].constant if len(operands) > 2 else True
    if not isinstance(rounds, bool):
        raise context.unsupported(place, "months_between() with this choice of rounding", "Write TRUE or FALSE.")
    moments = in_order(*(as_instant(context, place, value) for value in operands[:2]))
    clocks = [local(context, moment) for moment in moments]
    seconds = " - ".join(_seconds_of_day(context, *pair) for pair in zip(moments, clocks, strict=True))
    sql = macro("spark_months_between", *(clock.sql for clock in clocks), seconds)
    return strict(macro("spark_rounded_8", sql) if rounds else sql, pa.float64(), moments)


def _seconds_of_day(context: Context, moment: Scalar, clock: Scalar) -> str:
    """The seconds since the day began, which are not those of its clock where the clock was changed."""
    if moment.sql == clock.sql:
        return macro("spark_seconds_of_day", clock.sql)
    start = in_zone(
        replace(clock, sql=f"date_trunc('day', {clock.sql})"), context.timezone, "kernel_day_start", moment.type
    )
    return f"(epoch_us({moment.sql}) - epoch_us({start.sql})) // CAST(1000000 AS BIGINT)"


def _made(type: pa.DataType) -> Special:
    """``make_timestamp(year, month, day, hour, minute, second)`` and its kin."""

    def rule(context: Context, place: Place, operands: Operands) -> Scalar:
        whole = [take(context, place, OperandKind.INT, value) for value in operands[:5]]
        parts = in_order(*whole, _seconds(context, place, operands[5]))
        micros = f"CAST({parts[5].sql} * CAST(1000000 AS DECIMAL(7, 0)) AS BIGINT)"
        clock = strict(
            macro("spark_made_clock", *(part.sql for part in parts[:5]), micros), pa.timestamp("us"), parts, fails=True
        )
        return cast(context, place, clock, pa.timestamp("us", tz=context.timezone)) if is_instant(type) else clock

    return rule


def _seconds(context: Context, place: Place, value: Scalar) -> Scalar:
    if is_floating(value.type):
        raise context.unsupported(place, f"{typed_name(value)} seconds", "CAST them to DECIMAL(16,6).")
    return cast(context, place, value, pa.decimal128(16, 6))


def _made_if_possible(type: pa.DataType) -> Special:
    """``try_make_timestamp`` and its kin. That the seconds are no number, or too large a one, is an error for them,
    too."""

    def rule(context: Context, place: Place, operands: Operands) -> Scalar:
        return tried(_made(type))(context, place, (*operands[:5], _seconds(context, place, operands[5])))

    return rule


def _named_zone(context: Context, place: Place, value: Scalar) -> str:
    """A zone that is written in quotes, by the name that Python knows it by."""
    if not isinstance(value.constant, str):
        raise context.unsupported(place, "a time zone that is computed", "Write it in quotes.")
    try:
        return zone_name(value.constant)
    except DeclarationError as error:
        raise context.unsupported(
            place, f"the time zone {value.constant!r}", "Name a region: 'Europe/Berlin'."
        ) from error


def _shifted_by(kernel: str) -> Special:
    """``from_utc_timestamp(time, zone)``: its wall clock in UTC becomes that in the zone; and the reverse."""

    def rule(context: Context, place: Place, operands: Operands) -> Scalar:
        zone, moment = _named_zone(context, place, operands[1]), as_instant(context, place, operands[0])
        return opaque(in_zone(moment, zone, kernel, moment.type))

    return rule


def _converted(context: Context, place: Place, operands: Operands) -> Scalar:
    """``convert_timezone([from, ]to, wall clock)``."""
    zones = [context.timezone if len(operands) == 2 else _named_zone(context, place, operands[0])]
    zones.append(_named_zone(context, place, operands[-2]))
    clock = cast(context, place, operands[-1], pa.timestamp("us"))
    instant = in_zone(clock, zones[0], "kernel_instant", pa.timestamp("us"))
    return opaque(in_zone(instant, zones[1], "kernel_wall_clock", pa.timestamp("us")))


def _as_text(context: Context, place: Place, operands: Operands) -> Scalar:
    """``to_char(time, format)``: as ``date_format``."""
    type = operands[0].type
    if not (is_date(type) or is_wall_clock(type) or is_instant(type)):
        instead = "Write format_number(x, 2) for a number, hex(b) or base64(b) for a BINARY."
        raise context.unsupported(place, f"to_char() of {typed_name(operands[0])}", instead)
    return formatted(context, place, operands)


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


_AT = pa.timestamp("us", tz="UTC")


def _readers(name: str, type: pa.DataType, gives: str, column: str, form: str) -> tuple[Function, Function]:
    """``to_date`` and the like, and the same with ``try_``."""
    kinds, calls = (OperandKind.ANY, _WRITTEN), f"{{0}}(n); {{0}}(d); {{0}}({column}, '{form}')"
    calls += "; {0}(substring(moments, 1, 10), 'yyyy-MM-dd')"
    as_cast = f"; {name}({column}); {name}(s); {name}(days)"
    wrong = "where a text has not the form"
    return (
        Function(name, kinds, _read(type), gives, 1, fails=wrong, samples=calls.format(name) + as_cast),
        Function(
            f"try_{name}",
            kinds,
            _try_read(type),
            gives,
            1,
            nulls=f"also {wrong}",
            samples=calls.format(f"try_{name}"),
        ),
    )


def _makers(name: str, type: pa.DataType, gives: str) -> tuple[Function, Function]:
    kinds = (_COUNT,) * 5 + (OperandKind.NUMBER,)
    calls = "; ".join(
        f"{{0}}({parts})"
        for parts in (
            "2024, 2, 29, 1, 2, 3.5",
            "2000 + i, 1, 1, abs(y), 0, 60",
            "y, j, i, 0, 0, 0",
            "2024, j, 1, i, j, p",
        )
    )
    wrong = "where there is no such time"
    return (
        Function(name, kinds, _made(type), gives, fails=wrong, samples=calls.format(name)),
        Function(
            f"try_{name}",
            kinds,
            _made_if_possible(type),
            gives,
            nulls=f"also {wrong}",
            samples=calls.format(f"try_{name}"),
        ),
    )


TIMES: tuple[Function, ...] = (
    Function(
        "timestamp",
        (OperandKind.ANY,),
        _read(_AT),
        "TIMESTAMP",
        fails="where a text is none",
        samples="timestamp(n); timestamp(d); timestamp(moments); timestamp(t)",
    ),
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
        formatted,
        "STRING",
        samples="date_format(n, 'yyyy-MM-dd'); date_format(t, 'HH:mm'); date_format(d, 'E d')",
    ),
    Function(
        "to_char to_varchar",
        (OperandKind.ANY, _WRITTEN),
        _as_text,
        "STRING",
        samples="to_char(n, 'yyyy-MM-dd'); to_varchar(t, 'HH:mm'); to_char(d, 'E d')",
    ),
    *_readers("to_date", _DATE, "DATE", "days", "yyyy-MM-dd"),
    *_readers("to_timestamp", _AT, "TIMESTAMP", "moments", "yyyy-MM-dd HH:mm:ss"),
    _readers("to_timestamp_ltz", _AT, "TIMESTAMP", "moments", "yyyy-MM-dd HH:mm:ss")[0],
    _readers("to_timestamp_ntz", pa.timestamp("us"), "TIMESTAMP_NTZ", "moments", "yyyy-MM-dd HH:mm:ss")[0],
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
        "timestampadd",
        (_WRITTEN, _WHOLE, _MOMENT),
        _shifted,
        "TIMESTAMP or TIMESTAMP_NTZ",
        fails=_RANGE,
        lenient=RAISES,
        is_opaque=True,
        samples="timestampadd(MINUTE, j, n); dateadd(MONTH, i, d); date_add(DAY, 2 * j, ltz); "
        "timestampadd(QUARTER, j, n); timestampadd(WEEK, -1, n); timestampadd(SECOND, 100000 * j, n)",
    ),
    Function(
        "timestampdiff",
        (_WRITTEN, _MOMENT, _MOMENT),
        _apart,
        "BIGINT",
        is_opaque=True,
        samples="timestampdiff(DAY, d, n); datediff(MONTH, e, d); date_diff(HOUR, n, e); timestampdiff(year, d, e); "
        "timestampdiff(MINUTE, ltz, n); timestampdiff(QUARTER, n, d); timestampdiff(WEEK, e, n)",
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
        (_MOMENT, _WRITTEN),
        _unix_timestamp,
        "BIGINT",
        1,
        fails="where a text has not the form",
        is_opaque=True,
        samples="unix_timestamp(moments); unix_timestamp(days, 'yyyy-M-d'); unix_timestamp(t); "
        "unix_timestamp(n); to_unix_timestamp(d); to_unix_timestamp(ltz)",
    ),
    Function(
        "from_unixtime",
        (_WHOLE, _WRITTEN),
        _from_unix,
        "STRING",
        1,
        samples="from_unixtime(l); from_unixtime(i, 'yyyy-MM-dd'); from_unixtime(86399 + i)",
    ),
    Function(
        "next_day",
        (_DAY, _WRITTEN),
        _next_day,
        "DATE",
        samples="next_day(d, 'Mon'); next_day(n, 'sunday'); next_day(e, 'TH')",
    ),
    Function(
        "months_between",
        (_MOMENT, _MOMENT, OperandKind.CONDITION),
        _months_between,
        "DOUBLE",
        2,
        samples="months_between(d, e); months_between(n, t); months_between(d, n, false); "
        "months_between(last_day(d), e)",
    ),
    *_makers("make_timestamp", _AT, "TIMESTAMP"),
    *_makers("make_timestamp_ltz", _AT, "TIMESTAMP"),
    *_makers("make_timestamp_ntz", pa.timestamp("us"), "TIMESTAMP_NTZ"),
    Function(
        "from_utc_timestamp",
        (_MOMENT, _WRITTEN),
        _shifted_by("kernel_wall_clock"),
        "TIMESTAMP",
        is_opaque=True,
        samples="from_utc_timestamp(t, 'Europe/Berlin'); from_utc_timestamp(n, 'PST'); from_utc_timestamp(d, '+05:30')",
    ),
    Function(
        "to_utc_timestamp",
        (_MOMENT, _WRITTEN),
        _shifted_by("kernel_instant"),
        "TIMESTAMP",
        is_opaque=True,
        samples="to_utc_timestamp(t, 'Europe/Berlin'); to_utc_timestamp(n, 'PST'); to_utc_timestamp(d, '+05:30')",
    ),
    Function(
        "convert_timezone",
        (_WRITTEN, _WRITTEN, _CLOCK),
        _converted,
        "TIMESTAMP_NTZ",
        2,
        is_opaque=True,
        samples="convert_timezone('Europe/Berlin', 'Asia/Tokyo', n); convert_timezone('America/New_York', n)",
    ),
    Function("unix_seconds", (_INSTANT,), "spark_unix_seconds", _LONG),
    Function("unix_millis", (_INSTANT,), "spark_unix_millis", _LONG),
    Function("unix_micros", (_INSTANT,), "epoch_us({0})", _LONG),
    _epochs("timestamp_seconds", 1_000_000),
    _epochs("timestamp_millis", 1_000),
    _epochs("timestamp_micros", 1),
)
"""Of dates and times."""
