"""From a declared view's Spark SQL to a tree of relations, and on to its dataflow.

Spark is the authority on what the SQL means: it names and types the columns (``Typer``). A view whose types here differ
from Spark's is refused. The SQL may contain only constructs and functions of a whitelist
(``upriver.sql.functions.RULES``). Tests show for each that it gives in DuckDB what it gives in Spark. All other SQL is
refused when the view is declared.

A query is a SELECT, a set operation, one of them in parentheses, and WITH before each. UNION, EXCEPT and INTERSECT
match columns by position; their types become those that Spark would give them.

The condition that deletes a row of an upsert table is Spark SQL, too, translated like the WHERE of a view.

Read next: :mod:`upriver.sql.select` (one SELECT, clause by clause), :mod:`upriver.sql.scope` (what names mean),
:mod:`upriver.sql.scalars` (how an expression is translated).
"""

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

import pyarrow as pa
from sqlglot import exp
from sqlglot.tokenizer_core import TokenType

from upriver.arguments import names, text
from upriver.errors import (
    ClusterError,
    DeclarationError,
    LakeError,
    ProtocolError,
    UnknownTable,
    UnsupportedSql,
    UserError,
)
from upriver.plan.plan import (
    DataflowPlan,
    FilterOp,
    JoinOp,
    ProjectOp,
    Scan,
    SetKind,
    SetOperationOp,
    StatefulMapOp,
    TableSpec,
    UserFunction,
)
from upriver.plan.planning import plan_regions, view_key
from upriver.plan.relation import Relation
from upriver.plan.source import Source, Unreadable
from upriver.plan.types import common_type, is_null, same_type, spark_name
from upriver.sql.casts import cast
from upriver.sql.clauses import END, check_reading, check_words, is_sorted, only, read_part, without_ignored
from upriver.sql.clock import arranged, written_out
from upriver.sql.clock_functions import is_shown, is_tested
from upriver.sql.curves import with_curves
from upriver.sql.from_items import compiled_inside
from upriver.sql.operators import CAST_IT
from upriver.sql.relations import (
    Output,
    comparable,
    distinct,
    kept,
    projected,
    retyped,
    union,
    with_equal_values,
)
from upriver.sql.scalars import column_scalar, construct, null
from upriver.sql.scope import Entry, Scope, ScopeColumn, ScopeRows, Setting, as_node, bare
from upriver.sql.select import select
from upriver.sql.subqueries import attach
from upriver.sql.window_functions import all_numbered
from upriver.sql.windows import first_rows, sort_key

_KINDS = {exp.Except: SetKind.EXCEPT, exp.Intersect: SetKind.INTERSECT}


def combined(setting: Setting, tree: exp.SetOperation) -> ScopeRows:
    """The rows of a set operation. Raises UnsupportedSql."""
    only(setting.source, tree, END | {"this", "expression", "distinct", "with_"})
    if isinstance(tree, exp.Union) and not tree.args.get("distinct"):
        parts = _all_of_union(tree)
    else:
        parts = [tree.this, tree.expression]
    rows = [setting.compile(replace(setting, untyped=True), part) for part in parts]
    types = _types(setting, parts, rows)
    if not tree.args.get("distinct") and not isinstance(tree, exp.Union):
        _check_titles(setting, parts, rows)
    names = [column.name for column in rows[0].columns]
    names += rows[0].keys
    relations = [_cast(setting, part, one, names, types) for part, one in zip(parts, rows, strict=True)]
    place = setting.source.place(tree.expression)
    if tree.args.get("distinct") or not isinstance(tree, exp.Union):
        relations = [comparable(setting.source, relation, tree.expression) for relation in relations]
    untyped = [all(one.columns[place].untyped for one in rows) for place in range(len(types))]
    columns = [replace(column, untyped=void) for column, void in zip(rows[0].columns, untyped, strict=True)]
    combination = replace(rows[0], relation=_combined(tree, relations, place), columns=tuple(columns))
    return ordered(setting, tree, combination)


def _check_titles(setting: Setting, parts: Sequence[exp.Expr], rows: Sequence[ScopeRows]) -> None:
    """Refuse EXCEPT ALL and INTERSECT ALL of a column that is selected twice, on which Spark fails."""
    for part, one in zip(parts, rows, strict=True):
        titles = [column.title.lower() for column in one.columns if column.title is not None]
        if len(set(titles)) < len(titles):
            what = "a name of two columns in EXCEPT ALL or INTERSECT ALL"
            raise setting.source.unsupported(part, what, "Give one another name: SELECT a, a AS b.")


