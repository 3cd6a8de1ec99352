"""Plain Python values: what reading gives, writing takes; nothing else is taken for something that it is not."""

import math
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from state_kit import MANY, TYPES, VALUES

from upriver.engine.operators.plain_rows import Misfit, OutputRows, PlainRows, PlainValues, RowReader, plain_values
from upriver.errors import ProtocolError, RowError

LISTS = pa.list_(pa.int32())
STRUCTS = pa.struct([("a", pa.string()), ("b", LISTS)])
MAPS = pa.map_(pa.string(), pa.int64())
MAPS_OF_LISTS, MAPS_OF_STRUCTS = pa.map_(LISTS, pa.string()), pa.map_(STRUCTS, pa.string())
NESTED: dict[pa.DataType, st.SearchStrategy[Any]] = {
    LISTS: st.lists(st.none() | st.integers(0, 9), max_size=3),
    STRUCTS: st.fixed_dictionaries({"a": st.none() | st.text(max_size=2), "b": st.none() | st.lists(st.just(1))}),
    MAPS: st.dictionaries(st.text(max_size=2), st.none() | st.integers(0, 9)),
}


def values_of(type: pa.DataType) -> PlainValues:
    values = plain_values(type)
    assert values is not None
    return values


@MANY
@given(st.data(), TYPES | st.sampled_from(list(NESTED)))
def test_what_is_written_comes_back_and_is_settled(data: st.DataObject, type: pa.DataType) -> None:
    given_values = data.draw(st.lists(st.none() | {**VALUES, **NESTED}[type], max_size=5))
    array = values_of(type).array(given_values)
    assert array.equals(pa.array(given_values, type)) or "nan" in repr(given_values)
    settled = [values_of(type).settled(value) for value in given_values]
    assert repr(settled) == repr(array.to_pylist(maps_as_pydicts="strict"))
    assert repr([values_of(type).settled(value) for value in settled]) == repr(settled)


WRAPPED = [
    (pa.int64(), np.int32(3), 3),
    (pa.int64(), pa.scalar(3, pa.int8()), 3),
    (pa.float64(), np.float64(0.5), 0.5),
    (pa.float64(), 2, 2.0),
    (pa.float32(), 0.1, float(np.float32(0.1))),
    (pa.bool_(), np.True_, True),
    (pa.string(), np.str_("a"), "a"),
    (pa.decimal128(5, 2), 3, Decimal("3.00")),
    (pa.decimal128(5, 2), Decimal("1.5"), Decimal("1.50")),
    (pa.timestamp("us"), np.datetime64("2020-01-01T00:00:00.000001"), datetime(2020, 1, 1, 0, 0, 0, 1)),
    (LISTS, np.array([1, 2]), [1, 2]),
    (LISTS, (1, None), [1, None]),
    (MAPS, {"a": np.int8(1)}, {"a": 1}),
    (MAPS, [("a", None)], {"a": None}),
    (MAPS_OF_LISTS, [([1], "x")], [([1], "x")]),
]


@pytest.mark.parametrize(("type", "value", "settled"), WRAPPED, ids=lambda case: repr(case)[:30])
def test_a_value_in_other_clothes_is_that_value(type: pa.DataType, value: Any, settled: Any) -> None:
    assert values_of(type).settled(value) == settled
    assert values_of(type).array([None, value]).equals(pa.array([None, settled], type))


