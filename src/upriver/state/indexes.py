"""Indexes of the in-memory state, from hashes and exact keys to slots.

HashTable: from hashes to slots. Open addressing with linear probing, in pure numpy. Each step of a probe serves all
hashes that still probe, so a batch costs a few whole-array operations however many hashes it has. One entry is 64 bits:
the slot plus one in the low half, and as a *tag* the high half of the hash. The low bits of the hash give the place
where probing begins, so place and tag together are nearly the whole hash.

A table that is half full is copied into a wider one, some places at a time with each batch of new slots. It serves from
the old places until all are copied: no call waits for a whole table, and no probe looks into two. A slot is forgotten
by inverting the tag of its entry: no hash of that slot's key has that tag, and probes pass over it as over any other
entry.

SlotIndex: from exact keys to dense slots. A row first walks the table to the entry with its hash's tag. Then the index
compares the real keys of all rows in one go, and the few rows that met another key walk on. So two keys with one hash64
keep separate slots. An index without columns has the hashes themselves as keys. Slots count up in order of arrival and
are never used again: a key that was forgotten and comes back is a new one. The memory of forgotten slots comes back
when the whole index goes.

Entries: distinct rows, each with a slot, found by all their columns. Two rows are one entry if all their values are
equal as in SQL's DISTINCT: a null equals a null, NaN equals NaN and -0.0 equals 0.0. Values of a type that cannot be a
key, such as a map, are compared by their text.

Fanout: from exact keys to the many slots that each key owns, in order of arrival. If a region keeps several things for
one routing key (rows, or groups finer than the key), their keeper numbers them densely; a fanout knows which key they
belong to. Keys have slots of their own, *owners*.

RoutedIndex: entries that are found by their columns, and by the hash64 of their routing key. An entry's columns are the
routing key, or contain it. If they are the routing key, its hash is also the entry's. If they are finer, entries are
hashed over all their columns. A :class:`Fanout` then knows the entries of each routing key by its hash alone: keys
whose hash64 are equal move together.
"""

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from upriver.errors import KeyTypeError, ProtocolError
from upriver.hashing import Hashes, check_hashable, hash64
from upriver.state.columns import Column, canonical, column_of, exact_list, has_floats, same
from upriver.state.pair_index import PairIndex
from upriver.state.vectors import (
    Mask,
    Positions,
    Slots,
    Tally,
    Vector,
    Weights,
    first_of_each,
    run_lengths,
    run_starts,
    true_at,
)

_SLOT_BITS = np.uint64(32)
_SLOT_MASK = np.uint64(0xFFFF_FFFF)
_EMPTY = np.uint64(0)
_PLACES_MIN = 64

COPIED_PLACES = 16_384
"""Places copied at a time into a wider table, at least: less than a millisecond's work."""

_COPIED_PER_SLOT = 8
"""Places copied for each new slot, at least: a table is copied before another eighth of it has filled."""

_FEW = 1024
"""Up to so few hashes take many steps at once: each step has a fixed cost, that of some calls of numpy."""
_STRIDE = 8
"""Steps that they take at once: as many places as a cache line of the processor has."""
_STEPS = np.arange(1, _STRIDE + 1)

_TOUCHED_AHEAD = 1 << 17
"""Places: half a large page."""


