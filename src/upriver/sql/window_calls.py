"""Window functions: ``f(...) OVER (PARTITION BY ... ORDER BY ... ROWS ...)``."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from decimal import Decimal

import pyarrow as pa

from upriver.plan.plan import WHOLE_PARTITION, AggregateCall, FrameUnit, WindowCall, WindowFrame
from upriver.plan.relation import Relation
from upriver.plan.source import ELSEWHERE
from upriver.plan.types import is_date, is_decimal, is_instant, is_integer, is_null, is_wall_clock, spark_name
from upriver.sql.aggregate_calls import planned
from upriver.sql.attachments import attached
from upriver.sql.expressions import Expressions
from upriver.sql.functions.arithmetic import DAY_MICROS
from upriver.sql.functions.scalars import typed_name
from upriver.sql.groups import CALL
from upriver.sql.literals import whole, written
from upriver.sql.operators import order_key, projection, sortable
from upriver.sql.relations import Output
from upriver.sql.translation import Rule, Translation
from upriver.sql.tree import TreeNode
from upriver.sql.window_functions import (
    AGGREGATED,
    FRAMED,
    OTHER,
    RANGE_DIGITS_MAX,
    WHOLE_SORT,
    OrderKey,
    WindowFunction,
    with_window_functions,
)

_PLACES = {
    "Rank": "rank",
    "DenseRank": "dense_rank",
    "RowNumber": "row_number",
    "PercentRank": "percent_rank",
    "CumeDist": "cume_dist",
    "NTile": "ntile",
}
"""Functions of the row's place."""
_ENDS = {"First": "first_value", "AnyValue": "first_value", "Last": "last_value", "NthValue": "nth_value"}
"""Functions that give the value of one row of the frame."""
_A_NUMBER = "Write a whole number."
_A_DISTANCE = "Write it as a number: 5, of a DECIMAL 0.5, of a DOUBLE 0.5D."
_GROUP = (
    "GROUP BY in a subquery, and join with it: FROM t JOIN (SELECT k, sum(x) AS x FROM t GROUP BY k) AS s ON s.k = t.k."
)


def _windowed(translation: Translation, node: TreeNode) -> Relation:
    nodes = [node]
    while _joins(nodes[-1]):
        nodes.append(nodes[-1].children[0])
    (below,) = nodes[-1].children
    listed: Sequence[TreeNode] | None = None
    sorted_by: Sequence[TreeNode] = []
    if len(nodes) == 1 and not node.fields["orderSpec"]:
        # Catalyst makes ROW_NUMBER() of a LIMIT in a correlated subquery, and leaves it to the order beneath.
        if below.kind == "Project" and below.children[0].kind == "Sort":
            listed, (below,) = below.fields["projectList"], below.children
        if below.kind == "Sort":
            sorted_by, (below,) = below.fields["order"], below.children
    every = [one for window in reversed(nodes) for one in window.fields["windowExpressions"]]
    calls = [one for one in every if not one.is_column]  # Catalyst lists what the query around needs, too
    rows = attached(translation, translation.relation(below), [*calls, *sorted_by])
    over = translation.over(rows)
    functions = [_function(translation, one, over, sorted_by) for one in calls]
    rows = with_window_functions(rows, functions)
    if listed is None:
        return rows
    results = [TreeNode("AttributeReference", one.fields, type=one.type, name=one.name) for one in calls]
    return projection(translation, attached(translation, rows, listed), [*listed, *results], node.place)


def _joins(node: TreeNode) -> bool:
    """Whether the window functions beneath these can be computed together with them: none of these needs their results.
    Those that number rows then come last, so that a condition can bound them."""
    (below,) = node.children
    if below.kind != "Window":
        return False
    made = {one.id for one in below.fields["windowExpressions"]}
    return not any(made & one.references for one in node.fields["windowExpressions"])


def _function(
    translation: Translation, alias: TreeNode, over: Expressions, sorted_by: Sequence[TreeNode]
) -> WindowFunction:
    """One function. sorted_by: the order of the rows, if the function has none itself."""
    (window,) = alias.children
    function, spec = window.fields["windowFunction"], window.fields["windowSpec"]
    partition = tuple(sortable(translation, one, over, window.place) for one in spec.fields["partitionSpec"])
    order = tuple(order_key(translation, one, over) for one in spec.fields["orderSpec"] or sorted_by)
    call, values = _call(translation, function, over)
    if function.kind in (CALL, "NthValue"):
        call = replace(call, frame=_frame(spec.fields["frameSpecification"], order, over))
    return WindowFunction(replace(call, output=translation.name(alias)), values, partition, order, alias.place)


Called = tuple[WindowCall, dict[str, Output]]
"""A call without a name, and its columns, by field."""


def _call(translation: Translation, function: TreeNode, over: Expressions) -> Called:
    kind = function.kind
    if kind in _PLACES:
        return _numbering(function, over)
    if kind in ("Lag", "Lead"):
        return _neighbour(translation, function, over)
    if kind == "NthValue":
        number = _number(function.fields["offset"], function, over, least=1)
        return _end(translation, function, function.fields["input"], number, over)
    if kind != CALL:
        raise over.context.unsupported(function.place, f"{function.name}() OVER", ELSEWHERE)
    called = function.children[0]
    if called.kind in _ENDS:
        if function.fields["filter"] is not None:
            what = f"{called.name}() OVER with FILTER"
            raise over.context.unsupported(function.place, what, "Filter in a subquery.")
        return _end(translation, called, called.children[0], 0, over)
    return _aggregated(translation, function, over)


def _numbering(function: TreeNode, over: Expressions) -> Called:
    """A function of the row's place: a rank, a share, or a group."""
    number = _number(function.children[0], function, over, least=1) if function.kind == "NTile" else 0
    return WindowCall(_PLACES[function.kind], None, "", function.type, number=number), {}


