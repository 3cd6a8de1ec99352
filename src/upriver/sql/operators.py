"""Operators, literals and the other constructs with a syntax of their own: one rule for each sqlglot class.

Lengths of time as they are written: ``'5 minutes'``, and INTERVAL. A date or a time moved by an INTERVAL.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal

import pyarrow as pa
from sqlglot import exp

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
    is_interval,
    is_null,
    is_numeric,
    is_ordered,
    is_wall_clock,
)
from upriver.sql.casts import cast, local, with_clock, within_range
from upriver.sql.decimals import are_decimals, quotient, remainder, total, whole_quotient, with_sign
from upriver.sql.scalars import Context, Rule, in_order, literal, macro, never_null, null, strict, typed_name

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


def interval_of(node: exp.Expr) -> Interval | None:
    """The length of ``INTERVAL ...``, if it is written as one number and one unit, or as such pairs in quotes."""
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


def moved(context: Context, node: exp.Expr) -> Scalar | None:
    """``moment + INTERVAL ...`` or ``moment - INTERVAL ...``; ``None`` for other operands."""
    moment, written = node.this, node.args["expression"]
    if isinstance(moment, exp.Interval) and isinstance(node, exp.Add):
        moment, written = written, moment
    if not isinstance(written, exp.Interval):
        return None
    interval = interval_of(written)
    if isinstance(moment, exp.Interval):
        return None
    if interval is None:
        raise context.unsupported(node, "this INTERVAL", "Give it one number and one unit: INTERVAL '5' MINUTE.")
    value = within_range(context.translate(moment))
    sign = -1 if isinstance(node, exp.Sub) else 1
    if is_date(value.type):
        return moved_date(context, node, value, interval, sign)
    if is_wall_clock(value.type) or is_instant(value.type):
        return moved_clock(context, node, value, interval, sign)
    if is_interval(value.type):
        return None
    raise context.unsupported(node, f"{typed_name(value)} and INTERVAL", ELSEWHERE)


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


def _is_moment(type: pa.DataType) -> bool:
    return is_date(type) or is_instant(type) or is_wall_clock(type)


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


def _interval(context: Context, node: exp.Expr) -> Scalar:
    """``INTERVAL '5' MINUTE`` as a value."""
    interval = interval_of(node)
    if interval is None or interval.months:
        raise context.unsupported(node, "this INTERVAL", "Give it one number and one unit: INTERVAL '5' MINUTE.")
    return Scalar(f"CAST({interval.micros} AS BIGINT)", _INTERVAL)


_INTERVAL = pa.duration("us")
_WRITTEN = literal(0, pa.int32())
"""Stands for the length, a constant."""
CAST_IT = "Write the CAST that you mean."
_QUOTED_WHOLE = re.compile(r"[+-]?\d{1,18}", re.ASCII)
_QUOTED_NUMBER = re.compile(r"[+-]?\d{1,18}(?:\.\d{0,18})?", re.ASCII)
_INT_MAX, _LONG_MAX = 2**31 - 1, 2**63 - 1
_ESCAPES_KEPT = frozenset("\\'\"ntrb%_")
_SUFFIXES = {"L": pa.int64(), "S": pa.int16(), "Y": pa.int8(), "D": pa.float64(), "F": pa.float32()}
TYPES = {
    exp.DType.BOOLEAN: pa.bool_(),
    exp.DType.TINYINT: pa.int8(),
    exp.DType.SMALLINT: pa.int16(),
    exp.DType.INT: pa.int32(),
    exp.DType.BIGINT: pa.int64(),
    exp.DType.FLOAT: pa.float32(),
    exp.DType.DOUBLE: pa.float64(),
    exp.DType.TEXT: pa.string(),
    exp.DType.BINARY: pa.binary(),
    exp.DType.DATE: pa.date32(),
    exp.DType.TIMESTAMPNTZ: pa.timestamp("us"),
}


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


def boolean(context: Context, node: exp.Expr) -> Scalar:
    return as_condition(context, node, context.translate(node))


def as_condition(context: Context, place: Place, value: Scalar) -> Scalar:
    """The value of a node, if it is a BOOLEAN or nothing but NULL. Raises UnsupportedSql for others."""
    if is_null(value.type):
        return null(pa.bool_())
    if not is_boolean(value.type):
        raise context.unsupported(place, f"{typed_name(value)} as a condition", CAST_IT)
    return value


# Literals


def number(text: str) -> Scalar:
    """An unquoted number, by Spark's rule: the first of INT, BIGINT and DECIMAL that holds it, or DOUBLE with an E."""
    if "e" in text.lower():
        return literal(float(text), pa.float64())
    value = Decimal(text)
    if value == value.to_integral_value() and "." not in text:
        whole = int(text)
        if -_INT_MAX - 1 <= whole <= _INT_MAX:
            return literal(whole, pa.int32())
        if -_LONG_MAX - 1 <= whole <= _LONG_MAX:
            return literal(whole, pa.int64())
    scale = -int(value.as_tuple().exponent)
    return literal(value, pa.decimal128(max(len(str(abs(int(value.scaleb(scale))))), scale), scale))