def ordered(setting: Setting, tree: exp.Expr, rows: ScopeRows) -> ScopeRows:
    """The rows that are left by ORDER BY, LIMIT and OFFSET at the query's end."""
    part = read_part(setting.source, tree)
    if part is None:
        return rows
    scope = Scope.of(setting.source, Entry("", rows.columns))
    context = setting.context(rows.relation.schema, fails=rows.relation.deferred)
    keys = []
    for node in part.order:
        position = _position(setting.source, bare(node.this), rows.columns)
        keys.append(sort_key(context, node, scope.bind(bare(node.this)) if position is None else position))
    place = setting.source.place(tree.args.get("order") or tree)
    found = first_rows(rows.relation, kept(rows.relation), keys, {}, part, place, rows.keys)
    return replace(rows, relation=found)


def _position(source: Source, node: exp.Expr, columns: Sequence[ScopeColumn]) -> exp.Expr | None:
    """The column at the position that a number gives."""
    if not isinstance(node, exp.Literal) or node.is_string or not node.this.isdigit():
        return None
    number = int(node.this)
    if not 1 <= number <= len(columns):
        raise source.wrong(node, f"there is no column {number}", f"The query has {len(columns)}.")
    return as_node(columns[number - 1].name, node)


def _all_of_union(tree: exp.Expr) -> list[exp.Expr]:
    """The queries of a chain of UNION ALL."""
    parts = [tree.args["expression"]]
    tree = tree.this
    while _continues(tree):
        parts.append(tree.args["expression"])
        tree = tree.this
    return [tree, *reversed(parts)]


def _continues(tree: exp.Expr) -> bool:
    plain = not any(tree.args.get(part) for part in (*END, "with_", "by_name", "side", "kind", "on"))
    return isinstance(tree, exp.Union) and not tree.args.get("distinct") and plain


def _types(setting: Setting, parts: Sequence[exp.Expr], rows: Sequence[ScopeRows]) -> list[pa.DataType]:
    """For each column the common type of all queries."""
    first = rows[0]
    for part, one in zip(parts, rows, strict=True):
        if any(column.end is not None for column in one.columns):
            raise setting.source.unsupported(part, "a window, a STRUCT, in a set operation", "Take its start and end.")
        if len(one.columns) != len(first.columns):
            what = f"{len(one.columns)} columns here, and {len(first.columns)} in the first query"
            raise setting.source.wrong(part, what, "SELECT as many.")
    return [_type(setting, parts, rows, place) for place in range(len(first.columns))]


def _type(setting: Setting, parts: Sequence[exp.Expr], rows: Sequence[ScopeRows], place: int) -> pa.DataType:
    found = pa.null()
    for part, one in zip(parts, rows, strict=True):
        column = one.columns[place]
        type = pa.null() if column.untyped else one.relation.schema.field(column.name).type
        wider = common_type(found, type)
        if wider is None:
            names = f"{spark_name(found)} with {spark_name(type)}"
            raise setting.source.unsupported(part, f"mixing {names} in one column", CAST_IT)
        found = wider
    if is_null(found) and not setting.untyped:
        raise setting.source.unsupported(
            rows[0].columns[place].node, "a column of nothing but NULL", "Give it a type: CAST(NULL AS ...)."
        )
    return pa.bool_() if is_null(found) else found


def _cast(
    setting: Setting, part: exp.Expr, rows: ScopeRows, names: Sequence[str], types: Sequence[pa.DataType]
) -> Relation:
    """The rows with these names and types."""
    schema = rows.relation.schema
    same = all(same_type(schema.field(one.name).type, type) for one, type in zip(rows.columns, types, strict=True))
    keys = [column_scalar(key, schema.field(key).type) for key in rows.keys]
    if same and [*(one.name for one in rows.columns), *rows.keys] == schema.names:
        all_types = [*types, *(key.type for key in keys)]
        return retyped(rows.relation, pa.schema(list(zip(names, all_types, strict=True))))
    context = setting.context(schema, fails=rows.relation.deferred)
    values = [
        null(type) if one.untyped else cast(context, part, column_scalar(one.name, schema.field(one.name).type), type)
        for one, type in zip(rows.columns, types, strict=True)
    ]
    return projected(rows.relation, [Output(*pair) for pair in zip(names, [*values, *keys], strict=True)], None)