def _neighbour(translation: Translation, function: TreeNode, over: Expressions) -> Called:
    """The value of a row some places before or behind."""
    title, given, default = function.kind.lower(), function.fields["input"], function.fields["default"]
    argument = _argument(translation, function, given, over)
    offset = function.fields["inputOffset" if function.kind == "Lag" else "offset"]
    distance, ignores = _number(offset, function, over), bool(function.fields["ignoreNulls"])
    if ignores and not distance:
        what = f"{title}() of the row itself with IGNORE NULLS"
        raise over.context.unsupported(function.place, what, "Take the value itself.")
    values = {"argument": argument}
    if default.kind != "Literal" or default.fields["value"] is not None:
        values["default"] = Output(translation.worded(default), over.of(default))
    return WindowCall(title, None, "", argument.value.type, number=distance, ignores_nulls=ignores), values


def _end(translation: Translation, function: TreeNode, given: TreeNode, number: int, over: Expressions) -> Called:
    """The value of the first row of the frame, of its last, or of its nth."""
    argument = _argument(translation, function, given, over)
    ignores = bool(function.fields["ignoreNulls"])
    call = WindowCall(_ENDS[function.kind], None, "", argument.value.type, number=number, ignores_nulls=ignores)
    return call, {"argument": argument}


def _aggregated(translation: Translation, function: TreeNode, over: Expressions) -> Called:
    found, title = planned(function, over), function.children[0].name.lower()
    call = found.call
    own = call.function in AGGREGATED and not call.distinct
    is_framed = call.function in FRAMED or call.function == "collect_list"
    if found.is_made or (not own and (not is_framed or call.distinct != (call.function == "collect_list"))):
        raise over.context.unsupported(function.place, f"{title}() OVER", _GROUP)
    operand = next(iter(function.children[0].children), function)
    values: dict[str, Output] = {}
    if call.argument is not None:
        values["argument"] = Output(translation.worded(operand), call.argument)
    values |= {f"{OTHER}{number}": Output(title, other) for number, other in enumerate(call.others)}
    if call.where is not None:
        values["where"] = Output(translation.worded(function.fields["filter"] or operand), call.where)
    if own:
        return WindowCall(call.function, None, "", call.type), values
    others = ("",) * len(call.others)
    aggregate = AggregateCall(
        call.function, "", "", call.type, call.distinct, None, others, call.fraction, fractions=call.fractions
    )
    return WindowCall(call.function, None, "", call.type, aggregate=aggregate), values


def _argument(translation: Translation, function: TreeNode, given: TreeNode, over: Expressions) -> Output:
    value = over.of(given)
    if is_null(value.type):
        raise over.context.unsupported(function.place, f"{function.name}() of {typed_name(value)}", "Give it a column.")
    return Output(translation.worded(given), value)


def _number(given: TreeNode, function: TreeNode, over: Expressions, least: int | None = None) -> int:
    """A whole number that is written out."""
    number = whole(given)
    if number is None or (least is not None and number < least):
        raise over.context.unsupported(function.place, "a distance or a place that is no number", _A_NUMBER)
    return number


# Frames


def _frame(frame: TreeNode, order: Sequence[OrderKey], over: Expressions) -> WindowFrame:
    unit = FrameUnit.ROWS if frame.fields["frameType"] == "RowFrame" else FrameUnit.RANGE
    start, end = (_bound(frame.fields[side], unit, order, over) for side in ("lower", "upper"))
    return WHOLE_PARTITION if start is None and end is None else WindowFrame(unit, start, end)


def _bound(bound: TreeNode, unit: FrameUnit, order: Sequence[OrderKey], over: Expressions) -> float | None:
    """One bound of a frame, as :class:`WindowFrame` has it."""
    if bound.kind.startswith("Unbounded"):
        return None
    if bound.kind.startswith("CurrentRow"):
        return 0
    if unit is FrameUnit.ROWS:
        return _number(bound, bound, over)
    return _distance(bound, order, over)


def _distance(bound: TreeNode, order: Sequence[OrderKey], over: Expressions) -> float:
    """A distance of RANGE, in units of the sort column."""
    context, place = over.context, bound.place
    type, value = order[0].value.type if len(order) == 1 else pa.null(), written(bound)
    if _is_interval(bound):
        if isinstance(value, int) and is_date(type) and value % DAY_MICROS == 0:
            return value // DAY_MICROS
        if isinstance(value, int) and (is_instant(type) or is_wall_clock(type)):
            if is_instant(type) and abs(value) >= DAY_MICROS:
                context.need_utc(place, "RANGE of days")
            return value
        raise context.unsupported(place, "RANGE of this distance", WHOLE_SORT)
    if (is_integer(type) or is_date(type)) and isinstance(value, int):
        room = 2 ** (type.bit_width - 1)
        if abs(value) >= room:
            what = f"RANGE of {value}, which {spark_name(type)} cannot hold,"
            raise context.unsupported(place, what, f"Give less than {room}.")
        return value
    if is_decimal(type) and type.precision <= RANGE_DIGITS_MAX and isinstance(value, int | Decimal):
        units = Decimal(value).scaleb(type.scale)
        if units == units.to_integral_value():
            return int(units)
    if type == pa.float64() and isinstance(value, int | float):
        return float(value)
    instead = _A_DISTANCE if is_decimal(type) or type == pa.float64() else WHOLE_SORT
    raise context.unsupported(place, "RANGE of this distance", instead)


def _is_interval(node: TreeNode) -> bool:
    literals = [one for one in node.walk() if one.kind == "Literal"]
    return any(str(one.fields["dataType"]).startswith("interval") for one in literals)


RULES: Mapping[str, Rule] = {"Window": _windowed}
