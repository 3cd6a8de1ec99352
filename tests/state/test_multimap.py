"""Multimap against a dict of lists."""

from itertools import chain

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from state_kit import MANY

from upriver.state.multimap import PIECE_MEMBERS, Lists, LongLists, Multimap

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


# Lists

OWNER = st.integers(0, 5)


@MANY
@given(st.data())
def test_each_owner_has_its_members(data: st.DataObject) -> None:
    lists, expected = Lists(), [list[int]() for _ in range(6)]
    lists.resize(6)
    for start in range(0, data.draw(st.integers(0, 8)) * 100, 100):
        if data.draw(st.booleans()):
            owners = data.draw(st.lists(OWNER, max_size=20))
            lists.append(np.array(owners, np.int64), np.arange(start, start + len(owners)))
            for place, owner in enumerate(owners):
                expected[owner].append(start + place)
        else:
            chosen = data.draw(st.lists(OWNER, unique=True))
            new = [list(range(start, start + data.draw(st.integers(0, 9)))) for _ in chosen]
            lengths = np.array([len(each) for each in new], np.int64)
            lists.replace(np.array(chosen, np.int64), lengths, np.array(list(chain(*new)), np.int64))
            for owner, members in zip(chosen, new, strict=True):
                expected[owner] = members
        asked = np.array(data.draw(st.lists(OWNER)), np.int64)
        positions, listed = lists.find(asked)
        assert lists.lengths(asked).tolist() == [len(expected[owner]) for owner in asked]
        found = list(zip(positions.tolist(), listed.tolist(), strict=True))
        assert found == [(place, member) for place, owner in enumerate(asked) for member in expected[owner]]


def test_lists_that_are_replaced_take_no_more_memory() -> None:
    lists = Lists()
    lists.resize(3)
    owners = np.arange(3)
    for turn in range(100):
        lists.append(np.repeat(owners, 10), np.arange(30) + turn)
        lists.replace(owners, np.full(3, 10), np.arange(30))
        if turn == 0:
            full = lists.nbytes
    assert lists.nbytes < 3 * full


@MANY
@given(st.data())
def test_a_long_list_has_its_members_whatever_its_pieces_are(data: st.DataObject) -> None:
    lists, expected = LongLists(), [list[int]() for _ in range(6)]
    lists.resize(6)
    for start in range(0, data.draw(st.integers(0, 8)) * PIECE_MEMBERS, PIECE_MEMBERS):
        owners = np.array(data.draw(st.lists(OWNER, max_size=6)), np.int64)
        owners = np.repeat(owners, data.draw(st.sampled_from([1, PIECE_MEMBERS // 3])))
        lists.append(owners, np.arange(start, start + len(owners)))
        for place, owner in enumerate(owners.tolist()):
            expected[owner].append(start + place)
        asked = np.array(data.draw(st.lists(OWNER, unique=True)), np.int64)
        positions, members = lists.find(asked)
        assert members.tolist() == [member for owner in asked for member in expected[owner]]
        assert np.bincount(positions, minlength=len(asked)).tolist() == [len(expected[owner]) for owner in asked]
        divisor = data.draw(st.integers(1, 3))
        lists.keep(asked, members % divisor == 0)
        for owner in asked.tolist():
            expected[owner] = [member for member in expected[owner] if member % divisor == 0]
    found = [lists.find(np.array([owner]))[1].tolist() for owner in range(6)]
    assert found == expected
