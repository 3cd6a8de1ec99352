"""From a declared view to its dataflow."""

from collections.abc import Mapping, Sequence

from upriver.given import names, text
from upriver.plan.algebra import Relation
from upriver.plan.graph import DataflowPlan
from upriver.plan.ops import Scan, StatefulMap
from upriver.plan.plan import TableSpec
from upriver.plan.planning import plan_regions, view_key
from upriver.sql.sql import MAP_OF, Typer, compile_view


def declare_view(
    name: str,
    sql: str,
    key: str | Sequence[str],
    tables: Mapping[str, TableSpec],
    views: Mapping[str, str],
    typer: Typer,
) -> DataflowPlan:
    """Compile a view. key: output columns by which it is looked up. views: the SQL of those that it may read, by name.

    Raises UnsupportedSql for what Spark can do and we cannot, with its place; DeclarationError for what is wrong.
    """
    compiled = compile_view(name, text(f"view {name!r}: sql", sql), tables, views, typer)
    named = view_key(name, compiled.schema, names(f"view {name!r}: key", key))
    regions = plan_regions(name, compiled.relation, named, tables, sql)
    return DataflowPlan(name, sql, named, compiled.schema, regions)


def mapped_view(name: str, op: StatefulMap, source: TableSpec) -> DataflowPlan:
    """The view of what a user's function gives for the rows of a table."""
    relation = Relation(op, (Relation(Scan(source.name), (), source.schema),), op.output)
    regions = plan_regions(name, relation, op.key, {source.name: source})
    return DataflowPlan(name, f"{MAP_OF}{source.name}", op.key, op.output, regions)
