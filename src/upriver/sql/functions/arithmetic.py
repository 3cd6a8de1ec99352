"""Operators on numbers, and what they ask of their operands: types in common, conditions, overflow.

Lengths of time as they are written, ``'5 minutes'`` and INTERVAL; a date or a time moved by an INTERVAL.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal

import pyarrow as pa

from upriver.plan.relation import Scalar
from upriver.plan.source import ELSEWHERE, Place
from upriver.plan.types import (
    common_type,
    duck_name,
    is_boolean,
    is_date,
    is_decimal,
    is_floating,
    is_instant,
    is_integer,
    is_null,
    is_numeric,
    is_ordered,
    is_wall_clock,
)
from upriver.sql.functions.casts import cast, local, with_clock
from upriver.sql.functions.decimals import are_decimals, quotient, remainder, total, whole_quotient, with_sign
from upriver.sql.functions.scalars import Context, in_order, literal, macro, null, strict, typed_name

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
    """The length in microseconds; ``None`` if it has none, or is in months."""
    interval = _read(text)
    return interval.micros if interval is not None and interval.months == 0 else None


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


def moved_date(context: Context, place: Place, value: Scalar, interval: Interval, sign: int) -> Scalar:
    if interval.months:
        sql = f"CAST({value.sql} + to_months(CAST({sign * interval.months} AS INTEGER)) AS DATE)"
        return strict(sql, value.type, (value, _WRITTEN), fails=True)
    if not interval.in_days:
        raise context.unsupported(place, "DATE and INTERVAL of less than days", "CAST the DATE to TIMESTAMP.")
    days = sign * interval.micros // DAY_MICROS
    return strict(f"({value.sql} + CAST({days} AS INTEGER))", value.type, (value, _WRITTEN), fails=True)


def moved_clock(context: Context, place: Place, value: Scalar, interval: Interval, sign: int) -> Scalar:
    """As java.time: days and months are moved on the wall clock, and hours on the time line."""
    days, rest = divmod(abs(interval.micros), DAY_MICROS) if is_instant(value.type) else (0, abs(interval.micros))
    sign = -sign if interval.micros < 0 else sign
    sql = value.sql
    if days or interval.months:
        by = f"to_days(CAST({sign * days} AS INTEGER))"
        if interval.months:
            by = f"to_months(CAST({sign * interval.months} AS INTEGER))"
        sql = with_clock(context, value, lambda clock: f"({clock} + {by})")
    if rest:
        sql = f"({sql} + to_microseconds(CAST({sign * rest} AS BIGINT)))"
    return strict(sql, value.type, (value, _WRITTEN), fails=True)


def between(context: Context, place: Place, left: Scalar, right: Scalar) -> Scalar:
    """The INTERVAL from ``right`` to ``left``: days of dates; of times, what their wall clocks differ by."""
    left, right = in_order(left, right)
    if is_date(left.type) and is_date(right.type):
        sql = f"(CAST({left.sql} - {right.sql} AS BIGINT) * CAST({DAY_MICROS} AS BIGINT))"
        return strict(sql, _INTERVAL, (left, right))
    type = common_type(left.type, right.type)
    assert type is not None
    clocks = [cast(context, place, value, type) for value in (left, right)]
    if is_instant(type):
        clocks = [local(context, clock) for clock in clocks]
    return strict(f"(epoch_us({clocks[0].sql}) - epoch_us({clocks[1].sql}))", _INTERVAL, clocks)


_INTERVAL = pa.duration("us")
_WRITTEN = literal(0, pa.int32())
"""Stands for the length, a constant."""
CAST_IT = "Write the CAST that you mean."
_QUOTED_WHOLE = re.compile(r"[+-]?\d{1,18}", re.ASCII)
_QUOTED_NUMBER = re.compile(r"[+-]?\d{1,18}(?:\.\d{0,18})?", re.ASCII)


# Types that meet


def to_common(context: Context, place: Place, values: Sequence[Scalar]) -> tuple[Scalar, ...]:
    """All values in the common type that Spark would give them."""
    type = values[0].type
    for value in values[1:]:
        wider = common_type(type, value.type)
        if wider is None:
            names = f"{typed_name(Scalar('', type))} with {typed_name(value)}"
            raise context.unsupported(place, f"mixing {names}", CAST_IT)
        type = wider
    return tuple(cast(context, place, value, type) for value in values)


def to_comparable(context: Context, place: Place, values: Sequence[Scalar]) -> tuple[Scalar, ...]:
    """As ``to_common``, but a date, a time or a number may be compared with a quoted one."""
    moments = [
        value.type for value in values if is_date(value.type) or is_wall_clock(value.type) or is_instant(value.type)
    ]
    if moments:
        values = [
            cast(context, place, value, moments[0]) if isinstance(value.constant, str) else value for value in values
        ]
    same = to_common(context, place, _unquoted(context, place, values))
    if not is_ordered(same[0].type):
        raise context.unsupported(place, f"comparing {typed_name(same[0])}", ELSEWHERE)
    return same


def _unquoted(context: Context, place: Place, values: Sequence[Scalar]) -> Sequence[Scalar]:
    """The values, if some are numbers in quotes, as BIGINT where all others are integers, and else as DOUBLE."""
    others = [value for value in values if not isinstance(value.constant, str) and not is_null(value.type)]
    if len(others) == len(values) or not others or not all(is_numeric(value.type) for value in others):
        return values
    type = pa.int64() if all(is_integer(value.type) for value in others) else pa.float64()
    form = _QUOTED_WHOLE if is_integer(type) else _QUOTED_NUMBER
    if not all(form.fullmatch(value.constant) for value in values if isinstance(value.constant, str)):
        return values
    read = int if is_integer(type) else float
    return [
        literal(read(value.constant), type) if isinstance(value.constant, str) else cast(context, place, value, type)
        for value in values
    ]


def as_condition(context: Context, place: Place, value: Scalar) -> Scalar:
    """The value of a node, if it is a BOOLEAN or nothing but NULL. Raises UnsupportedSql for others."""
    if is_null(value.type):
        return null(pa.bool_())
    if not is_boolean(value.type):
        raise context.unsupported(place, f"{typed_name(value)} as a condition", CAST_IT)
    return value


# Literals


def negated(context: Context, place: Place, value: Scalar) -> Scalar:
    if is_integer(value.type):  # DuckDB's own minus widens constants
        return strict(f"(CAST(0 AS {duck_name(value.type)}) - {value.sql})", value.type, (value,), fails=True)
    if is_decimal(value.type):
        return with_sign("negate", value)
    if is_floating(value.type):
        return strict(f"(-{value.sql})", value.type, (value,))
    raise context.unsupported(place, f"minus of {typed_name(value)}", CAST_IT)


# Arithmetic


def arithmetic(context: Context, place: Place, sign: str, left: Scalar, right: Scalar) -> Scalar:
    """``+``, ``-`` or ``*`` of two numbers."""
    _need_numbers(context, place, left, right)
    if are_decimals(left, right):
        return total(context, place, sign, left, right)
    left, right = in_order(*to_common(context, place, (left, right)))
    return strict(f"({left.sql} {sign} {right.sql})", left.type, (left, right), fails=is_integer(left.type))


def _need_numbers(context: Context, place: Place, *values: Scalar) -> None:
    for value in values:
        if not is_numeric(value.type):
            raise context.unsupported(place, f"arithmetic on {typed_name(value)}", CAST_IT)


def as_doubles(context: Context, place: Place, left: Scalar, right: Scalar) -> tuple[Scalar, Scalar]:
    """The operands of ``/``, unless both are exact and one is a decimal."""
    _need_numbers(context, place, left, right)
    return cast(context, place, left, pa.float64()), cast(context, place, right, pa.float64())


def divide(context: Context, place: Place, left: Scalar, right: Scalar) -> Scalar:
    if are_decimals(left, right):
        return quotient(context, place, left, right)
    right, left = in_order(*reversed(as_doubles(context, place, left, right)))
    return strict(macro("spark_divide", left.sql, right.sql), pa.float64(), (left, right), fails=True)


def whole_divide(context: Context, place: Place, left: Scalar, right: Scalar) -> Scalar:
    """``DIV``: of integers or decimals, as BIGINT."""
    if are_decimals(left, right):
        return whole_quotient(context, place, left, right)
    if not is_integer(left.type) or not is_integer(right.type):
        raise context.unsupported(place, f"{typed_name(left)} DIV {typed_name(right)}", CAST_IT)
    right, left = in_order(*(cast(context, place, value, pa.int64()) for value in (right, left)))
    return strict(macro("spark_div", left.sql, right.sql), pa.int64(), (left, right), fails=True)


def modulo(context: Context, place: Place, left: Scalar, right: Scalar) -> Scalar:
    """``%``: the sign is the left operand's."""
    _need_numbers(context, place, left, right)
    if are_decimals(left, right):
        return remainder(context, place, left, right)
    right, left = in_order(*reversed(to_common(context, place, (left, right))))
    name = "spark_mod" if is_integer(left.type) else "spark_fmod"
    return strict(macro(name, left.sql, right.sql), left.type, (left, right), fails=True)


