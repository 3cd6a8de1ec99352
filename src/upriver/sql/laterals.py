"""LATERAL without rows of its own: ``t, LATERAL explode(t.tags)``, ``t, LATERAL (SELECT t.x + 1 AS y)``.

Catalyst computes these for the different values of what they take, and joins the results with the rows that have these
values. Here they are computed of the rows themselves, without a join.
"""

from collections.abc import Mapping
from dataclasses import replace

from upriver.sql.tree import TreeNode, conjuncts, substituted

_ABOVE = frozenset({"Project", "Filter"})
_PASSING = frozenset({"Filter", "Project", "Generate", "Window", "SubqueryAlias"})
"""Operators that give no other values of a column than those beneath."""


def of_left_rows(join: TreeNode) -> TreeNode:
    """The join as operators over its left side; the join as it is, if its right side has rows of its own."""
    kind, condition, (left, right) = join.fields["joinType"], join.fields["condition"], join.children
    if kind not in ("Inner", "Cross", "LeftOuter") or condition is None:
        return join
    path: list[TreeNode] = []
    while right.kind in _ABOVE:
        path.append(right)
        (right,) = right.children
    generate: TreeNode | None = None
    if right.kind == "Generate":
        generate, (right,) = right, right.children
    known = _around(right, left) if right.kind == "Aggregate" else None
    if known is None:
        return join
    pairs = [one for one in conjuncts(condition) if _is_of_domain(one, known)]
    others = [one for one in conjuncts(condition) if one not in pairs]
    if len(pairs) != len(known):
        return join
    if kind == "LeftOuter" and (others or not _keeps_rows(path, generate)):
        return join
    rows = left if generate is None else _exploded(generate, left, known, kind == "LeftOuter")
    return _computed(join, rows, path, known, others)


def _keeps_rows(path: list[TreeNode], generate: TreeNode | None) -> bool:
    """Whether rows without a match can be kept below the operators of the path: these drop none, and of a generator's
    NULLs they compute nothing."""
    if generate is None:
        return all(one.kind == "Project" for one in path)
    return all(map(_is_renaming, path))


def _around(domain: TreeNode, left: TreeNode) -> Mapping[int, TreeNode] | None:
    """The columns of the left side whose values a domain has, by their ids in the domain. ``None`` if it is no
    domain, or may lack some of the values."""
    listed = domain.fields["aggregateExpressions"]
    columns = {one.id: one.children[0] if one.kind == "Alias" else one for one in listed}
    grouped = {one.meaning for one in domain.fields["groupingExpressions"]}
    if not columns or {one.meaning for one in columns.values()} != grouped:
        return None
    if not all(one.is_column and one.id in left.output for one in columns.values()):
        return None
    return columns if _has(left, domain.children[0]) else None


def _has(rows: TreeNode, source: TreeNode) -> bool:
    """Whether all rows come from those of the source."""
    if rows.meaning == source.meaning:
        return True
    if rows.kind in _PASSING:
        return _has(rows.children[0], source)
    if rows.kind != "Join":
        return False
    kind, (left, right) = rows.fields["joinType"], rows.children
    return (kind in ("Inner", "Cross", "LeftOuter", "LeftSemi", "LeftAnti") and _has(left, source)) or (
        kind in ("Inner", "Cross") and _has(right, source)
    )


def _is_of_domain(node: TreeNode, known: Mapping[int, TreeNode]) -> bool:
    if node.kind != "EqualNullSafe" or not all(one.is_column for one in node.children):
        return False
    return any(one.id in known and known[one.id].id == other.id for one, other in _both_ways(node))


def _both_ways(node: TreeNode) -> tuple[tuple[TreeNode, TreeNode], tuple[TreeNode, TreeNode]]:
    one, other = node.children
    return (one, other), (other, one)


def _is_renaming(node: TreeNode) -> bool:
    """Whether rows of nothing but NULL stay so."""
    if node.kind != "Project":
        return False
    listed = node.fields["projectList"]
    return all(one.is_column or (one.kind == "Alias" and one.children[0].is_column) for one in listed)


def _exploded(generate: TreeNode, left: TreeNode, known: Mapping[int, TreeNode], keeps_empty: bool) -> TreeNode:
    fields = {
        **generate.fields,
        "generator": substituted(generate.fields["generator"], known),
        "outer": generate.fields["outer"] or keeps_empty,
    }
    made = tuple(one.id for one in generate.fields["generatorOutput"])
    return replace(generate, fields=fields, children=(left,), output=(*left.output, *made))


def _computed(
    join: TreeNode, rows: TreeNode, path: list[TreeNode], known: Mapping[int, TreeNode], others: list[TreeNode]
) -> TreeNode:
    """The operators of the path over the rows, whose columns are kept."""
    kept = [TreeNode("AttributeReference", {"exprId": id, "name": ""}) for id in join.children[0].output]
    for node in reversed(path):
        if node.kind == "Filter":
            rows = _filtered(node, rows, substituted(node.fields["condition"], known))
            continue
        listed = [*kept, *(substituted(one, known) for one in node.fields["projectList"] if one.id not in known)]
        output = tuple(one.id for one in listed)
        rows = replace(node, fields={**node.fields, "projectList": listed}, children=(rows,), output=output)
    for one in others:
        rows = _filtered(join, rows, substituted(one, known))
    return rows


def _filtered(node: TreeNode, below: TreeNode, condition: TreeNode) -> TreeNode:
    return TreeNode("Filter", {"condition": condition}, (below,), place=node.place, output=below.output)
