"""What tests of aggregates share: every call over a column, and its result by plain Python."""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pyarrow as pa
from state_kit import Row, decimal_of, order_of, plainly

from upriver.plan.plan import AggregateCall, AggregatePlan

MOMENTS = ("var_pop", "var_samp", "stddev_pop", "stddev_samp")
FUNCTIONS = ("count_star", "count", "sum", "avg", "min", "max", "any_value", "bool_and", "bool_or", *MOMENTS)
INTEGERS = (pa.int8(), pa.int16(), pa.int32(), pa.int64())
FLOATS = (pa.float32(), pa.float64())


def result_type(function: str, type: pa.DataType) -> pa.DataType | None:
    """What Spark gives; ``None`` if the function does not take the type."""
    if function in ("count_star", "count"):
        return pa.int64()
    if function in ("min", "max", "any_value"):
        return type
    if function in ("bool_and", "bool_or"):
        return type if type == pa.bool_() else None
    if function in MOMENTS:
        return pa.float64() if type in INTEGERS or type in FLOATS or pa.types.is_decimal(type) else None
    if pa.types.is_decimal(type):
        more = (10, 0) if function == "sum" else (4, 4)
        return pa.decimal128(min(38, type.precision + more[0]), type.scale + more[1])
    if type in FLOATS or (type in INTEGERS and function == "avg"):
        return pa.float64()
    return pa.int64() if type in INTEGERS else None


def calls_of(
    columns: Iterable[pa.Field], functions: Sequence[str] = FUNCTIONS, distinct: bool = False, where: str | None = None
) -> tuple[AggregateCall, ...]:
    """Each of these functions of every column that it takes."""
    calls = []
    for function in functions:
        for column in columns if function != "count_star" else [None]:
            argument, type = (None, pa.null()) if column is None else (column.name, column.type)
            result = result_type(function, type)
            if result is not None:
                name = f"{function}_{'distinct_' * distinct}{argument}_{where}"
                calls.append(AggregateCall(function, argument, name, result, distinct, where))
    return tuple(calls)


def half_up(value: Fraction, scale: int) -> Decimal:
    magnitude = math.floor(abs(value) * 10**scale + Fraction(1, 2))
    return decimal_of(magnitude if value >= 0 else -magnitude, scale)


def expected(call: AggregateCall, values: Sequence[Any], retracts: bool) -> Any:
    """The call's result over the values that count for it, nulls among them, in order of arrival."""
    if call.function == "count_star":
        return len(values)
    present = [value for value in values if value is not None]
    if call.distinct:
        present = list({plainly(value): value for value in present}.values())
    if call.function == "count":
        return len(present)
    if not present:
        return None
    match call.function:
        case "any_value" if not retracts:
            return plainly(present[0])
        case "min" | "any_value":
            return plainly(min(present, key=order_of))
        case "max":
            return plainly(max(present, key=order_of))
        case "bool_and" | "bool_or":
            return (all if call.function == "bool_and" else any)(present)
        case "sum" | "avg":
            return _sum(call, present, exact=retracts or call.distinct)
    return _moment(call.function, list(map(float, present)))


def _sum(call: AggregateCall, present: list[Any], exact: bool) -> Any:
    """sum or avg. exact: whether floats are rounded only once."""
    mean = call.function == "avg"
    if pa.types.is_decimal(call.type):
        return half_up(sum(map(Fraction, present), Fraction()) / (len(present) if mean else 1), call.type.scale)
    if call.type != pa.float64():
        return sum(present)
    total = 0.0
    for value in [_exact_sum(list(map(float, present)))] if exact else present:
        total += value
    return plainly(total / len(present) if mean else total)


def _exact_sum(values: list[float]) -> float:
    finite = sum((Fraction(value) for value in values if math.isfinite(value)), Fraction())
    return _rounded(finite) + sum(value for value in values if not math.isfinite(value))


def _moment(function: str, values: list[float]) -> Any:
    count = len(values)
    if function.endswith("samp") and count == 1:
        return None
    if not all(map(math.isfinite, values)):
        return "NaN"
    numbers = list(map(Fraction, values))
    spread = sum((number * number for number in numbers), Fraction()) - sum(numbers, Fraction()) ** 2 / count
    variance = _rounded(spread / (count - 1 if function.endswith("samp") else count))
    return math.sqrt(variance) if function.startswith("stddev") else variance


def _rounded(number: Fraction) -> float:
    try:
        return float(number)
    except OverflowError:
        return math.inf if number > 0 else -math.inf


def truth_of(plan: AggregatePlan, schema: pa.Schema, rows: Sequence[Row]) -> dict[Row, Row]:
    """The row of each group, by the group's columns, over these rows in order of arrival."""
    groups = defaultdict(list)
    for row in rows:
        columns = dict(zip(schema.names, row, strict=True))
        groups[tuple(plainly(columns[name]) for name in plan.group)].append(columns)
    return {
        key: key + tuple(expected(call, _counting(call, members), plan.retracts) for call in plan.calls)
        for key, members in groups.items()
    }


def _counting(call: AggregateCall, members: Sequence[dict[str, Any]]) -> list[Any]:
    counting = [columns for columns in members if call.where is None or columns[call.where]]
    return [None if call.argument is None else columns[call.argument] for columns in counting]


def assert_rows(plan: AggregatePlan, found: Iterable[Row], wanted: Iterable[Row]) -> None:
    """The same groups with the same results; stddev and variance may differ a little."""
    width = len(plan.group)
    by_key = {row[:width]: row for row in wanted}
    found = list(found)
    assert (len(found), {row[:width] for row in found}) == (len(by_key), set(by_key))
    for row in found:
        for call, one, other in zip(plan.calls, row[width:], by_key[row[:width]][width:], strict=True):
            near = call.function in MOMENTS and isinstance(one, float) and isinstance(other, float)
            assert math.isclose(one, other, rel_tol=1e-14) if near else one == other, (call, row, other)
