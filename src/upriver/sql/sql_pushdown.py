"""Pushdown: a condition is asked as deep in the tree as Spark asks it, and so is a guard of what lies above it.

Spark's optimizer moves a filter below projections (whose expressions it takes into the condition), below unions, the
sides of joins, the groups that it is about and the partitions that it is about, and infers from a join's equalities
what holds of the other side. An outer join becomes an inner one if a filter leaves no row of it without a match. So a
row that a filter excludes is never asked for what would fail on it. The same is done here, wherever anything can fail;
where nothing can, a filter stays where it was written.

An expression that one expression above uses, and once, is evaluated there, as Spark does it: in a branch of a CASE or
behind a FILTER, only where that is reached.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import pyarrow as pa

from upriver.plan.algebra import Relation, Scalar
from upriver.plan.column_names import columns_in, inlined, plain_columns, quoted, with_columns
from upriver.plan.ops import Aggregate, Filter, Join, JoinKind, Project, SetOperation, TopK, Union
from upriver.plan.plan import Projection
from upriver.sql.sql_constants import refuses_nulls
from upriver.sql.sql_logic import conjunction
from upriver.sql.sql_scalar import TEXT_CHARS_MAX, column_scalar

LEFT_KEPT = frozenset({JoinKind.INNER, JoinKind.LEFT, JoinKind.SEMI, JoinKind.ANTI})
"""Joins whose rows all come from a row of the left input: a condition on that one may be asked before the join."""

RIGHT_KEPT = frozenset({JoinKind.INNER, JoinKind.RIGHT})
"""The same for the right input."""

_KEPT = (LEFT_KEPT, RIGHT_KEPT)

LEFT_MATCHED = frozenset({JoinKind.INNER, JoinKind.RIGHT, JoinKind.SEMI})
"""Joins that give nothing of a row of the left side without a match."""

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
"""What an outer join is without the rows in which a side, 0 for left and 1 for right, is nothing but NULL."""


def filtered(relation: Relation, condition: Scalar | None, place: int | None) -> Relation:
    """The rows for which the condition is true; all, if there is none. Those of several filters are asked in turn."""
    if condition is None:
        return relation
    goes_down = relation.can_fail or condition.fails or isinstance(relation.op, Join)
    sunk = _sunk(relation, condition, place) if goes_down else None
    return _on_top(relation, condition, place) if sunk is None else sunk


def _on_top(relation: Relation, condition: Scalar, place: int | None) -> Relation:
    if not isinstance(relation.op, Filter):
        return Relation(Filter(condition.sql), (relation,), relation.schema, place, asks=(condition,))
    asks = (*_asks(relation, relation.op), condition)
    return replace(relation, op=Filter(conjunction(asks)), asks=asks)


def _asks(relation: Relation, op: Filter) -> tuple[Scalar, ...]:
    return relation.asks or (Scalar(op.predicate, pa.bool_(), fails=True),)


def _sunk(relation: Relation, condition: Scalar, place: int | None) -> Relation | None:
    """The relation with the condition asked somewhere below its operator; ``None`` if it cannot be."""
    names = columns_in(condition.sql)
    match relation.op:
        case Filter():
            return _below_filter(relation, relation.op, condition, place)
        case Project(projection):
            texts = dict(zip(projection.schema.names, projection.expressions, strict=True))
            text = inlined(condition.sql, texts, TEXT_CHARS_MAX)
            if text is None:
                return None
            return replace(relation, inputs=(filtered(relation.inputs[0], replace(condition, sql=text), place),))
        case Aggregate(plan) if names and names <= set(plan.group):
            return replace(relation, inputs=(filtered(relation.inputs[0], condition, place),))
        case TopK() if names and names <= set(relation.op.partition):
            return replace(relation, inputs=(filtered(relation.inputs[0], condition, place),))
        case Union():
            return replace(relation, inputs=tuple(filtered(part, condition, place) for part in relation.inputs))
        case SetOperation():
            first, other = relation.inputs
            other = filtered(other, condition, place) if relation.op.all else other
            return replace(relation, inputs=(filtered(first, condition, place), other))
        case Join():
            return _into_sides(relation, relation.op, condition, place)
        case _:
            return None


def _below_filter(relation: Relation, op: Filter, condition: Scalar, place: int | None) -> Relation | None:
    """Behind those conditions of the filter that can go down, too."""
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


def _into_sides(relation: Relation, op: Join, condition: Scalar, place: int | None) -> Relation | None:
    """Into the side that the condition is about; and what follows from it for the other side, into that one."""
    names = columns_in(condition.sql)
    for side, rows in enumerate(relation.inputs):
        kind = _WITHOUT_NULLS.get((op.kind, side))
        if kind is not None and names and names <= set(rows.schema.names) and _refuses_nulls(condition, rows.schema):
            relation = _of_kind(relation, op, kind, place)
            assert isinstance(relation.op, Join)
            op = relation.op
    sides = list(relation.inputs)
    for side, kinds in enumerate(_KEPT):
        if names and op.kind in kinds and names <= set(sides[side].schema.names):
            sides[side] = filtered(sides[side], condition, place)
            sides[1 - side] = _inferred(op, 1 - side, sides[1 - side], condition, place)
            return replace(relation, inputs=tuple(sides))
    return None


def _refuses_nulls(condition: Scalar, schema: pa.Schema) -> bool:
    """Whether a row of nothing but NULL does not fulfil the condition."""
    columns = pa.schema([schema.field(name) for name in sorted(columns_in(condition.sql))])
    return refuses_nulls(condition.sql, columns)


def _of_kind(relation: Relation, op: Join, kind: JoinKind, place: int | None) -> Relation:
    """The join as one of another kind, which gives fewer rows. What ON asks of one side alone stays where it is asked
    of pairs, since Spark asks the filter's conditions first."""
    sides = list(relation.inputs)
    for side, kinds in enumerate(_MATCHED):
        if kind in kinds and op.kind not in kinds:
            for key, null_safe in zip((op.left_key, op.right_key)[side], op.null_safe, strict=True):
                sides[side] = sides[side] if null_safe else matchable(sides[side], key, place)
    return replace(relation, op=replace(op, kind=kind), inputs=tuple(sides))


