"""Domains: the different values of the query around that Catalyst joins to a subquery which names them in more than an
equality. Where a semi or an anti join gives them back to the rows from which they come, they are not needed."""

from collections.abc import Sequence
from dataclasses import replace

from upriver.sql.resolved.tree import Node, conjuncts, substituted

_ABOVE = frozenset({"Project", "Filter"})


def without_domain(join: Node) -> Node:
    """The join of a row with the existence of another, with the rows beside the domain alone on its right side, and
    the values of its left side in the place of the domain's; the join as it is if there is no domain.

    ``l IN (SELECT t.i + j FROM u)`` joins u to all values of ``t.i``, and compares them with the row's own. So each row
    may be compared with u at once.
    """
    condition, (left, right) = join.fields["condition"], join.children
    path: list[Node] = []
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
    tests: list[Node] = []
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


def _is_domain(node: Node) -> bool:
    if node.kind != "Aggregate":
        return False
    listed = node.fields["aggregateExpressions"]
    return bool(listed) and all(one.is_column or (one.kind == "Alias" and one.children[0].is_column) for one in listed)


def _is_of_domain(node: Node, ids: Sequence[int]) -> bool:
    return node.kind == "EqualNullSafe" and any(one.is_column and one.id in ids for one in node.children)


def _equal_to(id: int, asked: Sequence[Node], lefts: frozenset[int]) -> Node | None:
    """What of the left side a column of the domain is compared with."""
    for one in asked:
        if one.kind == "EqualNullSafe":
            for column, other in (one.children, one.children[::-1]):
                if column.is_column and column.id == id and other.references <= lefts:
                    return other
    return None


def _all(nodes: Sequence[Node]) -> Node | None:
    found: Node | None = None
    for one in nodes:
        found = one if found is None else Node("And", {}, (found, one), one.type)
    return found
