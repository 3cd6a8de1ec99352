"""Relations, made from translated expressions: the bricks of which the SQL front end builds its trees."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
from sqlglot import exp

from upriver.plan.algebra import Relation, Scalar
from upriver.plan.column_names import operand_of_case, plain_column, plain_columns, quoted
from upriver.plan.ops import Aggregate, Filter, Join, Project, TopK, Union
from upriver.plan.plan import AggregatePlan, Projection
from upriver.plan.sql_source import Source
from upriver.plan.sql_types import duck_name, is_floating, same_type, spark_name
from upriver.sql.sql_pushdown import LEFT_KEPT, RIGHT_KEPT, absorbed
from upriver.sql.sql_scalar import column_scalar, macro
from upriver.sql.sql_scope import unique

UNBOUNDED = 2**31 - 1
"""The limit of a TopK that no condition bounds. No view may have one in the end."""


@dataclass(frozen=True, slots=True)
class Output:
    """A column to be computed."""

    name: str
    value: Scalar


def projected(relation: Relation, outputs: Iterable[Output], place: int | None) -> Relation:
    """These columns for each row."""
    outputs = tuple(outputs)
    schema = pa.schema([pa.field(output.name, output.value.type) for output in outputs])
    projection = Projection(tuple(output.value.sql for output in outputs), schema)
    fails = frozenset(one.name for one in outputs if _is_late(one.value) and plain_column(one.value.sql) is None)
    return Relation(Project(projection), (relation,), schema, place, fails)


def _is_late(value: Scalar) -> bool:
    """Whether it matters where the value is computed."""
    return value.fails or operand_of_case(value.sql) is not None


def computed(relation: Relation, outputs: Sequence[Output], uses: Mapping[str, int], place: int | None) -> Relation:
    """These columns for each row, into which goes what fails below and is used once (:func:`sql_pushdown.absorbed`)."""

    def build(below: Relation, texts: Sequence[str]) -> Relation:
        values = [
            replace(one.value, sql=text, fails=one.value.fails or text != one.value.sql)
            for one, text in zip(outputs, texts, strict=True)
        ]
        return projected(below, [Output(one.name, value) for one, value in zip(outputs, values, strict=True)], place)

    return absorbed(relation, [one.value.sql for one in outputs], uses, build)


def widened(relation: Relation, outputs: Sequence[Output], place: int | None) -> Relation:
    """The relation's columns, and these behind them."""
    return projected(relation, (*kept(relation), *outputs), place) if outputs else relation


def with_values(relation: Relation, values: Sequence[Output], taken: set[str]) -> tuple[Relation, list[str]]:
    """The relation with each value as a column, and these columns' names: what is a column already stays it.

    taken: names that no other column may have, lower case; those of new ones are added.
    """
    names = {column_scalar(field.name, field.type).sql: field.name for field in relation.schema}
    more: list[Output] = []
    for wanted in values:
        if wanted.value.sql not in names:
            names[wanted.value.sql] = unique(wanted.name, taken)
            more.append(Output(names[wanted.value.sql], wanted.value))
    return widened(relation, more, None), [names[wanted.value.sql] for wanted in values]


def kept(relation: Relation) -> tuple[Output, ...]:
    """All its columns as they are."""
    return tuple(Output(field.name, column_scalar(field.name, field.type)) for field in relation.schema)


def renamed(relation: Relation, names: Sequence[str]) -> Relation:
    """The same columns by these names."""
    if list(names) == relation.schema.names:
        return relation
    fields = zip(names, relation.schema, strict=True)
    return projected(relation, [Output(name, column_scalar(field.name, field.type)) for name, field in fields], None)


def retyped(relation: Relation, schema: pa.Schema) -> Relation:
    """The same columns by the names, and of the time zones, of the schema."""
    if schema == relation.schema:
        return relation
    assert all(same_type(*pair) for pair in zip(schema.types, relation.schema.types, strict=True)), "other types"
    if isinstance(relation.op, Project):
        projection = Projection(relation.op.projection.expressions, schema)
        names = dict(zip(relation.schema.names, schema.names, strict=True))
        fails = frozenset(names[name] for name in relation.fails)
        return Relation(Project(projection), relation.inputs, schema, relation.place, fails)
    projection = Projection(tuple(map(quoted, relation.schema.names)), schema)
    return Relation(Project(projection), (relation,), schema, relation.place)


def union(relations: Sequence[Relation], place: int | None) -> Relation:
    """The rows of all of them, by the names of the first, whose types they have."""
    first = relations[0]
    inputs = tuple(retyped(relation, first.schema) for relation in relations)
    return Relation(Union(), inputs, first.schema, place)


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
    return Relation(Aggregate(AggregatePlan(tuple(same.schema.names), ())), (same,), same.schema, place)


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
    """The same relation without rows whose ``rank`` is beyond the limit, if that is a column that numbers rows, which
    then are numbered no further. ``None`` if it is not."""
    if isinstance(relation.op, TopK) and relation.op.rank == rank:
        return replace(relation, op=replace(relation.op, limit=min(limit, relation.op.limit)))
    for place, part in enumerate(relation.inputs):
        name = _below(relation, place, rank)
        inner = None if name is None else bounded(part, name, limit)
        if inner is not None:
            return replace(relation, inputs=(*relation.inputs[:place], inner, *relation.inputs[place + 1 :]))
    return None


def _below(relation: Relation, place: int, name: str) -> str | None:
    """The column of an input that is this column, if to leave out rows by it below is as good as above."""
    op, part = relation.op, relation.inputs[place]
    if isinstance(op, Project):
        return plain_columns(op.projection).get(name)
    kept_side = isinstance(op, Join) and op.kind in (LEFT_KEPT, RIGHT_KEPT)[place]
    return name if name in part.schema.names and (kept_side or isinstance(op, Filter)) else None


def unbounded(relation: Relation) -> Relation | None:
    """A TopK in the tree that nothing bounds."""
    seen: set[int] = set()
    todo = [relation]
    while todo:
        part = todo.pop()
        if isinstance(part.op, TopK) and part.op.limit == UNBOUNDED:
            return part
        if id(part) not in seen:
            seen.add(id(part))
            todo += part.inputs
    return None
