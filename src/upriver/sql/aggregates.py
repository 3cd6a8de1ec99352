"""GROUP BY, and PIVOT, which Spark has as one GROUP BY over another."""

from collections.abc import Mapping

from upriver.plan.relation import Relation
from upriver.sql.attachments import attached
from upriver.sql.groups import CALL, Groups
from upriver.sql.operators import projection
from upriver.sql.pivots import is_pivot, pivoted
from upriver.sql.translation import Rule, Translation
from upriver.sql.tree import TreeNode


def _grouped(translation: Translation, node: TreeNode) -> Relation:
    if is_pivot(node):
        return pivoted(translation, node)
    grouping, listed = node.fields["groupingExpressions"], node.fields["aggregateExpressions"]
    calls = [part for one in listed for part in one.walk() if part.kind == CALL]
    below = attached(translation, translation.relation(node.children[0]), [*grouping, *calls])
    groups = Groups(translation, below, grouping, node.place)
    outputs = [groups.over_groups(one) for one in listed]
    rows = attached(translation, groups.relation(), outputs)
    return projection(translation, rows, outputs, node.place) if outputs else rows


RULES: Mapping[str, Rule] = {"Aggregate": _grouped}
