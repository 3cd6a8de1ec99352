"""Expressions row by row, as they are evaluated here: their values, the rows on which they fail, and with ``TRY``."""

import re
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from plain_values import RAISES, json_values
from sql_kit import projection_of, spec

from upriver.engine.expressions import Evaluator
from upriver.engine.operators.operator import ExpressionEvaluator
from upriver.errors import RowError
from upriver.plan.plan import Projection
from upriver.sql.functions.tries import or_null
from upriver.sql.views import Analyser, compile_view

BEYOND = re.compile(
    "no UTF-8|too far to compute with|end of its range|outside the years 1 to 9999|not in timestamp range|"
    "Timestamp microseconds out of range"
)
"""What is said of a value that only Spark can compute with."""
BEYOND_US: dict[str, Any] = {"only": "Spark"}
"""In place of a value that only Spark can compute."""


def query_of(text: str, rows: pa.RecordBatch) -> str:
    """The view of an expression over the table t, whose first column is its key."""
    return f"SELECT {rows.schema.names[0]}, {text} AS e FROM t"


def rows_for(text: str, rows: pa.RecordBatch) -> pa.RecordBatch:
    """The rows that differ in a column that the expression may name."""
    words = set(re.findall(r"\w+", text))
    named = [column for column in rows.schema.names if column in words]
    values = zip(*(map(repr, json_values(rows.column(column))) for column in named), strict=True)
    first = {key: place for place, key in reversed(list(enumerate(values)))} if named else {"": 0}
    return rows.take(pa.array(sorted(first.values())))


def projection(text: str, rows: pa.RecordBatch, analyser: Analyser) -> Projection:
    """How the expression is computed. Raises UnsupportedSql, or DeclarationError for a constant that fails."""
    made = projection_of(compile_view("v", query_of(text, rows), {"t": spec("t", rows.schema)}, {}, analyser))
    place = made.schema.get_field_index("e")
    return Projection((made.expressions[place],), pa.schema([made.schema.field(place)]))


def computed(one: Projection, rows: pa.RecordBatch, failing: Sequence[int], evaluator: Evaluator) -> list[Any]:
    """The values by row, with RAISES or BEYOND_US in place of those that cannot be computed. failing: rows that are
    computed alone; of others that fail, the rest are halved."""
    quick = evaluator.without_row_text()
    values: list[Any] = [None] * rows.num_rows
    others = [row for row in range(rows.num_rows) if row not in failing]
    for part in (others, *([row] for row in failing)):
        _fill(quick, one, part, rows, values)
    return values


def tried(one: Projection, rows: pa.RecordBatch, evaluator: Evaluator) -> list[Any]:
    """The values by row with ``TRY``, which gives NULL where the expression raises."""
    (sql,) = one.expressions
    return json_values(evaluator.project(rows, Projection((or_null(sql),), one.schema)).column(0))


def _fill(
    evaluator: ExpressionEvaluator, one: Projection, part: Sequence[int], rows: pa.RecordBatch, values: list[Any]
) -> None:
    """The values of some rows, which are halved until what fails is single rows."""
    try:
        found = json_values(evaluator.project(rows.take(pa.array(part, pa.int32())), one).column(0))
    except RowError as error:
        if len(part) == 1:
            values[part[0]] = BEYOND_US if BEYOND.search(str(error)) else RAISES
            return
        half = len(part) // 2
        _fill(evaluator, one, part[:half], rows, values)
        _fill(evaluator, one, part[half:], rows, values)
        return
    for row, value in zip(part, found, strict=True):
        values[row] = value
