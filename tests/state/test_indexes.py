"""SlotIndex against a dict: exact keys, dense slots in order of arrival, whatever the hashes are."""

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from state_kit import MANY, TYPES, column_values, plainly

from upriver.hashing import Hashes, hash64
from upriver.state.indexes import _SCAN_SLOTS, Entries, RoutedIndex, SlotIndex, first_equal, run_heads

Hasher = Callable[[list[pa.Array]], Hashes]


def _one_hash(columns: list[pa.Array]) -> Hashes:
    return np.full(len(columns[0]), 2**64 - 1, np.uint64)


def _few_tags(columns: list[pa.Array]) -> Hashes:
    """Many keys with one home place and one of four tags."""
    return (hash64(columns) & np.uint64(3)) << np.uint64(62)


def _one_tag(columns: list[pa.Array]) -> Hashes:
    """Different home places, but the tag never tells keys apart."""
    return hash64(columns) & np.uint64(0xFFFF)


HASHERS = st.sampled_from([hash64, _one_hash, _few_tags, _one_tag])


class DictIndex:
    """What SlotIndex should do."""

    def __init__(self) -> None:
        self.slots: dict[tuple[Any, ...], int] = {}

    def assign(self, keys: list[tuple[Any, ...]]) -> list[int]:
        return [self.slots.setdefault(key, len(self.slots)) for key in keys]

    def find(self, keys: list[tuple[Any, ...]]) -> list[int]:
        return [self.slots.get(key, -1) for key in keys]


def _tuples(columns: list[pa.Array]) -> list[tuple[Any, ...]]:
    return list(zip(*([plainly(value) for value in column.to_pylist()] for column in columns), strict=True))


@MANY
@given(st.data(), st.lists(TYPES, min_size=1, max_size=3), HASHERS)
def test_slots_are_those_of_a_dict(data: Any, types: list[pa.DataType], hasher: Hasher) -> None:
    index, model = SlotIndex(types), DictIndex()
    for _ in range(data.draw(st.integers(1, 4))):
        size = data.draw(st.integers(0, 20))
        columns = [pa.array(data.draw(column_values(type, size=size)), type) for type in types]
        if data.draw(st.booleans()):
            assert index.find(hasher(columns), columns).tolist() == model.find(_tuples(columns))
        assert index.assign(hasher(columns), columns).tolist() == model.assign(_tuples(columns))
    assert len(index) == len(model.slots)
    keys = [index.column(place, np.arange(len(index))) for place in range(len(types))]
    assert [key.type for key in keys] == types
    assert _tuples(keys) == list(model.slots)


@MANY
@given(st.data(), HASHERS)
def test_a_forgotten_key_is_a_new_one_when_it_comes_back(data: Any, hasher: Hasher) -> None:
    keys = pa.array([*range(30), None])
    index, slots = SlotIndex([keys.type]), np.arange(31)
    index.assign(hasher([keys]), [keys])
    for _ in range(data.draw(st.integers(1, 3))):
        gone = np.array(sorted(data.draw(st.sets(st.integers(0, 30)))), np.int64)
        index.forget(slots[gone])
        slots[gone] = -1
        assert index.find(hasher([keys]), [keys]).tolist() == slots.tolist()
        assert sorted(index.with_hash(np.unique(hasher([keys])))) == sorted(slots[slots >= 0])
        slots[gone] = np.arange(len(index), len(index) + len(gone))
        assert index.assign(hasher([keys]), [keys]).tolist() == slots.tolist()


@MANY
@given(st.data(), HASHERS)
def test_without_columns_the_hash_is_the_key(data: Any, hasher: Hasher) -> None:
    index, model = SlotIndex([]), DictIndex()
    for _ in range(data.draw(st.integers(1, 4))):
        keys = pa.array(data.draw(st.lists(st.integers(0, 40), max_size=20)), pa.int64())
        hashes = hasher([keys])
        asked = [(number,) for number in hashes.tolist()]
        if data.draw(st.booleans()):
            assert index.find(hashes, []).tolist() == model.find(asked)
        assert index.assign(hashes, []).tolist() == model.assign(asked)
    assert index.hashes.tolist() == [number for (number,) in model.slots]