def _combined(tree: exp.SetOperation, relations: Sequence[Relation], place: int | None) -> Relation:
    kind = _KINDS.get(type(tree))
    if kind is None:
        relation = union(relations, place)
        return distinct(relation, place) if tree.args.get("distinct") else relation
    inputs = tuple(with_equal_values(relation) for relation in relations)
    op = SetOperationOp(kind, all=not tree.args.get("distinct"))
    return Relation(op, inputs, inputs[0].schema, place)


_FIRST = (TokenType.SELECT, TokenType.FROM, TokenType.WITH, TokenType.L_PAREN, TokenType.VALUES)
A_QUERY = "A view is one query: SELECT ... FROM ..."


def parsed(source: Source, columns: Collection[str] = ()) -> exp.Expr:
    """The query in the SQL. columns: the names of all columns of tables.

    Raises UnsupportedSql for anything else, DeclarationError for an empty text.
    """
    first = source.tokens()[0]
    if first.token_type not in _FIRST:
        raise source.unsupported(0, "a statement that does not begin with SELECT or WITH", A_QUERY)
    check_words(source)
    tree = source.parse()
    if isinstance(tree, exp.Values):
        tree = exp.Select(expressions=[exp.Star()], from_=exp.From(this=tree))
    if not isinstance(tree, exp.Select | exp.SetOperation | exp.Subquery):
        raise source.unsupported(tree, construct(tree), A_QUERY)
    check_reading(source, tree)
    without_ignored(source, tree)
    return written_out(tree, columns)


def columns_of(tables: Mapping[str, TableSpec]) -> frozenset[str]:
    return frozenset(name for table in tables.values() for name in table.schema.names)


class Views:
    """The rows of declared views, each compiled when a query first names it. queries: their SQL, by name. functions:
    the user's own, by name in lower case."""

    def __init__(
        self,
        queries: Mapping[str, str],
        tables: Mapping[str, TableSpec],
        timezone: str,
        functions: Mapping[str, UserFunction],
    ) -> None:
        self._functions = functions
        self._queries = {name.lower(): (name, sql) for name, sql in queries.items()}
        self._tables = tables
        self._timezone = timezone
        self._known: dict[str, ScopeRows] = {}

    def rows(self, name: str) -> ScopeRows | None:
        """``None`` if there is no such view."""
        if name not in self._known:
            if name not in self._queries:
                return None
            source = Source(*self._queries[name], inlined=True)
            self._known[name] = self.compiled(source, parsed(source, columns_of(self._tables)))
        return self._known[name]

    def compiled(self, source: Source, tree: exp.Expr) -> ScopeRows:
        """The rows of a query over the tables and views. Its tree is used up."""
        setting = self.setting(source)
        context = setting.context()
        return compile_query(setting, arranged(tree, partial(is_tested, context), partial(is_shown, context)))

    def setting(self, source: Source) -> Setting:
        """The setting for a query over the tables and views."""
        return Setting(
            source, self._timezone, self._tables, self.rows, compile_query, {}, attach, functions=self._functions
        )


def compile_query(setting: Setting, tree: exp.Expr) -> ScopeRows:
    """The rows of a query. Its tree is used up. Raises UnsupportedSql, DeclarationError."""
    setting = _with_queries(setting, tree.args.get("with_"))
    if isinstance(tree, exp.Select):
        return select(setting, tree)
    if isinstance(tree, exp.SetOperation):
        return combined(setting, tree)
    if isinstance(tree, exp.Subquery):
        only(setting.source, tree, END | {"this", "alias", "with_"})
        return ordered(setting, tree, compile_query(setting, tree.this))
    raise setting.source.unsupported(tree, construct(tree), A_QUERY)


def _with_queries(setting: Setting, clause: exp.Expr | None) -> Setting:
    """The setting with the queries of WITH; each may name those before it."""
    if clause is None:
        return setting
    if clause.args.get("recursive"):
        at = setting.source.keyword("RECURSIVE", clause)
        raise setting.source.unsupported(at, "WITH RECURSIVE", "Join a table with itself, once for each level.")
    for query in clause.expressions:
        only(setting.source, query, {"this", "alias"})
        rows = compiled_inside(replace(setting, untyped=False), query.this)
        titles = [title.name for title in query.args["alias"].args.get("columns") or ()]
        if titles:
            rows = _titled(setting, query, rows, titles)
        setting = setting.knowing({query.alias.lower(): rows})
    return setting


