"""Aggregate: GROUP BY, kept up to date batch by batch.

Each group has a dense slot, which a :class:`SlotIndex` finds from the group's key; what the functions keep is columns
addressed by slot. Applying a batch means: find each row's slot (once per run of equal neighbours), then for each
function scatter the rows' values into its column. The functions of one column, or of those of its rows for which one
condition is true, share an :class:`Argument`.

If the group's key is the routing key, the routing key's hash is the group's, and a lookup is one probe. Otherwise
groups are hashed over all their columns, and a :class:`Fanout` knows the groups of each routing key.

Rows count with their weight. A group whose count falls to zero is forgotten; should it come back, it is a new one.
"""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice

import numpy as np
import pyarrow as pa

from upriver.engine.batch import Batch
from upriver.engine.operators.argument import Argument
from upriver.engine.operators.functions import Reader
from upriver.engine.operators.parts import check_new, part_of
from upriver.engine.row_text import row_text
from upriver.errors import ProtocolError, RowError
from upriver.hashing import hash64
from upriver.plan.plan import AggregateCall, AggregatePlan
from upriver.plan.sql_types import spark_name
from upriver.state.columns import array_of, cells_of
from upriver.state.fanout import Fanout
from upriver.state.slots import SlotIndex
from upriver.state.vectors import Positions, Slots, Tally, Weights
from upriver.xxh64 import Hashes


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
        """source: of the rows to come. routing: the routing key's columns, all in the group, in the key's order.

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
        self._arguments: dict[tuple[str | None, str | None], Argument] = {}
        """By the names of the column, if it is not the rows themselves that count, and of the condition, if any."""
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
        """How many groups there are, and how many values are kept one by one."""
        return self.rows + sum(argument.held for argument in self._arguments.values())

    @property
    def slots(self) -> int:
        """How many slots are in use for what is held, those of what is forgotten too."""
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
        """The group of each row; one that is not there yet gets a slot, which :meth:`add` must be told of."""
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
        for (column, where), argument in self._arguments.items():
            values = None if column is None else batch.rows.column(column)
            argument.add(slots, values, None if where is None else batch.rows.column(where), batch.weight)
        if emptied.size:
            self._groups.forget(slots[emptied])

    def counts(self, slots: Slots) -> Weights:
        """How many rows these groups have."""
        return self._rows.counts[slots]

    def find(self, hashes: Hashes, keys: Sequence[pa.Array], rows_max: int | None = None) -> tuple[Positions, Slots]:
        """The groups of each routing key, each with the key's position; in the order of the keys, then of arrival.
        ``rows_max`` is of no meaning: groups cannot be read some at a time."""
        if self._fanout is None:
            slots = self._groups.find(hashes, keys)
            (positions,) = (slots >= 0).nonzero()
            return positions, slots[positions]
        positions, slots = self._fanout.find(hashes, keys)
        held = self._rows.counts[slots] > 0
        return positions[held], slots[held]

    def as_now(self) -> None:
        """What a group comes to changes with its rows."""
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
        """One row for each group: the routing key's hash64, the group's columns, its number of rows, and what each
        function keeps of it."""
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
        """New slots for new groups, told to the fanout. routed: hash64 of the routing key of each group."""
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
        name = (call.argument, call.where)
        if name not in self._arguments:
            type = None if call.argument is None else source.field(call.argument).type
            overflow = partial(_overflow, self._groups, self._group)
            self._arguments[name] = Argument(type, self._rows, overflow, self._retracts)
        return self._arguments[name].reader(call)

    def _resize(self, size: int) -> None:
        self._rows.resize(size)
        for argument in self._arguments.values():
            argument.resize(size)

    def _fan_out(self, fanout: Fanout, batch: Batch, slots: Slots, woken: Positions, emptied: Positions) -> None:
        """Tell the routing keys which of their groups are new, which count from now on, and which no more."""
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
