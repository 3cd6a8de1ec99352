"""Calls of functions. Those that the table has not are refused: DuckDB may have one of that name."""

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa
from sqlglot import exp

from upriver.plan.plan import UserFunction
from upriver.plan.relation import Scalar
from upriver.plan.source import ELSEWHERE, Place
from upriver.plan.types import common_type, is_null, same_type, spark_name
from upriver.sql.aggregates import AGGREGATES, INSTEAD
from upriver.sql.casts import cast
from upriver.sql.clock import is_clock
from upriver.sql.constructors import row_value
from upriver.sql.function_table import CHANGING, CLOCKS, FUNCTIONS, REFUSED
from upriver.sql.logic import LOGIC
from upriver.sql.operators import CAST_IT, OPERATORS
from upriver.sql.parts import bracket, dot, variable
from upriver.sql.scalars import Context, Rule, null, opaque, typed_name
from upriver.sql.signatures import Lambda, OperandKind, Operands, call
from upriver.sql.strings import STRING_RULES
from upriver.sql.times import TIME_RULES


def _called(context: Context, node: exp.Expr) -> Scalar:
    context.only(node, "this", "expressions")
    name = node.name.lower()
    if name in context.functions:
        return call_of_users(context, node, context.functions[name], context.translate_all(node.expressions))
    function = FUNCTIONS.get(name)
    if function is None or (name in CLOCKS and not node.expressions):
        raise _unknown(context, node)
    unread = exp.Interval if name == "sequence" else exp.Lambda if OperandKind.LAMBDA in function.takes else ()
    operands = [null(pa.null()) if isinstance(part, unread) else context.translate(part) for part in node.expressions]
    lambdas = [_lambda(context, part) for part in node.expressions if isinstance(part, exp.Lambda)]
    return call(context, node, name, function, operands, lambdas)


def _lambda(context: Context, function: exp.Lambda) -> Lambda:
    names = [variable.name.lower() for variable in function.expressions]
    depth, above = 0, function.parent
    while above is not None:
        depth += isinstance(above, exp.Lambda)
        above = above.parent

    def body(values: Sequence[Scalar]) -> Scalar:
        given = dict(zip(names, values, strict=True))

        def leaf(node: exp.Expr) -> Scalar | None:
            known = given.get(node.name.lower()) if isinstance(node, exp.Identifier) else None
            return context.leaf(node) if known is None else known

        return replace(context, leaf=leaf).translate(function.this)

    return Lambda(len(names), depth, body)


def call_of_users(context: Context, place: Place, function: UserFunction, operands: Operands) -> Scalar:
    """A call of a user's function. It may raise on any row, and Spark does not look into it."""
    types = function.arguments
    if len(operands) != len(types):
        what = f"{function.name}() of {len(operands)} operands"
        raise context.source.wrong(place, what, f"It is declared with {len(types)} arguments.")
    given: list[str] = []
    for operand, type in zip(operands, types, strict=True):
        wider = common_type(operand.type, type)
        if wider is None or not same_type(wider, type):
            what = f"{typed_name(operand)} as an argument of {function.name}() that is {spark_name(type)}"
            raise context.unsupported(place, what, CAST_IT)
        given.append((null(type) if is_null(operand.type) else cast(context, place, operand, type)).sql)
    return opaque(Scalar(f"{function.sql_name}({', '.join(given)})", function.returns, fails=True))


def _unknown(context: Context, node: exp.Expr) -> Exception:
    """The error for a call of a function that is not in :data:`FUNCTIONS`."""
    name = node.name.lower()
    if name in AGGREGATES:
        return context.source.wrong(node, f"{name}() cannot stand here", "Aggregates belong in SELECT and HAVING.")
    if is_clock(node):
        instead = f"Select it in a subquery: (SELECT *, {name}() AS clock FROM t)."
        return context.unsupported(node, f"{name}() in this place", instead)
    if name in CLOCKS or CHANGING.fullmatch(name):
        what = f"{name}(), which gives another answer each time,"
        return context.unsupported(node, what, "A view must depend on its rows alone: make it a column.")
    return context.unsupported(node, f"the function {name}()", INSTEAD.get(name, REFUSED.get(name, ELSEWHERE)))


def _filtered(context: Context, node: exp.Expr) -> Scalar:
    """``f(x) FILTER (WHERE ...)`` of no known aggregate: the error is about the function."""
    if isinstance(node.this, exp.Anonymous):
        raise _unknown(context, node.this)
    raise context.unsupported(node, "FILTER here", "It belongs behind an aggregate in SELECT or HAVING.")


def _aliased(context: Context, node: exp.Expr) -> Scalar:
    """``x AS y`` as an operand: struct() reads the name."""
    return context.translate(node.this)


RULES: dict[type[exp.Expr], Rule] = {
    **OPERATORS,
    **LOGIC,
    **STRING_RULES,
    **TIME_RULES,
    exp.Anonymous: _called,
    exp.Filter: _filtered,
    exp.Bracket: bracket,
    exp.Dot: dot,
    exp.Alias: _aliased,
    exp.Identifier: variable,
    exp.Tuple: row_value,
}
"""The whitelist of constructs."""
