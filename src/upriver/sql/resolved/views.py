"""Declares a view from the plan that Spark has analysed."""

from collections.abc import Mapping, Sequence
from typing import Any

from upriver.plan.plan import DataflowPlan, TableSpec
from upriver.plan.planning import plan_regions, view_key
from upriver.plan.relation import Relation
from upriver.plan.source import Source
from upriver.sql.curves import with_curves
from upriver.sql.relations import Output, projected
from upriver.sql.resolved import aggregates, expands, generators, join_operators, operators, rows, window_calls
from upriver.sql.resolved.translation import Translation
from upriver.sql.resolved.tree import Node, read
from upriver.sql.window_functions import all_numbered

RULES = {
    **operators.RULES,
    **rows.RULES,
    **join_operators.RULES,
    **aggregates.RULES,
    **expands.RULES,
    **window_calls.RULES,
    **generators.RULES,
}


def relation_of(translation: Translation, root: Node, titles: Sequence[str]) -> Relation:
    """The rows of a view, with these columns."""
    while root.kind == "Sort":
        (root,) = root.children
    made = translation.relation(root)
    names = [translation.name_of(one) for one in root.output]
    outputs = [Output(title, translation.column(made, name)) for title, name in zip(titles, names, strict=True)]
    return projected(made, outputs, None)


def declare(
    name: str,
    sql: str,
    text: str,
    titles: Sequence[str],
    key: Sequence[str],
    tables: Mapping[str, TableSpec],
    zone: str,
    typer: Any,
) -> DataflowPlan:
    root = read(text, zone)
    translation = Translation(Source(name, sql), zone, tables, typer.functions, RULES)
    relation = with_curves(all_numbered(relation_of(translation, root, titles)), typer.curve)
    named = view_key(name, relation.schema, tuple(key))
    return DataflowPlan(name, sql, named, relation.schema, plan_regions(name, relation, named, tables, sql))