def _literal(context: Context, node: exp.Expr) -> Scalar:
    if not node.is_string:
        return number(node.this)
    start, end = node.meta.get("start"), node.meta.get("end")
    written = context.source.sql[start : end + 1] if start is not None and end is not None else ""
    escapes = [written[at + 1] for at in _backslashes(written)]
    if not _ESCAPES_KEPT.issuperset(escapes) or "\0" in node.this:
        raise context.unsupported(node, "this escape in a string", "Write the character itself.")
    return literal(node.this, pa.string())


def _raw(context: Context, node: exp.Expr) -> Scalar:
    """``r'...'``, in which a backslash is a letter."""
    if "\0" in node.this:
        raise context.unsupported(node, "NUL in a string", "Leave it out.")
    return literal(node.this, pa.string())


def _backslashes(written: str) -> list[int]:
    found, at = [], written.find("\\")
    while at >= 0:
        found.append(at)
        at = written.find("\\", at + 2)
    return found


def _adjacent(context: Context, node: exp.Expr) -> Scalar:
    parts = context.translate_all(node.expressions)
    return literal("".join(str(part.constant) for part in parts), pa.string())


def suffixed(context: Context, node: exp.Expr) -> Scalar | None:
    """``5L`` and the like, which sqlglot reads as a cast."""
    inner = node.this
    end = inner.meta.get("end")
    if not isinstance(inner, exp.Literal) or inner.is_string or end is None:
        return None
    type = _SUFFIXES.get(context.source.sql[end].upper())
    if type is None:
        return None
    if is_integer(type):
        return literal(int(inner.this), type)
    if type == pa.float64():
        return literal(float(inner.this), type)
    return never_null(Scalar(f"CAST('{inner.this}' AS FLOAT)", type))


def _negative(context: Context, node: exp.Expr) -> Scalar:
    context.only(node, "this")
    if isinstance(node.this, exp.Literal) and not node.this.is_string:
        return number("-" + node.this.this)  # Spark reads the sign as part of the number: -2147483648 is an INT
    short = suffixed(context, node.this) if isinstance(node.this, exp.Cast) else None
    if short is not None and isinstance(short.constant, int | float):
        return literal(-short.constant, short.type)
    return negated(context, node, context.translate(node.this))


def negated(context: Context, place: Place, value: Scalar) -> Scalar:
    if is_integer(value.type):  # DuckDB's own minus widens constants
        return strict(f"(CAST(0 AS {duck_name(value.type)}) - {value.sql})", value.type, (value,), fails=True)
    if is_decimal(value.type):
        return with_sign("negate", value)
    if is_floating(value.type):
        return strict(f"(-{value.sql})", value.type, (value,))
    raise context.unsupported(place, f"minus of {typed_name(value)}", CAST_IT)


# Arithmetic


