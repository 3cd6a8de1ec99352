"""From a declared view to a tree of relations, and on to its dataflow.

Spark reads the query: it gives the plan that it has analysed, with names, types and coercions resolved
(:class:`Analyser`). Here its operators become relations and its expressions DuckDB SQL, by rules for each of Catalyst's
classes and for each function. Tests show for each that it gives in DuckDB what it gives in Spark. All else is refused
when the view is declared.

The condition that deletes a row of an upsert table is Spark SQL, too, translated like the WHERE of a view.

Read next: :mod:`upriver.sql.tree` (the analysed plan), :mod:`upriver.sql.translation` (what all
operators share), :mod:`upriver.sql.expressions` (how an expression is translated).
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

import pyarrow as pa

from upriver.arguments import names
from upriver.errors import ClusterError, LakeError, ProtocolError, UnsupportedSql, UserError
from upriver.plan.explain import CALLED_ONCE
from upriver.plan.plan import (
    DataflowPlan,
    FilterOp,
    JoinOp,
    Keep,
    ProjectOp,
    Scan,
    StatefulMapOp,
    TableSpec,
    UserFunction,
)
from upriver.plan.planning import plan_regions, view_key
from upriver.plan.relation import Relation
from upriver.plan.row_steps import RowSteps
from upriver.plan.source import FrameSource, Source
from upriver.plan.types import is_null, same_type, spark_name
from upriver.sql import aggregates, expands, generators, join_operators, leaves, operators, rows, window_calls
from upriver.sql.curves import with_curves
from upriver.sql.preparation import prepared
from upriver.sql.relations import Output, projected, retyped
from upriver.sql.translation import Rule, Translation
from upriver.sql.tree import TreeNode, read
from upriver.sql.user_functions import UserFunctions
from upriver.sql.window_functions import all_numbered

RULES: Mapping[str, Rule] = {
    **operators.RULES,
    **rows.RULES,
    **join_operators.RULES,
    **aggregates.RULES,
    **expands.RULES,
    **window_calls.RULES,
    **generators.RULES,
    **leaves.RULES,
}
"""By Catalyst's class of an operator."""


@dataclass(frozen=True, slots=True)
class Analysed:
    """What Spark makes of a query. schema: its columns, as Spark names and types them. plan: the analysed plan, as
    :func:`upriver.sql.tree.read` takes it."""

    schema: pa.Schema
    plan: str


class Analyser(Protocol):
    """What Spark says of queries over an app's tables."""

    @property
    def timezone(self) -> str:
        """The session's time zone, in which Spark reads the wall clock of a TIMESTAMP."""

    @property
    def functions(self) -> Mapping[str, UserFunction]:
        """The user's own, by name in lower case."""

    def analysed(self, name: str, sql: str, views: Mapping[str, str]) -> Analysed:
        """The query of a view of this name. views: the SQL of those that it may read, by name. Raises DeclarationError
        in Spark's words, UnsupportedSql."""

    def condition(self, table: str, sql: str) -> Analysed:
        """The rows of a table for which a condition is true. Raises as ``analysed``."""

    def curve(self, bits: int) -> tuple[float, ...]:
        """What Spark has measured of approx_count_distinct with so many bits of registers, as ``AggregateCall.curve``
        has it; empty if it has not."""


@dataclass(frozen=True, slots=True)
class CompiledView:
    """A view as a query. schema: its columns, as Spark names and types them; ``relation`` has the same columns.

    source: gives messages the places in the relations. ignored: what the SQL says to no effect, in words. functions:
    of the user's, that some expression calls.
    """

    source: Source
    relation: Relation
    schema: pa.Schema
    ignored: tuple[str, ...] = ()
    functions: tuple[UserFunction, ...] = ()


@dataclass(frozen=True, slots=True)
class MapRelation:
    """What a stateful map reads or gives, as a query. functions: of the user's, that some expression calls."""

    relation: Relation
    functions: tuple[UserFunction, ...] = ()

    @classmethod
    def of_table(cls, table: TableSpec) -> "MapRelation":
        return cls(Relation(Scan(table.name), (), table.schema))

    @property
    def tables(self) -> frozenset[str]:
        """The tables that it reads."""
        found, todo = set[str](), [self.relation]
        while todo:
            relation = todo.pop()
            todo += relation.inputs
            if isinstance(relation.op, Scan):
                found.add(relation.op.table)
        return frozenset(found)


def declare_view(
    name: str,
    sql: str,
    key: str | Sequence[str],
    tables: Mapping[str, TableSpec],
    views: Mapping[str, str],
    analyser: Analyser,
) -> DataflowPlan:
    """Compile a view. key: output columns by which it is looked up. views: the SQL of those that it may read, by name.

    Raises UnsupportedSql, with the place, for SQL that Spark supports and Upriver does not; DeclarationError for an
    error; ProtocolError, which names the view and has its SQL, for anything that is none of these.
    """
    with _faults_told(name, sql):
        analysed = analyser.analysed(name, sql, views)
    return declare(Source(name, sql), analysed, key, tables, analyser)


