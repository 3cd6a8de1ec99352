"""Keys that people give: what is taken becomes exactly the column's values, and what is not names view and column."""

import datetime
import math
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import pyarrow as pa
import pytest
from awkward_kit import NANS
from hypothesis import given
from hypothesis import strategies as st
from rows_kit import rows_of

from upriver.client.keys import distinct_keys, key_batch
from upriver.errors import KeyTypeError
from upriver.hashing import hash64

NOON = datetime.datetime(2013, 1, 1, 12, 0, 0, 1)
PLUS_2 = datetime.timezone(datetime.timedelta(hours=2))
INSTANT = pa.timestamp("us", "UTC")
LOCAL = pa.timestamp("us")


def one(type: pa.DataType, keys: Any) -> list[Any]:
    """Keys of a view with one key column, as that column's values."""
    batch = key_batch("planes", pa.schema([("k", type)]), keys)
    assert batch.schema == pa.schema([("k", type)])
    values: list[Any] = batch.column(0).to_pylist()
    return values


TAKEN = [
    (pa.string(), ["N14228", None, "ü", np.str_("x")], ["N14228", None, "ü", "x"]),
    (pa.int64(), [1, None, -(2**63), 2**63 - 1, np.int8(3)], [1, None, -(2**63), 2**63 - 1, 3]),
    (pa.int8(), [-128, 127], [-128, 127]),
    (pa.bool_(), [True, np.False_, None], [True, False, None]),
    (pa.float64(), [1.5, 2, 2**53, np.float32(0.5), None], [1.5, 2.0, 2.0**53, 0.5, None]),
    (pa.float32(), [0.5, 3], [0.5, 3.0]),
    (pa.decimal128(10, 2), [Decimal("1.50"), Decimal("1.5"), 3], [Decimal("1.50"), Decimal("1.50"), Decimal("3.00")]),
    (pa.binary(), [b"\x00", bytearray(b"\x01")], [b"\x00", b"\x01"]),
    (pa.date32(), [NOON.date(), None], [NOON.date(), None]),
    (LOCAL, [NOON, None], [NOON, None]),
    (INSTANT, [NOON.replace(tzinfo=PLUS_2), None], [NOON.replace(hour=10, tzinfo=datetime.UTC), None]),
    (INSTANT, [NOON], [NOON.astimezone(datetime.UTC)]),
    (pa.string(), [None, None], [None, None]),
    (pa.string(), (), []),
    (pa.string(), {"a": 1}.keys(), ["a"]),
    (pa.int32(), range(3), [0, 1, 2]),
    (pa.int64(), np.array([1, 2], np.int16), [1, 2]),
    (pa.string(), np.array(["a", None], object), ["a", None]),
    (pa.string(), [{"k": "a"}, {"k": None}], ["a", None]),
    (pa.string(), pa.array(["a", "b"], pa.large_string()), ["a", "b"]),
    (pa.string(), pa.array(["a", "b", "a"]).dictionary_encode(), ["a", "b", "a"]),
    (pa.string(), pa.chunked_array([["a"], ["b"]]), ["a", "b"]),
    (pa.string(), pa.chunked_array([], pa.string()), []),
    (pa.string(), pa.nulls(2), [None, None]),
    (pa.int8(), pa.array([1, None], pa.int64()), [1, None]),
    (pa.decimal128(10, 2), pa.array([1, 99_999_999]), [Decimal("1.00"), Decimal("99999999.00")]),
    (pa.decimal128(10, 2), pa.array([Decimal("1.5")]), [Decimal("1.50")]),
    (pa.float64(), pa.array([1, 2**53]), [1.0, 2.0**53]),
    (LOCAL, pa.array([NOON], pa.timestamp("us")), [NOON]),
    (LOCAL, pa.array([NOON], pa.timestamp("us")).cast(pa.timestamp("ns")), [NOON]),
    (
        INSTANT,
        pa.array([1], pa.timestamp("us", "Europe/Berlin")),
        [datetime.datetime(1970, 1, 1, 0, 0, 0, 1, datetime.UTC)],
    ),
    (INSTANT, pa.nulls(1), [None]),
    (pa.duration("us"), [datetime.timedelta(days=1), None], [datetime.timedelta(days=1), None]),
    (pa.string(), pa.table({"k": ["a"]}), ["a"]),
    (pa.string(), pa.RecordBatch.from_pydict({"k": ["a"]}), ["a"]),
]


