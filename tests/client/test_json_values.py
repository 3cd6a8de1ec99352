"""Rows as JSON and CSV lose nothing: what comes out, read again, is the same value, also as a key."""

import json
import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import pyarrow as pa
import pyarrow.csv
import pytest
from awkward_kit import FAR_DAYS, FAR_MICROS, awkward, dates, text, times
from doors_kit import KeptRows
from duckdb_kit import by_duckdb
from hypothesis import given
from hypothesis import strategies as st

from upriver.client.json_values import csv_bytes, json_bytes, json_values, ndjson_bytes, rows_of
from upriver.client.key_texts import json_text, keys_of_texts
from upriver.doors.execution import execute
from upriver.doors.queries import ViewQuery
from upriver.state.columns import exact_list, exact_type

LONGS = st.integers(-(1 << 63), (1 << 63) - 1)
MICROS = st.sampled_from(FAR_MICROS) | LONGS
DAYS = st.sampled_from(FAR_DAYS) | st.integers(-(1 << 31), (1 << 31) - 1)
TEXTS = st.text().map(str.encode)
SCALARS = {
    pa.int8(): st.integers(-128, 127),
    pa.int32(): st.integers(-(1 << 31), (1 << 31) - 1),
    pa.int64(): st.sampled_from([1 << 53, -(1 << 53), (1 << 53) - 1]) | LONGS,
    pa.float64(): st.floats(),
    pa.float32(): st.floats(width=32),
    pa.decimal128(38, 10): st.integers(1 - 10**38, 10**38 - 1).map(lambda digits: Decimal(f"{digits}E-10")),
    pa.decimal128(38, 0): st.integers(1 - 10**38, 10**38 - 1).map(Decimal),
    pa.bool_(): st.booleans(),
    pa.string(): TEXTS,
    pa.binary(): st.binary(),
    pa.date32(): DAYS,
    pa.timestamp("us", "Europe/Berlin"): MICROS,
    pa.timestamp("us"): MICROS,
    pa.duration("us"): LONGS,
}
"""Types of columns, with their values in the exact form."""
KEYS = st.sampled_from([type for type in SCALARS if not pa.types.is_floating(type)])


