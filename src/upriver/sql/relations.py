"""Relations, made from translated expressions: the parts from which the SQL front end builds its trees.

Joins: the parts of ON that are the key, the conditions on one side alone, and the conditions on pairs of rows.

Conditions of WHERE, ON and QUALIFY are applied one by one, each as early as the rows that it names exist.

Pushdown: a condition is applied as deep in the tree as Spark applies it, and so it guards every expression above it.
Spark's optimizer moves a filter below projections (whose expressions it takes into the condition), below unions, and
into the sides of joins, the groups and the partitions that it names. From a join's equalities Spark infers what holds
for the other side. An outer join becomes an inner one if a filter leaves no row of it without a match. So an expression
that would fail on a row never sees that row if a filter excludes it. This module does the same, wherever anything can
fail; where nothing can, a filter stays where it was written.

An expression that a single expression above uses once is evaluated there, as Spark does it: inside a branch of a CASE
or behind a FILTER, only if the branch is taken.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import pyarrow as pa
from sqlglot import exp

from upriver.plan.column_names import (
    columns_in,
    inlined,
    operand_of_case,
    plain_column,
    plain_columns,
    quoted,
    with_columns,
)
from upriver.plan.plan import (
    AggregateOp,
    AggregatePlan,
    FilterOp,
    JoinKind,
    JoinOp,
    Projection,
    ProjectOp,
    SetOperationOp,
    TopKOp,
    UnionOp,
)
from upriver.plan.relation import Relation, Scalar
from upriver.plan.source import ELSEWHERE, Source
from upriver.plan.types import duck_name, is_floating, is_null, same_type, spark_name
from upriver.sql.logic import conjunction, conjuncts
from upriver.sql.operators import boolean, to_comparable
from upriver.sql.scalars import TEXT_CHARS_MAX, Context, column_scalar, macro, refuses_nulls, typed_name
from upriver.sql.scope import names_in, unique, worded

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
    goes_down = relation.can_fail or condition.fails or isinstance(relation.op, JoinOp)
    sunk = _sunk(relation, condition, place) if goes_down else None
    return _on_top(relation, condition, place) if sunk is None else sunk


def _on_top(relation: Relation, condition: Scalar, place: int | None) -> Relation:
    if not isinstance(relation.op, FilterOp):
        return Relation(FilterOp(condition.sql), (relation,), relation.schema, place, asks=(condition,))
    asks = (*_asks(relation, relation.op), condition)
    return replace(relation, op=FilterOp(conjunction(asks)), asks=asks)


def _asks(relation: Relation, op: FilterOp) -> tuple[Scalar, ...]:
    return relation.asks or (Scalar(op.predicate, pa.bool_(), fails=True),)


def _sunk(relation: Relation, condition: Scalar, place: int | None) -> Relation | None:
    """The relation with the condition pushed below its operator; ``None`` if that is impossible."""
    names = columns_in(condition.sql)
    match relation.op:
        case FilterOp():
            return _below_filter(relation, relation.op, condition, place)
        case ProjectOp(projection):
            texts = dict(zip(projection.schema.names, projection.expressions, strict=True))
            text = inlined(condition.sql, texts, TEXT_CHARS_MAX)
            if text is None:
                return None
            return replace(relation, inputs=(filtered(relation.inputs[0], replace(condition, sql=text), place),))
        case AggregateOp(plan) if names and names <= set(plan.group):
            return replace(relation, inputs=(filtered(relation.inputs[0], condition, place),))
        case TopKOp() if names and names <= set(relation.op.partition):
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
                sides[side] = sides[side] if null_safe else matchable(sides[side], key, place)
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
    return filtered(relation, replace(condition, sql=with_columns(condition.sql, equal)), place)


def matchable(relation: Relation, key: str, place: int | None) -> Relation:
    """One side of a join without rows whose ``key`` is null: they give no output."""
    if not relation.can_fail or key in relation.deferred:
        return relation
    return filtered(relation, present(key), place)


def present(name: str) -> Scalar:
    """The condition that a column is not NULL."""
    return Scalar(f"({quoted(name)} IS NOT NULL)", pa.bool_(), nulls=frozenset(), present=frozenset({quoted(name)}))


# Expressions in expressions


def absorbed(
    relation: Relation,
    texts: Sequence[str],
    uses: Mapping[str, int],
    build: Callable[[Relation, Sequence[str]], Relation],
) -> Relation:
    """``build`` of a relation and expressions over it. The expressions absorb columns that can fail and are used once.

    uses: how often the expressions, as written, name each column.
    """
    once = {name for name in relation.deferred if uses.get(name) == 1}
    if once and isinstance(relation.op, UnionOp):
        parts = tuple(absorbed(part, texts, uses, build) for part in relation.inputs)
        return Relation(UnionOp(), parts, parts[0].schema, relation.place)
    once &= relation.fails
    if not once or not isinstance(relation.op, ProjectOp):
        return build(relation, texts)
    opened, inner = _opened(relation, relation.op.projection, once)
    taken = [inlined(text, inner, TEXT_CHARS_MAX) for text in texts]
    if None in taken:
        return build(relation, texts)
    absorbing = [text for text in taken if text is not None]
    assert isinstance(opened.op, ProjectOp)
    sources = plain_columns(opened.op.projection)
    if len(sources) < len(opened.schema):
        return build(opened, absorbing)
    return build(opened.inputs[0], [with_columns(text, sources) for text in absorbing])


def _opened(relation: Relation, projection: Projection, names: set[str]) -> tuple[Relation, dict[str, str]]:
    """The projection with the sources of these columns in their place; and the columns' expressions over the
    sources."""
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
        ProjectOp(Projection(tuple(kept.values()), schema)), (below,), schema, relation.place, relation.fails - names
    )
    return opened, inner


UNBOUNDED = 2**31 - 1
"""The limit of a TopK that no condition bounds. A finished view must not have one."""


@dataclass(frozen=True, slots=True)
class Output:
    """A column that will be computed."""

    name: str
    value: Scalar


def projected(relation: Relation, outputs: Iterable[Output], place: int | None) -> Relation:
    """These columns for each row."""
    outputs = tuple(outputs)
    schema = pa.schema([pa.field(output.name, output.value.type) for output in outputs])
    projection = Projection(tuple(output.value.sql for output in outputs), schema)
    fails = frozenset(one.name for one in outputs if _is_late(one.value) and plain_column(one.value.sql) is None)
    return Relation(ProjectOp(projection), (relation,), schema, place, fails)


def _is_late(value: Scalar) -> bool:
    """Whether the place of its computation matters."""
    return value.fails or operand_of_case(value.sql) is not None


def computed(relation: Relation, outputs: Sequence[Output], uses: Mapping[str, int], place: int | None) -> Relation:
    """These columns for each row; they absorb columns that can fail and are used once (:func:`absorbed`)."""

    def build(below: Relation, texts: Sequence[str]) -> Relation:
        values = [
            replace(one.value, sql=text, fails=one.value.fails or text != one.value.sql)
            for one, text in zip(outputs, texts, strict=True)
        ]
        return projected(below, [Output(one.name, value) for one, value in zip(outputs, values, strict=True)], place)

    return absorbed(relation, [one.value.sql for one in outputs], uses, build)


def widened(relation: Relation, outputs: Sequence[Output], place: int | None) -> Relation:
    """The relation's columns, then these."""
    return projected(relation, (*kept(relation), *outputs), place) if outputs else relation


