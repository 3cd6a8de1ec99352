"""Ranking: the numbers of sorted rows under row_number, rank and dense_rank, and what a change of them puts out."""

from dataclasses import dataclass

import numpy as np

from upriver.plan.ops import Ranking
from upriver.state.vectors import Mask, Positions, Slots, Weights, true_at


@dataclass(frozen=True, slots=True)
class Ranked:
    """Entries in order: one partition after the other, each from its best on.

    slots, counts: the entries', and how often each is there. partitions: the number of each one's partition, ascending
    from 0, none left out. starts: where each partition begins. peers: where an entry differs from the one before it in
    what it is sorted by.
    """

    slots: Slots
    counts: Weights
    partitions: Positions
    starts: Positions
    peers: Mask


@dataclass(frozen=True, slots=True)
class Numbers:
    """Of each entry: the number of its first copy, and how many of its copies have a number up to the limit."""

    first: Positions
    copies: Weights


def number(ranked: Ranked, counts: Weights, ranking: Ranking, limit: int) -> Numbers:
    """counts: how many copies are taken to be there of each entry; of one without any, the number says nothing."""
    if ranking is Ranking.ROW_NUMBER:
        ahead = _before(counts)
        ahead -= ahead[ranked.starts][ranked.partitions]
        return Numbers(ahead + 1, np.clip(limit - ahead, 0, counts))
    leaders = true_at(ranked.peers)
    among = np.cumsum(ranked.peers) - 1
    totals = np.add.reduceat(counts, leaders) if len(leaders) else counts
    ahead = _before(totals if ranking is Ranking.RANK else np.sign(totals))[among]
    ahead -= ahead[ranked.starts][ranked.partitions]
    return Numbers(ahead + 1, np.where(ahead < limit, counts, 0))


def _before(counts: Weights) -> Weights:
    """Of each, the sum of all before it."""
    return np.cumsum(counts) - counts


@dataclass(frozen=True, slots=True)
class Changes:
    """Changes of the output: the place of the entry in its order, its number, and how many copies more there are."""

    places: Positions
    numbers: Positions
    weight: Weights


def changes(before: Numbers, after: Numbers) -> Changes:
    """What to put out if rows are not put out with their numbers."""
    weight = after.copies - before.copies
    places = true_at(weight)
    return Changes(places, after.first[places], weight[places])


def numbered_changes(before: Numbers, after: Numbers, ranking: Ranking) -> Changes:
    """What to put out if rows are put out with their numbers."""
    moved = true_at((before.copies != after.copies) | (before.first != after.first))
    parts = [_numbered(numbers, moved, ranking, sign) for numbers, sign in ((before, -1), (after, 1))]
    places, numbers, weight = (np.concatenate(part) for part in zip(*parts, strict=True))
    order = np.lexsort((numbers, places))
    places, numbers, weight = places[order], numbers[order], weight[order]
    heads = true_at(np.concatenate([[True], (np.diff(places) != 0) | (np.diff(numbers) != 0)])[: len(places)])
    weight = np.add.reduceat(weight, heads) if len(heads) else weight
    some = weight != 0
    return Changes(places[heads][some], numbers[heads][some], weight[some])


def _numbered(numbers: Numbers, places: Positions, ranking: Ranking, sign: int) -> tuple[Positions, Positions, Weights]:
    """The rows put out of the entries at these places: place, number, and the signed number of copies."""
    first, copies = numbers.first[places], numbers.copies[places]
    if ranking is not Ranking.ROW_NUMBER:
        some = copies > 0
        return places[some], first[some], sign * copies[some]
    # Each copy has a number of its own.
    ends = np.cumsum(copies)
    nth = np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - copies, copies)
    return np.repeat(places, copies), np.repeat(first, copies) + nth, np.full(len(nth), sign)
