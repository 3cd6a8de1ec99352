"""Columns give back what they were given, by slot; equality is by bits, and nulls equal nulls."""

import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from state_kit import MANY, TYPES, VALUES, column_values, plainly

from upriver.errors import DeclarationError
from upriver.state.columns import array_of, canonical, cells_of, column_of, same


@MANY
@given(st.data(), TYPES, st.lists(st.integers(0, 3), max_size=4))
def test_a_column_holds_what_was_appended_piece_by_piece(data: Any, type: pa.DataType, offsets: list[int]) -> None:
    column, expected = column_of(type), []
    for offset in offsets:
        values = data.draw(column_values(type))
        column.append(pa.array(values, type).slice(offset))
        expected += values[offset:]
    slots = np.array(data.draw(st.lists(st.integers(0, max(0, len(expected) - 1)), max_size=8)), np.int64)
    slots = slots[: 8 if expected else 0]
    taken = column.take(slots)
    taken.validate(full=True)
    assert len(column) == len(expected)
    assert taken.type == type
    assert repr(taken.to_pylist()) == repr(pa.array([expected[slot] for slot in slots], type).to_pylist())


@MANY
@given(st.data(), TYPES)
def test_keep_leaves_the_chosen_values_in_the_chosen_order(data: Any, type: pa.DataType) -> None:
    values = data.draw(column_values(type, size=10))
    column = column_of(type)
    column.append(pa.array(values, type))
    chosen = data.draw(st.permutations(range(10)))[:6]
    column.keep(np.array(chosen))
    column.append(pa.array(values[:2], type))
    expected = pa.array([*(values[slot] for slot in chosen), *values[:2]], type)
    assert repr(column.take(np.arange(8)).to_pylist()) == repr(expected.to_pylist())


@MANY
@given(st.data(), TYPES)
def test_same_is_equality_of_values_and_of_nulls(data: Any, type: pa.DataType) -> None:
    left, right = data.draw(column_values(type, size=12)), data.draw(column_values(type, size=12))
    left = [a if data.draw(st.booleans()) else b for a, b in zip(left, right, strict=True)]
    expected = [plainly(a) == plainly(b) for a, b in zip(left, right, strict=True)]
    equal = same(canonical(pa.array(left, type)), canonical(pa.array(right, type)))
    assert equal.tolist() == expected


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


@pytest.mark.parametrize("type", [pa.list_(pa.int32()), pa.struct([("a", pa.int32())]), pa.null()])
def test_nested_types_are_refused(type: pa.DataType) -> None:
    with pytest.raises(DeclarationError, match="cannot hold values of type"):
        column_of(type)


def test_bytes_grow_with_what_is_held() -> None:
    numbers, words = column_of(pa.int64()), column_of(pa.string())
    numbers.append(pa.array(range(1000)))
    words.append(pa.array(["12345678"] * 1000))
    assert numbers.nbytes == 8000
    assert words.nbytes == 8000 + 8 * 1001
    assert {type.bit_width for type in VALUES if pa.types.is_decimal(type)} == {128}