def declare(
    source: Source,
    analysed: Analysed,
    key: str | Sequence[str],
    tables: Mapping[str, TableSpec],
    analyser: Analyser,
    maps: Mapping[str, MapRelation] = MappingProxyType({}),
) -> DataflowPlan:
    """Compile a view that Spark has analysed, and plan it. Arguments and errors as of :func:`declared_view`."""
    return declared_view(source, analysed, key, tables, analyser, maps)[1]


def declared_view(
    source: Source,
    analysed: Analysed,
    key: str | Sequence[str],
    tables: Mapping[str, TableSpec],
    analyser: Analyser,
    maps: Mapping[str, MapRelation] = MappingProxyType({}),
) -> tuple[CompiledView, DataflowPlan]:
    """Compile a view that Spark has analysed: as a query, and as a dataflow. source: of a DataFrame, a FrameSource.
    maps: the rows of stateful maps that it may read, by name. Raises as :func:`declare_view`."""
    with _faults_told(source.view, source.sql):
        view = compiled(source, analysed, tables, analyser, maps=maps)
        return view, planned(view, key, tables)


@contextmanager
def _faults_told(name: str, sql: str) -> Iterator[None]:
    """Have an error of the block that no user is to blame for name the view, and have its SQL."""
    try:
        yield
    except (UserError, LakeError, ClusterError):
        raise
    except Exception as error:  # of any class: of DuckDB, Arrow or Spark
        what = str(error) if isinstance(error, ProtocolError) else f"{type(error).__name__}: {error}"
        raise ProtocolError(
            f"view {name!r} cannot be declared, by a fault of Upriver. Please report it, with its SQL: {what}\n{sql}"
        ) from error


def compile_view(
    name: str, sql: str, tables: Mapping[str, TableSpec], views: Mapping[str, str], analyser: Analyser
) -> CompiledView:
    """Compile a view up to its relations. Arguments and errors as of :func:`declare_view`."""
    return compiled(Source(name, sql), analyser.analysed(name, sql, views), tables, analyser)


def compiled(
    source: Source,
    analysed: Analysed,
    tables: Mapping[str, TableSpec],
    analyser: Analyser,
    rules: Mapping[str, Rule] = RULES,
    maps: Mapping[str, MapRelation] = MappingProxyType({}),
) -> CompiledView:
    """Compile what Spark has analysed. Raises UnsupportedSql, DeclarationError."""
    _check_columns(source, analysed.schema)
    try:
        functions = UserFunctions(analyser.functions)
        given = {name: rows.relation for name, rows in maps.items()}
        translation = Translation(source, analyser.timezone, tables, functions, rules, given)
        root = read(analysed.plan, analyser.timezone, source.places if isinstance(source, FrameSource) else None)
        relation = relation_of(translation, root, analysed.schema.names)
        relation = with_curves(all_numbered(relation), analyser.curve)
        of_maps = (function for rows in maps.values() for function in rows.functions)
        called = _called(relation, dict.fromkeys([*functions.called, *of_maps]))
    except RecursionError as error:
        raise _too_deep(source) from error
    for ours, field in zip(relation.schema, analysed.schema, strict=True):
        if not same_type(ours.type, field.type):
            what = f"{field.name!r}, {spark_name(field.type)} for Spark and {spark_name(ours.type)} here,"
            raise source.unsupported(None, what, "CAST it to the type that you want.")
    schema = pa.schema([pa.field(field.name, field.type) for field in analysed.schema])
    return CompiledView(source, retyped(relation, schema), schema, _ignored(source, translation), called)


def _ignored(source: Source, translation: Translation) -> tuple[str, ...]:
    """What the SQL says to no effect, each with its place, in words; of a DataFrame nothing is said."""
    if isinstance(source, FrameSource):
        return ()
    said = sorted(set(translation.ignored))
    return tuple(f"{what} in line {source.sql.count(chr(10), 0, place) + 1}: {why}" for place, what, why in said)


def relation_of(translation: Translation, root: TreeNode, titles: Sequence[str]) -> Relation:
    """The rows of a view, with these columns."""
    while root.kind == "Sort":
        operators.check_ignored(translation, root)
        (root,) = root.children
    root = prepared(root)
    made = translation.exact(translation.relation(root), root.output)
    if isinstance(made.op, ProjectOp):
        return retyped(made, pa.schema(list(zip(titles, made.schema.types, strict=True))))
    pairs = zip(titles, made.schema.names, strict=True)
    return projected(made, [Output(title, translation.column(made, name)) for title, name in pairs], None)


