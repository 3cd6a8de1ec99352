"""PairIndex and OrderedPairIndex: which members belong to which owner, for many members each.

PairIndex is a log-structured merge tree in memory. Owners and members are slots below 2**32, so that a pair is one
64-bit number, ``owner << 32 | member``, and sorting numbers sorts pairs by owner, then by member. A batch of pairs
becomes a sorted **level**. A level that is not ``GROWTH`` times smaller than the level before it, or stands after a
small one, is merged into it. So there are few levels, each pair is moved a few times per ``GROWTH``-fold growth, and
finding an owner's members is a binary search in each level. Members are numbered in order of arrival, hence found in
order of arrival.

OrderedPairIndex also finds the least or the greatest living member of an owner. In each level the members of an owner
lie side by side, in a *segment*. Their order there does not matter at first. The first lookup of an end sorts the
segment by its members' values. So segments that are never read are never sorted, and a sorted segment stays sorted
until its level is merged into another. A dead member never comes back to life. So each end of a sorted segment has a
*mark* beyond which all are dead, and a lookup passes the dead only once. Later lookups of an end cost a binary search
in each level.

Values sort as machine integers, so that numpy can compare what Arrow keeps. Numbers, booleans, dates and timestamps are
integers already; floats are mapped to integers of the same order (NaN is the greatest, as in Spark). Values of other
types are ranked, so their integers mean nothing beyond one call.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from upriver.errors import ProtocolError
from upriver.state.columns import Cells, canonical, cells_of, elements_of, is_fixed, is_listed, spans_of, validity
from upriver.state.vectors import Mask, Positions, Slots, spread, true_at

GROWTH = 4
"""How many times smaller than the level before it a level must be to stay on its own."""

SMALL_PAIRS = 1024
"""Up to so many pairs, merging a level at every insertion costs less than searching one more level."""

_HIGH = np.uint64(32)
_NEXT = np.uint64(1 << 32)
"""The distance from the lowest pair of an owner to that of the next owner."""
_LOW_MASK = np.uint64(0xFFFF_FFFF)

Pairs = npt.NDArray[np.uint64]


class ManyMembers(ProtocolError):
    """There are more members than one call may find."""


class PairIndex:
    """A growing set of (owner, member) pairs.

    Invariant: each level is sorted, and the level before it is larger than ``SMALL_PAIRS`` and than ``GROWTH`` times
    it.
    """

    __slots__ = ("_levels",)

    def __init__(self) -> None:
        self._levels: list[Pairs] = []

    @property
    def nbytes(self) -> int:
        return sum(level.nbytes for level in self._levels)

    def insert(self, owners: Slots, members: Slots) -> None:
        """Add pairs, in any order. No pair may be added twice."""
        level = np.sort(_packed(owners) | members.astype(np.uint64))
        while self._levels and len(self._levels[-1]) <= max(GROWTH * len(level), SMALL_PAIRS):
            # A stable sort finds the two sorted runs and merges them.
            level = np.sort(np.concatenate([self._levels.pop(), level]), kind="stable")
        if len(level):
            self._levels.append(level)

    def find(self, owners: Slots, members_max: int | None = None) -> tuple[Positions, Slots]:
        """The members of each owner: for every member the position of its owner in ``owners``, and the member.

        Sorted by position, then by member. Raises ManyMembers early, if there are more members than ``members_max``.
        """
        if len(owners) == 1:
            return self._of_one(owners, members_max)
        order = owners.argsort()
        bounds, positions = bounds_of(owners[order]), _packed(order)
        found, held = [np.empty(0, np.uint64)], 0
        for level in self._levels:
            starts, stops = segments(level, bounds)
            counts = stops - starts
            if count := int(counts.sum()):
                held = _checked(held + count, members_max)
                found.append(positions.repeat(counts) | level[spread(starts, counts)] & _LOW_MASK)
        return _unpacked(np.sort(np.concatenate(found)))

    def _of_one(self, owner: Slots, members_max: int | None) -> tuple[Positions, Slots]:
        """As ``find``. One owner may have most of all members. Nearly always the members of a level come before those
        of the next level."""
        bounds = bounds_of(owner)
        parts, held = [np.empty(0, np.uint64)], 0
        for level in self._levels:
            start, stop = level.searchsorted(bounds).tolist()
            if start < stop:
                held = _checked(held + stop - start, members_max)
                parts.append(level[start:stop])
        found = parts[1] if len(parts) == 2 else np.concatenate(parts)
        ends = [(before[-1], after[0]) for before, after in pairwise(parts[1:])]
        if any(before > after for before, after in ends):
            found = np.sort(found)
        return np.zeros(len(found), np.int64), (found & _LOW_MASK).view(np.int64)

    def pairs(self) -> tuple[Slots, Slots]:
        """All owners and members, in no particular order."""
        return _unpacked(np.concatenate([np.empty(0, np.uint64), *self._levels]))


def bounds_of(owners: Slots) -> Pairs:
    """The lower and the upper bound of each owner's pairs."""
    bounds = _packed(owners.repeat(2))
    bounds[1::2] += _NEXT
    return bounds


