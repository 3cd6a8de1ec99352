"""CAST, written or implied: which pairs of types mean the same in DuckDB, and how.

Spark's ANSI mode raises if a value does not fit. Every cast here does so too, or is refused when declared.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import MAXYEAR, MINYEAR, date
from decimal import ROUND_HALF_UP, Decimal, localcontext

import pyarrow as pa

from upriver.engine.moment_texts import NotAMoment, clocks_in, instants_in
from upriver.plan.relation import Scalar
from upriver.plan.source import ELSEWHERE, Place
from upriver.plan.types import (
    DECIMAL_DIGITS_MAX,
    EMPTY_MAP,
    as_decimal,
    duck_name,
    is_array,
    is_boolean,
    is_date,
    is_decimal,
    is_floating,
    is_instant,
    is_integer,
    is_map,
    is_nested,
    is_null,
    is_numeric,
    is_string,
    is_struct,
    is_wall_clock,
    parts_of,
    same_type,
    spark_name,
)
from upriver.sql.functions.nested_values import each, field_sql, once, struct_sql
from upriver.sql.functions.scalars import (
    UTC_ZONES,
    Context,
    intolerant,
    literal,
    macro,
    never_null,
    null,
    opaque,
    strict,
    string_sql,
    typed_name,
)

Cast = Callable[[Context, Place, Scalar, pa.DataType], Scalar]

EXACT_DOUBLE_DIGITS_MAX = 15  # DuckDB divides a decimal's integer by a power of ten: exact operands, one rounding
_BLANK = r"[\x00-\x20\x7f]*"
_DATE = re.compile(
    rf"{_BLANK}([+-]?\d{{4,7}})(?:-(\d{{1,2}})(?:-(\d{{1,2}})(?:[ T].*)?)?)?{_BLANK}", re.ASCII | re.DOTALL
)
_WORD = re.compile(rf"{_BLANK}(?:epoch|now|today|tomorrow|yesterday)\b", re.IGNORECASE)
_LONG_DIGITS_MAX = 18
"""Spark casts longer decimals to INT and shorter integers as DOUBLE."""
_EDGES = "spark_epoch_day("
"""A part of the SQL of a value that may be an infinite date."""


def cast(context: Context, place: Place, value: Scalar, to: pa.DataType) -> Scalar:
    """The value as the type ``to``, by Spark's rules. place: the value's, for a refusal."""
    if same_type(value.type, to):
        return value
    if is_null(value.type):
        return null(to)
    if is_nested(value.type):
        return _nested(context, place, value, to)
    if value.constant is not None:
        folded = _fold(context, place, value, to)
        if folded is not None:
            return folded
    value = within_range(value)
    for source, target, how in _CASTS:
        if source(value.type) and target(to):
            given = how(context, place, value, to)
            given = given if how is _floating_to_decimal else replace(given, nulls=value.null_by)
            return intolerant(given, (value,))
    raise refused(context, place, value, to)


def _nested(context: Context, place: Place, value: Scalar, to: pa.DataType) -> Scalar:
    """An array, a struct or a map part by part. A map keeps the type of its keys."""
    parts = list(zip(parts_of(value.type), parts_of(to), strict=False))
    fails = value.fails

    def made(number: int, part: str) -> str:
        nonlocal fails
        one = cast(context, place, Scalar(part, parts[number][0]), parts[number][1])
        fails |= one.fails
        return one.sql

    if is_array(value.type) and is_array(to):
        sql = each(value.sql, lambda element: made(0, element))
    elif value.type == EMPTY_MAP and is_map(to):
        empty = f"MAP(CAST([] AS {duck_name(parts[0][1])}[]), CAST([] AS {duck_name(parts[1][1])}[]))"
        sql = f"CASE WHEN {value.sql} IS NOT NULL THEN {empty} END"
    elif is_map(value.type) and is_map(to) and same_type(*parts[0]):
        items = each(f"map_values({value.sql})", lambda element: made(1, element))
        sql = f"MAP(map_keys({value.sql}), {items})"
    elif is_struct(value.type) and is_struct(to) and value.type.num_fields == to.num_fields:
        numbers = range(len(parts))
        sql = once(value.sql, lambda one: _struct_of(one, [made(number, field_sql(one, number)) for number in numbers]))
    else:
        raise refused(context, place, value, to)
    return intolerant(Scalar(sql, to, fails, nulls=value.null_by), (value,))


def _struct_of(given: str, parts: Sequence[str]) -> str:
    return f"CASE WHEN {given} IS NOT NULL THEN {struct_sql(parts)} END"


def within_range(value: Scalar) -> Scalar:
    """A value to compute with. DuckDB's infinite dates, Spark's at the ends of the range, are excluded."""
    if is_date(value.type) and _EDGES in value.sql:
        return strict(macro("spark_day", value.sql), value.type, (value,), fails=True)
    return value


def refused(context: Context, place: Place, value: Scalar, to: pa.DataType) -> Exception:
    is_printed = is_floating(value.type) and is_string(to)
    instead = "Write format_number(x, 2), or CAST(CAST(x AS DECIMAL(18, 2)) AS STRING)." if is_printed else ELSEWHERE
    return context.unsupported(place, f"a cast from {typed_name(value)} to {spark_name(to)}", instead)


# Constants: folded here, where Python is as exact as Java.


def _fold(context: Context, place: Place, value: Scalar, to: pa.DataType) -> Scalar | None:
    constant = value.constant
    if isinstance(constant, str):
        return _fold_text(context, place, constant, to)
    if isinstance(constant, bool):
        return None
    if isinstance(constant, int) and is_integer(to):
        return literal(constant, to) if abs(constant) < 2 ** (to.bit_width - 1) else None
    if isinstance(constant, int | Decimal) and to == pa.float64():
        return literal(float(constant), to)
    if isinstance(constant, float) and to == pa.float32():
        return never_null(Scalar(f"CAST('{constant}' AS FLOAT)", to)) if abs(constant) < 3e38 else None
    if isinstance(constant, int | Decimal) and is_decimal(to):
        with localcontext(prec=80):
            rounded = Decimal(constant).quantize(Decimal(1).scaleb(-to.scale), rounding=ROUND_HALF_UP)
        return literal(rounded, to) if abs(rounded) < Decimal(10) ** (to.precision - to.scale) else None
    return None


def _fold_text(context: Context, place: Place, text: str, to: pa.DataType) -> Scalar | None:
    if is_date(to) or is_wall_clock(to) or is_instant(to):
        check_word(context, place, text, to)
    try:
        if is_date(to):
            return None if _is_far(text) else never_null(Scalar(f"DATE '{_date(text).isoformat()}'", to))
        if is_wall_clock(to):
            return _timestamp(clocks_in(pa.array([text]), tolerant=False), to)
        if is_instant(to):
            return _timestamp(instants_in(pa.array([text]), context.timezone, tolerant=False), to)
    except ValueError as error:
        form = "yyyy-MM-dd" if is_date(to) else "yyyy-MM-dd HH:mm:ss"
        why = error.why if isinstance(error, NotAMoment) else str(error)
        what = f"{text!r} as a {spark_name(to)} (it {why})"
        raise context.unsupported(place, what, f"Write it as {form}.") from error
    return None


def check_word(context: Context, place: Place, text: str, to: pa.DataType) -> None:
    """Refuse the words that Spark replaces by a time when it plans a query."""
    if _WORD.match(text):
        what = f"{text!r} as a {spark_name(to)} (a word that Spark replaces when it plans a query)"
        raise context.unsupported(place, what, "Write current_timestamp(), or the time itself.")


def _is_far(text: str) -> bool:
    """Whether it is a date whose year Python's calendar lacks."""
    match = _DATE.fullmatch(text)
    return match is not None and not MINYEAR <= int(match[1]) <= MAXYEAR


