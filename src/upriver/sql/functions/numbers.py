"""Functions of numbers: arithmetic with other overflow, rounding, bits, and the functions of analysis."""

from collections.abc import Callable

import pyarrow as pa

from upriver.plan.relation import Scalar, any_fails
from upriver.plan.source import Place
from upriver.plan.types import (
    DECIMAL_DIGITS_MAX,
    bounded_decimal,
    duck_name,
    is_decimal,
    is_integer,
    is_null,
    is_numeric,
)
from upriver.sql.functions.arithmetic import (
    CAST_IT,
    arithmetic,
    as_doubles,
    modulo,
    negated,
    shifted,
    to_common,
    whole_divide,
)
from upriver.sql.functions.casts import cast, rounded_double
from upriver.sql.functions.decimals import are_decimals, quotient, with_sign
from upriver.sql.functions.logic import choose
from upriver.sql.functions.scalars import (
    Context,
    in_order,
    intolerant,
    literal,
    macro,
    never_null,
    opaque,
    strict,
    typed_name,
)
from upriver.sql.functions.signatures import RAISES, Function, OperandKind, Operands, Special, take
from upriver.sql.functions.tries import tried

PLACES_MAX = 15
"""The largest number of places to which a DOUBLE is rounded."""

_INT, _LONG, _DOUBLE, _STRING = pa.int32(), pa.int64(), pa.float64(), pa.string()
_X, _N, _WHOLE, _COUNT = OperandKind.DOUBLE, OperandKind.NUMBER, OperandKind.WHOLE, OperandKind.INT
Combine = Callable[[Context, Place, Scalar, Scalar], Scalar]


def double(context: Context, place: Place, value: Scalar) -> Scalar:
    if not (is_numeric(value.type) or is_null(value.type)):
        raise context.unsupported(place, f"{typed_name(value)} where a number is wanted", CAST_IT)
    return cast(context, place, value, pa.float64())


def _absolute(context: Context, place: Place, operands: Operands) -> Scalar:
    (value,) = operands
    if not is_numeric(value.type):
        raise context.unsupported(place, f"abs() of {typed_name(value)}", CAST_IT)
    if is_decimal(value.type):
        return with_sign("abs", value)
    return strict(f"abs({value.sql})", value.type, (value,), fails=is_integer(value.type))


def _to_whole(function: str) -> Special:
    """``floor`` or ``ceil``: of a double or an integer a BIGINT, of a decimal a decimal without places."""

    def rule(context: Context, place: Place, operands: Operands) -> Scalar:
        (value,) = operands
        if is_integer(value.type):
            return cast(context, place, value, pa.int64())
        if is_decimal(value.type):
            if not value.type.scale:
                return strict(value.sql, value.type, (value,))
            type = pa.decimal128(value.type.precision - value.type.scale + 1, 0)
            return strict(f"CAST({function}({value.sql}) AS {duck_name(type)})", type, (value,))
        number = double(context, place, value)
        return strict(macro(f"spark_{function}", number.sql), pa.int64(), (number,), fails=True)

    return rule


def _rounded_decimal(value: Scalar, places: int, form: str) -> Scalar:
    """A decimal rounded to some places, which may have one more digit before its point. form: SQL that rounds it; to
    places below 0, half up."""
    before = value.type.precision - value.type.scale + 1
    if places < 0:
        type = bounded_decimal(max(before, 1 - places), 0)
        wide = bounded_decimal(value.type.precision + 1, value.type.scale)
        rounded = f"round(CAST({value.sql} AS {duck_name(wide)}), {places})"
        if -places >= before:  # of NULL, DuckDB would make 0, too
            rounded = f"CASE WHEN {value.sql} IS NOT NULL THEN 0 END"
        sql = f"CAST({rounded} AS {duck_name(type)})"
        return opaque(strict(sql, type, (value,), fails=value.type.precision == DECIMAL_DIGITS_MAX))
    scale = min(places, value.type.scale)
    type = bounded_decimal(before + scale, scale)
    sql = f"CAST({form.format(value.sql, scale)} AS {duck_name(type)})"
    return opaque(strict(sql, type, (value,), fails=before + scale > type.precision and scale < value.type.scale))


