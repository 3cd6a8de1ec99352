"""Trees of relations, evaluated in the simplest way: as one DuckDB query. And the rows that they are tried on."""

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import cache
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
from sql_kit import same_value
from window_sql import windowed_sql

from upriver.engine.kernels import define
from upriver.plan.plan import (
    AggregateCall,
    AggregateOp,
    ExplodeOp,
    FilterOp,
    JoinKind,
    JoinOp,
    ProjectOp,
    ReplicateOp,
    SaltOp,
    Scan,
    SetOperationOp,
    TableSpec,
    TopKOp,
    UnionOp,
    ValuesOp,
    WindowOp,
    rows_from_bytes,
)
from upriver.plan.relation import Relation
from upriver.plan.types import duck_name, is_instant

_JOINS = {
    JoinKind.INNER: "JOIN",
    JoinKind.LEFT: "LEFT JOIN",
    JoinKind.RIGHT: "RIGHT JOIN",
    JoinKind.FULL: "FULL JOIN",
    JoinKind.SEMI: "SEMI JOIN",
    JoinKind.ANTI: "ANTI JOIN",
}


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def listed(names: Any) -> str:
    return ", ".join(map(quoted, names))


def relation_sql(relation: Relation) -> str:
    """The DuckDB query that a tree is."""
    inputs = [f"({relation_sql(part)})" for part in relation.inputs]
    match relation.op:
        case Scan(table):
            return f"SELECT * FROM {table}"
        case ValuesOp(rows):
            values = rows_from_bytes(rows)
            listed_rows = ", ".join(f"({', '.join(map(_literal, row.values()))})" for row in values.to_pylist())
            fields = ", ".join(_cast(quoted(field.name), field) for field in values.schema)
            return f"SELECT {fields} FROM (VALUES {listed_rows}) AS v({listed(values.schema.names)})"
        case SaltOp(column):
            return f"SELECT *, CAST(0 AS INTEGER) AS {quoted(column)} FROM {inputs[0]}"
        case ReplicateOp(column, slots):
            return (
                f"SELECT s.*, CAST(n AS INTEGER) AS {quoted(column)} FROM {inputs[0]} s CROSS JOIN range({slots}) r(n)"
            )
        case ExplodeOp():
            return _exploded(relation.op, inputs[0])
        case FilterOp(predicate):
            return f"SELECT * FROM {inputs[0]} WHERE {predicate}"
        case ProjectOp(projection):
            pairs = zip(projection.expressions, projection.schema, strict=True)
            return f"SELECT {', '.join(_cast(text, field) for text, field in pairs)} FROM {inputs[0]}"
        case AggregateOp(plan):
            outputs = ", ".join([*map(quoted, plan.group), *map(_call, plan.calls)])
            return f"SELECT {outputs} FROM {inputs[0]} GROUP BY {listed(plan.group)}"
        case JoinOp():
            return _join(relation.op, inputs)
        case TopKOp():
            return _top(relation, relation.op, inputs[0])
        case WindowOp():
            return windowed_sql(relation.op, relation.inputs[0].schema, inputs[0])
        case UnionOp():
            return " UNION ALL ".join(inputs)
        case SetOperationOp(kind, all=every):
            return f" {kind.upper()}{' ALL' if every else ''} ".join(inputs)
    raise AssertionError(f"no SQL for {relation.op}")


def _exploded(op: ExplodeOp, source: str) -> str:
    """Only the rows that have an element: DuckDB's unnest() keeps no other."""
    assert not op.keeps_empty, "a row without an element has no row here"
    place = [] if op.position is None else [f"CAST(generate_subscripts(l, 1) - 1 AS INTEGER) AS {quoted(op.position)}"]
    fields = [f"e[{number}] AS {quoted(name)}" for number, name in enumerate(op.outputs, start=1)]
    outputs = fields if pa.types.is_struct(op.type) else [f"e AS {quoted(op.outputs[0])}"]
    unnested = f"SELECT *, {', '.join([*place, 'unnest(l) AS e'])} FROM (SELECT *, {op.elements} AS l FROM {source})"
    return f"SELECT * EXCLUDE (l, e), {', '.join(outputs)} FROM ({unnested})"


def _literal(value: Any) -> str:
    return "NULL" if value is None else f"'{value}'"


def _cast(text: str, field: pa.Field) -> str:
    name = duck_name(field.type)
    return f"{text if name is None else f'CAST({text} AS {name})'} AS {quoted(field.name)}"


def _call(call: AggregateCall) -> str:
    argument = "*" if call.argument is None else quoted(call.argument)
    function = "count" if call.function == "count_star" else call.function
    kind = "DISTINCT " if call.distinct else ""
    where = "" if call.where is None else f" FILTER (WHERE {quoted(call.where)})"
    return f"CAST({function}({kind}{argument}){where} AS {duck_name(call.type)}) AS {quoted(call.output)}"


def _join(op: JoinOp, inputs: list[str]) -> str:
    keys = zip(op.left_key, op.right_key, op.null_safe, strict=True)
    on = [f"{quoted(left)} {'IS NOT DISTINCT FROM' if safe else '='} {quoted(right)}" for left, right, safe in keys]
    on += [] if op.condition is None else [f"({op.condition})"]
    return f"SELECT * FROM {inputs[0]} {_JOINS[op.kind]} {inputs[1]} ON {' AND '.join(on)}"


