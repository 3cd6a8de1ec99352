"""Multimap against a dict of lists."""

from itertools import chain

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from state_kit import MANY

from upriver.state.multimap import Multimap

OWNERS = 6


def _found(members: Multimap, owners: list[int]) -> list[list[int]]:
    positions, found = members.find(np.array(owners, np.int64))
    assert positions.tolist() == sorted(positions.tolist())
    return [found[positions == place].tolist() for place in range(len(owners))]


@MANY
@given(st.data())
def test_members_are_found_in_order_of_arrival(data: st.DataObject) -> None:
    members = Multimap()
    members.resize(OWNERS)
    there: dict[int, list[int]] = {owner: [] for owner in range(OWNERS)}
    gone: set[int] = set()
    count = 0
    for _ in range(data.draw(st.integers(1, 6))):
        owners = sorted(data.draw(st.lists(st.integers(0, OWNERS - 1), max_size=6)))
        members.insert(np.array(owners, np.int64), np.arange(count, count + len(owners)))
        for owner in owners:
            there[owner].append(count)
            count += 1
        for owner in data.draw(
            st.lists(st.sampled_from([owner for owner in there if there[owner]] or [0]), max_size=2)
        ):
            if there[owner]:
                member = data.draw(st.sampled_from(there[owner]))
                members.remove(np.array([owner]), np.array([member]))
                there[owner].remove(member)
                gone.add(member)
        asked = data.draw(st.lists(st.integers(0, OWNERS - 1), max_size=8))
        found = _found(members, asked)
        assert [[member for member in of_owner if member not in gone] for of_owner in found] == [
            there[owner] for owner in asked
        ]
        tidied = data.draw(st.sets(st.integers(0, OWNERS - 1)).map(sorted))
        kept = [there[owner] for owner in tidied]
        sizes = np.array([len(of_owner) for of_owner in kept], np.int64)
        members.replace(np.array(tidied, np.int64), sizes, np.array(list(chain(*kept)), np.int64))
        assert _found(members, tidied) == kept


def test_an_only_member_that_is_replaced_leaves_nothing_behind() -> None:
    members = Multimap()
    members.resize(1)
    owner = np.array([0])
    members.insert(owner, np.array([0]))
    size = members.nbytes
    for member in range(1, 100):
        members.remove(owner, np.array([member - 1]))
        members.insert(owner, np.array([member]))
        assert _found(members, [0]) == [[member]]
    assert members.nbytes == size
