"""The conditions of WHERE, ON and QUALIFY, one by one: each is asked where the rows that it is about are first."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sqlglot import exp

from upriver.plan.algebra import Relation, Scalar
from upriver.plan.column_names import columns_in, quoted
from upriver.sql.sql_logic import conjuncts
from upriver.sql.sql_operators import boolean
from upriver.sql.sql_pushdown import filtered, present
from upriver.sql.sql_relations import bounded
from upriver.sql.sql_scalar import Context
from upriver.sql.sql_scope import names_in


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition of several that must all hold. names: the columns that it is about."""

    node: exp.Expr
    value: Scalar
    names: frozenset[str]


def conditions(context: Context, nodes: Iterable[exp.Expr]) -> list[Condition]:
    """Bound nodes, translated, and parted where they are joined by AND."""
    return [Condition(part, boolean(context, part), names_in(part)) for node in nodes for part in conjuncts(node)]


def restricted(relation: Relation, wanted: Sequence[Condition], place: int | None) -> Relation:
    """The rows for which all conditions hold, in their order. One on a row's number also ends the numbering.

    Where anything can fail, a column that one of them rejects NULL in is tested for NULL before the first of them that
    names it, as Spark does it: what it computes would fail on no row that is left out anyway.
    """
    can_fail = relation.can_fail or any(condition.value.fails for condition in wanted)
    untested = _rejecting(relation, wanted) if can_fail else set()
    for condition in wanted:
        for name in sorted(untested & columns_in(condition.value.sql)):
            untested.remove(name)
            if condition.value.fails or quoted(name) not in condition.value.rejects:
                relation = filtered(relation, present(name), place)
        limit = _limit(condition.node)
        inner = None if limit is None else bounded(relation, limit.name, limit.most)
        relation = relation if inner is None else inner
        if inner is None or limit is None or not limit.alone:
            relation = filtered(relation, condition.value, place)
    return relation


def _rejecting(relation: Relation, wanted: Sequence[Condition]) -> set[str]:
    """The columns that are not NULL where all conditions hold, of those that are not computed only when needed."""
    rejected = frozenset[str]().union(*(condition.value.rejects for condition in wanted))
    return {name for name in relation.schema.names if quoted(name) in rejected and name not in relation.deferred}


@dataclass(frozen=True, slots=True)
class _Limit:
    """The condition says that a column is at most so much. alone: and, if it counts from 1, nothing else."""

    name: str
    most: int
    alone: bool


def _limit(node: exp.Expr) -> _Limit | None:
    if isinstance(node, exp.Between):
        least, most = _number(node.args["low"]), _number(node.args["high"])
        if isinstance(node.this, exp.Column) and least is not None and most is not None and most >= 1:
            return _Limit(node.this.name, most, alone=least <= 1)
        return None
    if isinstance(node, exp.In) and isinstance(node.this, exp.Column):
        numbers = [_number(item) for item in node.expressions]
        most = max((number for number in numbers if number is not None), default=0)
        return _Limit(node.this.name, most, alone=False) if None not in numbers and most >= 1 else None
    if not isinstance(node, exp.LT | exp.LTE | exp.EQ | exp.GT | exp.GTE):
        return None
    column, number = node.this, _number(node.expression)
    less, at_most = isinstance(node, exp.LT), isinstance(node, exp.LTE)
    if number is None:
        column, number = node.expression, _number(node.this)
        less, at_most = isinstance(node, exp.GT), isinstance(node, exp.GTE)
    equal = isinstance(node, exp.EQ)
    if number is None or not isinstance(column, exp.Column) or not (less or at_most or equal):
        return None
    most = number - less
    return _Limit(column.name, most, alone=not equal or most == 1) if most >= 1 else None


def _number(node: exp.Expr) -> int | None:
    literal = isinstance(node, exp.Literal) and not node.is_string and node.this.isdigit()
    return int(node.this) if literal else None
