"""Pushdown: a condition is applied as deep in the tree as Spark applies it, and so it guards every expression above it.

Spark's optimizer moves a filter below projections (whose expressions it takes into the condition), below unions, and
into the sides of joins, the groups and the partitions that it names. From a join's equalities Spark infers what holds
for the other side. An outer join becomes an inner one if a filter leaves no row of it without a match. So an expression
that would fail on a row never sees that row if a filter excludes it. This module does the same, wherever anything can
fail; where nothing can, a filter stays where it was written, but for joins, exploded rows and the clock, at which rows
wait.

Tests for NULL: Spark tests every column in which a condition rejects NULL (its rule InferFiltersFromConstraints). The
code that it generates for a filter applies the conditions in their order, each behind the tests of the columns that it
names; tests that no condition needs come last (FilterExec). The same holds for tests that the query has itself, of a
column or of functions of columns without a constant: ``v IS NOT NULL AND 10 / w > 1`` divides first. It also holds for
the FILTER of aggregates, if Spark generates code for all of a query (HashAggregateExec).
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import pyarrow as pa

from upriver.plan.clock import ClockOp
from upriver.plan.column_names import columns_in, inlined, plain_column, quoted, with_columns
from upriver.plan.plan import (
    AggregateOp,
    ExplodeOp,
    FilterOp,
    JoinKind,
    JoinOp,
    Projection,
    ProjectOp,
    ReplicateOp,
    SaltOp,
    SetOperationOp,
    TopKOp,
    UnionOp,
    WindowOp,
)
from upriver.plan.relation import Relation, Scalar, any_fails
from upriver.sql.functions.logic import conjunction, not_null_test
from upriver.sql.functions.scalars import TEXT_CHARS_MAX, refuses_nulls

_EQUALITY = re.compile(r'\(("(?:[^"]|"")+") = ("(?:[^"]|"")+")\)')
"""A condition that two columns of one type are equal."""

LEFT_KEPT = frozenset({JoinKind.INNER, JoinKind.LEFT, JoinKind.SEMI, JoinKind.ANTI})
"""Joins whose rows all come from a row of the left input: a condition on that row may be applied before the join."""

RIGHT_KEPT = frozenset({JoinKind.INNER, JoinKind.RIGHT})
"""The same for the right input."""

_KEPT = (LEFT_KEPT, RIGHT_KEPT)

LEFT_MATCHED = frozenset({JoinKind.INNER, JoinKind.RIGHT, JoinKind.SEMI})
"""Joins that put out nothing for a row of the left side without a match."""

RIGHT_MATCHED = frozenset({JoinKind.INNER, JoinKind.LEFT, JoinKind.SEMI, JoinKind.ANTI})
"""The same for the right side."""

_MATCHED = (LEFT_MATCHED, RIGHT_MATCHED)

_WITHOUT_NULLS: Mapping[tuple[JoinKind, int], JoinKind] = MappingProxyType(
    {
        (JoinKind.LEFT, 1): JoinKind.INNER,
        (JoinKind.RIGHT, 0): JoinKind.INNER,
        (JoinKind.FULL, 0): JoinKind.LEFT,
        (JoinKind.FULL, 1): JoinKind.RIGHT,
    }
)
"""The join that is left of an outer join after rows with only NULL on a side (0: left, 1: right) are removed."""


def filtered(relation: Relation, condition: Scalar | None, place: int | None) -> Relation:
    """The rows for which the condition is true; all, if there is none. Several filters are applied in turn."""
    if condition is None:
        return relation
    goes_down = relation.can_fail or condition.fails or isinstance(relation.op, JoinOp | ExplodeOp | ClockOp)
    sunk = _sunk(relation, condition, place) if goes_down else None
    return _on_top(relation, condition, place) if sunk is None else sunk


def _on_top(relation: Relation, condition: Scalar, place: int | None) -> Relation:
    if relation.can_fail or condition.fails:
        relation = tested(relation, condition, place)
    if not isinstance(relation.op, FilterOp):
        return Relation(FilterOp(condition.sql), (relation,), relation.schema, place, asks=(condition,))
    asks = _asks(relation, relation.op)
    if any(condition.sql == one.sql for one in asks):
        return relation
    asks = (*asks, condition)
    in_effect = [*(_by_equality(asks) if any_fails(asks) else ()), *asks]
    return replace(relation, op=FilterOp(filter_condition(in_effect).sql), asks=asks)


def tested(relation: Relation, value: Scalar, place: int | None) -> Relation:
    """The rows in which no column is NULL whose NULL the value rejects, except columns that are computed only when
    needed."""
    for name in sorted(_columns(value.rejects) - relation.deferred):
        test = present(name)
        if name in relation.schema.names and test.sql != value.sql and not _is_applied(relation, test):
            relation = filtered(relation, test, place)
    return relation


def _is_applied(relation: Relation, condition: Scalar) -> bool:
    """Whether a filter that the condition would come to has it. Otherwise each condition would bring the tests of all
    others down again."""
    names = columns_in(condition.sql)
    match relation.op:
        case FilterOp():
            known = any(condition.sql == one.sql for one in _asks(relation, relation.op))
            return known or _is_applied(relation.inputs[0], condition)
        case ProjectOp(projection):
            inner = substituted(condition, computed_values(relation, projection))
            return inner is not None and _is_applied(relation.inputs[0], inner)
        case JoinOp():
            sides = zip(_KEPT, relation.inputs, strict=True)
            return any(
                relation.op.kind in kinds and names <= set(rows.schema.names) and _is_applied(rows, condition)
                for kinds, rows in sides
            )
        case _:
            return False


def _columns(texts: Iterable[str]) -> set[str]:
    """The columns among these expressions."""
    return {name for name in map(plain_column, texts) if name is not None}


def filter_condition(asks: Sequence[Scalar]) -> Scalar:
    """All conditions of a filter, one or more, as Spark's code applies them: a row stops at the first that is not
    true."""
    return Scalar(conjunction(_in_turn(asks)), pa.bool_(), any_fails(asks))


def _in_turn(asks: Sequence[Scalar]) -> Sequence[Scalar]:
    """The conditions of a filter in the order in which Spark's code applies them: each test for NULL of a column right
    before the first other condition that names the column, and the other tests for NULL last. A test is left out before
    a condition that cannot fail and is not true for NULL."""
    tests = [one for one in asks if one.is_test and one.is_whole]
    waiting = {name: one for one in tests for name in _columns(one.rejects) if one.sql == present(name).sql}
    placed: list[Scalar] = []
    turns: list[Scalar] = []
    for one in asks:
        if one not in tests:
            before = {name: waiting.pop(name) for name in sorted(columns_in(one.sql)) if name in waiting}
            placed += before.values()
            implied = set[str]() if one.fails else _columns(one.rejects)
            turns += [test for name, test in before.items() if name not in implied]
            turns.append(one)
    return [*turns, *(one for one in tests if one not in placed)]


def _by_equality(asks: Sequence[Scalar]) -> Iterable[Scalar]:
    """What else holds where columns are equal, as one condition says, and other conditions hold. Spark applies it
    first."""
    found: dict[str, Scalar] = {}
    for one in asks:
        equal = _EQUALITY.fullmatch(one.sql)
        left, right = ("", "") if equal is None else (plain_column(equal[1]) or "", plain_column(equal[2]) or "")
        for name, other in ((left, right), (right, left)):
            for ask in asks:
                if name and ask is not one and not ask.is_test:
                    renamed = with_names(ask, {name: other})
                    found.setdefault(renamed.sql, renamed)
    return [ask for sql, ask in found.items() if all(sql != one.sql for one in asks)]


def _asks(relation: Relation, op: FilterOp) -> tuple[Scalar, ...]:
    return relation.asks or (Scalar(op.predicate, pa.bool_(), fails=True),)


def _sunk(relation: Relation, condition: Scalar, place: int | None) -> Relation | None:
    """The relation with the condition pushed below its operator; ``None`` if that is impossible."""
    names = columns_in(condition.sql)
    match relation.op:
        case FilterOp():
            return _below_filter(relation, relation.op, condition, place)
        case ProjectOp(projection):
            inner = substituted(condition, computed_values(relation, projection))
            return None if inner is None else replace(relation, inputs=(filtered(relation.inputs[0], inner, place),))
        case AggregateOp(plan) if names and names <= set(plan.group):
            return replace(relation, inputs=(filtered(relation.inputs[0], condition, place),))
        case TopKOp() | WindowOp() if names and names <= set(relation.op.partition):
            return replace(relation, inputs=(filtered(relation.inputs[0], condition, place),))
        case SaltOp() | ReplicateOp() if relation.op.column not in names:
            return replace(relation, inputs=(filtered(relation.inputs[0], condition, place),))
        case ClockOp() if names.isdisjoint(relation.op.outputs):
            return replace(relation, inputs=(filtered(relation.inputs[0], condition, place),))
        case ExplodeOp() if names and names.isdisjoint(relation.op.made):
            return replace(relation, inputs=(filtered(relation.inputs[0], condition, place),))
        case UnionOp():
            return replace(relation, inputs=tuple(filtered(part, condition, place) for part in relation.inputs))
        case SetOperationOp():
            first, other = relation.inputs
            other = filtered(other, condition, place) if relation.op.all else other
            return replace(relation, inputs=(filtered(first, condition, place), other))
        case JoinOp():
            return _into_sides(relation, relation.op, condition, place)
        case _:
            return None


def _below_filter(relation: Relation, op: FilterOp, condition: Scalar, place: int | None) -> Relation | None:
    """Push the condition below the filter, behind those of the filter's conditions that can go down, too."""
    (below,) = relation.inputs
    left: list[Scalar] = []
    for one in _asks(relation, op):
        sunk = _sunk(below, one, relation.place)
        below = below if sunk is None else sunk
        left += [one] if sunk is None else []
    sunk = _sunk(below, condition, place)
    if sunk is None:
        return None
    for one in left:
        sunk = _on_top(sunk, one, relation.place)
    return sunk