def with_values(relation: Relation, values: Sequence[Output], taken: set[str]) -> tuple[Relation, list[str]]:
    """The relation with each value as a column, and these columns' names. A value that is a column already stays it.

    taken: names that no other column may have, lower case; the new names are added.
    """
    names = {column_scalar(field.name, field.type).sql: field.name for field in relation.schema}
    more: list[Output] = []
    for wanted in values:
        if wanted.value.sql not in names:
            names[wanted.value.sql] = unique(wanted.name, taken)
            more.append(Output(names[wanted.value.sql], wanted.value))
    return widened(relation, more, None), [names[wanted.value.sql] for wanted in values]


def kept(relation: Relation) -> tuple[Output, ...]:
    """All its columns, unchanged."""
    return tuple(Output(field.name, column_scalar(field.name, field.type)) for field in relation.schema)


def renamed(relation: Relation, names: Sequence[str]) -> Relation:
    """The same columns with these names."""
    if list(names) == relation.schema.names:
        return relation
    fields = zip(names, relation.schema, strict=True)
    return projected(relation, [Output(name, column_scalar(field.name, field.type)) for name, field in fields], None)


def retyped(relation: Relation, schema: pa.Schema) -> Relation:
    """The same columns with the names and the time zones of the schema."""
    if schema == relation.schema:
        return relation
    assert all(same_type(*pair) for pair in zip(schema.types, relation.schema.types, strict=True)), "other types"
    if isinstance(relation.op, ProjectOp):
        projection = Projection(relation.op.projection.expressions, schema)
        names = dict(zip(relation.schema.names, schema.names, strict=True))
        fails = frozenset(names[name] for name in relation.fails)
        return Relation(ProjectOp(projection), relation.inputs, schema, relation.place, fails)
    projection = Projection(tuple(map(quoted, relation.schema.names)), schema)
    return Relation(ProjectOp(projection), (relation,), schema, relation.place)