def _date(text: str) -> date:
    match = _DATE.fullmatch(text)
    if match is None:
        raise ValueError("is not a date")
    try:
        return date(int(match[1]), int(match[2] or 1), int(match[3] or 1))
    except ValueError as error:
        raise ValueError("names a day that does not exist") from error


def _timestamp(moment: pa.Array, type: pa.DataType) -> Scalar | None:
    """The literal; ``None`` for a year that Python's calendar lacks."""
    try:
        clock = moment[0].as_py()
    except (ValueError, OverflowError):
        return None
    return never_null(Scalar(f"TIMESTAMP '{clock.isoformat(sep=' ')}'", type))


# Everything else. Each takes (context, node, value, to).


def _plain(context: Context, place: Place, value: Scalar, to: pa.DataType) -> Scalar:
    return Scalar(f"CAST({value.sql} AS {duck_name(to)})", to, value.fails)


def _checked(context: Context, place: Place, value: Scalar, to: pa.DataType) -> Scalar:
    return Scalar(f"CAST({value.sql} AS {duck_name(to)})", to, fails=True)


def _integer_to_integer(context: Context, place: Place, value: Scalar, to: pa.DataType) -> Scalar:
    return (_plain if to.bit_width > value.type.bit_width else _checked)(context, place, value, to)


