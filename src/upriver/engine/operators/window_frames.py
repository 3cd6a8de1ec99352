"""The rows that window functions go over: in order, and which of them are in the frame of each row.

The rows of several partitions lie one partition after the other, each in the window's order. A frame is a stretch of
such rows, so two arrays of places say all: where the frame of each row begins, and where it ends.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from upriver.plan.plan import FrameUnit, WindowCall, WindowFrame
from upriver.state.columns import cells_of, validity
from upriver.state.pair_index import ordered
from upriver.state.vectors import Mask, Positions, run_lengths, run_starts

Longs = npt.NDArray[np.int64]

LONG = np.iinfo(np.int64)


@dataclass(frozen=True, slots=True)
class SortValues:
    """The values of the only sort column, as whole numbers that ascend in each partition; what lies under a null is
    arbitrary. valid: which are not null. nulls_first: where the nulls of a partition are. floats: the values
    themselves, if they are; descending: whether they do. limits: of the values' type, if it is an error to move a value
    beyond them."""

    cells: Longs
    valid: Mask
    nulls_first: bool
    floats: npt.NDArray[np.float64] | None = None
    descending: bool = False
    limits: tuple[int, int] | None = None

    @classmethod
    def of(cls, values: pa.Array, descending: bool, nulls_first: bool) -> "SortValues":
        """values: numbers, dates or times, in the window's order; decimals of at most 18 digits."""
        valid = validity(values)
        if pa.types.is_floating(values.type):
            floats = np.where(valid, cells_of(values), 0.0)
            return cls(_in_order(floats, descending), valid, nulls_first, floats, descending)
        cells = cells_of(values)
        if pa.types.is_decimal(values.type):
            cells = np.ascontiguousarray(cells).view(np.int64)[::2]  # the lower half of each
        checked = pa.types.is_integer(values.type) or pa.types.is_timestamp(values.type)
        half = 2 ** (values.type.bit_width - 1)
        cells = cells.astype(np.int64)
        return cls(~cells if descending else cells, valid, nulls_first, limits=(-half, half - 1) if checked else None)

    def moved(self, distance: float) -> Longs:
        """Each value moved by so much; values that would leave the range of 64 bits stay at its end."""
        if self.floats is not None:
            return _in_order(self.floats - distance if self.descending else self.floats + distance, self.descending)
        whole = int(distance)
        if whole >= 0:
            return np.where(self.cells > LONG.max - whole, LONG.max, self.cells + whole)
        return np.where(self.cells < LONG.min - whole, LONG.min, self.cells + whole)

    def leaves(self, distance: float) -> Mask:
        """Which values, moved by so much, are beyond the limits."""
        if self.limits is None:
            return np.zeros(len(self.cells), np.bool_)
        (least, most), whole = self.limits, int(distance)
        return self.valid & (self.cells > most - whole if whole >= 0 else self.cells < least - whole)


class BeyondLimits(Exception):
    """A bound of the frame of the row at this place is out of the range of the sort column's type."""

    def __init__(self, place: int) -> None:
        super().__init__(place)
        self.place = place


def _in_order(floats: npt.NDArray[np.float64], descending: bool) -> Longs:
    """Whole numbers in the order in which the floats are sorted: all zeros are equal, and NaN is the greatest."""
    cells: Longs = ordered(np.where(np.isnan(floats), np.nan, floats + 0.0))
    return ~cells if descending else cells