@pytest.mark.parametrize(("type", "keys", "values"), TAKEN, ids=[f"{i}-{case[0]}" for i, case in enumerate(TAKEN)])
def test_keys_become_the_column_s_values(type: pa.DataType, keys: Any, values: list[Any]) -> None:
    assert one(type, keys) == values


REFUSED = [
    (pa.int64(), ["1"], "'1' of type str"),
    (pa.int64(), [1, None, 1.0], "1.0 of type float"),
    (pa.int64(), [True], "True of type bool"),
    (pa.int64(), [Decimal(1)], r"Decimal\('1'\) of type Decimal"),
    (pa.int64(), [2**63], "does not fit"),
    (pa.int8(), [128], "does not fit"),
    (pa.int64(), [b"1"], "b'1' of type bytes"),
    (pa.string(), [1], "1 of type int"),
    (pa.string(), [b"a"], "b'a' of type bytes"),
    (pa.string(), [("a",)], r"\('a',\) of type tuple"),
    (pa.string(), ["\ud800"], "does not fit"),
    (pa.string(), ["x" * 100, 1], "1 of type int"),
    (pa.binary(), ["a"], "'a' of type str"),
    (pa.bool_(), [1], "1 of type int"),
    (pa.float64(), [2**53 + 1], "does not fit"),
    (pa.float64(), ["1"], "'1' of type str"),
    (pa.float64(), [False], "False of type bool"),
    (pa.decimal128(10, 2), [1.5], "1.5 of type float"),
    (pa.decimal128(10, 2), [Decimal("1.555")], "does not fit"),
    (pa.decimal128(10, 2), [10**9], "does not fit"),
    (pa.date32(), [NOON], "datetime"),
    (pa.date32(), ["2013-01-01"], "'2013-01-01' of type str"),
    (LOCAL, [NOON.date()], "date"),
    (LOCAL, [NOON.replace(tzinfo=PLUS_2)], "has a time zone"),
    (INSTANT, ["2013-01-01"], "of type str"),
    (pa.int64(), pa.array([1.0]), "an array of type double"),
    (pa.int64(), pa.array([True]), "an array of type bool"),
    (pa.int8(), pa.array([128]), "does not fit"),
    (pa.string(), pa.array([1]), "an array of type int64"),
    (pa.decimal128(10, 2), pa.array([10**9]), "does not fit"),
    (pa.float64(), pa.array([2**53 + 1]), "does not fit"),
    (LOCAL, pa.array([NOON], INSTANT), r"an array of type timestamp\[us, tz=UTC\]"),
    (INSTANT, pa.array([NOON], LOCAL), r"an array of type timestamp\[us\]"),
    (LOCAL, pa.array([1], pa.timestamp("ns")), "does not fit"),
]


@pytest.mark.parametrize(("type", "keys", "given"), REFUSED, ids=[f"{i}-{case[0]}" for i, case in enumerate(REFUSED)])
def test_what_is_no_key_is_refused_by_name(type: pa.DataType, keys: Any, given: str) -> None:
    with pytest.raises(KeyTypeError, match=given) as refusal:
        one(type, keys)
    assert str(refusal.value).startswith(f"view 'planes': key column 'k' is of type {type}; given was ")


@pytest.mark.parametrize("keys", ["N14228", b"N14228", 7, None, {"k": "a"}, object()])
def test_one_value_is_no_list_of_keys(keys: Any) -> None:
    with pytest.raises(KeyTypeError, match="where a list of keys belongs"):
        one(pa.string(), keys)


ROUTE = pa.schema([("origin", pa.string()), ("distance", pa.int32())])


def rows(keys: Any) -> list[tuple[Any, ...]]:
    batch = key_batch("routes", ROUTE, keys)
    assert batch.schema == ROUTE
    return rows_of(batch)


def pairs() -> Iterator[tuple[str, int]]:
    yield "EWR", 1


@pytest.mark.parametrize(
    ("keys", "values"),
    [
        ([("EWR", 1), ("JFK", None), (None, None)], [("EWR", 1), ("JFK", None), (None, None)]),
        ([["EWR", 1]], [("EWR", 1)]),
        ([{"distance": 1, "origin": "EWR"}], [("EWR", 1)]),
        (pairs(), [("EWR", 1)]),
        ([], []),
        (pa.table({"distance": [1, 2], "origin": ["EWR", "JFK"]}), [("EWR", 1), ("JFK", 2)]),
        (pa.table({"origin": pa.array([], pa.string()), "distance": pa.array([], pa.int64())}), []),
    ],
)
def test_keys_of_several_columns(keys: Any, values: list[tuple[Any, ...]]) -> None:
    assert rows(keys) == values


