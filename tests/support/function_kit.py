"""Calls of every function of the table over awkward rows, as they are evaluated here, and as Spark evaluates them."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import pyarrow as pa
from guards_kit import BEYOND
from random_guards import rows
from sql_kit import local_view, projection_of, spec

from upriver.engine.expressions import Evaluator
from upriver.errors import RowError
from upriver.plan.plan import Projection


@dataclass(frozen=True)
class Answers:
    """Of one call: its type, our values by row, the rows that fail as Spark's do, and those that only Spark can
    compute."""

    call: str
    type: pa.DataType
    values: Sequence[Any]
    failing: Sequence[int]
    beyond: Sequence[int]


@cache
def projection(call: str) -> Projection:
    table = spec("t", rows().schema)
    view = local_view(f"SELECT r, {call} AS e FROM t", table)
    made = projection_of(view)
    place = made.schema.get_field_index("e")
    return Projection((made.expressions[place],), pa.schema([made.schema.field(place)]))


def answers(evaluator: Evaluator, call: str) -> Answers:
    """Raises UnsupportedSql if the front end refuses the call."""
    one = projection(call)
    values: dict[int, Any] = {}
    failing: list[int] = []
    beyond: list[int] = []
    _fill(evaluator.without_row_text(), one, 0, rows(), values, failing, beyond)
    ordered = [values.get(row) for row in range(rows().num_rows)]
    return Answers(call, one.schema.field(0).type, ordered, failing, beyond)


def _fill(
    evaluator: Evaluator,
    one: Projection,
    first: int,
    part: pa.RecordBatch,
    values: dict[int, Any],
    failing: list[int],
    beyond: list[int],
) -> None:
    """The values of a part of the rows, which is halved until what fails is single rows."""
    try:
        column = evaluator.project(part, one).column(0)
    except RowError as error:
        if part.num_rows == 1:
            (beyond if BEYOND.search(str(error)) else failing).append(first)
            return
        half = part.num_rows // 2
        _fill(evaluator, one, first, part.slice(0, half), values, failing, beyond)
        _fill(evaluator, one, first + half, part.slice(half), values, failing, beyond)
        return
    values.update(enumerate(plain(column), first))


def plain(column: pa.Array) -> list[Any]:
    """The values as Python's, times as numbers: Python's calendar ends earlier."""
    type = column.type
    if pa.types.is_timestamp(type):
        column = column.cast(pa.timestamp("us", type.tz)).view(pa.int64())
    elif pa.types.is_date32(type):
        column = column.view(pa.int32())
    elif pa.types.is_string(type):
        column = column.cast(pa.binary())
    found: list[Any] = column.to_pylist()
    return found
