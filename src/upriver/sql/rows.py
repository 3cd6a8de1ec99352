"""Rows that a query has itself: VALUES, range(), and the one row of a SELECT without FROM."""

from collections.abc import Mapping

import pyarrow as pa

from upriver.plan.column_names import unique
from upriver.plan.plan import ALL_ALIKE, ValuesOp
from upriver.plan.relation import Relation
from upriver.plan.schemas import rows_to_bytes
from upriver.sql.attachments import attached
from upriver.sql.literals import python_value
from upriver.sql.one_row import one_row
from upriver.sql.relations import Output, projected, union
from upriver.sql.translation import Rule, Translation
from upriver.sql.tree import TreeNode

ROWS_MAX = 10_000
"""Rows of VALUES or range(): they are part of the plan that every worker gets."""
ROWS_OF_CLOCK_MAX = 100
"""The same of VALUES with the clock: there each row is an operator."""
_IN_A_TABLE = "Make a table of them: app.table()."


def _one_row(translation: Translation, node: TreeNode) -> Relation:
    return one_row(unique(ALL_ALIKE, translation.taken))


def _values(translation: Translation, node: TreeNode) -> Relation:
    columns, rows = node.fields["output"], node.fields["data"]
    if len(rows) > ROWS_MAX:
        raise translation.source.unsupported(node.place, f"VALUES of more than {ROWS_MAX} rows", _IN_A_TABLE)
    for one in columns:
        if one.type is None:
            what = f"a column of {one.fields['dataType']} in VALUES"
            raise translation.source.unsupported(node.place, what, "CAST it to another type.")
    schema = pa.schema([pa.field(translation.name(one), one.type) for one in columns])
    arrays = [
        pa.array([python_value(row[place], field.type) for row in rows], field.type)
        for place, field in enumerate(schema)
    ]
    return _given(pa.RecordBatch.from_arrays(arrays, schema=schema))


def _values_of_the_clock(translation: Translation, node: TreeNode) -> Relation:
    """VALUES with the clock, which Spark does not compute when it reads the query."""
    columns, parts = node.fields["output"], []
    if len(node.fields["rows"]) > ROWS_OF_CLOCK_MAX:
        what = f"VALUES of more than {ROWS_OF_CLOCK_MAX} rows with the clock"
        raise translation.source.unsupported(node.place, what, _IN_A_TABLE)
    for row in node.fields["rows"]:
        rows = attached(translation, _one_row(translation, node), row)
        over = translation.over(rows)
        values = zip(columns, row, strict=True)
        parts.append(projected(rows, [Output(translation.name(one), over.of(value)) for one, value in values], None))
    return union(parts, node.place)


def _numbers(translation: Translation, node: TreeNode) -> Relation:
    """``range(start, end, step)``: one BIGINT, id."""
    found = range(*(int(node.fields[name]) for name in ("start", "end", "step")))
    if len(found) > ROWS_MAX:
        raise translation.source.unsupported(node.place, f"range() of more than {ROWS_MAX} rows", _IN_A_TABLE)
    (column,) = node.fields["output"]
    return _given(pa.record_batch({translation.name(column): pa.array(found, pa.int64())}))


def _given(rows: pa.RecordBatch) -> Relation:
    return Relation(ValuesOp(rows_to_bytes(rows)), (), rows.schema)


RULES: Mapping[str, Rule] = {
    "OneRowRelation": _one_row,
    "LocalRelation": _values,
    "ResolvedInlineTable": _values_of_the_clock,
    "Range": _numbers,
}