def bits(sign: str) -> Callable[[Context, Place, Scalar, Scalar], Scalar]:
    """``&``, ``|`` or ``^``."""

    def combine(context: Context, place: Place, left: Scalar, right: Scalar) -> Scalar:
        if not is_integer(left.type) or not is_integer(right.type):
            raise context.unsupported(place, f"bits of {typed_name(left)} and {typed_name(right)}", CAST_IT)
        left, right = in_order(*to_common(context, place, (left, right)))
        sql = f"xor({left.sql}, {right.sql})" if sign == "^" else f"({left.sql} {sign} {right.sql})"
        return strict(sql, left.type, (left, right))

    return combine


def shifted(name: str) -> Callable[[Context, Place, Scalar, Scalar], Scalar]:
    """``<<`` and its kin, by one of our macros. A BIGINT uses the last 6 bits of the distance; INT, for other integers,
    5."""

    def combine(context: Context, place: Place, value: Scalar, places: Scalar) -> Scalar:
        if not is_integer(value.type) or not is_integer(places.type) or places.type == pa.int64():
            raise context.unsupported(place, f"shifting {typed_name(value)} by {typed_name(places)}", CAST_IT)
        type = value.type if value.type == pa.int64() else pa.int32()
        value, places = in_order(cast(context, place, value, type), cast(context, place, places, pa.int32()))
        sql = macro(f"spark_{name}{type.bit_width}", value.sql, places.sql)
        return strict(f"CAST({sql} AS {duck_name(type)})", type, (value, places))

    return combine


def flipped(context: Context, place: Place, value: Scalar) -> Scalar:
    """``~``."""
    if not is_integer(value.type):
        raise context.unsupported(place, f"bits of {typed_name(value)}", CAST_IT)
    return strict(f"(~{value.sql})", value.type, (value,))
