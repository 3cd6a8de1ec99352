"""The aggregate functions: which there are, how each is planned, and its type."""

from dataclasses import dataclass, replace

import pyarrow as pa
from sqlglot import exp

from upriver.plan.plan import AggregateCall
from upriver.plan.relation import Scalar
from upriver.plan.source import ELSEWHERE
from upriver.plan.types import DECIMAL_DIGITS_MAX, duck_name, is_boolean, is_decimal, is_integer, is_null, is_numeric
from upriver.sql.casts import cast
from upriver.sql.logic import connect
from upriver.sql.operators import boolean
from upriver.sql.scalars import Context, typed_name

_SPREADS = frozenset({"stddev_samp", "stddev_pop", "var_samp", "var_pop"})
_CONDITIONS = frozenset({"bool_and", "every", "bool_or", "some", "any", "count_if"})
_COUNTS = frozenset({"count", "count_star"})
_ANY_OF_EQUAL = frozenset({"min", "max", "any_value", "bool_and", "bool_or"})
"""Functions whose result does not depend on whether equal values count once."""
_MORE_DIGITS = 4
"""How many more digits behind the point an average has than its argument, if that is DECIMAL."""
_ROWS_IN_ORDER = "Number the rows, ROW_NUMBER() OVER (PARTITION BY ... ORDER BY ...) AS n, and keep those of n = 1."
_COLLECTED = "Leave the rows as they are: a lookup gives all rows of its key."
_OF_ALL_ROWS = "Make a view of the rows, and compute it from what a lookup gives: that is all rows of its key."
INSTEAD = {
    **dict.fromkeys(("collect_list", "collect_set", "array_agg", "listagg", "string_agg"), _COLLECTED),
    **dict.fromkeys(("percentile", "percentile_approx", "approx_percentile", "median", "mode"), _OF_ALL_ROWS),
    **dict.fromkeys(
        ("corr", "covar_pop", "covar_samp", "skewness", "kurtosis", "product", "try_sum", "try_avg"), _OF_ALL_ROWS
    ),
    **dict.fromkeys(("first", "first_value", "last", "last_value"), _ROWS_IN_ORDER),
    **dict.fromkeys(("max_by", "min_by"), _ROWS_IN_ORDER),
    "approx_count_distinct": "Take count(DISTINCT x), which is exact.",
}
"""What to do instead of one of Spark's aggregate functions that is not supported."""


@dataclass(frozen=True, slots=True)
class Call:
    """An aggregate in the plan's terms. argument: ``None`` for count_star. where: which rows count; ``None`` for
    all."""

    function: str
    argument: Scalar | None
    type: pa.DataType
    distinct: bool = False
    where: Scalar | None = None


def over_no_rows(call: AggregateCall, result: Scalar) -> Scalar:
    """The value of a call, whose result is NULL for want of a group: a count of no rows is 0."""
    if call.function not in _COUNTS:
        return result
    return Scalar(f"coalesce({result.sql}, CAST(0 AS BIGINT))", result.type, nulls=frozenset())


def is_aggregate(node: exp.Expr) -> bool:
    """Whether it is an aggregate, with its FILTER if it has one."""
    function = node.this if isinstance(node, exp.Filter) else node
    return isinstance(function, exp.Anonymous) and function.name.lower() in AGGREGATES


def has_aggregate(node: exp.Expr) -> bool:
    """Whether rows must be grouped for it. A window function needs no groups, but its arguments may."""
    return any(is_aggregate(part) and not is_over(part) for part in node.find_all(exp.Anonymous))


def is_over(node: exp.Expr) -> bool:
    """Whether an aggregate is a window function."""
    call = node
    while isinstance(call.parent, exp.Filter | exp.IgnoreNulls | exp.RespectNulls) and call.arg_key == "this":
        call = call.parent
    return isinstance(call.parent, exp.Window) and call.arg_key == "this"


