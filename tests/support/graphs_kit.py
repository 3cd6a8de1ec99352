"""Plans of one flow, of which one is computed from the rows of another."""

from dataclasses import replace

from upriver.plan.plan import DataflowPlan, ExchangeEdge


def reading_of(plan: DataflowPlan, source: str) -> DataflowPlan:
    """A plan of one input, whose rows come from the last region of another plan in place of a table."""
    *before, last = plan.regions
    (entry,) = last.inputs
    inputs = (replace(entry, edge=ExchangeEdge(source, entry.edge.key)),)
    return replace(plan, regions=(*before, replace(last, inputs=inputs)))
