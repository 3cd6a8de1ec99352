"""LastingStore: the store of a view whose memory comes back, as :mod:`turning` says; no answer changes meanwhile."""

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa

from upriver.engine.batch import Batch
from upriver.engine.operators.turning import USUAL, Eagerness, Turning
from upriver.engine.operators.view import Columns, Store
from upriver.state.vectors import Positions, Slots, true_at
from upriver.xxh64 import Hashes

_OFFSETS = (0, 1 << 40)
"""Added to the slots of each store, to tell them apart."""


class LastingStore(Turning[Store]):
    """What :class:`upriver.engine.operators.view.Store` asks for, made of one store or of two."""

    __slots__ = ("schema",)

    def __init__(self, build: Callable[[], Store], eagerness: Eagerness = USUAL) -> None:
        """build: makes an empty store of the plan."""
        super().__init__(build, eagerness)
        self.schema = self._stores[0].schema

    @property
    def rows(self) -> int:
        return sum(store.rows for store in self._stores)

    @property
    def keys(self) -> int:
        return sum(store.keys for store in self._stores)

    def apply(self, batch: Batch) -> None:
        for store, part in self.split(batch):
            store.apply(part)
        self.tidy()

    def find(self, hashes: Hashes, keys: Sequence[pa.Array], rows_max: int | None = None) -> tuple[Positions, Slots]:
        if len(self._stores) == 1:
            return self._stores[0].find(hashes, keys, rows_max)
        found = []
        for offset, (store, share) in zip(_OFFSETS, self.shares(hashes), strict=True):
            asked = true_at(share)
            positions, slots = store.find(hashes[asked], [column.take(pa.array(asked)) for column in keys], rows_max)
            found.append((asked[positions], slots + offset))
        positions, slots = (np.concatenate(parts) for parts in zip(*found, strict=True))
        order = np.argsort(positions, kind="stable")
        return positions[order], slots[order]

    def by_hash(self) -> Slots:
        return np.concatenate([store.by_hash() + offset for offset, store in zip(_OFFSETS, self._stores, strict=False)])

    def column(self, name: str, slots: Slots) -> pa.Array:
        return _column(self._stores, name, slots)

    def as_now(self) -> Columns | None:
        """Of the stores that there are now: they are not changed by a turnover, but left."""
        columns = [store.as_now() for store in self._stores]
        return None if None in columns else _AsNow([each for each in columns if each is not None])


class _AsNow:
    """The rows of one store or of two, numbered as by :meth:`LastingStore.find`."""

    __slots__ = ("_stores",)

    def __init__(self, stores: Sequence[Columns]) -> None:
        self._stores = stores

    def column(self, name: str, slots: Slots) -> pa.Array:
        return _column(self._stores, name, slots)


def _column(stores: Sequence[Columns], name: str, slots: Slots) -> pa.Array:
    if len(stores) == 1:
        return stores[0].column(name, slots)
    new, old = stores
    in_old = slots >= _OFFSETS[1]
    parts = [new.column(name, slots[~in_old]), old.column(name, slots[in_old] - _OFFSETS[1])]
    places = np.concatenate([true_at(~in_old), true_at(in_old)])
    return pa.concat_arrays(parts).take(pa.array(np.argsort(places)))