def union(relations: Sequence[Relation], place: int | None) -> Relation:
    """The rows of all of them, with the names of the first, whose types they share."""
    first = relations[0]
    inputs = tuple(retyped(relation, first.schema) for relation in relations)
    return Relation(UnionOp(), inputs, first.schema, place)


def comparable(source: Source, relation: Relation, node: exp.Expr) -> Relation:
    """The relation, if its rows can be compared with each other. Raises UnsupportedSql."""
    for field in relation.schema:
        if duck_name(field.type) is None:
            what = f"comparing {spark_name(field.type)}, the column {field.name!r},"
            raise source.unsupported(node, what, "Leave the column out.")
    return relation


def distinct(relation: Relation, place: int | None) -> Relation:
    """Each row once."""
    same = with_equal_values(relation)
    return Relation(AggregateOp(AggregatePlan(tuple(same.schema.names), ())), (same,), same.schema, place)


def with_equal_values(relation: Relation) -> Relation:
    """Values that are equal for Spark as one value: one zero, one NaN."""
    if not any(is_floating(type) for type in relation.schema.types):
        return relation
    outputs = [Output(output.name, group_value(output.value)) for output in kept(relation)]
    return projected(relation, outputs, None)


def group_value(value: Scalar) -> Scalar:
    """The value that Spark groups by."""
    if not is_floating(value.type):
        return value
    return Scalar(f"CAST({macro('spark_group', value.sql)} AS {duck_name(value.type)})", value.type, value.fails)


# Top k


def bounded(relation: Relation, rank: str, limit: int) -> Relation | None:
    """The relation without rows whose ``rank`` is beyond the limit, if that column numbers rows; the numbering then
    stops there. ``None`` if it does not number rows."""
    if isinstance(relation.op, TopKOp) and relation.op.rank == rank:
        return replace(relation, op=replace(relation.op, limit=min(limit, relation.op.limit)))
    for place, part in enumerate(relation.inputs):
        name = _below(relation, place, rank)
        inner = None if name is None else bounded(part, name, limit)
        if inner is not None:
            return replace(relation, inputs=(*relation.inputs[:place], inner, *relation.inputs[place + 1 :]))
    return None


def _below(relation: Relation, place: int, name: str) -> str | None:
    """The input's column that equals this one, if dropping rows by it below is as good as above."""
    op, part = relation.op, relation.inputs[place]
    if isinstance(op, ProjectOp):
        return plain_columns(op.projection).get(name)
    kept_side = isinstance(op, JoinOp) and op.kind in (LEFT_KEPT, RIGHT_KEPT)[place]
    return name if name in part.schema.names and (kept_side or isinstance(op, FilterOp)) else None


def unbounded(relation: Relation) -> Relation | None:
    """A TopK in the tree that no condition bounds."""
    seen: set[int] = set()
    todo = [relation]
    while todo:
        part = todo.pop()
        if isinstance(part.op, TopKOp) and part.op.limit == UNBOUNDED:
            return part
        if id(part) not in seen:
            seen.add(id(part))
            todo += part.inputs
    return None


@dataclass(frozen=True, slots=True)
class Condition:
    """One of several conditions that must all be true. names: the columns that it uses."""

    node: exp.Expr
    value: Scalar
    names: frozenset[str]


def conditions(context: Context, nodes: Iterable[exp.Expr]) -> list[Condition]:
    """Bound nodes, translated, and split at each AND."""
    return [Condition(part, boolean(context, part), names_in(part)) for node in nodes for part in conjuncts(node)]


