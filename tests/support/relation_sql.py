"""A relation as DuckDB's SQL: what it means, said a second way."""

from collections.abc import Sequence

from window_sql import sorted_by, windowed_sql

from upriver.plan.clock import ClockOp
from upriver.plan.plan import (
    AggregateCall,
    AggregateOp,
    AggregatePlan,
    ExplodeOp,
    FilterOp,
    JoinKind,
    JoinOp,
    LatestOp,
    ProjectOp,
    ReplicateOp,
    SaltOp,
    Scan,
    SetOperationOp,
    StatefulMapOp,
    TopKOp,
    UnionOp,
    ValuesOp,
    WindowOp,
)
from upriver.plan.relation import Relation
from upriver.plan.types import duck_name

_SIDES = {
    JoinKind.INNER: "JOIN",
    JoinKind.LEFT: "LEFT JOIN",
    JoinKind.RIGHT: "RIGHT JOIN",
    JoinKind.FULL: "FULL JOIN",
    JoinKind.SEMI: "SEMI JOIN",
    JoinKind.ANTI: "ANTI JOIN",
}


def sql_of(relation: Relation, upserts: dict[str, str]) -> str:
    """A query. upserts: what upsert tables come to, by name, each as a query."""
    inputs = [f"({sql_of(part, upserts)})" for part in relation.inputs]
    match relation.op:
        case Scan(table):
            return upserts.get(table, f"SELECT * FROM {table}")
        case FilterOp(predicate):
            return f"SELECT * FROM {inputs[0]} WHERE {predicate}"
        case ProjectOp(projection):
            columns = zip(projection.expressions, projection.schema, strict=True)
            listed = ", ".join(f'({text})::{duck_name(field.type)} AS "{field.name}"' for text, field in columns)
            return f"SELECT {listed} FROM {inputs[0]}"
        case AggregateOp(plan):
            return _aggregate(plan, inputs[0])
        case JoinOp():
            return _join(relation.op, inputs)
        case TopKOp():
            return _top(relation, relation.op, inputs[0])
        case WindowOp():
            return windowed_sql(relation.op, relation.inputs[0].schema, inputs[0])
        case UnionOp():
            return " UNION ALL ".join(f"SELECT * FROM {part}" for part in inputs)
        case SetOperationOp(kind, every):
            return f"SELECT * FROM {inputs[0]} {kind}{' ALL' if every else ''} SELECT * FROM {inputs[1]}"
        case LatestOp() | StatefulMapOp() | ValuesOp() | SaltOp() | ReplicateOp() | ExplodeOp() | ClockOp():
            raise AssertionError("no SQL that a front end knows means this")


def _aggregate(plan: AggregatePlan, source: str) -> str:
    group = ", ".join(f'"{name}"' for name in plan.group)
    outputs = [group, *(f'({_call(call)})::{duck_name(call.type)} AS "{call.output}"' for call in plan.calls)]
    return f"SELECT {', '.join(outputs)} FROM {source} GROUP BY {group}"


def _call(call: AggregateCall) -> str:
    if call.argument is None:
        return "count(*)"
    return f'{call.function}({"DISTINCT " if call.distinct else ""}"{call.argument}")'


def _join(op: JoinOp, inputs: Sequence[str]) -> str:
    pairs = zip(op.left_key, op.right_key, op.null_safe, strict=True)
    on = [f'"{left}" {"IS NOT DISTINCT FROM" if safe else "="} "{right}"' for left, right, safe in pairs]
    on += [] if op.condition is None else [op.condition]
    return f"SELECT * FROM {inputs[0]} {_SIDES[op.kind]} {inputs[1]} ON {' AND '.join(on)}"


def _top(relation: Relation, op: TopKOp, source: str) -> str:
    """The order must leave no ties."""
    columns = ", ".join(f'"{name}"' for name in relation.inputs[0].schema.names)
    order = ", ".join(map(sorted_by, op.order))
    partition = ", ".join(f'"{name}"' for name in op.partition) or "1"
    rank = f"({op.ranking}() OVER (PARTITION BY {partition} ORDER BY {order}))::INT"
    kept = columns if op.rank is None else f'{columns}, nth AS "{op.rank}"'
    return f"SELECT {kept} FROM (SELECT *, {rank} AS nth FROM {source}) WHERE nth <= {op.limit}"
