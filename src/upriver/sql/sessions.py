"""``session_window(ts, gap)``: rows of one group that are close in time, as Spark's SessionWindowing defines them.

Each row begins with a window of its own, from its time until the gap has passed. Windows of one group that overlap or
touch are one session. The sessions follow from window functions over the rows in the order of their times: a session
begins with a row that lies behind the end of all rows before it. So a row that comes or goes merges or splits them.
"""

from collections.abc import Sequence

from upriver.plan.column_names import quoted, unique
from upriver.plan.plan import WHOLE_PARTITION, FrameUnit, Order, WindowCall, WindowFrame, WindowOp
from upriver.plan.relation import Relation, Scalar
from upriver.sql.functions.scalars import column_scalar
from upriver.sql.relations import Output, kept, projected, widened, windowed

_BEFORE = WindowFrame(FrameUnit.ROWS, None, -1)
_SO_FAR = WindowFrame(FrameUnit.RANGE, None, 0)


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