def _top(relation: Relation, op: TopKOp, source: str) -> str:
    columns = relation.inputs[0].schema.names
    order = [
        f"{quoted(one.column)} {'DESC' if one.descending else 'ASC'} NULLS {'FIRST' if one.nulls_first else 'LAST'}"
        for one in op.order
    ]
    if op.ranking == "row_number":
        order += map(quoted, columns)
    partition = f"PARTITION BY {listed(op.partition)} " if op.partition else ""
    number = f"{op.ranking.upper()}() OVER ({partition}ORDER BY {', '.join(order)})"
    kept = listed(columns) + ("" if op.rank is None else f", CAST(number_ AS INTEGER) AS {quoted(op.rank)}")
    return f"SELECT {kept} FROM (SELECT *, {number} AS number_ FROM {source}) WHERE number_ <= {op.limit}"


def names_are_apart(relation: Relation) -> bool:
    """No two columns differ in case alone, neither in one relation nor in the inputs of a join."""
    names = [
        name.lower()
        for part in (relation.inputs if isinstance(relation.op, JoinOp) else [relation])
        for name in part.schema.names
    ]
    return len(set(names)) == len(names) and all(map(names_are_apart, relation.inputs))


# Rows

_DEFINED: set[str] = set()
"""The macros and kernels that the connection has."""


@cache
def connection() -> duckdb.DuckDBPyConnection:
    duck = duckdb.connect()
    for name, table in rows().items():
        fields = [
            pa.field(field.name, pa.timestamp("us") if is_instant(field.type) else field.type) for field in table.schema
        ]
        arrays = [column.cast(field.type) for column, field in zip(table.columns, fields, strict=True)]
        duck.register(name, pa.table(arrays, pa.schema(fields)))
    return duck


def evaluated(sql: str) -> list[tuple[Any, ...]]:
    """The rows of a DuckDB query."""
    define(connection(), sql, _DEFINED)
    return connection().sql(sql).fetchall()


@cache
def rows() -> dict[str, pa.Table]:
    """Tables with nulls, duplicates and keys that only some of them have."""
    draw = np.random.default_rng(7)

    def some(count: int, *values: Any) -> list[Any]:
        return [values[place] for place in draw.integers(0, len(values), count)]

    start = datetime(2024, 1, 1, tzinfo=UTC)
    times = [start + timedelta(seconds=int(s)) for s in draw.integers(0, 3600, 60)]
    keys = ("a", "b", "c", "B", "", None)
    sales = {
        "k": some(60, *keys),
        "i": some(60, 1, 2, 3, None, -4),
        "l": pa.array(some(60, 1, 2, 5, None, 2**40), pa.int64()),
        "x": some(60, 0.0, -0.0, 1.5, 2.0, None, float("nan")),
        "p": pa.array(some(60, Decimal("1.25"), Decimal("-2.50"), None, Decimal("10.00")), pa.decimal128(9, 2)),
        "d": some(60, date(2024, 1, 1), date(2024, 1, 31), None, date(2023, 12, 31)),
        "ts": pa.array([None if n % 9 == 0 else time for n, time in enumerate(times)], pa.timestamp("us", tz="UTC")),
        "b": some(60, True, False, None),
    }
    people = {
        "k": some(15, *keys, "z"),
        "name": some(15, "Ann", "bob", None, "Cy"),
        "j": pa.array(some(15, 1, 2, 3, None, 7), pa.int64()),
        "since": some(15, date(2024, 1, 1), date(2023, 12, 31), None),
        "at": pa.array([times[n] for n in range(15)], pa.timestamp("us", tz="UTC")),
    }
    places = {"k": ["a", "b", None, "q"], "i": [1, 2, 3, None], "city": ["Rome", "Oslo", "Bern", None]}
    ints = pa.int32()
    return {
        "sales": pa.table({**sales, "i": pa.array(sales["i"], ints)}),
        "people": pa.table(people),
        "places": pa.table({**places, "i": pa.array(places["i"], ints)}),
    }


def tables() -> dict[str, TableSpec]:
    return {name: TableSpec(name, table.schema, (table.schema.names[0],)) for name, table in rows().items()}


def ordered(found: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Rows in an order of their own; a time is its UTC wall clock, and all zeros are one."""
    plain = [tuple(map(_plain, row)) for row in found]
    return sorted(plain, key=lambda row: [f"{value:.9}" if isinstance(value, float) else repr(value) for value in row])


def _plain(value: Any) -> Any:
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value.astimezone(UTC).replace(tzinfo=None)
    return 0.0 if isinstance(value, float) and value == 0 else value


def same_rows(left: list[tuple[Any, ...]], right: list[tuple[Any, ...]]) -> bool:
    return len(left) == len(right) and all(
        nearly_same(mine, theirs)
        for pair in zip(ordered(left), ordered(right), strict=True)
        for mine, theirs in zip(*pair, strict=True)
    )


def nearly_same(left: Any, right: Any) -> bool:
    """Sums of doubles depend on their order."""
    if isinstance(left, float) and isinstance(right, float) and left == left and right == right:
        return left == right or abs(left - right) <= 1e-9 * max(1.0, abs(right))  # an infinity equals itself
    return same_value(left, right)
