"""Which accumulator makes which aggregate function; and functions that are fed together."""

from collections.abc import Callable, Iterator

import pyarrow as pa

from upriver.engine.operators.accumulator import Accumulator, Counts, OutOfRange
from upriver.engine.operators.extremes import FirstValue, max_of, min_of
from upriver.engine.operators.moments import MOMENTS, Moment
from upriver.engine.operators.sums import avg_of, sum_of
from upriver.engine.operators.truths import Truths
from upriver.errors import ProtocolError, RowError
from upriver.plan.plan import AggregateCall
from upriver.state.vectors import Slots, Weights

Overflow = Callable[[AggregateCall, int], RowError]
"""The error to raise when the call's result for a group slot does not fit its type."""

Reader = Callable[[Slots], pa.Array]
"""Gives one output column's values for these group slots."""

VALUE_FUNCTIONS = ("min", "max", "any_value")
"""Their result is one of the values. They take none back: whoever may have to keeps all values."""


def accumulator_of(call: AggregateCall, argument: pa.DataType, retracts: bool) -> Accumulator:
    """An accumulator for the call. argument: the type of its column. retracts: whether values may be taken back.

    Raises ProtocolError for a call whose types Spark would not give it.
    """
    check_value_type(call, argument)
    match call.function:
        case "sum":
            return sum_of(argument, call.type, retracts)
        case "avg":
            return avg_of(argument, call.type, retracts)
        case "min":
            return min_of(argument)
        case "max":
            return max_of(argument)
        case "any_value":
            return FirstValue(argument)
        case "bool_and" | "bool_or" if argument == call.type == pa.bool_():
            return Truths(of_all=call.function == "bool_and")
        case function if function in MOMENTS:
            return Moment(function, argument, call.type)
    raise ProtocolError(f"{call.function} of {argument} as {call.type}")


def check_value_type(call: AggregateCall, argument: pa.DataType) -> None:
    """Raise ProtocolError for one of ``VALUE_FUNCTIONS`` that should give another type than its column's."""
    if call.function in VALUE_FUNCTIONS and call.type != argument:
        raise ProtocolError(f"{call.function} of {argument} as {call.type}")


class Functions:
    """The functions that are fed with the same values, and read with the same counts."""

    __slots__ = ("_counts", "_functions", "_overflow")

    def __init__(self, counts: Callable[[Slots], Counts], overflow: Overflow) -> None:
        """counts: how many values each group has. overflow: makes errors."""
        self._counts = counts
        self._overflow = overflow
        self._functions: list[tuple[AggregateCall, Accumulator]] = []

    def __len__(self) -> int:
        return len(self._functions)

    @property
    def nbytes(self) -> int:
        return sum(function.nbytes for _, function in self._functions)

    def reader(self, call: AggregateCall, function: Accumulator) -> Reader:
        """Feed this one, too, from now on; returns the reader of its results, which may raise RowError."""
        self._functions.append((call, function))

        def read(slots: Slots) -> pa.Array:
            try:
                return function.take(slots, self._counts(slots))
            except OutOfRange as lost:
                raise self._overflow(call, lost.slot) from None

        return read

    def resize(self, size: int) -> None:
        for _, function in self._functions:
            function.resize(size)

    def add(self, slots: Slots, values: pa.Array, weight: Weights | None) -> None:
        """Raises RowError if a result overflows."""
        for call, function in self._functions:
            try:
                function.add(slots, values, weight)
            except OutOfRange as lost:
                raise self._overflow(call, lost.slot) from None

    def state(self, slots: Slots) -> list[pa.Array]:
        return [column for _, function in self._functions for column in function.state(slots)]

    def install(self, slots: Slots, state: Iterator[pa.Array]) -> None:
        for _, function in self._functions:
            function.install(slots, state)
