"""Compaction of an operator's state: one store, or for a while two, so that memory comes back little by little.

The state structures never use a slot again. When more slots are forgotten than hold something, a *compaction* begins:
an empty store replaces the old one step by step. Of the calls that change something, every few one also moves the keys
of one range of hash64, lowest first, as a rescale moves keys between workers. Only calls that take something in move
keys; calls that only forget must be short. Until all keys have moved, the keys of the moved ranges live in the new
store, the others in the old one. So nothing is ever rewritten at once, and order is kept wherever moving a key keeps
it.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import numpy as np
import pyarrow as pa

from upriver.engine.batch import Batch
from upriver.engine.operators.operator import concatenated
from upriver.hashing import Hashes
from upriver.state.columns import cells_of
from upriver.state.vectors import Mask

FORGOTTEN_MIN = 256
"""Up to so many forgotten slots are never worth a compaction."""

STEP_ROWS = 1024
"""Rows moved in one step, at most, if they are spread evenly over the hashes: some milliseconds of work for a join.
With fewer, every call would have to ask two stores for much longer."""

STEP_CALLS = 4
"""One of so many calls moves rows: so if one call changes several stores, they seldom all move at once."""


@dataclass(frozen=True, slots=True)
class CompactionPace:
    """How soon and how fast to compact. Each field is as the constant of its name says."""

    forgotten_min: int = FORGOTTEN_MIN
    step_rows: int = STEP_ROWS
    step_calls: int = STEP_CALLS


USUAL = CompactionPace()


class KeyedStore(Protocol):
    """State by routing key or by something finer; the methods are those of :class:`operator.Stateful`.

    A store must not refer to itself, for instance through a bound method that it keeps. Its memory would then wait for
    Python's collector of cycles, which may run much later.
    """

    @property
    def held(self) -> int:
        """How many slots hold live entries."""
        ...

    @property
    def slots(self) -> int:
        """How many slots are in use, including those of forgotten entries."""
        ...

    @property
    def nbytes(self) -> int: ...

    def hashes_between(self, least: int, most: int) -> Hashes: ...

    def collect(self, keys: Hashes) -> tuple[pa.RecordBatch, ...]: ...

    def install(self, state: Sequence[pa.RecordBatch]) -> None: ...

    def drop(self, keys: Hashes) -> None: ...


Kept = TypeVar("Kept", bound=KeyedStore)


class TwoStores(Generic[Kept]):
    """One store, or two. A method reaches them by :meth:`shares`, and calls :meth:`tidy` after it has taken something
    in."""

    __slots__ = (
        "_build",
        "_changes",
        "_done",
        "_first_held",
        "_first_slots",
        "_moved",
        "_pace",
        "_ranges",
        "_stores",
    )

    def __init__(self, build: Callable[[], Kept], pace: CompactionPace = USUAL) -> None:
        """build: makes an empty store of the plan."""
        self._build = build
        self._pace = pace
        self._stores = [build()]
        """In order of the hash64 that they hold: during a compaction the new store, then the old one."""
        self._ranges, self._done = 1, 0
        """The number of ranges of hash64 in a compaction, and how many have moved; meaningful only during one."""
        self._changes = 0
        """Changes since the compaction began, or since keys last moved."""
        self._first_held, self._first_slots, self._moved = 0, 0, 0
        """What the old store held and its slots when the compaction began, and how much has moved since."""

    @property
    def held(self) -> int:
        """How many slots hold a live entry: a row, a group, or a state."""
        return sum(store.held for store in self._stores)

    @property
    def slots(self) -> int:
        return sum(store.slots for store in self._stores)

    @property
    def nbytes(self) -> int:
        return sum(store.nbytes for store in self._stores)

    @property
    def all(self) -> tuple[Kept, ...]:
        """The stores that there are: one or two."""
        return tuple(self._stores)

    @property
    def live_nbytes(self) -> int:
        """The part of ``nbytes`` for slots that hold live entries; compaction gives the rest back."""
        return sum(store.nbytes * store.held // max(store.slots, 1) for store in self._stores)

    def shares(self, hashes: Hashes) -> Iterator[tuple[Kept, Mask]]:
        """Each store, and which of these hashes belong to it."""
        if len(self._stores) == 1:
            yield self._stores[0], np.ones(len(hashes), np.bool_)
        else:
            new, old = self._stores
            moved = hashes < np.uint64(self._bound(self._done))
            yield new, moved
            yield old, ~moved

    def split(self, batch: Batch) -> Iterator[tuple[Kept, Batch]]:
        """Each store that has some of these rows, and these rows."""
        if len(self._stores) == 1:
            if len(batch):
                yield self._stores[0], batch
        else:
            for store, share in self.shares(batch.hash64):
                if share.any():
                    yield store, batch.filtered(share)

    def split_keys(self, keys: Hashes) -> Iterator[tuple[Kept, Hashes]]:
        """Each store, and those of these keys that belong to it."""
        if len(self._stores) == 1:
            yield self._stores[0], keys
        else:
            for store, share in self.shares(keys):
                yield store, keys[share]

    def hashes_between(self, least: int, most: int) -> Hashes:
        return np.concatenate([store.hashes_between(least, most) for store in self._stores])

    def collect(self, keys: Hashes) -> tuple[pa.RecordBatch, ...]:
        of_stores = [store.collect(part) for store, part in self.split_keys(keys)]
        if len(of_stores) == 1:
            return of_stores[0]
        return tuple(pa.concat_batches(parts) for parts in zip(*of_stores, strict=True))

    def install(self, state: Sequence[pa.RecordBatch]) -> None:
        if len(self._stores) == 1:
            self._stores[0].install(state)
        else:
            of_parts = [list(self.shares(cells_of(part.column(0)))) for part in state]
            for shares in zip(*of_parts, strict=True):
                store = shares[0][0]
                store.install([part.filter(pa.array(mask)) for part, (_, mask) in zip(state, shares, strict=True)])
        self.tidy()

    def drop(self, keys: Hashes) -> None:
        """Moves no key: eviction must be short, and it uses no slots."""
        for store, part in self.split_keys(keys):
            store.drop(part)
        self._changed()

    def tidy(self) -> None:
        """Begin a compaction if one is due. During one, move a range of keys when it is time, or more ranges if slots
        are used up faster."""
        self._changed()
        if len(self._stores) > 1:
            steps = 1 if self._changes >= self._pace.step_calls else 0
            done = max(self._done + steps, self._due())
            if done > self._done:
                self._move(done)

    def _changed(self) -> None:
        """Begin a compaction if one is due, or end one that has nothing left to move."""
        if len(self._stores) == 1:
            (store,) = self._stores
            if store.slots - store.held <= max(store.held, self._pace.forgotten_min):
                return
            self._ranges, self._done = 1 << (store.held // self._pace.step_rows).bit_length(), 0
            self._first_held, self._first_slots, self._moved, self._changes = store.held, store.slots, 0, 0
            self._stores.insert(0, self._build())
        self._changes += 1
        if not self._stores[-1].held:
            self._stores.pop()

    def _due(self) -> int:
        """How many ranges must have moved, so that a compaction uses no more slots than were held at its start."""
        used = self.slots - self._moved - self._first_slots
        return min(self._ranges, -(-self._ranges * used // max(self._first_held, 1)))

    def _move(self, done: int) -> None:
        """Move the keys of the ranges up to this one; the old store is dropped with its last key."""
        new, old = self._stores
        keys = np.unique(old.hashes_between(self._bound(self._done), self._bound(done) - 1))
        held = new.held
        new.install(old.collect(keys))
        old.drop(keys)
        self._moved += new.held - held
        self._changes = 0
        self._done = done
        if done == self._ranges or not old.held:
            self._stores.pop()

    def _bound(self, place: int) -> int:
        """Where the range at this place begins."""
        return place * (2**64 // self._ranges)


class WorkingStore(KeyedStore, Protocol):
    """A store that works as an operator does."""

    def apply(self, port: int, batch: Batch) -> Batch: ...


class CompactedStore(TwoStores[WorkingStore]):
    """Implements :class:`upriver.engine.operators.operator.Stateful`. ``schema``: of the output."""

    __slots__ = ("schema",)

    parts = 1

    def __init__(self, schema: pa.Schema, build: Callable[[], WorkingStore], pace: CompactionPace = USUAL) -> None:
        """build: makes an empty store, which collects one batch."""
        super().__init__(build, pace)
        self.schema = schema

    def apply(self, port: int, batch: Batch) -> Batch:
        """Take in changes; returns those that follow.

        Raises ProtocolError for a retraction of a row that is not there.
        """
        changes = [store.apply(port, part) for store, part in self.split(batch)]
        self.tidy()
        return concatenated(changes) if changes else _no_changes(self.schema)


def _no_changes(schema: pa.Schema) -> Batch:
    rows = pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)
    return Batch(rows, np.empty(0, np.uint64), np.empty(0, np.int64))