MISFITS = [
    (pa.int64(), 1.0, "1.0 is not an int"),
    (pa.int64(), True, "True is not an int"),
    (pa.int64(), "1", "'1' is not an int"),
    (pa.int64(), 2**63, "does not fit int64"),
    (pa.int8(), 128, "128 does not fit int8"),
    (pa.int8(), np.int64(128), "128 does not fit int8"),
    (pa.bool_(), 1, "1 is not a bool"),
    (pa.float64(), "nan", "'nan' is not a float"),
    (pa.float64(), 2**60 + 1, "does not fit double"),
    (pa.float32(), 1e300, "1e\\+300 is not a float of 32 bits"),
    (pa.list_(pa.float32()), [0.5, -1e39], "each item a float of 32 bits"),
    (pa.timestamp("us"), pd.Timestamp("2024-01-01 00:00:00.123456789"), "is not a datetime without a time zone"),
    (pa.decimal128(5, 2), 1.5, "1.5 is not a Decimal"),
    (pa.decimal128(5, 2), Decimal("1.555"), "does not fit decimal"),
    (pa.decimal128(5, 2), Decimal("1234.5"), "does not fit decimal"),
    (pa.string(), b"a", "b'a' is not a str"),
    (pa.string(), "\ud800", "does not fit string"),
    (pa.binary(), "a", "'a' is not bytes"),
    (pa.date32(), datetime(2020, 1, 1), "is not a date"),
    (pa.timestamp("us"), date(2020, 1, 1), "is not a datetime without a time zone"),
    (pa.timestamp("us"), datetime(2020, 1, 1, tzinfo=UTC), "is not a datetime without a time zone"),
    (pa.timestamp("us", "UTC"), datetime(2020, 1, 1), "is not a datetime with a time zone"),
    (LISTS, [1.5], r"\[1.5\] is not a list, each item an int"),
    (LISTS, "12", "'12' is not a list"),
    (STRUCTS, {"a": "x"}, "is not a dict of a: a str, b: a list, each item an int"),
    (STRUCTS, {"a": "x", "b": [], "c": 1}, "is not a dict of"),
    (MAPS, {None: 1}, "is not a dict from a str to an int"),
    (MAPS, 7, "7 is not a dict from"),
    (MAPS, [("a", 1), ("a", 2)], "is not a dict from a str to an int, no key twice"),
    (MAPS_OF_LISTS, [([1], "x"), ((1,), "y")], "no key twice"),
    (MAPS_OF_STRUCTS, [({"a": "x", "b": [1]}, "x"), ({"b": [1], "a": "x"}, "y")], "no key twice"),
]


@pytest.mark.parametrize(("type", "value", "message"), MISFITS, ids=lambda case: repr(case)[:30])
def test_a_value_that_is_something_else_is_refused(type: pa.DataType, value: Any, message: str) -> None:
    with pytest.raises(Misfit, match=message):
        values_of(type).settled(value)
    with pytest.raises(Misfit, match=message) as refused:
        values_of(type).array([None, None, value, None])
    assert refused.value.row == 2


@pytest.mark.parametrize(
    "type",
    [pa.uint8(), pa.float16(), pa.timestamp("ns"), pa.time64("us"), pa.null(), pa.list_(pa.uint8()), pa.duration("us")],
)
def test_other_types_are_not_supported(type: pa.DataType) -> None:
    assert plain_values(type) is None
    with pytest.raises(ProtocolError, match="'a' has no plain values"):
        PlainRows(pa.schema([("a", type)]), "state")


SCHEMA = pa.schema([("n", pa.int64()), ("from", pa.string())])


def test_a_row_is_a_named_tuple_of_plain_values() -> None:
    reader = RowReader(pa.schema([("n", pa.int64()), ("from", pa.string()), ("b c", pa.float64())]), "input row")
    (row,) = reader.read(pa.record_batch([[1], ["x"], [math.inf]], schema=reader.schema))
    assert row == (1, "x", math.inf)
    assert (row.n, row._1, row._2) == (1, "x", math.inf)
    assert repr(row).startswith("InputRow(n=1")


def test_a_map_is_a_dict_at_any_depth() -> None:
    schema = pa.schema([("m", MAPS), ("l", pa.list_(pa.struct([("m", MAPS)]))), ("k", MAPS_OF_LISTS)])
    rows = pa.record_batch([[{"a": 1}], [[{"m": {"b": 2}}]], [[([1], "x")]]], schema=schema)
    (row,) = RowReader(schema, "row").read(rows)
    assert row == ({"a": 1}, [{"m": {"b": 2}}], [([1], "x")])


def test_a_map_with_a_key_twice_is_told_with_its_row() -> None:
    schema = pa.schema([("n", pa.int64()), ("m", MAPS)])
    rows = pa.record_batch([[1, 2], [{"a": 1}, [("a", 1), ("a", 2)]]], schema=schema)
    with pytest.raises(RowError, match=r"column m has a value that Python does not have, in the row \(n = 2, "):
        list(RowReader(schema, "row").read(rows))


