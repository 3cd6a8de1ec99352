"""Multiset: for each owner some values, each so many times; and the least and the greatest of them.

An owner's value has a slot, its *entry*, from when it is first there until it is there no more: should it come back, it
has a new one. So an entry that is gone stays gone, which an :class:`OrderedSpine` counts on.
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from upriver.state.columns import Cells, array_of, cells_of
from upriver.state.entries import Entries, is_hashable
from upriver.state.ordered_spine import OrderedSpine
from upriver.state.ordering import order_keys
from upriver.state.vectors import Mask, Positions, Slots, Tally, Weights


class Multiset:
    """Values of owners, none of them null. Owners are dense numbers, and whoever gives them gives each but once."""

    __slots__ = ("_has_order", "_index", "_spine", "_times")

    def __init__(self, type: pa.DataType) -> None:
        """type: of the values."""
        self._has_order = is_hashable(type)
        self._index = Entries(pa.schema([("owner", pa.int64()), ("value", type)]))
        self._times = Tally()
        self._spine = OrderedSpine()

    @property
    def held(self) -> int:
        """How many entries there are."""
        return self._times.held

    @property
    def slots(self) -> int:
        """How many entries there are and have been."""
        return len(self._index)

    @property
    def nbytes(self) -> int:
        return self._index.nbytes + self._times.nbytes + self._spine.nbytes

    def add(self, owners: Slots, values: pa.Array, weight: Weights | None) -> tuple[Slots, Slots]:
        """Change how many times these values are there; ``None`` is once more for each.

        Returns the entries that are new, and those that are gone. Raises ProtocolError if a value would be there less
        than no times.
        """
        entries = self._index.assign([array_of(pa.int64(), np.ascontiguousarray(owners)), values], len(owners))
        self._times.resize(len(self._index))
        woken, emptied = self._times.add(entries, weight)
        self._index.forget(entries[emptied])
        new, gone = woken[~np.isin(woken, emptied)], emptied[~np.isin(emptied, woken)]
        self._spine.insert(owners[new], entries[new])
        return entries[new], entries[gone]

    def owners(self, entries: Slots) -> Slots:
        """Whose these entries are."""
        return cells_of(self._index.column(0, entries))

    def values(self, entries: Slots) -> pa.Array:
        """The values of these entries, also of those that are gone; with one zero and one NaN."""
        return self._index.column(1, entries)

    def ends(self, owners: Slots, greatest: bool) -> Slots:
        """The entry of the least (or the greatest) value of each owner, each named once; -1 for none."""
        return self._spine.ends(owners, greatest, self.keys, self._living)

    def keys(self, entries: Slots) -> Cells:
        """Integers in the order of the values, as :func:`order_keys` says; of nested values, in order of arrival."""
        return order_keys(self.values(entries)) if self._has_order else entries

    def state(self, owners: Slots) -> tuple[pa.Array, pa.Array]:
        """All that is kept of these owners: a list of values for each, and a list of how many times they are there."""
        positions, entries = self._entries(owners)
        offsets = pa.array(np.searchsorted(positions, np.arange(len(owners) + 1)))
        times = array_of(pa.int64(), self._times.counts[entries])
        return (
            pa.LargeListArray.from_arrays(offsets, self.values(entries)),
            pa.LargeListArray.from_arrays(offsets, times),
        )

    def install(self, owners: Slots, state: Sequence[pa.Array]) -> Slots:
        """Keep of these owners, which have nothing yet, what :meth:`state` said; returns the new entries."""
        values, times = state
        each = np.repeat(owners, values.value_lengths().to_numpy(zero_copy_only=False))
        entries, _ = self.add(each, values.flatten(), cells_of(times.flatten()))
        return entries

    def drop(self, owners: Slots) -> None:
        """Forget all values of these owners, each named once."""
        _, entries = self._entries(owners)
        self._index.forget(entries)
        self._times.clear(entries)

    def _entries(self, owners: Slots) -> tuple[Positions, Slots]:
        """All entries of each owner: its position, and the entry; sorted by both."""
        positions, entries = self._spine.find(owners)
        living = self._living(entries)
        return positions[living], entries[living]

    def _living(self, entries: Slots) -> Mask:
        living: Mask = self._times.counts[entries] > 0
        return living