class HashTable:
    """Where the slot of each hash is; a hash may have several slots.

    Invariants: every slot has exactly one entry in ``entries``, reached from its home place over entries that are not
    empty, with an inverted tag if it is forgotten. At most five eighths of the places are full. A ``wider`` table has
    all live entries of the first ``copied`` places, and no other entry.
    """

    __slots__ = ("_copied", "_entries", "_wider")

    def __init__(self) -> None:
        self._entries: Hashes = np.zeros(_PLACES_MIN, np.uint64)
        self._wider: Hashes = np.zeros(0, np.uint64)
        """Without places, if there is no wider table."""
        self._copied = 0

    def __len__(self) -> int:
        """How many places there are."""
        return len(self._entries)

    @property
    def nbytes(self) -> int:
        return int(self._entries.nbytes + self._wider.nbytes)

    def walk(self, hashes: Hashes, places: Positions | None = None) -> tuple[Slots, Positions]:
        """Probe to the next entry with the hash's tag, or to an empty one: from ``places`` on, or from home.

        Returns its slot, or -1, and its place.
        """
        last = len(self._entries) - 1
        places = _homes(self._entries, hashes) if places is None else places & last
        entries = self._entries[places]
        (walking,) = _elsewhere(entries, hashes).nonzero()
        while walking.size > _FEW:
            places[walking] = (places[walking] + 1) & last
            entries[walking] = self._entries[places[walking]]
            walking = walking[_elsewhere(entries[walking], hashes[walking])]
        while walking.size:
            steps = (places[walking, np.newaxis] + _STEPS) & last
            met = self._entries[steps]
            elsewhere = _elsewhere(met, hashes[walking, np.newaxis])
            rows, first = np.arange(len(walking)), elsewhere.argmin(axis=1)  # 0 if all are elsewhere
            walks_on = elsewhere[rows, first]
            first[walks_on] = _STRIDE - 1
            places[walking], entries[walking] = steps[rows, first], met[rows, first]
            walking = walking[walks_on]
        return _slots_in(entries), places

    def tagged(self, hashes: Hashes) -> tuple[Positions, Slots]:
        """All entries with a hash's tag up to the next empty one: the hash's position, and the slot."""
        last = len(self._entries) - 1
        places, walking = _homes(self._entries, hashes), np.arange(len(hashes))
        positions, slots = [walking[:0]], [walking[:0]]
        while walking.size > _FEW:
            entries = self._entries[places]
            full = entries != _EMPTY
            places, walking, entries = (places[full] + 1) & last, walking[full], entries[full]
            met = _is_tagged(entries, hashes[walking])
            positions.append(walking[met])
            slots.append(_slots_in(entries[met]))
        while walking.size:
            entries = self._entries[(places[:, np.newaxis] + _STEPS - 1) & last]
            passed = np.logical_and.accumulate(entries != _EMPTY, axis=1)
            rows, steps = (passed & _is_tagged(entries, hashes[walking, np.newaxis])).nonzero()
            positions.append(walking[rows])
            slots.append(_slots_in(entries[rows, steps]))
            walks_on = passed[:, -1]
            places, walking = (places[walks_on] + _STRIDE) & last, walking[walks_on]
        return np.concatenate(positions), np.concatenate(slots)

    def add(self, hashes: Hashes, count: int) -> None:
        """Enter the last ``count`` slots. hashes: of all slots, by slot."""
        self._make_room(hashes, count)
        new = np.arange(len(hashes) - count, len(hashes))
        places = _put(self._entries, hashes[new], new)
        if self._copied:
            behind = new[places < self._copied]
            _put(self._wider, hashes[behind], behind)

    def forget(self, hashes: Hashes, slots: Slots) -> None:
        """Forget these slots: no walk meets them any more. hashes: theirs."""
        places = _places_of(self._entries, hashes, slots)
        self._entries[places] ^= ~_SLOT_MASK
        if self._copied:
            behind = places < self._copied
            self._wider[_places_of(self._wider, hashes[behind], slots[behind])] ^= ~_SLOT_MASK

    def _make_room(self, hashes: Hashes, count: int) -> None:
        while 8 * len(hashes) > 5 * len(self):
            self._widen(hashes)
            self._copy(hashes, len(self))
        if len(self._wider):
            self._copy(hashes, max(COPIED_PLACES, _COPIED_PER_SLOT * count))
        elif 2 * len(hashes) > len(self):
            self._widen(hashes)

    def _widen(self, hashes: Hashes) -> None:
        if not len(self._wider):
            self._wider = np.zeros(1 << (2 * len(hashes)).bit_length(), np.uint64)
            self._touch(0)

    def _copy(self, hashes: Hashes, count: int) -> None:
        """Copy so many more places to the wider table. After the last place it replaces the table."""
        for start in range(self._copied, min(self._copied + count, len(self)), COPIED_PLACES):
            entries = self._entries[start : start + COPIED_PLACES]
            self._touch(start + _TOUCHED_AHEAD)
            self._copied = start + len(entries)
            entries = entries[entries != _EMPTY]
            slots = _slots_in(entries)
            theirs = hashes[slots]
            known = _entries_of(theirs, slots) == entries
            _put(self._wider, theirs[known], slots[known])
        if self._copied == len(self):
            self._entries, self._wider, self._copied = self._wider, np.zeros(0, np.uint64), 0

    def _touch(self, place: int) -> None:
        """Make the system clear the page in the upper half of the wider table to which this place will be copied.

        A place's entries go to two places half a table apart. A call that touched a new large page for each would take
        twice as long, so the upper page is touched earlier.
        """
        if len(self) + place < len(self._wider):
            self._wider[len(self) + place] |= _EMPTY


