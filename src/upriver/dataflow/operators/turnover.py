"""Turnover: a store that gives the memory of forgotten rows back, a little with each call.

A store never uses a slot again. When more of its slots are forgotten than hold a row, an empty store takes its place
step by step: each call that changes something also moves the keys of one range of hash64 over, lowest first, just as a
rescale moves keys between workers. Until all have moved, the keys up to ``moved`` live in the new store, the others in
the old one. So nothing is ever rewritten at once, and order is kept wherever moving a key keeps it.
"""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from upriver.dataflow.batch import Batch
from upriver.dataflow.operators.view import Store
from upriver.state.columns import cells_of
from upriver.state.vectors import Hashes, Positions, Slots

FORGOTTEN_MIN = 4096
"""So few forgotten slots are never worth a turnover."""

STEP_ROWS = 1024
"""Rows moved in one step, at most, if they are spread evenly over the hashes: a millisecond or two of work."""

_OFFSETS = (0, 1 << 40)
"""Added to the slots of each store, to tell them apart."""


class Turnover:
    """A store made of one store, or for a while of two."""

    __slots__ = (
        "_build",
        "_done",
        "_first_held",
        "_first_slots",
        "_forgotten_min",
        "_moved_rows",
        "_ranges",
        "_step_rows",
        "_stores",
        "schema",
    )

    def __init__(
        self, build: Callable[[], Store], forgotten_min: int = FORGOTTEN_MIN, step_rows: int = STEP_ROWS
    ) -> None:
        """build: makes an empty store of the plan. The others: as the constants of these names say."""
        self._build = build
        self._forgotten_min = forgotten_min
        self._step_rows = step_rows
        self._stores = [build()]
        """In order of the hash64 that they have: during a turnover the new one, then the old one."""
        self._ranges, self._done = 1, 0
        """Into how many ranges of hash64 a turnover is divided, and how many have moved; of use during one only."""
        self._first_held, self._first_slots, self._moved_rows = 0, 0, 0
        """Rows and slots of the old store when the turnover began, and how many rows have moved since."""
        self.schema = self._stores[0].schema

    @property
    def rows(self) -> int:
        return sum(store.rows for store in self._stores)

    @property
    def held(self) -> int:
        return sum(store.held for store in self._stores)

    @property
    def keys(self) -> int:
        return sum(store.keys for store in self._stores)

    @property
    def slots(self) -> int:
        return sum(store.slots for store in self._stores)

    @property
    def nbytes(self) -> int:
        return sum(store.nbytes for store in self._stores)

    def apply(self, batch: Batch) -> None:
        if len(self._stores) == 1:
            self._stores[0].apply(batch)
        else:
            for store, share in self._shares(batch.hash64):
                if share.any():
                    store.apply(batch.filtered(share))
        self._tidy()

    def find(self, hashes: Hashes, keys: Sequence[pa.Array]) -> tuple[Positions, Slots]:
        if len(self._stores) == 1:
            return self._stores[0].find(hashes, keys)
        found = []
        for offset, (store, share) in zip(_OFFSETS, self._shares(hashes), strict=True):
            asked = np.flatnonzero(share)
            positions, slots = store.find(hashes[asked], [column.take(pa.array(asked)) for column in keys])
            found.append((asked[positions], slots + offset))
        positions, slots = (np.concatenate(parts) for parts in zip(*found, strict=True))
        order = np.argsort(positions, kind="stable")
        return positions[order], slots[order]

    def by_hash(self) -> Slots:
        return np.concatenate([store.by_hash() + offset for offset, store in zip(_OFFSETS, self._stores, strict=False)])

    def column(self, name: str, slots: Slots) -> pa.Array:
        if len(self._stores) == 1:
            return self._stores[0].column(name, slots)
        new, old = self._stores
        in_old = slots >= _OFFSETS[1]
        parts = [new.column(name, slots[~in_old]), old.column(name, slots[in_old] - _OFFSETS[1])]
        places = np.concatenate([np.flatnonzero(~in_old), np.flatnonzero(in_old)])
        return pa.concat_arrays(parts).take(pa.array(np.argsort(places)))

    def hashes_between(self, least: int, most: int) -> Hashes:
        return np.concatenate([store.hashes_between(least, most) for store in self._stores])

    def collect(self, keys: Hashes) -> tuple[pa.RecordBatch, ...]:
        collected = [store.collect(keys[share]) for store, share in self._shares(keys)]
        return tuple(pa.concat_batches(parts) for parts in zip(*collected, strict=True))

    def install(self, state: Sequence[pa.RecordBatch]) -> None:
        of_batches = [list(self._shares(cells_of(batch.column(0)))) for batch in state]
        for shares in zip(*of_batches, strict=True):
            masks = [share for _, share in shares]
            store, _ = shares[0]
            store.install([_rows_of(batch, mask) for batch, mask in zip(state, masks, strict=True)])
        self._tidy()

    def drop(self, keys: Hashes) -> None:
        for store, share in self._shares(keys):
            store.drop(keys[share])
        self._tidy()

    def _shares(self, hashes: Hashes) -> Iterator[tuple[Store, npt.NDArray[np.bool_]]]:
        """Each store, and which of these hashes are its."""
        if len(self._stores) == 1:
            yield self._stores[0], np.ones(len(hashes), np.bool_)
        else:
            new, old = self._stores
            moved = hashes < np.uint64(self._bound(self._done))
            yield new, moved
            yield old, ~moved

    def _tidy(self) -> None:
        """Begin a turnover if one is due. If one is on, take a step, and more if slots are used up faster than that."""
        if len(self._stores) == 1:
            (store,) = self._stores
            if store.slots - store.held <= max(store.held, self._forgotten_min):
                return
            self._ranges, self._done = 1 << (store.held // self._step_rows).bit_length(), 0
            self._first_held, self._first_slots, self._moved_rows = store.held, store.slots, 0
            self._stores.insert(0, self._build())
        self._step()
        while len(self._stores) > 1 and self._is_late():
            self._step()

    def _step(self) -> None:
        """Move the keys of one range; with the last one that has any, the old store goes."""
        new, old = self._stores
        keys = np.unique(old.hashes_between(self._bound(self._done), self._bound(self._done + 1) - 1))
        held = new.held
        new.install(old.collect(keys))
        old.drop(keys)
        self._moved_rows += new.held - held
        self._done += 1
        if self._done == self._ranges or not old.held:
            self._stores.pop()

    def _is_late(self) -> bool:
        """Whether more slots would be used up during the turnover than there were rows when it began."""
        used = self.slots - self._moved_rows - self._first_slots
        return self._done * self._first_held < self._ranges * used

    def _bound(self, place: int) -> int:
        """Where the range at this place begins."""
        return place * (2**64 // self._ranges)


def _rows_of(batch: pa.RecordBatch, share: npt.NDArray[np.bool_]) -> pa.RecordBatch:
    return batch if share.all() else batch.filter(pa.array(share))
