"""Joins of two relations: which conditions are the key, which are of one side alone, and which are of pairs of rows."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import pyarrow as pa

from upriver.plan.clock import ClockOp
from upriver.plan.column_names import columns_in, plain_columns
from upriver.plan.plan import (
    AggregateOp,
    Band,
    ExplodeOp,
    FilterOp,
    JoinKind,
    JoinOp,
    ProjectOp,
    ReplicateOp,
    SaltOp,
    SetOperationOp,
    TopKOp,
    UnionOp,
    WindowOp,
)
from upriver.plan.relation import Relation, Scalar, any_fails
from upriver.plan.source import ELSEWHERE
from upriver.plan.types import is_null
from upriver.sql.bands import bands_among
from upriver.sql.conditions import Condition, conditions, restricted
from upriver.sql.functions.logic import conjunction
from upriver.sql.functions.scalars import typed_name
from upriver.sql.pushdown import LEFT_KEPT, LEFT_MATCHED, RIGHT_KEPT, RIGHT_MATCHED, filtered, matchable, with_names
from upriver.sql.relations import Output, in_slots, replicated_side, with_values
from upriver.sql.translation import Translation
from upriver.sql.tree import TreeNode

EQUALITIES = ("EqualTo", "EqualNullSafe")


@dataclass(frozen=True, slots=True)
class Equality:
    """One pair of key columns, both of one type."""

    left: Output
    right: Output
    null_safe: bool


def joined(
    translation: Translation,
    kind: JoinKind,
    left: Relation,
    right: Relation,
    asked: Sequence[TreeNode],
    place: int | None,
) -> Relation:
    """The join of two relations without a common column name; its result may have computed columns besides theirs.
    asked: its conditions, in their order. Without an equality between the two, rows meet in slots.

    Of an inner join, conditions of pairs that can fail, and those behind them, are filters above, which try a row again
    at the end of its epoch.
    """
    on = conditions(translation, asked, left, right)
    equalities = [equality(translation, one, left, right) for one in on]
    keys = [key for key in equalities if key is not None]
    rest = [one for one, key in zip(on, equalities, strict=True) if key is None]
    of_left = [one for one in rest if kind in LEFT_MATCHED and _is_of(one, left)]
    of_right = [one for one in rest if kind in RIGHT_MATCHED and _is_of(one, right)]
    on_pairs = [one for one in rest if one not in of_left and one not in of_right]
    failing = next((place for place, one in enumerate(on_pairs) if one.value.fails), len(on_pairs))
    above = on_pairs[failing:] if kind is JoinKind.INNER else []
    of_pairs = [one.value for one in on_pairs if one not in above]
    left, right = restricted(left, of_left, place), restricted(right, of_right, place)
    for value in (*(key.left.value for key in keys if not key.null_safe), *of_pairs):
        left = matchable(left, value, place) if kind in LEFT_MATCHED else left
    for value in (*(key.right.value for key in keys if not key.null_safe), *of_pairs):
        right = matchable(right, value, place) if kind in RIGHT_MATCHED else right
    left, right, bands, tried = _banded(translation, kind, left, right, on_pairs)
    if keys:
        left, left_key = with_values(left, [key.left for key in keys], translation.taken)
        right, right_key = with_values(right, [key.right for key in keys], translation.taken)
        names = tuple(left_key), tuple(right_key)
        replicated = None
    else:
        left, left_slots, right, right_slots = in_slots(kind, left, right, translation.taken)
        names = left_slots, right_slots
        replicated = replicated_side(left, right)
    null_safe = tuple(key.null_safe for key in keys) or (False,)
    condition = conjunction(of_pairs) if of_pairs else None
    op = JoinOp(kind, *names, null_safe, condition, bands, tried, any_fails(of_pairs), replicated)
    left, right = _inferred(op, left, right, place)
    others = () if kind in (JoinKind.SEMI, JoinKind.ANTI) else right.schema
    relation = Relation(op, (left, right), pa.schema([*left.schema, *others]), place, asks=tuple(of_pairs))
    return restricted(relation, above, place)


def _is_of(condition: Condition, side: Relation) -> bool:
    return bool(condition.names) and condition.names <= set(side.schema.names)


def equality(translation: Translation, condition: Condition, left: Relation, right: Relation) -> Equality | None:
    if condition.node.kind not in EQUALITIES:
        return None
    lefts, rights = set(left.schema.names), set(right.schema.names)
    for one, other in (condition.node.children, condition.node.children[::-1]):
        ones, others = translation.names_in(one), translation.names_in(other)
        if ones and others and ones <= lefts and others <= rights:
            sides = (one, translation.over(left).of(one)), (other, translation.over(right).of(other))
            if is_null(sides[0][1].type):
                what = f"a join on {typed_name(sides[0][1])}"
                raise translation.source.unsupported(condition.node.place, what, ELSEWHERE)
            outputs = [Output(translation.worded(node), value) for node, value in sides]
            return Equality(outputs[0], outputs[1], condition.node.kind == "EqualNullSafe")
    return None


def _banded(
    translation: Translation, kind: JoinKind, left: Relation, right: Relation, on: Sequence[Condition]
) -> tuple[Relation, Relation, tuple[Band, ...], tuple[str, ...]]:
    """Both sides with the columns that the bands of the join compare, the bands, and those columns that are NULL where
    they cannot be computed. on: the conditions on pairs."""
    found = bands_among(translation, kind, on, left, right)
    left, lefts = with_values(left, [Output(one.left.title, one.left.value) for one in found], translation.taken)
    right, rights = with_values(right, [Output(one.right.title, one.right.value) for one in found], translation.taken)
    named = list(zip(lefts, rights, found, strict=True))
    bounds = ((name, bound) for one, other, band in named for name, bound in ((one, band.left), (other, band.right)))
    tried = dict.fromkeys(name for name, bound in bounds if bound.is_tried)
    return left, right, tuple(Band(one, other, band.at_most) for one, other, band in named), tuple(tried)


def _inferred(op: JoinOp, left: Relation, right: Relation, place: int | None) -> tuple[Relation, Relation]:
    """Both sides; where anything can fail on one, without the rows that cannot meet one of the other side, as the
    filters of that side say of the key. Catalyst has pushed these filters below the join, and does not carry them over
    before its last rules."""
    sides, keys, matched = [left, right], (op.left_key, op.right_key), (LEFT_MATCHED, RIGHT_MATCHED)
    asks = [_asks(side) for side in sides] if left.can_fail or right.can_fail else [[], []]
    for side in (0, 1):
        if not sides[side].can_fail or op.kind not in matched[side]:
            continue
        pairs = zip(keys[side], keys[1 - side], op.null_safe, strict=True)
        equal = {other: one for one, other, null_safe in pairs if not null_safe}
        for ask in asks[1 - side]:
            if columns_in(ask.sql) and columns_in(ask.sql) <= equal.keys():
                sides[side] = filtered(sides[side], with_names(ask, equal), place)
    return sides[0], sides[1]


def _asks(relation: Relation) -> Sequence[Scalar]:
    """The conditions that hold for all rows, as the filters beneath say."""
    match relation.op:
        case FilterOp():
            return [*relation.asks, *_asks(relation.inputs[0])]
        case ProjectOp(projection):
            names = {source: name for name, source in plain_columns(projection).items()}
            return [with_names(one, names) for one in _of_columns(relation.inputs[0], names.keys())]
        case AggregateOp(plan):
            return _of_columns(relation.inputs[0], plan.group)
        case TopKOp() | WindowOp() | SaltOp() | ReplicateOp() | ClockOp() | ExplodeOp():
            return _asks(relation.inputs[0])
        case JoinOp(kind):
            kept = zip(relation.inputs, (LEFT_KEPT, RIGHT_KEPT), strict=True)
            return [one for side, kinds in kept if kind in kinds for one in _asks(side)]
        case SetOperationOp():
            return _asks(relation.inputs[0])
        case UnionOp():
            first, *others = map(_asks, relation.inputs)
            return [one for one in first if all(any(one.sql == ask.sql for ask in asks) for asks in others)]
        case _:
            return ()


def _of_columns(relation: Relation, columns: Collection[str]) -> Sequence[Scalar]:
    """The conditions on these columns alone."""
    return [one for one in _asks(relation) if columns_in(one.sql) <= set(columns)]