def aggregate_call(context: Context, node: exp.Expr) -> Call:
    """The call for an aggregate, over rows that ``context`` has. Raises UnsupportedSql."""
    if not isinstance(node, exp.Filter):
        return _plain(context, node)
    context.only(node, "this", "expression")
    call = _plain(context, node.this)
    condition = boolean(context, node.expression.this)
    return replace(call, where=condition if call.where is None else connect("AND", [condition, call.where]))


def _plain(context: Context, node: exp.Expr) -> Call:
    context.only(node, "this", "expressions")
    name = node.name.lower()
    operands = node.expressions
    distinct = len(operands) == 1 and isinstance(operands[0], exp.Distinct)
    if distinct:
        operands = operands[0].expressions
    if len(operands) != 1:
        instead = "Give it one." if not distinct else "Count the rows of a subquery: FROM (SELECT DISTINCT ...)."
        raise context.unsupported(node, f"{name}() of {len(operands)} operands", instead)
    if name == "count" and not distinct and isinstance(operands[0], exp.Star | exp.Literal | exp.Boolean):
        return Call("count_star", None, pa.int64())  # count(1) counts rows, as count(*) does
    value = context.translate(operands[0])
    if is_null(value.type) or duck_name(value.type) is None:
        raise context.unsupported(node, f"{name}() of {typed_name(value)}", ELSEWHERE)
    return _call(context, node, name, value, distinct)


def _call(context: Context, node: exp.Expr, name: str, value: Scalar, distinct: bool) -> Call:
    function = AGGREGATES[name]
    if name in _CONDITIONS and not is_boolean(value.type):
        raise context.unsupported(node, f"{name}() of {typed_name(value)}", "Give it a condition.")
    if name == "count_if":
        return Call(function, None, pa.int64(), where=value)
    if function in _ANY_OF_EQUAL:
        return Call(function, value, value.type)
    if function == "count" and not distinct and not value.null_by:  # as in Spark's optimizer
        return Call("count_star", None, pa.int64())
    if function == "count":
        return Call(function, value, pa.int64(), distinct)
    if not is_numeric(value.type):
        raise context.unsupported(node, f"{name}() of {typed_name(value)}", "CAST it to a number.")
    if function in _SPREADS:
        return Call(function, cast(context, node, value, pa.float64()), pa.float64(), distinct)
    if function == "avg" and is_decimal(value.type) and value.type.precision > DECIMAL_DIGITS_MAX - _MORE_DIGITS:
        instead = f"CAST it to a DECIMAL of at most {DECIMAL_DIGITS_MAX - _MORE_DIGITS} digits, or to DOUBLE."
        raise context.unsupported(node, f"{name}() of {typed_name(value)}", instead)
    return Call(function, value, _type_of_sum(function, value.type), distinct)


def _type_of_sum(function: str, type: pa.DataType) -> pa.DataType:
    """The type that Spark gives a sum or an average."""
    if is_decimal(type):
        digits, scale = type.precision, type.scale
        if function == "sum":
            return pa.decimal128(min(digits + 10, DECIMAL_DIGITS_MAX), scale)
        return pa.decimal128(digits + _MORE_DIGITS, scale + _MORE_DIGITS)
    return pa.int64() if function == "sum" and is_integer(type) else pa.float64()


AGGREGATES = {
    "count": "count",
    "count_if": "count_star",
    "sum": "sum",
    "avg": "avg",
    "mean": "avg",
    "min": "min",
    "max": "max",
    "any_value": "any_value",
    "stddev": "stddev_samp",
    "stddev_samp": "stddev_samp",
    "std": "stddev_samp",
    "stddev_pop": "stddev_pop",
    "variance": "var_samp",
    "var_samp": "var_samp",
    "var_pop": "var_pop",
    "bool_and": "bool_and",
    "every": "bool_and",
    "bool_or": "bool_or",
    "some": "bool_or",
    "any": "bool_or",
}
"""Spark's name to ours."""