def _into_sides(relation: Relation, op: JoinOp, condition: Scalar, place: int | None) -> Relation | None:
    """Push the condition into the side that it names, and what follows from it into the other side."""
    names = columns_in(condition.sql)
    for side, rows in enumerate(relation.inputs):
        kind = _WITHOUT_NULLS.get((op.kind, side))
        if kind is not None and names and names <= set(rows.schema.names) and _refuses_nulls(condition, rows.schema):
            relation = _of_kind(relation, op, kind, place)
            assert isinstance(relation.op, JoinOp)
            op = relation.op
    sides = list(relation.inputs)
    for side, kinds in enumerate(_KEPT):
        if names and op.kind in kinds and names <= set(sides[side].schema.names):
            sides[side] = filtered(sides[side], condition, place)
            sides[1 - side] = _inferred(op, 1 - side, sides[1 - side], condition, place)
            return replace(relation, inputs=tuple(sides))
    return None


def _refuses_nulls(condition: Scalar, schema: pa.Schema) -> bool:
    """Whether the condition is not true for a row of nothing but NULL."""
    columns = pa.schema([schema.field(name) for name in sorted(columns_in(condition.sql))])
    return refuses_nulls(condition.sql, columns)


def _of_kind(relation: Relation, op: JoinOp, kind: JoinKind, place: int | None) -> Relation:
    """The join with another kind, which gives fewer rows. ON's conditions on one side alone stay conditions on pairs,
    because Spark applies the filter's conditions first."""
    sides = list(relation.inputs)
    for side, kinds in enumerate(_MATCHED):
        if kind in kinds and op.kind not in kinds:
            for key, null_safe in zip((op.left_key, op.right_key)[side], op.null_safe, strict=True):
                sides[side] = (
                    sides[side] if null_safe else matchable(sides[side], Scalar(quoted(key), pa.null()), place)
                )
    return replace(relation, op=replace(op, kind=kind), inputs=tuple(sides))


