"""Joins as Spark has them: of two relations, of a row with its existence, and NOT IN."""

import pyarrow as pa

from upriver.plan.plan import JoinKind
from upriver.plan.relation import Relation, Scalar
from upriver.plan.source import ELSEWHERE
from upriver.sql.pushdown import filtered
from upriver.sql.relations import Output, kept, projected, union
from upriver.sql.resolved.joins import joined
from upriver.sql.resolved.translation import Rule, Translation
from upriver.sql.resolved.tree import Node, conjuncts
from upriver.sql.subqueries import FALSE, TRUE

KINDS = {
    "Inner": JoinKind.INNER,
    "Cross": JoinKind.INNER,
    "LeftOuter": JoinKind.LEFT,
    "RightOuter": JoinKind.RIGHT,
    "FullOuter": JoinKind.FULL,
    "LeftSemi": JoinKind.SEMI,
    "LeftAnti": JoinKind.ANTI,
}


def _join(translation: Translation, node: Node) -> Relation:
    left, right = (translation.relation(one) for one in node.children)
    ids = tuple(frozenset(one.output) for one in node.children)
    condition = node.fields["condition"]
    asked = [] if condition is None else list(conjuncts(condition))
    kind = node.fields["joinType"]
    if isinstance(kind, list) and kind[0] == "ExistenceJoin":
        name = translation.name(kind[1])
        true = joined(translation, JoinKind.SEMI, left, right, ids, asked, node.place)
        false = joined(translation, JoinKind.ANTI, left, right, ids, asked, node.place)
        outputs = kept(left)
        parts = [
            projected(part, [*outputs, Output(name, value)], None) for part, value in ((true, TRUE), (false, FALSE))
        ]
        return union(parts, node.place)
    if isinstance(kind, list):
        raise translation.source.unsupported(node.place, f"the join {kind[0]}", ELSEWHERE)
    pairs = [one for one in asked if _is_null_aware(one)]
    if kind == "LeftAnti" and len(pairs) == 1:
        return _not_in(
            translation, left, right, ids, [one for one in asked if one not in pairs], pairs[0].children[0], node.place
        )
    return joined(translation, KINDS[kind], left, right, ids, asked, node.place)


def _not_in(
    translation: Translation,
    left: Relation,
    right: Relation,
    ids: tuple[frozenset[int], ...],
    others: list[Node],
    pair: Node,
    place: int | None,
) -> Relation:
    """NOT IN: no pair is equal, and none is NULL."""
    one, other = pair.children
    if not one.references <= ids[0]:
        one, other = other, one
    outputs = kept(left)
    rest = joined(translation, JoinKind.ANTI, left, right, ids, [*others, pair], place)
    nulls = filtered(right, Scalar(f"({translation.over(right).of(other).sql} IS NULL)", pa.bool_()), place)
    if translation.over(right).of(other).null_by:
        rest = joined(translation, JoinKind.ANTI, rest, nulls, ids, others, place)
    value = translation.over(rest).of(one)
    if not value.null_by:
        return rest
    there = filtered(rest, Scalar(f"({value.sql} IS NOT NULL)", pa.bool_()), place)
    absent = filtered(rest, Scalar(f"({value.sql} IS NULL)", pa.bool_()), place)
    parts = [there, joined(translation, JoinKind.ANTI, absent, right, ids, others, place)]
    return union([projected(part, outputs, None) for part in parts], place)


def _is_null_aware(node: Node) -> bool:
    if node.kind != "Or" or node.children[1].kind != "IsNull":
        return False
    return node.children[0].kind == "EqualTo" and node.children[0].meaning == node.children[1].children[0].meaning


RULES: dict[str, Rule] = {"Join": _join}