def nested(parts: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
    structs = st.lists(parts, min_size=1, max_size=3).map(lambda each: pa.struct(zip("abc", each, strict=False)))
    return parts.map(pa.list_) | structs


TYPES = st.just(pa.null()) | st.recursive(
    st.sampled_from(list(SCALARS)),
    lambda parts: nested(parts) | st.tuples(KEYS, parts).map(lambda pair: pa.map_(*pair)),
    max_leaves=5,
)


def values_of(type: pa.DataType) -> st.SearchStrategy[Any]:
    """Values in the exact form, NULL among them."""
    found: st.SearchStrategy[Any] = st.none()
    if pa.types.is_map(type):
        keys = SCALARS[type.key_type]
        found = st.lists(st.tuples(keys, values_of(type.item_type)), max_size=3)
    elif pa.types.is_list(type):
        found = st.lists(values_of(type.value_type), max_size=3)
    elif pa.types.is_struct(type):
        found = st.fixed_dictionaries({field.name: values_of(field.type) for field in type})
    elif type in SCALARS:
        found = SCALARS[type]
    return st.none() | found


def column_of(type: pa.DataType, values: list[Any]) -> pa.Array:
    return pa.array(values, exact_type(type)).view(type) if exact_type(type) != type else pa.array(values, type)


def exact_text(column: pa.Array) -> str:
    """The values in the exact form."""
    return repr(exact_list(column))


def read(type: pa.DataType, value: Any) -> Any:
    """The value of JSON in the exact form."""
    if value is None:
        return None
    if pa.types.is_map(type):
        return [(read(type.key_type, pair["key"]), read(type.item_type, pair["value"])) for pair in value]
    if pa.types.is_list(type):
        return [read(type.value_type, each) for each in value]
    if pa.types.is_struct(type):
        return {field.name: read(field.type, value[field.name]) for field in type}
    if pa.types.is_integer(type):
        return int(value)
    if pa.types.is_floating(type):
        return float(type.to_pandas_dtype()(value))
    if pa.types.is_decimal(type):
        assert len(value.partition(".")[2]) == type.scale
        return Decimal(value)
    if pa.types.is_string(type):
        return value.encode()
    if pa.types.is_binary(type):
        return bytes.fromhex(value[2:-1])
    if pa.types.is_duration(type):
        sign, seconds, micros = re.fullmatch(r"(-?)PT(\d+)\.(\d{6})S", value).groups()  # type: ignore[union-attr]
        return int(sign + seconds + micros)
    if pa.types.is_temporal(type):
        assert value.endswith("Z") == (pa.types.is_timestamp(type) and type.tz is not None)
        return np.datetime64(value.removesuffix("Z"), "us" if pa.types.is_timestamp(type) else "D").astype(int).item()
    return value


@given(data=st.data())
def test_a_table_of_any_types_in_json_is_the_same_table_again(data: st.DataObject) -> None:
    types = data.draw(st.lists(TYPES, min_size=1, max_size=3))
    columns = {
        f"c{place}": column_of(type, data.draw(st.lists(values_of(type), min_size=3, max_size=3)))
        for place, type in enumerate(types)
    }
    first = pa.table(columns)
    table = pa.concat_tables([first, first.slice(1, 1), first.slice(2)])
    told = json.loads(json_bytes(rows_of(table)), parse_constant=pytest.fail)
    for field, column in zip(table.schema, table.columns, strict=True):
        again = column_of(field.type, [read(field.type, row[field.name]) for row in told])
        assert exact_text(again) == exact_text(column.combine_chunks())
    assert [json.loads(line) for line in ndjson_bytes(table).splitlines()] == told


KEY_TYPES = {str(type): st.just(type) for type in [*SCALARS, pa.null()]} | {
    "arrays and structs": st.recursive(st.sampled_from(list(SCALARS)), nested, max_leaves=5)
}


@pytest.mark.parametrize("types", KEY_TYPES.values(), ids=KEY_TYPES)
@given(data=st.data())
def test_a_value_in_json_is_the_same_key_again(types: st.SearchStrategy[pa.DataType], data: st.DataObject) -> None:
    type = data.draw(types)
    column = column_of(type, data.draw(st.lists(values_of(type), min_size=1, max_size=5)))
    told = json.loads(json_bytes(json_values(column)))
    again = keys_of_texts("v", pa.schema([("k", type)]), [json_text([value]) for value in told])
    assert exact_text(again.column("k").combine_chunks()) == exact_text(column)


def test_nested_values_are_lists_objects_and_entries() -> None:
    type = pa.struct([("m", pa.map_(pa.string(), pa.decimal128(3, 1))), ("l", pa.list_(pa.int64()))])
    values: list[Any] = [{"m": [("a", Decimal("1.5"))], "l": [1, None, 1 << 60]}, None, {"m": None, "l": []}]
    column = pa.array(values, type)
    expected: list[Any] = [
        {"m": [{"key": "a", "value": "1.5"}], "l": [1, None, str(1 << 60)]},
        None,
        {"m": None, "l": []},
    ]
    assert json_values(column) == expected
    assert json_values(column.slice(1, 2)) == expected[1:]
    assert json_values(pa.chunked_array([column, column])) == expected * 2
    twice = pa.StructArray.from_arrays([pa.array([1]), pa.array([2]), pa.array([3])], names=["a", "a_1", "a"])
    assert json_values(twice) == [{"a": 1, "a_1": 2, "a_2": 3}]
    assert json_values(pa.array([{}, None], pa.struct([]))) == [{}, None]
    nothing = pa.struct([("l", pa.list_(pa.null())), ("m", pa.map_(pa.string(), pa.null()))])
    filled = {"l": [None, None], "m": [{"key": "a", "value": None}]}
    assert json_values(pa.array([None, {}, {"l": [None] * 2, "m": [("a", None)]}], nothing)) == [
        None,
        {"l": None, "m": None},
        filled,
    ]
    wrong = pa.MapArray.from_arrays([0, 1], text([b"a\xff"]), pa.ListArray.from_arrays([0, 1], text([b"\xc3"])))
    assert json_values(wrong) == [[{"key": "a\ufffd", "value": ["\ufffd"]}]]


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (pa.array([float("nan"), float("inf"), float("-inf"), None]), ["NaN", "Infinity", "-Infinity", None]),
        (pa.array([0.1], pa.float32()), [0.1]),
        (pa.array([0, 1, None], pa.decimal128(38, 10)), ["0.0000000000", "1.0000000000", None]),
        (pa.array([Decimal("1E-10"), Decimal(0)], pa.decimal128(38, 10)), ["0.0000000001", "0.0000000000"]),
        (dates([9_999_999, -719_529, -719_894]), ["29349-01-25", "-0001-12-31", "-0002-12-31"]),
        (times([-(1 << 63)], "UTC"), ["-290308-12-21T19:59:05.224192Z"]),
        (pa.array([-90_000_005], pa.duration("us")), ["-PT90.000005S"]),
        (pa.array([1_500], pa.timestamp("ms")), ["1970-01-01T00:00:01.500000"]),
        (text([b"a\xff"]), ["a\ufffd"]),
        (pa.array([b"\0" * 3_000_000]), [f"X'{'00' * 3_000_000}'"]),
    ],
    ids=lambda each: str(each.type) if isinstance(each, pa.Array) else "",
)
def test_what_json_lacks_is_text(column: pa.Array, expected: list[Any]) -> None:
    assert json_values(column) == expected


