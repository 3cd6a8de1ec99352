"""Rows as JSON lose nothing: what comes out, read again as a key, is the same value."""

import datetime
import decimal
import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from upriver.client.key_texts import keys_of_texts
from upriver.doors.http.json_values import csv_bytes, json_bytes, json_values, ndjson_bytes, rows_of

MICROS = st.integers(-62_135_596_800_000_000, 253_402_300_799_999_999)
COLUMNS = {
    pa.int8(): st.integers(-128, 127),
    pa.int64(): st.integers(-(1 << 63), (1 << 63) - 1),
    pa.float64(): st.floats(allow_nan=False),
    pa.float32(): st.floats(width=32, allow_nan=False),
    pa.decimal128(38, 10): st.decimals(
        allow_nan=False, allow_infinity=False, places=10, min_value=-9e20, max_value=9e20
    ),
    pa.bool_(): st.booleans(),
    pa.string(): st.text(),
    pa.binary(): st.binary(),
    pa.date32(): st.dates(),
    pa.timestamp("us", "Europe/Berlin"): MICROS,
    pa.timestamp("us"): MICROS,
}


@pytest.mark.parametrize("type", COLUMNS, ids=str)
@given(data=st.data())
def test_a_value_in_json_is_the_same_key_again(type: pa.DataType, data: st.DataObject) -> None:
    values = data.draw(st.lists(st.none() | COLUMNS[type], min_size=1, max_size=5))
    column = pa.array(values, type)
    told = json.loads(json_bytes(json_values(column)))
    texts = [json.dumps([value]) for value in told]
    again = keys_of_texts("v", pa.schema([("k", type)]), texts)
    assert again.column("k").combine_chunks().equals(column)


def test_nested_values_are_lists_objects_and_entries() -> None:
    type = pa.struct([("m", pa.map_(pa.string(), pa.decimal128(3, 1))), ("l", pa.list_(pa.int64()))])
    values: list[Any] = [{"m": [("a", decimal.Decimal("1.5"))], "l": [1, None, 1 << 60]}, None, {"m": None, "l": []}]
    column = pa.array(values, type)
    expected: list[Any] = [
        {"m": [{"key": "a", "value": "1.5"}], "l": [1, None, str(1 << 60)]},
        None,
        {"m": None, "l": []},
    ]
    assert json_values(column) == expected
    assert json_values(column.slice(1, 2)) == expected[1:]
    assert json_values(pa.chunked_array([column, column])) == expected * 2


def test_what_json_lacks_is_text() -> None:
    assert json_values(pa.array([float("nan"), float("inf"), float("-inf"), None, 0.5])) == [
        "NaN",
        "Infinity",
        "-Infinity",
        None,
        0.5,
    ]
    assert json_values(pa.array([0.1], pa.float32())) == [0.1]
    assert json_values(pa.array([datetime.timedelta(seconds=-90, microseconds=-5)], pa.duration("us"))) == [
        "-PT90.000005S"
    ]
    assert json_values(pa.array([9_999_999], pa.int32()).cast(pa.date32())) == ["29349-01-25"]
    wrong = pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(b"\0\0\0\0\2\0\0\0"), pa.py_buffer(b"a\xff")])
    assert json_values(wrong) == ["a\ufffd"]


def test_rows_are_objects_lines_and_csv() -> None:
    table = pa.table({"a": [1, None], "b": ["x", ""], "c": [[1], []]})
    assert rows_of(table) == [{"a": 1, "b": "x", "c": [1]}, {"a": None, "b": "", "c": []}]
    assert ndjson_bytes(table) == b'{"a":1,"b":"x","c":[1]}\n{"a":null,"b":"","c":[]}\n'
    assert csv_bytes(table) == b'"a","b","c"\n"1","x","[1]"\n,"","[]"\n'
