"""What a dataflow does, in words a user can check: regions, routing keys, edges, indexes, partial or full and why."""

from collections.abc import Mapping
from itertools import chain
from typing import Any

from upriver.dataflow.explain import FULL_REASON
from upriver.dataflow.graph import DataflowPlan, Input, LakeEdge, Node, RegionPlan, ViewStore
from upriver.dataflow.operators.project import plain_columns
from upriver.dataflow.ops import (
    Aggregate,
    Filter,
    Join,
    Latest,
    Project,
    Ranking,
    Scan,
    SetOperation,
    StatefulMap,
    TopK,
    Union,
)
from upriver.dataflow.plan import AggregateCall, AggregatePlan, Projection, TableSpec
from upriver.dataflow.planning_words import listed

Explained = dict[str, Any]


def explain(plan: DataflowPlan, tables: Mapping[str, TableSpec]) -> Explained:
    """The plan as a plain dict; :func:`render` turns it into text. tables: those that it reads.

    indexes: all that the view reads, and whether each is ``new``: made for views, beside the table's own key. In each
    region the numbers of its inputs, then of its steps, count from 0; ``of`` says what a step works on.
    """
    edges = [entry.edge for region in plan.regions for entry in region.inputs if isinstance(entry.edge, LakeEdge)]
    return {
        "view": plan.name,
        "sql": plan.sql,
        "key": list(plan.key),
        "regions": [_region(plan, region) for region in plan.regions],
        "indexes": [
            {"table": edge.table, "columns": list(edge.index), "new": edge.index != tables[edge.table].key}
            for edge in dict.fromkeys(edges)
        ],
    }


def render(explained: Mapping[str, Any]) -> str:
    """The text of an explanation."""
    lines = [f"view {explained['view']}, looked up by {listed(explained['key'])}"]
    for region in explained["regions"]:
        lines += _rendered(region)
    for index in explained["indexes"]:
        origin = "made for views by Spark, at ingest" if index["new"] else "its own key"
        lines.append(f"  index {listed(index['columns'])} of {index['table']}: {origin}")
    return "\n".join(lines)


def _rendered(region: Mapping[str, Any]) -> list[str]:
    keyed = f"keyed by {listed(region['routing_key'])}" if region["routing_key"] else "not keyed"
    lines = [f"  region {region['region']}, {keyed}, stage {region['depth']}", f"    why: {region['why']}"]
    lines += [f"    {number}: {edge}" for number, edge in enumerate(region["inputs"])]
    for number, step in enumerate(region["steps"], start=len(region["inputs"])):
        lines.append(f"    {number}, from {' and '.join(map(str, step['of']))}: {step['does']}")
    if region["keeps"] is not None:
        lines.append(f"    keeps {region['keeps']}")
    for send in region["sends"]:
        by = f"by {listed(send['key'])}" if send["key"] else "to one place"
        lines.append(f"    rows go to region {send['to']} {by}")
    return [*lines, f"    state: {region['state']} ({region['why_state']})"]


def _region(plan: DataflowPlan, region: RegionPlan) -> Explained:
    stateless = region.store is None and all(isinstance(node.op, Filter | Project | Union) for node in region.nodes)
    return {
        "region": region.name,
        "depth": plan.depths[region.name],
        "routing_key": list(_routing_key(plan, region)),
        "why": region.why,
        "inputs": [_edge(entry) for entry in region.inputs],
        "steps": [{"does": _step(node), "of": list(node.inputs)} for node in region.nodes],
        "keeps": None if region.store is None else _kept(region.store),
        "sends": [{"to": send.to, "key": list(send.key)} for send in plan.sends(region.name)],
        "state": "none" if stateless else "full",
        "why_state": "rows pass through" if stateless else FULL_REASON,
    }


def _routing_key(plan: DataflowPlan, region: RegionPlan) -> tuple[str, ...]:
    """As the user knows it where he does: of the view, or of a table."""
    if region.store is not None:
        return plan.key
    edges = [entry.edge for entry in region.inputs]
    return next((edge for edge in edges if isinstance(edge, LakeEdge)), edges[0]).key


def _edge(entry: Input) -> str:
    edge = entry.edge
    if isinstance(edge, LakeEdge):
        return f"lake edge {edge.channel}: rows of {edge.table} in hash64 order of {listed(edge.index)}"
    by = f"by {listed(edge.key)}" if edge.key else "in one place"
    return f"exchange edge: rows {listed(entry.schema.names)} of region {edge.region} {by}"


def _kept(store: ViewStore) -> str:
    kept = "the rows" if store.aggregate is None else _aggregate(store.aggregate)
    having = "" if store.having is None else f"; read where {store.having}"
    columns = ", ".join(f"{field.name} {field.type}" for field in store.output.schema)
    return f"{kept}{having}; gives {columns}"


# Steps ----------------------------------------------------------------------------------------------------------------


def _step(node: Node) -> str:
    match node.op:
        case Filter(predicate):
            return f"filter {predicate}"
        case Project(projection):
            return _project(projection)
        case Aggregate(plan):
            return _aggregate(plan)
        case Join():
            return _join(node.op)
        case TopK():
            return _top(node.op)
        case Union():
            return "union"
        case SetOperation():
            return f"{node.op.kind}{' all' if node.op.all else ''}"
        case Latest():
            order = f" by {listed(node.op.order_by)}" if node.op.order_by else ""
            gone = "" if node.op.deleted is None else f", none if {node.op.deleted}"
            return f"latest row{order} of each {listed(node.op.key)}{gone}"
        case StatefulMap():
            return f"stateful map per {node.op.per} for each {listed(node.op.key)}"
        case Scan(table):
            raise AssertionError(f"{table} is read at an edge")


def _project(projection: Projection) -> str:
    plain = plain_columns(projection)
    texts = []
    for name, expression in zip(projection.schema.names, projection.expressions, strict=True):
        texts.append(name if plain.get(name) == name else f"{name} = {plain.get(name, expression)}")
    return f"columns {listed(texts)}"


def _aggregate(plan: AggregatePlan) -> str:
    return f"group by {listed(plan.group)}: {', '.join(map(_call, plan.calls)) or 'distinct values only'}"


def _call(call: AggregateCall) -> str:
    argument = "*" if call.argument is None else f"{'DISTINCT ' if call.distinct else ''}{call.argument}"
    where = "" if call.where is None else f" FILTER (WHERE {call.where})"
    return f"{call.function.removesuffix('_star')}({argument}){where}"


def _join(op: Join) -> str:
    pairs = zip(op.left_key, op.right_key, op.null_safe, strict=True)
    equal = [f"{left} {'<=>' if null_safe else '='} {right}" for left, right, null_safe in pairs]
    return f"{op.kind} join on {' and '.join(chain(equal, [] if op.condition is None else [op.condition]))}"


def _top(op: TopK) -> str:
    order = ", ".join(f"{order.column}{' desc' if order.descending else ''}" for order in op.order)
    ranking = "" if op.ranking is Ranking.ROW_NUMBER else f" ({op.ranking})"
    return f"first {op.limit}{ranking} by {order} of each {listed(op.partition)}"