def _titled(setting: Setting, query: exp.Expr, rows: ScopeRows, titles: list[str]) -> ScopeRows:
    if len(titles) != len(rows.columns):
        what = f"{query.alias!r} names {len(titles)} columns of {len(rows.columns)}"
        raise setting.source.wrong(query, what, "Name each.")
    pairs = zip(titles, rows.columns, strict=True)
    return replace(rows, columns=tuple(ScopeColumn(title, column.name, column.end) for title, column in pairs))


MAP_OF = "stateful_map of "
"""The beginning of a stateful map's description, in the place of a view's SQL."""
_OF_A_MAP = "Let its function give what the view needs; or have Spark compute it, from app.read() of the map."


class Typer(Protocol):
    """What Spark says about a query."""

    @property
    def timezone(self) -> str:
        """The session's time zone, in which Spark reads the wall clock of a TIMESTAMP."""

    @property
    def functions(self) -> Mapping[str, UserFunction]:
        """The user's own, by name in lower case."""

    def schema_of(self, sql: str) -> pa.Schema:
        """The schema of a query over the declared tables. Raises DeclarationError, in Spark's words."""

    def curve(self, bits: int) -> tuple[float, ...]:
        """What Spark has measured of approx_count_distinct with so many bits of registers, as ``AggregateCall.curve``
        has it; empty if it has not."""


@dataclass(frozen=True, slots=True)
class CompiledView:
    """A view as a query. schema: its columns, as Spark names and types them; ``relation`` has the same columns.

    source: gives messages the places in the relations.
    """

    source: Source
    relation: Relation
    schema: pa.Schema


def compile_view(
    name: str, sql: str, tables: Mapping[str, TableSpec], views: Mapping[str, str], typer: Typer
) -> CompiledView:
    """Compile a view. views: the SQL of the views declared before, by name; the view may read them, too.

    Raises UnsupportedSql, with the place, for SQL that Spark supports and Upriver does not; DeclarationError for an
    error.
    """
    source = Source(name, sql)
    try:
        declared = [*tables, *views]
        tree = _read(source, typer, declared, columns_of(tables))
        schema = _typed(source, tree, views, typer, declared)
        rows = Views(views, tables, typer.timezone, typer.functions).compiled(source, tree)
    except RecursionError as error:
        raise _too_deep(source) from error
    schema = _checked(source, rows, schema)
    relation = with_curves(all_numbered(rows.relation), typer.curve)
    return CompiledView(source, retyped(relation, schema), schema)


def _too_deep(source: Source) -> UnsupportedSql:
    return source.unsupported(None, "SQL nested as deeply as this", "Compute it in steps.")


def over_tables(sql: str, views: Mapping[str, str]) -> str:
    """A compiled view's SQL as a query over tables only, for Spark. views: as when it was compiled."""
    source = Source("", sql)
    return _behind(_before(source, source.parse(), views), source)


# What Spark says


def _read(source: Source, typer: Typer, declared: Sequence[str], columns: Collection[str]) -> exp.Expr:
    try:
        return parsed(source, columns)
    except Unreadable:
        # Spark's words describe a plain mistake better. But Spark may only be asked about a query: it would run
        # anything else at once, even to give its schema.
        if source.tokens()[0].token_type == TokenType.SELECT:
            _asked(source, source.sql, 0, typer, declared)
        raise


def _typed(
    source: Source, tree: exp.Expr, views: Mapping[str, str], typer: Typer, declared: Sequence[str]
) -> pa.Schema:
    """The query's schema, as Spark gives it."""
    before = _before(source, tree, views)
    return _asked(source, _behind(before, source), before.count("\n"), typer, declared)


def _before(source: Source, tree: exp.Expr, views: Mapping[str, str]) -> str:
    """The SQL of the views, placed before a query that reads views, so that it reads tables only."""
    used = _used(source, tree, {name.lower(): (name, sql) for name, sql in views.items()})
    if not used:
        return ""
    _check_order(source, tree, used)
    queries = ",\n".join(f"`{name}` AS (\n{_unended(Source(name, sql))}\n)" for name, sql in used.items())
    return f"WITH {queries}\nSELECT * FROM (\n"


