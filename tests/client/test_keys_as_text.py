"""Keys on the command line: every type of key, at the ends of its range and beyond, and texts that look like lists."""

import datetime
import json
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from upriver.client.key_texts import Numeral, json_text, keys_of_texts
from upriver.errors import KeyTypeError
from upriver.state.columns import exact_list
from upriver.zones import zone_info

INSTANT, LOCAL = pa.timestamp("us", "UTC"), pa.timestamp("us")
NOON = 1_709_208_000_000_000
"""2024-02-29 12:00:00 in UTC."""
HOUR = 3_600_000_000


def one(type: pa.DataType, *texts: str) -> list[Any]:
    """Keys of a view with one key column, in their exact form."""
    schema = pa.schema([("k", type)])
    keys = keys_of_texts("v", schema, texts)
    assert keys.schema == schema
    return exact_list(keys.column(0).combine_chunks())


TAKEN = [
    (pa.int32(), "-7", -7),
    (pa.int64(), str(-(2**63)), -(2**63)),
    (pa.int64(), f"[{2**63 - 1}]", 2**63 - 1),
    (pa.int8(), '["5"]', 5),
    (pa.float64(), "1e300", 1e300),
    (pa.float64(), "-inf", -float("inf")),
    (pa.float64(), "[2.5]", 2.5),
    (pa.bool_(), "true", True),
    (pa.bool_(), "False", False),
    (pa.bool_(), "[true]", True),
    (pa.string(), "a", b"a"),
    (pa.string(), "", b""),
    (pa.string(), "null", b"null"),
    (pa.string(), "[1]", b"[1]"),
    (pa.string(), "[1, 2]", b"[1, 2]"),
    (pa.string(), "[", b"["),
    (pa.string(), '["a"]', b"a"),
    (pa.string(), '["[\\"a\\"]"]', b'["a"]'),
    (pa.string(), '"q"', b'"q"'),
    (pa.string(), "[" * 100_000, b"[" * 100_000),
    (pa.duration("us"), "PT90.5S", 90_500_000),
    (pa.duration("us"), "-PT9223372036854.775808S", -(2**63)),
    (pa.binary(), "b", b"b"),
    (pa.binary(), "X'00FF'", b"\x00\xff"),
    (pa.date32(), "2024-02-29", 19_782),
    (pa.date32(), "-0001-12-31", -719_529),
    (pa.date32(), "0000-01-01", -719_528),
    (pa.date32(), "+10000-01-01", 2_932_897),
    (pa.date32(), "+5881580-07-11", 2**31 - 1),
    (pa.date32(), "-5877641-06-23", -(2**31)),
    (LOCAL, "2024-02-29 12:00:00", NOON),
    (LOCAL, "2024-02-29", NOON - 12 * HOUR),
    (LOCAL, "2024-02-29T12:00:00.5", NOON + 500_000),
    (INSTANT, "2024-02-29T12:00:00Z", NOON),
    (INSTANT, "2024-02-29 12:00:00", NOON),
    (INSTANT, "2024-02-29 17:30:00+05:30", NOON),
    (INSTANT, "2024-02-29 04:00-08", NOON),
    (INSTANT, "+294247-01-10 04:00:54.775807Z", 2**63 - 1),
    (INSTANT, "-290308-12-21 19:59:05.224192Z", -(2**63)),
    (pa.timestamp("us", "+05:30"), "2024-02-29 17:30:00", NOON),
    (pa.timestamp("us", "America/New_York"), "2024-02-29 07:00:00", NOON),
    (pa.timestamp("us", "America/New_York"), "2024-02-29 12:00:00Z", NOON),
]


@pytest.mark.parametrize(("type", "text", "value"), TAKEN, ids=[f"{i}-{case[0]}" for i, case in enumerate(TAKEN)])
def test_a_text_becomes_the_columns_value(type: pa.DataType, text: str, value: Any) -> None:
    assert one(type, text) == [value]
    assert one(type, "[null]", text) == [None, value]


def test_a_nan_and_a_decimal_are_keys() -> None:
    assert repr(one(pa.float64(), "NaN")) == "[nan]"
    assert [str(value) for value in one(pa.decimal128(10, 2), "1.5", "[2]", "-0.01")] == ["1.50", "2.00", "-0.01"]


REFUSED = [
    (pa.int32(), "x", "a whole number that fits, as in -7"),
    (pa.int32(), "99999999999", "a whole number that fits"),
    (pa.int32(), "null", r"or '\[null\]'"),
    (pa.int32(), "[true]", "a whole number that fits"),
    (pa.int32(), "[[1]]", "a whole number that fits"),
    (pa.int32(), "[1, 2]", "a whole number that fits"),
    (pa.bool_(), "maybe", "true or false"),
    (pa.bool_(), "[1]", "true or false"),
    (pa.float64(), "one", "a number that fits, NaN or inf"),
    (pa.decimal128(10, 2), "1.555", "a decimal number that fits"),
    (pa.decimal128(10, 2), "NaN", "a decimal number that fits"),
    (pa.duration("us"), "90", "a duration in seconds, as in PT90.5S"),
    (pa.duration("us"), "PT9223372036854.775808S", "a duration in seconds"),
    (pa.duration("us"), "P1D", "a duration in seconds"),
    (pa.date32(), "2024-02-30", "a date, as in 2024-02-29"),
    (pa.date32(), "+5881580-07-12", "a date"),
    (pa.date32(), "[5]", "a date"),
    (pa.date32(), "٢٠٢٤-01-01", "a date"),
    (LOCAL, "2024-02-29T12:00:00Z", "a time without a zone"),
    (LOCAL, "noon", "a time without a zone"),
    (INSTANT, "2024-02-29 25:00:00", "in the view's zone unless an offset is behind it"),
    (INSTANT, "+294247-01-10 04:00:54.775808Z", "in the view's zone"),
    (pa.timestamp("us", "America/New_York"), "+12024-01-01 00:00:00", "in the view's zone"),
]


