"""Functions of all values of a group, in order: percentiles, mode, listagg, bits, skewness and kurtosis.

Each is computed from the distinct values of a group when it is read. So values may come and go in any order, and the
result depends on them alone.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from upriver.engine.operators.accumulators import floats_of
from upriver.engine.operators.cardinality import approx_count_distinct
from upriver.engine.operators.sorted_values import SortedValues
from upriver.plan.plan import AggregateCall
from upriver.state.columns import Cells, array_of, cells_of, validity
from upriver.state.vectors import true_at

Floats = npt.NDArray[np.float64]
_BEYOND_LONGS = 2.0**63


def _percentile(call: AggregateCall, found: SortedValues) -> pa.Array:
    """As Spark's ``percentile``: between two rows, in proportion to the distance, to the last digit as Spark 4.3."""
    if not len(found.values):
        return pa.nulls(len(found.some), call.type)
    values = floats_of(found.values)
    place = np.maximum(found.counts - 1, 0) * call.fraction
    low, high = np.floor(place), np.ceil(place)
    lower, higher = (values[found.nth(rows.astype(np.int64))] for rows in (low, high))
    with np.errstate(invalid="ignore", over="ignore"):
        between = lower + (higher - lower) * (place - low)
    results = np.where((low == high) | (lower == higher), lower, between)
    return array_of(pa.float64(), results, found.some)


def _percentile_disc(call: AggregateCall, found: SortedValues) -> pa.Array:
    """The first value that so large a part of the rows does not exceed."""
    if not len(found.values):
        return pa.nulls(len(found.some), call.type)
    places = found.first_not_exceeded(call.fraction)
    return array_of(pa.float64(), floats_of(found.values)[places], found.some)


def _percentile_approx(call: AggregateCall, found: SortedValues) -> pa.Array:
    """As ``percentile_disc``, in the type of the values, which Spark takes as doubles. Spark's own is that value where
    a group has few rows, and one near it elsewhere."""
    if not len(found.values):
        return pa.nulls(len(found.some), call.type)
    places = found.first_not_exceeded(call.fraction)
    values = found.values.take(pa.array(places, mask=~found.some))
    if values.type != pa.int64():
        return values
    doubles = cells_of(values).astype(np.float64)
    is_beyond = doubles >= _BEYOND_LONGS
    cells = np.where(is_beyond, np.iinfo(np.int64).max, np.where(is_beyond, 0, doubles).astype(np.int64))
    return array_of(pa.int64(), cells, validity(values))


def _mode(call: AggregateCall, found: SortedValues) -> pa.Array:
    """The most frequent value; of several, the least, or the greatest."""
    groups, turn = found.groups, -1 if call.function == "greatest_mode" else 1
    order = np.lexsort((turn * np.arange(len(groups)), -found.times, groups))
    first = order[np.minimum(found.bounds[:-1], max(len(order) - 1, 0))] if len(order) else found.bounds[:-1]
    return found.values.take(pa.array(first, mask=~found.some))


def _listed(call: AggregateCall, found: SortedValues) -> tuple[pa.Array, pa.Array]:
    """Where the list of each group begins, and where the last ends; and the elements of all."""
    times = np.ones_like(found.times) if call.distinct else found.times
    each = np.repeat(np.arange(len(found.values)), times)
    bounds = np.concatenate([[0], np.cumsum(times)])[found.bounds]
    return pa.array(bounds, pa.int32()), found.values.take(pa.array(each))


def _collect_list(call: AggregateCall, found: SortedValues) -> pa.Array:
    """All values, in order; none for a group without any."""
    return pa.ListArray.from_arrays(*_listed(call, found), type=call.type)


def _listagg(call: AggregateCall, found: SortedValues) -> pa.Array:
    joined = pc.binary_join(pa.ListArray.from_arrays(*_listed(call, found)), call.between)
    return joined.take(pa.array(np.arange(len(found.some)), mask=~found.some))


def _bits(combined: np.ufunc) -> "ValueFunction":
    def read(call: AggregateCall, found: SortedValues) -> pa.Array:
        return _reduced(call.type, combined, cells_of(found.values), found)

    return read


def _reduced(type: pa.DataType, combined: np.ufunc, cells: Cells, found: SortedValues) -> pa.Array:
    some = found.some
    results = np.zeros(len(some), cells.dtype)
    if len(cells):
        results[some] = combined.reduceat(cells, found.bounds[:-1][some])
    return array_of(type, results, some)


def _central(power: int) -> "ValueFunction":
    """skewness, by the third power of the distance to the mean, or kurtosis, by the fourth."""

    def read(call: AggregateCall, found: SortedValues) -> pa.Array:
        results, spread = np.zeros(len(found.some)), np.zeros(len(found.some), np.bool_)
        for group in true_at(np.diff(found.bounds) > 1):
            part = slice(int(found.bounds[group]), int(found.bounds[group + 1]))
            results[group], spread[group] = _moment(power, floats_of(found.values[part]), found.times[part])
        return array_of(pa.float64(), results, spread)

    return read


def _moment(power: int, values: Floats, times: npt.NDArray[np.int64]) -> tuple[float, bool]:
    """The moment, and whether there is one: not for equal values."""
    count = float(times.sum())
    with np.errstate(all="ignore"):
        distance = values - (values * times).sum() / count
        square = float((distance**2 * times).sum())
        raised = float((distance**power * times).sum())
        if square == 0:
            return 0.0, False
        result = np.sqrt(count) * raised / np.sqrt(square**3) if power == 3 else count * raised / square**2 - 3
    return float(result), True


def _of_each(function: "ValueFunction") -> "ValueFunction":
    """A percentile that may give an array: for each of the call's fractions an element."""

    def read(call: AggregateCall, found: SortedValues) -> pa.Array:
        if not call.fractions:
            return function(call, found)
        one = replace(call, type=call.type.value_type, fractions=())
        columns = [function(replace(one, fraction=fraction), found) for fraction in call.fractions]
        count, width = len(found.some), len(columns)
        values = pa.concat_arrays(columns).take(pa.array(np.arange(count * width).reshape(width, count).T.ravel()))
        offsets = pa.array(np.arange(count + 1, dtype=np.int32) * width)
        return pa.ListArray.from_arrays(offsets, values, type=call.type, mask=pa.array(~found.some))

    return read


ValueFunction = Callable[[AggregateCall, SortedValues], pa.Array]

VALUE_FUNCTIONS: Mapping[str, ValueFunction] = {
    "percentile": _of_each(_percentile),
    "percentile_disc": _percentile_disc,
    "percentile_approx": _of_each(_percentile_approx),
    "approx_count_distinct": approx_count_distinct,
    "mode": _mode,
    "greatest_mode": _mode,
    "listagg": _listagg,
    "collect_list": _collect_list,
    "bit_and": _bits(np.bitwise_and),
    "bit_or": _bits(np.bitwise_or),
    "skewness": _central(3),
    "kurtosis": _central(4),
}