def _rounded(context: Context, place: Place, operands: Operands) -> Scalar:
    """``round``, half up."""
    value = operands[0]
    places = operands[1].constant if len(operands) > 1 else 0
    if not isinstance(places, int):
        raise context.unsupported(place, "round() to computed places", "Give a constant number of places.")
    if is_integer(value.type) and places < 0:
        return opaque(strict(f"round({value.sql}, {places})", value.type, (value,), fails=True))
    if is_integer(value.type):
        return opaque(value)
    if is_decimal(value.type):
        return _rounded_decimal(value, places, "{0}")
    if value.type == pa.float64() and 0 < places <= PLACES_MAX:
        return rounded_double(value, places)
    if value.type != pa.float64() or places:
        what = f"round() of {typed_name(value)} to {places} places"
        raise context.unsupported(place, what, "Round when you read the view, or compute with DECIMAL.")
    rounded = f"(round({value.sql}) + CAST(0 AS DOUBLE))"  # -0.4 gives 0.0, not -0.0
    return opaque(strict(rounded, value.type, (value,)))


def _rounded_even(context: Context, place: Place, operands: Operands) -> Scalar:
    """``bround``, half even."""
    value = operands[0]
    places = operands[1].constant if len(operands) > 1 else 0
    if not isinstance(places, int) or places < 0:
        raise context.unsupported(place, "bround() to these places", "Give a constant number of places, 0 or more.")
    if is_integer(value.type):
        return opaque(value)
    if is_decimal(value.type):
        return _rounded_decimal(value, places, "round_even({0}, {1})")
    if value.type != pa.float64() or places:
        what = f"bround() of {typed_name(value)} to {places} places"
        raise context.unsupported(place, what, "Round when you read the view, or compute with DECIMAL.")
    return opaque(strict(f"(round_even({value.sql}, 0) + CAST(0 AS DOUBLE))", value.type, (value,)))


def _positive_modulo(context: Context, place: Place, operands: Operands) -> Scalar:
    left, right = operands
    if not is_integer(left.type) or not is_integer(right.type):
        raise context.unsupported(place, f"pmod() of {typed_name(left)} and {typed_name(right)}", CAST_IT)
    right, left = in_order(*reversed(to_common(context, place, (left, right))))
    if isinstance(right.constant, int) and right.constant > 0:
        return strict(macro("spark_pmod", left.sql, right.sql), left.type, (left, right))
    sql = macro("spark_pmod_any", left.sql, right.sql, str(left.type.bit_width))
    return strict(f"CAST({sql} AS {duck_name(left.type)})", left.type, (left, right), fails=True)


def _two(combine: Combine) -> Special:
    return lambda context, place, operands: combine(context, place, operands[0], operands[1])


def try_divide(context: Context, place: Place, left: Scalar, right: Scalar) -> Scalar:
    if are_decimals(left, right):
        return tried(lambda context, place, operands: quotient(context, place, *operands))(
            context, place, (left, right)
        )
    right, left = in_order(*reversed(as_doubles(context, place, left, right)))
    divided = Scalar(macro("spark_try_divide", left.sql, right.sql), pa.float64(), any_fails((left, right)))
    return intolerant(divided, (left, right))


def _or_null(combine: Combine, words: str) -> Special:
    """``try_add`` and its kin, of numbers."""

    def build(context: Context, place: Place, operands: Operands) -> Scalar:
        if not all(is_numeric(value.type) for value in operands):
            names = " and ".join(map(typed_name, operands))
            raise context.unsupported(place, f"{words} of {names}", "Take numbers.")
        return combine(context, place, *operands)

    return tried(build)


def _signum(context: Context, place: Place, operands: Operands) -> Scalar:
    value = double(context, place, operands[0])
    return strict(macro("spark_signum", value.sql), pa.float64(), (value,))


def _is_nan(context: Context, place: Place, operands: Operands) -> Scalar:
    value = double(context, place, operands[0])
    return never_null(Scalar(f"coalesce(isnan({value.sql}), FALSE)", pa.bool_(), value.fails))


def _not_a_number(context: Context, place: Place, operands: Operands) -> Scalar:
    """``nanvl(a, b)``: b where a is NaN."""
    value, other = (double(context, place, operand) for operand in operands)
    test = Scalar(f"isnan({value.sql})", pa.bool_(), value.fails)
    return choose(context, place, [(test, other)], value)


def _positive(context: Context, place: Place, operands: Operands) -> Scalar:
    (value,) = operands
    if not is_numeric(value.type):
        raise context.unsupported(place, f"positive() of {typed_name(value)}", CAST_IT)
    return opaque(value)


def _bit_count(context: Context, place: Place, operands: Operands) -> Scalar:
    (value,) = operands
    if not (is_integer(value.type) or pa.types.is_boolean(value.type)):
        raise context.unsupported(place, f"bit_count() of {typed_name(value)}", CAST_IT)
    sql = f"CAST(bit_count(CAST({value.sql} AS BIGINT)) AS INTEGER)"
    return strict(sql, _INT, (value,))