def _to_decimal(context: Context, place: Place, value: Scalar, to: pa.DataType) -> Scalar:
    source = as_decimal(value.type)
    assert source is not None, "only exact numbers are cast so"
    more = to.precision - to.scale - (source.precision - source.scale)
    fits = more > 0 or (more == 0 and to.scale >= source.scale)  # a number may be rounded up to one more digit
    return (_plain if fits else _checked)(context, place, value, to)


def _decimal_to_text(context: Context, place: Place, value: Scalar, to: pa.DataType) -> Scalar:
    text = f"CAST({value.sql} AS VARCHAR)"
    if value.type.precision == value.type.scale:  # DuckDB writes .05
        text = rf"regexp_replace({text}, '^(-?)[.]', '\10.')"
    return Scalar(text, to, value.fails)


def _decimal_to_integer(context: Context, place: Place, value: Scalar, to: pa.DataType) -> Scalar:
    if to != pa.int64() and value.type.precision > _LONG_DIGITS_MAX:
        return _floating_to_integer(context, place, cast(context, place, value, pa.float64()), to)
    return Scalar(f"CAST(trunc({value.sql}) AS {duck_name(to)})", to, fails=True)  # DuckDB alone would round


def _floating_to_integer(context: Context, place: Place, value: Scalar, to: pa.DataType) -> Scalar:
    double = f"CAST({value.sql} AS DOUBLE)"
    whole = macro("spark_double_to_bigint", double) if to == pa.int64() else f"trunc({double})"
    return Scalar(f"CAST({whole} AS {duck_name(to)})", to, fails=True)


def _floating_to_floating(context: Context, place: Place, value: Scalar, to: pa.DataType) -> Scalar:
    if to == pa.float32():
        return Scalar(f"kernel_float({value.sql})", to, value.fails)
    return _plain(context, place, value, to)


def _decimal_to_floating(context: Context, place: Place, value: Scalar, to: pa.DataType) -> Scalar:
    if to == pa.float64() and value.type.precision <= EXACT_DOUBLE_DIGITS_MAX:
        return _plain(context, place, value, to)
    sql = f"CAST(CAST({value.sql} AS VARCHAR) AS {duck_name(to)})"  # parsed: correctly rounded
    return Scalar(sql, to, value.fails)


def _floating_to_decimal(context: Context, place: Place, value: Scalar, to: pa.DataType) -> Scalar:
    """Casts by the digits that would be printed; NULL if there are none."""
    text = f"CAST({macro('spark_written_out', 'CAST(v AS VARCHAR)')} AS {duck_name(to)})"
    sql = f"CASE WHEN isnan(v) OR isinf(v) THEN NULL ELSE {text} END"
    return Scalar(f"list_transform([CAST({value.sql} AS DOUBLE)], lambda v: {sql})[1]", to, fails=True)


def _text_to_decimal(context: Context, place: Place, value: Scalar, to: pa.DataType) -> Scalar:
    return Scalar(f"CAST({macro('spark_decimal_text', value.sql)} AS {duck_name(to)})", to, fails=True)


