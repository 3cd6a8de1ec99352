"""approx_count_distinct: how many distinct values there are about, by Spark's HyperLogLog++.

The hash of a value names a *register* and a *rank*: the first bits, and how many zeros follow them. A value is kept as
one number of both, its code (:func:`codes_of`). Codes are counted like other values, so they may be taken back. The
estimate follows from the greatest rank of each register. So a group keeps a few thousand numbers at most, however many
values it has, and its estimate is Spark's over the rows that there are.

Estimates of few values are corrected by what Spark has measured of its own (``AggregateCall.curve``).
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from upriver.engine.operators.sorted_values import SortedValues
from upriver.plan.plan import AggregateCall, register_bits
from upriver.state.columns import array_of, cells_of

RANK_BITS = 6
"""Bits of a code that hold the rank."""
NEIGHBOURS = 6
"""Measured estimates whose corrections are averaged."""
CORRECTED_BITS_MAX = 18
"""With more bits of registers, Spark corrects nothing."""
_ALPHA = {4: 0.673, 5: 0.697, 6: 0.709}

Doubles = npt.NDArray[np.float64]
Longs = npt.NDArray[np.int64]


def codes_of(hashes: Longs, bits: int) -> Longs:
    """The code of each value. hashes: xxhash64. bits: of the hash that name the register."""
    words = hashes.view(np.uint64)
    registers = words >> np.uint64(64 - bits)
    rest = (words << np.uint64(bits)) | np.uint64(1 << (bits - 1))
    high, low = rest >> np.uint64(32), rest & np.uint64(0xFFFF_FFFF)
    lengths = np.where(high > 0, 32 + np.frexp(high.astype(np.float64))[1], np.frexp(low.astype(np.float64))[1])
    codes: Longs = (registers.astype(np.int64) << RANK_BITS) | (65 - lengths.astype(np.int64))
    return codes


def approx_count_distinct(call: AggregateCall, found: SortedValues) -> pa.Array:
    """found: the codes of each group's values."""
    bits = register_bits(call.fraction)
    size = 1 << bits
    groups = found.groups
    codes = cells_of(found.values)
    registers = codes >> RANK_BITS
    is_last = np.ones(len(codes), np.bool_)
    is_last[:-1] = (registers[1:] != registers[:-1]) | (groups[1:] != groups[:-1])
    ranks = codes[is_last] & ((1 << RANK_BITS) - 1)
    used = np.bincount(groups[is_last], minlength=len(found.some))
    inverse = np.bincount(groups[is_last], np.ldexp(1.0, -ranks.astype(np.int32)), len(found.some)) + (size - used)
    alpha = _ALPHA.get(bits, 0.7213 / (1.0 + 1.079 / size))
    estimates = _estimated(alpha * size * size / inverse, (size - used).astype(np.float64), bits, call.curve)
    return array_of(pa.int64(), np.floor(estimates + 0.5).astype(np.int64))


def _estimated(raw: Doubles, unused: Doubles, bits: int, curve: Sequence[float]) -> Doubles:
    """raw: the estimates of HyperLogLog. unused: how many registers no value has. Few values are counted by these."""
    size = 1 << bits
    with np.errstate(divide="ignore"):
        counted = size * np.log(size / unused)
    is_counted = (unused > 0) & (raw <= 2.5 * size)
    if not curve or bits > CORRECTED_BITS_MAX:
        return np.where(is_counted, counted, raw)
    threshold, *measured = curve
    is_counted |= (unused > 0) & (counted <= threshold)
    half = len(measured) // 2
    too_high = _interpolated(raw, np.array(measured[:half]), np.array(measured[half:]))
    return np.where(is_counted, counted, np.where(raw < 5.0 * size, raw - too_high, raw))


def _interpolated(raw: Doubles, estimates: Doubles, biases: Doubles) -> Doubles:
    """By how much each estimate is too high: the mean of its neighbours."""
    count = len(estimates)
    low = np.maximum(_searched(raw, estimates) - NEIGHBOURS + 1, 0)
    high = np.minimum(low + NEIGHBOURS, count)
    while True:
        (moving,) = np.nonzero(high < count)
        after, before = estimates[high[moving]], estimates[low[moving]]
        moving = moving[(raw[moving] - after) ** 2 < (raw[moving] - before) ** 2]
        if not len(moving):
            break
        low[moving] += 1
        high[moving] += 1
    total = np.zeros(len(raw))
    for step in range(NEIGHBOURS):
        is_in = low + step < high
        total[is_in] += biases[low[is_in] + step]
    found: Doubles = total / (high - low)
    return found


def _searched(raw: Doubles, estimates: Doubles) -> Longs:
    """Where each value is, or belongs, by the halving that Spark does: the estimates are not quite in order."""
    low, high = np.zeros(len(raw), np.int64), np.full(len(raw), len(estimates) - 1, np.int64)
    while (open_ := low <= high).any():
        middle = np.where(open_, (low + high) // 2, 0)
        found = estimates[middle]
        is_found = open_ & (found == raw)
        low = np.where(is_found, middle, np.where(open_ & (found < raw), middle + 1, low))
        high = np.where(is_found, middle - 1, np.where(open_ & (found > raw), middle - 1, high))
    return low