def segments(level: Pairs, bounds: Pairs) -> tuple[Positions, Positions]:
    """Where each owner's pairs begin in a level, and end.

    A search leaves in the processor's cache what a search for a nearby pair needs. So both bounds of an owner are
    searched side by side, and owners are found several times as fast if they ascend.
    """
    starts, stops = level.searchsorted(bounds).reshape(-1, 2).T
    return starts, stops


def _checked(members: int, members_max: int | None) -> int:
    if members_max is not None and members > members_max:
        raise ManyMembers(f"more than {members_max:,} members")
    return members


def _packed(owners: Slots) -> Pairs:
    """The lowest pair of each owner."""
    packed: Pairs = owners.astype(np.uint64) << _HIGH
    return packed


def _unpacked(pairs: Pairs) -> tuple[Slots, Slots]:
    return (pairs >> _HIGH).view(np.int64), (pairs & _LOW_MASK).view(np.int64)


Keys = Callable[[Slots], Cells]
"""Integers in the order of the members' values; they may mean nothing beyond one call."""

Living = Callable[[Slots], Mask]
"""Which members live. A member that is dead stays dead."""

_WIDER = 4
"""How many times more members each probe takes in than the one before it."""


class OrderedPairIndex(PairIndex):
    """A growing set of (owner, member) pairs, whose members may die."""

    __slots__ = ("_marks",)

    def __init__(self) -> None:
        super().__init__()
        self._marks: list[npt.NDArray[np.int32]] = []
        """Two rows for each level. The first has, at the beginning of a segment, 0 if the segment is not sorted, else 1
        plus the number of members known to be dead from there on. The second has the same at the segment's end."""

    @property
    def nbytes(self) -> int:
        return super().nbytes + sum(marks.nbytes for marks in self._marks)

    def insert(self, owners: Slots, members: Slots) -> None:
        before = list(zip(self._levels, self._marks, strict=True))
        super().insert(owners, members)
        kept = [marks for (old, marks), level in zip(before, self._levels, strict=False) if old is level]
        self._marks = kept + [np.zeros((2, len(level)), np.int32) for level in self._levels[len(kept) :]]

    def ends(self, owners: Slots, greatest: bool, keys: Keys, living: Living) -> Slots:
        """The living member of each owner, each named once, that has the least (or the greatest) key; -1 for none."""
        bounds, found = bounds_of(owners), [np.full(len(owners), -1)]
        for level, marks in zip(self._levels, self._marks, strict=True):
            found.append(_ends_in(level, marks, bounds, greatest, keys, living))
        candidates = np.stack(found, axis=1)
        positions, columns = np.nonzero(candidates >= 0)
        members = candidates[positions, columns]
        order = np.lexsort((keys(members), positions))
        positions, members = positions[order], members[order]
        ends = np.full(len(owners), -1)
        if greatest:
            ends[positions] = members  # of an owner's candidates the last is kept
        else:
            ends[positions[::-1]] = members[::-1]
        return ends


def _ends_in(
    level: Pairs, marks: npt.NDArray[np.int32], bounds: Pairs, greatest: bool, keys: Keys, living: Living
) -> Slots:
    """As :meth:`OrderedPairIndex.ends`, of one level."""
    starts, stops = segments(level, bounds)
    some = true_at(starts < stops)
    _sort(level, marks, starts[some], stops[some], keys)
    row = marks[0]
    if greatest:
        level, row, starts, stops = level[::-1], marks[1][::-1], len(level) - stops, len(level) - starts
    places = _first_living(level, starts[some] + row[starts[some]] - 1, stops[some], living)
    row[starts[some]] = places - starts[some] + 1
    ends = np.full(len(starts), -1)
    lives = places < stops[some]
    ends[some[lives]] = _members(level[places[lives]])
    return ends


def _sort(level: Pairs, marks: npt.NDArray[np.int32], starts: Positions, stops: Positions, keys: Keys) -> None:
    """Sort those of these segments that are not sorted yet."""
    unsorted = marks[0, starts] == 0
    starts, stops = starts[unsorted], stops[unsorted]
    marks[0, starts], marks[1, stops - 1] = 1, 1
    several = stops - starts > 1
    starts, counts = starts[several], (stops - starts)[several]
    if len(starts):
        places = spread(starts, counts)
        pairs = level[places]
        level[places] = pairs[np.lexsort((keys(_members(pairs)), np.repeat(np.arange(len(counts)), counts)))]


