"""A query of one table as one region: until a plan may have several, this is what a worker can run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from upriver.dataflow.algebra import Relation
from upriver.dataflow.operators.project import plain_columns
from upriver.dataflow.ops import Aggregate, Filter, Project, Scan
from upriver.dataflow.plan import AggregatePlan, Projection, ViewPlan
from upriver.dataflow.sql_scalar import quoted
from upriver.dataflow.sql_source import Source

_AGGREGATES = frozenset({"count_star", "count", "sum", "avg", "min", "max"})


@dataclass(frozen=True, slots=True)
class _Rows:
    """A table's rows, chosen and computed."""

    table: str
    filter: str | None
    project: Projection


def one_region(source: Source, relation: Relation, key: Sequence[str]) -> ViewPlan:
    """key: output columns. Raises UnsupportedSql for what takes several regions, DeclarationError for a wrong key."""
    output, below = _projection(relation)
    having, groups = (below.op.predicate, below.inputs[0]) if isinstance(below.op, Filter) else (None, below)
    if isinstance(groups.op, Aggregate) and all(_is_plain(call) for call in groups.op.plan.calls):
        return _grouped(source, relation, output, having, groups, key)
    rows = _rows(source, relation)
    kept = Projection(tuple(map(quoted, output.schema.names)), output.schema)
    places = _key_places(source, rows.table, output.schema, _sources(rows), key)
    return _plan(source, rows, None, None, kept, places)


def _is_plain(call: object) -> bool:
    function, distinct, where = (getattr(call, name) for name in ("function", "distinct", "where"))
    return function in _AGGREGATES and not distinct and where is None


def _grouped(
    source: Source, relation: Relation, output: Projection, having: str | None, groups: Relation, key: Sequence[str]
) -> ViewPlan:
    assert isinstance(groups.op, Aggregate), "no groups"
    rows, plan = _rows(source, groups.inputs[0]), groups.op.plan
    table, grouped = _sources(rows), plain_columns(output)
    columns = {name: table[group] for name, group in grouped.items() if group in plan.group and group in table}
    places = _key_places(source, rows.table, output.schema, columns, key)
    first = [grouped[output.schema.names[place]] for place, _ in places]
    group = (*first, *(name for name in plan.group if name not in first))
    names = [*group, *(name for name in rows.project.schema.names if name not in group)]
    found = dict(zip(rows.project.schema.names, rows.project.expressions, strict=True))
    fields = pa.schema([rows.project.schema.field(name) for name in names])
    rows = replace(rows, project=Projection(tuple(found[name] for name in names), fields))
    return _plan(source, rows, AggregatePlan(group, plan.calls), having, output, places)


def _plan(
    source: Source,
    rows: _Rows,
    aggregate: AggregatePlan | None,
    having: str | None,
    output: Projection,
    places: Sequence[tuple[int, str]],
) -> ViewPlan:
    return ViewPlan(
        name=source.view,
        sql=source.sql,
        table=rows.table,
        index=tuple(column for _, column in places),
        key=tuple(output.schema.names[place] for place, _ in places),
        filter=rows.filter,
        project=rows.project,
        aggregate=aggregate,
        having=having,
        output=output,
    )


def _projection(relation: Relation) -> tuple[Projection, Relation]:
    if isinstance(relation.op, Project):
        return relation.op.projection, relation.inputs[0]
    names = relation.schema.names
    return Projection(tuple(map(quoted, names)), relation.schema), relation


def _rows(source: Source, relation: Relation) -> _Rows:
    project, below = _projection(relation)
    predicate, scan = (below.op.predicate, below.inputs[0]) if isinstance(below.op, Filter) else (None, below)
    if not isinstance(scan.op, Scan):
        raise source.unsupported(scan.place, "a view of several regions", "Read one table, with one GROUP BY.")
    return _Rows(scan.op.table, predicate, project)


def _sources(rows: _Rows) -> dict[str, str]:
    """For each column that is one of the table's, or groups by one: that one."""
    plain = plain_columns(rows.project)
    pairs = zip(rows.project.schema.names, rows.project.expressions, strict=True)
    grouped = {name: text[len(_GROUPED) : text.index('")')] for name, text in pairs if text.startswith(_GROUPED)}
    return {**plain, **{name: column.replace('""', '"') for name, column in grouped.items()}}


_GROUPED = 'CAST(spark_group("'


def _key_places(
    source: Source, table: str, schema: pa.Schema, columns: Mapping[str, str], key: Sequence[str]
) -> list[tuple[int, str]]:
    """Which output columns the key names, and the table's columns that they are. Raises DeclarationError."""
    if not key:
        raise source.wrong(None, "its key has no column", "Name the output columns that it is looked up by.")
    names = [name.lower() for name in schema.names]
    places: list[tuple[int, str]] = []
    for name in key:
        if name.lower() not in names:
            there = ", ".join(schema.names)
            raise source.wrong(None, f"its key {name!r} is none of its columns", f"They are {there}.")
        place = names.index(name.lower())
        column = columns.get(schema.names[place])
        if column is None:
            why = f"the key {name!r} is computed; rows are routed by columns of {table}"
            raise source.wrong(None, why, "Make it a column before app.table(), or choose another key.")
        if column in (other for _, other in places):
            raise source.wrong(None, f"the key names {column!r} twice", "Leave one out.")
        places.append((place, column))
    return places
