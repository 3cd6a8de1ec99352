"""Aggregate: GROUP BY, kept up to date batch by batch.

Each group has a dense slot, which a :class:`SlotIndex` finds from the group's key. The functions keep columns addressed
by slot. Applying a batch means: find each row's slot (once per run of equal neighbours), then for each function scatter
the rows' values into its column. Functions of one column share an :class:`Argument`, as do those of the rows of one
column for which one condition is true.

If the group's key is the routing key, the routing key's hash is the group's, and a lookup is one probe. Otherwise
groups are hashed over all their columns, and a :class:`Fanout` knows the groups of each routing key.

Rows count with their weight. A group whose count falls to zero is forgotten; if it comes back, it is a new group.

Values: all values of one column in each group, for the functions that need them: DISTINCT, and extremes whose values
may be retracted.

Argument: one input column of an aggregate, or its rows for which a condition is true. Its functions share the count of
rows that have no value, because it is null or the condition is not true. No such count is kept before the first such
row comes: until then a group has as many values as rows.

Grouped: GROUP BY inside a dataflow. It retracts the old row of each group that a batch changes, and adds the new.
Without aggregate functions it is DISTINCT.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from upriver.engine.batch import Batch, no_rows
from upriver.engine.operators.accumulators import (
    MOMENTS,
    Accumulator,
    BitXor,
    Counts,
    FirstValue,
    Moment,
    OutOfRange,
    Truths,
    TryLongSum,
    avg_of,
    max_of,
    min_of,
    sum_of,
)
from upriver.engine.operators.compacted import USUAL, CompactionPace, TwoStores
from upriver.engine.operators.operator import check_new, concatenated, part_of
from upriver.engine.operators.pair_moments import PAIR_MOMENTS, PairMoment
from upriver.engine.operators.sorted_values import SortedValues
from upriver.engine.operators.value_functions import VALUE_FUNCTIONS as VALUES_FUNCTIONS
from upriver.engine.row_text import row_text
from upriver.errors import ProtocolError, RowError
from upriver.hashing import Hashes, hash64
from upriver.plan.plan import AggregateCall, AggregatePlan
from upriver.plan.types import spark_name
from upriver.state.columns import array_of, canonical, cells_of, same, validity
from upriver.state.indexes import Fanout, SlotIndex
from upriver.state.multimap import Multiset
from upriver.state.vectors import Mask, Positions, Slots, Tally, Vector, Weights, true_at

Overflow = Callable[[AggregateCall, int], RowError]
"""The error to raise when the call's result for a group slot does not fit its type."""

Reader = Callable[[Slots], pa.Array]
"""Gives one output column's values for these group slots."""

VALUE_FUNCTIONS = ("min", "max", "any_value")
"""Functions whose result is one of the values. They support no retraction; with retractions all values are kept."""


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
        case "try_sum" if pa.types.is_signed_integer(argument) and call.type == pa.int64():
            return TryLongSum()
        case "bit_xor" if pa.types.is_signed_integer(argument) and call.type == argument:
            return BitXor(argument)
        case function if function in MOMENTS:
            return Moment(function, argument, call.type)
        case function if function in PAIR_MOMENTS:
            return PairMoment(function, call.type)
    raise ProtocolError(f"{call.function} of {argument} as {call.type}")


def check_value_type(call: AggregateCall, argument: pa.DataType) -> None:
    """Raise ProtocolError for one of ``VALUE_FUNCTIONS`` that should give another type than its column's."""
    if call.function in VALUE_FUNCTIONS and call.type != argument:
        raise ProtocolError(f"{call.function} of {argument} as {call.type}")


class Functions:
    """The functions that take the same values, and are read with the same counts."""

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
        """Feed this function, too, from now on; returns the reader of its results, which may raise RowError."""
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


_NONE = -1
_UNKNOWN = -2


