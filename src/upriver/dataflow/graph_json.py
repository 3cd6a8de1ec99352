"""Dataflow plans as JSON and back: what the driver sends to its workers, and the lake keeps of a view."""

import base64
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from upriver.dataflow.graph import DataflowPlan, Edge, ExchangeEdge, Input, LakeEdge, Node, RegionPlan, ViewStore
from upriver.dataflow.ops import (
    Aggregate,
    Filter,
    Join,
    JoinKind,
    Latest,
    Op,
    Order,
    Per,
    Project,
    Ranking,
    Scan,
    SetKind,
    SetOperation,
    StatefulMap,
    TopK,
    Union,
)
from upriver.dataflow.plan import AggregatePlan, Projection, schema_from_json, schema_to_json

Json = dict[str, Any]


def plan_to_json(plan: DataflowPlan) -> Json:
    """The inverse of :func:`plan_from_json`."""
    return {
        "name": plan.name,
        "sql": plan.sql,
        "key": list(plan.key),
        "schema": schema_to_json(plan.schema),
        "regions": [region_to_json(region) for region in plan.regions],
    }


def plan_from_json(json: Mapping[str, Any]) -> DataflowPlan:
    """The inverse of :func:`plan_to_json`."""
    regions = tuple(region_from_json(region) for region in json["regions"])
    return DataflowPlan(json["name"], json["sql"], tuple(json["key"]), schema_from_json(json["schema"]), regions)


def region_to_json(region: RegionPlan) -> Json:
    """The inverse of :func:`region_from_json`."""
    return {
        "name": region.name,
        "inputs": [
            {"edge": _edge_to_json(entry.edge), "schema": schema_to_json(entry.schema)} for entry in region.inputs
        ],
        "nodes": [
            {"op": op_to_json(node.op), "inputs": list(node.inputs), "schema": schema_to_json(node.schema)}
            for node in region.nodes
        ],
        "store": None if region.store is None else _store_to_json(region.store),
        "why": region.why,
    }


def region_from_json(json: Mapping[str, Any]) -> RegionPlan:
    """The inverse of :func:`region_to_json`."""
    return RegionPlan(
        name=json["name"],
        inputs=tuple(
            Input(_edge_from_json(entry["edge"]), schema_from_json(entry["schema"])) for entry in json["inputs"]
        ),
        nodes=tuple(
            Node(op_from_json(node["op"]), tuple(node["inputs"]), schema_from_json(node["schema"]))
            for node in json["nodes"]
        ),
        store=None if json["store"] is None else _store_from_json(json["store"]),
        why=json["why"],
    )


def op_to_json(op: Op) -> Json:
    """The inverse of :func:`op_from_json`. ``op`` says which kind it is."""
    return {"op": _KINDS[type(op)], **_fields(op)}


def op_from_json(json: Mapping[str, Any]) -> Op:
    """The inverse of :func:`op_to_json`."""
    return _READERS[json["op"]](json)


# Operators ------------------------------------------------------------------------------------------------------------

_KINDS: Mapping[type[Op], str] = MappingProxyType(
    {
        Scan: "scan",
        Filter: "filter",
        Project: "project",
        Aggregate: "aggregate",
        Join: "join",
        TopK: "top_k",
        Union: "union",
        SetOperation: "set_operation",
        Latest: "latest",
        StatefulMap: "stateful_map",
    }
)


def _fields(op: Op) -> Json:
    match op:
        case Scan(table):
            return {"table": table}
        case Filter(predicate):
            return {"predicate": predicate}
        case Project(projection):
            return {"projection": projection.to_json()}
        case Aggregate(plan):
            return {"plan": plan.to_json()}
        case Join():
            return {
                "kind": op.kind,
                "left_key": list(op.left_key),
                "right_key": list(op.right_key),
                "null_safe": list(op.null_safe),
                "condition": op.condition,
            }
        case TopK():
            return {
                "partition": list(op.partition),
                "order": [[order.column, order.descending, order.nulls_first] for order in op.order],
                "limit": op.limit,
                "ranking": op.ranking,
                "rank": op.rank,
            }
        case Union():
            return {}
        case SetOperation():
            return {"kind": op.kind, "all": op.all}
        case Latest():
            return {"key": list(op.key), "order_by": list(op.order_by), "deleted": op.deleted}
        case StatefulMap():
            return {
                "key": list(op.key),
                "function": base64.b64encode(op.function).decode("ascii"),
                "per": op.per,
                "state": schema_to_json(op.state),
                "output": schema_to_json(op.output),
            }


def _join(json: Mapping[str, Any]) -> Join:
    return Join(
        JoinKind(json["kind"]),
        tuple(json["left_key"]),
        tuple(json["right_key"]),
        tuple(json["null_safe"]),
        json["condition"],
    )


def _top_k(json: Mapping[str, Any]) -> TopK:
    order = tuple(Order(column, descending, nulls_first) for column, descending, nulls_first in json["order"])
    return TopK(tuple(json["partition"]), order, json["limit"], Ranking(json["ranking"]), json["rank"])


def _stateful_map(json: Mapping[str, Any]) -> StatefulMap:
    return StatefulMap(
        tuple(json["key"]),
        base64.b64decode(json["function"]),
        Per(json["per"]),
        schema_from_json(json["state"]),
        schema_from_json(json["output"]),
    )


_READERS: Mapping[str, Callable[[Mapping[str, Any]], Op]] = MappingProxyType(
    {
        "scan": lambda json: Scan(json["table"]),
        "filter": lambda json: Filter(json["predicate"]),
        "project": lambda json: Project(Projection.from_json(json["projection"])),
        "aggregate": lambda json: Aggregate(AggregatePlan.from_json(json["plan"])),
        "join": _join,
        "top_k": _top_k,
        "union": lambda json: Union(),
        "set_operation": lambda json: SetOperation(SetKind(json["kind"]), json["all"]),
        "latest": lambda json: Latest(tuple(json["key"]), tuple(json["order_by"]), json["deleted"]),
        "stateful_map": _stateful_map,
    }
)


# Edges and stores -----------------------------------------------------------------------------------------------------


def _edge_to_json(edge: Edge) -> Json:
    if isinstance(edge, LakeEdge):
        return {"table": edge.table, "index": list(edge.index)}
    return {"region": edge.region, "key": list(edge.key)}


def _edge_from_json(json: Mapping[str, Any]) -> Edge:
    if "table" in json:
        return LakeEdge(json["table"], tuple(json["index"]))
    return ExchangeEdge(json["region"], tuple(json["key"]))


def _store_to_json(store: ViewStore) -> Json:
    return {
        "key": list(store.key),
        "aggregate": None if store.aggregate is None else store.aggregate.to_json(),
        "having": store.having,
        "output": store.output.to_json(),
        "retracts": store.retracts,
    }


def _store_from_json(json: Mapping[str, Any]) -> ViewStore:
    aggregate = None if json["aggregate"] is None else AggregatePlan.from_json(json["aggregate"])
    output = Projection.from_json(json["output"])
    return ViewStore(tuple(json["key"]), aggregate, json["having"], output, json["retracts"])
