"""The region of a view that is one, for tests."""

from upriver.engine.operators.operator import ExpressionEvaluator
from upriver.engine.region import Region
from upriver.plan.plan import DataflowPlan


def region_of(plan: DataflowPlan, evaluator: ExpressionEvaluator) -> Region:
    """All of it: one worker has every key."""
    (region,) = plan.regions
    return Region.build(plan, region, evaluator)
