"""Window functions: ``f(...) OVER (PARTITION BY ... ORDER BY ... ROWS ...)``.

Functions with the same partition and order become one operator. ROW_NUMBER, RANK and DENSE_RANK become a TopK first,
whose limit a later condition may set (:func:`upriver.sql.relations.bounded`). One that has no limit in the end becomes
a window function like the others.

A named window (``WINDOW w AS (...)``) is written out where it is used.
"""

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal

import pyarrow as pa
from sqlglot import exp

from upriver.plan.plan import (
    WHOLE_PARTITION,
    AggregateCall,
    FrameUnit,
    Order,
    Ranking,
    TopKOp,
    WindowCall,
    WindowFrame,
    WindowOp,
)
from upriver.plan.relation import Relation, Scalar
from upriver.plan.source import ELSEWHERE, Source
from upriver.plan.types import is_date, is_decimal, is_instant, is_integer, is_null, is_wall_clock, spark_name
from upriver.sql.aggregates import AGGREGATES, aggregate_call
from upriver.sql.aggregates import called as called_function
from upriver.sql.casts import cast
from upriver.sql.operators import DAY_MICROS, interval_of
from upriver.sql.relations import UNBOUNDED, Output, windowed, with_values
from upriver.sql.scalars import Context, column_scalar, construct, typed_name
from upriver.sql.scope import worded
from upriver.sql.windows import OrderKey, orders, sort_key, sortable

_RANK_TYPE = pa.int32()
_RANKINGS = {ranking.value: ranking for ranking in Ranking}
_SHARES = frozenset({"percent_rank", "cume_dist"})
_NEIGHBOURS = frozenset({"lag", "lead"})
_ENDS = {
    "first_value": "first_value",
    "first": "first_value",
    "any_value": "first_value",
    "last_value": "last_value",
    "last": "last_value",
    "nth_value": "nth_value",
}
"""Functions that give the value of one row of the frame."""
AGGREGATED = frozenset(
    {"count_star", "count", "sum", "avg", "min", "max", "bool_and", "bool_or"}
    | {"stddev_samp", "stddev_pop", "var_samp", "var_pop", "collect_list"}
)
"""Those aggregates that window functions have themselves."""
FRAMED = frozenset(
    {
        "min_by",
        "max_by",
        "mode",
        "greatest_mode",
        "percentile",
        "percentile_disc",
        "percentile_approx",
        "approx_count_distinct",
    }
    | {"bit_and", "bit_or", "bit_xor", "try_sum", "skewness", "kurtosis", "corr", "covar_pop", "covar_samp"}
    | {"regr_avgx", "regr_avgy", "regr_r2", "regr_slope", "regr_intercept", "regr_sxx", "regr_syy", "regr_sxy"}
)
"""Those that are computed of each frame as of a group."""
_ORDERED = _RANKINGS.keys() | _SHARES | _NEIGHBOURS | {"ntile"}
"""Functions that mean nothing without ORDER BY, and have no frame."""

_UP_TO_CURRENT = WindowFrame(FrameUnit.RANGE, None, 0)
_RUNNING = WindowFrame(FrameUnit.ROWS, None, 0)

OTHER = "other"
"""The field of a further value of an aggregate begins so."""

_SIDES = {"PRECEDING": -1, "FOLLOWING": 1}

_GROUP = (
    "GROUP BY in a subquery, and join with it: FROM t JOIN (SELECT k, sum(x) AS x FROM t GROUP BY k) AS s ON s.k = t.k."
)
_A_NUMBER = "Write a whole number."
_COMPUTED = {exp.Add: operator.add, exp.Sub: operator.sub, exp.Mul: operator.mul}
RANGE_DIGITS_MAX = 18
"""Digits of a DECIMAL that RANGE goes by."""
WHOLE_SORT = (
    f"Sort by one column that is a whole number, a DOUBLE, a DECIMAL of at most {RANGE_DIGITS_MAX} digits, a DATE or "
    f"a TIMESTAMP; or count in ROWS."
)
_A_DISTANCE = "Write it as a number: 5, of a DECIMAL 0.5, of a DOUBLE 0.5D."


