"""ClockTests: rows with the results of tests of the clock, and with values of the clock, which change by themselves.

A row *waits* while one of its results will change. The operator keeps waiting rows with their count, and in the order
of their next change. When the clock passes that, it takes the row back and puts it out with its new results. A row
whose results will never change again is passed on and forgotten. Beside a value of the clock, all rows wait.

The results that a row was put out with are as of its key's clock. That is the region's clock, unless the key came from
a worker, or from a read of the lake, that was ahead: then the key keeps that clock until the region has reached it.
"""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import pyarrow as pa

from upriver.engine.batch import Batch, no_rows
from upriver.engine.clock import BEFORE_ALL, NEVER, ClockResult, Instants, Passing, Showing, all_changes
from upriver.engine.operators.compacted import USUAL, CompactionPace, TwoStores
from upriver.engine.operators.operator import check_new, concatenated, net_changes, part_of
from upriver.hashing import Hashes
from upriver.plan.clock import ClockOp
from upriver.state.columns import array_of, cells_of
from upriver.state.indexes import Entries, Fanout
from upriver.state.instant_queue import InstantQueue
from upriver.state.vectors import NO_KEYS, Slots, Vector, contains, key_set, true_at

ClocksOf = Callable[[Hashes], Instants]
"""The clocks of keys."""
_ROUTED = "routed"
"""The column of a waiting row's hash64: its columns may lack the routing key."""


class ClockTests:
    """Implements :class:`upriver.engine.operators.operator.Stateful`."""

    __slots__ = ("_ahead", "_clock", "_clocks", "_output", "_stores", "_tests")

    parts = 2

    def __init__(self, op: ClockOp, source: pa.Schema, output: pa.Schema, pace: CompactionPace = USUAL) -> None:
        """source, output: of the rows that come and go."""
        self._tests = _Tests(op, source, output)
        self._output = output
        self._stores = TwoStores(partial(_WaitingRows, self._tests), pace)
        self._clock = BEFORE_ALL
        self._ahead, self._clocks = NO_KEYS, np.empty(0, np.int64)
        """The keys whose clock is ahead of the region's, ascending, and their clocks."""

    @property
    def held(self) -> int:
        return self._stores.held

    @property
    def nbytes(self) -> int:
        return self._stores.nbytes + self._ahead.nbytes + self._clocks.nbytes

    @property
    def live_nbytes(self) -> int:
        return self._stores.live_nbytes + self._ahead.nbytes + self._clocks.nbytes

    def apply(self, port: int, batch: Batch) -> Batch:
        changes = self._late()
        for store, part in self._stores.split(batch):
            changes.append(store.take(part, self._clocks_of(part.hash64)))
        self._stores.tidy()
        return self._joined(changes)

    def due(self, clock: int) -> Hashes:
        """The keys with a row that changes when the clock gets there."""
        return key_set(*(store.due(clock) for store in self._stores.all))

    def advance(self, clock: int) -> Batch:
        """The clock gets to this instant; returns the changes that follow. It never goes back."""
        self._clock = max(self._clock, clock)
        left = self._clocks > self._clock
        self._ahead, self._clocks = self._ahead[left], self._clocks[left]
        changes = self._late()
        self._stores.tidy()
        return self._joined(changes)

    def raise_clock(self, keys: Hashes, clock: int) -> None:
        """Rows of these keys, ascending and unique, which have none here, come as of this instant."""
        self._set_ahead(keys, np.full(len(keys), clock, np.int64))

    def hashes_between(self, least: int, most: int) -> Hashes:
        return self._stores.hashes_between(least, most)

    def collect(self, keys: Hashes) -> tuple[pa.RecordBatch, ...]:
        """The waiting rows: each with its count, the clock's instant when the operator put it out, and its columns.
        And the clock of each key."""
        clocks = self._clocks_of(keys)
        known = clocks > BEFORE_ALL
        return (*self._stores.collect(keys), part_of(keys[known], [array_of(pa.int64(), clocks[known])]))

    def install(self, state: Sequence[pa.RecordBatch]) -> None:
        """Rows whose next change is before this region's clock are put out anew with the next call."""
        rows, clocks = state
        self._stores.install([rows])
        keys = cells_of(clocks.column(0))
        order = np.argsort(keys)
        self._set_ahead(keys[order], cells_of(clocks.column(1))[order])

    def drop(self, keys: Hashes) -> None:
        self._stores.drop(keys)
        if len(self._ahead):
            left = ~contains(keys, self._ahead)
            self._ahead, self._clocks = self._ahead[left], self._clocks[left]

    def _set_ahead(self, keys: Hashes, clocks: Instants) -> None:
        later = clocks > self._clock
        keys, clocks = keys[later], clocks[later]
        left = ~contains(keys, self._ahead)
        every = np.concatenate([self._ahead[left], keys])
        order = np.argsort(every)
        self._ahead, self._clocks = every[order], np.concatenate([self._clocks[left], clocks])[order]

    def _clocks_of(self, hashes: Hashes) -> Instants:
        clocks = np.full(len(hashes), self._clock, np.int64)
        if len(self._ahead):
            places = np.minimum(np.searchsorted(self._ahead, hashes), len(self._ahead) - 1)
            mine = self._ahead[places] == hashes
            clocks[mine] = np.maximum(clocks[mine], self._clocks[places[mine]])
        return clocks

    def _late(self) -> list[Batch]:
        """What follows from the clock for the rows that wait."""
        return [store.advance(self._clock, self._clocks_of) for store in self._stores.all]

    def _joined(self, changes: Sequence[Batch]) -> Batch:
        some = [change for change in changes if len(change)]
        return concatenated(some) if some else no_rows(self._output)


