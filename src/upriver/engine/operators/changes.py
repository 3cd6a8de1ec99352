"""What a batch changes in all: a batch is a multiset of changes, in which a row may come before it goes, or after."""

from typing import NamedTuple

import numpy as np

from upriver.state.vectors import Positions, Slots, Weights


class Net(NamedTuple):
    """slots: of the entries that a batch names, ascending and unique. first: the first row of each.

    weight: by how much each one's count changes, which may be zero.
    """

    slots: Slots
    first: Positions
    weight: Weights


def net_changes(slots: Slots, weight: Weights | None) -> Net:
    """Add up the weights of rows that are one entry. slots: the entry of each row. weight: ``None`` is 1 for each."""
    if weight is None:
        return Net(*np.unique(slots, return_index=True, return_counts=True))
    named, first, places = np.unique(slots, return_index=True, return_inverse=True)
    net = np.zeros(len(named), np.int64)
    np.add.at(net, places, weight)
    return Net(named, first, net)