def _inferred(op: JoinOp, side: int, relation: Relation, condition: Scalar, place: int | None) -> Relation:
    """One side of a join, filtered by a condition on the other side, as far as the join's equalities carry it over."""
    keys = op.left_key, op.right_key
    equal = {
        other: one
        for one, other, null_safe in zip(keys[side], keys[1 - side], op.null_safe, strict=True)
        if not null_safe
    }
    if not relation.can_fail or op.kind not in _MATCHED[side] or not columns_in(condition.sql) <= equal.keys():
        return relation
    return filtered(relation, with_names(condition, equal), place)


def matchable(relation: Relation, value: Scalar, place: int | None) -> Relation:
    """One side of a join without rows of which a value that a match needs is NULL: they give no output."""
    return tested(relation, value, place) if relation.can_fail or value.fails else relation


def present(name: str) -> Scalar:
    """The condition that a column is not NULL."""
    return not_null_test(_column(name))


def _column(name: str) -> Scalar:
    """A column of whose value only the absence matters."""
    return Scalar(quoted(name), pa.null())


# Expressions in expressions


def computed_values(relation: Relation, projection: Projection) -> Mapping[str, Scalar]:
    """The columns of a projection, over the columns beneath."""
    pairs = zip(projection.schema, projection.expressions, strict=True)
    return {field.name: relation.values.get(field.name, Scalar(text, field.type)) for field, text in pairs}


def substituted(value: Scalar, inner: Mapping[str, Scalar]) -> Scalar | None:
    """The value with these columns as their expressions; ``None`` if it gets too long."""
    text = inlined(value.sql, {name: one.sql for name, one in inner.items()}, TEXT_CHARS_MAX)
    if text is None:
        return None
    used = [inner[name] for name in columns_in(value.sql) if name in inner]
    return replace(
        value,
        sql=text,
        fails=value.fails or any_fails(used),
        nulls=frozenset(_sources(value.null_by, inner, lambda one: one.null_by)),
        rejected=frozenset(_sources(value.rejects, inner, lambda one: one.rejects)),
        whole=value.is_whole and all(one.is_whole for one in used),
        letters=None,
    )


def _sources(
    texts: Iterable[str], inner: Mapping[str, Scalar], texts_of: Callable[[Scalar], frozenset[str]]
) -> Iterator[str]:
    """These values, ``null_by`` or ``rejects``, after the substitution."""
    for text in texts:
        value = inner.get(plain_column(text) or "")
        if value is not None:
            yield from texts_of(value)
        else:
            yield inlined(text, {name: one.sql for name, one in inner.items()}, TEXT_CHARS_MAX) or text


def with_names(value: Scalar, names: Mapping[str, str]) -> Scalar:
    """The value with other names for its columns."""
    return replace(
        value,
        sql=with_columns(value.sql, names),
        nulls=frozenset(with_columns(text, names) for text in value.null_by),
        rejected=frozenset(with_columns(text, names) for text in value.rejects),
        whole=value.is_whole,
        letters=None,
    )
