"""Table: from hashes to slots. Open addressing with linear probing, in pure numpy.

Each step of a probe is taken for all hashes that still probe at once, so a batch costs a few whole-array operations
however many hashes it has. One entry is 64 bits: the slot plus one in the low half, and as a *tag* the high half of the
hash. The low bits of the hash give the place where probing begins, so place and tag together are nearly the whole hash.

A table that is half full is copied into a wider one, some places at a time with each batch of new slots, and serves
from the old places until all are copied: no call waits for a whole table, and no probe has to look into two.
A slot is forgotten by inverting the tag of its entry: no hash of that slot's key has that tag, and probes walk over it
as over any other entry.
"""

import numpy as np

from upriver.state.vectors import Mask, Positions, Slots, true_at
from upriver.xxh64 import Hashes

_SLOT_BITS = np.uint64(32)
_SLOT_MASK = np.uint64(0xFFFF_FFFF)
_EMPTY = np.uint64(0)
_PLACES_MIN = 64

COPIED_PLACES = 16_384
"""Places copied at a time into a wider table, at least: less than a millisecond's work."""

_COPIED_PER_SLOT = 8
"""Places copied for each new slot, at least: a table is copied before its eighth part has filled."""

_FEW = 1024
"""So few hashes take many steps at once: each step has a fixed cost, that of some calls of numpy."""
_STRIDE = 8
"""Steps that they take at once: as many places as a line of the processor's cache has."""
_STEPS = np.arange(1, _STRIDE + 1)

_TOUCHED_AHEAD = 1 << 17
"""Places: half a large page."""


class Table:
    """Where the slot of each hash is, one hash any number of times.

    Invariants: every slot has exactly one entry in ``entries``, reached from its home place over entries that are not
    empty, with an inverted tag if it is forgotten. At most five eighths of the places are full. While there is a
    ``wider`` table, it has all entries of the first ``copied`` places that are not forgotten, and no other.
    """

    __slots__ = ("_copied", "_entries", "_wider")

    def __init__(self) -> None:
        self._entries: Hashes = np.zeros(_PLACES_MIN, np.uint64)
        self._wider: Hashes = np.zeros(0, np.uint64)
        """Without places, if there is none."""
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
        """No walk meets these slots any more. hashes: theirs."""
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
        """Copy so many more places to the wider table; the last one makes it the table."""
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
        """Have the system clear the page in the upper half of the wider table to which this place will be copied.

        A place's entries go to two places half a table apart. A new large page for each of them in one call would take
        it twice as long, so the upper one is touched earlier than it is needed.
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
        table[aims[empty]] = wanted[empty]  # of entries that aim at one place, one gets it
        outside = outside[table[aims] != wanted]
        places[outside] = (places[outside] + 1) & last
    return places


def _places_of(table: Hashes, hashes: Hashes, slots: Slots) -> Positions:
    """Where the entries of these slots are."""
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
