"""``session_window(ts, gap)``: rows of one group that are close in time, as Spark's SessionWindowing defines them.

Each row begins with a window of its own, from its time until the gap has passed. Windows of one group that overlap or
touch are one session. The sessions follow from window functions over the rows in the order of their times: a session
begins with a row that lies behind the end of all rows before it. So a row that comes or goes merges or splits them.
"""

from collections.abc import Sequence

import pyarrow as pa
from sqlglot import exp

from upriver.plan.column_names import quoted
from upriver.plan.plan import WHOLE_PARTITION, FrameUnit, Order, WindowCall, WindowFrame, WindowOp
from upriver.plan.relation import Relation, Scalar
from upriver.plan.types import is_instant, is_wall_clock
from upriver.sql.operators import micros_of
from upriver.sql.pushdown import filtered
from upriver.sql.relations import Output, kept, projected, widened, windowed
from upriver.sql.scalars import Context, column_scalar, typed_name
from upriver.sql.scope import ScopeColumn, unique

SESSION = "session_window"
_GAP = "Give the gap in quotes, from microseconds to weeks: session_window(ts, '5 minutes')."
_BEFORE = WindowFrame(FrameUnit.ROWS, None, -1)
_SO_FAR = WindowFrame(FrameUnit.RANGE, None, 0)


def opened(context: Context, relation: Relation, call: exp.Expr, column: ScopeColumn, place: int | None) -> Relation:
    """The rows that have a time, each with a window of its own. Raises UnsupportedSql."""
    operands = call.expressions
    if len(operands) != 2:
        raise context.unsupported(call, f"session_window() of {len(operands)} operands", _GAP)
    moment = context.translate(operands[0])
    if not (is_wall_clock(moment.type) or is_instant(moment.type)):
        raise context.unsupported(call, f"session_window() of {typed_name(moment)}", "CAST it to TIMESTAMP.")
    literal = operands[1]
    gap = micros_of(literal.this) if isinstance(literal, exp.Literal) and literal.is_string else None
    if gap is None or gap <= 0:
        raise context.unsupported(literal, "session_window() by anything but a gap in quotes", _GAP)
    present = filtered(relation, Scalar(f"({moment.sql} IS NOT NULL)", pa.bool_(), moment.fails), place)
    end = f"make_timestamp(epoch_us({moment.sql}) + CAST({gap} AS BIGINT))"
    bounds = [Output(column.name, moment), Output(column.end or "", Scalar(end, moment.type, fails=True))]
    return widened(present, bounds, place)


def merged(rows: Relation, partition: Sequence[str], start: str, end: str, place: int | None) -> Relation:
    """The rows with the start and the end of their session in place of their own. partition: columns of the group."""
    taken = {name.lower() for name in rows.schema.names}
    before, opens, first, last = (unique(name, taken) for name in ("before", "opens", "first", "last"))
    type = rows.schema.field(start).type
    group, order = tuple(partition), (Order(start, descending=False, nulls_first=True),)
    relation = windowed(rows, WindowOp(group, order, (WindowCall("max", end, before, type, _BEFORE),)), place)
    begins = f"{quoted(before)} IS NULL OR {quoted(start)} > {quoted(before)}"
    opening = Scalar(f"CASE WHEN {begins} THEN {quoted(start)} END", type)
    relation = widened(relation, [Output(opens, opening)], place)
    relation = windowed(relation, WindowOp(group, order, (WindowCall("max", opens, first, type, _SO_FAR),)), place)
    whole = WindowCall("max", end, last, type, WHOLE_PARTITION)
    relation = windowed(relation, WindowOp((*group, first), (), (whole,)), place)
    given = {start: first, end: last}
    return projected(
        relation,
        [Output(one.name, column_scalar(given.get(one.name, one.name), one.value.type)) for one in kept(rows)],
        place,
    )