def _put(table: Hashes, hashes: Hashes, slots: Slots) -> Positions:
    """Write an entry for each slot into the first empty place from its home on; returns the places."""
    last = len(table) - 1
    entries = _entries_of(hashes, slots)
    places = _homes(table, hashes)
    outside = np.arange(len(slots))
    while outside.size:
        aims, wanted = places[outside], entries[outside]
        empty = true_at(table[aims] == _EMPTY)
        table[aims[empty]] = wanted[empty]  # if entries aim at one place, one of them gets it
        outside = outside[table[aims] != wanted]
        places[outside] = (places[outside] + 1) & last
    return places


def _places_of(table: Hashes, hashes: Hashes, slots: Slots) -> Positions:
    """The places of the entries of these slots."""
    last = len(table) - 1
    entries = _entries_of(hashes, slots)
    places = _homes(table, hashes)
    walking = true_at(table[places] != entries)
    while walking.size:
        places[walking] = (places[walking] + 1) & last
        walking = walking[table[places[walking]] != entries[walking]]
    return places


def _homes(table: Hashes, hashes: Hashes) -> Positions:
    return (hashes & np.uint64(len(table) - 1)).view(np.int64)


def _entries_of(hashes: Hashes, slots: Slots) -> Hashes:
    entries: Hashes = hashes >> _SLOT_BITS << _SLOT_BITS | (slots + 1).view(np.uint64)
    return entries


def _slots_in(entries: Hashes) -> Slots:
    """The slot of each entry, -1 for an empty one."""
    return (entries & _SLOT_MASK).view(np.int64) - 1


def _is_tagged(entries: Hashes, hashes: Hashes) -> Mask:
    """Which of these entries carry the hash's tag."""
    tagged: Mask = (entries ^ hashes) >> _SLOT_BITS == 0
    return tagged


def _elsewhere(entries: Hashes, hashes: Hashes) -> Mask:
    """Which of these entries neither carry the hash's tag nor are empty."""
    elsewhere: Mask = ((entries ^ hashes) >> _SLOT_BITS != 0) & (entries != _EMPTY)
    return elsewhere


_SLOTS_MAX = 0xFFFF_FFFF

_BLOCK = 1 << 56
"""Hashes of a block: every 256th part of all."""
_SCAN_SLOTS = 1 << 15
"""Slots scanned at a time, so that the temporary arrays stay in the processor's cache. Scanning all at once took up to
ten times as long, because the system had to find fresh memory."""


@dataclass(frozen=True, slots=True)
class _Block:
    """The slots with a hash of the block ``number``, in order of their hashes, among the first ``seen`` slots."""

    number: int
    seen: int
    slots: Slots


