"""Builds the operators of a region from its plan: one builder for each kind."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import pyarrow as pa

from upriver.engine.function_calls import LOCAL, FunctionCaller
from upriver.engine.operators.aggregate import Grouped
from upriver.engine.operators.clock_tests import ClockTests
from upriver.engine.operators.join import Join
from upriver.engine.operators.latest import Latest
from upriver.engine.operators.operator import ExpressionEvaluator, Operator, Stateful
from upriver.engine.operators.set_operation import SetOperation
from upriver.engine.operators.stateful_map import StatefulMap
from upriver.engine.operators.stateless import Explode, Filtering, Projecting, Replicate, Salt, Union
from upriver.engine.operators.topk import TopK
from upriver.engine.operators.window import Windowed
from upriver.errors import ProtocolError
from upriver.plan import plan as ops
from upriver.plan.clock import ClockOp
from upriver.plan.plan import Node, RegionPlan
from upriver.plan.provenance import one_by_one, table_rows
from upriver.plan.routing import Key, Routing, found_in, of_join, routings, through


@dataclass(frozen=True, slots=True)
class Place:
    """A node's surroundings. sources: the schemas of its inputs. routings: the columns of the routing key in each."""

    node: Node
    sources: Sequence[pa.Schema]
    routings: Sequence[Routing]
    evaluator: ExpressionEvaluator
    caller: FunctionCaller

    @property
    def source(self) -> pa.Schema:
        """The schema of the first input."""
        return self.sources[0]

    def routing(self, columns: Sequence[str]) -> Key:
        """The routing key as columns of the first input, out of these. Raises ProtocolError if it is not there."""
        found = found_in(self.routings[0], columns)
        if found is None:
            raise ProtocolError(f"{self.node.op} keeps rows by {columns}, of which the routing key is no part")
        return found


@dataclass(frozen=True, slots=True)
class Operators:
    """The operators of one region. all: one for each node, in order. stateful: those that keep something."""

    all: tuple[Operator, ...]
    stateful: tuple[Stateful, ...]


def operators_of(plan: RegionPlan, evaluator: ExpressionEvaluator, caller: FunctionCaller = LOCAL) -> Operators:
    """Operators that have not seen any row. caller: how the functions of stateful maps are called. Raises ProtocolError
    for a plan that contradicts itself."""
    schemas = [*(entry.schema for entry in plan.inputs), *(node.schema for node in plan.nodes)]
    found = routings(plan)
    tried = {number for rows in table_rows(plan) for number in one_by_one(plan, rows.number)}
    stateless = stateless_of(plan, tried, evaluator.without_row_text())
    built: list[Operator] = []
    stateful: list[Stateful] = []
    for number, node in enumerate(plan.nodes, start=len(plan.inputs)):
        sources = [schemas[source] for source in node.inputs]
        routing = [found[source] for source in node.inputs]
        place = Place(node, sources, routing, evaluator, caller)
        if number in stateless:
            built.append(stateless[number])
        elif type(node.op) in STATELESS:
            built.append(STATELESS[type(node.op)](node, evaluator))
        else:
            stateful.append(STATEFUL[type(node.op)](node.op, place))
            built.append(stateful[-1])
    return Operators(tuple(built), tuple(stateful))


def stateless_of(plan: RegionPlan, numbers: Iterable[int], evaluator: ExpressionEvaluator) -> dict[int, Operator]:
    """The operators of these nodes, all of them stateless, by number."""
    nodes = {number: plan.nodes[number - len(plan.inputs)] for number in numbers}
    return {number: STATELESS[type(node.op)](node, evaluator) for number, node in nodes.items()}


def _join(op: ops.JoinOp, place: Place) -> Stateful:
    keys = of_join(op, *place.routings)
    if keys is None:
        raise ProtocolError(f"{op} compares nothing that is the routing key of both sides")
    left, right = place.sources
    return Join(op, left, right, *keys, place.evaluator)


def _stateful_map(op: ops.StatefulMapOp, place: Place) -> Stateful:
    routing = found_in(through(op, place.routings), op.key)
    if routing is None:
        raise ProtocolError(f"a stateful map keeps states by {op.key}, of which the routing key is no part")
    return StatefulMap(op, place.sources, routing, make_call=place.caller.map_call)


STATELESS: Mapping[type, Callable[[Any, ExpressionEvaluator], Operator]] = MappingProxyType(
    {
        ops.FilterOp: lambda node, evaluator: Filtering(node.op.predicate, evaluator),
        ops.ProjectOp: lambda node, evaluator: Projecting(node.op.projection, evaluator),
        ops.UnionOp: lambda node, _: Union(node.schema),
        ops.SaltOp: lambda node, _: Salt(node.op, node.schema),
        ops.ReplicateOp: lambda node, _: Replicate(node.op, node.schema),
        ops.ExplodeOp: lambda node, evaluator: Explode(node.op, node.schema, evaluator),
    }
)
"""Builders, by the node's record."""
STATEFUL: Mapping[type, Callable[[Any, Place], Stateful]] = MappingProxyType(
    {
        ops.AggregateOp: lambda op, place: Grouped(op.plan, place.source, place.routing(op.plan.group)),
        ops.JoinOp: _join,
        ops.TopKOp: lambda op, place: TopK(op, place.source, place.routing(op.partition)),
        ops.WindowOp: lambda op, place: Windowed(op, place.source, place.routing(op.partition)),
        ClockOp: lambda op, place: ClockTests(op, place.source, place.node.schema),
        ops.SetOperationOp: lambda op, place: SetOperation(op, place.source, place.routing(place.source.names)),
        ops.LatestOp: lambda op, place: Latest(op, place.source, place.routing(op.key), place.evaluator),
        ops.StatefulMapOp: _stateful_map,
    }
)
"""Builders, by the operator's record."""
