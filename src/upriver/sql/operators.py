"""Operators of rows: scans, projections, filters, sets of rows, the first rows, and queries of WITH."""

from collections import Counter
from collections.abc import Callable, Sequence

import pyarrow as pa

from upriver.plan.plan import JoinKind, Order, Ranking, SetKind, SetOperationOp, TopKOp, UnionOp
from upriver.plan.relation import Relation
from upriver.plan.source import ELSEWHERE
from upriver.plan.types import is_null, is_ordered, spark_name
from upriver.sql.attachments import attached
from upriver.sql.conditions import conditions, restricted
from upriver.sql.expressions import Expressions
from upriver.sql.functions.scalars import null, typed_name
from upriver.sql.joins import joined
from upriver.sql.relations import Output, computed, distinct, projected, renamed, union, with_equal_values, with_values
from upriver.sql.translation import Rule, Translation
from upriver.sql.tree import TreeNode, conjuncts
from upriver.sql.window_functions import OrderKey, orders


def _scanned(translation: Translation, node: TreeNode) -> Relation:
    """A declared table; or a view, declared or the user's, whose query is part of this one."""
    (below,) = node.children
    rows = None
    if below.kind == "LogicalRDD":  # an empty table in the place of its leaf
        rows = translation.declared(node.fields["desc"].lower(), node.place, below.fields["output"])
    return translation.relation(below) if rows is None else rows


def _same(translation: Translation, node: TreeNode) -> Relation:
    """An operator that changes no row: an alias, an order that no LIMIT follows, a hint."""
    check_ignored(translation, node)
    return translation.relation(node.children[0])


def check_ignored(translation: Translation, node: TreeNode) -> None:
    """Keep in mind that an operator changes no row, for ``explain``. Raises UnsupportedSql for an order by a subquery,
    which may fail."""
    if node.kind in _IGNORED and node.place is not None:
        translation.ignored.append((node.place, *_IGNORED[node.kind]))
    for one in (part for key in node.fields.get("order", ()) for part in key.walk()):
        if one.kind == "ScalarSubquery":
            what = "a subquery in ORDER BY without LIMIT"
            raise translation.source.unsupported(one.place, what, "Leave it out: a view has no order.")


_NO_ORDER = "a view has no order, sort what you read from it"
_FOR_THE_PLANNER = "it is for Spark's planner"
_IGNORED = {
    "Sort": ("ORDER BY", _NO_ORDER),
    "RepartitionByExpression": ("DISTRIBUTE BY", _NO_ORDER),
    "ResolvedHint": ("the hint", _FOR_THE_PLANNER),
    "Repartition": ("the hint", _FOR_THE_PLANNER),
    "RebalancePartitions": ("the hint", _FOR_THE_PLANNER),
}
"""Operators that change no row: what they are in SQL, and why they are ignored."""


def _projected(translation: Translation, node: TreeNode) -> Relation:
    listed = node.fields["projectList"]
    below = attached(translation, translation.relation(node.children[0]), listed)
    if not listed:
        return below  # what no operator names is left out later, and until then spreads the rows over slots
    return projection(translation, below, listed, node.place)


def projection(translation: Translation, below: Relation, listed: Sequence[TreeNode], place: int | None) -> Relation:
    """The columns that a projection lists. What is attached to the rows is there already."""
    return computed(below, translation.outputs(listed, translation.over(below)), translation.uses(listed), place)


def _filtered(translation: Translation, node: TreeNode) -> Relation:
    rows, condition = translation.relation(node.children[0]), node.fields["condition"]
    plain = [one for one in conjuncts(condition) if _existing(one) is None]
    rows = attached(translation, rows, plain)
    rows = restricted(rows, conditions(translation, plain, rows), condition.place)
    for one in conjuncts(condition):
        found = _existing(one)
        if found is not None:
            kind = JoinKind.SEMI if one.kind == "IsNotNull" else JoinKind.ANTI
            rows = joined(translation, kind, rows, translation.relation(found), [], one.place)
    return rows


def _existing(node: TreeNode) -> TreeNode | None:
    """The rows of an EXISTS that names nothing around: Catalyst makes it the test whether the first one has a value."""
    value = node.children[0] if node.kind in ("IsNotNull", "IsNull") else None
    plan = value.fields["plan"] if value is not None and value.kind == "ScalarSubquery" else None
    if plan is None or plan.kind != "GlobalLimit" or plan.fields["limitExpr"].fields.get("value") != 1:
        return None
    (local,) = plan.children
    (rows,) = local.children
    listed = rows.fields["projectList"] if rows.kind == "Project" else []
    is_constant = bool(listed) and all(one.kind == "Alias" and one.children[0].kind == "Literal" for one in listed)
    return rows if is_constant else None


