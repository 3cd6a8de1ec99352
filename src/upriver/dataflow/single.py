"""A view of one table and one region, as a dataflow."""

from upriver.dataflow.graph import DataflowPlan, Input, LakeEdge, Node, RegionPlan, ViewStore
from upriver.dataflow.ops import Filter, Project
from upriver.dataflow.plan import TableSpec, ViewPlan


def single_region(plan: ViewPlan, table: TableSpec) -> DataflowPlan:
    """The dataflow that filters and projects the table's rows, and keeps them or groups of them."""
    nodes: list[Node] = []
    if plan.filter is not None:
        nodes.append(Node(Filter(plan.filter), (0,), table.schema))
    nodes.append(Node(Project(plan.project), (len(nodes),), plan.project.schema))
    columns = dict(zip(plan.output.schema.names, plan.output.expressions, strict=True))
    key = tuple(columns.get(name, f'"{name}"')[1:-1].replace('""', '"') for name in plan.key)
    region = RegionPlan(
        name=plan.name,
        inputs=(Input(LakeEdge(plan.table, plan.index), table.schema),),
        nodes=tuple(nodes),
        store=ViewStore(key, plan.aggregate, plan.having, plan.output),
        why=f"rows of {plan.table} are grouped, or kept, by ({', '.join(plan.index)})",
    )
    return DataflowPlan(plan.name, plan.sql, plan.key, plan.output.schema, (region,))