@dataclass(frozen=True, slots=True)
class WindowFunction:
    """A window function, translated. name: of the column of its results. values: of those of its columns that are
    computed, by the field of ``call``, whose own names are not yet those of columns."""

    call: WindowCall
    values: Mapping[str, Output]
    partition: tuple[Output, ...]
    order: tuple[OrderKey, ...]
    place: int | None

    @property
    def name(self) -> str:
        return self.call.output

    @property
    def inputs(self) -> list[Output]:
        """All values that it needs: of the partition, of the order, and of the call."""
        return [*self.partition, *(Output(key.name, key.value) for key in self.order), *self.values.values()]


def windows_in(select: exp.Select) -> list[exp.Window]:
    """The window functions of a SELECT, without those of queries inside it."""
    return [node for node in select.find_all(exp.Window) if node.parent_select is select and node.arg_key != "windows"]


def write_out_windows(source: Source, select: exp.Select) -> None:
    """Put the definitions of named windows in the places where they are used. Raises DeclarationError for a name that
    is not defined."""
    named: dict[str, exp.Expr] = {}
    for window in select.args.get("windows") or ():
        named[window.name.lower()] = window
    for node in windows_in(select):
        seen: set[str] = set()
        while node.args.get("alias") is not None:
            name = node.args["alias"].name.lower()
            if name not in named or name in seen:
                raise source.wrong(node, f"there is no window {name!r}", f"Define it: WINDOW {name} AS (...).")
            seen.add(name)
            for part in ("alias", "partition_by", "order", "spec"):
                value = named[name].args.get(part)
                copies = [one.copy() for one in value] if isinstance(value, list) else value and value.copy()
                node.set(part, copies)
    select.set("windows", None)


def window_function(context: Context, node: exp.Expr, name: str) -> WindowFunction:
    """A bound window function, translated. name: of its results' column. Raises UnsupportedSql, DeclarationError."""
    context.only(node, "this", "partition_by", "order", "spec", "over")
    partition = tuple(Output(worded(part), sortable(context, part)) for part in node.args.get("partition_by") or ())
    clause = node.args.get("order")
    order = () if clause is None else tuple(sort_key(context, part, part.this) for part in clause.expressions)
    function, nulls = _function(context, node)
    called = called_function(function)
    title = called.name.lower()
    if title in _ORDERED:
        if clause is None:
            raise context.source.wrong(node, f"{called.name}() OVER without ORDER BY", "Say which rows come first.")
        if node.args.get("spec") is not None and (title in _NEIGHBOURS or _frame(context, node, order) != _RUNNING):
            raise context.unsupported(node, f"ROWS or RANGE of {called.name}()", "Leave the frame out.")
        call, values = _numbering(context, function, name, nulls)
    elif title in _ENDS:
        call, values = _value_of(context, function, name, nulls)
        call = replace(call, frame=_frame(context, node, order))
    else:
        call, values = _aggregated(context, node, function, name, nulls)
        call = replace(call, frame=_frame(context, node, order))
    return WindowFunction(call, values, partition, order, context.source.place(node))


def with_window_functions(relation: Relation, functions: Sequence[WindowFunction]) -> Relation:
    """All rows with a column for each function. Ranks come last, so that a condition can bound them."""
    taken = {name.lower() for name in (*relation.schema.names, *(function.name for function in functions))}
    inputs = [value for function in functions for value in function.inputs]
    relation, names = with_values(relation, inputs, taken)
    known = iter(names)
    ranks: list[tuple[TopKOp, int | None]] = []
    windows: dict[tuple[tuple[str, ...], tuple[Order, ...]], list[tuple[WindowCall, int | None]]] = {}
    for function in functions:
        partition = tuple(dict.fromkeys([next(known) for _ in function.partition]))
        order = orders([next(known) for _ in function.order], function.order)
        columns = {field: next(known) for field in function.values}
        call = _of_columns(function.call, columns)
        if call.function in _RANKINGS:
            ranks.append((TopKOp(partition, order, UNBOUNDED, _RANKINGS[call.function], call.output), function.place))
        else:
            windows.setdefault((partition, order), []).append((call, function.place))
    for (partition, order), calls in windows.items():
        relation = windowed(relation, WindowOp(partition, order, tuple(call for call, _ in calls)), calls[0][1])
    for op, place in ranks:
        assert op.rank is not None, "a rank has a column"
        relation = Relation(op, (relation,), relation.schema.append(pa.field(op.rank, _RANK_TYPE)), place)
    return relation