# The first rows


def _first(translation: Translation, node: TreeNode) -> Relation:
    """LIMIT and OFFSET, behind an order if there is one."""
    limit, offset, below = None, 0, node
    if below.kind == "GlobalLimit":
        limit = _count(translation, below, "limitExpr")
        (below,) = below.children
    if below.kind == "LocalLimit":
        (below,) = below.children
    if below.kind == "Offset":
        offset = _count(translation, below, "offsetExpr")
        (below,) = below.children
    above: list[TreeNode] = []
    path = below
    while path.kind in _IN_ORDER and path.kind != "Sort":
        above.append(path)
        (path,) = path.children
    if path.kind != "Sort":
        rows = translation.exact(translation.relation(below), below.output)
        return _cut(rows, (), limit, offset, node.place)
    if not path.fields["global"]:
        raise translation.source.unsupported(path.place, "SORT BY before LIMIT or OFFSET", "Write ORDER BY.")
    rows, names = _sorted(translation, path, above)
    order = orders(names, [order_key(translation, one, None) for one in path.fields["order"]])
    return translation.exact(_cut(rows, order, limit, offset, path.place), below.output)


_IN_ORDER = frozenset({"Project", "Filter", "View", "SubqueryAlias", "ResolvedHint", "Sort"})
"""Operators whose rows are in the order of those beneath."""


def _count(translation: Translation, node: TreeNode, field: str) -> int:
    value = translation.over().of(node.fields[field]).constant
    if not isinstance(value, int):
        raise translation.source.unsupported(
            node.place, "LIMIT or OFFSET by anything but a number", "Write the number."
        )
    return value


def _sorted(translation: Translation, sort: TreeNode, above: Sequence[TreeNode]) -> tuple[Relation, list[str]]:
    """The rows of the operators above a sort, with the values by which they are sorted, and the names of these."""
    order = sort.fields["order"]
    rows = attached(translation, translation.relation(sort.children[0]), order)
    over = translation.over(rows)
    values = [sortable(translation, one.children[0], over, one.place) for one in order]
    rows, names = with_values(rows, values, translation.taken)
    for node in reversed(above):
        if node.kind == "Project":
            listed = node.fields["projectList"]
            rows = attached(translation, rows, listed)
            outputs = translation.outputs(listed, translation.over(rows))
            known = {one.name for one in outputs}
            outputs += [Output(name, translation.column(rows, name)) for name in names if name not in known]
            rows = computed(rows, outputs, translation.uses(listed) + Counter(names), node.place)
        elif node.kind == "Filter":
            rows = attached(translation, rows, [node.fields["condition"]])
            rows = restricted(rows, conditions(translation, [node.fields["condition"]], rows), node.place)
    return rows, names


def _cut(rows: Relation, order: tuple[Order, ...], limit: int | None, offset: int, place: int | None) -> Relation:
    """Some of the rows. Those behind an OFFSET are all but the first ones."""
    found = rows if limit is None else _least(rows, order, offset + limit, place)
    if not offset:
        return found
    inputs = with_equal_values(found), with_equal_values(_least(rows, order, offset, place))
    return Relation(SetOperationOp(SetKind.EXCEPT, all=True), inputs, inputs[0].schema, place)


def _least(rows: Relation, order: tuple[Order, ...], count: int, place: int | None) -> Relation:
    return Relation(TopKOp((), order, count, Ranking.ROW_NUMBER, None), (rows,), rows.schema, place)


def sortable(translation: Translation, node: TreeNode, over: Expressions, around: int | None) -> Output:
    """A value to sort, or to partition, by. around: the place of the clause; that of a column is any of its uses.
    Raises UnsupportedSql for one of a type without an order."""
    value = over.of(node)
    if is_null(value.type):
        value = null(pa.int32())
    if not is_ordered(value.type):
        place = around if node.is_column else node.place
        raise translation.source.unsupported(place, f"sorting by {typed_name(value)}", ELSEWHERE)
    return Output(translation.worded(node), value)


def order_key(translation: Translation, node: TreeNode, over: Expressions | None) -> OrderKey:
    """One item of ORDER BY. over: the rows; ``None`` if only the direction is asked for."""
    nulls_first, descending = node.fields["nullOrdering"] == "NullsFirst", node.fields["direction"] == "Descending"
    if over is None:
        return OrderKey(null(node.children[0].type), "", descending, nulls_first)
    key = sortable(translation, node.children[0], over, node.place)
    return OrderKey(key.value, key.name, descending, nulls_first)


