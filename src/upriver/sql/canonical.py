"""Expressions as Spark compares them: in a canonical order of their operands, by one name for each function.

Spark groups by ``a + b`` and finds it again in ``b + a``. Its rules (``canonicalized`` of each expression) sort the
operands of what is commutative, and turn comparisons.
"""

from collections.abc import Iterator, Mapping
from functools import reduce

import pyarrow as pa
from sqlglot import exp

from upriver.errors import UserError
from upriver.plan.types import is_decimal, is_numeric
from upriver.sql.function_table import FUNCTIONS
from upriver.sql.numbers import CASTS
from upriver.sql.scalars import Context

_TRUTHS = (exp.And, exp.Or)
_NUMBERS = (exp.Add, exp.Mul, exp.BitwiseAnd, exp.BitwiseOr, exp.BitwiseXor)
_SYMMETRIC = (exp.EQ, exp.NullSafeEQ)
_TURNED: Mapping[type[exp.Expr], type[exp.Expr]] = {exp.LT: exp.GT, exp.GT: exp.LT, exp.LTE: exp.GTE, exp.GTE: exp.LTE}
_NEGATED: Mapping[type[exp.Expr], type[exp.Expr]] = {exp.LT: exp.GTE, exp.GT: exp.LTE, exp.LTE: exp.GT, exp.GTE: exp.LT}
_UNEQUAL: Mapping[type[exp.Expr], type[exp.Expr]] = {exp.NEQ: exp.EQ, exp.NullSafeNEQ: exp.NullSafeEQ}
_IN_ANY_ORDER = frozenset({"greatest", "least"})
_CASTS = frozenset(name for one in CASTS for name in one.all_names) | {"timestamp"}
_REPLACED = {"nvl": "coalesce", "ifnull": "coalesce"}


def canonical(context: Context, node: exp.Expr) -> exp.Expr:
    """A copy of a bound tree that equals that of any tree which Spark takes to be the same. It serves comparison only:
    its operands may be in another order than those that Spark evaluates. context: of the rows that it is over."""
    holder = exp.Paren(this=node.copy())
    for part in reversed(list(holder.this.walk())):
        found = _ordered(context, part)
        if found is not part:
            part.replace(found)
    tree: exp.Expr = holder.this
    return tree


def _ordered(context: Context, node: exp.Expr) -> exp.Expr:
    """The node, whose operands are in order, in order itself."""
    kind = type(node)
    if isinstance(node, (*_TRUTHS, *_NUMBERS)):
        if isinstance(node.parent, kind) and _is_flat(context, node.parent, node):
            return node  # a part of the chain above
        parts = sorted(_chain(context, node), key=_text)
        return reduce(lambda whole, part: kind(this=whole, expression=part), parts)
    if kind in _UNEQUAL:
        left, right = sorted((node.this, node.expression), key=_text)
        return exp.Not(this=_UNEQUAL[kind](this=left, expression=right))
    if isinstance(node, exp.Is) and isinstance(node.expression, exp.Boolean):
        node = exp.NullSafeEQ(this=node.this, expression=node.expression)
        kind = exp.NullSafeEQ
    if (isinstance(node, _SYMMETRIC) or kind in _TURNED) and _text(node.this) > _text(node.expression):
        return _TURNED.get(kind, kind)(this=node.expression, expression=node.this)
    if isinstance(node, exp.Not) and type(node.this) in _NEGATED:
        return _NEGATED[type(node.this)](this=node.this.this, expression=node.this.expression)
    if isinstance(node, exp.Mod):
        return exp.Anonymous(this="mod", expressions=[node.this, node.expression])
    if isinstance(node, exp.Anonymous):
        if node.name.lower() in _CASTS and len(node.expressions) == 1:
            return _cast(node.expressions[0], node.name)
        _rename(node)
    if isinstance(node, exp.Cast) and node.to.this == exp.DType.DECIMAL and not node.to.expressions:
        node.set("to", _cast(node.this, "decimal").to)
    if isinstance(node, exp.In) or (isinstance(node, exp.Anonymous) and node.name in _IN_ANY_ORDER):
        node.set("expressions", sorted(node.expressions, key=_text))
    return node


def _text(node: exp.Expr) -> str:
    return node.sql(comments=False)


def _cast(operand: exp.Expr, word: str) -> exp.Cast:
    """What Spark makes of a cast that is written as a call: ``bigint(a)`` is ``CAST(a AS BIGINT)``."""
    word = "DECIMAL(10, 0)" if word.lower() == "decimal" else word
    return exp.Cast(this=operand, to=exp.DataType.build(word, dialect="spark"))


def _rename(call: exp.Anonymous) -> None:
    """Give a call the first of its function's names, and the operands of calls of the same in it."""
    name = call.name.lower()
    name = FUNCTIONS[name].all_names[0] if name in FUNCTIONS else name
    call.set("this", _REPLACED.get(name, name))
    if name in _IN_ANY_ORDER:
        same = [
            one.expressions if isinstance(one, exp.Anonymous) and one.name == name else [one]
            for one in call.expressions
        ]
        call.set("expressions", [part for parts in same for part in parts])


def _chain(context: Context, node: exp.Expr) -> Iterator[exp.Expr]:
    """The operands of a chain of one operator. Spark casts, and so parts, what is of another type than the whole: that
    is in parentheses here."""
    todo = [node]
    while todo:
        part = todo.pop()
        if part is node or (type(part) is type(node) and _is_flat(context, node, part)):
            todo += [part.args["expression"], part.this]
        else:
            yield exp.Paren(this=part) if type(part) is type(node) else part


def _is_flat(context: Context, whole: exp.Expr, part: exp.Expr) -> bool:
    if isinstance(whole, _TRUTHS):
        return True
    types = [_type(context, node) for node in (whole, part)]
    return all(map(is_numeric, types)) and (types[0] == types[1] or all(map(is_decimal, types)))


def _type(context: Context, node: exp.Expr) -> pa.DataType:
    try:
        return context.translate(node).type
    except UserError:
        return pa.null()  # it is over groups, and none of them
