"""Columns give back what they were given, by slot; equality is by bits, and nulls equal nulls."""

import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from state_kit import MANY, TYPES, VALUES, column_values, plainly

from upriver.state.columns import ChunksColumn, array_of, canonical, cells_of, column_of, same, taken, validity

NESTED = {
    pa.list_(pa.int32()): st.lists(st.none() | st.integers(0, 9), max_size=3),
    pa.struct([("a", pa.string()), ("b", pa.float64())]): st.fixed_dictionaries({"a": st.text(), "b": st.floats()}),
    pa.map_(pa.string(), pa.int64()): st.dictionaries(st.text(max_size=2), st.integers(0, 9)).map(
        lambda entries: list(entries.items())
    ),
    pa.null(): st.none(),
}
ALL_TYPES = TYPES | st.sampled_from(list(NESTED))


def values_of(type: pa.DataType, size: int) -> st.SearchStrategy[list[Any]]:
    if type in NESTED:
        return st.lists(st.none() | NESTED[type], min_size=size, max_size=size)
    return column_values(type, size=size)


@MANY
@given(st.data(), ALL_TYPES, st.lists(st.integers(0, 3), max_size=6))
def test_a_column_holds_what_was_appended_piece_by_piece(data: Any, type: pa.DataType, offsets: list[int]) -> None:
    column, expected = column_of(type), []
    for offset in offsets:
        values = data.draw(values_of(type, data.draw(st.integers(0, 9))))
        column.append(pa.array(values, type).slice(offset))
        expected += values[offset:]
    slots = np.array(data.draw(st.lists(st.integers(0, max(0, len(expected) - 1)), max_size=8)), np.int64)
    slots = slots[: 8 if expected else 0]
    found = column.take(slots)
    found.validate(full=True)
    assert len(column) == len(expected)
    assert found.type == type
    assert repr(found.to_pylist()) == repr(pa.array([expected[slot] for slot in slots], type).to_pylist())


@MANY
@given(st.data(), TYPES)
def test_same_is_equality_of_values_and_of_nulls(data: Any, type: pa.DataType) -> None:
    left, right = data.draw(column_values(type, size=12)), data.draw(column_values(type, size=12))
    left = [a if data.draw(st.booleans()) else b for a, b in zip(left, right, strict=True)]
    expected = [plainly(a) == plainly(b) for a, b in zip(left, right, strict=True)]
    equal = same(canonical(pa.array(left, type)), canonical(pa.array(right, type)))
    assert equal.tolist() == expected


@MANY
@given(st.data(), st.lists(ALL_TYPES, min_size=1, max_size=3), st.integers(0, 3))
def test_rows_are_taken_as_arrow_takes_them(data: Any, types: list[pa.DataType], offset: int) -> None:
    columns = [pa.array(data.draw(values_of(type, 9)), type).slice(offset) for type in types]
    rows = pa.RecordBatch.from_arrays(columns, names=[f"c{number}" for number in range(len(types))])
    positions = np.array(data.draw(st.lists(st.integers(0, 8 - offset), max_size=8)), np.int64)
    found = taken(rows, positions)
    found.validate(full=True)
    assert found.schema == rows.schema
    assert repr(found.to_pylist()) == repr(rows.take(pa.array(positions)).to_pylist())


def test_what_lies_under_a_null_does_not_count() -> None:
    valid = np.array([True, False, False])
    left = array_of(pa.int64(), np.array([1, 2, 3]), valid)
    right = array_of(pa.int64(), np.array([1, 9, 3]), valid)
    assert same(left, right).all()


@pytest.mark.parametrize("type", [pa.float32(), pa.float64()])
def test_canonical_has_one_zero_and_one_nan(type: pa.DataType) -> None:
    values = canonical(pa.array([-0.0, 0.0, -math.nan, math.nan, None, -math.inf], type))
    assert len({bits.tobytes() for bits in cells_of(values)[:2]}) == 1
    assert len({bits.tobytes() for bits in cells_of(values)[2:4]}) == 1
    assert values.to_pylist()[4:] == [None, -math.inf]


def test_nested_values_are_compared_whole() -> None:
    lists = pa.array([[1, None], [1], None, [], None])
    others = pa.array([[1, None], [2], None, None, []])
    assert same(lists, others).tolist() == [True, False, True, False, False]


def test_nested_values_lie_in_few_pieces_of_their_own_memory() -> None:
    column, values = ChunksColumn(pa.list_(pa.int64())), pa.array([[1, 2]] * 1000)
    for start in range(1000):
        column.append(values[start : start + 1])
    assert len(column._chunks) <= 10
    assert column.nbytes < 2 * values.nbytes
    assert column.take(np.array([999, 0, 500])).to_pylist() == [[1, 2]] * 3


def test_bytes_grow_with_what_is_held() -> None:
    numbers, words = column_of(pa.int64()), column_of(pa.string())
    numbers.append(pa.array(range(1000)))
    words.append(pa.array(["12345678"] * 1000))
    assert numbers.nbytes == 8000
    assert words.nbytes == 8000 + 8 * 1001
    assert {type.bit_width for type in VALUES if pa.types.is_decimal(type)} == {128}


@pytest.mark.skipif(pa.default_memory_pool().backend_name == "system", reason="Arrow has no pool of its own here")
def test_masks_take_no_memory_of_arrows_own_pool_if_another_is_chosen() -> None:
    own, values = pa.default_memory_pool(), pa.array([None, *range(1000)])
    before = own.total_bytes_allocated()
    pa.set_memory_pool(pa.system_memory_pool())
    try:
        assert validity(values).tolist() == [False, *[True] * 1000]
    finally:
        pa.set_memory_pool(own)
    assert own.total_bytes_allocated() == before


@pytest.mark.parametrize("type", [pa.string(), pa.large_string(), pa.binary(), pa.large_binary()])
def test_slices_with_nulls_and_without_values_are_taken_in(type: pa.DataType) -> None:
    """Where the values of a slice begin, and how wide offsets are, is told by the array alone."""
    column = column_of(type)
    values = pa.array(["left out", "one", None, "", "three"], pa.string()).cast(type)
    for part in (values[1:4], values[:0], values[4:]):
        column.append(part)
    assert column.take(np.arange(len(column))).to_pylist() == values[1:].to_pylist()