def _bit(context: Context, place: Place, operands: Operands) -> Scalar:
    value, number = operands[0], take(context, place, _COUNT, operands[1])
    if not is_integer(value.type):
        raise context.unsupported(place, f"bits of {typed_name(value)}", CAST_IT)
    value, number = in_order(value, number)
    sql = macro("spark_bit", f"CAST({value.sql} AS BIGINT)", number.sql, str(value.type.bit_width))
    return strict(sql, pa.int8(), (value, number), fails=True)


def _logarithm(context: Context, place: Place, operands: Operands) -> Scalar:
    """``log(x)``, and ``log(base, x)``; NULL where one is not positive."""
    values = in_order(*(double(context, place, value) for value in operands))
    name = "spark_ln" if len(values) == 1 else "spark_log"
    return intolerant(Scalar(macro(name, *(v.sql for v in values)), _DOUBLE, any_fails(values)), values)


def _constant(value: float) -> Special:
    return lambda context, place, operands: literal(value, _DOUBLE)


def _cast_to(type: pa.DataType) -> Special:
    """``int(x)`` and its kin."""
    return lambda context, place, operands: cast(context, place, operands[0], type)


def _of_double(names: str, sql: str, nulls: str = "") -> Function:
    name = names.split()[0]
    samples = "; ".join(f"{name}({column})" for column in ("x", "w", "z", "i", "lmax"))
    return Function(names, (_X,), sql, _DOUBLE, nulls=nulls, samples=samples)


def _turned(names: str, sql: str) -> Function:
    """A function of an angle: the last digit of its result is the processor's, in Spark, too."""
    return Function(names, (_X,), sql, _DOUBLE, is_rough=True, samples=f"{names}(x); {names}(w); {names}(z)")


def _try(name: str, combine: Combine) -> Function:
    samples = "; ".join(
        f"{name}({pair})" for pair in ("i, j", "imax, i", "lmax, l", "ymax, y", "x, w", "p, j", "lmax, imax", "i, 0")
    )
    return Function(
        name,
        (_N, _N),
        _or_null(combine, f"{name}()"),
        "the type of the operator",
        nulls="where the operator would raise",
        samples=samples,
    )


_ZERO = "where the divisor is 0"
_NOT_POSITIVE = "also for 0 and less"

