"""RoutedIndex and Entries: what they promise beside what the operators over them are tested for."""

import math

import numpy as np
import pyarrow as pa
import pytest

from upriver.state.indexes import Entries, RoutedIndex

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
