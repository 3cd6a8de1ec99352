"""What window functions give, computed in Python from the rows alone."""

from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from math import inf, isnan, nan
from typing import Any

import pyarrow as pa
from fleet_kit import plain_row
from state_kit import Row

from upriver.plan.plan import FrameUnit, Order, WindowCall, WindowOp


class _Key:
    """A value of a sort column as Spark orders it."""

    def __init__(self, value: Any, descending: bool, nulls_first: bool) -> None:
        self.is_null = value is None
        self.first = self.is_null == nulls_first
        self.descending = descending
        self.value = (isinstance(value, float) and isnan(value), value)
        if value == "NaN" or self.value[0]:
            self.value = (True, 0.0)
        if isinstance(value, str) and value != "NaN":
            self.value = (False, value.encode())

    def __lt__(self, other: "_Key") -> bool:
        if self.is_null or other.is_null:
            return self.is_null != other.is_null and self.first
        return self.value > other.value if self.descending else self.value < other.value

    def __eq__(self, other: object) -> bool:
        assert isinstance(other, _Key)
        return self.is_null == other.is_null and (self.is_null or self.value == other.value)


def answer(op: WindowOp, schema: pa.Schema, rows: Sequence[Row]) -> Counter[Row]:
    """The rows with their results, from the rows in their plain form."""
    partitions: dict[Row, list[Row]] = {}
    for row in rows:
        partitions.setdefault(tuple(row[schema.get_field_index(name)] for name in op.partition), []).append(row)
    found: Counter[Row] = Counter()
    orders = (*op.order, *(Order(name, False, True) for name in schema.names))
    for partition in partitions.values():
        in_turn = sorted(partition, key=lambda row: keys_of(orders, schema, row))
        results = [of_call(call, op.order, schema, in_turn) for call in op.calls]
        found.update(plain_row((*row, *more)) for row, *more in zip(in_turn, *results, strict=True))
    return found


def keys_of(orders: Sequence[Order], schema: pa.Schema, row: Row) -> list[_Key]:
    return [_Key(row[schema.get_field_index(one.column)], one.descending, one.nulls_first) for one in orders]


def of_call(call: WindowCall, order: Sequence[Order], schema: pa.Schema, rows: Sequence[Row]) -> list[Any]:
    """The results of one function over a partition in order."""
    sort = [keys_of(order, schema, row) for row in rows]

    def column(name: str | None) -> list[Any]:
        return [None if name is None else row[schema.get_field_index(name)] for row in rows]

    values, defaults = column(call.argument), column(call.default)
    truths = [True] * len(rows) if call.where is None else [truth is True for truth in column(call.where)]
    if call.function in _OF_PLACE:
        return [_OF_PLACE[call.function](place, sort, call.number) for place in range(len(rows))]
    if call.function in ("lag", "lead"):
        step = call.number if call.function == "lead" else -call.number
        return [_neighbour(values, defaults, place, step, call.ignores_nulls) for place in range(len(rows))]
    found = []
    for place in range(len(rows)):
        inside = [other for other in frame(call, order, schema, rows, sort, place) if truths[other]]
        if call.function in ("first_value", "last_value", "nth_value"):
            kept = [values[other] for other in inside if values[other] is not None or not call.ignores_nulls]
            nth = {"first_value": 0, "last_value": len(kept) - 1, "nth_value": call.number - 1}[call.function]
            found.append(kept[nth] if 0 <= nth < len(kept) else None)
        elif call.function == "count_star":
            found.append(len(inside))
        else:
            found.append(_aggregate(call.function, [values[other] for other in inside if values[other] is not None]))
    return found


def frame(
    call: WindowCall, order: Sequence[Order], schema: pa.Schema, rows: Sequence[Row], sort: list[Any], place: int
) -> list[int]:
    """The places of the rows in a row's frame."""
    unit, start, end = call.frame.unit, call.frame.start, call.frame.end
    if unit is FrameUnit.ROWS:
        first = 0 if start is None else max(place + int(start), 0)
        last = len(rows) - 1 if end is None else min(place + int(end), len(rows) - 1)
        return list(range(first, last + 1))

    def moved(distance: float) -> list[_Key]:
        if not distance:
            return list(sort[place])
        (one,) = order
        value = rows[place][schema.get_field_index(one.column)]
        value = None if value is None else value + (-distance if one.descending else distance)
        return [_Key(value, one.descending, one.nulls_first)]

    low = None if start is None else moved(start)
    high = None if end is None else moved(end)
    return [
        other
        for other in range(len(rows))
        if (low is None or not sort[other] < low) and (high is None or not high < sort[other])
    ]


def _neighbour(values: list[Any], defaults: list[Any], place: int, step: int, ignores_nulls: bool) -> Any:
    if ignores_nulls:
        ahead = range(place + 1, len(values)) if step > 0 else range(place - 1, -1, -1)
        there = [other for other in ahead if values[other] is not None]
        return values[there[abs(step) - 1]] if len(there) >= abs(step) else defaults[place]
    return values[place + step] if 0 <= place + step < len(values) else defaults[place]


def _aggregate(function: str, values: list[Any]) -> Any:
    if function == "count":
        return len(values)
    if not values:
        return None
    if function in ("bool_and", "bool_or"):
        return all(values) if function == "bool_and" else any(values)
    if function in ("min", "max"):
        return (min if function == "min" else max)(values, key=lambda value: _Key(value, False, True).value)
    total = _sum([nan if value == "NaN" else value for value in values])
    return total if function == "sum" else float(total) / len(values)


def _sum(values: list[Any]) -> Any:
    odd = [value for value in values if isinstance(value, float) and (isnan(value) or abs(value) == inf)]
    if odd:
        return sum(odd)
    total = sum(map(Fraction, values))
    return float(total) if isinstance(values[0], float) else sum(values)


def _row_number(place: int, sort: list[Any], number: int) -> int:
    return place + 1


def _rank(place: int, sort: list[list[_Key]], number: int) -> int:
    return sum(one < sort[place] for one in sort) + 1


def _dense_rank(place: int, sort: list[list[_Key]], number: int) -> int:
    return sum(one < sort[place] and (not at or sort[at - 1] != one) for at, one in enumerate(sort)) + 1


def _percent_rank(place: int, sort: list[Any], number: int) -> float:
    return (_rank(place, sort, number) - 1) / (len(sort) - 1) if len(sort) > 1 else 0.0


def _cume_dist(place: int, sort: list[Any], number: int) -> float:
    return sum(not sort[place] < one for one in sort) / len(sort)


def _ntile(place: int, sort: list[Any], number: int) -> int:
    sizes = [len(sort) // number + (tile < len(sort) % number) for tile in range(number)]
    return next(tile + 1 for tile in range(number) if place < sum(sizes[: tile + 1]))


_OF_PLACE = {
    "row_number": _row_number,
    "rank": _rank,
    "dense_rank": _dense_rank,
    "percent_rank": _percent_rank,
    "cume_dist": _cume_dist,
    "ntile": _ntile,
}
