"""Rows against lists: all rows of a key in order of arrival, less those that were retracted."""

import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from state_kit import MANY, TYPES, Row, batch_of, column_values, comings_and_goings, keys_of, pieces, plainly

from upriver.dataflow.operators.rows import Rows
from upriver.errors import ProtocolError

SCHEMA = pa.schema([("k", pa.int8()), ("s", pa.string()), ("x", pa.float64())])
KEY = st.sampled_from([1, 2, None])
ROW = st.tuples(KEY, st.sampled_from(["", "a", None]), st.sampled_from([0.5, math.inf, None]))


def answer(rows: Rows, slots: np.ndarray[Any, Any]) -> list[Row]:
    return list(zip(*(rows.column(name, slots).to_pylist() for name in rows.schema.names), strict=True))


def of_key(rows: Rows, *key: Any) -> list[Row]:
    hashes, keys = keys_of(pa.schema([rows.schema.field(place) for place in range(len(key))]), [key])
    return answer(rows, rows.find(hashes, keys.columns)[1])


@MANY
@given(st.data(), st.lists(TYPES, min_size=2, max_size=4), st.booleans())
def test_a_keys_rows_come_back_as_they_came(data: st.DataObject, types: list[pa.DataType], collide: bool) -> None:
    schema = pa.schema([(f"c{place}", type) for place, type in enumerate(types)])
    size, routing = data.draw(st.integers(0, 30)), schema.names[: data.draw(st.integers(1, 2))]
    given_rows = list(zip(*(data.draw(column_values(type, size=size)) for type in types), strict=True))
    rows, batch = Rows(schema, routing), batch_of(schema, given_rows, [] if collide else routing)
    for piece in pieces(batch, data.draw(st.lists(st.integers(0, 40), max_size=5))):
        rows.apply(piece)
    arrived = list(zip(*(column.to_pylist() for column in batch.rows.columns), strict=True))
    keys = [tuple(map(plainly, row[: len(routing)])) for row in arrived]
    assert (rows.held, rows.keys) == (len(arrived), len(set(keys)))
    scanned = answer(rows, rows.by_hash())
    assert sorted(map(repr, scanned)) == sorted(map(repr, arrived))
    if not collide:
        assert repr(scanned) == repr(arrived) or _collides(batch.hash64, keys)
    for start in range(len(arrived)):
        asked = [batch.rows.column(name).slice(start, 1) for name in routing]
        found = answer(rows, rows.find(batch.hash64[start : start + 1], asked)[1])
        assert repr(found) == repr([row for row, key in zip(arrived, keys, strict=True) if key == keys[start]])


def _collides(hashes: np.ndarray[Any, Any], keys: list[Row]) -> bool:
    return len(set(hashes.tolist())) < len(set(keys))


@MANY
@given(st.data(), st.lists(ROW, max_size=25), st.booleans())
def test_a_retraction_takes_the_oldest_equal_row(data: st.DataObject, given_rows: list[Row], collide: bool) -> None:
    changes, left = comings_and_goings(data, given_rows)
    rows = Rows(SCHEMA, ["k"])
    weight = [weight for _, weight in changes]
    batch = batch_of(SCHEMA, [row for row, _ in changes], [] if collide else ["k"], weight)
    for piece in pieces(batch, data.draw(st.lists(st.integers(0, 50), max_size=4))):
        rows.apply(piece)
    for key in (1, 2, None):
        hashes = batch.hash64[:1] if collide else keys_of(SCHEMA.empty_table().select(["k"]).schema, [(key,)])[0]
        found = answer(rows, rows.find(hashes, [pa.array([key], pa.int8())])[1]) if len(hashes) else []
        assert found == [row for row in left if row[0] == key]
    assert (rows.held, rows.keys) == (len(left), len({row[0] for row in left}))


def test_weights_count_copies() -> None:
    rows = Rows(SCHEMA, ["k"])
    rows.apply(batch_of(SCHEMA, [(1, "a", None), (1, "b", 1.0), (1, "z", 0.0)], ["k"], [3, 1, 0]))
    rows.apply(batch_of(SCHEMA, [(1, "a", None)], ["k"], [-2]))
    assert of_key(rows, 1) == [(1, "a", None), (1, "b", 1.0)]
    rows.apply(batch_of(SCHEMA, [(1, "a", None), (1, "b", 1.0)], ["k"], [-1, -1]))
    assert (of_key(rows, 1), rows.held, rows.keys) == ([], 0, 0)


def test_an_update_in_one_batch_replaces_the_row() -> None:
    rows = Rows(SCHEMA, ["k"])
    rows.apply(batch_of(SCHEMA, [(1, "old", 1.0)], ["k"]))
    changes = [(1, "old", 1.0), (1, "new", 2.0), (1, "new", 2.0), (1, "newer", math.nan)]
    rows.apply(batch_of(SCHEMA, changes, ["k"], [-1, 1, -1, 1]))
    assert repr(of_key(rows, 1)) == "[(1, 'newer', nan)]"
    rows.apply(batch_of(SCHEMA, [(1, "newer", math.nan)], ["k"], [-1]))
    assert of_key(rows, 1) == []


@pytest.mark.parametrize(
    ("gone", "message"),
    [
        ([(1, "a", 1.0)] * 2, "more often than it is there"),
        ([(1, "a", 2.0)], "not there"),
        ([(2, "a", 1.0)], "not there"),
        ([(1, None, 1.0)], "not there"),
    ],
)
def test_a_row_that_is_not_there_cannot_be_retracted(gone: list[Row], message: str) -> None:
    rows = Rows(SCHEMA, ["k"])
    rows.apply(batch_of(SCHEMA, [(1, "a", 1.0), (1, "b", 1.0)], ["k"]))
    with pytest.raises(ProtocolError, match=message):
        rows.apply(batch_of(SCHEMA, gone, ["k"], [-1] * len(gone)))


def test_nested_payloads_come_and_go() -> None:
    rows = Rows(pa.schema([("k", pa.int32()), ("tags", pa.list_(pa.string()))]), ["k"])
    rows.apply(batch_of(rows.schema, [(1, ["a", None]), (1, []), (1, None), (1, ["a", None])], ["k"]))
    rows.apply(batch_of(rows.schema, [(1, ["a", None]), (1, None)], ["k"], [-1, -1]))
    assert of_key(rows, 1) == [(1, []), (1, ["a", None])]


def test_a_payload_keeps_its_bits() -> None:
    rows = Rows(pa.schema([("k", pa.float64()), ("s", pa.string())]), ["k"])
    rows.apply(batch_of(rows.schema, [(0.0, "plus"), (-0.0, "minus")], ["k"]))
    assert repr(of_key(rows, -0.0)) == "[(0.0, 'plus'), (-0.0, 'minus')]"
    assert rows.keys == 1
