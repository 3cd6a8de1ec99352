"""The kinds of a view's changes: the rows of a key that come in a version take the place of those that go."""

from enum import IntEnum

import numpy as np
import numpy.typing as npt

from upriver.state.changes import DELETE, INSERT, POSTIMAGE, PREIMAGE
from upriver.state.vectors import Mask, Positions, run_lengths, run_starts

Kinds = npt.NDArray[np.int8]
"""Each a :class:`ChangeKind`."""


class ChangeKind(IntEnum):
    """In the order in which the changes of one key and one version come."""

    DELETE = 0
    PREIMAGE = 1
    POSTIMAGE = 2
    INSERT = 3

    @property
    def text(self) -> str:
        """As readers of changes get it."""
        return (DELETE, PREIMAGE, POSTIMAGE, INSERT)[self]


def in_kinds(groups: Positions, comes: Mask) -> tuple[Positions, Kinds]:
    """Pair the rows that go with those that come, in each group in the order in which they are.

    groups: a number for each row, the same for those of one key and one version. comes: whether a row comes, or goes.
    Returns the rows' positions in the order of the changes, and the kind of each row there: by groups, ascending; then
    deletions, then pairs, one after the other, then insertions.
    """
    order = np.lexsort((comes, groups))
    groups, comes = groups[order], comes[order]
    starts = run_starts(groups)
    lengths = run_lengths(starts, len(groups))
    going = np.add.reduceat(~comes, starts) if len(starts) else np.empty(0, np.int64)
    pairs = np.minimum(going, lengths - going)
    rank = np.arange(len(groups)) - np.repeat(starts, lengths)
    rank = np.where(comes, rank - np.repeat(going, lengths), rank)
    is_paired = rank < np.repeat(pairs, lengths)
    kinds = np.select(
        [~comes & ~is_paired, ~comes, is_paired],
        [ChangeKind.DELETE, ChangeKind.PREIMAGE, ChangeKind.POSTIMAGE],
        ChangeKind.INSERT,
    ).astype(np.int8)
    stage = np.select([kinds == ChangeKind.DELETE, kinds == ChangeKind.INSERT], [0, 2], 1)
    in_turn = np.lexsort((kinds, rank, stage, groups))
    return order[in_turn], kinds[in_turn]
