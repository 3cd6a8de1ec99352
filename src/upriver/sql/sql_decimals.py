"""Arithmetic of decimals that DuckDB has not, or not as Spark: ``/`` and ``%``.

Spark's rules for the digits of a result are in its DecimalPrecision; where it would cut digits off, we refuse.
"""

from sqlglot import exp

from upriver.plan.algebra import Scalar
from upriver.plan.sql_types import DECIMAL_DIGITS_MAX, decimal_type, duck_name
from upriver.sql.sql_casts import cast
from upriver.sql.sql_scalar import Context, in_order, macro, strict

_PLACES_LEAST = 6
"""Places that a quotient has at least."""

_NARROWER = "CAST an operand to a narrower DECIMAL, or to DOUBLE (a literal: 2.5D)."


def quotient(context: Context, node: exp.Expr, left: Scalar, right: Scalar) -> Scalar:
    """``left / right``, rounded half up. Both are decimals.

    It is computed of whole numbers: so many digits must fit that Spark's own rounding, which is done twice, is exact.
    """
    a, b = left.type, right.type
    scale = max(_PLACES_LEAST, a.scale + b.precision + 1)
    type = decimal_type(a.precision - a.scale + b.scale + scale, scale)
    shift = scale - a.scale + b.scale
    if type is None or a.precision + shift >= DECIMAL_DIGITS_MAX or scale + b.precision >= DECIMAL_DIGITS_MAX:
        raise context.unsupported(node, f"division of DECIMAL({a.precision},{a.scale}) and the like", _NARROWER)
    right, left = in_order(right, left)
    dividend = f"({_whole(left)} * CAST({10**shift} AS HUGEINT))"
    whole = macro("spark_quotient", dividend, _whole(right))
    unit = f"CAST('0.{'1'.rjust(scale, '0')}' AS DECIMAL({scale}, {scale}))"
    sql = f"CAST(CAST({whole} AS DECIMAL({DECIMAL_DIGITS_MAX}, 0)) * {unit} AS {duck_name(type)})"
    return strict(sql, type, (left, right), fails=True)


def remainder(context: Context, node: exp.Expr, left: Scalar, right: Scalar) -> Scalar:
    """``left % right``: the sign is the left operand's. Both are decimals."""
    a, b = left.type, right.type
    scale = max(a.scale, b.scale)
    type = decimal_type(min(a.precision - a.scale, b.precision - b.scale) + scale, scale)
    common = decimal_type(max(a.precision - a.scale, b.precision - b.scale) + scale, scale)
    if type is None or common is None:
        raise context.unsupported(node, "% of DECIMAL beyond 38 digits", _NARROWER)
    right, left = in_order(*(cast(context, node, value, common) for value in (right, left)))
    sql = f"CAST({macro('spark_fmod', left.sql, right.sql)} AS {duck_name(type)})"
    return strict(sql, type, (left, right), fails=True)


def rounded_double(value: Scalar, places: int) -> Scalar:
    """A DOUBLE to some places: for Spark, of the digits that it would print."""
    text = f"CAST(CAST(v AS VARCHAR) AS DECIMAL({DECIMAL_DIGITS_MAX}, {places}))"
    whole = "isnan(v) OR isinf(v) OR abs(v) >= 4503599627370496"  # 2^52: from there on all are whole
    sql = f"CASE WHEN {whole} THEN v ELSE CAST(CAST({text} AS VARCHAR) AS DOUBLE) END"
    return Scalar(f"list_transform([{value.sql}], lambda v: {sql})[1]", value.type, value.fails)


def _whole(value: Scalar) -> str:
    """A decimal without its point, as a whole number."""
    return f"CAST(replace(CAST({value.sql} AS VARCHAR), '.', '') AS HUGEINT)"
