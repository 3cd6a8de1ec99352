"""Window functions."""

from collections.abc import Sequence

from upriver.plan.plan import WHOLE_PARTITION, FrameUnit, WindowCall, WindowFrame
from upriver.plan.relation import Relation
from upriver.plan.source import ELSEWHERE
from upriver.sql.relations import Output, projected
from upriver.sql.resolved.aggregates import aggregate_call
from upriver.sql.resolved.expressions import Expressions
from upriver.sql.resolved.operators import order_key
from upriver.sql.resolved.translation import Rule, Translation
from upriver.sql.resolved.tree import Node
from upriver.sql.window_functions import _AGGREGATED, WindowFunction, with_window_functions

RANKS = {
    "Rank": "rank",
    "DenseRank": "dense_rank",
    "RowNumber": "row_number",
    "PercentRank": "percent_rank",
    "CumeDist": "cume_dist",
    "NTile": "ntile",
}


def _window(translation: Translation, node: Node) -> Relation:
    (inner,), listed, sorted_by = node.children, None, []
    if not node.fields["orderSpec"] and inner.kind == "Project" and inner.children[0].kind == "Sort":
        # Catalyst makes ROW_NUMBER() of a LIMIT in a correlated subquery, and leaves it to the order beneath.
        listed, sorted_by = inner.fields["projectList"], inner.children[0].fields["order"]
        inner = inner.children[0].children[0]
    elif not node.fields["orderSpec"] and inner.kind == "Sort":
        sorted_by, inner = inner.fields["order"], inner.children[0]
    below = translation.relation(inner)
    over = translation.over(below)
    functions = [_window_function(translation, one, over, sorted_by) for one in node.fields["windowExpressions"]]
    rows = with_window_functions(below, functions)
    if listed is None:
        return rows
    results = [Output(one.name, translation.column(rows, one.name)) for one in functions]
    return projected(rows, [*translation.outputs(listed, translation.over(rows)), *results], node.place)


def _window_function(
    translation: Translation, alias: Node, over: Expressions, sorted_by: Sequence[Node]
) -> WindowFunction:
    name = translation.name(alias)
    window = alias.children[0]
    function, spec = window.fields["windowFunction"], window.fields["windowSpec"]
    partition = tuple(Output("partition", over.of(one)) for one in spec.fields["partitionSpec"])
    order = tuple(order_key(translation, one, over) for one in spec.fields["orderSpec"] or sorted_by)
    values: dict[str, Output] = {}
    if function.kind in RANKS:
        number = over.of(function.children[0]).constant if function.kind == "NTile" else 0
        call = WindowCall(RANKS[function.kind], None, name, window.type, number=number)
    elif function.kind in ("Lag", "Lead"):
        argument = over.of(function.fields["input"])
        offset, default = over.of(function.fields["offset"]).constant, function.fields["default"]
        if function.kind == "Lag":
            offset = abs(offset) if offset is not None else 1
        values["argument"] = Output("argument", argument)
        if not (default.kind == "Literal" and default.fields["value"] is None):
            values["default"] = Output("default", over.of(default))
        call = WindowCall(
            function.kind.lower(),
            None,
            name,
            argument.type,
            number=offset,
            ignores_nulls=function.fields["ignoreNulls"],
        )
    elif function.kind == "AggregateExpression":
        found = aggregate_call(translation, function, over)
        if found.function not in _AGGREGATED or found.distinct:
            raise translation.source.unsupported(alias.place, f"{found.function} OVER", ELSEWHERE)
        if found.argument is not None:
            values["argument"] = Output("argument", found.argument)
        if found.where is not None:
            values["where"] = Output("where", found.where)
        call = WindowCall(
            found.function, None, name, found.type, frame=_frame(translation, spec.fields["frameSpecification"], over)
        )
    else:
        raise translation.source.unsupported(alias.place, f"{function.name} OVER", ELSEWHERE)
    return WindowFunction(call, values, partition, order, alias.place)


def _frame(translation: Translation, frame: Node, over: Expressions) -> WindowFrame:
    unit = FrameUnit.ROWS if frame.fields["frameType"] == "RowFrame" else FrameUnit.RANGE
    bounds = [_bound(translation, frame.fields[side], over) for side in ("lower", "upper")]
    return WHOLE_PARTITION if bounds == [None, None] else WindowFrame(unit, *bounds)


def _bound(translation: Translation, bound: Node, over: Expressions) -> float | None:
    if bound.kind.startswith("Unbounded"):
        return None
    if bound.kind.startswith("CurrentRow"):
        return 0
    if bound.kind == "UnaryMinus":
        return -_bound(translation, bound.children[0], over)
    if bound.kind != "Literal":
        raise translation.source.unsupported(bound.place, "this bound of a frame", ELSEWHERE)
    return int(bound.fields["value"])


RULES: dict[str, Rule] = {
    "Window": _window,
}
