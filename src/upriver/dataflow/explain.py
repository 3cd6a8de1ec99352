"""What a plan does, in words a user can check: regions, keys, edges, partial or full and why."""

from typing import Any

from upriver.dataflow.plan import AggregatePlan, ViewPlan

FULL_REASON = "every key is kept: partial state is not built yet"


def explain(plan: ViewPlan) -> dict[str, Any]:
    """The plan as a plain dict; :func:`render` turns it into text."""
    steps: list[str] = []
    if plan.filter is not None:
        steps.append(f"filter {plan.filter}")
    if plan.aggregate is not None:
        steps.append(_aggregate(plan, plan.aggregate))
    else:
        steps.append("keep the rows")
    if plan.having is not None:
        steps.append(f"having {plan.having}")
    steps.append(f"output {', '.join(f'{field.name} {field.type}' for field in plan.output.schema)}")
    region = {
        "routing_key": list(plan.index),
        "input": f"lake edge {plan.channel}: rows of {plan.table} in hash64 order of ({', '.join(plan.index)})",
        "steps": steps,
        "state": "full",
        "why": FULL_REASON,
    }
    return {"view": plan.name, "sql": plan.sql, "key": list(plan.key), "regions": [region]}


def _aggregate(plan: ViewPlan, aggregate: AggregatePlan) -> str:
    source = dict(zip(plan.project.schema.names, plan.project.expressions, strict=True))
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