def _checked_by(name: str) -> Cast:
    """A cast by one of our macros (:mod:`upriver.engine.expressions`)."""

    def how(context: Context, place: Place, value: Scalar, to: pa.DataType) -> Scalar:
        return Scalar(macro(name, value.sql), to, fails=True)

    return how


def _text_to_integer(context: Context, place: Place, value: Scalar, to: pa.DataType) -> Scalar:
    return Scalar(f"CAST({macro('spark_integer_of_text', value.sql)} AS {duck_name(to)})", to, fails=True)


def _text_to_clock(context: Context, place: Place, value: Scalar, to: pa.DataType) -> Scalar:
    return Scalar(f"kernel_clock_of_text({value.sql})", to, fails=True)


def _text_to_instant(context: Context, place: Place, value: Scalar, to: pa.DataType) -> Scalar:
    return Scalar(f"kernel_instant_of_text({value.sql}, {string_sql(context.timezone)})", to, fails=True)


def local(context: Context, value: Scalar) -> Scalar:
    """The wall clock of an instant in the session's time zone."""
    return in_zone(value, context.timezone, "kernel_wall_clock", pa.timestamp("us"))


def in_zone(value: Scalar, zone: str, kernel: str, type: pa.DataType) -> Scalar:
    """The wall clock of an instant in a zone, or the instant of a wall clock, by the kernel of that name."""
    sql = value.sql if zone.upper() in UTC_ZONES else f"{kernel}({value.sql}, {string_sql(zone)})"
    return strict(sql, type, (value,))


def with_clock(context: Context, moment: Scalar, change: Callable[[str], str]) -> str:
    """The SQL of a changed wall clock, or of the instant at which the session's time zone has it. The offset from
    UTC stays that of the moment, if such a wall clock has it: so an hour that comes twice stays the one that it is."""
    clock = local(context, moment).sql if is_instant(moment.type) else moment.sql
    if clock == moment.sql:
        return change(clock)
    return f"kernel_instant_near({change(clock)}, {string_sql(context.timezone)}, {moment.sql})"


def _day_to_instant(context: Context, place: Place, value: Scalar, to: pa.DataType) -> Scalar:
    """The instant at which a day begins."""
    return in_zone(_plain(context, place, value, pa.timestamp("us")), context.timezone, "kernel_day_start", to)


def _of_clock(how: Cast) -> Cast:
    """A cast of an instant, from that of its wall clock."""
    return lambda context, place, value, to: how(context, place, local(context, value), to)


def _from_clock(how: Cast) -> Cast:
    """A cast to an instant, from that to its wall clock."""

    def made(context: Context, place: Place, value: Scalar, to: pa.DataType) -> Scalar:
        return in_zone(how(context, place, value, pa.timestamp("us")), context.timezone, "kernel_instant", to)

    return made


def _is_double(type: pa.DataType) -> bool:
    return bool(type == pa.float64())


def _is_float(type: pa.DataType) -> bool:
    return bool(type == pa.float32())


def _is_binary(type: pa.DataType) -> bool:
    return bool(type == pa.binary())


def _encoded(context: Context, place: Place, value: Scalar, to: pa.DataType) -> Scalar:
    return Scalar(f"encode({value.sql})", to, value.fails)


def _decoded(context: Context, place: Place, value: Scalar, to: pa.DataType) -> Scalar:
    return Scalar(f"decode({value.sql})", to, fails=True)


def _truth_to_decimal(context: Context, place: Place, value: Scalar, to: pa.DataType) -> Scalar:
    return _to_decimal(context, place, _plain(context, place, value, pa.int32()), to)


def _instant_to_number(context: Context, place: Place, value: Scalar, to: pa.DataType) -> Scalar:
    """By its seconds since 1970: whole ones for an integer."""
    if is_integer(to):
        return _checked(context, place, Scalar(macro("spark_unix_seconds", value.sql), pa.int64(), value.fails), to)
    if is_decimal(to):
        exact = f"(CAST(epoch_us({value.sql}) AS DECIMAL(19,0)) * CAST(0.000001 AS DECIMAL(6,6)))"
        return _to_decimal(context, place, Scalar(exact, pa.decimal128(25, 6), value.fails), to)
    seconds = f"(CAST(epoch_us({value.sql}) AS DOUBLE) / CAST(1000000 AS DOUBLE))"
    return cast(context, place, Scalar(seconds, pa.float64(), value.fails), to)


