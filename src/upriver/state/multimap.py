"""Which members or values belong to which owner: Lists, Multimap and Multiset.

Lists: for each owner a list of members, all of them in one pool. An owner's list lies in a stretch of the pool that has
some room behind it. A list that outgrows its room moves to the end of the pool and gets half as much again. The stretch
that it leaves stays unused until the whole pool goes. So reading a list costs one jump, however many owners there are.

Multimap: the members of each owner, where most owners have one, and members come and go. An owner's only member lies at
the owner's own place: one probe finds it, and a member that replaces it leaves nothing behind. The members of all other
owners are in :class:`Lists`, under a number for each owner.

Multiset: for each owner some values, each with a count, and the least and the greatest of them. An owner's value has a
slot, its *entry*, until its count falls to zero. If the value comes back, it gets a new entry. So an entry that is gone
stays gone; an :class:`OrderedPairIndex` relies on this.
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from upriver.state.columns import Cells, array_of, cells_of
from upriver.state.indexes import Entries, is_hashable
from upriver.state.pair_index import OrderedPairIndex, order_keys
from upriver.state.vectors import (
    Mask,
    Positions,
    Slots,
    Tally,
    Vector,
    Weights,
    run_lengths,
    run_starts,
    spread,
    true_at,
)

PIECE_MEMBERS = 1 << 15
"""A piece of a long list takes at most so many members, unless one call adds more."""


class Lists:
    """Growing lists of slots."""

    __slots__ = ("_lengths", "_pool", "_rooms", "_starts")

    def __init__(self) -> None:
        self._pool: Vector[np.int64] = Vector(np.int64)
        self._starts: Vector[np.int64] = Vector(np.int64)
        self._lengths: Vector[np.int64] = Vector(np.int64)
        self._rooms: Vector[np.int64] = Vector(np.int64)
        """By owner: where its list begins, how many members it has, and how many it has room for."""

    def __len__(self) -> int:
        """How many owners there are."""
        return len(self._lengths)

    @property
    def nbytes(self) -> int:
        return self._pool.nbytes + self._starts.nbytes + self._lengths.nbytes + self._rooms.nbytes

    def resize(self, size: int) -> None:
        """Make room for so many owners; new ones have no members."""
        for vector in (self._starts, self._lengths, self._rooms):
            vector.resize(size)

    def lengths(self, owners: Slots) -> Positions:
        """How many members each of these owners has."""
        lengths: Positions = self._lengths.cells[owners]
        return lengths

    def find(self, owners: Slots) -> tuple[Positions, Slots]:
        """The members of each owner in the order of its list: the owner's position in ``owners``, and the member."""
        lengths = self._lengths.cells[owners]
        positions, places = np.repeat(np.arange(len(lengths)), lengths), spread(self._starts.cells[owners], lengths)
        return positions, self._pool.cells[places]

    def append(self, owners: Slots, members: Slots) -> None:
        """Add each member to the end of its owner's list."""
        order = np.argsort(owners, kind="stable")
        touched, counts = np.unique(owners, return_counts=True)
        lengths = self._lengths.cells[touched]
        self._make_room(touched, lengths + counts)
        places = spread(self._starts.cells[touched] + lengths, counts)
        self._pool.cells[places] = members[order]
        self._lengths.cells[touched] = lengths + counts

    def replace(self, owners: Slots, lengths: Positions, members: Slots) -> None:
        """Replace the lists of these owners, each named once. members: of the first owner, then of the next, and so
        on."""
        self._lengths.cells[owners] = 0
        self._make_room(owners, lengths)
        places = spread(self._starts.cells[owners], lengths)
        self._pool.cells[places] = members
        self._lengths.cells[owners] = lengths

    def _make_room(self, owners: Slots, lengths: Positions) -> None:
        """Move those of these lists that have no room for so many members to the end of the pool."""
        narrow = lengths > self._rooms.cells[owners]
        if not narrow.any():
            return
        moving, wanted = owners[narrow], lengths[narrow]
        _, members = self.find(moving)
        rooms = wanted + (wanted >> 1)
        ends = len(self._pool) + np.cumsum(rooms)
        self._pool.resize(int(ends[-1]))
        self._starts.cells[moving], self._rooms.cells[moving] = ends - rooms, rooms
        places = spread(ends - rooms, self._lengths.cells[moving])
        self._pool.cells[places] = members