def _of_columns(call: WindowCall, columns: Mapping[str, str]) -> WindowCall:
    """The call with the names of its columns, which are given by field."""
    argument, where, default = (columns.get(field) for field in ("argument", "where", "default"))
    of = call.aggregate
    if of is None:
        return replace(call, argument=argument, where=where, default=default)
    others = tuple(columns[f"{OTHER}{number}"] for number in range(len(of.others)))
    return replace(call, aggregate=replace(of, argument=argument, where=where, others=others))


def all_numbered(relation: Relation) -> Relation:
    """The tree with a window function for each rank that no condition bounds."""
    done: dict[int, Relation] = {}

    def rewritten(part: Relation) -> Relation:
        if id(part) not in done:
            inputs = tuple(rewritten(below) for below in part.inputs)
            same = all(new is old for new, old in zip(inputs, part.inputs, strict=True))
            whole = isinstance(part.op, TopKOp) and part.op.limit == UNBOUNDED
            done[id(part)] = _numbered(part, inputs[0]) if whole else part if same else replace(part, inputs=inputs)
        return done[id(part)]

    return rewritten(relation)


def _numbered(relation: Relation, below: Relation) -> Relation:
    """A rank over all rows of ``below``, by the operator of the other functions of its window, if that comes next."""
    op = relation.op
    assert isinstance(op, TopKOp)
    assert op.rank is not None, "only a numbering has no limit"
    call = WindowCall(op.ranking, None, op.rank, _RANK_TYPE)
    found = _joining(below, WindowOp(op.partition, op.order, (call,)))
    return windowed(below, WindowOp(op.partition, op.order, (call,)), relation.place) if found is None else found


def _joining(relation: Relation, op: WindowOp) -> Relation | None:
    """The relation with more functions of a window that it has already; ``None`` if it has no such window."""
    if not isinstance(relation.op, WindowOp):
        return None
    (below,) = relation.inputs
    if (relation.op.partition, relation.op.order) == (op.partition, op.order):
        return windowed(below, replace(op, calls=(*relation.op.calls, *op.calls)), relation.place)
    if not {*op.partition, *(one.column for one in op.order)} <= set(below.schema.names):
        return None
    found = _joining(below, op)
    return None if found is None else windowed(found, relation.op, relation.place)


# Functions ------------------------------------------------------------------------------------------------------------

Translated = tuple[WindowCall, dict[str, Output]]
"""A call, and its columns, by field."""


def _function(context: Context, node: exp.Expr) -> tuple[exp.Expr, bool]:
    """The function, with its FILTER if it has one; and whether it ignores nulls."""
    function = node.this
    ignores = isinstance(function, exp.IgnoreNulls)
    if isinstance(function, exp.IgnoreNulls | exp.RespectNulls):
        function = function.this
    called = called_function(function)
    if not isinstance(called, exp.Anonymous):
        raise context.unsupported(node, f"{construct(called)} OVER", ELSEWHERE)
    if any(isinstance(operand, exp.IgnoreNulls | exp.RespectNulls) for operand in called.expressions):
        instead = f"Write the words behind the call: {called.name}(x) IGNORE NULLS OVER (...)."
        raise context.unsupported(node, f"IGNORE NULLS inside {called.name}()", instead)
    if any(isinstance(operand, exp.Distinct) for operand in called.expressions):
        raise context.unsupported(node, f"{called.name}(DISTINCT ...) OVER", _GROUP)
    return function, ignores


def _numbering(context: Context, function: exp.Expr, name: str, nulls: bool) -> Translated:
    """A function of the row's place: a rank, a share, a group, or the value of a neighbour."""
    context.only(function, "this", "expressions")
    title, operands = function.name.lower(), function.expressions
    if title in _NEIGHBOURS:
        return _neighbour(context, function, name, nulls)
    most = int(title == "ntile")
    if nulls or len(operands) > most:
        raise context.unsupported(function, f"{title}() of {len(operands)} operands", f"It takes {most or 'none'}.")
    if title in _SHARES:
        return WindowCall(title, None, name, pa.float64()), {}
    number = _number(context, operands[0], function, least=1) if operands else 1
    return WindowCall(title, None, name, _RANK_TYPE, number=number if title == "ntile" else 0), {}