class _Tests:
    """The tests, over batches."""

    __slots__ = ("_op", "_places", "_values", "output", "source")

    def __init__(self, op: ClockOp, source: pa.Schema, output: pa.Schema) -> None:
        self._op = op
        self.source = source
        self.output = output
        self._places = [source.get_field_index(test.column) for test in op.tests]
        self._values = [Showing(column) for column in op.columns]

    def results(self, columns: Sequence[pa.Array]) -> list[ClockResult]:
        """columns: of the input."""
        tests = zip(self._op.tests, self._places, strict=True)
        return [*(Passing.of(test, columns[place]) for test, place in tests), *self._values]

    def rows(self, columns: Sequence[pa.Array], results: Sequence[ClockResult], clocks: Instants) -> pa.RecordBatch:
        """The rows as they are put out at these instants."""
        made = [result.column(clocks) for result in results]
        return pa.RecordBatch.from_arrays([*columns, *made], schema=self.output)


class _WaitingRows:
    """A store of rows that wait."""

    __slots__ = ("_counts", "_entries", "_keys", "_put_out", "_queue", "_tests", "held")

    def __init__(self, tests: _Tests) -> None:
        self._tests = tests
        schema = pa.schema([*tests.source, pa.field(_ROUTED, pa.int64())])
        self._entries = Entries(schema, exact=schema.names)
        self._keys = Fanout(())
        self._counts: Vector[np.int64] = Vector(np.int64)
        self._put_out: Vector[np.int64] = Vector(np.int64)
        """The clock's instant when the operator put each row out."""
        self._queue = InstantQueue()
        """Forgotten rows may be in it."""
        self.held = 0

    @property
    def slots(self) -> int:
        return len(self._entries)

    @property
    def nbytes(self) -> int:
        vectors = self._counts.nbytes + self._put_out.nbytes + self._queue.nbytes
        return self._entries.nbytes + self._keys.nbytes + vectors

    def take(self, batch: Batch, clocks: Instants) -> Batch:
        """Rows come, as of these instants. No row that is here is due."""
        columns = batch.rows.columns
        results = self._tests.results(columns)
        following = all_changes(results, clocks)
        waits = following < NEVER
        if waits.any():
            self._keep(batch.filtered(waits), clocks[waits], following[waits])
        return batch.replaced(self._tests.rows(columns, results, clocks))

    def advance(self, clock: int, clocks_of: ClocksOf) -> Batch:
        """Put the rows that are due out anew, as of their keys' clocks."""
        slots = self._live(self._queue.take(clock))
        if not len(slots):
            return no_rows(self._tests.output)
        columns, hashes = self._columns(slots), self._hashes(slots)
        results, before, after = self._tests.results(columns), self._put_out.cells[slots], clocks_of(hashes)
        counts = self._counts.cells[slots]
        differs = np.zeros(len(slots), np.bool_)
        for result in results:
            differs |= result.differs(before, after)
        old, new = (self._tests.rows(columns, results, when) for when in (before, after))
        self._put_out.cells[slots] = after
        following = all_changes(results, after)
        self._queue.add(following[following < NEVER], slots[following < NEVER])
        self._forget(slots[following == NEVER])
        both = [Batch(old, hashes, -counts), Batch(new, hashes, counts)]
        return concatenated([batch.filtered(differs) for batch in both])

    def due(self, clock: int) -> Hashes:
        return self._hashes(self._live(self._queue.due(clock)))

    def hashes_between(self, least: int, most: int) -> Hashes:
        return self._keys.hashes_between(least, most)

    def collect(self, keys: Hashes) -> tuple[pa.RecordBatch, ...]:
        _, hashes, slots = self._keys.with_hash(keys)
        here = self._counts.cells[slots] != 0
        slots = slots[here]
        numbers = [array_of(pa.int64(), vector.cells[slots]) for vector in (self._counts, self._put_out)]
        return (part_of(hashes[here], [*numbers, *self._columns(slots)]),)

    def install(self, state: Sequence[pa.RecordBatch]) -> None:
        for part in state:
            known = self.held
            hashes, counts, put_out, *columns = part.columns
            rows = pa.RecordBatch.from_arrays(columns, schema=self._tests.source)
            following = all_changes(self._tests.results(columns), cells_of(put_out))
            self._keep(Batch(rows, cells_of(hashes), cells_of(counts)), cells_of(put_out), following)
            check_new(self.held == known + part.num_rows)

    def drop(self, keys: Hashes) -> None:
        owners, _, slots = self._keys.with_hash(keys)
        slots = slots[self._counts.cells[slots] != 0]
        self._keys.forget(owners)
        self._counts.cells[slots] = 0
        self.held -= len(slots)
        self._entries.forget(slots)

    def _keep(self, batch: Batch, clocks: Instants, following: Instants) -> None:
        """clocks: as of which the rows were put out. following: their next changes."""
        routed = array_of(pa.int64(), batch.hash64.view(np.int64))
        slots = self._entries.assign([*batch.rows.columns, routed], len(batch))
        for vector in (self._counts, self._put_out):
            vector.resize(len(self._entries))
        net = net_changes(slots, batch.weight)
        before = self._counts.cells[net.slots]
        after = before + net.weight
        self._counts.cells[net.slots] = after
        woken = true_at((before == 0) & (after != 0))
        self._put_out.cells[net.slots[woken]] = clocks[net.first[woken]]
        self._add(net.slots[woken], batch.hash64[net.first[woken]], following[net.first[woken]])
        empty = net.slots[(before == 0) & (after == 0)]
        self._entries.forget(empty)
        self._forget(net.slots[(before != 0) & (after == 0)])

    def _add(self, slots: Slots, hashes: Hashes, following: Instants) -> None:
        """Rows begin to wait, for these instants."""
        owners = self._keys.owners(hashes, ())
        self._keys.link(owners, slots)
        self._keys.count(owners, None)
        self._queue.add(following, slots)
        self.held += len(slots)

    def _forget(self, slots: Slots) -> None:
        """Rows wait no longer."""
        if len(slots):
            owners = self._keys.owners(self._hashes(slots), ())
            self._keys.count(owners, np.full(len(owners), -1, np.int64))
            self._counts.cells[slots] = 0
            self._entries.forget(slots)
            self.held -= len(slots)

    def _live(self, slots: Slots) -> Slots:
        live: Slots = slots[self._counts.cells[slots] != 0]
        return live

    def _columns(self, slots: Slots) -> list[pa.Array]:
        """The columns of the input."""
        return self._entries.columns(slots)[:-1]

    def _hashes(self, slots: Slots) -> Hashes:
        routed = cells_of(self._entries.column(len(self._tests.source), slots))
        hashes: Hashes = routed.view(np.uint64)
        return hashes