def _check_order(source: Source, tree: exp.Expr, used: Mapping[str, str]) -> None:
    """Raises UnsupportedSql for a LIMIT without ORDER BY over views that sort their rows: Spark keeps their order."""
    for query in tree.find_all(exp.Select, exp.SetOperation, exp.Subquery):
        end = query.args.get("limit") or query.args.get("offset")
        if end is not None and query.args.get("order") is None:
            for name, sql in used.items():
                if is_sorted(Source(name, sql).parse()):
                    what = f"LIMIT or OFFSET in the order of the view {name}"
                    raise source.unsupported(end, what, "Say which rows come first: ORDER BY ... LIMIT k.")


def _behind(before: str, source: Source) -> str:
    return f"{before}{_unended(source)}\n)" if before else source.sql


def _asked(source: Source, sql: str, lines: int, typer: Typer, declared: Sequence[str]) -> pa.Schema:
    """lines: before the view's own SQL. declared: tables and views that the view may read."""
    try:
        return typer.schema_of(sql)
    except UserError as error:
        words = re.sub(r"\bline (\d+)", lambda match: f"line {int(match[1]) - lines}", str(error))
        if isinstance(error, UnknownTable):
            words = f"{words}; there are: {', '.join(sorted(declared)) or 'none'}"
        raise type(error)(f"view {source.view!r}: {words}") from error


def _used(source: Source, tree: exp.Expr, views: Mapping[str, tuple[str, str]]) -> dict[str, str]:
    """The views that a query reads, directly or through others; each behind those that it reads."""
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


def _checked(source: Source, rows: ScopeRows, schema: pa.Schema) -> pa.Schema:
    """The view's schema as Spark gives it, checked against the types of the translated expressions."""
    fields = list(output_fields(source, rows))
    if len(schema) != len(fields):
        raise source.unsupported(None, f"a SELECT in which Spark sees {len(schema)} columns", "List the columns.")
    _check_names(source, schema, [column.node for column, _ in fields])
    for field, (column, type) in zip(schema, fields, strict=True):
        if not same_type(field.type, type):
            what = f"{field.name!r}, {spark_name(field.type)} for Spark and {spark_name(type)} here,"
            raise source.unsupported(column.node, what, "CAST it to the type that you want.")
    return pa.schema([pa.field(field.name, field.type) for field in schema])


def _check_names(source: Source, schema: pa.Schema, nodes: Sequence[exp.Expr | None]) -> None:
    """Raises DeclarationError for columns that differ in case alone, or not at all, with all of them."""
    counts = Counter(name.lower() for name in schema.names)
    repeated = [name for name in dict.fromkeys(map(str.lower, schema.names)) if counts[name] > 1]
    if not repeated:
        return
    listed = ", ".join(f"{name!r} ({counts[name]} times)" for name in repeated)
    at = next(node for name, node in reversed(list(zip(schema.names, nodes, strict=True))) if name.lower() in repeated)
    name = repeated[0] if repeated[0].isidentifier() else f"`{repeated[0]}`"
    instead = f"Name each, SELECT a.{name}, b.{name} AS other_{repeated[0]}, or leave one out: b.* EXCEPT ({name})."
    if not repeated[0].isidentifier():
        instead = "Give each a name of its own: ... AS name."
    raise source.wrong(at, f"several columns have one name: {listed}", instead)


def output_fields(source: Source, rows: ScopeRows) -> list[tuple[ScopeColumn, pa.DataType]]:
    """The columns of a view, with the types computed here. Raises UnsupportedSql for a window as a whole."""
    for column in rows.columns:
        if column.end is not None:
            what = "a window as a whole, which is a STRUCT, as a column of a view"
            raise source.unsupported(column.node, what, "Take its start and its end: window.start, window.end.")
    return [(column, rows.relation.schema.field(column.name).type) for column in rows.columns]


_VIEW = "deletes"


def deletion(sql: str, table: TableSpec, typer: Typer) -> str:
    """The DuckDB predicate that says of a version of a row what ``sql`` says in Spark.

    typer: knows the table. Raises UnsupportedSql, DeclarationError with the place in ``sql``.
    """
    column, name = table.key[0].replace("`", "``"), f"`{table.name}`"
    query = f"SELECT `{column}` FROM {name} AS {name} WHERE (\n{sql}\n)"  # without AS, WHERE (x) is an alias to Spark
    plain = replace(table, primary_key=(), deletes=None)  # every version counts as a row
    try:
        _check_closed(sql)
        return _predicate(compile_view(_VIEW, query, {table.name: plain}, {}, typer))
    except UserError as error:
        words = str(error).removeprefix(f"view {_VIEW!r}").lstrip(":, ")
        raise type(error)(f"table {table.name!r}, deletes: {_in_lines_of(sql, words)}") from error


