"""From a view's Spark SQL to a tree of relations.

Spark is the judge of what the SQL means: it names and types the columns (``Typer``), and a view whose own types differ
from Spark's is refused. What the SQL may contain is a whitelist of constructs and functions (``sql_functions.RULES``),
each of which is known, by tests, to give in DuckDB what it gives in Spark. All else is refused when it is declared.

Read next: sql_queries (any query), sql_select (one SELECT, clause by clause), sql_scope (what names mean), sql_scalar
(how an expression is translated).
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa
from sqlglot import exp
from sqlglot.tokenizer_core import TokenType

from upriver.errors import UnknownTable, UserError
from upriver.plan.algebra import Relation
from upriver.plan.plan import TableSpec
from upriver.plan.sql_source import Source, Unreadable
from upriver.plan.sql_types import same_type, spark_name
from upriver.sql.sql_queries import Views, compile_query, parsed
from upriver.sql.sql_relations import retyped, unbounded
from upriver.sql.sql_scope import Column, Rows
from upriver.sql.sql_topk import unbounded_rank

MAP_OF = "stateful_map of "
"""With which a stateful map describes itself, where a view has its SQL."""
_OF_A_MAP = "Let its function give what the view needs; or have Spark compute it, from app.read() of the map."


class Typer(Protocol):
    """What Spark says about a query."""

    @property
    def timezone(self) -> str:
        """The session's time zone, by which Spark reads the wall clock of a TIMESTAMP."""

    def schema_of(self, sql: str) -> pa.Schema:
        """The schema of a query over the declared tables. Raises DeclarationError, in Spark's words."""


@dataclass(frozen=True, slots=True)
class CompiledView:
    """A view as a query. schema: its columns, as Spark names and types them; those of ``relation`` are the same.

    source: makes messages of the places in the relations.
    """

    source: Source
    relation: Relation
    schema: pa.Schema


def compile_view(
    name: str, sql: str, tables: Mapping[str, TableSpec], views: Mapping[str, str], typer: Typer
) -> CompiledView:
    """Compile a view. views: the SQL of those declared before, by name, which it may read, too.

    Raises UnsupportedSql for what Spark can do and we cannot, with its place; DeclarationError for what is wrong.
    """
    source = Source(name, sql)
    try:
        declared = [*tables, *views]
        tree = _read(source, typer, declared)
        schema = _typed(source, tree, views, typer, declared)
        rows = compile_query(Views(views, tables, typer.timezone).setting(source), tree)
    except RecursionError as error:
        raise source.unsupported(None, "SQL nested as deeply as this", "Compute it in steps.") from error
    schema = _checked(source, rows, schema)
    pending = unbounded(rows.relation)
    if pending is not None:
        raise unbounded_rank(source, pending.place)
    return CompiledView(source, retyped(rows.relation, schema), schema)


def over_tables(sql: str, views: Mapping[str, str]) -> str:
    """A compiled view's SQL, for Spark, as a query that reads tables alone. views: as when it was compiled."""
    source = Source("", sql)
    return _behind(_before(source, source.parse(), views), source)


# What Spark says


def _read(source: Source, typer: Typer, declared: Sequence[str]) -> exp.Expr:
    try:
        return parsed(source)
    except Unreadable:
        # A plain mistake is better told in Spark's words. It may be asked of what can only be a query: it would run
        # anything else at once, even to tell its schema.
        if source.tokens()[0].token_type == TokenType.SELECT:
            _asked(source, source.sql, 0, typer, declared)
        raise


def _typed(
    source: Source, tree: exp.Expr, views: Mapping[str, str], typer: Typer, declared: Sequence[str]
) -> pa.Schema:
    """The query's schema, as Spark has it."""
    before = _before(source, tree, views)
    return _asked(source, _behind(before, source), before.count("\n"), typer, declared)


def _before(source: Source, tree: exp.Expr, views: Mapping[str, str]) -> str:
    """What stands before a query that reads views, so that it reads tables alone: the views' own SQL."""
    used = _used(source, tree, {name.lower(): (name, sql) for name, sql in views.items()})
    if not used:
        return ""
    queries = ",\n".join(f"`{name}` AS (\n{_unended(Source(name, sql))}\n)" for name, sql in used.items())
    return f"WITH {queries}\nSELECT * FROM (\n"


def _behind(before: str, source: Source) -> str:
    return f"{before}{_unended(source)}\n)" if before else source.sql


def _asked(source: Source, sql: str, lines: int, typer: Typer, declared: Sequence[str]) -> pa.Schema:
    """lines: before the view's own SQL. declared: tables and views that it may read."""
    try:
        return typer.schema_of(sql)
    except UserError as error:
        words = re.sub(r"\bline (\d+)", lambda match: f"line {int(match[1]) - lines}", str(error))
        if isinstance(error, UnknownTable):
            words = f"{words}; there are: {', '.join(sorted(declared)) or 'none'}"
        raise type(error)(f"view {source.view!r}: {words}") from error


def _used(source: Source, tree: exp.Expr, views: Mapping[str, tuple[str, str]]) -> dict[str, str]:
    """The views that a query reads, by itself or through others; each behind those that it reads."""
    used: dict[str, str] = {}
    for table in tree.find_all(exp.Table):
        found = views.get(table.name.lower())
        if found is not None:
            name, sql = found
            if sql.startswith(MAP_OF):
                raise source.unsupported(table, f"FROM {name}, which is a stateful map,", _OF_A_MAP)
            others = {other: view for other, view in views.items() if view[0] != name}
            inner = Source(name, sql)
            used.update(_used(inner, inner.parse(), others))
            used.setdefault(name, sql)
    return used


def _unended(source: Source) -> str:
    """The SQL without the semicolon that may end it."""
    ends = [token.start for token in source.tokens() if token.token_type == TokenType.SEMICOLON]
    return source.sql[: ends[0]] if ends else source.sql


def _checked(source: Source, rows: Rows, schema: pa.Schema) -> pa.Schema:
    """The view's schema as Spark gives it, checked against what our expressions compute."""
    fields = list(output_fields(source, rows))
    if len(schema) != len(fields):
        raise source.unsupported(None, f"a SELECT in which Spark sees {len(schema)} columns", "List the columns.")
    seen: set[str] = set()
    for field, (column, type) in zip(schema, fields, strict=True):
        if not same_type(field.type, type):
            what = f"{field.name!r}, {spark_name(field.type)} for Spark and {spark_name(type)} here,"
            raise source.unsupported(column.node, what, "CAST it to the type that you want.")
        if field.name.lower() in seen:
            raise source.wrong(
                column.node, f"two columns are named {field.name!r}", "Give one another name: ... AS name."
            )
        seen.add(field.name.lower())
    return pa.schema([pa.field(field.name, field.type) for field in schema])


def output_fields(source: Source, rows: Rows) -> list[tuple[Column, pa.DataType]]:
    """The columns of a view, with the types that we give them. Raises UnsupportedSql for a window as a whole."""
    for column in rows.columns:
        if column.end is not None:
            what = "a window as a whole, which is a STRUCT, as a column of a view"
            raise source.unsupported(column.node, what, "Take its start and its end: window.start, window.end.")
    return [(column, rows.relation.schema.field(column.name).type) for column in rows.columns]
