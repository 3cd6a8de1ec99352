"""Bands: comparisons of a value of one side of a join with one of the other, by which rows are found without comparing
all pairs.

Bands only save work: the conditions from which they come are tested all the same, on fewer pairs. A pair is left out
if a condition is not true of it, and no condition that Spark tests before can fail on it. A bound that can fail, such
as a time less an interval, becomes a column that is NULL where it does. A row with such a NULL meets all rows, so that
the condition fails on it as in Spark.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from upriver.plan.plan import JoinKind
from upriver.plan.relation import Relation, Scalar
from upriver.plan.types import has_ranges
from upriver.sql.conditions import Condition
from upriver.sql.functions.tries import or_null
from upriver.sql.translation import Translation
from upriver.sql.tree import TreeNode

_AT_MOST = {"LessThan": True, "LessThanOrEqual": True, "GreaterThan": False, "GreaterThanOrEqual": False}
_TRIED = frozenset(
    {"AttributeReference", "Literal", "Add", "Subtract", "Multiply", "UnaryMinus", "Cast", "DateAdd", "DateSub"}
    | {"TimestampAddInterval", "DateAddYMInterval", "DateAddInterval", "ExtractANSIIntervalDays"}
)
"""What a bound may be made of that can fail."""


@dataclass(frozen=True, slots=True)
class Bound:
    """A value of one side. title: for its column. is_tried: it is NULL where it cannot be computed."""

    title: str
    value: Scalar
    is_tried: bool


@dataclass(frozen=True, slots=True)
class Compared:
    """A band, before its values are columns."""

    left: Bound
    right: Bound
    at_most: bool


def bands_among(
    translation: Translation, kind: JoinKind, tests: Sequence[Condition], left: Relation, right: Relation
) -> list[Compared]:
    """The bands that follow from the conditions of a join, in the order in which they are tested. tests: the conditions
    that name both sides; of an inner join, also those that are tested above it."""
    found: list[Compared] = []
    for test in tests:
        band = _band(translation, test.node, left, right)
        if band is not None:
            found.append(band)
        elif test.value.fails:
            # An outer join tests all conditions, and where one is NULL, the next is tested, too.
            return found if kind is JoinKind.INNER else []
    return found


def _band(translation: Translation, node: TreeNode, left: Relation, right: Relation) -> Compared | None:
    if node.kind not in _AT_MOST:
        return None
    (one, other), at_most = node.children, _AT_MOST[node.kind]
    if translation.names_in(one) <= set(right.schema.names):
        one, other, at_most = other, one, not at_most
    if not (_is_of(translation, one, left) and _is_of(translation, other, right)):
        return None
    bounds = _bound(translation, one, left), _bound(translation, other, right)
    if bounds[0] is None or bounds[1] is None or not has_ranges(bounds[0].value.type):
        return None
    return Compared(bounds[0], bounds[1], at_most)


def _is_of(translation: Translation, node: TreeNode, side: Relation) -> bool:
    """Whether a value is of that side, and may be computed of each of its rows."""
    names = translation.names_in(node)
    return bool(names) and names <= set(side.schema.names) and names.isdisjoint(side.deferred)


def _bound(translation: Translation, node: TreeNode, side: Relation) -> Bound | None:
    value, title = translation.over(side).of(node), translation.worded(node)
    if not value.fails:
        return Bound(title, value, False)
    if not all(part.kind in _TRIED for part in node.walk()):
        return None
    return Bound(title, replace(value, sql=or_null(value.sql), fails=False, nulls=None), True)
