"""The window functions, each over all rows at once.

A function gets the rows in order, and the places of those rows whose results are wanted. Most of them need no more than
the number of values before each place: the number in a frame is a difference, and so is an exact sum. Extremes are
found in frames of 1, 2, 4, ... rows, two of which cover any frame. For the other aggregates, each frame is a group of
its own. Rows with the same frame share its result: an aggregate of whole partitions reads each row once, and one of a
running frame reads a row once for each later row of its partition.

A result depends on the rows of its partition alone, to the last bit, and not on the others that are evaluated with it.
So the same rows give the same result again, which is taken back when they change.
"""

from collections.abc import Callable, Mapping
from itertools import pairwise
from types import MappingProxyType

import numpy as np
import pyarrow as pa

from upriver.engine.operators.accumulators import (
    MOMENTS,
    OutOfRange,
    decimal_means,
    floats_of,
    moments,
    products_of,
    some_value,
)
from upriver.engine.operators.aggregate import Argument, ArgumentName
from upriver.engine.operators.window_frames import LONG, Longs, RowsInOrder
from upriver.engine.wide_decimals import joined
from upriver.errors import RowError
from upriver.plan.plan import AggregateCall, WindowCall, WindowFrame
from upriver.plan.types import decimal_sum_type
from upriver.state.columns import Cells, array_of, canonical, cells_of, validity
from upriver.state.digits import Limbs, RunSums, join, outside, parts_of, split
from upriver.state.pair_index import order_keys
from upriver.state.vectors import Mask, Positions, Tally, spread, true_at

Function = Callable[[WindowCall, RowsInOrder, Positions], pa.Array]
"""Gives the results of a call at these places of the rows. Raises OutOfRange, with a place, if one has no room."""

_DECIMAL_BYTES = 16
_LIMB_BITS, _LIMB_MASK = 32, 0xFFFF_FFFF


def results(call: WindowCall, rows: RowsInOrder, at: Positions) -> pa.Array:
    """The results of a call for the rows at these places. Raises OutOfRange, with the place of a row."""
    if call.aggregate is not None:
        return over_frames(call.aggregate, call.frame, rows, at)
    return FUNCTIONS[call.function](call, rows, at)


# Numbers of rows ------------------------------------------------------------------------------------------------------


def _row_number(call: WindowCall, rows: RowsInOrder, at: Positions) -> pa.Array:
    return _ints(at - rows.bounds[0][at] + 1)


def _rank(call: WindowCall, rows: RowsInOrder, at: Positions) -> pa.Array:
    return _ints(rows.peer_bounds[0][at] - rows.bounds[0][at] + 1)


def _dense_rank(call: WindowCall, rows: RowsInOrder, at: Positions) -> pa.Array:
    groups = np.cumsum(np.concatenate([[True], rows.peers[1:] != rows.peers[:-1]])[: len(rows)])
    return _ints(groups[at] - groups[rows.bounds[0][at]] + 1)


def _percent_rank(call: WindowCall, rows: RowsInOrder, at: Positions) -> pa.Array:
    begins, ends = (bound[at] for bound in rows.bounds)
    others = ends - begins - 1
    return array_of(pa.float64(), (rows.peer_bounds[0][at] - begins) / np.maximum(others, 1))


def _cume_dist(call: WindowCall, rows: RowsInOrder, at: Positions) -> pa.Array:
    begins, ends = (bound[at] for bound in rows.bounds)
    return array_of(pa.float64(), (rows.peer_bounds[1][at] - begins) / (ends - begins))


