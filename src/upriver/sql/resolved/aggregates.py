"""GROUP BY, and PIVOT, which Spark has as one GROUP BY over another."""

from collections.abc import Mapping
from dataclasses import replace

from upriver.plan.relation import Relation
from upriver.sql.resolved.attachments import attached
from upriver.sql.resolved.groups import CALL, Groups
from upriver.sql.resolved.operators import projection
from upriver.sql.resolved.pivots import is_pivot, pivoted
from upriver.sql.resolved.translation import Rule, Translation
from upriver.sql.resolved.tree import Node


def _grouped(translation: Translation, node: Node) -> Relation:
    if is_pivot(node):
        return pivoted(translation, node)
    grouping, listed = node.fields["groupingExpressions"], node.fields["aggregateExpressions"]
    calls = [part for one in listed for part in one.walk() if part.kind == CALL]
    used = frozenset[int]().union(*(one.references for one in (*grouping, *listed)))
    below = attached(translation, translation.relation(_only(node.children[0], used)), [*grouping, *calls])
    groups = Groups(translation, below, grouping, node.place)
    outputs = [groups.over_groups(one) for one in listed]
    rows = attached(translation, groups.relation(), outputs)
    return projection(translation, rows, outputs, node.place)


def _only(node: Node, used: frozenset[int]) -> Node:
    """A projection with the columns that are used above. An expression that one alone of them uses is computed there.
    So those that Spark leaves out later must not count."""
    if node.kind != "Project":
        return node
    listed = [one for one in node.fields["projectList"] if one.id in used]
    output = tuple(one.id for one in listed)
    return replace(node, fields={**node.fields, "projectList": listed}, output=output) if listed else node


RULES: Mapping[str, Rule] = {"Aggregate": _grouped}
