"""Sorting against Python's and DuckDB's orders, which are Spark's where they are asked so."""

from collections.abc import Callable, Sequence
from functools import cmp_to_key
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from state_kit import MANY, TYPES, column_values, order_of

from upriver.engine.operators.topk import SortKey, best_of, in_order

LONG = st.text(alphabet="ab\0é", max_size=40).map(lambda text: "the same beginning"[: len(text)] + text)
STRINGS = st.sampled_from([pa.string(), pa.large_string()])


def compared(key: SortKey, left: Any, right: Any) -> int:
    """-1, 0 or 1: how Spark compares two values."""
    if left is None or right is None:
        return ((left is not None) - (right is not None)) * (1 if key.nulls_first else -1)
    a, b = (order_of(value.encode() if isinstance(value, str) else value) for value in (left, right))
    order: int = (a > b) - (a < b)
    return order * (-1 if key.descending else 1)


def all_compared(keys: Sequence[SortKey], columns: Sequence[list[Any]], left: int, right: int) -> int:
    return next((c for key in keys if (c := compared(key, columns[key.place][left], columns[key.place][right]))), 0)


def by(keys: Sequence[SortKey], columns: Sequence[list[Any]]) -> Callable[[int], Any]:
    """What ``sorted`` is to go by."""

    def order(left: int, right: int) -> int:
        return all_compared(keys, columns, left, right)

    return cmp_to_key(order)


def drawn_keys(data: st.DataObject, types: Sequence[pa.DataType]) -> list[SortKey]:
    return [
        SortKey(place, type, data.draw(st.booleans()), data.draw(st.booleans())) for place, type in enumerate(types)
    ]


@MANY
@given(st.data(), st.lists(TYPES, min_size=1, max_size=3))
def test_rows_are_sorted_as_python_sorts_them(data: st.DataObject, types: list[pa.DataType]) -> None:
    size = data.draw(st.integers(0, 40))
    columns = [data.draw(column_values(type, size=size)) for type in types]
    arrays = [pa.array(column, type) for column, type in zip(columns, types, strict=True)]
    columns = [array.to_pylist() for array in arrays]
    groups = np.array(data.draw(st.lists(st.integers(0, 2), min_size=size, max_size=size)), np.int64)
    keys = drawn_keys(data, types)
    order, heads = in_order(groups, keys, lambda place, at: arrays[place].take(pa.array(at)))

    def compare(left: int, right: int) -> int:
        return int(groups[left] - groups[right]) or all_compared(keys, columns, left, right)

    assert order.tolist() == sorted(range(size), key=cmp_to_key(compare))
    assert heads[1:].tolist() == [compare(left, right) != 0 for left, right in pairwise(order.tolist())]


@MANY
@given(st.data(), STRINGS, st.lists(st.none() | LONG, max_size=30))
def test_long_strings_are_sorted_by_their_bytes(data: st.DataObject, type: pa.DataType, texts: list[str]) -> None:
    whole = pa.array(["x", *texts, "y"], type)
    values = whole.slice(1, len(texts))
    (key,) = drawn_keys(data, [type])
    order, _ = in_order(np.zeros(len(texts), np.int64), [key], lambda _, at: values.take(pa.array(at)))
    assert order.tolist() == sorted(range(len(texts)), key=by([key], [texts]))


NESTED: list[tuple[pa.DataType, list[Any]]] = [
    (pa.list_(pa.float64()), [None, [], [None], [1.0], [1.0, None], [1.0, -2.0], [1.0, 0.5], [float("nan")]]),
    (pa.list_(pa.string()), [None, [], ["", "b"], ["a"], ["a", "a"], ["é"], ["\U00010000"]]),
    (
        pa.struct([("a", pa.int32()), ("b", pa.string())]),
        [None, {"a": None, "b": "x"}, {"a": 1, "b": None}, {"a": 1, "b": "x"}, {"a": 2, "b": ""}],
    ),
    (pa.map_(pa.string(), pa.int32()), [None, [], [("a", None)], [("a", 1)], [("b", 0)]]),
]


@pytest.mark.smoke
@pytest.mark.parametrize(("type", "ascending"), NESTED, ids=["floats", "strings", "struct", "map"])
@pytest.mark.parametrize("descending", [False, True])
def test_nested_values_are_sorted_part_by_part(type: pa.DataType, ascending: list[Any], descending: bool) -> None:
    shuffled = ascending[1::2] + ascending[::2]
    values = pa.array(shuffled, type)
    key = SortKey(0, type, descending, nulls_first=not descending)
    order, _ = in_order(np.zeros(len(values), np.int64), [key], lambda _, at: values.take(pa.array(at)))
    found = values.take(pa.array(order)).to_pylist()
    assert repr(found) == repr(ascending[::-1] if descending else ascending)


def test_very_many_rows_that_tie_stay_in_order() -> None:
    values = np.arange(2**21) % 3
    arrow = pa.array(values)
    order, heads = in_order(np.zeros(len(values), np.int64), [SortKey(0, pa.int64())], lambda _, at: arrow.take(at))
    assert (order == np.argsort(values, kind="stable")).all()
    assert np.count_nonzero(heads) == 3


@MANY
@given(st.data(), st.lists(TYPES, min_size=1, max_size=3), st.integers(1, 8))
def test_the_best_are_among_those_picked_out(data: st.DataObject, types: list[pa.DataType], count: int) -> None:
    size = data.draw(st.integers(count, 60))
    arrays = [pa.array(data.draw(column_values(type, size=size)), type) for type in types]
    columns = [array.to_pylist() for array in arrays]
    keys = drawn_keys(data, types)
    picked = best_of(np.arange(size), count, keys, lambda place, at: arrays[place].take(pa.array(at)))
    assert len(set(picked.tolist())) == len(picked) >= count
    in_turn = sorted(range(size), key=by(keys, columns))
    ties = [row for row in range(size) if all_compared(keys, columns, row, in_turn[count - 1]) <= 0]
    assert set(picked.tolist()) >= set(ties) or len(picked) > count
    assert set(picked.tolist()) >= {row for row in ties if all_compared(keys, columns, row, in_turn[count - 1]) < 0}
