"""Calls of functions. Those that the table has not are refused: DuckDB may have one of that name."""

import re

from sqlglot import exp

from upriver.plan.relation import Scalar
from upriver.plan.source import ELSEWHERE
from upriver.sql.aggregates import AGGREGATES, INSTEAD
from upriver.sql.function_table import CHANGING, CLOCKS, FUNCTIONS, REFUSED
from upriver.sql.logic import LOGIC
from upriver.sql.operators import OPERATORS
from upriver.sql.scalars import Context, Rule
from upriver.sql.signatures import call
from upriver.sql.strings import STRING_RULES
from upriver.sql.times import TIME_RULES

_MEANING = re.compile(r"[\\^$.|?*+()\[\]{}]")
"""Letters with a meaning in a regular expression, which split() takes."""


def _called(context: Context, node: exp.Expr) -> Scalar:
    context.only(node, "this", "expressions")
    name = node.name.lower()
    function = FUNCTIONS.get(name)
    if function is None or (name in CLOCKS and not node.expressions):
        raise _unknown(context, node)
    return call(context, node, name, function, context.translate_all(node.expressions))


def _unknown(context: Context, node: exp.Expr) -> Exception:
    """The error for a call of a function that is not in :data:`FUNCTIONS`."""
    name = node.name.lower()
    if name in AGGREGATES:
        return context.source.wrong(node, f"{name}() cannot stand here", "Aggregates belong in SELECT and HAVING.")
    if name in CLOCKS or CHANGING.fullmatch(name):
        what = f"{name}(), which gives another answer each time,"
        return context.unsupported(node, what, "A view must depend on its rows alone: make it a column.")
    return context.unsupported(node, f"the function {name}()", INSTEAD.get(name, REFUSED.get(name, ELSEWHERE)))


def _filtered(context: Context, node: exp.Expr) -> Scalar:
    """``f(x) FILTER (WHERE ...)`` of no known aggregate: the error is about the function."""
    if isinstance(node.this, exp.Anonymous):
        raise _unknown(context, node.this)
    raise context.unsupported(node, "FILTER here", "It belongs behind an aggregate in SELECT or HAVING.")


def _element(context: Context, node: exp.Expr) -> Scalar:
    """``split(s, ',')[1]``, or an element of a column: refused, with what to write instead."""
    call, places = node.this, node.expressions
    if not isinstance(call, exp.Anonymous) or call.name.lower() != "split":
        raise context.unsupported(node, "an element of an ARRAY or a MAP", ELSEWHERE)
    separator = call.expressions[1] if len(call.expressions) == 2 else None
    is_plain = isinstance(separator, exp.Literal) and separator.is_string and not _MEANING.search(separator.this)
    instead = f"{REFUSED['split']} It gives '' where there is no such part."
    if is_plain and separator is not None and len(places) == 1 and places[0].name.isdigit():
        text, by, part = call.expressions[0].sql("spark"), separator.sql("spark"), int(places[0].name) + 1
        instead = f"Write split_part({text}, {by}, {part}), which gives '' where there is no such part."
    raise context.unsupported(node, "an element of split()", instead)


RULES: dict[type[exp.Expr], Rule] = {
    **OPERATORS,
    **LOGIC,
    **STRING_RULES,
    **TIME_RULES,
    exp.Anonymous: _called,
    exp.Filter: _filtered,
    exp.Bracket: _element,
}
"""The whitelist of constructs."""
