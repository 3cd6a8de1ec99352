"""OrderedSpine: a spine that also finds the least or the greatest living member of an owner.

In each level the members of an owner lie side by side, in a *segment*. Nobody minds their order there, so a segment is
put in order of its members' values when somebody first asks for one of its ends: what is never asked for is never
sorted, and what was sorted stays so until its level is merged into another. A dead member never comes back to life, so
each end of a sorted segment has a *mark* beyond which all are dead, and the dead are walked over once. Asking for an
end then costs a binary search in each level.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from upriver.state.columns import Cells
from upriver.state.ragged import spread
from upriver.state.spine import Pairs, Spine, bounds_of, segments
from upriver.state.vectors import Mask, Positions, Slots, true_at

Keys = Callable[[Slots], Cells]
"""Integers in the order of the members' values; they need mean nothing beyond one call."""

Living = Callable[[Slots], Mask]
"""Which members live. Once false for a member, it stays so."""

_WIDER = 4
"""How many times more members each look takes in than the one before it."""

_LOW_MASK = np.uint64(0xFFFF_FFFF)


class OrderedSpine(Spine):
    """A growing set of (owner, member) pairs, of which members die."""

    __slots__ = ("_marks",)

    def __init__(self) -> None:
        super().__init__()
        self._marks: list[npt.NDArray[np.int32]] = []
        """For each level two rows. In the first, where a segment begins: 0 if it is not sorted, else 1 plus the number
        of members there that are known to be dead. In the second the same from the other end, where a segment ends."""

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
            ends[positions] = members  # of an owner's candidates the last one stays
        else:
            ends[positions[::-1]] = members[::-1]
        return ends


def _ends_in(
    level: Pairs, marks: npt.NDArray[np.int32], bounds: Pairs, greatest: bool, keys: Keys, living: Living
) -> Slots:
    """As :meth:`OrderedSpine.ends`, of one level."""
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
    """Put these segments in order, unless they are."""
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
    """From each place on, the first with a member that lives; ``stops`` where there is none before it."""
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