def _seconds_to_instant(context: Context, place: Place, value: Scalar, to: pa.DataType) -> Scalar:
    if is_integer(value.type):
        micros = f"(CAST({value.sql} AS BIGINT) * CAST(1000000 AS BIGINT))"
    else:
        micros = macro("spark_double_to_bigint", f"(CAST({value.sql} AS DOUBLE) * CAST(1000000 AS DOUBLE))")
    return Scalar(f"make_timestamp({micros})", to, fails=True)


def _is_exact(type: pa.DataType) -> bool:
    return is_integer(type) or is_decimal(type)


def _retyped(context: Context, place: Place, value: Scalar, to: pa.DataType) -> Scalar:
    return Scalar(value.sql, to, value.fails)


_CASTS: tuple[tuple[Callable[[pa.DataType], bool], Callable[[pa.DataType], bool], Cast], ...] = (
    (is_integer, is_integer, _integer_to_integer),
    (is_integer, is_floating, _plain),
    (_is_exact, is_decimal, _to_decimal),
    (is_integer, is_string, _plain),
    (is_decimal, is_string, _decimal_to_text),
    (is_numeric, is_boolean, _plain),
    (is_decimal, is_integer, _decimal_to_integer),
    (is_decimal, is_floating, _decimal_to_floating),
    (is_floating, is_integer, _floating_to_integer),
    (is_floating, is_decimal, _floating_to_decimal),
    (is_floating, is_floating, _floating_to_floating),
    (is_boolean, is_integer, _plain),
    (is_boolean, is_floating, _plain),
    (is_boolean, is_decimal, _truth_to_decimal),
    (is_boolean, is_string, _plain),
    (is_string, is_integer, _text_to_integer),
    (is_string, is_decimal, _text_to_decimal),
    (is_string, _is_double, _checked_by("spark_double_of_text")),
    (is_string, _is_float, _checked_by("spark_float_of_text")),
    (_is_binary, is_string, _decoded),
    (is_string, is_date, _checked_by("spark_date_of_text")),
    (is_string, is_boolean, _checked_by("spark_boolean_of_text")),
    (is_string, _is_binary, _encoded),
    (is_string, is_wall_clock, _text_to_clock),
    (is_string, is_instant, _text_to_instant),
    (is_date, is_string, _checked_by("spark_text_of_date")),
    (is_date, is_wall_clock, _plain),
    (is_wall_clock, is_date, _plain),
    (is_wall_clock, is_string, _checked_by("spark_text_of_timestamp")),
    (is_instant, is_numeric, _instant_to_number),
    (is_integer, is_instant, _seconds_to_instant),
    (is_floating, is_instant, _seconds_to_instant),
    (is_date, is_instant, _day_to_instant),
    (is_instant, is_date, _of_clock(_plain)),
    (is_instant, is_string, _of_clock(_checked_by("spark_text_of_timestamp"))),
    (is_instant, is_wall_clock, _of_clock(_retyped)),
    (is_wall_clock, is_instant, _from_clock(_retyped)),
)


def rounded_double(value: Scalar, places: int) -> Scalar:
    """A DOUBLE rounded to some places: Spark rounds the digits that it would print."""
    text = f"CAST(CAST(v AS VARCHAR) AS DECIMAL({DECIMAL_DIGITS_MAX}, {places}))"
    whole = "isnan(v) OR isinf(v) OR abs(v) >= 4503599627370496"  # 2^52: from there on all are whole
    sql = f"CASE WHEN {whole} THEN v ELSE CAST(CAST({text} AS VARCHAR) AS DOUBLE) END"
    return opaque(strict(f"list_transform([{value.sql}], lambda v: {sql})[1]", value.type, (value,)))