def _ntile(call: WindowCall, rows: RowsInOrder, at: Positions) -> pa.Array:
    """The first groups have one row more than the others, if the rows cannot be divided evenly."""
    begins, ends = (bound[at] for bound in rows.bounds)
    place, size, longer = at - begins, (ends - begins) // call.number, (ends - begins) % call.number
    of_longer = longer * (size + 1)
    behind = longer + (place - of_longer) // np.maximum(size, 1)
    return _ints(np.where(place < of_longer, place // (size + 1), behind) + 1)


def _ints(numbers: Longs) -> pa.Array:
    return array_of(pa.int32(), numbers.astype(np.int32))


# Values of rows -------------------------------------------------------------------------------------------------------


def _moved(call: WindowCall, rows: RowsInOrder, at: Positions) -> pa.Array:
    """lag, lead."""
    distance = call.number if call.function == "lead" else -call.number
    begins, ends = (bound[at] for bound in rows.bounds)
    values = _argument(call, rows)
    if call.ignores_nulls:
        there = validity(values)
        before, members = _before(there), true_at(there)
        nth = before[at + 1] + distance - 1 if distance > 0 else before[at] + distance
        found = (nth >= before[begins]) & (nth < before[ends])
        places = members[np.where(found, nth, 0)] if len(members) else at
    else:
        found = (at + distance >= begins) & (at + distance < ends)
        places = np.where(found, at + distance, at)
    if call.default is None:
        return values.take(pa.array(places, mask=~found))
    both = pa.concat_arrays([values, rows.column(call.default)])
    return both.take(pa.array(np.where(found, places, at + len(rows))))


def _nth(call: WindowCall, rows: RowsInOrder, at: Positions) -> pa.Array:
    """first_value, last_value, nth_value."""
    starts, ends = _frames(call, rows, at)
    values = _argument(call, rows)
    if call.ignores_nulls:
        there = validity(values)
        before, members = _before(there), true_at(there)
        starts, ends = before[starts], before[ends]
    else:
        members = np.arange(len(rows))
    wanted = ends - 1 if call.function == "last_value" else starts + max(call.number, 1) - 1
    found = (wanted >= starts) & (wanted < ends)
    places = members[np.where(found, wanted, 0)] if len(members) else at
    return values.take(pa.array(places, mask=~found))


# Aggregates -----------------------------------------------------------------------------------------------------------


def _count(call: WindowCall, rows: RowsInOrder, at: Positions) -> pa.Array:
    return array_of(pa.int64(), _counts(_there(call, rows), *_frames(call, rows, at)))


def _truths(call: WindowCall, rows: RowsInOrder, at: Positions) -> pa.Array:
    """bool_and, bool_or."""
    there, frames = _there(call, rows), _frames(call, rows, at)
    counts = _counts(there, *frames)
    true = _counts(there & cells_of(_argument(call, rows)).astype(np.bool_), *frames)
    return array_of(pa.bool_(), true == counts if call.function == "bool_and" else true > 0, some_value(counts))


def _extreme(call: WindowCall, rows: RowsInOrder, at: Positions) -> pa.Array:
    """min, max."""
    values = canonical(_argument(call, rows))
    members = true_at(_there(call, rows))
    order = np.argsort(order_keys(values.take(pa.array(members))), kind="stable")
    if call.function == "max":
        order = order[::-1]
    turns = np.full(len(rows), len(members), np.int64)
    turns[members[order]] = np.arange(len(members))
    first = _least(turns, *_frames(call, rows, at), nothing=len(members))
    found = first < len(members)
    places = members[order[np.where(found, first, 0)]] if len(members) else at
    return values.take(pa.array(places, mask=~found))


def _least(numbers: Longs, starts: Positions, ends: Positions, nothing: int) -> Longs:
    """The least number of each run; ``nothing`` of an empty one."""
    lengths = ends - starts
    least = np.full(len(starts), nothing, np.int64)
    width = 1
    while (left := lengths >= width).any():
        here = true_at(left & (lengths < 2 * width))
        least[here] = np.minimum(numbers[starts[here]], numbers[ends[here] - width])
        numbers = np.minimum(numbers[:-width], numbers[width:])  # of twice as many rows from each place on
        width *= 2
    return least


def _sum(call: WindowCall, rows: RowsInOrder, at: Positions) -> pa.Array:
    frames = _frames(call, rows, at)
    counts = _counts(_there(call, rows), *frames)
    if pa.types.is_floating(call.type):
        return array_of(call.type, _Floats(call, rows).totals(*frames), some_value(counts))
    most = 10**call.type.precision - 1 if pa.types.is_decimal(call.type) else int(LONG.max)
    least = -most if pa.types.is_decimal(call.type) else int(LONG.min)
    return array_of(call.type, _whole_totals(call, rows, frames, least, most), some_value(counts))


def _avg(call: WindowCall, rows: RowsInOrder, at: Positions) -> pa.Array:
    frames = _frames(call, rows, at)
    counts = _counts(_there(call, rows), *frames)
    if pa.types.is_floating(call.type):
        means = _Floats(call, rows).totals(*frames) / np.maximum(counts, 1)
        return array_of(call.type, means, some_value(counts))
    limbs, cell = _limbs(call, rows, frames)  # Spark keeps all digits of a frame's sum here, however many
    sums = decimal_sum_type(_argument(call, rows).type)
    return decimal_means(join(limbs, cell), sums, counts, call.type, joined(limbs))


def _moment(call: WindowCall, rows: RowsInOrder, at: Positions) -> pa.Array:
    frames = _frames(call, rows, at)
    counts = _counts(_there(call, rows), *frames)
    floats = _Floats(call, rows)
    mantissas, exponents = parts_of(floats.finite)
    squares = RunSums(len(rows), products_of(mantissas, mantissas, 2 * exponents)).digits(*frames)
    return moments(call.function, counts, floats.sums.digits(*frames), squares, floats.are_finite(*frames))


class _Floats:
    """The values of a call as floats, with zeros for those that are missing or not finite."""

    __slots__ = ("_odd", "finite", "sums")

    def __init__(self, call: WindowCall, rows: RowsInOrder) -> None:
        values = np.where(_there(call, rows), floats_of(_argument(call, rows)), 0.0)
        self._odd = [np.isnan(values), values == np.inf, values == -np.inf]
        self.finite = np.where(np.isfinite(values), values, 0.0)
        self.sums = RunSums(len(rows), [parts_of(self.finite)])

    def totals(self, starts: Positions, ends: Positions) -> Cells:
        """The sums of frames, as Spark adds up NaNs and infinities."""
        nans, ups, downs = (_counts(odd, starts, ends) > 0 for odd in self._odd)
        totals = self.sums.digits(starts, ends).divided()
        totals = np.where(ups, np.inf, np.where(downs, -np.inf, totals))
        return np.where(nans | (ups & downs), np.nan, totals)

    def are_finite(self, starts: Positions, ends: Positions) -> Mask:
        """Whether all values of a frame are finite."""
        nans, ups, downs = self._odd
        finite: Mask = _counts(nans | ups | downs, starts, ends) == 0
        return finite


def _whole_totals(
    call: WindowCall, rows: RowsInOrder, frames: tuple[Positions, Positions], least: int, most: int
) -> Cells:
    """The sums of whole numbers or decimals in frames. Raises OutOfRange for one below ``least`` or above ``most``."""
    limbs, cell = _limbs(call, rows, frames)
    lost = true_at(outside(limbs, least, most))
    if lost.size:
        raise OutOfRange(int(lost[0]))
    return join(limbs, cell)


def _limbs(
    call: WindowCall, rows: RowsInOrder, frames: tuple[Positions, Positions]
) -> tuple[Limbs, np.dtype[np.generic]]:
    """The sums of whole numbers or decimals in frames, carried, and the type that joins them."""
    cells, there = cells_of(_argument(call, rows)), _there(call, rows)
    if cells.dtype.itemsize < _DECIMAL_BYTES:
        words = np.where(there, cells.astype(np.int64), 0)
    else:
        words = np.where(there[:, np.newaxis], cells.view(np.int64).reshape(-1, 2), 0)
    starts, ends = frames
    numbers = np.ascontiguousarray(words).view(_cell(cells)).reshape(len(rows))
    limbs = [_counts(limb, starts, ends) for limb in split(numbers)]
    for lower, higher in pairwise(limbs):
        higher += lower >> _LIMB_BITS
        lower &= _LIMB_MASK
    return limbs, _cell(cells)


def _cell(cells: Cells) -> np.dtype[np.generic]:
    """The type of the sums of such cells."""
    return cells.dtype if cells.dtype.itemsize == _DECIMAL_BYTES else np.dtype(np.int64)


def _collected(call: WindowCall, rows: RowsInOrder, at: Positions) -> pa.Array:
    """collect_list: the values of the frame that are not null, in the window's order."""
    there = _there(call, rows)
    starts, ends = (_before(there)[bound] for bound in _frames(call, rows, at))
    places = true_at(there)[spread(starts, ends - starts)]
    offsets = np.concatenate([[0], np.cumsum(ends - starts)]).astype(np.int32)
    values = _argument(call, rows).take(pa.array(places))
    return pa.ListArray.from_arrays(pa.array(offsets), values, type=call.type)


# Parts of all ---------------------------------------------------------------------------------------------------------


def _argument(call: WindowCall, rows: RowsInOrder) -> pa.Array:
    assert call.argument is not None, f"{call.function} of no column"
    return rows.column(call.argument)


def _there(call: WindowCall, rows: RowsInOrder) -> Mask:
    """Which rows an aggregate takes in."""
    there = np.ones(len(rows), np.bool_) if call.argument is None else validity(rows.column(call.argument))
    if call.where is not None:
        there &= cells_of(rows.column(call.where).fill_null(False)).astype(np.bool_)
    return there


def _frames(call: WindowCall, rows: RowsInOrder, at: Positions) -> tuple[Positions, Positions]:
    starts, ends = rows.frames(call.frame)
    return starts[at], ends[at]


def _before(cells: Mask | Longs) -> Longs:
    """For each place, and the end: the sum of the cells before it, of a mask how many are true."""
    return np.concatenate([[0], np.cumsum(cells)])


def _counts(cells: Mask | Longs, starts: Positions, ends: Positions) -> Longs:
    """The sum of each run, of a mask how many are true."""
    before = _before(cells)
    found: Longs = before[ends] - before[starts]
    return found


FUNCTIONS: Mapping[str, Function] = MappingProxyType(
    {
        "row_number": _row_number,
        "rank": _rank,
        "dense_rank": _dense_rank,
        "percent_rank": _percent_rank,
        "cume_dist": _cume_dist,
        "ntile": _ntile,
        "lag": _moved,
        "lead": _moved,
        "first_value": _nth,
        "last_value": _nth,
        "nth_value": _nth,
        "count_star": _count,
        "count": _count,
        "bool_and": _truths,
        "bool_or": _truths,
        "min": _extreme,
        "max": _extreme,
        "sum": _sum,
        "avg": _avg,
        "collect_list": _collected,
        **dict.fromkeys(MOMENTS, _moment),
    }
)


MEMBERS_MAX = 1 << 20
"""Rows of all frames together that are read at a time, unless one frame alone has more."""


def over_frames(call: AggregateCall, frame: WindowFrame, rows: RowsInOrder, at: Positions) -> pa.Array:
    """The aggregate of the frame of each of these rows."""
    if not len(at):
        return pa.nulls(0, call.type)
    width = len(rows) + 1
    starts, ends = (bound[at].astype(np.int64) for bound in rows.frames(frame))
    frames, places = np.unique(starts * width + ends, return_inverse=True)
    starts, ends = np.divmod(frames, width)
    parts = np.cumsum(ends - starts) // MEMBERS_MAX
    found = [
        _of_groups(call, rows, starts[part], ends[part] - starts[part])
        for part in np.split(np.arange(len(frames)), true_at(np.diff(parts)) + 1)
    ]
    return pa.concat_arrays(found).take(pa.array(places))


def _of_groups(call: AggregateCall, rows: RowsInOrder, starts: Positions, lengths: Positions) -> pa.Array:
    """The aggregate of each of these stretches of rows."""
    members, slots = spread(starts, lengths), np.repeat(np.arange(len(starts)), lengths)
    names = [*dict.fromkeys((*call.columns, *(() if call.where is None else (call.where,))))]
    read = pa.RecordBatch.from_arrays([rows.column(name).take(pa.array(members)) for name in names], names)
    argument_name, tally = ArgumentName.of(call), Tally()
    tally.resize(len(starts))
    tally.add(slots, None)
    argument = Argument(argument_name.type(read.schema), tally, _out_of_range, retracts=True)
    results = argument.reader(call)
    argument.resize(len(starts))
    argument.add(slots, argument_name.values(read), None if call.where is None else read.column(call.where), None)
    return results(np.arange(len(starts)))


def _out_of_range(call: AggregateCall, slot: int) -> RowError:
    raise OutOfRange(0)