def test_what_only_a_query_computes_has_a_form() -> None:
    kept = pa.table({"n": [1], "d": pa.array([90_500_000], pa.duration("us"))})
    rows = KeptRows({"v": kept}, {"v": ("n",)})
    selected = {
        "d": "PT90.500000S",
        "INTERVAL '14' MONTH + INTERVAL '3' DAY - INTERVAL '4.5' SECOND": "P14M3DT-4.500000S",
        "make_time(1, 2, 3.5)": "01:02:03.500000",
        "CAST('24:00:00' AS TIME)": "24:00:00.000000",
        "make_timestamp_ns(1)": "1970-01-01T00:00:00.000000001",
        "CAST('a' AS ENUM('b', 'a'))": "a",
        "array_value(1, 2)": [1, 2],
        "list_value(NULL)": [None],
        "union_value(num := 2)": 2,
        "sum(n) OVER ()": "1",
        "NULL": None,
    }
    query = ViewQuery.parse(f"SELECT {', '.join(selected)}, n, n FROM v", "spark", rows.routes())
    found = execute(query, rows)
    (row,) = json.loads(json_bytes(rows_of(found)))
    assert list(row.values()) == [*selected.values(), 1, 1]
    assert list(row)[-2:] == ["n", "n_1"]
    assert csv_bytes(found).decode().splitlines()[1].endswith(',"a","[1,2]","[null]","2",1,,1,1')


def test_an_encoder_that_knows_no_form_of_a_value_says_so() -> None:
    assert json_bytes({"a": [float("nan"), (1, -0.0)], 7: True}) == b'{"a":["NaN",[1,-0.0]],"7":true}'
    for value in (b"a", Decimal(1), {1}, Path("a"), np.int64(1)):
        with pytest.raises(TypeError, match=f"JSON has no {type(value).__name__}"):
            json_bytes({"a": [value]})


def test_rows_are_objects_lines_and_csv() -> None:
    table = pa.table({"a": [1, None], "b": ["x", ""], "c": [[1], None]})
    assert json_bytes({"rows": rows_of(table)}) == b'{"rows":[{"a":1,"b":"x","c":[1]},{"a":null,"b":"","c":null}]}'
    assert ndjson_bytes(table) == b'{"a":1,"b":"x","c":[1]}\n{"a":null,"b":"","c":null}\n'
    assert csv_bytes(table) == b'"a","b","c"\n1,"x","[1]"\n,"",\n'
    assert csv_bytes(awkward()).count(b"\n") > awkward().num_rows


CSV = pa.table(
    {
        'a"b': ["", None, 'q"x\n,', "NULL", "NaN", " s "],
        "n": [1, None, 1 << 60, 3, 4, 5],
        "x": [float("inf"), None, -0.0, 1e300, 0.5, 1.0],
        "t": pa.array([None, *range(5)], pa.timestamp("us")),
        "z": pa.array([True, False, None] * 2),
    }
)


def test_csv_read_again_is_the_same_table(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_bytes(csv_bytes(CSV))
    by_sql = by_duckdb(f"SELECT * FROM read_csv('{path}', allow_quoted_nulls = false, types = {{'x': 'DOUBLE'}})")
    assert by_sql.to_pylist() == CSV.to_pylist()
    by_arrow = pyarrow.csv.read_csv(
        path,
        parse_options=pyarrow.csv.ParseOptions(newlines_in_values=True),
        convert_options=pyarrow.csv.ConvertOptions(
            strings_can_be_null=True, quoted_strings_can_be_null=False, null_values=[""]
        ),
    )
    assert by_arrow.set_column(3, "t", by_arrow["t"].cast(pa.timestamp("us"))).equals(CSV)
    by_pandas = pd.read_csv(path, na_values=[""], keep_default_na=False, dtype={"n": "Int64"}, parse_dates=["t"])
    assert by_pandas["n"].tolist()[2] == 1 << 60
    assert by_pandas['a"b'].isna().tolist() == [True, True, *[False] * 4]  # pandas has one for both
    assert by_pandas["x"].tolist()[:1] == [float("inf")]