class Values:
    """The values that are not null, each with its number of rows. Functions follow as values come and go."""

    __slots__ = ("_bag", "_counts", "_extremes", "_functions", "_type")

    def __init__(self, type: pa.DataType, overflow: Overflow) -> None:
        """type: of the column. overflow: makes errors."""
        self._type = type
        self._bag = Multiset(type)
        self._counts: Vector[np.int64] = Vector(np.int64)
        """How many distinct values each group has."""
        self._functions = Functions(partial(_cells_of, self._counts), overflow)
        """These functions get each distinct value once, and have it taken back with the last of its rows."""
        self._extremes: dict[bool, Extreme] = {}
        """By whether the extreme is the greatest."""

    @property
    def held(self) -> int:
        """How many distinct values there are."""
        return self._bag.held

    @property
    def slots(self) -> int:
        """How many entries there are and have been."""
        return self._bag.slots

    @property
    def nbytes(self) -> int:
        extremes = sum(extreme.nbytes for extreme in self._extremes.values())
        return self._bag.nbytes + self._counts.nbytes + self._functions.nbytes + extremes

    def distinct(self, call: AggregateCall) -> Reader:
        """The reader of a call's results over distinct values; it may raise RowError."""
        if call.function == "count":
            counts = self._counts
            return lambda slots: array_of(pa.int64(), _cells_of(counts, slots))
        return self._functions.reader(call, accumulator_of(call, self._type, retracts=True))

    def extreme(self, greatest: bool) -> Reader:
        """The reader of the least (or the greatest) value of each group."""
        return self._extremes.setdefault(greatest, Extreme(self._bag, greatest)).take

    def whole(self, call: AggregateCall) -> Reader:
        """The reader of a call's results over all values of each group, in order."""
        function = VALUES_FUNCTIONS[call.function]

        def read(slots: Slots) -> pa.Array:
            groups, places = np.unique(slots, return_inverse=True)
            entries, times, bounds = self._bag.in_order(groups)
            return function(call, SortedValues(self._bag.values(entries), times, bounds)).take(pa.array(places))

        return read

    def resize(self, size: int) -> None:
        self._counts.resize(size)
        self._functions.resize(size)
        for extreme in self._extremes.values():
            extreme.resize(size)

    def add(self, slots: Slots, values: pa.Array, weight: Weights | None) -> None:
        """Raises RowError if a result overflows."""
        self._follow(*self._bag.add(slots, values, weight))

    def state(self, slots: Slots) -> list[pa.Array]:
        return list(self._bag.state(slots))

    def install(self, slots: Slots, state: Iterator[pa.Array]) -> None:
        self._follow(self._bag.install(slots, (next(state), next(state))), np.empty(0, np.int64))

    def drop(self, slots: Slots) -> None:
        """Forget all values of these groups, which are gone for good."""
        self._bag.drop(slots)

    def _follow(self, woken: Slots, emptied: Slots) -> None:
        entries = np.concatenate([woken, emptied])
        if not len(entries):
            return
        slots = self._bag.owners(entries)
        weight = np.repeat([1, -1], [len(woken), len(emptied)])
        np.add.at(self._counts.cells, slots, weight)
        if len(self._functions):
            self._functions.add(slots, self._bag.values(entries), weight)
        for extreme in self._extremes.values():
            extreme.follow(woken, emptied, self._counts.cells)


def _cells_of(counts: Vector[np.int64], slots: Slots) -> Counts:
    return counts.cells[slots]


class Extreme:
    """The least or the greatest value of each group.

    The best value so far is known. When it goes, the next best is looked up on the first read.
    """

    __slots__ = ("_bag", "_best", "_greatest")

    def __init__(self, bag: Multiset, greatest: bool) -> None:
        self._bag = bag
        self._greatest = greatest
        self._best: Vector[np.int64] = Vector(np.int64, fill=_NONE)
        """The entry of each group's extreme."""

    @property
    def nbytes(self) -> int:
        return self._best.nbytes

    def resize(self, size: int) -> None:
        self._best.resize(size)

    def follow(self, woken: Slots, emptied: Slots, counts: Counts) -> None:
        """Note new entries of the multiset and entries that are gone. counts: how many each group has now."""
        best = self._best.cells
        slots = self._bag.owners(emptied)
        best[slots[best[slots] == emptied]] = _UNKNOWN
        slots = self._bag.owners(woken)
        groups, news = np.unique(slots, return_counts=True)
        best[groups[counts[groups] == news]] = _NONE
        known = best[slots] != _UNKNOWN
        slots, woken = slots[known], woken[known]
        if not len(slots):
            return
        touched = np.unique(slots[best[slots] != _NONE])
        rivals = np.concatenate([best[touched], woken])
        owners = np.concatenate([touched, slots])
        keys = self._bag.keys(rivals)
        order = np.lexsort((keys if self._greatest else ~keys, owners))
        best[owners[order]] = rivals[order]  # of a group's rivals the last is kept

    def take(self, slots: Slots) -> pa.Array:
        best = self._best.cells
        unknown = np.unique(slots[best[slots] == _UNKNOWN])
        if len(unknown):
            best[unknown] = self._bag.ends(unknown, self._greatest)
        entries = best[slots]
        some = entries != _NONE
        values = self._bag.values(entries[some])
        return values if some.all() else values.take(pa.array(np.cumsum(some) - 1, mask=~some))


