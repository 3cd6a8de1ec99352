"""Multimap against a dict of lists, its lists against Python's, and Multiset against counters."""

from collections import Counter
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from soak import examples
from state_kit import MANY, VALUES, order_of, plainly

from upriver.errors import ProtocolError
from upriver.state.multimap import PIECE_MEMBERS, Lists, LongLists, Multimap, Multiset
from upriver.state.pair_index import SMALL_PAIRS, OrderedPairIndex, order_keys

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


# Multiset against a plain counter


def _add(bag: Multiset, changes: list[tuple[int, Any, int]], type: pa.DataType) -> tuple[list[Any], list[Any]]:
    """Returns whose values are new and whose are gone, each with the value."""
    owners, values, weight = (list(column) for column in zip(*changes, strict=True)) if changes else ([], [], [])
    found = bag.add(np.array(owners, np.int64), pa.array(values, type), np.array(weight, np.int64))
    new, gone = (
        sorted(zip(bag.owners(entries).tolist(), map(plainly, bag.values(entries).to_pylist()), strict=True), key=repr)
        for entries in found
    )
    return new, gone


def _contents(bag: Multiset) -> Counter[tuple[int, Any]]:
    values, times = bag.state(np.arange(4))
    pairs = zip(values.to_pylist(), times.to_pylist(), strict=True)
    return Counter(
        {
            (owner, plainly(value)): count
            for owner, (kept, counts) in enumerate(pairs)
            for value, count in zip(kept, counts, strict=True)
        }
    )


def _ends(bag: Multiset, owners: list[int], greatest: bool) -> list[Any]:
    entries = bag.ends(np.array(owners, np.int64), greatest)
    found = iter(bag.values(entries[entries >= 0]).to_pylist())
    return [plainly(next(found)) if entry >= 0 else None for entry in entries.tolist()]


@pytest.mark.parametrize("type", VALUES, ids=str)
@settings(MANY, max_examples=examples(15))
@given(data=st.data())
def test_it_counts_values_of_every_type(type: pa.DataType, data: st.DataObject) -> None:
    bag, truth = Multiset(type), Counter[tuple[int, Any]]()
    pool = data.draw(st.lists(VALUES[type], min_size=1, max_size=5))
    for _ in range(data.draw(st.integers(1, 5))):
        before = {pair for pair, count in truth.items() if count}
        changes = []
        for owner, value in data.draw(st.lists(st.tuples(st.integers(0, 2), st.sampled_from(pool)), max_size=8)):
            pair = (owner, plainly(value))
            weight = data.draw(st.integers(-truth[pair], 3))
            truth[pair] += weight
            changes.append((owner, value, weight))
        new, gone = _add(bag, data.draw(st.permutations(changes)), type)
        after = {pair for pair, count in truth.items() if count}
        assert (new, gone) == (sorted(after - before, key=repr), sorted(before - after, key=repr))
        assert _contents(bag) == +truth
        assert bag.held == len(after)
        owners = data.draw(st.permutations(range(4)))
        for greatest in (False, True):
            kept = [[value for owner, value in after if owner == one] for one in owners]
            best = [(max if greatest else min)(each, key=_order, default=None) for each in kept]
            assert _ends(bag, owners, greatest) == best


def _order(value: Any) -> Any:
    return order_of(float("nan")) if value == "NaN" else order_of(value)


def test_ends_of_many_values_in_several_levels() -> None:
    """Each batch brings values of all owners and takes away some of the least and of the greatest."""
    rng, bag, left = np.random.default_rng(3), Multiset(pa.int64()), [set[int]() for _ in range(3)]
    for turn in range(40):
        coming = rng.choice(10**6, SMALL_PAIRS if turn % 8 else 8 * SMALL_PAIRS, replace=False)
        changes = [
            (owner, int(value), 1) for owner in range(3) for value in coming[owner::3] if value not in left[owner]
        ]
        for owner, value, _ in changes:
            left[owner].add(value)
        for owner, each in enumerate(left):
            kept = sorted(each)
            changes += [(owner, value, -1) for value in (*kept[:200], *kept[-150:])]
            left[owner] = set(kept[200:-150])
        _add(bag, changes, pa.int64())
        owners = rng.permutation(4).tolist()
        for greatest in (False, True):
            truth = [(max if greatest else min)(left[owner]) if owner < 3 else None for owner in owners]
            assert _ends(bag, owners, greatest) == truth


def test_an_owner_that_was_dropped_has_nothing() -> None:
    bag, copy = Multiset(pa.string()), Multiset(pa.string())
    _add(bag, [(0, "a", 2), (1, "b", 1), (1, "c", 1), (3, "", 1)], pa.string())
    state = bag.state(np.array([3, 1]))
    bag.drop(np.array([1, 3]))
    assert (_contents(bag), bag.held) == ({(0, "a"): 2}, 1)
    assert _ends(bag, [0, 1, 3], greatest=True) == ["a", None, None]
    copy.install(np.array([0, 2]), state)
    assert _contents(copy) == {(0, ""): 1, (2, "b"): 1, (2, "c"): 1}
    assert [part.to_pylist() for part in copy.state(np.array([0, 2]))] == [part.to_pylist() for part in state]


def test_no_value_is_there_less_than_no_times() -> None:
    bag = Multiset(pa.int32())
    _add(bag, [(0, 5, 1)], pa.int32())
    with pytest.raises(ProtocolError, match="more rows were retracted"):
        _add(bag, [(1, 5, -1)], pa.int32())


def test_the_dead_at_an_end_are_walked_over_once() -> None:
    """What is asked whether it lives is counted: each dead member once from either end, not once for each question."""
    pair_index, asked, size = OrderedPairIndex(), list[int](), 10_000
    numbers = np.random.default_rng(1).permutation(size)
    alive = np.ones(size, np.bool_)
    places = np.argsort(numbers)

    def living(members: np.ndarray[Any, np.dtype[np.int64]]) -> np.ndarray[Any, np.dtype[np.bool_]]:
        asked.append(len(members))
        found: np.ndarray[Any, np.dtype[np.bool_]] = alive[members]
        return found

    pair_index.insert(np.zeros(size, np.int64), np.arange(size))
    for least in range(0, 5000, 10):
        alive[places[least : least + 10]] = False
        found = pair_index.ends(np.array([0]), False, lambda members: order_keys(pa.array(numbers[members])), living)
        assert numbers[found[0]] == least + 10
    assert sum(asked) < 5 * 5000