NUMBERS: tuple[Function, ...] = (
    Function(
        "abs",
        (_N,),
        _absolute,
        "the operand's type",
        fails="for the least integer",
        lenient="the operand",
        samples="abs(i); abs(lmax); abs(x); abs(p); abs(f)",
    ),
    Function("sign signum", (_X,), _signum, "DOUBLE", samples="sign(x); sign(p); sign(imax); signum(f)"),
    Function(
        "floor",
        (_N,),
        _to_whole("floor"),
        "BIGINT, or DECIMAL of a DECIMAL",
        fails="where a DOUBLE does not fit",
        lenient="the nearest BIGINT",
        samples="floor(z); floor(p); floor(i); floor(x)",
    ),
    Function(
        "ceil ceiling",
        (_N,),
        _to_whole("ceil"),
        "BIGINT, or DECIMAL of a DECIMAL",
        fails="where a DOUBLE does not fit",
        lenient="the nearest BIGINT",
        samples="ceil(z); ceiling(p); ceil(i); ceil(x)",
    ),
    Function(
        "round",
        (_N, _COUNT),
        _rounded,
        "the operand's type",
        1,
        samples="round(x); round(p, 1); round(x, 2); round(imax); round(q)",
    ),
    Function(
        "bround",
        (_N, _COUNT),
        _rounded_even,
        "the operand's type",
        1,
        samples="bround(x); bround(p, 1); bround(imax); bround(q); bround(p); bround(z)",
    ),
    Function("rint", (_X,), "round_even({0}, 0)", _DOUBLE, samples="rint(x); rint(p); rint(z)"),
    Function("sqrt", (_X,), "sqrt({0})", _DOUBLE, samples="sqrt(w); sqrt(i); sqrt(x)"),
    Function("div", (_N, _N), _two(whole_divide), "BIGINT", fails=_ZERO, samples="div(i, j); div(lmax, y); div(q, p)"),
    Function("mod", (_N, _N), _two(modulo), "the common type", fails=_ZERO, samples="mod(i, j); mod(lmax, y)"),
    Function(
        "pmod",
        (_WHOLE, _WHOLE),
        _positive_modulo,
        "the common type",
        fails=_ZERO,
        samples="pmod(i, 3); pmod(l, 7); pmod(i, j); pmod(lmax, y); pmod(imax, -7); pmod(imax, i); pmod(ymax, y)",
    ),
    Function(
        "negative",
        (_N,),
        lambda context, place, operands: negated(context, place, operands[0]),
        "the operand's type",
        fails="for the least integer",
        lenient="the operand",
        samples="negative(i); negative(lmax); negative(p); negative(x)",
    ),
    Function("positive", (_N,), _positive, "the operand's type", samples="positive(i); positive(x); positive(p)"),
    Function(
        "try_divide",
        (_N, _N),
        _two(try_divide),
        "DOUBLE, or DECIMAL of a DECIMAL",
        nulls=f"also {_ZERO}",
        samples="try_divide(i, j); try_divide(x, w); try_divide(lmax, l); try_divide(p, j); try_divide(q, p)",
    ),
    _try("try_add", lambda context, place, left, right: arithmetic(context, place, "+", left, right)),
    _try("try_subtract", lambda context, place, left, right: arithmetic(context, place, "-", left, right)),
    _try("try_multiply", lambda context, place, left, right: arithmetic(context, place, "*", left, right)),
    _try("try_mod", modulo),
    Function("isnan", (_X,), _is_nan, "BOOLEAN", nulls="never", samples="isnan(x); isnan(f)"),
    Function(
        "nanvl",
        (_X, _X),
        _not_a_number,
        "DOUBLE",
        nulls="where the chosen operand is",
        samples="nanvl(x, w); nanvl(f, x); nanvl(x, i)",
    ),
    Function("e", (), _constant(2.718281828459045), "DOUBLE", samples="e() + x"),
    Function("pi", (), _constant(3.141592653589793), "DOUBLE", samples="pi() * x"),
    _of_double("degrees", "degrees({0})"),
    _of_double("radians", "radians({0})"),
    _of_double("exp", "kernel_exp({0})"),
    _of_double("expm1", "kernel_expm1({0})"),
    _of_double("ln", "spark_ln", _NOT_POSITIVE),
    Function(
        "log",
        (_X, _X),
        _logarithm,
        "DOUBLE",
        1,
        nulls=_NOT_POSITIVE,
        samples="log(x); log(w, x); log(2, i); log(1D, w); log(lmax); log(10, lmax)",
    ),
    _of_double("log2", "spark_log2", _NOT_POSITIVE),
    _of_double("log10", "spark_log10", _NOT_POSITIVE),
    _of_double("log1p", "spark_log1p", "also for -1 and less"),
    Function(
        "power pow",
        (_X, _X),
        "kernel_pow({0}, {1})",
        _DOUBLE,
        samples="power(x, w); power(w, x); pow(i, j); pow(x, 2); power(z, i); power(-1.5, i); power(lmax, x)",
    ),
    _of_double("cbrt", "kernel_cbrt({0})"),
    Function("hypot", (_X, _X), "kernel_hypot({0}, {1})", _DOUBLE, samples="hypot(x, w); hypot(i, j); hypot(x, x)"),
    _of_double("asin", "kernel_asin({0})"),
    _of_double("acos", "kernel_acos({0})"),
    _of_double("atan", "kernel_atan({0})"),
    Function(
        "atan2",
        (_X, _X),
        "kernel_atan2({0} + CAST(0 AS DOUBLE), {1} + CAST(0 AS DOUBLE))",
        _DOUBLE,
        samples="atan2(x, w); atan2(i, j); atan2(x, x)",
    ),
    _of_double("sinh", "kernel_sinh({0})"),
    _of_double("cosh", "kernel_cosh({0})"),
    _of_double("tanh", "kernel_tanh({0})"),
    _of_double("atanh", "(CAST(0.5 AS DOUBLE) * (kernel_log1p({0}) - kernel_log1p(-{0})))"),
    _of_double("asinh", "kernel_asinh({0})"),
    _of_double("acosh", "kernel_acosh({0})"),
    _turned("sin", "spark_sin"),
    _turned("cos", "spark_cos"),
    _turned("tan", "spark_tan"),
    _turned("cot", "(CAST(1 AS DOUBLE) / spark_tan({0}))"),
    _turned("sec", "(CAST(1 AS DOUBLE) / spark_cos({0}))"),
    _turned("csc", "(CAST(1 AS DOUBLE) / spark_sin({0}))"),
    Function(
        "factorial",
        (_COUNT,),
        "spark_factorial",
        _LONG,
        nulls="also outside 0 to 20",
        samples="factorial(i); factorial(y); factorial(imax)",
    ),
    Function(
        "width_bucket",
        (_X, _X, _X, _WHOLE),
        "spark_width_bucket",
        _LONG,
        nulls="also for bounds that are equal or not finite, and without buckets",
        is_opaque=True,
        samples="width_bucket(x, w, z, l); width_bucket(i, 0, 10, 5); width_bucket(z, 10, -10, j); "
        "width_bucket(w, x, 1, 3)",
    ),
    Function("bin", (_WHOLE,), "bin({0})", _STRING, samples="bin(l); bin(imax); bin(lmax); bin(y)"),
    Function(
        "conv",
        (OperandKind.STRING, _COUNT, _COUNT),
        "spark_conv",
        _STRING,
        nulls="also for bases other than 2 to 36, and for an empty text",
        fails="where the number does not fit 64 bits",
        lenient="the greatest number",
        is_opaque=True,
        samples="conv(hex(l), 16, 10); conv(digits, 10, 2); conv(digits, 8, -7); conv(hex(lmax), 16, -10); "
        "conv('-' || hex(lmax), 16, 10); conv(bin(l), 2, 36); conv(floats, 30, i); "
        "conv(hex(lmax) || y, 16, 5); conv(u, j, 10); conv(s, 36, 2)",
    ),
)
"""Of numbers."""