class SlotIndex:
    """Exact keys, each with a slot."""

    __slots__ = ("_block", "_columns", "_has_twins", "_hashes", "_table")

    def __init__(self, types: Sequence[pa.DataType]) -> None:
        """types: of the key's columns; none is a map. Without columns, the hash is the key."""
        self._columns: tuple[Column, ...] = tuple(column_of(type) for type in types)
        self._hashes: Vector[np.uint64] = Vector(np.uint64)
        self._table = HashTable()
        self._has_twins = False
        """Whether two keys with one hash may be here. Nearly always there are none, and a probe may stop at its first
        hit."""
        self._block: _Block | None = None
        """The block of the last call of ``between``."""

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
        """The slot of each key, -1 for an absent key. keys: columns of the index's types, one value per hash."""
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
        return np.repeat(slots, run_lengths(heads, len(hashes)))

    def with_hash(self, hashes: Hashes) -> Slots:
        """The slots of all keys with any of these hashes, which are unique, in no particular order."""
        if not self._has_twins:
            slots = self._find(hashes, ())
            return slots[slots >= 0]
        positions, slots = self._table.tagged(hashes)
        same_hash: Slots = slots[self.hashes[slots] == hashes[positions]]
        return same_hash

    def between(self, least: int, most: int) -> Slots:
        """All slots, including forgotten ones, whose hash lies between these two or equals one, in no particular order.

        A caller that asks for one small range after the other has all hashes scanned once per block, not once per
        range.
        """
        block = least // _BLOCK
        if block != most // _BLOCK:
            return self._scanned(0, least, most)
        if self._block is None or self._block.number != block:
            slots = self._scanned(0, block * _BLOCK, block * _BLOCK + _BLOCK - 1)
            self._block = _Block(block, len(self), slots[np.argsort(self.hashes[slots])])
        seen = self._block.slots
        hashes = self.hashes[seen]
        start = np.searchsorted(hashes, np.uint64(least), side="left")
        stop = np.searchsorted(hashes, np.uint64(most), side="right")
        return np.concatenate([seen[start:stop], self._scanned(self._block.seen, least, most)])

    def forget(self, slots: Slots) -> None:
        """Forget these slots. A forgotten key that comes back gets a new slot."""
        self._table.forget(self.hashes[slots], slots)

    def _scanned(self, first: int, least: int, most: int) -> Slots:
        """Those of the slots from ``first`` on whose hash lies between these two or equals one of them."""
        from_least, width = np.uint64(least), np.uint64(most - least)
        found = [
            # One comparison instead of two: a hash below ``least`` wraps round and is far beyond.
            start + true_at(self.hashes[start : start + _SCAN_SLOTS] - from_least <= width)
            for start in range(first, len(self), _SCAN_SLOTS)
        ]
        return np.concatenate(found) if found else np.empty(0, np.int64)

    def _find(self, hashes: Hashes, keys: Sequence[pa.Array]) -> Slots:
        """The slot of each key, -1 for an absent key; without keys, the first slot met with the hash."""
        slots, places = self._table.walk(hashes)
        of_others = self._of_other_keys(slots, hashes, keys)
        while of_others.size:
            theirs = hashes[of_others]
            self._has_twins |= bool((self.hashes[slots[of_others]] == theirs).any())
            slots[of_others], places[of_others] = self._table.walk(theirs, places[of_others] + 1)
            of_others = of_others[self._of_other_keys(slots[of_others], theirs, _rows(keys, of_others))]
        return slots

    def _assign(self, hashes: Hashes, keys: Sequence[pa.Array]) -> Slots:
        slots = self._find(hashes, keys)
        unseen = true_at(slots < 0)
        if unseen.size:
            slots[unseen] = self._add(hashes[unseen], _rows(keys, unseen))
        return slots

    def _add(self, hashes: Hashes, keys: Sequence[pa.Array]) -> Slots:
        """Give slots to keys that have none; a key may occur more than once."""
        first, are_alike = _first_equal(hashes, keys)
        self._has_twins |= are_alike
        new = true_at(first == np.arange(len(first)))
        size = len(self)
        if size + len(new) > _SLOTS_MAX:
            raise ProtocolError(f"an index of {size:,} keys is full")
        numbers = np.empty(len(first), np.int64)
        numbers[new] = np.arange(size, size + len(new))
        self._hashes.extend(hashes[new])
        for column, values in zip(self._columns, _rows(keys, new), strict=True):
            column.append(values)
        self._table.add(self.hashes, len(new))
        return numbers[first]

    def _of_other_keys(self, slots: Slots, hashes: Hashes, keys: Sequence[pa.Array]) -> Positions:
        """The rows whose slot holds another key."""
        (found,) = (slots >= 0).nonzero()
        if not found.size:
            return found
        if not keys:
            of_others: Positions = found[self.hashes[slots[found]] != hashes[found]]
            return of_others
        if found.size < len(slots):
            slots, keys = slots[found], _rows(keys, found)
        differs = np.zeros(len(slots), np.bool_)
        for column, values in zip(self._columns, keys, strict=True):
            differs |= ~column.holds(slots, values)
        return found[differs]