def restricted(relation: Relation, wanted: Sequence[Condition], place: int | None) -> Relation:
    """The rows for which all conditions hold, applied in order. A condition on a row's number also ends the numbering.

    Where anything can fail, Spark first tests for NULL each column that a condition rejects NULL in; so does this. So
    the column's expression fails on no row that is left out anyway.
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
    """The columns that are not NULL where all conditions hold, except columns that are computed only when needed."""
    rejected = frozenset[str]().union(*(condition.value.rejects for condition in wanted))
    return {name for name in relation.schema.names if quoted(name) in rejected and name not in relation.deferred}


@dataclass(frozen=True, slots=True)
class _Limit:
    """The condition that a column is at most a limit. alone: whether it says nothing else, if the column counts from
    1."""

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


_NEEDED = "Say which columns are equal: ... JOIN ... ON a.x = b.y AND ..."


@dataclass(frozen=True, slots=True)
class _Equality:
    """One pair of key columns, both of one type."""

    left: Output
    right: Output
    null_safe: bool


def equates(condition: Condition, left: pa.Schema, right: pa.Schema) -> bool:
    """Whether the condition is an equality between a value of one side and one of the other."""
    return _sides(condition.node, left, right) is not None


def join(
    context: Context,
    kind: JoinKind,
    left: Relation,
    right: Relation,
    on: Sequence[Condition],
    node: exp.Expr,
    taken: set[str],
) -> Relation:
    """The join of two relations without a common column name; its result may have computed columns besides theirs.

    context: of the columns of both. node: the joined item, for its place. taken: names that no computed column may
    have, lower case; the new names are added. Raises UnsupportedSql if no condition is an equality between the two.
    """
    source = context.source
    keys = [_equality(context, condition, left.schema, right.schema) for condition in on]
    equalities = [key for key in keys if key is not None]
    if not equalities:
        raise without_equality(context, node)
    rest = [condition for condition, key in zip(on, keys, strict=True) if key is None]
    place = source.place(node)
    of_left = [one for one in rest if kind in LEFT_MATCHED and _asks_only(one, left)]
    of_right = [one for one in rest if kind in RIGHT_MATCHED and _asks_only(one, right)]
    of_pairs = [one.value for one in rest if one not in of_left and one not in of_right]
    left, left_key = _keyed(restricted(left, of_left, place), [key.left for key in equalities], taken)
    right, right_key = _keyed(restricted(right, of_right, place), [key.right for key in equalities], taken)
    null_safe = tuple(key.null_safe for key in equalities)
    for one, other, is_safe in zip(left_key, right_key, null_safe, strict=True):
        left = left if is_safe or kind not in LEFT_MATCHED else matchable(left, one, place)
        right = right if is_safe or kind not in RIGHT_MATCHED else matchable(right, other, place)
    op = JoinOp(kind, left_key, right_key, null_safe, conjunction(of_pairs) if of_pairs else None)
    both = kind not in (JoinKind.SEMI, JoinKind.ANTI)
    schema = pa.schema([*left.schema, *(right.schema if both else ())])
    return Relation(op, (left, right), schema, place, asks=tuple(of_pairs))


def without_equality(context: Context, node: exp.Expr) -> Exception:
    """The error for a join without an equality."""
    return context.unsupported(node, "a join without an equality between its sides", _NEEDED)


def _sides(node: exp.Expr, left: pa.Schema, right: pa.Schema) -> tuple[exp.Expr, exp.Expr] | None:
    """The operands of an equality: that of the left side first."""
    if not isinstance(node, exp.EQ | exp.NullSafeEQ):
        return None
    for one, other in ((node.this, node.expression), (node.expression, node.this)):
        ones, others = names_in(one), names_in(other)
        if ones and others and ones <= set(left.names) and others <= set(right.names):
            return one, other
    return None


def _equality(context: Context, condition: Condition, left: pa.Schema, right: pa.Schema) -> _Equality | None:
    sides = _sides(condition.node, left, right)
    if sides is None:
        return None
    one, other = to_comparable(context, condition.node, context.translate_all(sides))
    if is_null(one.type):
        raise context.unsupported(condition.node, f"a join on {typed_name(one)}", ELSEWHERE)
    left, right = Output(worded(sides[0]), one), Output(worded(sides[1]), other)
    return _Equality(left, right, isinstance(condition.node, exp.NullSafeEQ))


def _asks_only(condition: Condition, side: Relation) -> bool:
    return bool(condition.names) and condition.names <= set(side.schema.names)


def _keyed(relation: Relation, values: Sequence[Output], taken: set[str]) -> tuple[Relation, tuple[str, ...]]:
    """The relation with a column for each value of the key, and their names; a value that is a column already stays
    it."""
    relation, names = with_values(relation, values, taken)
    return relation, tuple(names)