def planned(view: CompiledView, key: str | Sequence[str], tables: Mapping[str, TableSpec]) -> DataflowPlan:
    """The dataflow of a view."""
    name, sql = view.source.view, view.source.sql
    named = view_key(name, view.schema, names(f"view {name!r}: key", key))
    try:
        regions = plan_regions(name, view.relation, named, tables, view.source)
    except RecursionError as error:
        raise _too_deep(view.source) from error
    return DataflowPlan(name, sql, named, view.schema, regions, functions=view.functions, ignored=view.ignored)


def _too_deep(source: Source) -> UnsupportedSql:
    return source.unsupported(None, "SQL nested as deeply as this", "Compute it in steps.")


def _check_columns(source: Source, schema: pa.Schema) -> None:
    """Raises DeclarationError for columns that differ in case alone, or not at all, with all of them; UnsupportedSql
    for one without a type."""
    counts = Counter(name.lower() for name in schema.names)
    repeated = [name for name in dict.fromkeys(map(str.lower, schema.names)) if counts[name] > 1]
    if repeated:
        listed = ", ".join(f"{name!r} ({counts[name]} times)" for name in repeated)
        name = repeated[0] if repeated[0].isidentifier() else f"`{repeated[0]}`"
        instead = f"Name each, SELECT a.{name}, b.{name} AS other_{repeated[0]}, or leave one out: b.* EXCEPT ({name})."
        if not repeated[0].isidentifier():
            instead = "Give each a name of its own: ... AS name."
        raise source.wrong(None, f"several columns have one name: {listed}", instead)
    if not len(schema):
        raise source.unsupported(None, "a view without columns", "Select one.")
    for field in schema:
        if is_null(field.type):
            what = f"a column of nothing but NULL, {field.name!r},"
            raise source.unsupported(None, what, "Give it a type: CAST(NULL AS ...).")


def deletion(sql: str, table: TableSpec, analyser: Analyser) -> str:
    """The DuckDB predicate that says of a version of a row what ``sql`` says in Spark.

    analyser: knows the table. Raises UnsupportedSql, DeclarationError with the place in ``sql``.
    """
    source = Source("", sql)
    try:
        view = compiled(source, analyser.condition(table.name, sql), {table.name: table}, analyser)
        if view.functions:
            raise source.unsupported(None, f"the function {view.functions[0].name}()", "Make it a column of the table.")
        match view.relation:
            case Relation(op=ProjectOp(), inputs=(Relation(op=FilterOp(predicate), inputs=(Relation(op=Scan()),)),)):
                return predicate
            case Relation(op=ProjectOp(), inputs=(Relation(op=Scan()),)):
                return "TRUE"
            case relation:
                place = next((below.place for below in relation.inputs), None)
                raise source.unsupported(place, "a condition on other rows", "Ask for the columns of the row alone.")
    except UserError as error:
        raise type(error)(f"table {table.name!r}, deletes: {error}") from error


def row_steps(analysed: Analysed, analyser: Analyser) -> RowSteps:
    """What the DataFrame of a table computes over its source. Raises UnsupportedSql, or DeclarationError, for one that
    does more than to compute each row by itself, always alike, from one row of its source."""
    source = FrameSource("", "")
    view = compiled(source, analysed, {}, analyser, {**RULES, **leaves.OF_SOURCES})
    steps: list[FilterOp | ProjectOp] = []
    relation = view.relation
    while isinstance(relation.op, FilterOp | ProjectOp):
        steps.append(relation.op)
        (relation,) = relation.inputs
    names = [name.lower() for name in relation.schema.names]
    if view.functions or relation.op != Scan(leaves.SOURCE) or len(set(names)) < len(names):
        raise source.unsupported(None, "more than columns and conditions of single rows", "")
    return RowSteps.over(relation.schema, steps[::-1], view.schema)


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


MAP_OF = "stateful_map of "
"""The beginning of a stateful map's description, in the place of a view's SQL."""


def map_of(rows: MapRelation) -> StatefulMapOp:
    """The map that gives these rows."""
    assert isinstance(rows.relation.op, StatefulMapOp)
    return rows.relation.op


def mapped_rows(op: StatefulMapOp, sources: Sequence[MapRelation]) -> MapRelation:
    """The rows that a user's function gives for the rows of these sources."""
    functions = dict.fromkeys(one for source in sources for one in source.functions)
    return MapRelation(Relation(op, tuple(source.relation for source in sources), op.output), tuple(functions))


def mapped_view(
    name: str, rows: MapRelation, tables: Mapping[str, TableSpec], keep: Keep | None = None
) -> DataflowPlan:
    """The view of these rows, which a stateful map gives. keep: which of them stay."""
    op = map_of(rows)
    with _faults_told(name, ""):
        regions = plan_regions(name, rows.relation, op.key, tables, keep=keep)
    words = f"{MAP_OF}{', '.join(source.name for source in op.sources)}"
    return DataflowPlan(name, words, op.key, op.output, regions, CALLED_ONCE, rows.functions)