# Sets of rows


def _distinct(translation: Translation, node: TreeNode) -> Relation:
    (below,) = node.children
    rows = translation.exact(translation.relation(below), below.output)
    return distinct(_comparable(translation, node, rows), node.place)


def _without_duplicates(translation: Translation, node: TreeNode) -> Relation:
    """One row for each combination of some columns; of all, each row once."""
    (below,) = node.children
    rows = with_equal_values(translation.exact(translation.relation(below), below.output))
    keys = tuple(translation.name(one) for one in node.fields["keys"])
    if set(keys) == set(rows.schema.names):
        return distinct(_comparable(translation, node, rows), node.place)
    return Relation(TopKOp(keys, (), 1, Ranking.ROW_NUMBER, None), (rows,), rows.schema, node.place)


def _union(translation: Translation, node: TreeNode) -> Relation:
    parts: list[Relation] = []
    for one in node.children:
        rows = translation.exact(translation.relation(one), one.output)
        parts += rows.inputs if isinstance(rows.op, UnionOp) else [rows]
    names = [translation.name_of(id) for id in node.output]
    return renamed(union(parts, node.place), names)


def _set_operation(kind: SetKind) -> Rule:
    def rule(translation: Translation, node: TreeNode) -> Relation:
        is_all = bool(node.fields["isAll"])
        if is_all:
            _check_titles(translation, node)
        parts = [translation.exact(translation.relation(one), one.output) for one in node.children]
        parts = [with_equal_values(_comparable(translation, node, part)) for part in parts]
        parts[1] = renamed(parts[1], parts[0].schema.names)
        return Relation(SetOperationOp(kind, is_all), tuple(parts), parts[0].schema, node.place)

    return rule


def _check_titles(translation: Translation, node: TreeNode) -> None:
    """Refuse EXCEPT ALL and INTERSECT ALL of a column that is selected twice, on which Spark fails."""
    if any(len(set(one.output)) < len(one.output) for one in node.children):
        what = "a name of two columns in EXCEPT ALL or INTERSECT ALL"
        raise translation.source.unsupported(node.place, what, "Give one another name: SELECT a, a AS b.")


def _comparable(translation: Translation, node: TreeNode, rows: Relation) -> Relation:
    """The rows, if they can be compared with each other. Raises UnsupportedSql."""
    for field in rows.schema:
        if not is_ordered(field.type):
            what = f"comparing {spark_name(field.type)}, the column {field.name!r},"
            raise translation.source.unsupported(node.place, what, "Leave the column out.")
    return rows


# Queries of WITH


def _with_queries(translation: Translation, node: TreeNode) -> Relation:
    for one in node.fields["cteDefs"]:
        (below,) = one.children
        translation.queries[one.fields["id"]] = translation.relation(below), below.output
    return translation.relation(node.fields["plan"])


def _query(translation: Translation, node: TreeNode) -> Relation:
    """The rows of a query of WITH, with names of their own at each use."""
    known, ids = translation.queries[node.fields["cteId"]]
    pairs = zip(node.fields["output"], ids, strict=True)
    outputs = [Output(translation.name(one), translation.column(known, translation.name_of(id))) for one, id in pairs]
    return projected(known, outputs, None)


def _recursive(translation: Translation, node: TreeNode) -> Relation:
    raise translation.source.unsupported(node.place, "WITH RECURSIVE", "Join a table with itself, once for each level.")


RULES: dict[str, Callable[[Translation, TreeNode], Relation]] = {
    "View": _scanned,
    "SubqueryAlias": _same,
    "PipeOperator": _same,
    "ResolvedHint": _same,
    "Sort": _same,
    "Repartition": _same,
    "RepartitionByExpression": _same,
    "RebalancePartitions": _same,
    "Project": _projected,
    "Filter": _filtered,
    "GlobalLimit": _first,
    "LocalLimit": _first,
    "Offset": _first,
    "Distinct": _distinct,
    "Deduplicate": _without_duplicates,
    "Union": _union,
    "Except": _set_operation(SetKind.EXCEPT),
    "Intersect": _set_operation(SetKind.INTERSECT),
    "WithCTE": _with_queries,
    "CTERelationRef": _query,
    "UnionLoop": _recursive,
    "UnionLoopRef": _recursive,
}