def run_heads(hashes: Hashes, keys: Sequence[pa.Array]) -> Positions:
    """Where a row's key differs from the key of the row before it; the first row always does."""
    if len(hashes) < 2:
        return np.arange(len(hashes))
    begins = np.ones(len(hashes), np.bool_)
    differs = np.not_equal(hashes[1:], hashes[:-1], out=begins[1:])
    if not differs.all():
        for column in keys:
            differs |= ~same(column[1:], column[:-1])
    return true_at(begins)


def first_equal(hashes: Hashes, keys: Sequence[pa.Array]) -> Positions:
    """For each row, the first row with the same key. Equal keys must have equal hashes; without columns, the hashes are
    the keys."""
    return _first_equal(hashes, keys)[0]


def _first_equal(hashes: Hashes, keys: Sequence[pa.Array]) -> tuple[Positions, bool]:
    """As :func:`first_equal`; and whether two different keys may share a hash: at least, they were compared."""
    first, are_alike = np.empty(len(hashes), np.int64), False
    rows = np.arange(len(hashes))
    while rows.size:
        # Sort one number: as much of the hash as there is room for, above the row. This is faster than sorting pairs.
        below = np.uint64((1 << len(rows).bit_length()) - 1)
        packed = np.sort(hashes[rows] & ~below | np.arange(len(rows), dtype=np.uint64))
        in_turn, places = packed & ~below, (packed & below).view(np.int64)
        heads = run_starts(in_turn)
        if len(heads) == len(rows):
            first[rows] = rows
            break
        leaders = np.empty(len(rows), np.int64)
        leaders[places] = rows[np.repeat(places[heads], run_lengths(heads, len(rows)))]
        equal = hashes[rows] == hashes[leaders]
        for column in keys:
            equal &= same(column.take(pa.array(rows)), column.take(pa.array(leaders)))
        first[rows[equal]] = leaders[equal]
        rows = rows[~equal]
        are_alike |= bool(rows.size)
    return first, are_alike


def _rows(keys: Sequence[pa.Array], rows: Positions) -> Sequence[pa.Array]:
    """rows: ascending, each once."""
    if keys and len(rows) == len(keys[0]):
        return keys
    taken = pa.array(rows)
    return [column.take(taken) for column in keys]


Hasher = Callable[[Sequence[pa.Array], int], Hashes]
"""Hashes rows: columns of equal length, and that length."""


class Entries:
    """Rows of one schema. Slots count up in order of arrival; a row that was forgotten and comes back is a new one."""

    __slots__ = ("_as_text", "_exact", "_hasher", "_index")

    def __init__(self, schema: pa.Schema, exact: Collection[str] = (), hasher: Hasher = hash64) -> None:
        """exact: columns whose entries give back the first value that came, bit by bit, as nested columns
        do; other columns give one form for each number. hasher: hashes rows whose hash the caller does not know."""
        self._hasher = hasher
        self._as_text = [not is_hashable(field.type) for field in schema]
        types = [pa.string() if text else field.type for text, field in zip(self._as_text, schema, strict=True)]
        self._index = SlotIndex(types)
        self._exact: dict[int, Column] = {
            place: column_of(field.type)
            for place, field in enumerate(schema)
            if self._as_text[place]
            or (has_floats(field.type) and (field.name in exact or pa.types.is_nested(field.type)))
        }
        """By place, the columns that the index does not keep exactly."""

    def __len__(self) -> int:
        """How many slots are in use, including those of forgotten entries."""
        return len(self._index)

    @property
    def nbytes(self) -> int:
        return self._index.nbytes + sum(column.nbytes for column in self._exact.values())

    @property
    def index(self) -> SlotIndex:
        """Slots by hash."""
        return self._index

    def assign(self, columns: Sequence[pa.Array], count: int, hashes: Hashes | None = None) -> Slots:
        """The slot of each of ``count`` rows; unseen rows get the next slots, in order of their first row.

        hashes: of the rows, if the caller knows them; equal rows must have equal hashes.
        """
        known = len(self)
        identity = [_text(column) if text else column for text, column in zip(self._as_text, columns, strict=True)]
        slots = self._index.assign(self._hasher(identity, count) if hashes is None else hashes, identity)
        if self._exact and len(self) > known:
            first = pa.array(first_of_each(slots, true_at(slots >= known)))
            for place, column in self._exact.items():
                column.append(columns[place].take(first))
        return slots

    def column(self, place: int, slots: Slots) -> pa.Array:
        """One column of these entries, forgotten or not."""
        exact = self._exact.get(place)
        return self._index.column(place, slots) if exact is None else exact.take(slots)

    def columns(self, slots: Slots) -> list[pa.Array]:
        """All columns of these entries."""
        return [self.column(place, slots) for place in range(len(self._as_text))]

    def forget(self, slots: Slots) -> None:
        """Forget these entries. A forgotten row that comes back is a new entry."""
        self._index.forget(slots)