def _in_lines_of(sql: str, words: str) -> str:
    """An error's words with places in a condition, instead of in the query whose second line it begins."""
    lines = sql.count("\n") + 1

    def place(found: re.Match[str]) -> str:
        line = int(found[1]) - 1
        if line > lines:
            return "at its end"
        return f"line {line}{found[2]}" if line > 0 else "at all of it"

    placed = re.sub(r"\bline (\d+)((?:,? (?:pos|column) \d+)?)", place, words)
    return re.sub(r" at or near ('\)'|end of input)(?=.*at its end)", "", placed)


def _predicate(view: CompiledView) -> str:
    """The filter of a query of one table. Raises UnsupportedSql if the query does more than test a row."""
    match view.relation:
        case Relation(op=ProjectOp(), inputs=(Relation(op=FilterOp(predicate), inputs=(Relation(op=Scan()),)),)):
            return predicate
        case relation:
            place = next((below.place for below in relation.inputs), None)
            raise view.source.unsupported(place, "a condition on other rows", "Ask for the columns of the row alone.")


def _check_closed(sql: str) -> None:
    """Refuse SQL that would not stay within the parentheses around it."""
    depth = 0
    for token in Source("", sql).tokens():
        depth += (token.token_type == TokenType.L_PAREN) - (token.token_type == TokenType.R_PAREN)
        if depth < 0 or token.token_type == TokenType.SEMICOLON:
            raise DeclarationError(f"{sql!r} is not one condition: look at {token.text!r}")


def declare_view(
    name: str,
    sql: str,
    key: str | Sequence[str],
    tables: Mapping[str, TableSpec],
    views: Mapping[str, str],
    typer: Typer,
) -> DataflowPlan:
    """Compile a view. key: output columns by which it is looked up. views: the SQL of those that it may read, by name.

    Raises UnsupportedSql, with the place, for SQL that Spark supports and Upriver does not; DeclarationError for an
    error; ProtocolError, which names the view and has its SQL, for anything that is none of these.
    """
    try:
        return _declared(name, sql, key, tables, views, typer)
    except (UserError, LakeError, ClusterError):
        raise
    except Exception as error:  # of any class: of DuckDB, Arrow, sqlglot or Spark
        what = str(error) if isinstance(error, ProtocolError) else f"{type(error).__name__}: {error}"
        raise ProtocolError(
            f"view {name!r} cannot be declared, by a fault of Upriver. Please report it, with its SQL: {what}\n{sql}"
        ) from error


def _declared(
    name: str,
    sql: str,
    key: str | Sequence[str],
    tables: Mapping[str, TableSpec],
    views: Mapping[str, str],
    typer: Typer,
) -> DataflowPlan:
    compiled = compile_view(name, text(f"view {name!r}: sql", sql), tables, views, typer)
    named = view_key(name, compiled.schema, names(f"view {name!r}: key", key))
    try:
        regions = plan_regions(name, compiled.relation, named, tables, sql)
        functions = _called(compiled.relation, typer.functions.values())
    except RecursionError as error:
        raise _too_deep(compiled.source) from error
    return DataflowPlan(name, sql, named, compiled.schema, regions, functions=functions)


def _called(relation: Relation, functions: Collection[UserFunction]) -> tuple[UserFunction, ...]:
    """Those of the functions that some expression calls."""
    texts = set(_expressions(relation, set())) if functions else set()
    return tuple(one for one in functions if any(f"{one.sql_name}(" in text for text in texts))


def _expressions(relation: Relation, seen: set[int]) -> Iterator[str]:
    """The expressions of a tree; parts that occur several times are read once. seen: the parts that have been read."""
    if id(relation) in seen:
        return
    seen.add(id(relation))
    match relation.op:
        case FilterOp(predicate):
            yield predicate
        case ProjectOp(projection):
            yield from projection.expressions
        case JoinOp() if relation.op.condition is not None:
            yield relation.op.condition
        case _:
            pass
    for part in relation.inputs:
        yield from _expressions(part, seen)


def mapped_view(name: str, op: StatefulMapOp, source: TableSpec) -> DataflowPlan:
    """The view of the rows that a user's function gives for the rows of a table."""
    relation = Relation(op, (Relation(Scan(source.name), (), source.schema),), op.output)
    regions = plan_regions(name, relation, op.key, {source.name: source})
    return DataflowPlan(name, f"{MAP_OF}{source.name}", op.key, op.output, regions)