@pytest.mark.parametrize(
    ("keys", "given"),
    [
        (["EWR"], "a str, where a tuple belongs"),
        ([None], "a NoneType, where a tuple belongs"),
        ([("EWR", 1), ("JFK",)], "a tuple of 1"),
        ([("EWR", 1, 2)], "a tuple of 3"),
        ([{"origin": "EWR"}], "a dict of origin"),
        ([{"origin": "EWR", "distance": 1, "x": 1}], "a dict of origin, distance, x"),
        (pa.array(["EWR"]), "one array"),
        (pd.DataFrame({"origin": ["EWR"], "distance": [1]}), "one DataFrame, where a list of keys belongs"),
        (pa.table({"origin": ["EWR"]}), "a table with the columns origin"),
        (pa.table({"origin": ["EWR"], "miles": [1]}), "a table with the columns origin, miles"),
    ],
)
def test_keys_of_another_width_are_refused(keys: Any, given: str) -> None:
    with pytest.raises(KeyTypeError) as refusal:
        rows(keys)
    assert str(refusal.value) == f"view 'routes': its key is (origin string, distance int32); given was {given}"


def test_in_keys_of_several_columns_the_column_is_named() -> None:
    with pytest.raises(KeyTypeError, match="key column 'distance' is of type int32; given was '1' of type str"):
        rows([("EWR", 1), ("JFK", "1")])


def test_all_zeros_are_one_key_and_so_are_all_nans() -> None:
    (zero,) = one(pa.float64(), [-0.0])
    assert str(zero) == "0.0"
    batch = key_batch("v", pa.schema([("k", pa.float64())]), [0.0, -0.0, *NANS.tolist(), 1.5])
    assert repr(distinct_keys(batch, hash64(batch.columns))[0].column(0).to_pylist()) == "[0.0, nan, 1.5]"


@given(st.lists(st.tuples(st.sampled_from(["EWR", "JFK", None]), st.sampled_from([1, 2, None]))))
def test_each_key_is_kept_once_in_order_of_first_appearance(keys: list[tuple[Any, ...]]) -> None:
    batch = key_batch("routes", ROUTE, keys)
    hashes = hash64(batch.columns, batch.num_rows)
    kept, kept_hashes = distinct_keys(batch, hashes)
    assert rows_of(kept) == list(dict.fromkeys(keys))
    assert kept_hashes.tolist() == hash64(kept.columns, kept.num_rows).tolist()


TYPES = [
    *(pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.bool_(), pa.string(), pa.binary()),
    *(pa.decimal128(38, 0), pa.decimal128(5, 2), pa.date32(), LOCAL, INSTANT, pa.timestamp("us", "+05:30")),
]
FIRST, LAST = datetime.datetime.min, datetime.datetime.max
AHEAD, BEHIND = (datetime.timezone(datetime.timedelta(hours=hours)) for hours in (14, -12))
VALUES = [
    *(None, 0, -1, 127, -128, 2**31, 2**63 - 1, -(2**63), 2**63, 10**40, True, 0.0, -0.0, 1e308, 5e-324),
    *(float("nan"), float("inf"), -float("inf"), Decimal("NaN"), Decimal("1e40"), Decimal("0.001"), "", "a", "\ud800"),
    *(b"", b"\xff", datetime.date.min, datetime.date.max, FIRST, LAST, FIRST.replace(tzinfo=AHEAD)),
    *(LAST.replace(tzinfo=BEHIND), FIRST.replace(tzinfo=datetime.UTC), LAST.replace(tzinfo=datetime.UTC)),
    *((), [], {}, object(), 1j, np.float32("nan"), np.datetime64("2024-01-01"), np.timedelta64(1), pa.scalar(1)),
]


def refusal(type: pa.DataType, keys: Any) -> str | None:
    """What is said of keys that are refused; ``None`` for those that are taken."""
    try:
        batch = key_batch("planes", pa.schema([("k", type)]), keys)
    except KeyTypeError as refused:
        return str(refused)
    assert batch.column(0).type == type
    return None


@pytest.mark.parametrize("type", TYPES, ids=str)
def test_any_value_is_a_key_or_is_refused_by_name(type: pa.DataType) -> None:
    for value in VALUES:
        for keys in ([value], [(value,)], [{"k": value}], [None, value]):
            said = refusal(type, keys)
            assert said is None or said.startswith("view 'planes': ")
            assert len(said or "") < 400
    assert refusal(type, [None]) is None


