"""Relations by hand, for tests of what comes behind the SQL front end."""

from collections.abc import Mapping, Sequence

import pyarrow as pa

from upriver.plan.plan import (
    AggregateCall,
    AggregateOp,
    AggregatePlan,
    DataflowPlan,
    FilterOp,
    JoinKind,
    JoinOp,
    Order,
    Projection,
    ProjectOp,
    Ranking,
    Scan,
    SetKind,
    SetOperationOp,
    TableSpec,
    TopKOp,
    UnionOp,
    WindowCall,
    WindowOp,
)
from upriver.plan.planning import plan_regions
from upriver.plan.relation import Relation


def dataflow(name: str, relation: Relation, key: Sequence[str], *tables: TableSpec) -> DataflowPlan:
    """The view that is this relation. tables: all that it reads."""
    regions = plan_regions(name, relation, key, {table.name: table for table in tables})
    return DataflowPlan(name, "", tuple(key), relation.schema, regions)


def scan(table: TableSpec) -> Relation:
    return Relation(Scan(table.name), (), table.schema)


def where(source: Relation, predicate: str) -> Relation:
    return Relation(FilterOp(predicate), (source,), source.schema)


def select(source: Relation, *columns: str, **computed: tuple[str, pa.DataType]) -> Relation:
    """Columns as they are (``a``, or ``a AS b``), then computed ones, each with its DuckDB SQL and its type."""
    fields, expressions = [], []
    for column in columns:
        name, _, alias = column.partition(" AS ")
        fields.append(source.schema.field(name).with_name(alias or name))
        expressions.append(f'"{name}"')
    for name, (expression, type) in computed.items():
        fields.append(pa.field(name, type))
        expressions.append(expression)
    schema = pa.schema(fields)
    return Relation(ProjectOp(Projection(tuple(expressions), schema)), (source,), schema)


def prefixed(source: Relation, prefix: str) -> Relation:
    """All columns, with this before their names: no join has two of one name."""
    return select(source, *(f"{name} AS {prefix}{name}" for name in source.schema.names))


def group(source: Relation, by: str, **calls: tuple[str, str | None, pa.DataType]) -> Relation:
    """calls: by output, the function, its argument and its type."""
    outputs = tuple(AggregateCall(function, argument, name, type) for name, (function, argument, type) in calls.items())
    plan = AggregatePlan(tuple(by.split()), outputs)
    results = [pa.field(call.output, call.type) for call in outputs]
    return Relation(AggregateOp(plan), (source,), pa.schema([*map(source.schema.field, plan.group), *results]))


def count(source: Relation, by: str) -> Relation:
    return group(source, by, n=("count_star", None, pa.int64()))


def distinct(source: Relation) -> Relation:
    return group(source, " ".join(source.schema.names))


def join(
    left: Relation,
    right: Relation,
    on: Mapping[str, str],
    kind: JoinKind = JoinKind.INNER,
    condition: str | None = None,
    null_safe: bool = False,
) -> Relation:
    """on: columns of the left side, each with the one of the right side that it is compared with."""
    op = JoinOp(kind, tuple(on), tuple(on.values()), tuple(null_safe for _ in on), condition)
    sides = [left.schema] if kind in (JoinKind.SEMI, JoinKind.ANTI) else [left.schema, right.schema]
    return Relation(op, (left, right), pa.schema([field for schema in sides for field in schema]))


def union(*parts: Relation) -> Relation:
    return Relation(UnionOp(), parts, parts[0].schema)


def set_operation(kind: SetKind, left: Relation, right: Relation, all: bool = False) -> Relation:
    return Relation(SetOperationOp(kind, all), (left, right), left.schema)


def windowed(source: Relation, partition: str, order: Sequence[Order], *calls: WindowCall) -> Relation:
    op = WindowOp(tuple(partition.split()), tuple(order), calls)
    results = [pa.field(call.output, call.type) for call in calls]
    return Relation(op, (source,), pa.schema([*source.schema, *results]))


def top(source: Relation, partition: str, order: Sequence[Order], limit: int, rank: str | None = None) -> Relation:
    schema = source.schema if rank is None else source.schema.append(pa.field(rank, pa.int32()))
    op = TopKOp(tuple(partition.split()), tuple(order), limit, Ranking.ROW_NUMBER, rank)
    return Relation(op, (source,), schema)