def _arithmetic(sign: str) -> Rule:
    def rule(context: Context, node: exp.Expr) -> Scalar:
        context.only(node, "this", "expression")
        shifted = moved(context, node) if sign in "+-" else None
        if shifted is not None:
            return shifted
        left, right = context.translate(node.this), context.translate(node.expression)
        if sign == "-" and _is_moment(left.type) and _is_moment(right.type):
            return between(context, node, left, right)
        if sign in "+-" and is_interval(left.type) and is_interval(right.type):
            return strict(f"({left.sql} {sign} {right.sql})", left.type, (left, right), fails=True)
        if any(is_instant(side.type) or is_wall_clock(side.type) for side in (left, right)):
            raise _moment_arithmetic(context, node, sign, left, right)
        if is_date(left.type) or is_date(right.type):
            return _date_arithmetic(context, node, sign, left, right)
        return arithmetic(context, node, sign, left, right)

    return rule


def arithmetic(context: Context, place: Place, sign: str, left: Scalar, right: Scalar) -> Scalar:
    """``+``, ``-`` or ``*`` of two numbers."""
    _need_numbers(context, place, left, right)
    if are_decimals(left, right):
        return total(context, place, sign, left, right)
    left, right = in_order(*to_common(context, place, (left, right)))
    return strict(f"({left.sql} {sign} {right.sql})", left.type, (left, right), fails=is_integer(left.type))


def _date_arithmetic(context: Context, place: Place, sign: str, left: Scalar, right: Scalar) -> Scalar:
    if sign == "+" and is_date(right.type):
        left, right = right, left
    left = within_range(left)
    if sign not in "+-" or not is_date(left.type) or not is_integer(right.type) or right.type == pa.int64():
        raise context.unsupported(
            place, f"{typed_name(left)} {sign} {typed_name(right)}", "Use date_add() or datediff()."
        )
    left, right = in_order(left, cast(context, place, right, pa.int32()))
    return strict(f"({left.sql} {sign} {right.sql})", left.type, (left, right), fails=True)


def _moment_arithmetic(context: Context, place: Place, sign: str, left: Scalar, right: Scalar) -> Exception:
    """The error for a sum of two times, or of a time and a number or an interval that is computed."""
    what = f"{typed_name(left)} {sign} {typed_name(right)}"
    return context.unsupported(place, what, "Add or take away an INTERVAL: t + INTERVAL '5' MINUTE.")


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


def _binary(combine: Callable[[Context, Place, Scalar, Scalar], Scalar]) -> Rule:
    def rule(context: Context, node: exp.Expr) -> Scalar:
        extra = ("typed", "safe") if isinstance(node, exp.Div) else ()
        context.only(node, "this", "expression", *extra)
        return combine(context, node, context.translate(node.this), context.translate(node.expression))

    return rule


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


def _flipped(context: Context, node: exp.Expr) -> Scalar:
    context.only(node, "this")
    return flipped(context, node, context.translate(node.this))


def flipped(context: Context, place: Place, value: Scalar) -> Scalar:
    """``~``."""
    if not is_integer(value.type):
        raise context.unsupported(place, f"bits of {typed_name(value)}", CAST_IT)
    return strict(f"(~{value.sql})", value.type, (value,))


OPERATORS: dict[type[exp.Expr], Rule] = {
    exp.Literal: _literal,
    exp.RawString: _raw,
    exp.Concat: _adjacent,
    exp.Neg: _negative,
    exp.Interval: _interval,
    exp.Add: _arithmetic("+"),
    exp.Sub: _arithmetic("-"),
    exp.Mul: _arithmetic("*"),
    exp.Div: _binary(divide),
    exp.IntDiv: _binary(whole_divide),
    exp.Mod: _binary(modulo),
    exp.BitwiseAnd: _binary(bits("&")),
    exp.BitwiseOr: _binary(bits("|")),
    exp.BitwiseXor: _binary(bits("^")),
    exp.BitwiseLeftShift: _binary(shifted("shiftleft")),
    exp.BitwiseRightShift: _binary(shifted("shiftright")),
    exp.BitwiseNot: _flipped,
}