def test_times_at_the_ends_are_keys_and_local_ones_are_refused_with_the_way_out() -> None:
    ends = [FIRST.replace(tzinfo=AHEAD), LAST.replace(tzinfo=BEHIND), LAST.replace(tzinfo=datetime.UTC)]
    batch = key_batch("planes", pa.schema([("k", INSTANT)]), ends)
    hours = 3_600_000_000
    last = 253_402_300_799_999_999
    first = -62_135_596_800_000_000
    assert batch.column(0).view(pa.int64()).to_pylist() == [first - 14 * hours, last + 12 * hours, last]
    assert one(LOCAL, [FIRST, LAST]) == [FIRST, LAST]
    with pytest.raises(KeyTypeError, match=r"which is no time of the local zone: give one with a time zone \(tzinfo\)"):
        one(INSTANT, [FIRST])


def test_two_keys_with_one_hash_are_both_kept() -> None:
    batch = key_batch("routes", ROUTE, [("EWR", 1), ("JFK", 2), ("EWR", 1)])
    kept, _ = distinct_keys(batch, np.zeros(3, np.uint64))
    assert kept.column(0).to_pylist() == ["EWR", "JFK"]


NESTED = pa.struct([pa.field("a", pa.int32()), pa.field("b", pa.float64())])


def test_keys_of_structs_and_arrays_are_dicts_and_lists() -> None:
    schema = pa.schema([("st", NESTED), ("xs", pa.list_(pa.int32()))])
    keys = [({"a": 1, "b": -0.0}, [1, None]), (None, []), ({"a": 1, "b": 0.0}, [1, None])]
    batch = key_batch("v", schema, keys)
    assert repr(batch.column("st").to_pylist()) == repr([{"a": 1, "b": 0.0}, None, {"a": 1, "b": 0.0}])
    distinct, hashes = distinct_keys(batch, hash64(batch.columns))
    assert distinct.num_rows == len(hashes) == 2
    with pytest.raises(KeyTypeError, match="other fields"):
        key_batch("v", schema, [({"a": 1}, [])])
    with pytest.raises(KeyTypeError, match="of type int"):
        key_batch("v", schema, [(1, [])])


ONE = pa.list_(pa.field("element", pa.int32()))
F32 = pa.struct([pa.field("f", pa.float32())])
DAY = datetime.date(2026, 3, 8)
NANOS = pd.Timestamp("2026-03-08T12:00:00.123456789")

NOT_HELD = [
    (ONE, [[1.5]], "1.5 of type float, where int32 belongs"),
    (ONE, [[1.0]], "1.0 of type float"),
    (ONE, [[True]], "True of type bool"),
    (ONE, [[2**31]], "does not fit"),
    (ONE, pa.array([[1.5]]), "an array of type double, where int32 belongs"),
    (ONE, pa.array([[2**31]]), "does not fit"),
    (pa.list_(pa.bool_()), [[1]], "1 of type int"),
    (pa.list_(pa.binary()), [["a"]], "'a' of type str"),
    (pa.list_(pa.timestamp("us")), [[NOON.replace(tzinfo=PLUS_2)]], "has a time zone"),
    (pa.list_(pa.timestamp("us")), pa.array([[NOON]], pa.list_(INSTANT)), "where timestamp"),
    (pa.list_(INSTANT), pa.array([[NOON]], pa.list_(LOCAL)), "where timestamp"),
    (pa.list_(pa.timestamp("us")), [[NANOS]], "not a whole microsecond"),
    (pa.list_(INSTANT), [[NANOS]], "not a whole microsecond"),
    (pa.list_(pa.date32()), [[NOON]], "datetime"),
    (pa.list_(pa.decimal128(10, 2)), [[Decimal("1.505")]], "does not fit"),
    (pa.list_(pa.decimal128(10, 2)), [[1.5]], "1.5 of type float"),
    (pa.list_(pa.list_(pa.int8())), [[[1], None, [1000]]], "does not fit"),
    (F32, [{"f": 1e300}], "does not fit exactly"),
    (F32, [{"k": {"f": 0.1}}], "does not fit exactly"),
    (F32, pa.array([{"f": 1e300}]), "does not fit exactly"),
    (F32, [{"g": 1.0}], "other fields"),
    (F32, [{"f": 1.0, "g": 1.0}], "other fields"),
    (F32, pa.array([{"g": 1.0}]), "other fields"),
    (pa.float32(), [1e300], "does not fit exactly"),
    (pa.float32(), [0.1], "does not fit exactly"),
    (pa.float32(), [2**24 + 1], "does not fit exactly"),
    (pa.float32(), pa.array([1e300]), "does not fit exactly"),
    (pa.float32(), np.array([0.1]), "does not fit exactly"),
    (pa.float32(), pa.array([2**24 + 1]), "does not fit"),
    (pa.float64(), [10**400], "does not fit"),
    (pa.float64(), [np.timedelta64(1)], "of type timedelta64"),
    (pa.int64(), [np.timedelta64(1)], "of type timedelta64"),
    (pa.int64(), np.array([1], "m8[s]"), "an array of type duration"),
    (LOCAL, [NANOS], "not a whole microsecond"),
    (LOCAL, pa.array([NANOS], pa.timestamp("ns")), "does not fit"),
    (LOCAL, np.array(["2026-03-08T12:00:00.123456789"], "M8[ns]"), "does not fit"),
    (INSTANT, [NANOS.tz_localize("UTC")], "not a whole microsecond"),
    (pa.duration("us"), [pd.Timedelta(1, "ns")], "not a whole microsecond"),
    (pa.duration("us"), [datetime.timedelta.max], "does not fit"),
    (pa.date32(), pa.array([NOON]), "an array of type timestamp"),
    (pa.date32(), pa.array([1], pa.date64()), "does not fit"),
    (pa.decimal128(10, 2), pa.array([Decimal("1.505")]), "does not fit"),
    (pa.decimal128(10, 2), pa.array([1.5]), "an array of type double"),
    (pa.bool_(), pa.array([1]), "an array of type int64"),
    (pa.binary(), pa.array(["a"]), "an array of type string"),
]


