"""Expressions as Spark compares them: in a canonical order of their operands.

Spark groups by ``a + b`` and finds it again in ``b + a``. Its rules (``canonicalized`` of each expression) sort the
operands of what is commutative, and turn comparisons.
"""

from collections.abc import Mapping
from functools import reduce

from sqlglot import exp

from upriver.sql.logic import chain

_COMMUTATIVE = (exp.Add, exp.Mul, exp.And, exp.Or, exp.BitwiseAnd, exp.BitwiseOr, exp.BitwiseXor)
_SYMMETRIC = (exp.EQ, exp.NullSafeEQ)
_TURNED: Mapping[type[exp.Expr], type[exp.Expr]] = {exp.LT: exp.GT, exp.GT: exp.LT, exp.LTE: exp.GTE, exp.GTE: exp.LTE}
_NEGATED: Mapping[type[exp.Expr], type[exp.Expr]] = {exp.LT: exp.GTE, exp.GT: exp.LTE, exp.LTE: exp.GT, exp.GTE: exp.LT}
_UNEQUAL: Mapping[type[exp.Expr], type[exp.Expr]] = {exp.NEQ: exp.EQ, exp.NullSafeNEQ: exp.NullSafeEQ}
_IN_ANY_ORDER = frozenset({"greatest", "least"})


def canonical(node: exp.Expr) -> exp.Expr:
    """A copy of a bound tree that equals that of any tree which Spark takes to be the same. It serves comparison only:
    its operands may be in another order than those that Spark evaluates."""
    holder = exp.Paren(this=node.copy())
    for part in reversed(list(holder.this.walk())):
        found = _ordered(part)
        if found is not part:
            part.replace(found)
    tree: exp.Expr = holder.this
    return tree


def _ordered(node: exp.Expr) -> exp.Expr:
    """The node, whose operands are in order, in order itself."""
    kind = type(node)
    if isinstance(node, _COMMUTATIVE) and type(node.parent) is not kind:
        return reduce(lambda whole, part: kind(this=whole, expression=part), sorted(chain(node), key=hash))
    if kind in _UNEQUAL:
        left, right = sorted((node.this, node.expression), key=hash)
        return exp.Not(this=_UNEQUAL[kind](this=left, expression=right))
    if (isinstance(node, _SYMMETRIC) or kind in _TURNED) and hash(node.this) > hash(node.expression):
        return _TURNED.get(kind, kind)(this=node.expression, expression=node.this)
    if isinstance(node, exp.Not) and type(node.this) in _NEGATED:
        return _NEGATED[type(node.this)](this=node.this.this, expression=node.this.expression)
    if isinstance(node, exp.In) or (isinstance(node, exp.Anonymous) and node.name.lower() in _IN_ANY_ORDER):
        node.set("expressions", sorted(node.expressions, key=hash))
    return node
