"""From a view's Spark SQL to its plan.

Spark is the judge of what the SQL means: it names and types the columns (``Typer``), and a plan whose own types differ
from Spark's is refused. What the SQL may contain is a whitelist of constructs and functions (``sql_functions.RULES``),
each of which is known, by tests, to give in DuckDB what it gives in Spark. All else is refused when it is declared.

Read next: sql_query (clauses and names), sql_groups (aggregates), sql_scalar (how an expression is translated).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import pyarrow as pa
from sqlglot import exp

from upriver.dataflow.plan import AggregatePlan, Projection, TableSpec, ViewPlan
from upriver.dataflow.sql_functions import RULES
from upriver.dataflow.sql_groups import Groups
from upriver.dataflow.sql_logic import condition
from upriver.dataflow.sql_query import Item, Query, read, resolve
from upriver.dataflow.sql_scalar import Context, Scalar, column, quoted
from upriver.dataflow.sql_source import ELSEWHERE, Source, Unreadable
from upriver.dataflow.sql_types import duck_name, is_null, same_type, spark_name
from upriver.errors import UserError


class Typer(Protocol):
    """What Spark says about a query."""

    @property
    def timezone(self) -> str:
        """The session's time zone, by which Spark reads the wall clock of a TIMESTAMP."""

    def schema_of(self, sql: str) -> pa.Schema:
        """The schema of a query over the declared tables. Raises DeclarationError, in Spark's words."""


@dataclass(frozen=True, slots=True)
class Compiled:
    """A query whose every expression is translated. outputs: of the table's rows, or of the groups."""

    query: Query
    outputs: tuple[Scalar, ...]
    where: str | None
    groups: Groups | None
    having: str | None


def plan_view(name: str, sql: str, key: str | Sequence[str], tables: Mapping[str, TableSpec], typer: Typer) -> ViewPlan:
    """Compile a view. ``key``: output columns by which it is looked up; each a plain column of the table.

    Raises UnsupportedSql for what Spark can do and we cannot, with its place; DeclarationError for what is wrong.
    """
    source = Source(name, sql)
    try:
        query = read(source, tables)
        schema = _typed(source, typer)
        compiled = compile_query(resolve(query), typer.timezone)
    except Unreadable:
        _typed(source, typer)  # a plain mistake is better told in Spark's words
        raise
    except RecursionError as error:
        raise source.unsupported(None, "SQL nested as deeply as this", "Compute it in steps.") from error
    return _plan(compiled, _named(compiled, schema), (key,) if isinstance(key, str) else tuple(key))


def _typed(source: Source, typer: Typer) -> pa.Schema:
    try:
        return typer.schema_of(source.sql)
    except UserError as error:
        raise type(error)(f"view {source.view!r}: {error}") from error


# From the query to expressions


def compile_query(query: Query, timezone: str) -> Compiled:
    """Translate a resolved query. ``timezone``: the session's. Raises UnsupportedSql, DeclarationError."""
    rows = Context(query.source, timezone, _columns_of(query), RULES)
    where = None if query.where is None else condition(rows, query.where)
    if not query.aggregates:
        return Compiled(
            query, tuple(_output(rows, item, _plain(query, item)) for item in query.items), where, None, None
        )
    if not query.group:
        raise query.source.unsupported(
            query.items[0].node, "an aggregate without GROUP BY", "GROUP BY the columns that the view is looked up by."
        )
    groups = Groups(rows, query.group)
    over = replace(rows, leaf=groups.leaf)
    outputs = tuple(_output(over, item, None) for item in query.items)
    having = None if query.having is None else condition(over, query.having)
    return Compiled(query, outputs, where, groups, having)


def _columns_of(query: Query) -> Callable[[exp.Expr], Scalar | None]:
    """What a node is over the table's rows: one of their columns."""
    types = {field.name: field.type for field in query.table.schema}

    def leaf(node: exp.Expr) -> Scalar | None:
        if not isinstance(node, exp.Column):
            return None
        type = types[node.name]
        if duck_name(type) is None:
            raise query.source.unsupported(node, f"an expression over {spark_name(type)}", ELSEWHERE)
        return column(node.name, type)

    return leaf


