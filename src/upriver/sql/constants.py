"""Rows that a query has itself: VALUES, range(), and the one row of a SELECT without FROM.

They are computed when a view is declared, and are part of its plan.
"""

from collections.abc import Sequence

import pyarrow as pa
from sqlglot import exp

from upriver.engine.expressions import Evaluator
from upriver.errors import RowError
from upriver.plan.plan import USER_PREFIX, Projection, ValuesOp
from upriver.plan.relation import Relation, Scalar
from upriver.plan.schemas import rows_to_bytes
from upriver.plan.types import duck_name, is_null
from upriver.sql.operators import to_common
from upriver.sql.scalars import Context
from upriver.sql.scope import ScopeColumn, ScopeRows, Setting, bare

ROWS_MAX = 10_000
"""Rows of VALUES or range(): they are part of the plan that every worker gets."""
_IN_A_TABLE = "Make a table of them: app.table()."


def values(setting: Setting, node: exp.Values) -> ScopeRows:
    """The rows of VALUES, with the columns col1, col2, ... Raises UnsupportedSql, DeclarationError."""
    source = setting.source
    rows = [list(row.expressions) if isinstance(row, exp.Tuple) else [row] for row in node.expressions]
    if len(rows) > ROWS_MAX:
        raise source.unsupported(node, f"VALUES of more than {ROWS_MAX} rows", _IN_A_TABLE)
    if any(len(row) != len(rows[0]) for row in rows):
        raise source.wrong(node, "the rows of VALUES differ in length", "Give each as many values.")
    context = setting.context(pa.schema([]))
    scalars = [context.translate_all(map(bare, row)) for row in rows]
    columns = [_column(context, node, [row[place] for row in scalars]) for place in range(len(rows[0]))]
    schema = pa.schema([(f"col{place + 1}", column[0].type) for place, column in enumerate(columns)])
    return _rows(_computed(context, node, schema, list(zip(*columns, strict=True))))


def numbers(setting: Setting, node: exp.Expr, operands: Sequence[exp.Expr]) -> ScopeRows:
    """The rows of ``range(end)`` or ``range(start, end[, step[, partitions]])``: one BIGINT, id."""
    whole = [_whole(operand) for operand in operands]
    bounds = [number for number in whole if number is not None]
    if not 1 <= len(operands) <= 4 or len(bounds) < len(operands):
        raise setting.source.unsupported(node, "range() of anything but numbers", "Give its start, end and step.")
    start, end = (0, bounds[0]) if len(bounds) == 1 else bounds[:2]
    step = bounds[2] if len(bounds) > 2 else 1
    if step == 0:
        raise setting.source.wrong(node, "range() with the step 0", "Give another step.")
    found = range(start, end, step)
    if len(found) > ROWS_MAX:
        raise setting.source.unsupported(node, f"range() of more than {ROWS_MAX} rows", _IN_A_TABLE)
    return _rows(pa.record_batch({"id": pa.array(found, pa.int64())}))


def _whole(node: exp.Expr) -> int | None:
    negative = isinstance(node, exp.Neg)
    literal = node.this if negative else node
    if not isinstance(literal, exp.Literal) or literal.is_string or not literal.this.isdigit():
        return None
    return -int(literal.this) if negative else int(literal.this)


def _column(context: Context, node: exp.Expr, scalars: Sequence[Scalar]) -> Sequence[Scalar]:
    column = to_common(context, node, scalars)
    if is_null(column[0].type) or duck_name(column[0].type) is None:
        raise context.unsupported(node, "a column of nothing but NULL", "Give it a type: CAST(NULL AS ...).")
    return column


def _computed(context: Context, node: exp.Expr, schema: pa.Schema, rows: Sequence[Sequence[Scalar]]) -> pa.RecordBatch:
    if any(USER_PREFIX in value.sql for row in rows for value in row):
        raise context.unsupported(node, "a function of your own in VALUES", "Call it in the SELECT around.")
    evaluator, one = Evaluator(), pa.record_batch({"row": [0]})
    try:
        found = [
            evaluator.without_row_text().project(one, Projection(tuple(value.sql for value in row), schema))
            for row in rows
        ]
    except RowError as error:
        raise context.source.wrong(node, f"VALUES fails: {error}", "Write NULL, if that is meant.") from error
    finally:
        evaluator.close()
    return pa.concat_batches(found)


def _rows(rows: pa.RecordBatch) -> ScopeRows:
    columns = tuple(ScopeColumn(name, name) for name in rows.schema.names)
    return ScopeRows(Relation(ValuesOp(rows_to_bytes(rows)), (), rows.schema), columns)
