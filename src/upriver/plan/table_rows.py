"""Where a region has the rows of tables as they are, before anything has brought several of them together.

What a view computes from a table's rows one by one can be laid at the door of one row: where it fails, that row is bad,
and can be set aside. This module says, for a plan, where that is.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from upriver.plan.graph import LakeEdge, Node, RegionPlan
from upriver.plan.ops import Filter, Latest, Project, Union

_ONE_BY_ONE = (Filter, Project, Union)


@dataclass(frozen=True, slots=True)
class TableRows:
    """A table's rows in a region, all of its columns or some. port: where the lake edge comes in. number: of the port,
    or, of an upsert table, of the node that makes rows of the versions that come in."""

    table: str
    port: int
    number: int


def table_rows(plan: RegionPlan) -> tuple[TableRows, ...]:
    """The rows of tables that a region reads. Numbers are those of :class:`RegionPlan`."""
    return tuple(
        TableRows(entry.edge.table, port, _latest(plan, port))
        for port, entry in enumerate(plan.inputs)
        if isinstance(entry.edge, LakeEdge)
    )


def one_by_one(plan: RegionPlan, number: int) -> tuple[int, ...]:
    """The nodes that see nothing but the rows with this number, each row by itself. In order."""
    seen = {number}
    for place, node in _numbered(plan):
        if isinstance(node.op, _ONE_BY_ONE) and seen.issuperset(node.inputs):
            seen.add(place)
    return tuple(sorted(seen - {number}))


def _latest(plan: RegionPlan, port: int) -> int:
    """The node that makes rows of the versions that come in at a port; the port, if rows come in."""
    seen = {port, *one_by_one(plan, port)}
    made = (place for place, node in _numbered(plan) if isinstance(node.op, Latest) and seen.issuperset(node.inputs))
    return next(made, port)


def _numbered(plan: RegionPlan) -> Iterator[tuple[int, Node]]:
    return enumerate(plan.nodes, start=len(plan.inputs))
