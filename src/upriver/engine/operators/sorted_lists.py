"""Sorted lists into which a few members come: where each belongs is found without sorting all.

Each list is cut into blocks. New members are sorted among the first members of all blocks, which tells the block of
each, and then among the members of these blocks. So few members are compared, if few come.
"""

import numpy as np

from upriver.engine.operators.topk import Read, SortKey, in_order
from upriver.state.vectors import Mask, Positions, run_starts, true_at

BLOCK_MIN = 64
"""The least members of a block; a list of n members has blocks of about the square root of n."""


def with_new_members(lists: Positions, new: Mask, keys: list[SortKey], read: Read) -> Positions:
    """The order of the members of some lists.

    lists: of each member, the number of its list, ascending. new: the members that are in no order yet; the others of a
    list are in theirs. keys: tell all members apart. read: gives a column of members.
    """
    old, fresh = true_at(~new), true_at(new)
    if not fresh.size:
        return old
    if not old.size:
        return in_order(lists, keys, read)[0]
    blocks = _Blocks(lists[old], int(lists[-1]) + 1)
    block = _blocks_of(blocks, lists, old, fresh, keys, read)
    near = true_at(np.isin(blocks.of_member, block))
    chosen = np.concatenate([old[near], fresh])
    groups = np.concatenate([blocks.of_member[near], block])
    order, _ = in_order(groups, keys, lambda place, at: read(place, chosen[at]))
    is_old = order < len(near)
    behind = np.zeros(len(order), np.int64)
    behind[is_old] = near[order[is_old]] + 1
    places = np.maximum(np.maximum.accumulate(behind)[~is_old], blocks.starts[groups[order[~is_old]]])
    return np.insert(old, places, chosen[order[~is_old]])


class _Blocks:
    """The blocks of lists, numbered in order; a list without members has one, too.

    of_member: the block of each member. heads: the first member of each block that has any. starts: by block, the place
    of its first member among all. first: by list, its first block.
    """

    __slots__ = ("first", "heads", "of_member", "starts")

    def __init__(self, lists: Positions, count: int) -> None:
        """lists: of each member, ascending. count: of lists."""
        sizes = np.bincount(lists, minlength=count)
        begins = np.cumsum(sizes) - sizes
        steps = np.maximum(np.sqrt(sizes).astype(np.int64), BLOCK_MIN)
        numbers = np.maximum(-(-sizes // steps), 1)
        self.first = np.cumsum(numbers) - numbers
        nth = np.arange(len(lists)) - begins[lists]
        self.of_member = self.first[lists] + nth // steps[lists]
        self.heads = run_starts(self.of_member)
        self.starts = np.repeat(begins, numbers)
        self.starts[self.of_member[self.heads]] = self.heads


def _blocks_of(
    blocks: _Blocks, lists: Positions, old: Positions, fresh: Positions, keys: list[SortKey], read: Read
) -> Positions:
    """The block of each new member."""
    heads = blocks.heads[np.isin(lists[old[blocks.heads]], lists[fresh])]
    chosen = np.concatenate([old[heads], fresh])
    order, _ = in_order(lists[chosen], keys, lambda place, at: read(place, chosen[at]))
    last = np.zeros(len(order), np.int64)
    is_head = order < len(heads)
    last[is_head] = blocks.of_member[heads[order[is_head]]]
    found = np.empty(len(fresh), np.int64)
    found[order[~is_head] - len(heads)] = np.maximum.accumulate(last)[~is_head]
    at_least: Positions = np.maximum(found, blocks.first[lists[fresh]])
    return at_least
