"""StatefulMap: a user's Python function over the rows of each key, in order, with a state for each key.

The operator takes the rows of all its inputs by key (:mod:`upriver.engine.operators.map_rows`), reads the states of
these keys, and calls the function for all of them (:mod:`upriver.engine.operators.map_calls`). It stores the new states
only when every call has succeeded: a batch that fails leaves nothing behind. Alternatively it leaves out the rows on
which the function fails.

States: one row of state for each key, which any batch may replace. A :class:`RoutedIndex` gives each key a slot, which
addresses the state's columns. Dropped states, and some replaced ones, leave memory behind;
:mod:`upriver.engine.operators.compacted` gives it back.
"""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import pyarrow as pa

from upriver.engine.batch import Batch
from upriver.engine.operators.compacted import USUAL, CompactionPace, TwoStores
from upriver.engine.operators.epoch_calls import called_by_epoch
from upriver.engine.operators.map_calls import BisectedCalls, Given, GoodCalls, Made, MakeCall, given_by, map_call
from upriver.engine.operators.map_rows import Arrived, MapRows
from upriver.engine.operators.operator import check_new, part_of
from upriver.errors import ProtocolError, RowError
from upriver.hashing import Hashes, hash64
from upriver.ids import Epoch
from upriver.plan.plan import Per, StatefulMapOp
from upriver.plan.row_order import given_schema
from upriver.state.columns import array_of, cells_of, replaceable_of
from upriver.state.indexes import RoutedIndex, first_equal, run_heads
from upriver.state.vectors import Mask, Slots, true_at


class StateKeys(RoutedIndex):
    """Keys that can be looked up even if they are absent."""

    __slots__ = ()

    def find(self, routed: Hashes, keys: Sequence[pa.Array]) -> Slots:
        """The slot of each key, -1 for an absent key. routed: the hash64 of their routing keys."""
        return self._entries.index.find(routed if self._fanout is None else hash64(keys, len(routed)), keys)


class States:
    """The states of keys. A key is the routing key or finer, and comes with the hash64 of its routing key."""

    __slots__ = ("_columns", "_keys", "_state")

    def __init__(self, key: pa.Schema, state: pa.Schema, routing: Sequence[str]) -> None:
        """routing: the routing key's columns, all in the key."""
        self._keys = StateKeys(key, routing)
        self._state = state
        self._columns = [replaceable_of(type) for type in state.types]

    @property
    def held(self) -> int:
        """How many keys have a state."""
        return self._keys.held

    @property
    def slots(self) -> int:
        """How many states there is memory for, including those that are gone."""
        return max([len(self._keys), *(column.places for column in self._columns)])

    @property
    def nbytes(self) -> int:
        return self._keys.nbytes + sum(column.nbytes for column in self._columns)

    def read(self, hashes: Hashes, keys: Sequence[pa.Array]) -> tuple[pa.RecordBatch, Mask]:
        """The state of each key, a row of nulls for a key without one; and which keys have one."""
        slots = self._keys.find(hashes, keys)
        known = slots >= 0
        columns = [column.take(slots[known]) for column in self._columns]
        if not known.all():
            places = pa.array(np.cumsum(known) - 1, mask=~known)
            columns = [column.take(places) for column in columns]
        return pa.RecordBatch.from_arrays(columns, schema=self._state), known

    def write(self, hashes: Hashes, keys: Sequence[pa.Array], states: pa.RecordBatch) -> None:
        """Set the state of each key; each key is named once."""
        slots = self._keys.assign(hashes, keys)
        for column, values in zip(self._columns, states.columns, strict=True):
            column.resize(len(self._keys))
            column.put(slots, values)

    def forget(self, hashes: Hashes, keys: Sequence[pa.Array]) -> None:
        """Remove the states of these keys, which all have one."""
        self._keys.forget(self._keys.find(hashes, keys))

    def hashes_between(self, least: int, most: int) -> Hashes:
        """The hash64, in no particular order, of routing keys that have a state."""
        return self._keys.hashes_between(least, most)

    def collect(self, keys: Hashes) -> tuple[pa.RecordBatch, ...]:
        """A row for each key with one of these hash64: that, the key's columns, the state's."""
        slots = self._keys.with_hash(keys)
        states = [column.take(slots) for column in self._columns]
        return (part_of(self._keys.hashes(slots), [*self._keys.columns(slots), *states]),)

    def install(self, state: Sequence[pa.RecordBatch]) -> None:
        """Raises ProtocolError for a key that has a state already."""
        for batch in state:
            hashes, *columns = batch.columns
            keys, states = columns[: -len(self._columns)], columns[-len(self._columns) :]
            check_new(not (self._keys.find(cells_of(hashes), keys) >= 0).any())
            self.write(cells_of(hashes), keys, pa.RecordBatch.from_arrays(states, schema=self._state))

    def drop(self, keys: Hashes) -> None:
        self._keys.forget(self._keys.with_hash(keys))


