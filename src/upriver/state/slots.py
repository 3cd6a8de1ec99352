"""SlotIndex: from exact keys to dense slots. The one hash table of the in-memory state.

Open addressing with linear probing, in pure numpy: each step of a probe is taken for all rows that still probe at
once, so a batch costs a few whole-array operations however many rows it has. One entry of the table is 64 bits: the
slot plus one in the low half, and as a *tag* the high half of the key's hash64. The low bits of the hash give the place
where probing begins, so place and tag together are nearly the whole hash. A row first walks to the entry with its tag;
then the real keys of all rows are compared in one go, and the few that met another key walk on. Two keys with one
hash64 so keep separate slots.

Slots count up in order of arrival and are never used again. A key is forgotten by inverting the tag of its entry: the
same key has another tag, so nobody finds the slot again, and probes walk over it as over any other entry.
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from upriver.errors import ProtocolError
from upriver.state.columns import Column, canonical, column_of, same
from upriver.state.vectors import Hashes, Mask, Positions, Slots, Vector

_SLOT_BITS = np.uint64(32)
_SLOT_MASK = np.uint64(0xFFFF_FFFF)
_EMPTY = np.uint64(0)
_SLOTS_MAX = 0xFFFF_FFFF
_PLACES_MIN = 1024

_REBUILD_BLOCK = 65_536
"""Keys placed at a time when the table is laid out anew: the intermediate arrays stay in the processor's cache."""


class SlotIndex:
    """Exact keys, each with a slot.

    Invariant: every slot has exactly one entry, reached from its home place over entries that are not empty, with an
    inverted tag if its key is forgotten; at most half of the table is full.
    """

    __slots__ = ("_columns", "_hashes", "_table")

    def __init__(self, types: Sequence[pa.DataType]) -> None:
        """types: of the key's columns; none is nested."""
        self._columns: tuple[Column, ...] = tuple(column_of(type) for type in types)
        self._hashes: Vector[np.uint64] = Vector(np.uint64)
        self._table: Hashes = np.zeros(_PLACES_MIN, np.uint64)

    def __len__(self) -> int:
        return len(self._hashes)

    @property
    def hashes(self) -> Hashes:
        """The hash of each slot's key."""
        return self._hashes.cells

    @property
    def nbytes(self) -> int:
        return self._table.nbytes + self._hashes.nbytes + sum(column.nbytes for column in self._columns)

    def column(self, place: int, slots: Slots) -> pa.Array:
        """One column of these slots' keys."""
        return self._columns[place].take(slots)

    def find(self, hashes: Hashes, keys: Sequence[pa.Array]) -> Slots:
        """The slot of each key, -1 for one without. keys: columns of the index's types, one value per hash."""
        return self._find(hashes, [canonical(column) for column in keys])

    def assign(self, hashes: Hashes, keys: Sequence[pa.Array]) -> Slots:
        """The slot of each key; unseen keys get the next slots, in order of their first row.

        Runs of equal neighbours, which batches sorted by hash are made of, are looked up once.
        """
        keys = [canonical(column) for column in keys]
        heads = run_heads(hashes, keys)
        if len(heads) == len(hashes):
            return self._assign(hashes, keys)
        slots = self._assign(hashes[heads], _rows(keys, heads))
        return np.repeat(slots, np.diff(heads, append=len(hashes)))

    def with_hash(self, hashes: Hashes) -> Slots:
        """The slots of all keys with any of these hashes, which are unique, in no particular order."""
        last = len(self._table) - 1
        places = self._home(hashes)
        found = [np.empty(0, np.int64)]
        while places.size:
            entries = self._table[places]
            walking = entries != _EMPTY
            places, hashes, entries = (places[walking] + 1) & last, hashes[walking], entries[walking]
            tagged = (entries ^ hashes) >> _SLOT_BITS == 0
            slots = _slots_in(entries[tagged])
            found.append(slots[self.hashes[slots] == hashes[tagged]])
        return np.concatenate(found)

    def between(self, least: int, most: int) -> Slots:
        """All slots, forgotten ones too, whose hash lies between these two or is one of them; ascending."""
        # One comparison for two: what is below ``least`` wraps round and is far beyond.
        return np.flatnonzero(self.hashes - np.uint64(least) <= np.uint64(most - least))

    def forget(self, slots: Slots) -> None:
        """Nobody finds these slots any more; their keys, should they come back, get new ones."""
        last = len(self._table) - 1
        hashes = self.hashes[slots]
        entries = _entries_of(hashes, slots)
        places = self._home(hashes)
        walking = np.flatnonzero(self._table[places] != entries)
        while walking.size:
            places[walking] = (places[walking] + 1) & last
            walking = walking[self._table[places[walking]] != entries[walking]]
        self._table[places] ^= ~_SLOT_MASK

    def keep(self, slots: Slots) -> None:
        """Forget all keys but those of these slots, which are numbered anew in this order."""
        for column in self._columns:
            column.keep(slots)
        self._hashes.keep(slots)
        self._rebuild(len(slots))

    def _find(self, hashes: Hashes, keys: Sequence[pa.Array]) -> Slots:
        slots, places = self._walk(hashes, self._home(hashes))
        strangers = self._strangers(slots, keys)
        while strangers.size:
            slots[strangers], places[strangers] = self._walk(hashes[strangers], places[strangers] + 1)
            strangers = strangers[self._strangers(slots[strangers], _rows(keys, strangers))]
        return slots

    def _assign(self, hashes: Hashes, keys: Sequence[pa.Array]) -> Slots:
        slots = self._find(hashes, keys)
        unseen = np.flatnonzero(slots < 0)
        if unseen.size:
            slots[unseen] = self._add(hashes[unseen], _rows(keys, unseen))
        return slots

    def _add(self, hashes: Hashes, keys: Sequence[pa.Array]) -> Slots:
        """Give slots to keys that have none; a key may occur more than once among them."""
        first = first_equal(hashes, keys)
        new = np.flatnonzero(first == np.arange(len(first)))
        size = len(self)
        if size + len(new) > _SLOTS_MAX:
            raise ProtocolError(f"an index of {size:,} keys is full")
        numbers = np.empty(len(first), np.int64)
        numbers[new] = np.arange(size, size + len(new))
        self._hashes.extend(hashes[new])
        for column, values in zip(self._columns, _rows(keys, new), strict=True):
            column.append(values)
        if 2 * len(self) > len(self._table):
            self._rebuild(len(self))
        else:
            self._place(hashes[new], numbers[new])
        return numbers[first]

    def _home(self, hashes: Hashes) -> Positions:
        return (hashes & np.uint64(len(self._table) - 1)).view(np.int64)

    def _walk(self, hashes: Hashes, places: Positions) -> tuple[Slots, Positions]:
        """Probe from ``places`` on to the next entry with the hash's tag, or to an empty one.

        Returns its slot, or -1, and its place.
        """
        last = len(self._table) - 1
        places = places & last
        entries = self._table[places]
        walking = np.flatnonzero(_elsewhere(entries, hashes))
        while walking.size:
            places[walking] = (places[walking] + 1) & last
            entries[walking] = self._table[places[walking]]
            walking = walking[_elsewhere(entries[walking], hashes[walking])]
        return _slots_in(entries), places

    def _strangers(self, slots: Slots, keys: Sequence[pa.Array]) -> Positions:
        """The rows whose slot holds another key than theirs."""
        found = np.flatnonzero(slots >= 0)
        if found.size < len(slots):
            slots, keys = slots[found], _rows(keys, found)
        equal = np.ones(len(slots), np.bool_)
        for column, values in zip(self._columns, keys, strict=True):
            equal &= same(column.take(slots), values)
        return found[~equal]

    def _rebuild(self, size: int) -> None:
        """Lay the table out anew for ``size`` slots, a quarter to half full."""
        self._table = np.zeros(max(_PLACES_MIN, 1 << (2 * size).bit_length()), np.uint64)
        for start in range(0, size, _REBUILD_BLOCK):
            block = self.hashes[start : start + _REBUILD_BLOCK]
            self._place(block, np.arange(start, start + len(block)))

    def _place(self, hashes: Hashes, slots: Slots) -> None:
        """Write an entry for each slot into the first empty place from its home on."""
        last = len(self._table) - 1
        entries = _entries_of(hashes, slots)
        places = self._home(hashes)
        while entries.size:
            empty = np.flatnonzero(self._table[places] == _EMPTY)
            self._table[places[empty]] = entries[empty]  # of entries that aim at one place, one gets it
            outside = self._table[places] != entries
            places, entries = (places[outside] + 1) & last, entries[outside]


