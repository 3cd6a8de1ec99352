"""Operators of rows: scans, projections, filters, sets, the first rows, and queries of WITH."""

import pyarrow as pa

from upriver.plan.plan import Order, Ranking, Scan, SetKind, SetOperationOp, TopKOp, ValuesOp
from upriver.plan.relation import Relation
from upriver.plan.schemas import rows_to_bytes
from upriver.sql.one_row import one_row
from upriver.sql.pushdown import filtered, tested
from upriver.sql.relations import Output, distinct, projected, renamed, union, with_equal_values, with_values
from upriver.sql.resolved.attachments import attached
from upriver.sql.resolved.expressions import Expressions
from upriver.sql.resolved.translation import Rule, Translation
from upriver.sql.resolved.tree import Node
from upriver.sql.scope import unique
from upriver.sql.windows import OrderKey


def _view(translation: Translation, node: Node) -> Relation:
    (below,) = node.children
    table = next(
        (spec for name, spec in translation.tables.items() if name.lower() == node.fields["desc"].lower()), None
    )
    if table is None:
        return translation.relation(below)
    scan = Relation(Scan(table.name), (), table.schema)
    return renamed(scan, [translation.name(one) for one in below.fields["output"]])


def _subqueryalias(translation: Translation, node: Node) -> Relation:
    return translation.relation(node.children[0])


def _pipeoperator(translation: Translation, node: Node) -> Relation:
    return translation.relation(node.children[0])


def _deduplicate(translation: Translation, node: Node) -> Relation:
    rows = translation.exact(translation.relation(node.children[0]), node.children[0].output)
    keys = tuple(translation.name(one) for one in node.fields["keys"])
    if set(keys) == set(rows.schema.names):
        return distinct(rows, node.place)
    return Relation(TopKOp(keys, (), 1, Ranking.ROW_NUMBER, None), (rows,), rows.schema, node.place)


def _onerowrelation(translation: Translation, node: Node) -> Relation:
    return one_row(unique("the row", translation.taken))


def _localrelation(translation: Translation, node: Node) -> Relation:
    schema = pa.schema([pa.field(translation.name(one), one.type) for one in node.fields["output"]])
    columns = [pa.array([row[place] for row in node.fields["data"]], field.type) for place, field in enumerate(schema)]
    return Relation(ValuesOp(rows_to_bytes(pa.RecordBatch.from_arrays(columns, schema=schema))), (), schema)


def _withcte(translation: Translation, node: Node) -> Relation:
    for one in node.fields["cteDefs"]:
        translation.queries[one.fields["id"]] = translation.relation(one.children[0]), one.children[0].output
    return translation.relation(node.fields["plan"])


def _cterelationref(translation: Translation, node: Node) -> Relation:
    known, ids = translation.queries[node.fields["cteId"]]
    pairs = zip(node.fields["output"], ids, strict=True)
    return projected(
        known,
        [Output(translation.name(one), translation.column(known, translation.name_of(id))) for one, id in pairs],
        None,
    )


def _project(translation: Translation, node: Node) -> Relation:
    below = attached(translation, translation.relation(node.children[0]), node.fields["projectList"])
    over = translation.over(below)
    return projected(below, translation.outputs(node.fields["projectList"], over), node.place)


def _filter(translation: Translation, node: Node) -> Relation:
    below = attached(translation, translation.relation(node.children[0]), [node.fields["condition"]])
    for one in translation.over(below).condition(node.fields["condition"]):
        below = tested(below, one, node.place) if below.can_fail or one.fails else below
        below = filtered(below, one, node.place)
    return below


def _sort(translation: Translation, node: Node) -> Relation:
    return translation.relation(node.children[0])


def _globallimit(translation: Translation, node: Node) -> Relation:
    below = node.children[0].children[0]
    listed: list[Node] | None = None
    if below.kind == "Project" and below.children[0].kind == "Sort":
        listed, below = below.fields["projectList"], below.children[0]
    order = below.fields["order"] if below.kind == "Sort" else []
    rows = translation.relation(below)
    over = translation.over(rows)
    rows, names = with_values(rows, [Output("sorted by", over.of(one.children[0])) for one in order], translation.taken)
    keys = tuple(dict.fromkeys(_order(translation, one, name) for one, name in zip(order, names, strict=True)))
    count = translation.over(rows).of(node.fields["limitExpr"]).constant
    found = Relation(TopKOp((), keys, count, Ranking.ROW_NUMBER, None), (rows,), rows.schema, node.place)
    if listed is not None:
        return projected(found, translation.outputs(listed, translation.over(found)), node.place)
    return translation.exact(found, below.output)


def _distinct(translation: Translation, node: Node) -> Relation:
    return distinct(translation.exact(translation.relation(node.children[0]), node.children[0].output), node.place)


def _union(translation: Translation, node: Node) -> Relation:
    parts = [translation.exact(translation.relation(one), one.output) for one in node.children]
    return union(parts, node.place)


def _except(translation: Translation, node: Node) -> Relation:
    return _set_operation(translation, node, SetKind.EXCEPT)


def _intersect(translation: Translation, node: Node) -> Relation:
    return _set_operation(translation, node, SetKind.INTERSECT)


def _set_operation(translation: Translation, node: Node, kind: SetKind) -> Relation:
    parts = [with_equal_values(translation.exact(translation.relation(one), one.output)) for one in node.children]
    parts[1] = renamed(parts[1], parts[0].schema.names)
    return Relation(SetOperationOp(kind, node.fields["isAll"]), tuple(parts), parts[0].schema, node.place)


def order_key(translation: Translation, node: Node, over: Expressions) -> OrderKey:
    order = _order(translation, node, "")
    return OrderKey(over.of(node.children[0]), "sorted by", order.descending, order.nulls_first)


def _order(translation: Translation, node: Node, name: str) -> Order:
    return Order(name, node.fields["direction"] == "Descending", node.fields["nullOrdering"] == "NullsFirst")


RULES: dict[str, Rule] = {
    "View": _view,
    "SubqueryAlias": _subqueryalias,
    "PipeOperator": _pipeoperator,
    "Deduplicate": _deduplicate,
    "OneRowRelation": _onerowrelation,
    "LocalRelation": _localrelation,
    "WithCTE": _withcte,
    "CTERelationRef": _cterelationref,
    "Project": _project,
    "Filter": _filter,
    "Sort": _sort,
    "GlobalLimit": _globallimit,
    "Distinct": _distinct,
    "Union": _union,
    "Except": _except,
    "Intersect": _intersect,
}
