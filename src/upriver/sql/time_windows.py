"""Windows of time: ``window(ts, '10 minutes')`` and ``session_window(ts, '5 minutes')``.

Spark has a window as a struct of its start and its end. Beside the struct, rows have the two as columns of their own,
as far as nothing drops them: what groups, joins and keys name are columns. Where only the struct is left, its fields
are taken from it.
"""

from dataclasses import replace

import pyarrow as pa

from upriver.plan.relation import Scalar
from upriver.plan.types import is_struct
from upriver.sql.expressions import Expressions
from upriver.sql.functions.arithmetic import micros_of
from upriver.sql.functions.nested_values import struct_sql
from upriver.sql.functions.scalars import macro
from upriver.sql.literals import whole
from upriver.sql.tree import TreeNode

FIELDS = ("start", "end")
WINDOWS_PER_ROW_MAX = 100
"""Windows of one row. If they slide by less than they are long, each row is copied so many times."""
_MARKS = frozenset({"spark.timeWindow", "spark.sessionWindow"})
_TRANSPARENT = frozenset({"Alias", "KnownNullable", "KnownNotNull"})
_GAP = "Give the gap in quotes, from microseconds to weeks: session_window(ts, '5 minutes')."


def is_window(node: TreeNode) -> bool:
    """Whether a column is a window of time, as Spark has marked it."""
    marks = node.fields.get("marks") or {}
    return any(marks.get(one) for one in _MARKS) and node.type is not None and is_struct(node.type)


def is_made(node: TreeNode) -> bool:
    """Whether an expression makes a window, and is not the name of one."""
    return _bare(node).kind == "CreateNamedStruct"


def _bare(node: TreeNode) -> TreeNode:
    while node.kind in _TRANSPARENT:
        (node,) = node.children
    return node


def are_sessions(node: TreeNode) -> bool:
    """Whether windows that touch or overlap are one, where rows are grouped by this column."""
    return bool((node.fields.get("marks") or {}).get("spark.sessionWindow"))


def field_of(node: TreeNode, place: int) -> TreeNode:
    """The start or the end of a window that is a column, or becomes one, as an expression."""
    fields = {"name": node.fields["name"], "exprId": node.id}
    return part_of(
        TreeNode("AttributeReference", fields, type=node.type, nullable=node.nullable, place=node.place), place
    )


def part_of(node: TreeNode, place: int) -> TreeNode:
    """The start or the end of a window."""
    type = None if node.type is None else node.type.field(place).type
    parts = {"child": node, "ordinal": place, "name": FIELDS[place]}
    return TreeNode("GetStructField", parts, (node,), type, node.nullable, name="getstructfield", place=node.place)


def unnamed(field: TreeNode) -> TreeNode:
    """The same part of a struct, as Spark has it where it knows the place alone."""
    return replace(field, fields={**field.fields, "name": None})


def bounds(node: TreeNode, over: Expressions) -> tuple[Scalar, Scalar] | None:
    """The start and the end of a window that a projection lists, each by itself; ``None`` if they are not at hand."""
    if is_made(node):
        node = _bare(node)
        return _bound(node.children[1], over), _bound(node.children[3], over)
    node = _bare(node)
    if not node.is_column:
        return None
    start, end = (over.leaf(field_of(node, place)) for place in (0, 1))
    return None if start is None or end is None else (start, end)


def window_of(start: Scalar, end: Scalar, type: pa.DataType, is_certain: bool = True) -> Scalar:
    """The window with these bounds. is_certain: whether each row has one; else it is NULL where the start is."""
    sql, fails = struct_sql([start.sql, end.sql]), start.fails or end.fails
    if is_certain:
        return Scalar(sql, type, fails, nulls=frozenset())
    return Scalar(f"CASE WHEN {start.sql} IS NOT NULL THEN {sql} END", type, fails, nulls=start.null_by)


def _bound(node: TreeNode, over: Expressions) -> Scalar:
    """The start or the end of a window, as Spark computes it from a row's time."""
    node = _bare(node)
    if node.kind == "PreciseTimestampConversion" and node.type is not None:
        found = _behind_gap(node, over) or _aligned(node, over)
        if found is not None:
            return found
    return over.of(node)


def _aligned(node: TreeNode, over: Expressions) -> Scalar | None:
    """A bound of ``window()``: the start of the last window that holds the time, some microseconds before or behind.
    ``None`` if it is computed in another way."""
    given, moved = node.children[0], 0
    while given.kind in ("Add", "Subtract"):
        number = whole(given.children[1])
        if number is None:
            break
        moved += number if given.kind == "Add" else -number
        given = given.children[0]
    if given.kind != "Subtract" or given.children[1].kind != "CaseWhen":
        return None
    moment, into = _moment(given.children[0]), _into_window(given.children[1])
    if moment is None or into is None or into[0].meaning != given.children[0].meaning:
        return None
    taken = over.of(moment)
    micros = f"epoch_us({taken.sql})"
    since = f"({micros} - CAST({into[1]} AS BIGINT))"
    rest = macro("spark_pmod", since, f"CAST({into[2]} AS BIGINT)")
    return Scalar(f"make_timestamp({micros} - {rest} + CAST({moved} AS BIGINT))", node.type, fails=True)


def _moment(node: TreeNode) -> TreeNode | None:
    """The time whose microseconds are taken."""
    return node.children[0] if node.kind == "PreciseTimestampConversion" else None


def _into_window(node: TreeNode) -> tuple[TreeNode, int, int] | None:
    """Of ``CASE WHEN r < 0 THEN r + slide ELSE r END`` with ``r = (micros - start) % slide``: these three."""
    rest = node.fields["elseValue"]
    if rest is None or rest.kind != "Remainder" or rest.children[0].kind != "Subtract":
        return None
    since, slide = rest.children
    start, length = whole(since.children[1]), whole(slide)
    ((test, value),) = node.fields["branches"]
    is_below = test.kind == "LessThan" and test.children[0].meaning == rest.meaning and whole(test.children[1]) == 0
    is_raised = value.kind == "Add" and value.children[0].meaning == rest.meaning and whole(value.children[1]) == length
    if start is None or length is None or length <= 0 or not is_below or not is_raised:
        return None
    return since.children[0], start, length


def _behind_gap(node: TreeNode, over: Expressions) -> Scalar | None:
    """A bound of ``session_window()``: the row's own time, or a gap behind it."""
    inner = node.children[0]
    if inner.kind != "PreciseTimestampConversion":
        return None
    (moment,) = inner.children
    while moment.kind == "Cast" and moment.children[0].kind == "TimestampAddInterval":
        (moment,) = moment.children
    if moment.kind != "TimestampAddInterval":
        return over.of(moment)
    start, gap = moment.children[:2]
    while gap.kind == "Cast":
        (gap,) = gap.children
    written = gap.fields["value"] if gap.kind == "Literal" else None
    micros = micros_of(written) if isinstance(written, str) else None
    if micros is None or micros <= 0:
        raise over.context.unsupported(node.place, "session_window() by anything but a gap in quotes", _GAP)
    taken = over.of(start)
    return Scalar(f"make_timestamp(epoch_us({taken.sql}) + CAST({micros} AS BIGINT))", node.type, fails=True)