def run_heads(hashes: Hashes, keys: Sequence[pa.Array]) -> Positions:
    """Where a row's key differs from the key of the row before it; the first row always does."""
    if len(hashes) < 2:
        return np.arange(len(hashes))
    differs = hashes[1:] != hashes[:-1]
    if not differs.all():
        for column in keys:
            differs |= ~same(column[1:], column[:-1])
    return np.flatnonzero(np.concatenate([[True], differs]))


def first_equal(hashes: Hashes, keys: Sequence[pa.Array]) -> Positions:
    """For each row, the first row with the same key. Equal keys must have equal hashes."""
    first = np.empty(len(hashes), np.int64)
    rows = np.arange(len(hashes))
    while rows.size:
        _, heads, groups = np.unique(hashes[rows], return_index=True, return_inverse=True)
        leaders = rows[heads[groups]]
        equal = np.ones(len(rows), np.bool_)
        for column in keys:
            equal &= same(column.take(pa.array(rows)), column.take(pa.array(leaders)))
        first[rows[equal]] = leaders[equal]
        rows = rows[~equal]
    return first


def _entries_of(hashes: Hashes, slots: Slots) -> Hashes:
    entries: Hashes = hashes >> _SLOT_BITS << _SLOT_BITS | (slots + 1).view(np.uint64)
    return entries


def _slots_in(entries: Hashes) -> Slots:
    """The slot of each entry, -1 for an empty one."""
    return (entries & _SLOT_MASK).view(np.int64) - 1


def _elsewhere(entries: Hashes, hashes: Hashes) -> Mask:
    """Which of these entries neither carry the hash's tag nor are empty."""
    elsewhere: Mask = ((entries ^ hashes) >> _SLOT_BITS != 0) & (entries != _EMPTY)
    return elsewhere


def _rows(keys: Sequence[pa.Array], rows: Positions) -> list[pa.Array]:
    taken = pa.array(rows)
    return [column.take(taken) for column in keys]