def _inferred(op: Join, side: int, relation: Relation, condition: Scalar, place: int | None) -> Relation:
    """One side of a join, of which is asked what is known of each row of the other side that it is joined to."""
    keys = op.left_key, op.right_key
    equal = {
        other: one
        for one, other, null_safe in zip(keys[side], keys[1 - side], op.null_safe, strict=True)
        if not null_safe
    }
    if not relation.can_fail or op.kind not in _MATCHED[side] or not columns_in(condition.sql) <= equal.keys():
        return relation
    return filtered(relation, replace(condition, sql=with_columns(condition.sql, equal)), place)


def matchable(relation: Relation, key: str, place: int | None) -> Relation:
    """One side of a join, of which a row whose ``key`` is null comes to nothing."""
    if not relation.can_fail or key in relation.deferred:
        return relation
    return filtered(relation, present(key), place)


def present(name: str) -> Scalar:
    """That a column is not NULL."""
    return Scalar(f"({quoted(name)} IS NOT NULL)", pa.bool_(), nulls=frozenset(), present=frozenset({quoted(name)}))


# Expressions in expressions


def absorbed(
    relation: Relation,
    texts: Sequence[str],
    uses: Mapping[str, int],
    build: Callable[[Relation, Sequence[str]], Relation],
) -> Relation:
    """What ``build`` makes of a relation and expressions over it, which take in what fails below and is used once.

    uses: how often the expressions, as they are written, name each column.
    """
    once = {name for name in relation.deferred if uses.get(name) == 1}
    if once and isinstance(relation.op, Union):
        parts = tuple(absorbed(part, texts, uses, build) for part in relation.inputs)
        return Relation(Union(), parts, parts[0].schema, relation.place)
    once &= relation.fails
    if not once or not isinstance(relation.op, Project):
        return build(relation, texts)
    opened, inner = _opened(relation, relation.op.projection, once)
    taken = [inlined(text, inner, TEXT_CHARS_MAX) for text in texts]
    if None in taken:
        return build(relation, texts)
    absorbing = [text for text in taken if text is not None]
    assert isinstance(opened.op, Project)
    sources = plain_columns(opened.op.projection)
    if len(sources) < len(opened.schema):
        return build(opened, absorbing)
    return build(opened.inputs[0], [with_columns(text, sources) for text in absorbing])


def _opened(relation: Relation, projection: Projection, names: set[str]) -> tuple[Relation, dict[str, str]]:
    """The projection without these columns, but with what they are computed from; and how they are computed from it."""
    (below,) = relation.inputs
    texts = dict(zip(projection.schema.names, projection.expressions, strict=True))
    fields = {name: field for name, field in zip(texts, projection.schema, strict=True) if name not in names}
    taken = {name.lower() for name in texts}
    known = {source: name for name, source in plain_columns(projection).items()}
    more: dict[str, str] = {}
    for source in sorted(columns_in(" ".join(texts[name] for name in names)) - known.keys()):
        name = source
        while name.lower() in taken:
            name += "_"
        taken.add(name.lower())
        more[source] = name
        fields[name] = pa.field(name, below.schema.field(source).type)
    kept = {name: text for name, text in texts.items() if name not in names}
    kept |= {name: column_scalar(source, fields[name].type).sql for source, name in more.items()}
    inner = {name: with_columns(texts[name], known | more) for name in names}
    schema = pa.schema([fields[name] for name in kept])
    opened = Relation(
        Project(Projection(tuple(kept.values()), schema)), (below,), schema, relation.place, relation.fails - names
    )
    return opened, inner
