"""Vectors grow; tallies know how many slots have any."""

import os
import platform

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from state_kit import MANY

from benchmarks.worker_memory import memory_of
from upriver.errors import ProtocolError
from upriver.runtime.memory import trim_heap
from upriver.state.vectors import NO_KEYS, Tally, Vector, contains, first_of_each, key_set


@MANY
@given(st.lists(st.lists(st.integers(-9, 9), max_size=40), max_size=8), st.integers(0, 50))
def test_a_vector_is_a_list(pieces: list[list[int]], more: int) -> None:
    vector: Vector[np.int64] = Vector(np.int64, fill=7)
    for piece in pieces:
        vector.extend(np.array(piece, np.int64))
    expected = [number for piece in pieces for number in piece] + [7] * more
    vector.resize(len(expected))
    assert vector.cells.tolist() == expected
    assert vector.nbytes == 8 * len(expected)


@pytest.mark.parametrize("dtype", ["i8", "V16", "u1", "?"])
def test_a_vector_that_is_not_small_grows_with_and_without_onlookers(dtype: str) -> None:
    vector: Vector[np.generic] = Vector(dtype)
    size = 100_000
    expected = np.arange(16 * size, dtype=np.uint8).tobytes()
    vector.extend(np.frombuffer(expected, dtype, size))
    width = vector.cells.dtype.itemsize
    for _ in range(3):
        vector.resize(2 * len(vector))
        assert vector.cells.tobytes() == expected[: size * width] + bytes((len(vector) - size) * width)
        onlooker = vector.cells[:size]
        vector.resize(2 * len(vector) + 1)
        vector.cells[size:] = np.zeros(1, dtype)
        assert onlooker.tobytes() == vector.cells[:size].tobytes() == expected[: size * width]
        del onlooker


def test_views_of_a_vector_survive_its_growth() -> None:
    vector: Vector[np.int64] = Vector(np.int64)
    vector.extend(np.arange(3))
    before = vector.cells
    vector.extend(np.arange(1000))
    assert before.tolist() == [0, 1, 2]


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="memory is read and freed as Linux has it")
def test_vectors_that_are_not_small_take_the_memory_that_they_say_they_take() -> None:
    part, me = np.arange(10_000), [os.getpid()]
    trim_heap()
    before = memory_of(me).anonymous
    vectors: list[Vector[np.int64]] = [Vector(np.int64) for _ in range(40)]
    for _ in range(8):
        for vector in vectors:
            vector.extend(part)
    trim_heap()
    taken, said = memory_of(me).anonymous - before, sum(vector.nbytes for vector in vectors)
    assert said == 40 * 8 * part.nbytes
    assert taken == pytest.approx(said, rel=0.15)


def test_a_tally_can_be_set_and_cleared() -> None:
    tally = Tally()
    tally.resize(5)
    tally.put(np.array([3, 1]), np.array([7, 2]))
    assert (tally.held, tally.counts.tolist()) == (2, [0, 2, 0, 7, 0])
    assert tally.of_those_held(np.array([4, 3, 1, 0])).tolist() == [3, 1]
    tally.clear(np.array([3, 4]))
    assert (tally.held, tally.counts.tolist()) == (1, [0, 2, 0, 0, 0])


@MANY
@given(st.lists(st.lists(st.tuples(st.integers(0, 5), st.sampled_from([1, 1, 2, -1])), max_size=8), max_size=8))
def test_a_tally_knows_whose_count_left_and_came_to_zero(batches: list[list[tuple[int, int]]]) -> None:
    tally, model = Tally(), [0] * 6
    tally.resize(6)
    for batch in batches:
        slots = np.array([slot for slot, _ in batch], np.int64)
        weight = np.array([weight for _, weight in batch], np.int64)
        before = model.copy()
        for slot, times in batch:
            model[slot] += times
        if min(model) < 0:
            with pytest.raises(ProtocolError, match="more rows were retracted"):
                tally.add(slots, weight)
            return
        woken, emptied = tally.add(slots, None if (weight == 1).all() else weight)
        touched = [slot for place, (slot, _) in enumerate(batch) if slot not in slots[:place]]
        assert slots[woken].tolist() == [slot for slot in touched if before[slot] == 0]
        assert slots[emptied].tolist() == [slot for slot in touched if model[slot] == 0]
        assert tally.counts.tolist() == model
        assert tally.held == sum(count > 0 for count in model)


def test_first_of_each_keeps_the_first_position_of_every_slot() -> None:
    slots = np.array([5, 3, 5, 3, 8])
    assert first_of_each(slots, np.arange(5)).tolist() == [0, 1, 4]
    assert first_of_each(slots, np.array([2, 3, 4])).tolist() == [2, 3, 4]
    assert first_of_each(slots, np.array([], np.int64)).tolist() == []


# Sets of keys, as sorted arrays, against Python's sets

HASHES = st.lists(st.one_of(st.integers(0, 20), st.integers(0, 2**64 - 1)), max_size=30)


def array(numbers: list[int]) -> np.ndarray:
    return np.array(numbers, np.uint64)


@given(HASHES, HASHES)
def test_a_key_set_is_the_union_in_order(first: list[int], second: list[int]) -> None:
    keys = key_set(array(first), array(second))
    assert keys.tolist() == sorted({*first, *second})
    assert keys.dtype == np.uint64


@given(HASHES, HASHES)
def test_contains_says_it_for_every_row(members: list[int], rows: list[int]) -> None:
    keys = key_set(array(members))
    assert contains(keys, array(rows)).tolist() == [row in set(members) for row in rows]


def test_no_keys_hold_nothing() -> None:
    assert len(key_set()) == 0
    assert contains(NO_KEYS, array([0, 2**64 - 1])).tolist() == [False, False]
    assert not NO_KEYS.flags.writeable
