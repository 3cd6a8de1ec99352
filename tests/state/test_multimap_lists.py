"""Lists against Python's: each owner's members, in the order in which they came."""

from itertools import chain

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from state_kit import MANY

from upriver.state.multimap import PIECE_MEMBERS, Lists, LongLists

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