@dataclass(frozen=True)
class RowsInOrder:
    """Rows of partitions, in order.

    partitions: of each row, a number that ascends. ties: gives for each row a number that ascends; rows that tie in all
    sort columns have the same. column: gives a column of the rows, by its name. sort_values: gives those of the only
    sort column.
    """

    partitions: Positions
    ties: Callable[[], Positions] = field(repr=False)
    column: Callable[[str], pa.Array]
    sort_values: Callable[[], SortValues] = field(repr=False)
    _found: dict[WindowFrame, tuple[Positions, Positions]] = field(default_factory=dict, repr=False)
    """By frame: where it begins and ends. Several calls may share a frame."""

    def __len__(self) -> int:
        return len(self.partitions)

    @cached_property
    def bounds(self) -> tuple[Positions, Positions]:
        """Where the partition of each row begins, and where it ends."""
        return _runs(self.partitions)

    @cached_property
    def peers(self) -> Positions:
        return self.ties()

    @cached_property
    def peer_bounds(self) -> tuple[Positions, Positions]:
        """Where the rows that tie with each row begin, and where they end."""
        return _runs(self.peers)

    @cached_property
    def by_value(self) -> SortValues:
        return self.sort_values()

    def frames(self, frame: WindowFrame) -> tuple[Positions, Positions]:
        """Where the frame of each row begins, and where it ends: nowhere before it begins. Raises BeyondLimits."""
        if frame not in self._found:
            self._found[frame] = self._searched_for(frame)
        return self._found[frame]

    def _searched_for(self, frame: WindowFrame) -> tuple[Positions, Positions]:
        begins, ends = self.bounds
        rows = np.arange(len(self))
        if frame.unit is FrameUnit.ROWS:
            starts = begins if frame.start is None else rows + int(frame.start)
            stops = ends if frame.end is None else rows + int(frame.end) + 1
        else:
            first, last = self.peer_bounds
            starts = begins if frame.start is None else first if not frame.start else self._first(frame.start)
            stops = ends if frame.end is None else last if not frame.end else self._behind(frame.end)
        starts, stops = np.clip(starts, begins, ends), np.clip(stops, begins, ends)
        if frame.unit is FrameUnit.RANGE and len(self):
            self._check_limits(frame, starts, stops)
        return starts, np.maximum(stops, starts)

    def _check_limits(self, frame: WindowFrame, starts: Positions, stops: Positions) -> None:
        """Raises BeyondLimits where Spark computes a bound that is beyond its type. Spark goes on from the frame of the
        row before: it computes the end while there are rows behind that frame, and the start while there are rows in
        the frame."""
        begins, ends = self.bounds
        is_first = np.arange(len(self)) == begins
        start_before, stop_before = (np.where(is_first, begins, np.roll(one, 1)) for one in (starts, stops))
        is_computed = start_before < ends
        if frame.end is not None:
            is_computed = (start_before < stop_before) | (stop_before < stops)
        lost = np.zeros(len(self), np.bool_)
        for distance, computed in ((frame.start, is_computed), (frame.end, stop_before < ends)):
            if distance:
                lost |= computed & self.by_value.leaves(distance)
        if lost.any():
            raise BeyondLimits(int(np.flatnonzero(lost)[0]))

    def _first(self, distance: float) -> Positions:
        """For each row, the first row of its partition that sorts no lower than the row's own value, so moved."""
        return self._searched(distance, before_equal=True)

    def _behind(self, distance: float) -> Positions:
        """For each row, the first row of its partition that sorts higher than the row's own value, so moved."""
        return self._searched(distance, before_equal=False)

    def _searched(self, distance: float, before_equal: bool) -> Positions:
        """How many rows lie before each row's moved value, in all partitions together. A null is moved to a null."""
        values, count = self.by_value, len(self)
        is_null = ~values.valid
        place_of_nulls = ~is_null if values.nulls_first else is_null
        cells = np.where(is_null, 0, values.cells)
        targets = np.where(is_null, 0, values.moved(distance))
        turn = np.repeat([1, 0] if before_equal else [0, 1], count)
        keys = (
            turn,
            np.concatenate([cells, targets]),
            np.concatenate([place_of_nulls, place_of_nulls]),
            np.concatenate([self.partitions, self.partitions]),
        )
        order = np.lexsort(keys)
        is_row = order < count
        found = np.empty(count, np.int64)
        found[order[~is_row] - count] = np.cumsum(is_row)[~is_row]
        return found


@dataclass(frozen=True, slots=True)
class Reach:
    """Which rows the result of a row depends on, beside itself. back, ahead: how many rows before it and behind it;
    ``None``: any. ties: whether on all rows that tie with it, or with those."""

    back: int | None
    ahead: int | None
    ties: bool = False

    def beside(self, other: "Reach") -> "Reach":
        """The rows of both."""
        back = None if self.back is None or other.back is None else max(self.back, other.back)
        ahead = None if self.ahead is None or other.ahead is None else max(self.ahead, other.ahead)
        return Reach(back, ahead, self.ties or other.ties)


def reach_of(call: WindowCall) -> Reach:
    """The reach of a window function."""
    match call.function:
        case "row_number" | "rank" | "dense_rank":
            return Reach(None, 0)
        case "percent_rank" | "cume_dist" | "ntile":
            return Reach(None, None)
        case "lag" | "lead":
            ahead = call.number if call.function == "lead" else -call.number
            if call.ignores_nulls:
                return Reach(0, None) if ahead > 0 else Reach(None, 0)
            return Reach(max(-ahead, 0), max(ahead, 0))
    start, end = call.frame.start, call.frame.end
    if call.frame.unit is FrameUnit.RANGE:  # a distance of values may be any number of rows
        return Reach(0 if start == 0 else None, 0 if end == 0 else None, ties=True)
    return Reach(None if start is None else max(-int(start), 0), None if end is None else max(int(end), 0))


def _runs(numbers: Positions) -> tuple[Positions, Positions]:
    """For each of these numbers, where its run of equal neighbours begins, and where it ends."""
    starts = run_starts(numbers)
    lengths = run_lengths(starts, len(numbers))
    return np.repeat(starts, lengths), np.repeat(starts + lengths, lengths)
