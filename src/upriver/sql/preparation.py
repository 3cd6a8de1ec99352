"""What is changed in an analysed plan before its operators become relations.

Columns that no operator above uses are dropped, as by Spark's optimizer. The analyzer carries many along: beside what
it computes ahead of groups and of window functions, it keeps all columns beneath. How often an expression is used
decides whether Spark evaluates it where it stands or in the expression above, and only the uses that are left count.

LATERAL without rows of its own becomes no join (:mod:`upriver.sql.laterals`).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from upriver.sql.laterals import of_left_rows
from upriver.sql.tree import TreeNode

Ids = frozenset[int]
_SUBQUERY = "ScalarSubquery"


def prepared(plan: TreeNode) -> TreeNode:
    """The plan with the same columns, and all that it reads."""
    return _pruned(plan, frozenset(plan.output))


def _pruned(node: TreeNode, used: Ids) -> TreeNode:
    """used: the columns that are used above."""
    rule = _RULES.get(node.kind)
    if rule is not None:
        return rule(node, used)
    if node.kind in _PASSING:
        named = used | _named(node)
        return _changed(node, [_pruned(one, named) for one in node.children], {})
    return _changed(node, [prepared(one) for one in node.children], {})


def _changed(
    node: TreeNode, children: Sequence[TreeNode], fields: Mapping[str, Any], output: tuple[int, ...] | None = None
) -> TreeNode:
    """The operator over other plans, and with other fields; subqueries in its expressions are prepared, too. output:
    its columns; ``None`` for those that are left."""
    if output is None:
        dropped = _outputs(node.children) - _outputs(children)
        output = tuple(id for id in node.output if id not in dropped)
    found = replace(node, fields={**node.fields, **fields}, output=output)
    return found.over(children, _with_subqueries)


def _outputs(nodes: Iterable[TreeNode]) -> Ids:
    return frozenset(id for one in nodes for id in one.output)


def _with_subqueries(node: TreeNode) -> TreeNode:
    """An expression whose subqueries are prepared."""
    if not any(one.kind == _SUBQUERY for one in node.walk()):
        return node
    found = node.over(tuple(map(_with_subqueries, node.children)))
    if node.kind != _SUBQUERY:
        return found
    return replace(found, fields={**found.fields, "plan": prepared(found.fields["plan"])})


def _named(node: TreeNode) -> Ids:
    """The columns that the expressions of an operator name."""
    return _references(part for value in node.fields.values() for part in _expressions(value, node))


def _expressions(value: Any, node: TreeNode) -> Iterator[TreeNode]:
    if isinstance(value, list):
        for one in value:
            yield from _expressions(one, node)
    elif isinstance(value, TreeNode) and not any(value is one for one in node.children):
        yield value


def _references(nodes: Iterable[TreeNode]) -> Ids:
    return frozenset[int]().union(*(one.references for one in nodes))


# Operators


def _project(node: TreeNode, used: Ids) -> TreeNode:
    listed = [one for one in node.fields["projectList"] if one.id in used]
    (below,) = node.children
    output = tuple(one.id for one in listed)
    return _changed(node, [_pruned(below, _references(listed))], {"projectList": listed}, output)


def _aggregate(node: TreeNode, used: Ids) -> TreeNode:
    # Grouping columns stay: they are there in any case, and equal groups are computed once.
    listed = [one for one in node.fields["aggregateExpressions"] if one.id in used or one.is_column]
    (below,) = node.children
    named = _references([*node.fields["groupingExpressions"], *listed])
    output = tuple(one.id for one in listed)
    return _changed(node, [_pruned(below, named)], {"aggregateExpressions": listed}, output)


def _window(node: TreeNode, used: Ids) -> TreeNode:
    (below,) = node.children
    functions = [one for one in node.fields["windowExpressions"] if one.id in used]
    if not functions:
        return _pruned(below, used)
    made = frozenset(one.id for one in functions)
    found = _pruned(below, (used - made) | _references(functions))
    output = (*found.output, *(one.id for one in functions))
    return _changed(node, [found], {"windowExpressions": functions}, output)


def _expand(node: TreeNode, used: Ids) -> TreeNode:
    columns, rows = node.fields["output"], node.fields["projections"]
    differing = [place for place in range(len(columns)) if len({row[place].meaning for row in rows}) > 1]
    places = [place for place, one in enumerate(columns) if one.id in used]
    if not set(places) & set(differing):
        places = sorted({*places, *(differing or [0])[:1]})
    rows = [[row[place] for place in places] for row in rows]
    (below,) = node.children
    found = _pruned(below, _references(value for row in rows for value in row))
    fields = {"projections": rows, "output": [columns[place] for place in places]}
    return _changed(node, [found], fields, tuple(columns[place].id for place in places))


def _generate(node: TreeNode, used: Ids) -> TreeNode:
    (below,) = node.children
    return _changed(node, [_pruned(below, used | node.fields["generator"].references)], {})


def _join(node: TreeNode, used: Ids) -> TreeNode:
    alone = of_left_rows(node)
    if alone is not node:
        return _pruned(alone, used)
    condition = node.fields["condition"]
    named = used if condition is None else used | condition.references
    return _changed(node, [_pruned(one, named) for one in node.children], {})


def _union(node: TreeNode, used: Ids) -> TreeNode:
    places = [place for place, id in enumerate(node.output) if id in used] or list(range(len(node.output)))
    children = []
    for one in node.children:
        ids = tuple(one.output[place] for place in places)
        found = _pruned(one, frozenset(ids))
        children.append(found if found.output == ids else _of_these(found, ids))
    return _changed(node, children, {}, tuple(node.output[place] for place in places))


def _of_these(node: TreeNode, ids: tuple[int, ...]) -> TreeNode:
    """The rows with these columns alone."""
    columns = [TreeNode("AttributeReference", {"exprId": id, "name": ""}) for id in ids]
    return TreeNode("Project", {"projectList": columns}, (node,), place=node.place, output=ids)


_PASSING = frozenset(
    {
        *("Filter", "Sort", "GlobalLimit", "LocalLimit", "Offset", "SubqueryAlias", "ResolvedHint"),
        *("Repartition", "RepartitionByExpression", "RebalancePartitions", "PipeOperator"),
    }
)
"""Operators that have the columns beneath."""
_RULES: Mapping[str, Callable[[TreeNode, Ids], TreeNode]] = {
    "Project": _project,
    "Aggregate": _aggregate,
    "Window": _window,
    "Expand": _expand,
    "Generate": _generate,
    "Join": _join,
    "Union": _union,
}
