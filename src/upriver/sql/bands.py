"""Bands: comparisons of a value of one side of a join with one of the other, by which rows are found without comparing
all pairs.

Bands only save work: the conditions from which they come are tested all the same, on fewer pairs. A pair is left out
if a condition is not true of it, and no condition that Spark tests before can fail on it. A bound that can fail, such
as a time less an interval, becomes a column that is NULL where it does. A row with such a NULL meets all rows, so that
the condition fails on it as in Spark.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from sqlglot import exp

from upriver.plan.plan import JoinKind
from upriver.plan.relation import Relation, Scalar
from upriver.plan.types import has_ranges
from upriver.sql.logic import comparables
from upriver.sql.scalars import Context
from upriver.sql.scope import names_in, worded
from upriver.sql.tries import or_null

_AT_MOST: dict[type[exp.Expr], bool] = {exp.LT: True, exp.LTE: True, exp.GT: False, exp.GTE: False}
_TRIED = (exp.Column, exp.Identifier, exp.Literal, exp.Interval, exp.Var, exp.Paren, exp.Add, exp.Sub, exp.Mul, exp.Neg)
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


@dataclass(frozen=True, slots=True)
class _Test:
    """A comparison, or another condition. pair: its operands; ``None`` for a condition that is no comparison."""

    node: exp.Expr
    fails: bool
    pair: tuple[exp.Expr, exp.Expr, bool] | None


def bands_among(
    context: Context, kind: JoinKind, tests: Iterable[tuple[exp.Expr, Scalar]], left: Relation, right: Relation
) -> list[Compared]:
    """The bands that follow from the conditions of a join, in the order in which they are tested. tests: the conditions
    that name both sides; of an inner join, also those that are tested above it."""
    found: list[Compared] = []
    for test in (part for node, value in tests for part in _parts(node, value)):
        band = None if test.pair is None else _band(context, test, left, right)
        if band is not None:
            found.append(band)
        elif test.fails:
            # An outer join tests all conditions, and where one is NULL, the next is tested, too.
            return found if kind is JoinKind.INNER else []
    return found


def _parts(node: exp.Expr, value: Scalar) -> Iterator[_Test]:
    if isinstance(node, exp.Between):
        yield _Test(node, value.fails, (node.this, node.args["low"], False))
        yield _Test(node, value.fails, (node.this, node.args["high"], True))
    else:
        at_most = _AT_MOST.get(type(node))
        yield _Test(node, value.fails, None if at_most is None else (node.this, node.expression, at_most))


def _band(context: Context, test: _Test, left: Relation, right: Relation) -> Compared | None:
    assert test.pair is not None
    one, other, at_most = test.pair
    if names_in(one) <= set(right.schema.names):
        one, other, at_most = other, one, not at_most
    if not (_is_of(one, left) and _is_of(other, right)):
        return None
    values = comparables(context, test.node, context.translate(one), context.translate(other))
    bounds = [_bound(node, value) for node, value in zip((one, other), values, strict=True)]
    if bounds[0] is None or bounds[1] is None or not has_ranges(values[0].type):
        return None
    return Compared(bounds[0], bounds[1], at_most)


def _is_of(node: exp.Expr, side: Relation) -> bool:
    """Whether a value is of that side, and may be computed of each of its rows."""
    names = names_in(node)
    return bool(names) and names <= set(side.schema.names) and names.isdisjoint(side.deferred)


def _bound(node: exp.Expr, value: Scalar) -> Bound | None:
    if not value.fails:
        return Bound(worded(node), value, False)
    if not all(isinstance(part, _TRIED) for part in node.walk()):
        return None
    return Bound(worded(node), replace(value, sql=or_null(value.sql), fails=False, nulls=None), True)