def _first_living(level: Pairs, places: Positions, stops: Positions, living: Living) -> Positions:
    """From each place on, the first with a member that lives; ``stops`` if there is none before it."""
    places, walking, width = places.copy(), true_at(places < stops), 1
    while walking.size:
        counts = np.minimum(stops[walking] - places[walking], width)
        seen = spread(places[walking], counts)
        alive = np.append(true_at(living(_members(level[seen]))), len(seen))
        after = np.cumsum(counts)
        first = alive[np.searchsorted(alive, after - counts)]
        met = first < after
        places[walking] += np.where(met, first - (after - counts), counts)
        walking = walking[~met & (places[walking] < stops[walking])]
        width *= _WIDER
    return places


def _members(pairs: Pairs) -> Slots:
    return (pairs & _LOW_MASK).view(np.int64)


_NULLS_ARE_PLACED_BY_KEY = int(pa.__version__.partition(".")[0]) >= 25


def is_number(type: pa.DataType) -> bool:
    """Whether the values are, or map in order to, integers of at most 64 bits that mean the same in every call."""
    return is_fixed(type) and type.bit_width <= 64 and not pa.types.is_decimal(type)


def order_keys(values: pa.Array) -> Cells:
    """An integer for each value; equal values have equal integers, and nulls come last. Structs are
    compared field by field; among their fields, and among the elements of arrays, nulls come first, as in Spark."""
    if is_number(values.type) and not values.null_count:
        return ordered(cells_of(canonical(values)))
    return ranks(values, "ascending")


def ranks(values: pa.Array, order: str) -> Cells:
    """From 1 on, in this order (``ascending`` or ``descending``); equal values have one rank, and nulls the last."""
    if pa.types.is_nested(values.type):
        found = nested_ranks(values)
        last = int(found.max(initial=0)) + 1
        return np.where(found == 0, last, found if order == "ascending" else last - found)
    dense: Cells = pc.rank(values, **sorted_by([("", order)], "at_end"), tiebreaker="dense").to_numpy().astype(np.int64)
    return dense


def nested_ranks(values: pa.Array) -> Cells:
    """From 1 on, in Spark's ascending order; a null has 0. Structs are compared by their first fields that differ,
    arrays by their first elements that differ, or by their length."""
    if pa.types.is_struct(values.type):
        keys = np.zeros(len(values), np.int64)
        for place in range(values.type.num_fields):
            keys = _finer(keys, nested_ranks(values.field(place)))
    elif is_listed(values.type):
        keys = _ranks_of_lists(values)
    else:
        keys = order_keys(canonical(values))
    valid = validity(values)
    found = np.zeros(len(values), np.int64)
    found[valid] = np.unique(keys[valid], return_inverse=True)[1].reshape(-1) + 1
    return found


def _ranks_of_lists(values: pa.Array) -> Cells:
    starts, lengths = spans_of(values)
    used = true_at(lengths > 0)
    places = spread(starts[used], lengths[used])
    of_elements = nested_ranks(elements_of(values).take(pa.array(places))) + 1
    begins = np.zeros(len(values), np.int64)
    begins[used] = np.cumsum(lengths[used]) - lengths[used]
    keys = np.zeros(len(values), np.int64)
    for turn in range(int(lengths.max(initial=0))):
        longer = true_at(lengths > turn)
        parts = np.zeros(len(values), np.int64)
        parts[longer] = of_elements[begins[longer] + turn]
        keys = _finer(keys, parts)
    return keys


def _finer(keys: Cells, parts: Cells) -> Cells:
    """Dense numbers in the order of the pairs. Both are not negative, and below the number of rows and elements."""
    width = int(parts.max(initial=0)) + 1
    _, dense = np.unique(keys * width + parts, return_inverse=True)
    return dense.reshape(-1).astype(np.int64)


def sorted_by(keys: Sequence[tuple[str, str]], nulls: str) -> dict[str, Any]:
    """The arguments that make ``pc.rank`` and ``pc.sort_indices`` sort by these (column, order), with the nulls of
    each column ``at_start`` or ``at_end``. Since 25 Arrow takes the place of nulls with each key; before that it takes
    one for all keys."""
    if _NULLS_ARE_PLACED_BY_KEY:
        return {"sort_keys": [(*key, nulls) for key in keys]}
    return {"sort_keys": list(keys), "null_placement": nulls}


def ordered(cells: Cells) -> Cells:
    """Canonical floats as signed integers of the same order; other cells as they are."""
    if cells.dtype.kind != "f":
        return cells
    width = cells.dtype.itemsize
    bits = cells.view(f"i{width}")
    # As integers, the bits of negative floats sort in reverse: invert all of them except the sign.
    in_order: Cells = bits ^ (bits >> (8 * width - 1) & np.iinfo(bits.dtype).max)
    return in_order


def from_ordered(cells: Cells, dtype: np.dtype[Any]) -> Cells:
    """The inverse of :func:`ordered`, which undoes itself."""
    return ordered(cells.view(dtype)).view(dtype) if dtype.kind == "f" else cells