@MANY
@given(st.data(), HASHERS)
def test_all_keys_of_a_hash_are_found_by_it(data: Any, hasher: Hasher) -> None:
    keys = pa.array(range(40))
    hashes, index = hasher([keys]), SlotIndex([keys.type])
    ends = [*sorted(data.draw(st.sets(st.integers(1, 39), max_size=5))), 40]
    for start, end in pairwise([0, *ends]):
        index.assign(hashes[start:end], [keys[start:end]])
        asked = np.array(sorted(data.draw(st.sets(st.sampled_from([0, 2**64 - 2, *hashes.tolist()])))), np.uint64)
        assert sorted(index.with_hash(asked)) == np.flatnonzero(np.isin(hashes[:end], asked)).tolist()


@MANY
@given(st.data(), HASHERS)
def test_slots_are_found_by_where_their_hashes_lie(data: Any, hasher: Hasher) -> None:
    keys = pa.array(range(60))
    hashes, index = hasher([keys]), SlotIndex([keys.type])
    bounds = st.sampled_from([0, 2**63, 2**64 - 1, *hashes.tolist()])
    for start in range(0, 60, 20):
        rows = slice(start, start + 20)
        index.assign(hashes[rows], [keys[rows]])
        for _ in range(3):
            least = data.draw(bounds)
            most = data.draw(st.sampled_from([2**64 - 1, least | 2**40 - 1, least | 2**56 - 1, least | 2**60 - 1]))
            within = (hashes[: start + 20] >= np.uint64(least)) & (hashes[: start + 20] <= np.uint64(most))
            assert sorted(index.between(least, most)) == np.flatnonzero(within).tolist()


def test_slots_are_found_by_their_hashes_when_there_are_many() -> None:
    keys = pa.array(range(3 * _SCAN_SLOTS + 1))
    hashes, index = hash64([keys]), SlotIndex([keys.type])
    for least, most in ((0, 2**64 - 1), (2**56, 2**57 - 1), (2**62, 2**63)):
        index.assign(hashes, [keys])
        within = (hashes >= np.uint64(least)) & (hashes <= np.uint64(most))
        assert sorted(index.between(least, most)) == np.flatnonzero(within).tolist()


@pytest.mark.parametrize("batch_rows", [1, 7, 5000])
def test_the_table_grows_and_finds_everything(batch_rows: int) -> None:
    keys = pa.array(np.arange(20_000 if batch_rows > 1 else 1500) * 7919)
    hashes = hash64([keys])
    index = SlotIndex([keys.type])
    for start in range(0, len(keys), batch_rows):
        rows = slice(start, start + batch_rows)
        slots = index.assign(hashes[rows], [keys[rows]])
        assert slots.tolist() == list(range(start, min(start + batch_rows, len(keys))))
    assert (index.find(hashes, [keys]) == np.arange(len(keys))).all()
    others = pa.array(keys.to_numpy() + 1)
    assert (index.find(hash64([others]), [others]) == -1).all()
    assert (index.find(hashes, [others]) == -1).all()


