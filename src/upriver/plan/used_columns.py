"""The columns of a view's plan that its state depends on: those of its tables that no operator uses are left out."""

from dataclasses import replace

import pyarrow as pa

from upriver.plan.column_names import columns_in
from upriver.plan.plan import (
    DataflowPlan,
    FilterOp,
    Input,
    LakeEdge,
    Node,
    Op,
    ProjectOp,
    RegionPlan,
    StatefulMapOp,
    UnionOp,
)


def with_used_columns(plan: DataflowPlan) -> DataflowPlan:
    """The plan without the unused columns of its tables: another such column does not change it. The functions of
    stateful maps are told by their definitions, and not by their bytes. For comparison only."""
    return replace(plan, regions=tuple(_with_used_columns(region) for region in plan.regions))


def _with_used_columns(region: RegionPlan) -> RegionPlan:
    schemas = [*(entry.schema for entry in region.inputs), *(node.schema for node in region.nodes)]
    used: list[set[str]] = [set() for _ in schemas]
    for number in (region.last, region.sent):
        used[number] = set(schemas[number].names)  # stored, or sent to another region
    for place in reversed(range(len(region.inputs), len(schemas))):
        node = region.nodes[place - len(region.inputs)]
        for number in node.inputs:
            used[number] |= used_by(node.op, used[place], schemas[number])
    inputs = tuple(_input(entry, used[place]) for place, entry in enumerate(region.inputs))
    nodes = tuple(_node(node, used[len(inputs) + place]) for place, node in enumerate(region.nodes))
    return replace(region, inputs=inputs, nodes=nodes)


def used_by(op: Op, output: set[str], schema: pa.Schema) -> set[str]:
    """The columns of an input, of that schema, that an operator uses or passes on. output: those that are used of its
    own rows."""
    match op:
        case FilterOp(predicate):
            return output | columns_in(predicate)
        case ProjectOp(projection):
            return {column for expression in projection.expressions for column in columns_in(expression)}
        case UnionOp():
            return output
        case _:
            return set(schema.names)


def _input(entry: Input, used: set[str]) -> Input:
    return replace(entry, schema=_part(entry.schema, used)) if isinstance(entry.edge, LakeEdge) else entry


def _node(node: Node, used: set[str]) -> Node:
    if isinstance(node.op, StatefulMapOp) and node.op.definition:
        return replace(node, op=replace(node.op, function=b""))
    return replace(node, schema=_part(node.schema, used)) if isinstance(node.op, FilterOp | UnionOp) else node


def _part(schema: pa.Schema, names: set[str]) -> pa.Schema:
    return pa.schema([field for field in schema if field.name in names])
