"""Relations, made from translated expressions: the parts from which the SQL front end builds its trees.

Joins: the parts of ON that are the key, the conditions on one side alone, and the conditions on pairs of rows.

Conditions of WHERE, ON and QUALIFY are applied one by one, each as early as the rows that it names exist
(:mod:`upriver.sql.pushdown`).

An expression that a single expression above uses once is evaluated there, as Spark does it: inside a branch of a CASE
or behind a FILTER, only if the branch is taken.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from upriver.hashing import is_plain_key_type
from upriver.plan.clock import ClockOp
from upriver.plan.column_names import columns_in, operand_of_case, plain_column, plain_columns, quoted, unique
from upriver.plan.plan import (
    ALL_ALIKE,
    ALL_ALIKE_SQL,
    ALL_ALIKE_TYPE,
    SALT_COLUMNS_MAX,
    SLOTS,
    AggregateOp,
    AggregatePlan,
    FilterOp,
    JoinKind,
    JoinOp,
    Projection,
    ProjectOp,
    Ranking,
    Replicated,
    ReplicateOp,
    SaltOp,
    Scan,
    TopKOp,
    UnionOp,
    ValuesOp,
    WindowOp,
    is_in_one_place,
)
from upriver.plan.relation import Relation, Scalar
from upriver.plan.schemas import rows_from_bytes
from upriver.plan.types import same_type
from upriver.sql.functions.scalars import column_scalar, group_value
from upriver.sql.pushdown import (
    LEFT_KEPT,
    RIGHT_KEPT,
    computed_values,
    substituted,
    with_names,
)
from upriver.state.columns import has_floats

# Expressions in expressions


def absorbed(
    relation: Relation,
    values: Sequence[Scalar],
    uses: Mapping[str, int],
    build: Callable[[Relation, Sequence[Scalar]], Relation],
) -> Relation:
    """``build`` of a relation and values over it. The values absorb columns that can fail and are used once.

    uses: how often the values, as written, name each column.
    """
    once = {name for name in relation.deferred if uses.get(name) == 1}
    if once and isinstance(relation.op, UnionOp):
        parts = tuple(absorbed(part, values, uses, build) for part in relation.inputs)
        return Relation(UnionOp(), parts, parts[0].schema, relation.place)
    once &= relation.fails
    if not once or not isinstance(relation.op, ProjectOp):
        return build(relation, values)
    opened, inner = _opened(relation, relation.op.projection, once)
    taken = [substituted(value, inner) for value in values]
    absorbing = [value for value in taken if value is not None]
    if len(absorbing) < len(values):
        return build(relation, values)
    assert isinstance(opened.op, ProjectOp)
    sources = plain_columns(opened.op.projection)
    if len(sources) < len(opened.schema):
        return build(opened, absorbing)
    return build(opened.inputs[0], [with_names(value, sources) for value in absorbing])


def _opened(relation: Relation, projection: Projection, names: set[str]) -> tuple[Relation, dict[str, Scalar]]:
    """The projection with the sources of these columns in their place; and the columns' values over the sources."""
    (below,) = relation.inputs
    values = computed_values(relation, projection)
    fields = {field.name: field for field in projection.schema if field.name not in names}
    taken = {name.lower() for name in values}
    known = {source: name for name, source in plain_columns(projection).items()}
    more: dict[str, str] = {}
    for source in sorted(columns_in(" ".join(values[name].sql for name in names)) - known.keys()):
        name = source
        while name.lower() in taken:
            name += "_"
        taken.add(name.lower())
        more[source] = name
        fields[name] = pa.field(name, below.schema.field(source).type)
    kept = {name: value.sql for name, value in values.items() if name not in names}
    kept |= {name: column_scalar(source, fields[name].type).sql for source, name in more.items()}
    inner = {name: with_names(values[name], known | more) for name in names}
    schema = pa.schema([fields[name] for name in kept])
    op = ProjectOp(Projection(tuple(kept.values()), schema))
    rest = {name: value for name, value in relation.values.items() if name not in names}
    opened = Relation(op, (below,), schema, relation.place, relation.fails - names, values=rest)
    return opened, inner


UNBOUNDED = 2**31 - 1
"""The limit of a TopK that no condition bounds. In a finished view it is a window function."""


