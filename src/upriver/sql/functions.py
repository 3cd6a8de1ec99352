"""Calls of functions. Those that the table has not are refused: DuckDB may have one of that name."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pyarrow as pa
from sqlglot import exp

from upriver.plan.relation import Scalar
from upriver.plan.source import ELSEWHERE
from upriver.sql.aggregates import AGGREGATES, INSTEAD
from upriver.sql.arrays import zipped
from upriver.sql.clock import is_clock
from upriver.sql.constructors import named
from upriver.sql.function_table import CHANGING, CLOCKS, FUNCTIONS, REFUSED
from upriver.sql.lists import sequence
from upriver.sql.logic import LOGIC
from upriver.sql.operators import OPERATORS, interval_of
from upriver.sql.parts import bracket, dot, variable
from upriver.sql.scalars import WRITTEN, Context, Rule, null
from upriver.sql.signatures import Lambda, OperandKind, Operands, call, call_of_users, check_count
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
    if name in _OWN:
        check_count(context, node, name, function, operands)
        return _OWN[name](context, node, operands)
    lambdas = [_lambda(context, part) for part in node.expressions if isinstance(part, exp.Lambda)]
    return call(context, node, name, function, operands, lambdas)


def _struct(context: Context, node: exp.Expr, operands: Operands) -> Scalar:
    """``struct(a, b AS c, ...)``: fields have the names of columns, or their numbers."""
    names = [_title_of(part) or f"col{place}" for place, part in enumerate(node.expressions, 1)]
    return named(context, node, names, operands)


def _row_value(context: Context, node: exp.Expr) -> Scalar:
    """``(a, b)``, which is ``struct(a, b)``."""
    return _struct(context, node, [context.translate(part) for part in node.expressions])


def _title_of(node: exp.Expr) -> str:
    """The name of an expression that has one, as it is written."""
    if isinstance(node, exp.Column):
        return str(node.this.meta.get(WRITTEN, node.name))
    if isinstance(node, exp.Dot):
        return str(node.expression.name)
    return str(node.alias_or_name) if isinstance(node, exp.Alias | exp.Identifier) else ""


def _zipped(context: Context, node: exp.Expr, operands: Operands) -> Scalar:
    names = [_title_of(part) or str(number) for number, part in enumerate(node.expressions)]
    return zipped(context, node, names, operands)


def _sequence(context: Context, node: exp.Expr, operands: Operands) -> Scalar:
    step = node.expressions[2] if len(operands) > 2 else None
    by = operands[2] if len(operands) > 2 else None
    return sequence(context, node, operands[:2], interval_of(step) if isinstance(step, exp.Interval) else by)


_OWN: dict[str, Callable[[Context, exp.Expr, Operands], Scalar]] = {
    "struct": _struct,
    "arrays_zip": _zipped,
    "sequence": _sequence,
}


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
    exp.Tuple: _row_value,
}
"""The whitelist of constructs."""
