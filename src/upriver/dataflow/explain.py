"""What a plan does, in words a user can check: regions, keys, edges, partial or full and why."""

from typing import Any

from upriver.dataflow.graph import DataflowPlan, LakeEdge, RegionPlan
from upriver.dataflow.ops import Filter, Project
from upriver.dataflow.plan import AggregatePlan, Projection

FULL_REASON = "every key is kept: partial state is not built yet"


def explain(plan: DataflowPlan) -> dict[str, Any]:
    """The plan as a plain dict; :func:`render` turns it into text."""
    regions = [_region(region) for region in plan.regions]
    return {"view": plan.name, "sql": plan.sql, "key": list(plan.key), "regions": regions}


def _region(region: RegionPlan) -> dict[str, Any]:
    edge, projection = region.inputs[0].edge, None
    assert isinstance(edge, LakeEdge)
    steps: list[str] = []
    for node in region.nodes:
        if isinstance(node.op, Filter):
            steps.append(f"filter {node.op.predicate}")
        elif isinstance(node.op, Project):
            projection = node.op.projection
    store = region.store
    assert store is not None
    assert projection is not None
    if store.aggregate is not None:
        steps.append(_aggregate(projection, store.aggregate))
    else:
        steps.append("keep the rows")
    if store.having is not None:
        steps.append(f"having {store.having}")
    steps.append(f"output {', '.join(f'{field.name} {field.type}' for field in store.output.schema)}")
    return {
        "routing_key": list(edge.index),
        "input": f"lake edge {edge.channel}: rows of {edge.table} in hash64 order of ({', '.join(edge.index)})",
        "steps": steps,
        "state": "full",
        "why": FULL_REASON,
    }


def _aggregate(projection: Projection, aggregate: AggregatePlan) -> str:
    source = dict(zip(projection.schema.names, projection.expressions, strict=True))
    group = ", ".join(source[name] for name in aggregate.group)
    calls = (
        "count(*)" if call.argument is None else f"{call.function}({source[call.argument]})" for call in aggregate.calls
    )
    return f"group by {group}: {', '.join(calls) or 'distinct values only'}"


def render(explained: dict[str, Any]) -> str:
    """The text of an explanation."""
    lines = [f"view {explained['view']}, looked up by ({', '.join(explained['key'])})"]
    for number, region in enumerate(explained["regions"], start=1):
        lines.append(f"  region {number}, keyed by ({', '.join(region['routing_key'])})")
        lines.append(f"    {region['input']}")
        lines += [f"    {step}" for step in region["steps"]]
        lines.append(f"    state: {region['state']} ({region['why']})")
    return "\n".join(lines)
