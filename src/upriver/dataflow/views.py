"""From a declared view to its dataflow."""

from collections.abc import Callable, Mapping, Sequence

from upriver.dataflow.graph import DataflowPlan, RegionPlan
from upriver.dataflow.operators.evaluator import Evaluator
from upriver.dataflow.plan import TableSpec
from upriver.dataflow.running import Region
from upriver.dataflow.single import single_region
from upriver.dataflow.sql import Typer, plan_view


def declare_view(
    name: str, sql: str, key: str | Sequence[str], tables: Mapping[str, TableSpec], typer: Typer
) -> DataflowPlan:
    """Compile a view. key: output columns by which it is looked up.

    Raises UnsupportedSql for what Spark can do and we cannot, with its place; DeclarationError for what is wrong.
    """
    plan = plan_view(name, sql, key, tables, typer)
    return single_region(plan, tables[plan.table])


def region_builder(evaluator: Evaluator) -> Callable[[DataflowPlan, RegionPlan], Region]:
    """Makes empty regions of any view."""

    def build(view: DataflowPlan, region: RegionPlan) -> Region:
        return Region.build(region, view.sends(region.name), evaluator)

    return build
