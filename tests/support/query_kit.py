"""Rows of queries, compared as Spark compares, and the tables that tests of queries name."""

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from sql_kit import same_value, spec

from upriver.plan.plan import JoinOp, TableSpec
from upriver.plan.relation import Relation

TABLES = {
    "sales": {
        "k": pa.string(),
        "i": pa.int32(),
        "l": pa.int64(),
        "x": pa.float64(),
        "p": pa.decimal128(9, 2),
        "d": pa.date32(),
        "ts": pa.timestamp("us", "UTC"),
        "b": pa.bool_(),
    },
    "people": {
        "k": pa.string(),
        "name": pa.string(),
        "j": pa.int64(),
        "since": pa.date32(),
        "at": pa.timestamp("us", "UTC"),
    },
    "places": {"k": pa.string(), "i": pa.int32(), "city": pa.string()},
}


def tables() -> dict[str, TableSpec]:
    return {name: spec(name, pa.schema(list(columns.items()))) for name, columns in TABLES.items()}


def names_are_apart(relation: Relation) -> bool:
    """No two columns differ in case alone, neither in one relation nor in the inputs of a join."""
    names = [
        name.lower()
        for part in (relation.inputs if isinstance(relation.op, JoinOp) else [relation])
        for name in part.schema.names
    ]
    return len(set(names)) == len(names) and all(map(names_are_apart, relation.inputs))


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
