"""Regions of views of one table, for tests."""

from upriver.dataflow.operators.evaluator import Evaluator
from upriver.dataflow.plan import TableSpec, ViewPlan
from upriver.dataflow.running import Region
from upriver.dataflow.single import single_region


def region_of(plan: ViewPlan, evaluator: Evaluator) -> Region:
    """The one region of the view."""
    view = single_region(plan, TableSpec(plan.table, plan.project.schema, plan.index))
    return Region.build(view, view.regions[-1], evaluator)