@pytest.mark.parametrize(("type", "text", "said"), REFUSED, ids=[f"{i}-{case[0]}" for i, case in enumerate(REFUSED)])
def test_what_is_no_key_is_refused_with_the_forms_that_are(type: pa.DataType, text: str, said: str) -> None:
    with pytest.raises(KeyTypeError, match=said) as refused:
        one(type, text)
    assert f"view 'v': {text!r}"[:20] in str(refused.value) or "view 'v': " in str(refused.value)
    assert f"key column 'k', which is {type}" in str(refused.value)


def test_keys_of_several_columns_are_json_lists() -> None:
    schema = pa.schema([("i", pa.int32()), ("s", pa.string()), ("at", INSTANT)])
    keys = keys_of_texts("v", schema, ['[1, "a", "2024-02-29 12:00:00"]', "[null, null, null]"])
    assert [exact_list(column.combine_chunks()) for column in keys.columns] == [[1, None], [b"a", None], [NOON, None]]
    for text in ("1", "[1]", '{"i": 1}', '[1, "a", null', "[1, 2, 3, 4]"):
        with pytest.raises(KeyTypeError, match=r"give a JSON list of 3 values, of i, s, at: '\[1, \"a\", \"...\"\]'"):
            keys_of_texts("v", schema, [text])
    with pytest.raises(KeyTypeError, match="1 is no value of key column 's'"):
        keys_of_texts("v", schema, ["[1, 1, null]"])


@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/New_York", "Asia/Kolkata", "-03:30"])
def test_a_time_without_an_offset_is_of_the_views_zone(zone: str) -> None:
    for local in (datetime.datetime(2024, 3, 10, 2, 30), datetime.datetime(2024, 10, 27, 2, 30), datetime.datetime.min):
        (micros,) = one(pa.timestamp("us", zone), str(local))
        away = local.replace(tzinfo=zone_info(zone)).utcoffset()
        assert away is not None
        assert datetime.timedelta(microseconds=micros) == local - datetime.datetime(1970, 1, 1) - away


PAIR = pa.struct([("a", pa.int32()), ("b", pa.float32())])
NOT_HELD = [
    (pa.float64(), ["1e400", "-1e400", "1e-400", "9007199254740993", "12345678901234567890", "0.10000000000000000001"]),
    (pa.float32(), ["1e300", "1e-60", "0.12345678901", "16777217", "3.4028236e38"]),
    (pa.decimal128(38, 2), ["12345678901234567890.125", "1e36", "1e-3", "0x10", "1e1000000000"]),
    (pa.int64(), ["0x1F", "1.5", "1e2", "9223372036854775808", "-9223372036854775809", "1_0", "٥"]),
    (pa.int8(), ["128", "0x10"]),
    (LOCAL, ["2024-02-29 12:00:00.1234567"]),
    (pa.list_(pa.int32()), ["1", '["x"]', '{"a": 1}', "[1.5]", "[[[1]]]"]),
    (PAIR, ["1", "[1]", '{"a": 1}', '{"a": 1, "b": 0.12345678901}', '{"a": 1, "b": 1, "c": 1}']),
]


@pytest.mark.parametrize(("type", "texts"), NOT_HELD, ids=[str(case[0]) for case in NOT_HELD])
def test_a_text_that_the_column_cannot_hold_finds_no_other_key(type: pa.DataType, texts: list[str]) -> None:
    for text in texts:
        for given in (text, f"[{text}]", f'["{text}"]'):
            with pytest.raises(KeyTypeError, match="no value of key column 'k'"):
                one(type, given)


HELD = [
    (
        pa.float64(),
        [
            "0.1",
            "0.10000000000000001",
            "1e2",
            "9007199254740992",
            "5e-324",
            "5.960464477539063e-08",
            "1.7976931348623157e308",
        ],
    ),
    (pa.float32(), ["0.1", "0.10000000149011612", "39182990.0", "1e-45", "3.4028235e38"]),
]


@pytest.mark.parametrize(("type", "texts"), HELD, ids=[str(case[0]) for case in HELD])
def test_the_usual_texts_of_a_float_are_its_keys(type: pa.DataType, texts: list[str]) -> None:
    for text in texts:
        assert one(type, text, f"[{text}]") == [type.to_pandas_dtype()(text)] * 2


def test_arrays_and_structs_stand_in_the_list_of_the_key() -> None:
    assert one(pa.list_(pa.int32()), "[[1, null]]", "[null]", "[[]]") == [[1, None], None, []]
    found = one(pa.list_(PAIR), '[[{"b": 0.1, "a": 1}, null]]')
    assert found == [[{"a": 1, "b": np.float32(0.1)}, None]]
    with pytest.raises(KeyTypeError, match=r"'x' is no value of key column 'k', which is list<.*give a whole number"):
        one(pa.list_(pa.int32()), '[["x"]]')
    for text in ("[1, 2]", "[[1], [2]]", '{"a": 1, "b": 1}'):
        with pytest.raises(KeyTypeError, match="give a list within the JSON list of the key"):
            one(pa.list_(pa.int32()), text)
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(KeyTypeError, match="nested too deeply"):
        json_text([deep])


def test_a_number_in_json_keeps_its_digits() -> None:
    (value,) = one(pa.decimal128(38, 2), "[12345678901234567890.12]")
    assert str(value) == "12345678901234567890.12"
    text = '[12345678901234567890.120, 1e400, 7, true, null, [1.10, {"a": 1e400}]]'
    assert json_text(json.loads(text, parse_float=Numeral)) == text