ALIKE = Scalar(ALL_ALIKE_SQL, ALL_ALIKE_TYPE, nulls=frozenset())
"""A value that all rows have."""


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
    values = {one.name: one.value for one in outputs if plain_column(one.value.sql) is None}
    fails = frozenset(name for name, value in values.items() if _is_late(value))
    return Relation(ProjectOp(projection), (relation,), schema, place, fails, values=values)


def _is_late(value: Scalar) -> bool:
    """Whether the place of its computation matters."""
    return value.fails or operand_of_case(value.sql) is not None


def computed(relation: Relation, outputs: Sequence[Output], uses: Mapping[str, int], place: int | None) -> Relation:
    """These columns for each row; they absorb columns that can fail and are used once (:func:`absorbed`)."""

    def build(below: Relation, values: Sequence[Scalar]) -> Relation:
        return projected(below, [Output(one.name, value) for one, value in zip(outputs, values, strict=True)], place)

    return absorbed(relation, [one.value for one in outputs], uses, build)


def widened(relation: Relation, outputs: Sequence[Output], place: int | None) -> Relation:
    """The relation's columns, then these."""
    return projected(relation, (*kept(relation), *outputs), place) if outputs else relation


def with_values(relation: Relation, values: Sequence[Output], taken: set[str]) -> tuple[Relation, list[str]]:
    """The relation with each value as a column, and these columns' names. A value that is a column already stays it.

    taken: names that no other column may have, lower case; the new names are added.
    """
    names = {(column_scalar(field.name, field.type).sql, field.type): field.name for field in relation.schema}
    more: list[Output] = []
    for wanted in values:
        meant = wanted.value.sql, wanted.value.type
        if meant not in names:
            names[meant] = unique(wanted.name, taken)
            more.append(Output(names[meant], wanted.value))
    return widened(relation, more, None), [names[wanted.value.sql, wanted.value.type] for wanted in values]


def kept(relation: Relation) -> tuple[Output, ...]:
    """All its columns, unchanged."""
    return tuple(Output(field.name, column_scalar(field.name, field.type)) for field in relation.schema)


def renamed(relation: Relation, names: Sequence[str]) -> Relation:
    """The same columns with these names."""
    if list(names) == relation.schema.names:
        return relation
    fields = zip(names, relation.schema, strict=True)
    return projected(relation, [Output(name, column_scalar(field.name, field.type)) for name, field in fields], None)


def relabelled(relation: Relation, names: Mapping[str, str]) -> Relation:
    """Some of its columns under other names. names: of the columns, by the new ones. A projection on top stays one, so
    that its expressions are evaluated where its own would be."""
    fields = [pa.field(name, relation.schema.field(source).type) for name, source in names.items()]
    schema = pa.schema(fields)
    if not isinstance(relation.op, ProjectOp):
        projection = Projection(tuple(map(quoted, names.values())), schema)
        return Relation(ProjectOp(projection), (relation,), schema, relation.place)
    own = relation.op.projection
    texts = dict(zip(own.schema.names, own.expressions, strict=True))
    fails = frozenset(name for name, source in names.items() if source in relation.fails)
    values = {name: relation.values[source] for name, source in names.items() if source in relation.values}
    projection = Projection(tuple(texts[source] for source in names.values()), schema)
    return Relation(ProjectOp(projection), relation.inputs, schema, relation.place, fails, values=values)


def retyped(relation: Relation, schema: pa.Schema) -> Relation:
    """The same columns with the names and the time zones of the schema."""
    if schema == relation.schema:
        return relation
    assert all(same_type(*pair) for pair in zip(schema.types, relation.schema.types, strict=True)), "other types"
    if isinstance(relation.op, ProjectOp):
        projection = Projection(relation.op.projection.expressions, schema)
        names = dict(zip(relation.schema.names, schema.names, strict=True))
        fails = frozenset(names[name] for name in relation.fails)
        values = {names[name]: value for name, value in relation.values.items()}
        return Relation(ProjectOp(projection), relation.inputs, schema, relation.place, fails, values=values)
    projection = Projection(tuple(map(quoted, relation.schema.names)), schema)
    return Relation(ProjectOp(projection), (relation,), schema, relation.place)


