"""Window functions as DuckDB's SQL: what they mean, said a second way."""

from collections.abc import Sequence

import pyarrow as pa

from upriver.plan.column_names import quoted
from upriver.plan.plan import FrameUnit, Order, WindowCall, WindowOp
from upriver.plan.types import duck_name

_BY_PEERS = ("rank", "dense_rank", "percent_rank", "cume_dist")


def windowed_sql(op: WindowOp, schema: pa.Schema, source: str) -> str:
    """A query. schema: of the input. source: the input, in parentheses. Under RANGE no sort value may be twice, if it
    matters to a function which of these rows comes first."""
    results = [f'CAST({_call(call, op, schema)} AS {duck_name(call.type)}) AS "{call.output}"' for call in op.calls]
    return f"SELECT *, {', '.join(results)} FROM {source}"


def sorted_by(order: Order) -> str:
    direction, nulls = ("DESC" if order.descending else "ASC"), ("FIRST" if order.nulls_first else "LAST")
    return f'"{order.column}" {direction} NULLS {nulls}'


def _call(call: WindowCall, op: WindowOp, schema: pa.Schema) -> str:
    order = list(map(sorted_by, op.order))
    by_peers = call.function in _BY_PEERS or call.frame.unit is FrameUnit.RANGE
    if not by_peers:
        order += [sorted_by(Order(name, False, True)) for name in schema.names]
    words = [f"PARTITION BY {', '.join(map(quoted, op.partition))}"] if op.partition else []
    words += [f"ORDER BY {', '.join(order)}"] if order else []
    if call.function in ("first_value", "last_value", "nth_value") or _is_aggregate(call):
        words.append(f"{call.frame.unit} BETWEEN {_bounds(call, op, schema)}")
    condition = call.where if call.aggregate is None else call.aggregate.where
    where = "" if condition is None else f' FILTER (WHERE "{condition}")'
    return f"{_function(call)}{where} OVER ({' '.join(words)})"


def _function(call: WindowCall) -> str:
    if call.function == "count_star":
        return "count(*)"
    argument = call.argument if call.aggregate is None else call.aggregate.argument
    operands = [] if argument is None else [quoted(argument)]
    operands += [str(call.number)] if call.function in ("lag", "lead", "nth_value", "ntile") else []
    operands += [] if call.default is None else [quoted(call.default)]
    return f"{call.function}({', '.join(operands)}{' IGNORE NULLS' if call.ignores_nulls else ''})"


def _is_aggregate(call: WindowCall) -> bool:
    return call.function not in (*_BY_PEERS, "row_number", "ntile", "lag", "lead")


def _bounds(call: WindowCall, op: WindowOp, schema: pa.Schema) -> str:
    type = schema.field(op.order[0].column).type if op.order else pa.null()
    units = "DAY" if pa.types.is_date(type) else "MICROSECOND" if pa.types.is_timestamp(type) else None
    if call.frame.unit is FrameUnit.ROWS:
        units = None
    ends: Sequence[tuple[float | None, str]] = ((call.frame.start, "PRECEDING"), (call.frame.end, "FOLLOWING"))
    return " AND ".join(_bound(distance, side, units) for distance, side in ends)


def _bound(distance: float | None, open_side: str, units: str | None) -> str:
    if distance is None:
        return f"UNBOUNDED {open_side}"
    if not distance:
        return "CURRENT ROW"
    far = str(abs(distance)) if units is None else f"INTERVAL {abs(distance)} {units}"
    return f"{far} {'PRECEDING' if distance < 0 else 'FOLLOWING'}"
