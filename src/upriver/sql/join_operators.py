"""Joins as Spark has them: of two relations, of a row with the existence of another, and NOT IN.

NOT IN is an anti join on ``a = b OR (a = b) IS NULL``, which has no key. It is divided: no pair is equal, and none is
NULL. So is IN inside of an expression, where it is an existence: there Spark takes NULL for true.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from upriver.plan.column_names import unique
from upriver.plan.plan import JoinKind
from upriver.plan.relation import Relation
from upriver.plan.source import ELSEWHERE, FrameSource
from upriver.sql.attachments import attached, with_columns
from upriver.sql.conditions import conditions
from upriver.sql.domains import with_keyed_domain, without_domain
from upriver.sql.functions.logic import is_null_test, not_null_test
from upriver.sql.functions.scalars import FALSE, TRUE
from upriver.sql.joins import EQUALITIES, equality, joined
from upriver.sql.one_row import only_row
from upriver.sql.pushdown import filtered
from upriver.sql.relations import ALIKE, Output, distinct, kept, projected, union, with_values
from upriver.sql.translation import Rule, Translation
from upriver.sql.tree import TreeNode, conjuncts, substituted

KINDS = {
    "Inner": JoinKind.INNER,
    "Cross": JoinKind.INNER,
    "LeftOuter": JoinKind.LEFT,
    "RightOuter": JoinKind.RIGHT,
    "FullOuter": JoinKind.FULL,
    "LeftSemi": JoinKind.SEMI,
    "LeftAnti": JoinKind.ANTI,
}
_EXISTENCE, _SINGLE = "ExistenceJoin", "LeftSingle"


def _join(translation: Translation, node: TreeNode) -> Relation:
    kind, place = node.fields["joinType"], _place(translation, node)
    if kind in ("LeftSemi", "LeftAnti") or kind[0] == _EXISTENCE:
        node = without_domain(node)
    if kind != "Inner":
        node = with_keyed_domain(node)
    left, right = (translation.relation(one) for one in node.children)
    condition = node.fields["condition"]
    asked = [] if condition is None else list(conjuncts(condition))
    left, right, asked = _attached(translation, left, right, node, asked)
    if isinstance(kind, list):
        kind, *of = kind
        if kind == _EXISTENCE:
            return _with_existence(_Division(translation, left, right, asked, place), of[0])
    if kind == _SINGLE:
        return _with_single(translation, left, right, asked, place)
    if kind not in KINDS:
        raise translation.source.unsupported(node.place, f"a join that is {kind}", ELSEWHERE)
    if KINDS[kind] is JoinKind.ANTI and any(map(_is_null_aware, asked)):
        division = _Division(translation, left, right, asked, place)
        return union([projected(part, kept(left), None) for part in division.parts().false], place)
    return joined(translation, KINDS[kind], left, right, asked, place)


def _place(translation: Translation, node: TreeNode) -> int | None:
    """That of the table of the right side: Spark gives a join the place of the whole query."""
    place = node.place
    if isinstance(translation.source, FrameSource):
        return place
    side = node.children[1]
    while side.children:
        place = place if side.place is None else side.place
        side = side.children[0]
    return place if side.place is None else side.place


def _attached(
    translation: Translation, left: Relation, right: Relation, node: TreeNode, asked: Sequence[TreeNode]
) -> tuple[Relation, Relation, list[TreeNode]]:
    """Both sides with what the conditions need beside their rows, and the conditions with columns in its place. It is
    of the side whose columns a condition names, or an operand of an equality, which may be a key."""
    sides = [frozenset(one.output) for one in node.children]
    rows = [left, right]

    def settled(part: TreeNode) -> TreeNode:
        side = 1 if part.references and part.references <= sides[1] else 0
        rows[side] = attached(translation, rows[side], [part])
        return with_columns(translation, rows[side], part)

    found = []
    for one in asked:
        is_pair = one.kind in EQUALITIES and not any(one.references <= side for side in sides)
        found.append(replace(one, children=tuple(map(settled, one.children))) if is_pair else settled(one))
    return rows[0], rows[1], found


def _with_single(
    translation: Translation, left: Relation, right: Relation, asked: Sequence[TreeNode], place: int | None
) -> Relation:
    """The rows of the left side, each with the one row of the right side for which the conditions are true. It is an
    error if there are several, and NULL if there is none."""
    keys = [equality(translation, one, left, right) for one in conditions(translation, asked, left, right)]
    if any(key is None for key in keys):
        return _with_single_of_pairs(translation, left, right, asked, place)
    right, names = with_values(right, [key.right for key in keys if key is not None], translation.taken)
    right = only_row(right, tuple(dict.fromkeys(names)), translation.taken, place)
    pairs = []
    for one, name in zip(asked, names, strict=True):
        outer = next(side for side in one.children if translation.names_in(side) <= set(left.schema.names))
        pairs.append(replace(one, children=(outer, translation.of_name(name, right.schema.field(name).type))))
    return joined(translation, JoinKind.LEFT, left, right, pairs, place)


def _with_single_of_pairs(
    translation: Translation, left: Relation, right: Relation, asked: Sequence[TreeNode], place: int | None
) -> Relation:
    """The same for any conditions: the different values of the left side that they name are joined first."""
    named = {one.id: one for part in asked for one in part.walk() if one.is_column}
    around = {id: one for id, one in named.items() if translation.name(one) in left.schema.names}
    inner = {
        id: translation.of_name(unique(translation.name(one), translation.taken), one.type)
        for id, one in around.items()
    }
    outputs = [
        Output(translation.name(inner[id]), translation.column(left, translation.name(one)))
        for id, one in around.items()
    ]
    values = distinct(projected(left, outputs, place), place)
    pairs = joined(translation, JoinKind.INNER, values, right, [substituted(one, inner) for one in asked], place)
    single = only_row(pairs, [one.name for one in outputs], translation.taken, place)
    same = [TreeNode("EqualNullSafe", {}, (one, inner[id]), pa.bool_(), False) for id, one in around.items()]
    return joined(translation, JoinKind.LEFT, left, single, same, place)


@dataclass(frozen=True, slots=True)
class _Parts:
    """The rows for which IN or EXISTS is true or NULL, and those for which it is false, each in any number of parts."""

    true: list[Relation]
    false: list[Relation]


class _Division:
    """The rows of the left side, divided by whether the right side has a row for which the conditions are true."""

    def __init__(
        self, translation: Translation, left: Relation, right: Relation, asked: Sequence[TreeNode], place: int | None
    ) -> None:
        self._translation, self._left, self._right, self._place = translation, left, right, place
        self._pairs = [one.children[0] for one in asked if _is_null_aware(one)]
        self._others = [one for one in asked if not _is_null_aware(one)]

    @property
    def place(self) -> int | None:
        return self._place

    @property
    def left(self) -> Relation:
        return self._left

    @property
    def translation(self) -> Translation:
        return self._translation

    def parts(self) -> _Parts:
        asked = [*self._others, *self._pairs]
        true = self._joined(JoinKind.SEMI, self._left, self._right, asked)
        rest = self._joined(JoinKind.ANTI, self._left, self._right, asked)
        if not self._pairs:
            return _Parts([true], [rest])
        rights = set(self._right.schema.names)
        is_apart = all(any(self._translation.names_in(side) <= rights for side in one.children) for one in self._pairs)
        if len(self._pairs) > 1 or not is_apart:
            return self._of_several(true, rest)
        return self._of_one(self._pairs[0], true, rest)

    def _of_one(self, pair: TreeNode, true: Relation, rest: Relation) -> _Parts:
        """No row on the right is NULL; and the value on the left is not, unless the right has no row at all."""
        one, other = pair.children
        if not self._translation.names_in(one) <= set(self._left.schema.names):
            one, other = other, one
        unknown: list[Relation] = []
        compared = self._translation.over(self._right).of(other)
        if compared.null_by:
            nulls = self._reduced(filtered(self._right, is_null_test(compared), self._place))
            unknown.append(self._joined(JoinKind.SEMI, rest, nulls, self._others))
            rest = self._joined(JoinKind.ANTI, rest, nulls, self._others)
        value = self._translation.over(rest).of(one)
        if not value.null_by:
            return _Parts([true, *unknown], [rest])
        without = filtered(rest, is_null_test(value), self._place)
        some = self._reduced(self._right)
        unknown.append(self._joined(JoinKind.SEMI, without, some, self._others))
        none = self._joined(JoinKind.ANTI, without, some, self._others)
        return _Parts([true, *unknown], [filtered(rest, not_null_test(value), self._place), none])

    def _of_several(self, true: Relation, rest: Relation) -> _Parts:
        """Some pair of values is NULL, and no other pair of the same row differs."""
        tests = [TreeNode("Coalesce", {}, (pair, _TRUE), pair.type, False, name="coalesce") for pair in self._pairs]
        asked = [*self._others, *tests]
        unknown = self._joined(JoinKind.SEMI, rest, self._right, asked)
        return _Parts([true, unknown], [self._joined(JoinKind.ANTI, rest, self._right, asked)])

    def _reduced(self, relation: Relation) -> Relation:
        """The different values that the other conditions need; one row, if they need none."""
        names = frozenset[str]().union(*map(self._translation.names_in, self._others)) & set(relation.schema.names)
        columns = [output for output in kept(relation) if output.name in names]
        alike = [Output(unique("some", self._translation.taken), ALIKE)]
        return distinct(projected(relation, columns or alike, None), None)

    def _joined(self, kind: JoinKind, left: Relation, right: Relation, asked: Sequence[TreeNode]) -> Relation:
        return joined(self._translation, kind, left, right, asked, self._place)


_TRUE = TreeNode("Literal", {"value": True, "dataType": "boolean"}, type=pa.bool_(), nullable=False, name="literal")


def _with_existence(division: _Division, column: TreeNode) -> Relation:
    """The rows of the left side with whether the right side has a row for each."""
    name, parts = division.translation.name(column), division.parts()
    outputs = kept(division.left)
    divided = [
        projected(part, [*outputs, Output(name, value)], division.place)
        for group, value in ((parts.true, TRUE), (parts.false, FALSE))
        for part in group
    ]
    return union(divided, division.place)


def _is_null_aware(node: TreeNode) -> bool:
    if node.kind != "Or" or node.children[1].kind != "IsNull":
        return False
    equal, (tested,) = node.children[0], node.children[1].children
    return equal.kind == "EqualTo" and equal.meaning == tested.meaning


RULES: dict[str, Rule] = {"Join": _join}
