"""An aggregate over all rows, in two phases: each slot's rows are aggregated first, and then all slots.

So the workers share the rows, and one of them has only a row for each slot. A function is split if it can be computed
from its results for the slots. If one of a query's functions cannot, all rows are aggregated in one place.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from upriver.hashing import is_plain_key_type
from upriver.plan.column_names import quoted
from upriver.plan.plan import (
    ALL_ALIKE,
    SALT_COLUMNS_MAX,
    SLOTS,
    AggregateCall,
    AggregatePlan,
    Projection,
    SaltOp,
)
from upriver.plan.types import decimal_kernel, decimal_sum_type, duck_name, is_decimal, is_integer

_AS_THEMSELVES = frozenset({"min", "max", "any_value", "bool_and", "bool_or"})
_COUNTS = frozenset({"count", "count_star"})
_COUNTS_AS_DECIMAL = pa.decimal128(20, 0)


@dataclass(frozen=True, slots=True)
class TwoPhases:
    """rows: the input. salt: of these rows. slots: the aggregate of each slot. whole: of all slots, and its schema. Its
    group is no column of the slots, or they would be brought to one place, too. output: the results."""

    rows: Projection
    salt: SaltOp
    slots: AggregatePlan
    whole: AggregatePlan
    whole_schema: pa.Schema
    output: Projection


def in_two_phases(plan: AggregatePlan, source: Projection, below: pa.Schema) -> TwoPhases | None:
    """The phases of an aggregate; ``None`` if it is not over all rows, or cannot be split. source: its input, made of
    rows of the schema ``below``."""
    if len(plan.group) != 1 or ALL_ALIKE not in plan.group[0]:
        return None
    keyed = _with_key(source, below)
    rows = _with_doubles(plan, keyed)
    split = [_split(call, rows.schema) for call in plan.calls]
    parts = [part for part in split if part is not None]
    (together,) = plan.group
    names = [field.name for field in keyed.schema if is_plain_key_type(field.type) and field.name != together]
    if not parts or len(parts) < len(split) or not names:
        return None
    salt = SaltOp(_free("slot", rows.schema.names), tuple(names[-SALT_COLUMNS_MAX:]), SLOTS)
    calls = tuple(call for part in parts for call in part.whole)
    alike = source.schema.field(together)
    schema = pa.schema([alike, *(pa.field(call.output, call.type) for call in calls)])
    results = pa.schema([alike, *(pa.field(call.output, call.type) for call in plan.calls)])
    slots = AggregatePlan((salt.column,), tuple(call for part in parts for call in part.slots), plan.retracts)
    output = Projection((quoted(together), *(part.result for part in parts)), results)
    return TwoPhases(rows, salt, slots, AggregatePlan((together,), calls, True), schema, output)


@dataclass(frozen=True, slots=True)
class _Split:
    """A function in two phases: for each slot, over the results of all slots, and the result as an expression."""

    slots: tuple[AggregateCall, ...]
    whole: tuple[AggregateCall, ...]
    result: str


def _split(call: AggregateCall, rows: pa.Schema) -> _Split | None:
    if call.distinct:
        return None
    part = replace(call, output=f"{call.output} of a slot")
    if call.function in _COUNTS:
        return _Split((part,), (_over("sum", part, call.output, pa.int64()),), quoted(call.output))
    if call.function in _AS_THEMSELVES:
        return _Split((part,), (_over(call.function, part, call.output, call.type),), quoted(call.output))
    if call.function == "sum":
        return _split_sum(call, part)
    return _split_mean(call, rows) if call.function == "avg" else None


def _split_sum(call: AggregateCall, part: AggregateCall) -> _Split:
    type = call.type
    if is_decimal(type):
        type = decimal_sum_type(type)
    result = quoted(call.output)
    result = result if type == call.type else f"CAST({result} AS {duck_name(call.type)})"
    return _Split((part,), (_over("sum", part, call.output, type),), result)


def _split_mean(call: AggregateCall, rows: pa.Schema) -> _Split:
    """As Spark does it: a sum of doubles, or of decimals, divided by the count."""
    argument, type = _mean_of(call, rows), pa.float64()
    if is_decimal(call.type):
        type = decimal_sum_type(rows.field(argument).type)
    total = replace(call, function="sum", argument=argument, output=f"{call.output}, the sum of a slot", type=type)
    count = replace(call, function="count", output=f"{call.output}, the count of a slot", type=pa.int64())
    sums = _over("sum", total, f"{call.output}, the sum", decimal_sum_type(type) if is_decimal(type) else type)
    counts = _over("sum", count, f"{call.output}, the count", pa.int64())
    result = f"({quoted(sums.output)} / CAST(nullif({quoted(counts.output)}, 0) AS DOUBLE))"
    if is_decimal(type):
        kernel = decimal_kernel("divide", type, _COUNTS_AS_DECIMAL, call.type)
        number = f"CAST(nullif({quoted(counts.output)}, 0) AS {duck_name(_COUNTS_AS_DECIMAL)})"
        result = f"{kernel}(CAST({quoted(sums.output)} AS {duck_name(type)}), {number})"
    return _Split((total, count), (sums, counts), result)


def _mean_of(call: AggregateCall, rows: pa.Schema) -> str:
    """The column of doubles or decimals that an average is of."""
    assert call.argument is not None, "an average of nothing"
    return _double(call.argument) if is_integer(rows.field(call.argument).type) else call.argument


def _over(function: str, part: AggregateCall, output: str, type: pa.DataType) -> AggregateCall:
    return AggregateCall(function, part.output, output, type)


def _double(name: str) -> str:
    return f"{name}, as DOUBLE"


def _with_doubles(plan: AggregatePlan, source: Projection) -> Projection:
    """With a column of doubles for each average of whole numbers."""
    means = {call.argument for call in plan.calls if call.function == "avg" and not call.distinct}
    texts = dict(zip(source.schema.names, source.expressions, strict=True))
    more = [name for name in source.schema.names if name in means and is_integer(source.schema.field(name).type)]
    expressions = [f"CAST({texts[name]} AS DOUBLE)" for name in more]
    return source.longer(expressions, [pa.field(_double(name), pa.float64()) for name in more])


def _with_key(source: Projection, below: pa.Schema) -> Projection:
    """With the first columns below by which rows can be spread."""
    names = [field.name for field in below if is_plain_key_type(field.type) and ALL_ALIKE not in field.name][:1]
    fields = [pa.field(_free(name, source.schema.names), below.field(name).type) for name in names]
    return source.longer([quoted(name) for name in names], fields)


def _free(name: str, taken: Sequence[str]) -> str:
    while name.lower() in {other.lower() for other in taken}:
        name += "_"
    return name
