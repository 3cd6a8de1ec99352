"""The region of a view that is one, for tests."""

from upriver.dataflow.graph import DataflowPlan
from upriver.dataflow.operators.evaluator import Evaluator
from upriver.dataflow.running import Region


def region_of(plan: DataflowPlan, evaluator: Evaluator) -> Region:
    """All of it: one worker has every key."""
    (region,) = plan.regions
    return Region.build(plan, region, evaluator)