class LongLists:
    """Growing lists of slots, of any length: each is made of pieces, so that no call moves a whole list."""

    __slots__ = ("_last", "_members", "_pieces")

    def __init__(self) -> None:
        self._pieces = Lists()
        """By owner."""
        self._last: Vector[np.int64] = Vector(np.int64, fill=-1)
        """By owner: the piece that grows; -1 if there is none yet."""
        self._members = Lists()
        """By piece."""

    def __len__(self) -> int:
        """How many owners there are."""
        return len(self._last)

    @property
    def nbytes(self) -> int:
        return self._pieces.nbytes + self._last.nbytes + self._members.nbytes

    def resize(self, size: int) -> None:
        """Make room for so many owners; new ones have no members."""
        self._pieces.resize(size)
        self._last.resize(size)

    def find(self, owners: Slots) -> tuple[Positions, Slots]:
        """The members of each owner in the order of its list: the owner's position in ``owners``, and the member."""
        positions, pieces = self._pieces.find(owners)
        places, members = self._members.find(pieces)
        return positions[places], members

    def append(self, owners: Slots, members: Slots) -> None:
        """Add each member to the end of its owner's list."""
        touched, counts = np.unique(owners, return_counts=True)
        last = self._last.cells[touched]
        full = last < 0
        full[~full] = self._members.lengths(last[~full]) + counts[~full] > PIECE_MEMBERS
        known = len(self._members)
        pieces = np.arange(known, known + np.count_nonzero(full))
        self._members.resize(known + len(pieces))
        self._pieces.append(touched[full], pieces)
        self._last.cells[touched[full]] = pieces
        self._members.append(self._last.cells[owners], members)

    def keep(self, owners: Slots, kept: Mask) -> None:
        """Keep only these of the members that :meth:`find` gives for these owners, each named once."""
        _, pieces = self._pieces.find(owners)
        places, members = self._members.find(pieces)
        self._members.replace(pieces, np.bincount(places[kept], minlength=len(pieces)), members[kept])


_NONE = -1
"""The place of an owner without members. Places of lists lie below it, the first list's next to it."""


class Multimap:
    """Owners and members are slots; a member has one owner."""

    __slots__ = ("_lists", "_places")

    def __init__(self) -> None:
        self._places: Vector[np.int64] = Vector(np.int64, fill=_NONE)
        """By owner: its only member, or where its list is, or ``_NONE``."""
        self._lists = Lists()

    @property
    def nbytes(self) -> int:
        return self._places.nbytes + self._lists.nbytes

    def resize(self, size: int) -> None:
        """Make room for so many owners."""
        self._places.resize(size)

    def insert(self, owners: Slots, members: Slots) -> None:
        """Add members. owners: of each, ascending."""
        heads = run_starts(owners)
        sizes = run_lengths(heads, len(owners))
        owners = owners[heads]
        places = self._places.cells[owners]
        only = (places == _NONE) & (sizes == 1)
        self._places.cells[owners[only]] = members[heads[only]]
        if not only.all():
            lists = self._lists_of(owners[~only])
            had_one = places[~only] > _NONE
            moved, more = places[~only][had_one], members[np.repeat(~only, sizes)]
            lists = np.concatenate([lists[had_one], np.repeat(lists, sizes[~only])])
            self._lists.append(lists, np.concatenate([moved, more]))

    def find(self, owners: Slots) -> tuple[Positions, Slots]:
        """The members of each owner: for every member the position of its owner in ``owners``, and the member.

        Sorted by position, then in order of arrival. Removed members may be among them.
        """
        places = self._places.cells[owners]
        single, listed = true_at(places > _NONE), true_at(places < _NONE)
        if not listed.size:
            return single, places[single]
        positions, members = self._lists.find(_NONE - 1 - places[listed])
        positions = np.concatenate([single, listed[positions]])
        order = np.argsort(positions, kind="stable")
        return positions[order], np.concatenate([places[single], members])[order]

    def remove(self, owners: Slots, members: Slots) -> None:
        """Remove these members. Those that are not the only ones of their owners may still be found."""
        only = self._places.cells[owners] == members
        self._places.cells[owners[only]] = _NONE

    def replace(self, owners: Slots, sizes: Positions, members: Slots) -> None:
        """Replace the members of these owners, each named once. sizes: how many each owner has."""
        self._lists.replace(self._lists_of(owners), sizes, members)

    def _lists_of(self, owners: Slots) -> Slots:
        """The list of each of these owners, each named once; an owner without a list gets one."""
        places = self._places.cells[owners]
        new = true_at(places >= _NONE)
        if new.size:
            known = len(self._lists)
            self._lists.resize(known + len(new))
            places[new] = _NONE - 1 - np.arange(known, known + len(new))
            self._places.cells[owners] = places
        return _NONE - 1 - places


