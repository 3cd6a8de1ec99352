"""Which place in the lake has the checkpoints of a flow: it follows from the flow's plans, without any name.

So a view that is renamed, or an app that is started again with one more view, finds the state that there is. Flows with
equal plans have places of one digest with different numbers.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, count
from types import MappingProxyType

import xxhash

from upriver.lake.checkpoints import newest, places
from upriver.lake.lake import Lake
from upriver.plan.plan import DataflowPlan, ExchangeEdge, Input, Node, StatefulMapOp
from upriver.plan.provenance import lake_edges
from upriver.plan.used_columns import with_used_columns
from upriver.protocol.plans import plan_to_json
from upriver.state.checkpoint import CheckpointPlace

STATE_FORMAT = 1
"""Format of the regions' state. State in another format is not restored; views are computed anew from the tables."""


@dataclass(frozen=True, slots=True)
class FlowState:
    """What the state of a flow depends on, except rows.

    digest: of the plans of its views. views: their names, in the order in which records number them. regions: those of
    the full views, each with the digest of its view's plan.
    """

    digest: str
    views: tuple[str, ...]
    regions: Mapping[str, str]


def state_of(plans: Sequence[DataflowPlan], sets_aside: Collection[str] = ()) -> FlowState | None:
    """The state of a flow with these views; ``None`` if all are partial, so that no checkpoint has state of them.
    sets_aside: the tables whose bad rows are left out."""
    full = [plan for plan in plans if plan.full_because is not None]
    if not full:
        return None
    digests: dict[str, str] = {}
    for plan in plans:
        digests[plan.name] = plan_digest(plan, sets_aside, digests)
    regions = {region.name: digests[plan.name] for plan in full for region in plan.spread}
    views = sorted(digests, key=lambda view: digests[view])  # in whatever order they are declared
    return FlowState(_digest([digests[view] for view in views]), tuple(views), regions)


def plan_digest(
    plan: DataflowPlan, sets_aside: Collection[str] = (), feeding: Mapping[str, str] = MappingProxyType({})
) -> str:
    """A digest of everything but rows that the state of a view's regions depends on: of its plan, with the types of the
    columns that it uses, without its name, its SQL and what ``explain`` says; of which of its tables' bad rows are left
    out; and of the plans that feed it. feeding: their digests, by name."""
    aside = sorted({edge.table for edge in lake_edges(plan)}.intersection(sets_aside))
    return _digest(
        [STATE_FORMAT, plan_to_json(_without_names(with_used_columns(plan), feeding)), *([aside] if aside else ())]
    )


def _digest(form: object) -> str:
    return xxhash.xxh3_128_hexdigest(json.dumps(form, sort_keys=True).encode())


def _without_names(plan: DataflowPlan, feeding: Mapping[str, str]) -> DataflowPlan:
    def nameless(entry: Input) -> Input:
        edge = entry.edge
        if not isinstance(edge, ExchangeEdge):
            return entry
        region = feeding[edge.region] if edge.region in plan.fed_by else edge.region.removeprefix(plan.name)
        return replace(entry, edge=replace(edge, region=region))

    def nameless_map(node: Node) -> Node:
        op = node.op
        if not isinstance(op, StatefulMapOp):
            return node
        sources = op.sources if op.tells_source else tuple(replace(source, name="") for source in op.sources)
        return replace(node, op=replace(op, name="", sources=sources))

    regions = tuple(
        replace(
            region,
            name=region.name.removeprefix(plan.name),
            inputs=tuple(map(nameless, region.inputs)),
            nodes=tuple(map(nameless_map, region.nodes)),
            why="",
        )
        for region in plan.regions
    )
    full_because = None if plan.full_because is None else ""
    return replace(plan, name="", sql="", full_because=full_because, regions=regions, feeds=(), mark="")


def find_place(lake: Lake, state: FlowState, taken: Collection[str]) -> CheckpointPlace:
    """The place of a flow, among those that no other flow has taken: the first with a checkpoint that a worker can
    begin with, else the first. Raises CorruptFile."""
    there = {name for name in places(lake) if name.partition("-")[0] == state.digest}
    names = chain([state.digest], (f"{state.digest}-{number}" for number in count(2)))
    free: list[CheckpointPlace] = []
    for name in names:
        if name not in taken:
            free.append(CheckpointPlace(name, state.views))
            if newest(lake, free[-1]) is not None:
                return free[-1]
        there.discard(name)
        if free and not there:
            return free[0]
    raise AssertionError("there is no end of names")