def _plain(query: Query, item: Item) -> Scalar | None:
    """A column as it is, which may be of any type."""
    if not isinstance(item.node, exp.Column):
        return None
    return column(item.node.name, query.table.schema.field(item.node.name).type)


def _output(context: Context, item: Item, plain: Scalar | None) -> Scalar:
    value = context.translate(item.node) if plain is None else plain
    if is_null(value.type):
        raise context.unsupported(item.node, "a column of nothing but NULL", "Give it a type: CAST(NULL AS ...).")
    return value


# From expressions to the plan


def _named(compiled: Compiled, schema: pa.Schema) -> pa.Schema:
    """The view's schema as Spark gives it, checked against what our expressions compute."""
    query, source = compiled.query, compiled.query.source
    if len(schema) != len(query.items):
        raise source.unsupported(None, f"a SELECT in which Spark sees {len(schema)} columns", "List the columns.")
    seen: set[str] = set()
    for field, item, output in zip(schema, query.items, compiled.outputs, strict=True):
        if not same_type(field.type, output.type):
            what = f"{field.name!r}, {spark_name(field.type)} for Spark and {spark_name(output.type)} here,"
            raise source.unsupported(item.node, what, "CAST it to the type that you want.")
        if field.name.lower() in seen:
            raise source.wrong(
                item.node, f"two columns are named {field.name!r}", "Give one another name: ... AS name."
            )
        seen.add(field.name.lower())
    return pa.schema([pa.field(field.name, field.type) for field in schema])


def _plan(compiled: Compiled, schema: pa.Schema, key: tuple[str, ...]) -> ViewPlan:
    query, groups = compiled.query, compiled.groups
    places = _key_places(compiled, schema, key)
    output = Projection(tuple(value.sql for value in compiled.outputs), schema)
    aggregate = None
    if groups is None:
        project, output = output, Projection(tuple(map(quoted, schema.names)), schema)
    else:
        keys = [groups.name_of(query.items[place].node) for place in places]
        group = tuple(sorted(groups.names, key=lambda name: keys.index(name) if name in keys else len(keys)))
        names = [*group, *(name for name in groups.inputs if name not in group)]
        fields = [pa.field(name, groups.inputs[name].type) for name in names]
        project = Projection(tuple(groups.inputs[name].sql for name in names), pa.schema(fields))
        aggregate = AggregatePlan(group, groups.calls)
    return ViewPlan(
        name=query.source.view,
        sql=query.source.sql,
        table=query.table.name,
        index=tuple(query.items[place].node.name for place in places),
        key=tuple(schema.names[place] for place in places),
        filter=compiled.where,
        project=project,
        aggregate=aggregate,
        having=compiled.having,
        output=output,
    )


def _key_places(compiled: Compiled, schema: pa.Schema, key: tuple[str, ...]) -> list[int]:
    """Which output columns the key names. Raises DeclarationError unless each is one column of the table."""
    query, source = compiled.query, compiled.query.source
    if not key:
        raise source.wrong(None, "its key has no column", "Name the output columns that it is looked up by.")
    names = [name.lower() for name in schema.names]
    places: list[int] = []
    for name in key:
        if name.lower() not in names:
            columns = ", ".join(schema.names)
            raise source.wrong(None, f"its key {name!r} is none of its columns", f"They are {columns}.")
        place = names.index(name.lower())
        node = query.items[place].node
        if not isinstance(node, exp.Column):
            why = f"the key {name!r} is computed; rows are routed by columns of {query.table.name}"
            raise source.wrong(node, why, "Make it a column before app.table(), or choose another key.")
        if any(node == query.items[other].node for other in places):
            raise source.wrong(node, f"the key names {node.name!r} twice", "Leave one out.")
        places.append(place)
    return places