class StatefulMap(TwoStores[States]):
    """The function and its states. ``parts`` is 1: the states."""

    __slots__ = ("_bisected", "_call", "_is_finer", "_key", "_key_is_routing", "_op", "_rows", "schema")

    parts = 1

    def __init__(
        self,
        op: StatefulMapOp,
        sources: Sequence[pa.Schema],
        routing: Sequence[str],
        pace: CompactionPace = USUAL,
        make_call: MakeCall = map_call,
    ) -> None:
        """sources: of the rows that will come over each input. routing: the routing key's columns, all of them in the
        key. pace: how soon and how fast to compact. make_call: how the function is called.

        Raises DeclarationError if the function cannot be loaded here, ProtocolError for an op that contradicts itself.
        """
        if not set(routing) <= set(op.key):
            raise ProtocolError(f"a stateful map by {op.key} in a region that is routed by {tuple(routing)}")
        first = op.inputs[0]
        key = pa.schema(
            [pa.field(name, sources[0].field(own).type) for name, own in zip(op.key, first.key, strict=True)]
        )
        if list(op.output)[: len(key)] != list(key):
            raise ProtocolError(f"the output {op.output.names} does not begin with the key {op.key}")
        self._op = op
        self._key = key
        self._rows = MapRows(op, sources)
        self.schema = given_schema(op.output) if op.is_ordered else op.output
        self._call = make_call(op, self._rows.schema)
        self._bisected = BisectedCalls(self._call, op.per, given_by(op))
        self._is_finer = set(routing) < set(op.key)
        self._key_is_routing = tuple(routing) == op.key
        super().__init__(partial(States, key, op.state, routing), pace)

    def begin(self, epoch: Epoch) -> None:
        """Changes of this epoch come from now on."""
        self._rows.begin(epoch)

    def apply(self, port: int, batch: Batch) -> Batch:
        """As :meth:`apply_together`, of a map with one input."""
        return self.apply_together([batch])

    def apply_together(self, batches: Sequence[Batch | None]) -> Batch:
        """Call the function for the rows of all inputs; returns the rows that it gives, each behind its key, those of a
        key in order.

        Raises RowError if the function raises, or gives what was not declared; then no state has changed. Raises
        ProtocolError for a retraction, if the input is no view's changes: what a function has made of a row cannot be
        undone.
        """
        return self._applied(batches, self._surely, by_epoch=self._op.is_ordered)[0]

    def apply_good(self, batches: Sequence[Batch | None]) -> tuple[Batch, pa.RecordBatch, Sequence[str]]:
        """Call the function for the rows, as if the rows on which it fails had never come. If it is called row by row,
        only these rows are left out; else all rows that their keys have in their epochs, if rows come with those, or
        in the batch.

        Returns what :meth:`apply_together` does, the rows that were left out, and what is wrong with each. Raises
        ProtocolError.
        """
        return self._applied(batches, self._bisected, by_epoch=self._op.is_ordered or self._op.per is not Per.ROW)

    def _surely(self, given: Given) -> GoodCalls:
        return GoodCalls(self._call(given), np.empty(0, np.int64), ())

    def _applied(
        self, batches: Sequence[Batch | None], call: Callable[[Given], GoodCalls], *, by_epoch: bool
    ) -> tuple[Batch, pa.RecordBatch, Sequence[str]]:
        """by_epoch: rows of several epochs do not go into one call, if rows come with their epochs."""
        arrived = self._rows.of(batches)
        if arrived is None:
            nothing = Batch(pa.RecordBatch.from_pylist([], self.schema), np.empty(0, np.uint64))
            return nothing, pa.RecordBatch.from_pylist([], self._rows.schema), ()
        try:
            return self._called(arrived, call, by_epoch=by_epoch)
        except RowError as error:
            if not self._op.name:
                raise
            raise RowError(f"stateful map {self._op.name!r}: {error}") from (error.__cause__ or error)

    def _called(
        self, arrived: Arrived, call: Callable[[Given], GoodCalls], *, by_epoch: bool
    ) -> tuple[Batch, pa.RecordBatch, Sequence[str]]:
        arrived, given, hashes = self._given(arrived)
        assert not (self._op.is_ordered and arrived.epochs is None), "a map that feeds another one gets rows' epochs"
        if not by_epoch or arrived.epochs is None:
            found = call(given)
            return self._kept(given, hashes, found.made, ()), given.rows.take(pa.array(found.bad)), found.errors
        dated = called_by_epoch(call, given, arrived.epochs)
        found, owners = dated.found, dated.found.made.owners
        order: list[pa.Array] = []
        if self._op.is_ordered:
            upstream = hashes if self._key_is_routing else hash64(given.keys.columns)
            order = [
                array_of(pa.uint32(), dated.epochs.astype(np.uint32)),
                array_of(pa.uint64(), upstream[owners]),
                array_of(pa.int64(), dated.sequence),
            ]
        made = self._kept(given, hashes, found.made, order)
        return made, given.rows.take(pa.array(found.bad)), found.errors

    def _kept(self, given: Given, hashes: Hashes, made: Made, order: Sequence[pa.Array]) -> Batch:
        """Store the new states; returns the rows, each behind its key. hashes: of the keys. order: the columns behind
        the rows."""
        self._write(hashes, given, made)
        owners = pa.array(made.owners)
        columns = [column.take(owners) for column in given.keys.columns] + made.rows.columns
        return Batch(pa.RecordBatch.from_arrays([*columns, *order], schema=self.schema), hashes[made.owners])

    def _given(self, arrived: Arrived) -> tuple[Arrived, Given, Hashes]:
        """The rows by key, with the states; and the hash64 of each key's routing key."""
        hashes = hash64(arrived.keys) if self._is_finer else arrived.hash64
        heads = run_heads(hashes, arrived.keys)
        is_apart = len(np.unique(hashes[heads])) < len(heads)  # a key's rows are apart, or two keys have one hash
        if is_apart or (arrived.epochs is not None and len(self._op.inputs) > 1):
            first = first_equal(hashes, arrived.keys)
            by = (first,) if arrived.epochs is None else (arrived.epochs, first)
            order = np.lexsort(by)
            arrived = arrived.taken(order)
            heads = np.unique(first[order], return_index=True)[1]
        routed = arrived.hash64[heads]
        of_heads = [column.take(pa.array(heads)) for column in arrived.keys]
        keys = pa.RecordBatch.from_arrays(of_heads, schema=self._key)
        states, known = self._read(routed, keys)
        return arrived, Given(arrived.rows, np.append(heads, len(arrived)), keys, states, known), routed

    def _read(self, hashes: Hashes, keys: pa.RecordBatch) -> tuple[pa.RecordBatch, Mask]:
        parts = [
            (true_at(share), *store.read(hashes[share], keys.filter(pa.array(share)).columns))
            for store, share in self.shares(hashes)
        ]
        places, states, known = zip(*parts, strict=True)
        in_order = np.argsort(np.concatenate(places))
        return pa.concat_batches(states).take(pa.array(in_order)), np.concatenate(known)[in_order]

    def _write(self, hashes: Hashes, given: Given, made: Made) -> None:
        gone = given.known & ~made.kept
        for store, share in self.shares(hashes):
            kept, lost = made.kept & share, gone & share
            store.write(hashes[kept], given.keys.filter(pa.array(kept)).columns, made.states.filter(pa.array(kept)))
            store.forget(hashes[lost], given.keys.filter(pa.array(lost)).columns)
        self.tidy()
