"""Generators in FROM: ``t, LATERAL explode(t.tags)``.

Catalyst explodes the different values of what the generator takes, and joins the elements with the rows that have these
values. Here the rows are exploded themselves.
"""

from collections.abc import Mapping
from dataclasses import replace

from upriver.sql.resolved.tree import Node, conjuncts, substituted

_ABOVE = frozenset({"Project", "Filter"})
_PASSING = frozenset({"Filter", "Project", "Generate", "Window", "SubqueryAlias"})
"""Operators that give no other values of a column than those beneath."""


def with_generator(join: Node) -> Node:
    """The join as a generator over its left side; the join as it is if it is none of a generator."""
    kind, condition, (left, right) = join.fields["joinType"], join.fields["condition"], join.children
    if kind not in ("Inner", "Cross", "LeftOuter") or condition is None:
        return join
    path: list[Node] = []
    while right.kind in _ABOVE:
        path.append(right)
        (right,) = right.children
    if right.kind != "Generate" or right.children[0].kind != "Aggregate":
        return join
    known = _around(right.children[0], left)
    if known is None:
        return join
    pairs = [one for one in conjuncts(condition) if _is_of_domain(one, known)]
    others = [one for one in conjuncts(condition) if one not in pairs]
    if len(pairs) != len(known):
        return join
    keeps_empty = kind == "LeftOuter"
    if keeps_empty and (others or not all(map(_is_renaming, path))):
        return join
    return _exploded(join, left, right, path, known, keeps_empty, others)


def _around(domain: Node, left: Node) -> Mapping[int, Node] | None:
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


def _has(rows: Node, source: Node) -> bool:
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


def _is_of_domain(node: Node, known: Mapping[int, Node]) -> bool:
    if node.kind != "EqualNullSafe" or not all(one.is_column for one in node.children):
        return False
    return any(one.id in known and known[one.id].id == other.id for one, other in _both_ways(node))


def _both_ways(node: Node) -> tuple[tuple[Node, Node], tuple[Node, Node]]:
    one, other = node.children
    return (one, other), (other, one)


def _is_renaming(node: Node) -> bool:
    """Whether rows of nothing but NULL stay so."""
    if node.kind != "Project":
        return False
    listed = node.fields["projectList"]
    return all(one.is_column or (one.kind == "Alias" and one.children[0].is_column) for one in listed)


def _exploded(
    join: Node,
    left: Node,
    generate: Node,
    path: list[Node],
    known: Mapping[int, Node],
    keeps_empty: bool,
    others: list[Node],
) -> Node:
    generator = substituted(generate.fields["generator"], known)
    made = tuple(one.id for one in generate.fields["generatorOutput"])
    found = replace(
        generate,
        fields={**generate.fields, "generator": generator, "outer": generate.fields["outer"] or keeps_empty},
        children=(left,),
        output=(*left.output, *made),
    )
    kept = [Node("AttributeReference", {"exprId": id, "name": ""}) for id in left.output]
    for node in reversed(path):
        if node.kind == "Filter":
            found = _filtered(node, found, substituted(node.fields["condition"], known))
        else:
            listed = [one for one in node.fields["projectList"] if one.id not in known]
            listed = [*kept, *(substituted(one, known) for one in listed)]
            found = replace(
                node,
                fields={**node.fields, "projectList": listed},
                children=(found,),
                output=tuple(one.id for one in listed),
            )
    for one in others:
        found = _filtered(join, found, substituted(one, known))
    return found


def _filtered(node: Node, below: Node, condition: Node) -> Node:
    return Node("Filter", {"condition": condition}, (below,), place=node.place, output=below.output)