_SAME_IF_DISTINCT = (*VALUE_FUNCTIONS, "bool_and", "bool_or")
_BY = ("min_by", "max_by")
_OF_A_ROW = (*_BY, "first", "last")
"""Functions that give a column of the least, or the greatest, of the rows that count."""
_GREATEST = ("max_by", "last")


class ValueCounts:
    """How many values each group has: its rows, less those without a value."""

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
    """The state of one column for every group."""

    __slots__ = ("_counts", "_functions", "_overflow", "_retracts", "_type", "_values")

    def __init__(self, type: pa.DataType | None, rows: Tally, overflow: Overflow, retracts: bool) -> None:
        """type: of the column; ``None`` if rows count and not a column. rows: how many rows each group has; kept by the
        caller. overflow: makes errors. retracts: whether rows may be taken back."""
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
        """How many slots the values take up, including those of forgotten values."""
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
        if call.function in VALUES_FUNCTIONS:
            return self._kept(self._type).whole(call)
        if call.function in _OF_A_ROW:
            given = self._kept(self._type).extreme(greatest=call.function in _GREATEST)
            place = 1 if call.function in _BY else call.gives
            return lambda slots: given(slots).field(place)
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
        """Add one value for each row, after the rows are counted; with ``where``, only for rows for which it is true.

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
        if values is not None and len(values):
            self._functions.add(slots, values, weight)
            if self._values is not None:
                self._values.add(slots, values, weight)

    def state(self, slots: Slots) -> list[pa.Array]:
        """The state of these groups: the number of rows without a value, then some columns for each function."""
        values = [] if self._values is None else self._values.state(slots)
        return [array_of(pa.int64(), self._counts.missing(slots)), *self._functions.state(slots), *values]

    def install(self, slots: Slots, state: Iterator[pa.Array]) -> None:
        """Install the :meth:`state` of these groups, which have nothing yet; takes as many columns."""
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


@dataclass(frozen=True, slots=True)
class ArgumentName:
    """columns: of the values; none if rows count. Several columns make structs, which are null if one of the first
    ``required`` is. where: the column of the condition, or ``None``."""

    columns: tuple[str, ...]
    where: str | None
    required: int

    @classmethod
    def of(cls, call: AggregateCall) -> "ArgumentName":
        required = {**dict.fromkeys(_BY, 1), "first": 0, "last": 0}.get(call.function, len(call.columns))
        return cls(call.columns, call.where, required)

    def type(self, source: pa.Schema) -> pa.DataType | None:
        """The type of the values."""
        types = [source.field(column).type for column in self.columns]
        if len(types) < 2:
            return types[0] if types else None
        return pa.struct([pa.field(str(place), type) for place, type in enumerate(types)])

    def values(self, rows: pa.RecordBatch) -> pa.Array | None:
        """The values of these rows."""
        columns = [rows.column(column) for column in self.columns]
        if len(columns) < 2:
            return columns[0] if columns else None
        missing = np.zeros(rows.num_rows, np.bool_)
        for column in columns[: self.required]:
            missing |= ~validity(column)
        names = [str(place) for place in range(len(columns))]
        return pa.StructArray.from_arrays(columns, names, mask=pa.array(missing))


def _present(values: pa.Array | None, where: pa.Array | None) -> Mask | None:
    """Which rows have a value; ``None`` if all do."""
    present: Mask | None = None
    if where is not None:
        present = cells_of(where.fill_null(False)).astype(np.bool_)
    if values is not None and values.null_count:
        present = validity(values) if present is None else present & validity(values)
    return None if present is None or present.all() else present


class Aggregate:
    """The groups of one view, and the results of its functions.

    ``schema``: the group's columns, then one per call. Its rows are addressed by group slot.
    """

    __slots__ = (
        "_arguments",
        "_fanout",
        "_group",
        "_groups",
        "_hasher",
        "_readers",
        "_retracts",
        "_routing",
        "_rows",
        "schema",
    )

    def __init__(
        self,
        plan: AggregatePlan,
        source: pa.Schema,
        routing: Sequence[str],
        hasher: Callable[[Sequence[pa.Array]], Hashes] = hash64,
    ) -> None:
        """source: of the rows that will come. routing: the routing key's columns, all in the group, in the key's order.

        hasher: hashes groups that are finer than the routing key.
        """
        finer = [name for name in plan.group if name not in routing]
        self._routing = tuple(routing)
        self._retracts = plan.retracts
        self._group = (*routing, *finer)
        self._hasher = hasher
        self._groups = SlotIndex([source.field(name).type for name in self._group])
        self._fanout = Fanout([source.field(name).type for name in routing]) if finer else None
        self._rows = Tally()
        self._arguments: dict[ArgumentName, Argument] = {}
        self._readers: dict[str, Reader] = {
            name: partial(self._groups.column, place) for place, name in enumerate(self._group)
        }
        self._readers |= {call.output: self._reader(call, source) for call in plan.calls}
        results = [pa.field(call.output, call.type) for call in plan.calls]
        self.schema = pa.schema([*(source.field(name) for name in plan.group), *results])

    @property
    def rows(self) -> int:
        """How many groups there are."""
        return self._rows.held

    @property
    def held(self) -> int:
        """How many groups there are, plus how many values are kept one by one."""
        return self.rows + sum(argument.held for argument in self._arguments.values())

    @property
    def slots(self) -> int:
        """How many slots groups and values use, including those of forgotten ones."""
        return len(self._groups) + sum(argument.slots for argument in self._arguments.values())

    @property
    def keys(self) -> int:
        """How many routing keys have a group."""
        return self.rows if self._fanout is None else self._fanout.held

    @property
    def nbytes(self) -> int:
        fanout = 0 if self._fanout is None else self._fanout.nbytes
        arguments = sum(argument.nbytes for argument in self._arguments.values())
        return self._groups.nbytes + self._rows.nbytes + arguments + fanout

    def apply(self, batch: Batch) -> None:
        """Add the batch's rows to their groups.

        Raises RowError if a result overflows; only a part of the batch is applied then. Raises ProtocolError if rows
        are retracted that were not there, or that the plan says are never retracted.
        """
        self.add(batch, self.assign(batch))

    def assign(self, batch: Batch) -> Slots:
        """The group of each row; a new group gets a slot, which :meth:`add` must be told of."""
        columns = [batch.rows.column(name) for name in self._group]
        slots = self._groups.assign(batch.hash64 if self._fanout is None else self._hasher(columns), columns)
        self._resize(len(self._groups))
        return slots

    def add(self, batch: Batch, slots: Slots) -> None:
        """Add the batch's rows to these groups; otherwise as :meth:`apply`."""
        if batch.weight is not None and not self._retracts and (batch.weight < 0).any():
            raise ProtocolError("a row was retracted from groups whose rows only ever come")
        woken, emptied = self._rows.add(slots, batch.weight)
        if self._fanout is not None:
            self._fan_out(self._fanout, batch, slots, woken, emptied)
        for name, argument in self._arguments.items():
            where = None if name.where is None else batch.rows.column(name.where)
            argument.add(slots, name.values(batch.rows), where, batch.weight)
        if emptied.size:
            self._groups.forget(slots[emptied])

    def counts(self, slots: Slots) -> Weights:
        """How many rows these groups have."""
        return self._rows.counts[slots]

    def find(self, hashes: Hashes, keys: Sequence[pa.Array], rows_max: int | None = None) -> tuple[Positions, Slots]:
        """The groups of each routing key, each with the key's position; in the order of the keys, then of arrival.
        ``rows_max`` means nothing here: groups cannot be read some at a time."""
        if self._fanout is None:
            slots = self._groups.find(hashes, keys)
            (positions,) = (slots >= 0).nonzero()
            return positions, slots[positions]
        positions, slots = self._fanout.find(hashes, keys)
        held = self._rows.counts[slots] > 0
        return positions[held], slots[held]

    def as_now(self) -> None:
        """Nothing: a group's result changes with its rows."""
        return

    def by_hash(self) -> Slots:
        """All groups, sorted by the routing key's hash64."""
        if self._fanout is None:
            return self._rows.of_those_held(np.argsort(self._groups.hashes, kind="stable"))
        return self._rows.of_those_held(self._fanout.by_hash())

    def column(self, name: str, slots: Slots) -> pa.Array:
        """One column of these groups. Raises RowError if an average does not fit its type."""
        return self._readers[name](slots)

    def hashes_between(self, least: int, most: int) -> Hashes:
        """The hash64, in no particular order, of routing keys that have a group."""
        if self._fanout is not None:
            return self._fanout.hashes_between(least, most)
        return self._groups.hashes[self._rows.of_those_held(self._groups.between(least, most))]

    def collect(self, keys: Hashes) -> tuple[pa.RecordBatch, ...]:
        """One row for each group: the routing key's hash64, the group's columns, its number of rows, and the state of
        each function."""
        hashes, slots = self._with_hash(keys)
        columns = [self._groups.column(place, slots) for place in range(len(self._group))]
        columns.append(_row_counts(self._rows, slots))
        for argument in self._arguments.values():
            columns += argument.state(slots)
        return (part_of(hashes, columns),)

    def install(self, state: Sequence[pa.RecordBatch]) -> None:
        """Raises ProtocolError if a group is here already."""
        for batch in state:
            columns = iter(batch.columns)
            routed = cells_of(next(columns))
            keys = list(islice(columns, len(self._group)))
            slots = self._install_groups(routed, keys)
            self._rows.put(slots, cells_of(next(columns)))
            for argument in self._arguments.values():
                argument.install(slots, columns)

    def drop(self, keys: Hashes) -> None:
        if self._fanout is None:
            slots = self._groups.with_hash(keys)
        else:
            owners, _, slots = self._fanout.with_hash(keys)
            self._fanout.forget(owners)
            slots = self._rows.of_those_held(slots)
        self._groups.forget(slots)
        self._rows.clear(slots)
        for argument in self._arguments.values():
            argument.drop(slots)

    def _with_hash(self, keys: Hashes) -> tuple[Hashes, Slots]:
        """The groups of these routing keys, those of one key in order of arrival, and the routing hash of each."""
        if self._fanout is None:
            slots = self._groups.with_hash(keys)
            return self._groups.hashes[slots], slots
        _, hashes, slots = self._fanout.with_hash(keys)
        held = self._rows.counts[slots] > 0
        return hashes[held], slots[held]

    def _install_groups(self, routed: Hashes, keys: Sequence[pa.Array]) -> Slots:
        """New slots for new groups, which the fanout learns. routed: hash64 of the routing key of each group."""
        known = len(self._groups)
        slots = self._groups.assign(routed if self._fanout is None else self._hasher(keys), keys)
        check_new(len(self._groups) == known + len(slots))
        self._resize(len(self._groups))
        if self._fanout is not None:
            owners = self._fanout.owners(routed, keys[: len(self._routing)])
            self._fanout.link(owners, slots)
            self._fanout.count(owners, None)
        return slots

    def _reader(self, call: AggregateCall, source: pa.Schema) -> Reader:
        if call.argument is None and call.where is None:
            return partial(_row_counts, self._rows)
        name = ArgumentName.of(call)
        if name not in self._arguments:
            type = name.type(source)
            overflow = partial(_overflow, self._groups, self._group)
            self._arguments[name] = Argument(type, self._rows, overflow, self._retracts)
        return self._arguments[name].reader(call)

    def _resize(self, size: int) -> None:
        self._rows.resize(size)
        for argument in self._arguments.values():
            argument.resize(size)

    def _fan_out(self, fanout: Fanout, batch: Batch, slots: Slots, woken: Positions, emptied: Positions) -> None:
        """Tell the fanout which groups of the routing keys count from now on, and which no longer do."""
        changed = np.concatenate([woken, emptied])
        if not changed.size:
            return
        keys = [batch.rows.column(name).take(pa.array(changed)) for name in self._routing]
        owners = fanout.owners(batch.hash64[changed], keys)
        fanout.link(owners[: len(woken)], slots[woken])
        fanout.count(owners, np.repeat([1, -1], [len(woken), len(emptied)]))


