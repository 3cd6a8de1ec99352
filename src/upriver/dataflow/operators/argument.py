"""One input column of an aggregate: the functions that are fed with its values, and the count of its nulls.

The functions of one column share that count, and none is kept before the first null comes: until then a group has as
many values as rows.
"""

from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa

from upriver.dataflow.operators.accumulator import Accumulator, Counts, OutOfRange
from upriver.dataflow.operators.extremes import max_of, min_of
from upriver.dataflow.operators.sums import avg_of, sum_of
from upriver.dataflow.plan import AggregateCall
from upriver.errors import ProtocolError, RowError
from upriver.state.columns import array_of, cells_of, validity
from upriver.state.vectors import Slots, Tally, Vector, Weights

Overflow = Callable[[AggregateCall, int], RowError]
"""The error to raise when the call's result for a group slot does not fit its type."""

Reader = Callable[[Slots], pa.Array]
"""Gives one output column's values for these group slots."""


class Argument:
    """What is kept of one column for every group."""

    __slots__ = ("_functions", "_nulls", "_overflow", "_rows", "_type")

    def __init__(self, type: pa.DataType, rows: Tally, overflow: Overflow) -> None:
        """type: of the column. rows: how many rows each group has; kept by the caller. overflow: makes errors."""
        self._type = type
        self._rows = rows
        self._overflow = overflow
        self._nulls: Vector[np.int64] | None = None
        """How many nulls each group has; ``None`` as long as there was none."""
        self._functions: list[tuple[AggregateCall, Accumulator]] = []

    @property
    def nbytes(self) -> int:
        nulls = 0 if self._nulls is None else self._nulls.nbytes
        return nulls + sum(function.nbytes for _, function in self._functions)

    def reader(self, call: AggregateCall) -> Reader:
        """Keep what the call needs from now on; returns the reader of its results, which may raise RowError.

        Raises ProtocolError for a call whose types Spark would not give it.
        """
        if call.function == "count":
            return lambda slots: array_of(pa.int64(), self._counts(slots))
        function = _accumulator(call, self._type)
        self._functions.append((call, function))

        def read(slots: Slots) -> pa.Array:
            try:
                return function.take(slots, self._counts(slots))
            except OutOfRange as lost:
                raise self._overflow(call, lost.slot) from None

        return read

    def resize(self, size: int) -> None:
        if self._nulls is not None:
            self._nulls.resize(size)
        for _, function in self._functions:
            function.resize(size)

    def add(self, slots: Slots, values: pa.Array, weight: Weights | None) -> None:
        """Add one value for each row, once the rows are counted. Raises RowError if a result overflows."""
        if values.null_count:
            slots, values, weight = self._without_nulls(slots, values, weight)
        for call, function in self._functions:
            try:
                function.add(slots, values, weight)
            except OutOfRange as lost:
                raise self._overflow(call, lost.slot) from None
        if weight is not None:
            self._clear_emptied(slots)

    def state(self, slots: Slots) -> list[pa.Array]:
        """What is kept of these groups: the number of nulls, then a column for each function."""
        nulls = np.zeros(len(slots), np.int64) if self._nulls is None else self._nulls.cells[slots]
        return [array_of(pa.int64(), nulls), *(function.state(slots) for _, function in self._functions)]

    def install(self, slots: Slots, state: Iterator[pa.Array]) -> None:
        """Keep of these groups, which have nothing yet, what :meth:`state` said of them; takes as many columns."""
        nulls = cells_of(next(state))
        if nulls.any():
            self._some_nulls().cells[slots] = nulls
        for _, function in self._functions:
            function.install(slots, next(state))

    def _without_nulls(
        self, slots: Slots, values: pa.Array, weight: Weights | None
    ) -> tuple[Slots, pa.Array, Weights | None]:
        """Count the nulls; return the rows that have a value."""
        valid = validity(values)
        np.add.at(self._some_nulls().cells, slots[~valid], 1 if weight is None else weight[~valid])
        return slots[valid], values.drop_null(), None if weight is None else weight[valid]

    def _some_nulls(self) -> Vector[np.int64]:
        if self._nulls is None:
            self._nulls = Vector(np.int64)
            self._nulls.resize(len(self._rows))
        return self._nulls

    def _clear_emptied(self, slots: Slots) -> None:
        counts = self._counts(slots)
        if (counts < 0).any():
            raise ProtocolError("more values were retracted than had been added")
        for _, function in self._functions:
            function.clear(slots[counts == 0])

    def _counts(self, slots: Slots) -> Counts:
        """How many values each group has."""
        rows = self._rows.counts[slots]
        return rows if self._nulls is None else rows - self._nulls.cells[slots]


def _accumulator(call: AggregateCall, argument: pa.DataType) -> Accumulator:
    match call.function:
        case "sum":
            return sum_of(argument, call.type)
        case "avg":
            return avg_of(argument, call.type)
        case "min" if call.type == argument:
            return min_of(argument)
        case "max" if call.type == argument:
            return max_of(argument)
    raise ProtocolError(f"{call.function} of {argument} as {call.type}")