@pytest.mark.parametrize(("type", "keys", "given"), NOT_HELD, ids=[f"{i}-{case[0]}" for i, case in enumerate(NOT_HELD)])
def test_a_key_that_the_column_cannot_hold_finds_no_other_key(type: pa.DataType, keys: Any, given: str) -> None:
    with pytest.raises(KeyTypeError, match=given) as refusal:
        one(type, keys)
    assert str(refusal.value).startswith(f"view 'planes': key column 'k' is of type {type}; given was ")


@pytest.mark.parametrize(
    ("type", "keys", "values"),
    [
        (ONE, [[1, None], (2,), [], None, [np.int8(3)]], [[1, None], [2], [], None, [3]]),
        (ONE, pa.array([[1, None], None, []], pa.large_list(pa.int64())), [[1, None], None, []]),
        (ONE, pa.array([[9, 9], [1, 2], None], pa.list_(pa.int8(), 2)).slice(1), [[1, 2], None]),
        (F32, [{"f": 0.5}, None, {"k": {"f": None}}, {"k": None}], [{"f": 0.5}, None, {"f": None}, None]),
        (F32, pa.array([{"f": 0.5}, None]), [{"f": 0.5}, None]),
        (pa.list_(F32), [[{"f": 0.5}, None], None], [[{"f": 0.5}, None], None]),
        (pa.float32(), [np.float32(0.1), math.inf, 2**24], [float(np.float32(0.1)), math.inf, 2.0**24]),
        (pa.float64(), [2**60, -(2**70), np.float16(0.5)], [2.0**60, -(2.0**70), 0.5]),
        (pa.list_(pa.timestamp("us")), [[NOON]], [[NOON]]),
        (pa.list_(INSTANT), [[NOON.replace(tzinfo=PLUS_2)]], [[NOON.replace(hour=10, tzinfo=datetime.UTC)]]),
        (pa.list_(INSTANT), [[NOON]], [[NOON.astimezone(datetime.UTC)]]),
        (pa.list_(pa.date32()), [[DAY, None]], [[DAY, None]]),
    ],
    ids=str,
)
def test_parts_of_keys_are_taken_by_the_same_rule(type: pa.DataType, keys: Any, values: list[Any]) -> None:
    assert one(type, keys) == values


def test_a_dict_of_another_column_is_no_key() -> None:
    with pytest.raises(KeyTypeError, match="a dict of x"):
        one(pa.int64(), [None, {"x": 1}])


@pytest.mark.parametrize("keys", [np.array([1j]), np.array(["2020"], "M8[Y]"), np.array([(1,)], [("a", "i4")])])
def test_an_array_of_numpy_that_arrow_does_not_know_is_refused(keys: Any) -> None:
    with pytest.raises(KeyTypeError, match="an array of numpy's"):
        one(pa.int64(), keys)
