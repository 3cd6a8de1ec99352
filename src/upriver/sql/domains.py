"""Domains: the different values of the query around that Catalyst joins to a subquery which names them in more than an
equality. Where a semi or an anti join gives them back to the rows from which they come, they are not needed."""

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa

from upriver.sql.tree import TreeNode, conjuncts, substituted

_ABOVE = frozenset({"Project", "Filter"})


def without_domain(join: TreeNode) -> TreeNode:
    """The join of a row with the existence of another, with the rows beside the domain alone on its right side, and
    the values of its left side in the place of the domain's; the join as it is if there is no domain.

    ``l IN (SELECT t.i + j FROM u)`` joins u to all values of ``t.i``, and compares them with the row's own. So each row
    may be compared with u at once.
    """
    condition, (left, right) = join.fields["condition"], join.children
    path: list[TreeNode] = []
    while right.kind in _ABOVE:
        path.append(right)
        (right,) = right.children
    if condition is None or right.kind != "Join" or right.fields["joinType"] not in ("Inner", "Cross"):
        return join
    values, rows = right.children
    if not _is_domain(values):
        return join
    asked = conjuncts(condition)
    around = {id: _equal_to(id, asked, frozenset(left.output)) for id in values.output}
    if any(one is None for one in around.values()):
        return join
    known = {id: one for id, one in around.items() if one is not None}
    tests: list[TreeNode] = []
    if right.fields["condition"] is not None:
        tests.append(substituted(right.fields["condition"], known))
    for node in reversed(path):
        if node.kind == "Filter":
            tests.append(substituted(node.fields["condition"], known))
        else:
            made = [one for one in node.fields["projectList"] if one.kind == "Alias"]
            known |= {one.id: substituted(one.children[0], known) for one in made}
    same = [one for one in asked if not _is_of_domain(one, values.output)]
    found = [*tests, *(substituted(one, known) for one in same)]
    return replace(join, children=(left, rows), fields={**join.fields, "condition": _all(found)})


def _is_domain(node: TreeNode) -> bool:
    if node.kind != "Aggregate":
        return False
    listed = node.fields["aggregateExpressions"]
    return bool(listed) and all(one.is_column or (one.kind == "Alias" and one.children[0].is_column) for one in listed)


def _is_of_domain(node: TreeNode, ids: Sequence[int]) -> bool:
    return node.kind == "EqualNullSafe" and any(one.is_column and one.id in ids for one in node.children)


def _equal_to(id: int, asked: Sequence[TreeNode], lefts: frozenset[int]) -> TreeNode | None:
    """What of the left side a column of the domain is compared with."""
    for one in asked:
        if one.kind == "EqualNullSafe":
            for column, other in (one.children, one.children[::-1]):
                if column.is_column and column.id == id and other.references <= lefts:
                    return other
    return None


def _all(nodes: Sequence[TreeNode]) -> TreeNode | None:
    found: TreeNode | None = None
    for one in nodes:
        found = one if found is None else TreeNode("And", {}, (found, one), one.type)
    return found


# A domain with more of its rows' values -------------------------------------------------------------------------------


def with_keyed_domain(join: TreeNode) -> TreeNode:
    """The join, in whose right side a domain also has those columns of the left side that the join compares with
    columns of the rows beside the domain: these rows then meet the domain by an equality, and not each value of it.

    What is left out gives rows of the right side that meet no row of the left one.
    """
    condition, (left, right) = join.fields["condition"], join.children
    if condition is None:
        return join
    path: list[TreeNode] = []
    while right.kind in _BETWEEN:
        path.append(right)
        (right,) = right.children
    if right.kind != "Join" or right.fields["joinType"] not in ("Inner", "Cross") or not _is_domain(right.children[0]):
        return join
    values, rows = right.children
    around = frozenset(left.output) & frozenset(values.children[0].output)
    pairs = [pair for one in conjuncts(condition) if (pair := _pair(one, frozenset(rows.output), around)) is not None]
    more = [(inner, outer) for inner, outer in pairs if outer.meaning not in _grouped(values)]
    if not more:
        return join
    made = [
        TreeNode("Alias", {"exprId": _new(outer), "name": outer.fields["name"]}, (outer,), outer.type)
        for _, outer in more
    ]
    listed = [*values.fields["aggregateExpressions"], *made]
    group = [*values.fields["groupingExpressions"], *(outer for _, outer in more)]
    values = replace(
        values,
        fields={**values.fields, "aggregateExpressions": listed, "groupingExpressions": group},
        output=(*values.output, *(one.id for one in made)),
    )
    tests = [] if right.fields["condition"] is None else [right.fields["condition"]]
    for (inner, outer), one in zip(more, made, strict=True):
        column = TreeNode("AttributeReference", {"exprId": one.id, "name": one.fields["name"]}, type=outer.type)
        tests.append(TreeNode("EqualTo", {}, (inner, column), pa.bool_()))
    found = replace(
        right,
        children=(values, rows),
        fields={**right.fields, "condition": _all(tests)},
        output=(*values.output, *rows.output),
    )
    for node in reversed(path):
        found = replace(node, children=(found,))
    return replace(join, children=(left, found))


_BETWEEN = frozenset({"Project", "Filter", "Sort", "Window", "Aggregate"})


def _grouped(values: TreeNode) -> frozenset[str]:
    return frozenset(one.meaning for one in values.fields["groupingExpressions"])


def _pair(node: TreeNode, rows: frozenset[int], around: frozenset[int]) -> tuple[TreeNode, TreeNode] | None:
    """The column of the rows beside the domain, and the column around, that an equality compares."""
    if node.kind == "EqualTo" and all(one.is_column for one in node.children):
        for inner, outer in (node.children, node.children[::-1]):
            if inner.id in rows and outer.id in around:
                return inner, outer
    return None


def _new(column: TreeNode) -> int:
    """An id that no column of Spark has, and another one for each column."""
    return -(2**40) - column.id