def _row_counts(rows: Tally, slots: Slots) -> pa.Array:
    return array_of(pa.int64(), rows.counts[slots])


def _overflow(groups: SlotIndex, names: Sequence[str], call: AggregateCall, slot: int) -> RowError:
    """names: of the groups' columns."""
    columns = [groups.column(place, np.array([slot])) for place in range(len(names))]
    key = row_text(pa.RecordBatch.from_arrays(columns, list(names)), 0)
    where = f" for {key}" if key else ""
    instead = f"{call.function}(CAST(... AS DOUBLE)), or a DECIMAL of fewer digits, has more room"
    return RowError(f"{call.output} does not fit {spark_name(call.type)}{where}. {instead}")


class Grouped(TwoStores[Aggregate]):
    """The operator of :class:`upriver.plan.plan.Aggregate`. ``schema`` is of its output."""

    __slots__ = ("_calls", "_group", "_nothing", "schema")

    parts = 1

    def __init__(
        self,
        plan: AggregatePlan,
        source: pa.Schema,
        routing: Sequence[str],
        pace: CompactionPace = USUAL,
    ) -> None:
        """source, routing: as of :class:`Aggregate`. eagerness: how soon and how fast to compact."""
        super().__init__(partial(Aggregate, plan, source, routing), pace)
        self._group = plan.group
        self._calls = tuple(call.output for call in plan.calls)
        self.schema = self._stores[0].schema
        self._nothing = no_rows(self.schema)

    def apply(self, port: int, batch: Batch) -> Batch:
        """Add the batch's rows to their groups; returns the changes of the rows of groups that have changed.

        Raises RowError if a result overflows, and ProtocolError as :meth:`Aggregate.apply` does.
        """
        changes = [self._change(groups, part) for groups, part in self.split(batch)]
        self.tidy()
        return concatenated(changes) if changes else self._nothing

    def _change(self, groups: Aggregate, batch: Batch) -> Batch:
        slots = groups.assign(batch)
        touched, first = np.unique(slots, return_index=True)
        was = groups.counts(touched) > 0
        old = [groups.column(name, touched[was]) for name in self._calls]
        groups.add(batch, slots)
        now = groups.counts(touched) > 0
        new = [groups.column(name, touched[now]) for name in self._calls]
        goes, comes, stays = was.copy(), now.copy(), was & now
        goes[stays] = comes[stays] = _differ(old, stays[was], new, stays[now])
        places = np.concatenate([true_at(goes), true_at(comes)])
        columns = [groups.column(name, touched[places]) for name in self._group]
        columns += [_joined(*pair, goes[was], comes[now]) for pair in zip(old, new, strict=True)]
        rows = pa.RecordBatch.from_arrays(columns, schema=self.schema)
        gone = int(np.count_nonzero(goes))
        return Batch(
            rows, batch.hash64[first[places]], np.repeat([-1, 1], [gone, len(places) - gone]) if gone else None
        )


def _differ(old: Sequence[pa.Array], old_mask: Mask, new: Sequence[pa.Array], new_mask: Mask) -> Mask:
    """Which of the groups that were there before, and still are, have another result now."""
    differ = np.zeros(np.count_nonzero(old_mask), np.bool_)
    if len(differ):
        for before, now in zip(old, new, strict=True):
            differ |= ~same(canonical(_filtered(before, old_mask)), canonical(_filtered(now, new_mask)))
    return differ


def _joined(old: pa.Array, new: pa.Array, old_mask: Mask, new_mask: Mask) -> pa.Array:
    if not old_mask.any():
        return _filtered(new, new_mask)
    return pa.concat_arrays([_filtered(old, old_mask), _filtered(new, new_mask)])


def _filtered(values: pa.Array, mask: Mask) -> pa.Array:
    return values if mask.all() else values.filter(pa.array(mask))
