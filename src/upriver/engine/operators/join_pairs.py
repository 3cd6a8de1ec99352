"""Pairs of what has changed on one side of a join with what the other side keeps of the same key."""

from collections.abc import Iterator

import numpy as np

from upriver.engine.operators.join_side import Changes, Members
from upriver.state.vectors import Positions

PAIRS_MAX = 1 << 16
"""Pairs made at a time: many rows of one key on both sides take time, not memory."""


def pairs_of(changes: Changes, members: Members, pairs_max: int = PAIRS_MAX) -> Iterator[tuple[Positions, Positions]]:
    """All pairs of a changed entry and a member of its owner: their places in ``changes`` and in ``members``.

    members: those of the changes' owners. Up to ``pairs_max`` pairs at a time.
    """
    counts = np.repeat(members.sizes, changes.sizes)
    firsts = np.repeat(np.cumsum(members.sizes) - members.sizes, changes.sizes)
    ends = np.cumsum(counts)
    begins = ends - counts
    total = int(counts.sum())
    for start in range(0, total, pairs_max):
        stop = min(start + pairs_max, total)
        low, high = np.searchsorted(ends, start, side="right"), np.searchsorted(ends, stop, side="left") + 1
        lengths = np.minimum(ends[low:high], stop) - np.maximum(begins[low:high], start)
        changed = np.repeat(np.arange(low, high), lengths)
        yield changed, np.arange(start, stop) + (firsts - begins)[changed]