def test_many_rows_are_read_in_order() -> None:
    schema = pa.schema([("n", pa.int64())])
    rows = pa.record_batch([np.arange(10_001)], schema=schema)
    assert [row.n for row in RowReader(schema, "row").read(rows)] == list(range(10_001))


@pytest.mark.parametrize("row", [(1, "x"), [1, "x"], {"from": "x", "n": 1}, (np.int8(1), "x")])
def test_a_row_may_be_given_in_several_ways(row: Any) -> None:
    rows = PlainRows(SCHEMA, "state")
    assert rows.settled(row) == (1, "x")
    assert rows.written([rows.fields(row)]).to_pylist() == [{"n": 1, "from": "x"}]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ((1,), r"the state \(1,\) has 1 values, not the 2 columns n, from"),
        ({"n": 1}, "does not have just the 2 columns n, from"),
        ({"n": 1, "from": "x", "to": "y"}, "does not have just"),
        (7, "7 is no state: that is a tuple or a dict of the 2 columns n, from"),
        ("ab", "'ab' is no state"),
        ((1, 2), "column from of the state: 2 is not a str, which string needs"),
    ],
)
def test_a_row_that_is_none_is_refused(row: Any, message: str) -> None:
    with pytest.raises(Misfit, match=message):
        PlainRows(SCHEMA, "state").settled(row)


def test_the_row_at_fault_is_told() -> None:
    with pytest.raises(Misfit, match=r"column n of the output row: 1\.5 is not an int") as refused:
        PlainRows(SCHEMA, "output row").written([(1, "x"), (None, "x"), (1.5, "x"), (2.5, "x")])
    assert refused.value.row == 2


def test_arrow_rows_are_fitted_to_the_schema() -> None:
    rows = PlainRows(SCHEMA, "output row")
    narrow = pa.table({"from": pa.chunked_array([["x"], ["y"]], pa.large_string()), "n": pa.array([1, 2], pa.int8())})
    fitted = rows.fitted(narrow)
    assert fitted.schema.equals(SCHEMA)
    assert fitted.to_pylist() == [{"n": 1, "from": "x"}, {"n": 2, "from": "y"}]
    assert rows.fitted(fitted).equals(fitted)
    assert rows.fitted(narrow.slice(0, 0)).num_rows == 0
    assert rows.fitted(pa.record_batch({"n": pa.nulls(1), "from": ["x"]})).to_pylist() == [{"n": None, "from": "x"}]


@pytest.mark.parametrize("type", [pa.int64(), pa.float64()])
def test_arrow_rows_stay_as_they_were_returned(type: pa.DataType) -> None:
    buffer = np.arange(3)
    given_rows = pa.record_batch({"n": pa.array(buffer)})
    rows = PlainRows(pa.schema([("n", type)]), "output row")
    fitted = [rows.fitted(given_rows), rows.fitted(pa.Table.from_batches([given_rows])), rows.fitted(given_rows[1:])]
    buffer[:] = 9
    assert [each.column(0).to_pylist() for each in fitted] == [[0, 1, 2], [0, 1, 2], [1, 2]]


def _changed(value: Any) -> None:
    """Change every part of a value that can be changed."""
    if isinstance(value, dict | list | tuple):
        for part in list(value.values() if isinstance(value, dict) else value):
            _changed(part)
    if isinstance(value, list | dict):
        value.clear()
    if isinstance(value, np.ndarray):
        value[...] = 9


@pytest.mark.parametrize(
    "row",
    [
        [1, "x", [1, 2], {"a": "s", "b": [3, None]}, {"p": 4}],
        (1, "x", [1, 2], {"a": "s", "b": [3, None]}, {"p": 4}),
        {"maps": {"p": 4}, "structs": {"a": "s", "b": [3, None]}, "lists": [1, 2], "from": "x", "n": 1},
        (np.array(1), "x", np.array([1, 2]), {"a": np.str_("s"), "b": [np.int8(3), None]}, [("p", np.array(4))]),
        (pa.scalar(1), np.str_("x"), (1, np.int64(2)), {"a": "s", "b": (3, None)}, [("p", 4)]),
    ],
)
def test_a_row_stays_as_it_was_returned(row: Any) -> None:
    schema = pa.schema([*SCHEMA, ("lists", LISTS), ("structs", STRUCTS), ("maps", MAPS)])
    output = OutputRows(PlainRows(schema, "output row"))
    output.add([row])
    _changed(row)
    expected = {"n": 1, "from": "x", "lists": [1, 2], "structs": {"a": "s", "b": [3, None]}, "maps": [("p", 4)]}
    assert output.written().to_pylist() == [expected]


