"""From the relations of the SQL front end to the planner's steps; what no worker could route is refused here.

An upsert table is what its versions come to: a scan of them, and the latest of each primary key.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from upriver.errors import KeyTypeError, ProtocolError
from upriver.hashing import check_hashable
from upriver.plan.algebra import Relation
from upriver.plan.column_names import plain_columns
from upriver.plan.ops import Aggregate, Filter, Join, Latest, Op, Project, Scan, SetOperation, StatefulMap, TopK
from upriver.plan.ops import Union as UnionAll
from upriver.plan.plan import TableSpec
from upriver.plan.planning_steps import Step, Steps
from upriver.plan.sql_source import Source
from upriver.plan.sql_types import same_type, spark_name

Fault = tuple[str, str]
"""What is not supported, and what to do instead."""


def shaped(source: Source, relation: Relation, tables: Mapping[str, TableSpec], steps: Steps) -> Step:
    """The relation as steps. Raises UnsupportedSql for an operator whose rows cannot be brought together by a key."""
    inputs = [shaped(source, part, tables, steps) for part in relation.inputs]
    fault = _fault(relation.op, inputs)
    if fault is not None:
        raise source.unsupported(relation.place if source.sql else None, *fault)
    match relation.op:
        case Scan(table):
            return _table(tables[table], steps)
        case Filter(predicate):
            return steps.filter(inputs[0], predicate)
        case Project(projection):
            return steps.project(inputs[0], projection)
        case UnionAll():
            return steps.union(inputs, relation.schema)
        case Aggregate(plan):
            return steps.make(Aggregate(replace(plan, retracts=inputs[0].retracts)), inputs, relation.schema)
        case _:
            return steps.make(relation.op, inputs, relation.schema)


def is_hashable(step: Step, column: str) -> bool:
    """Whether rows can be routed by this column."""
    try:
        check_hashable(step.schema.field(column).type, column)
    except KeyTypeError:
        return False
    return True


def _table(table: TableSpec, steps: Steps) -> Step:
    versions = steps.make(Scan(table.name), (), table.schema)
    if not table.primary_key:
        return versions
    return steps.make(Latest(table.primary_key, table.order_by, table.deletes), [versions], table.schema)


def _fault(op: Op, inputs: Sequence[Step]) -> Fault | None:
    match op:
        case Aggregate(plan):
            return _no_key(inputs[0], plan.group, "GROUP BY")
        case TopK():
            return _no_key(inputs[0], op.partition, "PARTITION BY")
        case SetOperation():
            return _no_key(inputs[0], inputs[0].schema.names, op.kind.upper())
        case Join():
            return _fault_of_join(op, *inputs)
        case StatefulMap():
            return _fault_of_map(op, *inputs)
        case _:
            return None


def _no_key(step: Step, columns: Sequence[str], what: str) -> Fault | None:
    """Rows that belong together meet where their key says; no columns at all: all rows meet."""
    if not columns or any(is_hashable(step, column) for column in columns):
        return None
    listed = ", ".join(f"{column} {spark_name(step.schema.field(column).type)}" for column in columns)
    return f"{what} of nothing but {listed}, by which rows cannot be hashed,", "Add a plain column."


def _fault_of_join(op: Join, left: Step, right: Step) -> Fault | None:
    for one, other in zip(op.left_key, op.right_key, strict=True):
        types = left.schema.field(one).type, right.schema.field(other).type
        if not same_type(*types):
            raise ProtocolError(f"a join compares {one} {types[0]} with {other} {types[1]}")
    if not op.left_key:
        return "a join without an equality", "Say ON which columns rows agree."
    return _no_key(left, op.left_key, "a join ON an equality")


def _fault_of_map(op: StatefulMap, source: Step) -> Fault | None:
    """Rows keep their order only on the way from a table."""
    columns: Iterable[str] = op.key
    while isinstance(source.op, Filter | Project):
        if isinstance(source.op, Project):
            sources = plain_columns(source.op.projection)
            columns = [sources.get(column, "") for column in columns]
        (source,) = source.inputs
    if not isinstance(source.op, Scan):
        return "stateful_map over anything but an append table", "Elsewhere, rows have no order."
    if "" in columns:
        return "a computed key of stateful_map", "Make it a column before app.table()."
    return None