class Multiset:
    """Values of owners, none of them null. Owners are dense numbers; the caller gives each number only once."""

    __slots__ = ("_has_order", "_index", "_pair_index", "_times", "_type")

    def __init__(self, type: pa.DataType) -> None:
        """type: of the values; the fields of a struct are kept column by column, and the struct is never null."""
        self._type = type
        parts = [field.type for field in type] if pa.types.is_struct(type) else [type]
        self._has_order = all(map(is_hashable, parts))
        self._index = Entries(
            pa.schema([("owner", pa.int64()), *((f"value {n}", part) for n, part in enumerate(parts))])
        )
        self._times = Tally()
        self._pair_index = OrderedPairIndex()

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
        return self._index.nbytes + self._times.nbytes + self._pair_index.nbytes

    def add(self, owners: Slots, values: pa.Array, weight: Weights | None) -> tuple[Slots, Slots]:
        """Change the counts of these values; ``None`` adds one for each.

        Returns the entries that are new, and those that are gone. Raises ProtocolError if a count would fall below
        zero.
        """
        parts = values.flatten() if pa.types.is_struct(self._type) else [values]
        entries = self._index.assign([array_of(pa.int64(), np.ascontiguousarray(owners)), *parts], len(owners))
        self._times.resize(len(self._index))
        woken, emptied = self._times.add(entries, weight)
        self._index.forget(entries[emptied])
        new, gone = woken[~np.isin(woken, emptied)], emptied[~np.isin(emptied, woken)]
        self._pair_index.insert(owners[new], entries[new])
        return entries[new], entries[gone]

    def owners(self, entries: Slots) -> Slots:
        """The owner of each of these entries."""
        return cells_of(self._index.column(0, entries))

    def values(self, entries: Slots) -> pa.Array:
        """The values of these entries, including those that are gone; with one zero and one NaN."""
        if not pa.types.is_struct(self._type):
            return self._index.column(1, entries)
        parts = [self._index.column(1 + place, entries) for place in range(self._type.num_fields)]
        return pa.StructArray.from_arrays(parts, fields=list(self._type))

    def ends(self, owners: Slots, greatest: bool) -> Slots:
        """The entry of the least (or the greatest) value of each owner, each named once; -1 for none."""
        return self._pair_index.ends(owners, greatest, self.keys, self._living)

    def keys(self, entries: Slots) -> Cells:
        """Integers in the order of the values, as :func:`order_keys` says; for nested values, in order of arrival."""
        return order_keys(self.values(entries)) if self._has_order else entries

    def in_order(self, owners: Slots) -> tuple[Slots, Weights, Positions]:
        """The entries of these owners, each named once: those of one owner ascend by their values. Also the count of
        each, and where the entries of each owner begin, with the end of the last."""
        positions, entries = self._entries(owners)
        order = np.lexsort((self.keys(entries), positions))
        bounds = np.searchsorted(positions, np.arange(len(owners) + 1))
        return entries[order], self._times.counts[entries[order]], bounds

    def state(self, owners: Slots) -> tuple[pa.Array, pa.Array]:
        """The state of these owners: a list of values for each, and a list of their counts."""
        positions, entries = self._entries(owners)
        offsets = pa.array(np.searchsorted(positions, np.arange(len(owners) + 1)))
        times = array_of(pa.int64(), self._times.counts[entries])
        return (
            pa.LargeListArray.from_arrays(offsets, self.values(entries)),
            pa.LargeListArray.from_arrays(offsets, times),
        )

    def install(self, owners: Slots, state: Sequence[pa.Array]) -> Slots:
        """Install the :meth:`state` of these owners, which have nothing yet; returns the new entries."""
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
        positions, entries = self._pair_index.find(owners)
        living = self._living(entries)
        return positions[living], entries[living]

    def _living(self, entries: Slots) -> Mask:
        living: Mask = self._times.counts[entries] > 0
        return living
