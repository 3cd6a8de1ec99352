"""Replaceable columns against a list: what was put last at a slot is there."""

from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from state_kit import MANY, TYPES, VALUES

from upriver.state.columns import replaceable_of

LISTS = pa.list_(pa.int8())
ALL: dict[pa.DataType, st.SearchStrategy[Any]] = {**VALUES, LISTS: st.lists(st.integers(0, 9), max_size=2)}


@MANY
@given(st.data(), TYPES | st.just(LISTS))
def test_what_was_put_last_is_there(data: st.DataObject, type: pa.DataType) -> None:
    column = replaceable_of(type)
    expected: list[Any] = []
    for more in data.draw(st.lists(st.integers(0, 4), max_size=6)):
        old = data.draw(st.lists(st.sampled_from(range(len(expected))), unique=True)) if expected else []
        slots = [*old, *range(len(expected), len(expected) + more)]
        values = data.draw(st.lists(st.none() | ALL[type], min_size=len(slots), max_size=len(slots)))
        expected += [None] * more
        column.resize(len(expected))
        column.put(np.array(slots, np.int64), pa.array([0, *values][1:], type))
        for slot, value in zip(slots, values, strict=True):
            expected[slot] = value
        assert len(expected) <= column.places
    taken = column.take(np.arange(len(expected))[::-1])
    taken.validate(full=True)
    assert taken.type == type
    assert repr(taken.to_pylist()) == repr(pa.array(expected[::-1], type).to_pylist())
    assert column.nbytes >= 0


def test_fixed_values_are_written_over_and_others_are_not() -> None:
    slots = np.array([0, 1])
    fixed, text = replaceable_of(pa.int64()), replaceable_of(pa.string())
    for _ in range(3):
        for column, values in ((fixed, pa.array([1, None])), (text, pa.array(["a", None]))):
            column.resize(2)
            column.put(slots, values)
    assert (fixed.places, text.places) == (2, 6)
    assert text.take(slots).to_pylist() == ["a", None]