_FAR_BIT = "where there is no such bit"
BITS: tuple[Function, ...] = (
    Function(
        "shiftleft",
        (_WHOLE, _COUNT),
        _two(shifted("shiftleft")),
        "BIGINT or INT",
        samples="shiftleft(i, j); shiftleft(lmax, y)",
    ),
    Function(
        "shiftright",
        (_WHOLE, _COUNT),
        _two(shifted("shiftright")),
        "BIGINT or INT",
        samples="shiftright(i, j); shiftright(lmax, y)",
    ),
    Function(
        "shiftrightunsigned",
        (_WHOLE, _COUNT),
        _two(shifted("shiftrightunsigned")),
        "BIGINT or INT",
        samples="shiftrightunsigned(i, j); shiftrightunsigned(lmax, y)",
    ),
    Function(
        "bit_count",
        (OperandKind.ANY,),
        _bit_count,
        "INT",
        samples="bit_count(i); bit_count(lmax); bit_count(ymax); bit_count(b)",
    ),
    Function(
        "bit_get getbit",
        (_WHOLE, _COUNT),
        _bit,
        "TINYINT",
        fails=_FAR_BIT,
        lenient=RAISES,
        samples="bit_get(i, 3); getbit(lmax, i); bit_get(ymax, 7); bit_get(imax, abs(j))",
    ),
    Function(
        "bitmap_bit_position",
        (_WHOLE,),
        "spark_bitmap_bit_position",
        _LONG,
        samples="bitmap_bit_position(l); bitmap_bit_position(i); bitmap_bit_position(lmax)",
    ),
    Function(
        "bitmap_bucket_number",
        (_WHOLE,),
        "spark_bitmap_bucket_number",
        _LONG,
        samples="bitmap_bucket_number(l); bitmap_bucket_number(i); bitmap_bucket_number(lmax)",
    ),
)
"""Of bits."""

_NO_TEXT = "where a value does not fit, or a text is none"
CASTS: tuple[Function, ...] = tuple(
    Function(
        name,
        (OperandKind.ANY,),
        _cast_to(type),
        word,
        fails=_NO_TEXT,
        lenient="NULL, or another value",
        samples=samples,
    )
    for name, type, word, samples in (
        ("boolean", pa.bool_(), "BOOLEAN", "boolean(i); boolean(truths)"),
        ("tinyint", pa.int8(), "TINYINT", "tinyint(i); tinyint(digits)"),
        ("smallint", pa.int16(), "SMALLINT", "smallint(i); smallint(z)"),
        ("int", pa.int32(), "INT", "int(z); int(digits); int(s)"),
        ("bigint", pa.int64(), "BIGINT", "bigint(digits); bigint(x)"),
        ("float", pa.float32(), "FLOAT", "float(i); float(l)"),
        ("double", pa.float64(), "DOUBLE", "double(i); double(floats); double(p)"),
        ("decimal", pa.decimal128(10, 0), "DECIMAL(10,0)", "decimal(i); decimal(x); decimal(digits)"),
        ("string", pa.string(), "STRING", "string(i); string(d); string(b); string(p)"),
        ("binary", pa.binary(), "BINARY", "binary(s); binary(k)"),
        ("date", pa.date32(), "DATE", "date(n); date(days)"),
    )
)
"""Casts that are written as calls."""
