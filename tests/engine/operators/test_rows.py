"""Rows against lists: all rows of a key in order of arrival."""

import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from state_kit import MANY, TYPES, Row, batch_of, column_values, keys_of, pieces, plainly

from upriver.engine.operators.rows import Rows
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


def test_weights_count_copies() -> None:
    rows = Rows(SCHEMA, ["k"])
    rows.apply(batch_of(SCHEMA, [(1, "a", None), (1, "b", 1.0), (1, "z", 0.0)], ["k"], [3, 1, 0]))
    assert of_key(rows, 1) == [(1, "a", None)] * 3 + [(1, "b", 1.0)]
    assert (rows.held, rows.keys) == (4, 1)


def test_a_row_is_never_taken_back() -> None:
    rows = Rows(SCHEMA, ["k"])
    rows.apply(batch_of(SCHEMA, [(1, "a", 1.0)], ["k"]))
    with pytest.raises(ProtocolError, match="rows only ever come"):
        rows.apply(batch_of(SCHEMA, [(1, "b", 1.0), (1, "a", 1.0)], ["k"], [1, -1]))
    assert of_key(rows, 1) == [(1, "a", 1.0)]


@MANY
@given(st.lists(ROW, max_size=25), st.sets(KEY), st.lists(ROW, max_size=10), st.booleans())
def test_dropped_keys_are_as_if_they_had_never_been(
    first: list[Row], gone: set[int | None], then: list[Row], collide: bool
) -> None:
    routing = [] if collide else ["k"]
    rows, batch = Rows(SCHEMA, ["k"]), batch_of(SCHEMA, first, routing)
    rows.apply(batch)
    going = [key in gone for key in batch.rows.column("k").to_pylist()]
    rows.drop(np.unique(batch.hash64[np.array(going, np.bool_)]))
    rows.apply(batch_of(SCHEMA, then, routing))
    stays = [] if collide and any(going) else [row for row in first if row[0] not in gone]
    assert sorted(map(repr, answer(rows, rows.by_hash()))) == sorted(map(repr, stays + then))
    assert (rows.held, rows.keys) == (len(stays + then), len({row[0] for row in stays + then}))
    if not collide:
        for key in (1, 2, None):
            assert of_key(rows, key) == [row for row in stays + then if row[0] == key]


def test_nested_payloads_are_kept() -> None:
    rows = Rows(pa.schema([("k", pa.int32()), ("tags", pa.list_(pa.string()))]), ["k"])
    rows.apply(batch_of(rows.schema, [(1, ["a", None]), (1, []), (1, None), (1, ["a", None])], ["k"]))
    assert of_key(rows, 1) == [(1, ["a", None]), (1, []), (1, None), (1, ["a", None])]


def test_a_payload_keeps_its_bits() -> None:
    rows = Rows(pa.schema([("k", pa.float64()), ("s", pa.string())]), ["k"])
    rows.apply(batch_of(rows.schema, [(0.0, "plus"), (-0.0, "minus")], ["k"]))
    assert repr(of_key(rows, -0.0)) == "[(0.0, 'plus'), (-0.0, 'minus')]"
    assert rows.keys == 1