def test_texts_of_numpy_keep_all_their_characters() -> None:
    texts = pa.list_(pa.string())
    assert values_of(texts).settled(np.array(["a", ""])) == ["a", ""]
    assert values_of(texts).settled([np.str_("a\0"), pa.scalar("b")]) == ["a\0", "b"]


def test_a_map_may_have_tuples_as_keys() -> None:
    by_lists = pa.map_(LISTS, pa.int64())
    for value in ({(1, 2): 3}, {(1, np.int64(2)): np.int8(3)}):
        output = OutputRows(PlainRows(pa.schema([("m", by_lists)]), "output row"))
        output.add([(value,)])
        assert output.written().to_pylist() == [{"m": [([1, 2], 3)]}]
        assert values_of(by_lists).settled(value) == [([1, 2], 3)]


def _endless() -> list[list[Any]]:
    in_list: list[Any] = []
    in_list.append(in_list)
    in_dict: list[Any] = [{}]
    in_dict[0]["a"] = in_dict
    in_array: list[Any] = [np.empty(1, object)]
    in_array[0][0] = in_array
    return [in_list, in_dict, in_array]


@pytest.mark.parametrize("value", _endless(), ids=["list", "dict", "array"])
def test_a_value_that_holds_itself_is_refused(value: Any) -> None:
    rows = PlainRows(pa.schema([("lists", LISTS)]), "output row")
    for take in (OutputRows(rows).add, lambda given_rows: rows.settled(given_rows[0])):
        with pytest.raises(Misfit, match="holds itself, or has too many levels of values within values"):
            take([(value,)])


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([(1, "x")], "is no pyarrow.RecordBatch or Table of the 2 columns n, from"),
        (pa.record_batch({"n": [1]}), "the columns n are not just the 2 columns n, from"),
        (pa.record_batch({"n": ["1"], "from": ["x"]}), "column n of the output row is string, and declared as int64"),
        (pa.record_batch({"n": [1.0], "from": ["x"]}), "column n of the output row is double, and declared as int64"),
        (pa.record_batch({"n": [1], "from": [b"x"]}), "is binary, and declared as string"),
    ],
)
def test_arrow_rows_that_do_not_fit_are_refused(rows: Any, message: str) -> None:
    with pytest.raises(Misfit, match=message):
        PlainRows(SCHEMA, "output row").fitted(rows)


@pytest.mark.parametrize(
    ("type", "values"),
    [
        (pa.int8(), [1, 300]),
        (pa.float64(), [1, 2**60 + 1]),
        (pa.decimal128(5, 2), [Decimal("1.500"), Decimal("1.234")]),
        (pa.decimal128(5, 2), [Decimal("1.500"), Decimal("1234.500")]),
    ],
    ids=str,
)
def test_no_value_is_lost_in_a_cast(type: pa.DataType, values: list[Any]) -> None:
    rows = PlainRows(pa.schema([("x", type)]), "state")
    assert rows.fitted(pa.record_batch([values[:1]], ["x"])).to_pylist() == [{"x": values[0]}]
    with pytest.raises(Misfit, match="column x of the state does not fit"):
        rows.fitted(pa.record_batch([values], ["x"]))


def test_an_instant_is_no_wall_clock() -> None:
    zoned = PlainRows(pa.schema([("at", pa.timestamp("us", "UTC"))]), "state")
    elsewhere = pa.record_batch([pa.array([1], pa.timestamp("us", "Asia/Tokyo"))], ["at"])
    assert zoned.fitted(elsewhere).column("at").cast(pa.int64()).to_pylist() == [1]
    with pytest.raises(Misfit, match="declared as"):
        zoned.fitted(pa.record_batch([pa.array([1], pa.timestamp("us"))], ["at"]))