def is_hashable(type: pa.DataType) -> bool:
    """Whether values of the type can be a key."""
    try:
        check_hashable(type, "")
    except KeyTypeError:
        return False
    return True


def comparable(value: Any) -> tuple[Any, ...]:
    """A form of a value that Python compares as SQL does, part by part: equal values have equal forms, and forms sort
    as Spark sorts the values, a null first."""
    if value is None:
        return (0,)
    if isinstance(value, float):
        return (1, math.isnan(value), 0.0 if math.isnan(value) or value == 0 else value)
    if isinstance(value, str):
        return (1, value.encode())
    if isinstance(value, dict):
        return (1, *map(comparable, value.values()))
    if isinstance(value, list | tuple):
        return (1, *map(comparable, value))
    return (1, value)


def _text(column: pa.Array) -> pa.Array:
    return pa.array([None if value is None else repr(comparable(value)) for value in exact_list(column)], pa.string())


class Fanout:
    """Keys, each with any number of members. A member may be linked before it counts and after it no longer counts."""

    __slots__ = ("_index", "_pair_index", "_tally")

    def __init__(self, types: Sequence[pa.DataType]) -> None:
        """types: of the key's columns; without columns, the hash is the key."""
        self._index = SlotIndex(types)
        self._pair_index = PairIndex()
        self._tally = Tally()

    @property
    def held(self) -> int:
        """How many keys have a member that counts."""
        return self._tally.held

    @property
    def nbytes(self) -> int:
        return self._index.nbytes + self._pair_index.nbytes + self._tally.nbytes

    def owners(self, hashes: Hashes, keys: Sequence[pa.Array]) -> Slots:
        """The owner for each key; unseen keys get one."""
        owners = self._index.assign(hashes, keys)
        self._tally.resize(len(self._index))
        return owners

    def link(self, owners: Slots, members: Slots) -> None:
        """Link each member to its owner, for good."""
        self._pair_index.insert(owners, members)

    def count(self, owners: Slots, weight: Weights | None) -> None:
        """Add to the number of counting members of each owner; ``None`` adds one for each."""
        self._tally.add(owners, weight)

    def find(self, hashes: Hashes, keys: Sequence[pa.Array], members_max: int | None = None) -> tuple[Positions, Slots]:
        """All members linked to each key: the key's position, and the member; sorted by both. Raises ManyMembers as
        :meth:`PairIndex.find`."""
        owners = self._index.find(hashes, keys)
        known = true_at(owners >= 0)
        positions, members = self._pair_index.find(owners[known], members_max)
        return positions if len(known) == len(hashes) else known[positions], members

    def with_hash(self, hashes: Hashes) -> tuple[Slots, Hashes, Slots]:
        """Everything of the keys with any of these hashes, which are unique.

        Returns the owners; and for every member linked to one of them the key's hash and the member, sorted by owner,
        then by arrival.
        """
        owners = self._index.with_hash(hashes)
        positions, members = self._pair_index.find(owners)
        return owners, self._index.hashes[owners[positions]], members

    def members(self, owners: Slots) -> tuple[Positions, Slots]:
        """All members linked to each of these owners: the owner's position in ``owners``, and the member; sorted by
        both."""
        return self._pair_index.find(owners)

    def hashes_between(self, least: int, most: int) -> Hashes:
        """The hashes, in no particular order, of keys that have a member that counts."""
        return self._index.hashes[self._tally.of_those_held(self._index.between(least, most))]

    def forget(self, owners: Slots) -> None:
        """Forget these keys and their members."""
        self._index.forget(owners)
        self._tally.clear(owners)

    def by_hash(self) -> Slots:
        """All members linked, sorted by their key's hash, then by key, then by arrival."""
        owners, members = self._pair_index.pairs()
        rank = np.empty(len(self._index), np.int64)
        rank[np.argsort(self._index.hashes, kind="stable")] = np.arange(len(self._index))
        return members[np.lexsort((members, rank[owners]))]


