"""PairIndex and Fanout against dicts of lists: every member of a key, in order of arrival."""

from collections import defaultdict
from itertools import pairwise

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from state_kit import MANY

from upriver.hashing import Hashes, hash64
from upriver.state.indexes import Fanout
from upriver.state.pair_index import GROWTH, SMALL_PAIRS, PairIndex

BATCHES = st.lists(st.lists(st.integers(0, 9), max_size=12), max_size=12)
KEYS = st.lists(st.none() | st.integers(0, 9), max_size=12)


def _slots(numbers: list[int]) -> np.ndarray:
    return np.array(numbers, np.int64)


@MANY
@given(BATCHES, st.lists(st.integers(0, 11), max_size=6))
def test_members_come_back_in_order_of_arrival(batches: list[list[int]], asked: list[int]) -> None:
    pair_index, model, arrived = PairIndex(), defaultdict(list), 0
    for owners in batches:
        members = range(arrived, arrived + len(owners))
        pair_index.insert(_slots(owners), _slots(list(members)))
        arrived += len(owners)
        for owner, member in zip(owners, members, strict=True):
            model[owner].append(member)
    positions, linked = pair_index.find(_slots(asked))
    expected = [(place, member) for place, owner in enumerate(asked) for member in model[owner]]
    assert list(zip(positions.tolist(), linked.tolist(), strict=True)) == expected
    assert sorted(zip(*(side.tolist() for side in pair_index.pairs()), strict=True)) == sorted(
        (owner, member) for owner, members in model.items() for member in members
    )
    assert pair_index.nbytes == 8 * arrived


def test_levels_stay_few_however_small_the_batches_and_all_are_searched() -> None:
    pair_index, lengths = PairIndex(), []
    for member in range(6000):
        pair_index.insert(_slots([member % 7]), _slots([member]))
        lengths = [len(level) for level in pair_index._levels]
        assert all(larger > max(GROWTH * smaller, SMALL_PAIRS) for larger, smaller in pairwise(lengths))
    assert sum(lengths) == 6000
    assert len(lengths) > 1
    positions, members = pair_index.find(_slots([3, 9, 0]))
    assert members.tolist() == [*range(3, 6000, 7), *range(0, 6000, 7)]
    assert positions.tolist() == [0] * 857 + [2] * 858


def _hashes(keys: pa.Array, collide: bool) -> Hashes:
    return np.zeros(len(keys), np.uint64) if collide else hash64([keys])


def _array(keys: list[int | None]) -> pa.Array:
    return pa.array(keys, pa.int64())


@MANY
@given(st.lists(st.tuples(KEYS, KEYS), max_size=6), KEYS, st.booleans())
def test_fanout_is_a_dict_of_lists_from_which_keys_can_be_forgotten(
    batches: list[tuple[list[int | None], list[int | None]]], asked: list[int | None], collide: bool
) -> None:
    fanout, arrived = Fanout([pa.int64()]), 0
    owned: dict[int, int | None] = {}
    for keys, gone in batches:
        members = range(arrived, arrived + len(keys))
        owners = fanout.owners(_hashes(_array(keys), collide), [_array(keys)])
        fanout.link(owners, _slots(list(members)))
        fanout.count(owners, None)
        owned |= zip(members, keys, strict=True)
        arrived += len(keys)
        hashes = np.unique(_hashes(_array(gone), collide))
        going = [member for member, key in owned.items() if _hashes(_array([key]), collide)[0] in hashes]
        owners, of_each, members_found = fanout.with_hash(hashes)
        assert sorted(members_found.tolist()) == going
        assert (
            of_each.tolist() == _hashes(_array([owned[member] for member in members_found.tolist()]), collide).tolist()
        )
        fanout.forget(owners)
        owned = {member: key for member, key in owned.items() if member not in going}
    positions, members_found = fanout.find(_hashes(_array(asked), collide), [_array(asked)])
    expected = [(place, member) for place, key in enumerate(asked) for member, owner in owned.items() if owner == key]
    assert list(zip(positions.tolist(), members_found.tolist(), strict=True)) == expected
    assert fanout.held == len(set(owned.values()))
    left = _hashes(_array(list(set(owned.values()))), collide)
    assert sorted(fanout.hashes_between(0, 2**64 - 1).tolist()) == sorted(left.tolist())


@MANY
@given(KEYS)
def test_by_hash_is_sorted_by_hash_then_arrival(keys: list[int | None]) -> None:
    fanout, hashes = Fanout([pa.int64()]), hash64([_array(keys)])
    fanout.link(fanout.owners(hashes, [_array(keys)]), np.arange(len(keys)))
    assert fanout.by_hash().tolist() == np.argsort(hashes, kind="stable").tolist()
