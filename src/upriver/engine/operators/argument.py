"""One input column of an aggregate, or the rows of it for which a condition is true: the functions of its values.

They share the count of rows that have no value, because it is null or the condition is not true. None is kept before
the first such row comes: until then a group has as many values as rows.
"""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from upriver.engine.operators.accumulator import Counts
from upriver.engine.operators.functions import (
    VALUE_FUNCTIONS,
    Functions,
    Overflow,
    Reader,
    accumulator_of,
    check_value_type,
)
from upriver.engine.operators.values import Values
from upriver.errors import ProtocolError
from upriver.plan.plan import AggregateCall
from upriver.state.columns import array_of, cells_of, validity
from upriver.state.vectors import Mask, Slots, Tally, Vector, Weights

_SAME_IF_DISTINCT = (*VALUE_FUNCTIONS, "bool_and", "bool_or")


class ValueCounts:
    """How many values each group has: as many as rows, but for those without one."""

    __slots__ = ("_missing", "_rows")

    def __init__(self, rows: Tally) -> None:
        """rows: how many rows each group has; kept by the caller."""
        self._rows = rows
        self._missing: Vector[np.int64] | None = None
        """How many rows of each group have no value; ``None`` as long as all have one."""

    @property
    def nbytes(self) -> int:
        return 0 if self._missing is None else self._missing.nbytes

    def of(self, slots: Slots) -> Counts:
        rows = self._rows.counts[slots]
        return rows if self._missing is None else rows - self._missing.cells[slots]

    def resize(self, size: int) -> None:
        if self._missing is not None:
            self._missing.resize(size)

    def missing(self, slots: Slots) -> Counts:
        """How many rows of these groups have no value."""
        return np.zeros(len(slots), np.int64) if self._missing is None else self._missing.cells[slots]

    def some_missing(self) -> npt.NDArray[np.int64]:
        """The same of all groups, to be written to."""
        if self._missing is None:
            self._missing = Vector(np.int64)
            self._missing.resize(len(self._rows))
        return self._missing.cells


class Argument:
    """What is kept of one column for every group."""

    __slots__ = ("_counts", "_functions", "_overflow", "_retracts", "_type", "_values")

    def __init__(self, type: pa.DataType | None, rows: Tally, overflow: Overflow, retracts: bool) -> None:
        """type: of the column; ``None`` if it is not a column that counts, but the rows. rows: how many rows each group
        has; kept by the caller. overflow: makes errors. retracts: whether rows may be taken back."""
        self._type = type
        self._overflow = overflow
        self._retracts = retracts
        self._counts = ValueCounts(rows)
        self._functions = Functions(self._counts.of, overflow)
        self._values: Values | None = None
        """All values, if some function needs them."""

    @property
    def held(self) -> int:
        """How many values are kept one by one."""
        return 0 if self._values is None else self._values.held

    @property
    def slots(self) -> int:
        """How many slots they take up, those of forgotten ones too."""
        return 0 if self._values is None else self._values.slots

    @property
    def nbytes(self) -> int:
        values = 0 if self._values is None else self._values.nbytes
        return self._counts.nbytes + values + self._functions.nbytes

    def reader(self, call: AggregateCall) -> Reader:
        """Keep what the call needs from now on; returns the reader of its results, which may raise RowError.

        Raises ProtocolError for a call whose types Spark would not give it.
        """
        distinct = call.distinct and call.function not in _SAME_IF_DISTINCT
        if call.function in ("count_star", "count") and not distinct:
            counts = self._counts
            return lambda slots: array_of(pa.int64(), counts.of(slots))
        if self._type is None:
            raise ProtocolError(f"{call.function} of no column")
        if distinct:
            return self._kept(self._type).distinct(call)
        if self._retracts and call.function in VALUE_FUNCTIONS:
            check_value_type(call, self._type)
            return self._kept(self._type).extreme(greatest=call.function == "max")
        return self._functions.reader(call, accumulator_of(call, self._type, self._retracts))

    def resize(self, size: int) -> None:
        self._counts.resize(size)
        if self._values is not None:
            self._values.resize(size)
        self._functions.resize(size)

    def add(self, slots: Slots, values: pa.Array | None, where: pa.Array | None, weight: Weights | None) -> None:
        """Add one value for each row, once the rows are counted; of rows only for which ``where`` is true, if given.

        Raises RowError if a result overflows.
        """
        present = _present(values, where)
        if present is not None:
            absent = ~present
            np.add.at(self._counts.some_missing(), slots[absent], 1 if weight is None else weight[absent])
            slots, weight = slots[present], None if weight is None else weight[present]
            values = None if values is None else values.filter(pa.array(present))
        if weight is not None and (self._counts.of(slots) < 0).any():
            raise ProtocolError("more values were retracted than had been added")
        if values is not None:
            self._functions.add(slots, values, weight)
            if self._values is not None:
                self._values.add(slots, values, weight)

    def state(self, slots: Slots) -> list[pa.Array]:
        """What is kept of these groups: the number of rows without a value, then some columns for each function."""
        values = [] if self._values is None else self._values.state(slots)
        return [array_of(pa.int64(), self._counts.missing(slots)), *self._functions.state(slots), *values]

    def install(self, slots: Slots, state: Iterator[pa.Array]) -> None:
        """Keep of these groups, which have nothing yet, what :meth:`state` said of them; takes as many columns."""
        missing = cells_of(next(state))
        if missing.any():
            self._counts.some_missing()[slots] = missing
        self._functions.install(slots, state)
        if self._values is not None:
            self._values.install(slots, state)

    def drop(self, slots: Slots) -> None:
        """Forget these groups, which are gone for good."""
        if self._values is not None:
            self._values.drop(slots)

    def _kept(self, type: pa.DataType) -> Values:
        if self._values is None:
            self._values = Values(type, self._overflow)
        return self._values


def _present(values: pa.Array | None, where: pa.Array | None) -> Mask | None:
    """Which rows have a value; ``None`` if all do."""
    present: Mask | None = None
    if where is not None:
        present = cells_of(where.fill_null(False)).astype(np.bool_)
    if values is not None and values.null_count:
        present = validity(values) if present is None else present & validity(values)
    return None if present is None or present.all() else present
