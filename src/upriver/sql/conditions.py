"""Conditions that must all be true: of WHERE, HAVING and QUALIFY, and those of ON that are of one side alone.

They are applied one by one in their order, each as early as the rows that it names exist
(:mod:`upriver.sql.pushdown`). One on a row's number also ends the numbering.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from upriver.plan.relation import Relation, Scalar
from upriver.plan.types import is_null
from upriver.sql.functions.scalars import null
from upriver.sql.pushdown import filtered, tested
from upriver.sql.relations import bounded
from upriver.sql.translation import Translation
from upriver.sql.tree import TreeNode, conjuncts

_ORDERED = frozenset({"LessThan", "LessThanOrEqual", "GreaterThan", "GreaterThanOrEqual"})
_TURNED = {
    "LessThan": "GreaterThan",
    "LessThanOrEqual": "GreaterThanOrEqual",
    "GreaterThan": "LessThan",
    "GreaterThanOrEqual": "LessThanOrEqual",
    "EqualTo": "EqualTo",
}


@dataclass(frozen=True, slots=True)
class Condition:
    """One of several conditions. names: the columns that it uses."""

    node: TreeNode
    value: Scalar
    names: frozenset[str]

    @property
    def is_true(self) -> bool:
        """Whether it says nothing."""
        return self.node.kind == "Literal" and self.node.fields["value"] is True


def conditions(translation: Translation, nodes: Iterable[TreeNode], *relations: Relation) -> list[Condition]:
    """The conditions, split at each AND, over rows with the columns of all these relations."""
    over = translation.over(*relations)
    parts = [part for node in nodes for one in conjuncts(node) for part in _tests(one)]
    found = []
    for part in parts:
        value = over.of(part, is_conditional=len(parts) > 1)
        value = null(pa.bool_()) if is_null(value.type) else value
        found.append(Condition(part, value, translation.names_in(part)))
    return [one for one in found if not one.is_true]


def _tests(node: TreeNode) -> Iterator[TreeNode]:
    """A test for NULL of ``a < b`` as tests of both sides, as in Spark's optimizer; another condition as it is."""
    tested = node.children[0] if node.kind == "IsNotNull" else None
    while tested is not None and tested.kind == "Not":
        (tested,) = tested.children
    if tested is None or tested.kind not in _ORDERED:
        yield node
        return
    for side in tested.children:
        if side.kind != "Literal":
            yield from _tests(TreeNode("IsNotNull", {}, (side,), node.type, False, place=node.place))


def restricted(relation: Relation, wanted: Sequence[Condition], place: int | None) -> Relation:
    """The rows for which all conditions hold, applied in order. A condition on a row's number also ends the numbering.

    Where anything can fail, the columns in which they reject NULL are tested for it, too, as by Spark.
    """
    can_fail = relation.can_fail or any(condition.value.fails for condition in wanted)
    for condition in wanted:
        relation = tested(relation, condition.value, place) if can_fail else relation
        limit = _limit(condition)
        inner = None if limit is None else bounded(relation, limit.name, limit.most)
        relation = relation if inner is None else inner
        if inner is None or limit is None or not limit.alone:
            relation = filtered(relation, condition.value, place)
    return relation


@dataclass(frozen=True, slots=True)
class _Limit:
    """The condition that a column is at most a limit. alone: whether it says nothing else, if the column counts from
    1."""

    name: str
    most: int
    alone: bool


def _limit(condition: Condition) -> _Limit | None:
    node = condition.node
    if len(condition.names) != 1 or not node.children:
        return None
    (name,) = condition.names
    if node.kind == "In" and node.children[0].is_column:
        numbers = [_number(item) for item in node.children[1:]]
        most = max((number for number in numbers if number is not None), default=0)
        return _Limit(name, most, alone=False) if None not in numbers and most >= 1 else None
    if node.kind not in _TURNED:
        return None
    kind, (column, number) = node.kind, node.children
    if not column.is_column:
        kind, column, number = _TURNED[kind], number, column
    bound = _number(number)
    if not column.is_column or bound is None or kind in ("GreaterThan", "GreaterThanOrEqual"):
        return None
    most = bound - (kind == "LessThan")
    return _Limit(name, most, alone=kind != "EqualTo" or most == 1) if most >= 1 else None


def _number(node: TreeNode) -> int | None:
    value = node.fields["value"] if node.kind == "Literal" else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None
