"""Expand: several rows of one, each by a projection of its own.

Spark makes it of grouping sets, of windows of time that slide by less than they are long, and of UNPIVOT.
"""

from collections.abc import Mapping, Sequence

from upriver.plan.relation import Relation, Scalar, any_fails
from upriver.plan.types import array_type, is_null, struct_type
from upriver.sql.attachments import attached
from upriver.sql.expressions import Expressions
from upriver.sql.functions.generators import Generated, exploded
from upriver.sql.functions.nested_values import struct_sql
from upriver.sql.functions.scalars import null
from upriver.sql.groups import GROUPING_ID
from upriver.sql.relations import Output, kept, projected, union
from upriver.sql.time_windows import WINDOWS_PER_ROW_MAX, are_sessions, bounds, is_window, part_of, window_of
from upriver.sql.translation import Rule, Translation
from upriver.sql.tree import TreeNode

SETS_MAX = 128
"""Grouping sets of one query. Each row is aggregated so many times."""


def _expanded(translation: Translation, node: TreeNode) -> Relation:
    listed: Sequence[Sequence[TreeNode]] = node.fields["projections"]
    columns: Sequence[TreeNode] = node.fields["output"]
    values = [value for row in listed for value in row]
    below = attached(translation, translation.relation(node.children[0]), values)
    over = translation.over(below)
    if any(map(is_window, columns)):
        if len(listed) > WINDOWS_PER_ROW_MAX:
            what, most = f"window() that puts each row in {len(listed)} windows", WINDOWS_PER_ROW_MAX
            instead = f"Let it slide further: {most} windows are the most."
            raise translation.source.unsupported(node.place, what, instead)
    elif any(one.fields["name"] == GROUPING_ID for one in columns):
        if len(listed) > SETS_MAX:
            instead = f"Write the sets that you need: GROUPING SETS (...), at most {SETS_MAX}."
            raise translation.source.unsupported(node.place, f"GROUP BY of {len(listed)} sets", instead)
    else:
        return _turned(translation, node, below, over)
    copies = [projected(below, _copy(translation, columns, row, over), node.place) for row in listed]
    return copies[0] if len(copies) == 1 else union(copies, node.place)


def _copy(
    translation: Translation, columns: Sequence[TreeNode], row: Sequence[TreeNode], over: Expressions
) -> list[Output]:
    """The columns of one of the copies of a row."""
    outputs: list[Output] = []
    for one, value in zip(columns, row, strict=True):
        if not is_window(one):
            outputs.append(Output(translation.name(one), over.of(value)))
            continue
        sides, window = _sides(one, value, over)
        outputs.append(Output(translation.name(one), window))
        parts = zip(translation.parts_of_window(one), sides, strict=True)
        outputs += [Output(name, side) for name, side in parts]
    return outputs


def _sides(column: TreeNode, value: TreeNode, over: Expressions) -> tuple[tuple[Scalar, Scalar], Scalar]:
    """The start and the end of a window of time, and the window. A grouping set may lack it: then all are NULL."""
    if value.kind == "Literal":
        if are_sessions(column):
            what = "session_window() in ROLLUP, CUBE or GROUPING SETS"
            raise over.context.unsupported(value.place, what, "Group by it in a subquery.")
        start, end = (null(field.type) for field in value.type or ())
        return (start, end), null(column.type)
    sides = bounds(value, over)
    if sides is None:
        start, end = (over.of(part_of(value, place)) for place in (0, 1))
        return (start, end), over.of(value)
    return sides, window_of(*sides, column.type)


def _turned(translation: Translation, node: TreeNode, below: Relation, over: Expressions) -> Relation:
    """UNPIVOT: each row once for each of some columns. What all copies have alike is computed once."""
    columns = node.fields["output"]
    rows = list(zip(*node.fields["projections"], strict=True))
    alike = [one for one, values in zip(columns, rows, strict=True) if len({v.meaning for v in values}) == 1]
    turned = [(one, [over.of(value) for value in values]) for one, values in zip(columns, rows, strict=True)]
    turned = [(one, values) for one, values in turned if one not in alike]
    types = [one.type for one, _ in turned]
    values = [
        [null(type) if is_null(value.type) else value for value in column]
        for type, (_, column) in zip(types, turned, strict=True)
    ]
    structs = [struct_sql([value.sql for value in row]) for row in zip(*values, strict=True)]
    type = array_type(struct_type([one.fields["name"] for one, _ in turned], types))
    fails = any(any_fails(column) for column in values)
    elements = Scalar(f"[{', '.join(structs)}]", type, fails, nulls=frozenset())
    names = [translation.name(one) for one, _ in turned]
    made = exploded(below, Generated(elements, tuple(names), False, False), names, node.place)
    known = {one.name: one for one in kept(made)}
    first = {one.id: value for one, value in zip(columns, node.fields["projections"][0], strict=True)}
    outputs = []
    for one in columns:
        name = translation.name(one)
        value = known[name].value if one not in alike else translation.over(made).of(first[one.id])
        outputs.append(Output(name, value))
    return projected(made, outputs, node.place)


RULES: Mapping[str, Rule] = {"Expand": _expanded}