def test_what_is_forgotten_while_the_table_grows_stays_forgotten() -> None:
    """Each batch is smaller than what is copied with it, so every state of a growing table is met."""
    keys = pa.array(np.arange(200_000))
    hashes, index = hash64([keys]), SlotIndex([keys.type])
    expected = np.arange(len(keys))
    for start in range(0, len(keys), 2000):
        rows = slice(start, start + 2000)
        index.assign(hashes[rows], [keys[rows]])
        gone = np.arange(start // 2, start + 2000, 7)
        gone = gone[expected[gone] >= 0]
        index.forget(gone)
        expected[gone] = -1
        seen = slice(0, start + 2000)
        assert (index.find(hashes[seen], [keys[seen]]) == expected[seen]).all()
    found = index.with_hash(np.unique(hashes))
    assert np.sort(found).tolist() == expected[expected >= 0].tolist()


def test_memory_of_a_million_keys_is_near_32_bytes_each() -> None:
    keys = pa.array(np.arange(1_000_000))
    index = SlotIndex([keys.type])
    index.assign(hash64([keys]), [keys])
    assert 32_000_000 <= index.nbytes <= 34_000_000


def test_run_heads_parts_neighbours_by_hash_and_by_key() -> None:
    keys = [pa.array(["a", "a", None, None, "b", "b"]), pa.array([1, 1, 1, 1, 1, 2])]
    assert run_heads(np.zeros(6, np.uint64), keys).tolist() == [0, 2, 4, 5]
    assert run_heads(np.arange(6, dtype=np.uint64), keys).tolist() == list(range(6))
    assert run_heads(np.empty(0, np.uint64), [keys[0][:0]]).tolist() == []


def test_first_equal_sees_through_interleaved_collisions() -> None:
    keys = [pa.array(["a", "b", "a", None, "b", None])]
    assert first_equal(np.zeros(6, np.uint64), keys).tolist() == [0, 1, 0, 3, 1, 3]


def test_first_equal_tells_hashes_apart_that_differ_in_their_last_bits() -> None:
    numbers = [7, 1, 7, 0, 2, 0, 1]
    hashes = np.array(numbers, np.uint64)
    assert first_equal(hashes, [pa.array(numbers)]).tolist() == [0, 1, 0, 3, 4, 3, 1]
    assert first_equal(hashes, []).tolist() == [0, 1, 0, 3, 4, 3, 1]


# RoutedIndex and Entries

SCHEMA = pa.schema([("k", pa.int64()), ("g", pa.string())])
ALIKE = np.array([7 << 40 | 3, 7 << 40 | 1 << 20 | 3, 7 << 40 | 1 << 21 | 3], np.uint64)
"""Hashes that have their high halves in common, and the low bits, too."""


@pytest.mark.parametrize("names", [["k"], ["k", "g"]])
def test_hashes_that_are_alike_are_kept_apart(names: list[str]) -> None:
    index = RoutedIndex(pa.schema([SCHEMA.field(name) for name in names]), ["k"])
    columns = [pa.array([1, 2, 3]), pa.array(["a", "a", "b"])][: len(names)]
    slots = index.assign(ALIKE, columns)
    assert index.assign(ALIKE[::-1], [column[::-1] for column in columns]).tolist() == slots[::-1].tolist()
    for place in range(3):
        assert index.with_hash(ALIKE[place : place + 1]).tolist() == [place]
    index.forget(slots[1:2])
    assert index.with_hash(ALIKE).tolist() == [0, 2]
    assert sorted(index.hashes_between(0, 2**64 - 1).tolist()) == [int(ALIKE[0]), int(ALIKE[2])]
    assert index.held == 2
    assert index.assign(ALIKE[1:2], [column[1:2] for column in columns]).tolist() == [3]


def test_keys_with_one_hash_go_together() -> None:
    index = RoutedIndex(SCHEMA, ["k"])
    index.assign(np.array([5, 9, 5, 5], np.uint64), [pa.array([1, 2, 3, 1]), pa.array(["a", "a", "b", "c"])])
    assert index.with_hash(np.array([5, 9], np.uint64)).tolist() == [0, 2, 3, 1]


def test_an_entry_gives_back_the_first_value_where_asked() -> None:
    schema = pa.schema([("x", pa.float64()), ("y", pa.float64()), ("z", pa.list_(pa.float64()))])
    entries = Entries(schema, ["y"])
    columns = [pa.array([-0.0, 0.0]), pa.array([-0.0, 0.0]), pa.array([[-0.0, math.nan], [0.0, -math.nan]])]
    slots = entries.assign(columns, 2)
    assert slots.tolist() == [0, 0]
    first = [column.to_pylist() for column in entries.columns(np.array([0]))]
    assert repr(first) == "[[0.0], [-0.0], [[-0.0, nan]]]"


def test_types_that_are_no_keys_tell_rows_apart() -> None:
    schema = pa.schema([("s", pa.struct([("a", pa.string()), ("b", pa.int8())])), ("n", pa.null())])
    entries = Entries(schema)
    values = [{"a": None, "b": 1}, None, {"a": "None", "b": 1}, {"a": None, "b": 1}]
    slots = entries.assign([pa.array(values, schema.field("s").type), pa.nulls(4)], 4)
    assert slots.tolist() == [0, 1, 2, 0]
    assert entries.column(0, np.array([2, 0])).to_pylist() == [values[2], values[0]]
