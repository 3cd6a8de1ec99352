"""Rows are filtered by their keys' values, not by their hashes alone."""

import math

import numpy as np
import pyarrow as pa
import pytest

from upriver.hashing import hash64
from upriver.state.key_filter import KeyFilter

PAIRS = pa.schema([("a", pa.int64()), ("b", pa.int64())])


def batch(*rows: tuple[object, object]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([dict(zip("ab", row, strict=True)) for row in rows], PAIRS)


def test_keys_of_one_hash_are_told_apart() -> None:
    """A null leaves the hash as it was."""
    rows = batch((None, 1), (1, None), (1, 1), (None, None), (1, None))
    assert len(set(hash64(rows.columns)[:2].tolist())) == 1
    assert KeyFilter(batch((1, None))).rows_of(rows).equals(batch((1, None), (1, None)))
    assert KeyFilter(batch((1, None), (7, 7), (None, 1), (1, None))).rows_of(rows).equals(rows.take([0, 1, 4]))
    assert KeyFilter(batch((None, None))).rows_of(rows).equals(batch((None, None)))


def test_no_keys_have_no_rows_and_no_rows_stay_none() -> None:
    assert KeyFilter(batch()).rows_of(batch((1, 1))).equals(batch())
    assert KeyFilter(batch((1, 1))).rows_of(batch()).equals(batch())
    assert len(KeyFilter(batch()).hashes) == 0


def test_hashes_are_ascending_and_each_once() -> None:
    keys = batch(*((n % 5, n % 3) for n in range(30)))
    assert KeyFilter(keys).hashes.tolist() == sorted(set(hash64(keys.columns).tolist()))


@pytest.mark.parametrize("type", [pa.float32(), pa.float64()])
def test_all_nans_are_one_key_and_so_are_the_two_zeros(type: pa.DataType) -> None:
    other_nan = np.array([0xFFF8000000000001], np.uint64).view(np.float64)[0]
    values = pa.array([0.0, -0.0, math.nan, other_nan, 1.5, None], type)
    rows = pa.record_batch({"x": values, "at": range(6)})
    for key, places in ((-0.0, [0, 1]), (math.nan, [2, 3]), (1.5, [4]), (None, [5])):
        keys = pa.record_batch({"x": pa.array([key], type)})
        found = KeyFilter(keys).rows_of(rows)
        assert found.column("at").to_pylist() == places


def test_keys_of_texts() -> None:
    rows = pa.record_batch({"t": ["a", None, "b", ""], "n": [1, 2, 3, 4]})
    assert KeyFilter(pa.record_batch({"t": ["", None]})).rows_of(rows).column("n").to_pylist() == [2, 4]
    assert KeyFilter(pa.record_batch({"t": ["x"]})).rows_of(rows).num_rows == 0
