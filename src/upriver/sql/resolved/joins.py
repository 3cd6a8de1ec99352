"""Joins."""

from collections.abc import Sequence

import pyarrow as pa

from upriver.plan.plan import JoinKind, JoinOp
from upriver.plan.relation import Relation, any_fails
from upriver.sql.logic import conjunction
from upriver.sql.pushdown import LEFT_MATCHED, RIGHT_MATCHED, filtered
from upriver.sql.relations import Output, _replicated, in_slots, with_values
from upriver.sql.resolved.translation import Translation
from upriver.sql.resolved.tree import Node


def joined(
    translation: Translation,
    kind: JoinKind,
    left: Relation,
    right: Relation,
    ids: tuple[frozenset[int], ...],
    asked: Sequence[Node],
    place: int | None,
) -> Relation:
    lefts, rights = ids
    keys, rest = [], []
    for one in asked:
        sides = _sides(translation, one, lefts, rights)
        if sides is None:
            rest.append(one)
        else:
            keys.append((*sides, one.kind == "EqualNullSafe"))
    of_left = [one for one in rest if kind in LEFT_MATCHED and one.references and one.references <= lefts]
    of_right = [one for one in rest if kind in RIGHT_MATCHED and one.references and one.references <= rights]
    for one in of_left:
        left = filtered(left, translation.over(left).of(one), place)
    for one in of_right:
        right = filtered(right, translation.over(right).of(one), place)
    if kind not in (JoinKind.SEMI, JoinKind.ANTI):
        assert not set(left.schema.names) & set(right.schema.names), "a name of both sides"
    both = translation.over(left, right)
    of_pairs = [both.of(one) for one in rest if one not in of_left and one not in of_right and not _is_true(one)]
    values = [(translation.over(left).of(one), translation.over(right).of(other), safe) for one, other, safe in keys]
    if values:
        left, left_key = with_values(left, [Output("key", one) for one, _, _ in values], translation.taken)
        right, right_key = with_values(right, [Output("key", other) for _, other, _ in values], translation.taken)
        replicated = None
    else:
        left, left_key, right, right_key = in_slots(kind, left, right, translation.taken)
        replicated = _replicated(left, right)
    safe = tuple(one for _, _, one in values) or (False,)
    op = JoinOp(
        kind,
        tuple(left_key),
        tuple(right_key),
        safe,
        conjunction(of_pairs) if of_pairs else None,
        can_fail=any_fails(of_pairs),
        replicated=replicated,
    )
    others = () if kind in (JoinKind.SEMI, JoinKind.ANTI) else right.schema
    return Relation(op, (left, right), pa.schema([*left.schema, *others]), place, asks=tuple(of_pairs))


def _sides(
    translation: Translation, one: Node, lefts: frozenset[int], rights: frozenset[int]
) -> tuple[Node, Node] | None:
    if one.kind not in ("EqualTo", "EqualNullSafe"):
        return None
    for first, second in (one.children, one.children[::-1]):
        a, b = first.references, second.references
        if a and b and a <= lefts and b <= rights:
            return first, second
    return None


def _is_true(node: Node) -> bool:
    return node.kind == "Literal" and node.fields["value"] is True