def _neighbour(context: Context, function: exp.Expr, name: str, nulls: bool) -> Translated:
    title, operands = function.name.lower(), function.expressions
    if not 1 <= len(operands) <= 3:
        what = f"{title}() of {len(operands)} operands"
        raise context.unsupported(function, what, f"Give it a value, how far, and a default: {title}(x, 1, 0).")
    argument = _argument(context, function, operands[0])
    distance = _number(context, operands[1], function) if len(operands) > 1 else 1
    if nulls and not distance:
        raise context.unsupported(function, f"{title}() of the row itself with IGNORE NULLS", "Take the value itself.")
    values = {"argument": Output(worded(operands[0]), argument)}
    if len(operands) > 2 and not isinstance(operands[2], exp.Null):
        default = cast(context, operands[2], context.translate(operands[2]), argument.type)
        values["default"] = Output(worded(operands[2]), default)
    return WindowCall(title, None, name, argument.type, number=distance, ignores_nulls=nulls), values


def _value_of(context: Context, function: exp.Expr, name: str, nulls: bool) -> Translated:
    """The value of the first row of the frame, of its last, or of its nth."""
    if isinstance(function, exp.Filter):
        raise context.unsupported(function, f"{function.this.name}() OVER with FILTER", "Filter in a subquery.")
    context.only(function, "this", "expressions")
    title, (*operands,) = function.name.lower(), function.expressions
    numbers = int(_ENDS[title] == "nth_value")
    if len(operands) == numbers + 2 and isinstance(operands[-1], exp.Boolean):
        nulls = nulls or bool(operands.pop().this)
    if len(operands) != numbers + 1:
        raise context.unsupported(function, f"{title}() of {len(operands)} operands", f"It takes {numbers + 1}.")
    argument = _argument(context, function, operands[0])
    number = _number(context, operands[1], function, least=1) if numbers else 0
    call = WindowCall(_ENDS[title], None, name, argument.type, number=number, ignores_nulls=nulls)
    return call, {"argument": Output(worded(operands[0]), argument)}


def _aggregated(context: Context, node: exp.Expr, function: exp.Expr, name: str, nulls: bool) -> Translated:
    called = called_function(function)
    title = called.name
    if nulls or title.lower() not in AGGREGATES:
        raise context.unsupported(node, f"{title}() OVER{' with IGNORE NULLS' if nulls else ''}", _GROUP)
    found = aggregate_call(context, function)
    own = found.function in AGGREGATED and not found.distinct
    if not own and (
        found.distinct != (found.function == "collect_list") or found.function not in {*FRAMED, "collect_list"}
    ):
        raise context.unsupported(node, f"{title}() OVER", _GROUP)
    values: dict[str, Output] = {}
    if found.argument is not None:
        values["argument"] = Output(worded(called.expressions[0] if called.expressions else called), found.argument)
    values |= {f"{OTHER}{number}": Output(title.lower(), other) for number, other in enumerate(found.others)}
    if found.where is not None:
        values["where"] = Output(worded(function.expression.this if called is not function else called), found.where)
    if own:
        return WindowCall(found.function, None, name, found.type), values
    aggregate = AggregateCall(
        found.function,
        "",
        "",
        found.type,
        found.distinct,
        None,
        ("",) * len(found.others),
        found.fraction,
        fractions=found.fractions,
    )
    return WindowCall(found.function, None, name, found.type, aggregate=aggregate), values


def _argument(context: Context, function: exp.Expr, node: exp.Expr) -> Scalar:
    value = context.translate(node)
    if is_null(value.type):
        raise context.unsupported(function, f"{function.name}() of {typed_name(value)}", "Give it a column.")
    return value


def _whole(written: exp.Expr) -> int | None:
    """The value of a whole number, or of sums and the like of them; ``None`` for anything else."""
    match written:
        case exp.Paren():
            return _whole(written.this)
        case exp.Literal():
            return int(written.this) if not written.is_string and written.this.isdigit() else None
        case exp.Neg():
            negated = _whole(written.this)
            return None if negated is None else -negated
        case exp.Add() | exp.Sub() | exp.Mul():
            left, right = _whole(written.this), _whole(written.expression)
            return None if left is None or right is None else _COMPUTED[type(written)](left, right)
        case _:
            return None


