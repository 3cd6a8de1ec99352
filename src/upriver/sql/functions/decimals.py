"""Arithmetic of decimals: Spark's types, and which results DuckDB computes itself.

A type that would have more than 38 digits gives up places, down to six, and then rounds: Spark's adjustPrecisionScale.
DuckDB computes what needs no such rounding, and checks its range; a kernel
(:mod:`upriver.engine.wide_decimals`) computes the rest.
"""

from decimal import Decimal

import pyarrow as pa

from upriver.engine.wide_decimals import SCALA_DIGITS
from upriver.plan.relation import Scalar
from upriver.plan.source import Place
from upriver.plan.types import (
    DECIMAL_DIGITS_MAX,
    adjusted_decimal,
    as_decimal,
    bounded_decimal,
    decimal_kernel,
    duck_name,
    is_decimal,
    is_integer,
)
from upriver.sql.functions.casts import cast
from upriver.sql.functions.scalars import Context, in_order, literal, macro, strict

_PLACES_LEAST = 6
"""Decimal places that a quotient has at least, if there is room."""
_LONG_DIGITS_MAX = 18
"""DuckDB multiplies decimals of so many digits in 64 bits, unless one of them is wider."""
_OPERATIONS = {"+": "add", "-": "subtract", "*": "multiply"}


def are_decimals(left: Scalar, right: Scalar) -> bool:
    """Whether the common type of two numbers is a decimal."""
    exact = all(is_integer(value.type) or is_decimal(value.type) for value in (left, right))
    return exact and (is_decimal(left.type) or is_decimal(right.type))


def least_decimal(context: Context, place: Place, value: Scalar) -> Scalar:
    """A number as a decimal; an integer literal has only the digits it is written with."""
    if is_integer(value.type) and isinstance(value.constant, int):
        return literal(Decimal(value.constant), pa.decimal128(len(str(abs(value.constant))), 0))
    type = as_decimal(value.type)
    return value if type is None else cast(context, place, value, type)


def total(context: Context, place: Place, sign: str, left: Scalar, right: Scalar) -> Scalar:
    """``+``, ``-`` or ``*``."""
    left, right = least_decimal(context, place, left), least_decimal(context, place, right)
    a, b = left.type, right.type
    if sign == "*":
        precision, scale = a.precision + b.precision + 1, a.scale + b.scale
        fits = True
    else:
        scale = max(a.scale, b.scale)
        whole = max(_whole_digits(a), _whole_digits(b))
        precision = whole + scale + 1
        fits = whole + scale <= DECIMAL_DIGITS_MAX
    type = adjusted_decimal(precision, scale)
    if type.scale < scale or not fits:
        return _by_kernel(_OPERATIONS[sign], type, *in_order(left, right))
    operands = (type, type)
    if sign == "*":
        wide = precision > _LONG_DIGITS_MAX
        operands = (pa.decimal128(max(type.precision, _LONG_DIGITS_MAX + 1), a.scale) if wide else a, b)
    left, right = in_order(*(cast(context, place, *pair) for pair in zip((left, right), operands, strict=True)))
    sql = f"CAST(({left.sql} {sign} {right.sql}) AS {duck_name(type)})"
    return strict(sql, type, (left, right), fails=precision > DECIMAL_DIGITS_MAX)


def quotient(context: Context, place: Place, left: Scalar, right: Scalar) -> Scalar:
    """``/``."""
    left, right = least_decimal(context, place, left), least_decimal(context, place, right)
    a, b = left.type, right.type
    scale = max(_PLACES_LEAST, a.scale + b.precision + 1)
    type = adjusted_decimal(_whole_digits(a) + b.scale + scale, scale)
    right, left = in_order(right, left)
    return _by_kernel("divide", type, left, right)


def remainder(context: Context, place: Place, left: Scalar, right: Scalar) -> Scalar:
    """``%``: the sign is the left operand's."""
    left, right = least_decimal(context, place, left), least_decimal(context, place, right)
    a, b = left.type, right.type
    scale = max(a.scale, b.scale)
    type = adjusted_decimal(min(_whole_digits(a), _whole_digits(b)) + scale, scale)
    digits = max(_whole_digits(a), _whole_digits(b)) + scale
    if digits > DECIMAL_DIGITS_MAX:
        right, left = in_order(right, left)
        return _by_kernel("remainder", type, left, right)
    common = pa.decimal128(digits, scale)
    right, left = in_order(*(cast(context, place, value, common) for value in (right, left)))
    sql = f"CAST({macro('spark_fmod', left.sql, right.sql)} AS {duck_name(type)})"
    return strict(sql, type, (left, right), fails=True)


def whole_quotient(context: Context, place: Place, left: Scalar, right: Scalar) -> Scalar:
    """``DIV``, as BIGINT."""
    left, right = least_decimal(context, place, left), least_decimal(context, place, right)
    type = bounded_decimal(max(_whole_digits(left.type) + right.type.scale, 1), 0)
    right, left = in_order(right, left)
    sql = decimal_kernel("div", left.type, right.type, type)
    return strict(f"{sql}({left.sql}, {right.sql})", pa.int64(), (left, right), fails=True)


def with_sign(change: str, value: Scalar) -> Scalar:
    """A decimal with another sign. change: ``negate`` or ``abs``."""
    if value.type.precision <= SCALA_DIGITS:
        return strict(f"(-{value.sql})" if change == "negate" else f"abs({value.sql})", value.type, (value,))
    name = decimal_kernel(change, value.type, value.type)
    return strict(f"{name}({value.sql})", value.type, (value,), fails=True)


def _by_kernel(operation: str, type: pa.DataType, left: Scalar, right: Scalar) -> Scalar:
    name = decimal_kernel(operation, left.type, right.type, type)
    return strict(f"{name}({left.sql}, {right.sql})", type, (left, right), fails=True)


def _whole_digits(type: pa.DataType) -> int:
    digits: int = type.precision - type.scale
    return digits