class RoutedIndex:
    """Entries under routing keys. An entry is *kept* until it is forgotten."""

    __slots__ = ("_entries", "_fanout", "_kept", "_routed", "held")

    def __init__(self, schema: pa.Schema, routing: Sequence[str], hasher: Hasher = hash64) -> None:
        """schema: of the entries. routing: the routing key's columns, all in the schema. hasher: of finer entries."""
        finer = any(name not in routing for name in schema.names)
        self._entries = Entries(schema, hasher=hasher)
        self._fanout = Fanout([]) if finer else None
        self._routed: Vector[np.uint64] = Vector(np.uint64)
        """The hash64 of each entry's routing key, if entries are finer than that."""
        self._kept: Vector[np.bool_] = Vector(np.bool_, fill=True)
        self.held = 0
        """How many entries are kept."""

    def __len__(self) -> int:
        """How many slots are in use, including those of forgotten entries."""
        return len(self._kept)

    @property
    def nbytes(self) -> int:
        fanout = 0 if self._fanout is None else self._fanout.nbytes
        return self._entries.nbytes + self._routed.nbytes + self._kept.nbytes + fanout

    def assign(self, routed: Hashes, columns: Sequence[pa.Array]) -> Slots:
        """The slot of each row; unseen rows get the next slots, in order of their first row.

        routed: the hash64 of their routing keys.
        """
        known = len(self)
        slots = self._entries.assign(columns, len(routed), routed if self._fanout is None else None)
        self._kept.resize(len(self._entries))
        self.held += len(self) - known
        if self._fanout is not None and len(self) > known:
            theirs = routed[first_of_each(slots, true_at(slots >= known))]
            self._routed.extend(theirs)
            owners = self._fanout.owners(theirs, [])
            self._fanout.link(owners, np.arange(known, len(self)))
            self._fanout.count(owners, None)
        return slots

    def column(self, place: int, slots: Slots) -> pa.Array:
        """One column of these entries, forgotten or not: one form for each number."""
        return self._entries.column(place, slots)

    def columns(self, slots: Slots) -> list[pa.Array]:
        """All columns of these entries."""
        return self._entries.columns(slots)

    def hashes(self, slots: Slots) -> Hashes:
        """The hash64 of the routing key of each of these entries."""
        hashes: Hashes = (self._entries.index.hashes if self._fanout is None else self._routed.cells)[slots]
        return hashes

    def hashes_between(self, least: int, most: int) -> Hashes:
        """The hash64, in no particular order, of routing keys that have an entry."""
        if self._fanout is not None:
            return self._fanout.hashes_between(least, most)
        slots = self._entries.index.between(least, most)
        return self.hashes(slots[self._kept.cells[slots]])

    def with_hash(self, routed: Hashes) -> Slots:
        """The entries kept of routing keys with these hash64, ascending and unique; sorted by hash64, then by age."""
        if self._fanout is None:
            slots = self._entries.index.with_hash(routed)
            return slots[np.lexsort((slots, self.hashes(slots)))]
        _, _, slots = self._fanout.with_hash(routed)
        slots = slots[self._kept.cells[slots]]
        return slots[np.argsort(self.hashes(slots), kind="stable")]

    def forget(self, slots: Slots) -> None:
        """Forget these entries, each named once."""
        if not slots.size:
            return
        self._entries.forget(slots)
        self._kept.cells[slots] = False
        self.held -= len(slots)
        if self._fanout is not None:
            owners = self._fanout.owners(self.hashes(slots), [])
            self._fanout.count(owners, np.full(len(owners), -1))