def _number(context: Context, written: exp.Expr, node: exp.Expr, least: int | None = None) -> int:
    """A whole number that is written out. node: the window function, or the call, for its place."""
    number = _whole(written)
    if number is None:
        raise context.unsupported(node, "a distance or a place that is no number", _A_NUMBER)
    if least is not None and number < least:
        raise context.source.wrong(node, f"{number} for a place or a number of groups", f"Give {least} or more.")
    return number


# Frames ---------------------------------------------------------------------------------------------------------------


def _frame(context: Context, node: exp.Expr, order: Sequence[OrderKey]) -> WindowFrame:
    spec = node.args.get("spec")
    if spec is None:
        return _UP_TO_CURRENT if order else WHOLE_PARTITION
    unit = str(spec.args.get("kind")).lower()
    if unit not in tuple(FrameUnit) or spec.args.get("exclude"):
        raise context.unsupported(node, "a frame other than ROWS or RANGE", "Count it in ROWS.")
    start, end = (_bound(context, node, part, FrameUnit(unit), order) for part in ("start", "end"))
    if start is not None and end is not None and start > end:
        raise context.source.wrong(node, "a frame that ends before it begins", "Give the lower bound first.")
    return WindowFrame(FrameUnit(unit), start, end)


def _bound(context: Context, node: exp.Expr, part: str, unit: FrameUnit, order: Sequence[OrderKey]) -> float | None:
    """One bound of a frame, as :class:`WindowFrame` has it."""
    spec = node.args["spec"]
    written, side = spec.args.get(part), str(spec.args.get(f"{part}_side")).upper()
    if written is None or (isinstance(written, str) and written.upper() == "CURRENT ROW"):
        return 0
    if isinstance(written, str) and written.upper() == "UNBOUNDED":
        if side != ("PRECEDING" if part == "start" else "FOLLOWING"):
            raise context.source.wrong(node, f"a frame from or to UNBOUNDED {side}", "Give the lower bound first.")
        return None
    if unit is FrameUnit.ROWS:
        return _SIDES[side] * _number(context, written, node)
    return _SIDES[side] * _distance(context, written, order, node)


def _distance(context: Context, written: exp.Expr, order: Sequence[OrderKey], node: exp.Expr) -> float:
    """A distance of RANGE, in units of the sort column."""
    type = order[0].value.type if len(order) == 1 else pa.null()
    interval = interval_of(written) if isinstance(written, exp.Interval) else None
    if (is_integer(type) or is_date(type)) and not isinstance(written, exp.Interval):
        distance, room = _number(context, written, node), 2 ** (type.bit_width - 1)
        if abs(distance) >= room:
            what = f"RANGE of {distance}, which {spark_name(type)} cannot hold"
            raise context.source.wrong(node, what, f"Give less than {room}.")
        return distance
    if type == pa.float64() or (is_decimal(type) and type.precision <= RANGE_DIGITS_MAX):
        return _decimal_distance(context, written, type, node)
    if interval is not None and not interval.months:
        if is_date(type) and interval.in_days:
            return interval.micros // DAY_MICROS
        if is_instant(type) and abs(interval.micros) >= DAY_MICROS:
            context.need_utc(node, "RANGE of days")
        if is_instant(type) or is_wall_clock(type):
            return interval.micros
    raise context.unsupported(node, "RANGE of this distance", WHOLE_SORT)


def _decimal_distance(context: Context, written: exp.Expr, type: pa.DataType, node: exp.Expr) -> float:
    """A distance of a DOUBLE, or in units of the last digit of a DECIMAL."""
    distance = context.translate(written).constant
    if is_decimal(type) and isinstance(distance, int | Decimal) and not isinstance(distance, bool):
        units = Decimal(distance).scaleb(type.scale)
        if units == units.to_integral_value():
            return int(units)
    if type == pa.float64() and isinstance(distance, int | float) and not isinstance(distance, bool):
        return float(distance)
    raise context.unsupported(node, "RANGE of this distance", _A_DISTANCE)


def result_scalar(function: WindowFunction) -> Scalar:
    """The results, as a column of the rows."""
    return column_scalar(function.name, function.call.type)