def union(relations: Sequence[Relation], place: int | None) -> Relation:
    """The rows of all of them, with the names of the first, whose types they share."""
    first = relations[0]
    inputs = tuple(retyped(relation, first.schema) for relation in relations)
    return Relation(UnionOp(), inputs, first.schema, place)


def distinct(relation: Relation, place: int | None) -> Relation:
    """Each row once."""
    same = with_equal_values(relation)
    return Relation(AggregateOp(AggregatePlan(tuple(same.schema.names), ())), (same,), same.schema, place)


def with_equal_values(relation: Relation) -> Relation:
    """Values that are equal for Spark as one value: one zero, one NaN."""
    if not any(map(has_floats, relation.schema.types)):
        return relation
    outputs = [Output(output.name, group_value(output.value)) for output in kept(relation)]
    return projected(relation, outputs, None)


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


def in_slots(
    kind: JoinKind, left: Relation, right: Relation, taken: set[str]
) -> tuple[Relation, tuple[str, ...], Relation, tuple[str, ...]]:
    """Both sides of a join that compares no columns, with a column of slots each, which is the key: a row of the side
    that is kept is in one slot, and a row of the other side in all.

    Two sides of one row each meet in one place. So does a full join, since a match may be in any slot.
    """
    names = unique("slot", taken), unique("slot", taken)
    both_small = at_most_one(left) and at_most_one(right)
    salted = 1 if kind is JoinKind.RIGHT or (kind is JoinKind.INNER and at_most_one(left)) else 0
    sides = [left, right]
    columns = salt_columns(sides[salted])
    if both_small or kind is JoinKind.FULL or not columns:
        names = unique(ALL_ALIKE, taken), unique(ALL_ALIKE, taken)
        left, right = (
            widened(side, [Output(name, ALIKE)], None) for side, name in zip((left, right), names, strict=True)
        )
        return left, names[:1], right, names[1:]
    for place, side in enumerate(sides):
        op = SaltOp(names[place], columns, SLOTS) if place == salted else ReplicateOp(names[place], SLOTS)
        schema = pa.schema([*side.schema, pa.field(names[place], pa.int32())])
        sides[place] = Relation(op, (side,), schema, side.place)
    return sides[0], names[:1], sides[1], names[1:]


def replicated_side(left: Relation, right: Relation) -> Replicated | None:
    port = next((port for port, side in enumerate((left, right)) if isinstance(side.op, ReplicateOp)), None)
    return None if port is None else Replicated(port, tuple(sorted(_tables((left, right)[port]))))


def _tables(relation: Relation) -> set[str]:
    """The tables that it reads, directly or through views."""
    own = {relation.op.table} if isinstance(relation.op, Scan) else set[str]()
    return own.union(*map(_tables, relation.inputs))


def salt_columns(relation: Relation) -> tuple[str, ...]:
    """The first columns by which rows can be spread."""
    found = [field.name for field in relation.schema if is_plain_key_type(field.type) and ALL_ALIKE not in field.name]
    return tuple(found[:SALT_COLUMNS_MAX])


def windowed(relation: Relation, op: WindowOp, place: int | None) -> Relation:
    """The rows with the results of window functions."""
    results = [pa.field(call.output, call.type) for call in op.calls]
    return Relation(op, (relation,), pa.schema([*relation.schema, *results]), place)


def at_most_one(relation: Relation) -> bool:
    """Whether the relation has never more than one row."""
    match relation.op:
        case ValuesOp(rows):
            return bool(rows_from_bytes(rows).num_rows <= 1)
        case AggregateOp(plan):
            return is_in_one_place(plan.group) or at_most_one(relation.inputs[0])
        case TopKOp():
            is_first = relation.op.limit == 1 and relation.op.ranking is Ranking.ROW_NUMBER
            return (is_first and not relation.op.partition) or at_most_one(relation.inputs[0])
        case FilterOp() | ProjectOp() | SaltOp() | ClockOp() | JoinOp(JoinKind.SEMI | JoinKind.ANTI):
            return at_most_one(relation.inputs[0])
        case JoinOp(JoinKind.INNER | JoinKind.LEFT | JoinKind.RIGHT):
            return all(map(at_most_one, relation.inputs))
        case _:
            return False
