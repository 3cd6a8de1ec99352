"""A user's function over columns: what it takes and gives in each form, and what is said when it fails."""

import asyncio
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from user_function_kit import user_function

from upriver.engine.expressions import Evaluator
from upriver.engine.user_functions import column_function
from upriver.errors import DeclarationError, RowError
from upriver.plan.plan import FunctionForm, Projection, UserFunction

NOON = datetime(2024, 5, 1, 12, tzinfo=UTC)
INSTANT = pa.timestamp("us", tz="Europe/Paris")


def sum_of(a: Any, b: Any) -> Any:
    return None if a is None or b is None else a + b


@pytest.mark.parametrize(
    ("form", "function"),
    [
        (FunctionForm.ROW, sum_of),
        (FunctionForm.ARROW, lambda a, b: pc.add(a, b)),
        (FunctionForm.PANDAS, lambda a, b: a + b),
    ],
)
def test_each_form_gives_a_value_for_each_row_of_a_batch(form: FunctionForm, function: Callable[..., Any]) -> None:
    long = pa.int64()
    declared = user_function("total", function, [long, long], long, form)
    evaluator = Evaluator()
    evaluator.define([declared])
    evaluator.define([declared])
    rows = pa.record_batch({"a": pa.array([*range(5_000), None], long), "b": pa.array([1] * 5_001, long)})
    made = evaluator.project(
        rows, Projection((f'{declared.sql_name}("a", {declared.sql_name}("b", "b"))',), pa.schema([("s", long)]))
    )
    assert made.column(0).to_pylist() == [*range(2, 5_002), None]


ONE_LIST = [0]
ONE_ARRAY = np.zeros(2, np.int64)


def in_one_list(a: int) -> list[int]:
    ONE_LIST[0] = a
    return ONE_LIST


def in_one_array(a: pa.Array) -> pa.Array:
    ONE_ARRAY[:] = a.to_numpy()
    return pa.array(ONE_ARRAY)


def test_values_stay_as_they_were_returned() -> None:
    long, lists = pa.int64(), pa.list_(pa.int64())
    by_row = column_function(user_function("f", in_one_list, [long], lists))
    assert by_row(pa.array([1, 2])).to_pylist() == [[1], [2]]
    by_arrow = column_function(user_function("f", in_one_array, [long], long, FunctionForm.ARROW))
    first, second = by_arrow(pa.array([1, 2])), by_arrow(pa.array([3, 4]))
    assert (first.to_pylist(), second.to_pylist()) == ([1, 2], [3, 4])


def test_an_instant_comes_and_goes_with_its_zone() -> None:
    declared = user_function("later", lambda at: at.replace(hour=at.hour + 1), [INSTANT], INSTANT)
    evaluator = Evaluator()
    evaluator.define([declared])
    rows = pa.record_batch({"at": pa.array([NOON], INSTANT)})
    made = evaluator.project(rows, Projection((f'{declared.sql_name}("at")',), pa.schema([("at", INSTANT)])))
    assert made.column(0).to_pylist() == [NOON.replace(hour=13)]


@pytest.mark.parametrize(
    ("form", "function", "said"),
    [
        (FunctionForm.ROW, lambda v: 1 // v, "f() raised ZeroDivisionError"),
        (FunctionForm.ROW, lambda v: "text", "returned what is not declared"),
        (FunctionForm.ARROW, lambda v: v.slice(1), "1 values for 2 rows"),
        (FunctionForm.ARROW, lambda v: [1, 2], "list, which is no Arrow array"),
        (FunctionForm.ARROW, lambda v: pa.array(["a", "b"]), "returned what is not declared"),
        (FunctionForm.PANDAS, lambda v: 1, "int, which is no Series"),
        (FunctionForm.PANDAS, lambda v: pd.Series(["a", "b"]), "returned what is not declared"),
        (FunctionForm.ROW, lambda v: exec("raise SystemExit"), "f() raised SystemExit"),
        (
            FunctionForm.ROW,
            lambda v: exec("raise asyncio.CancelledError", {"asyncio": asyncio}),
            "f() raised CancelledError",
        ),
    ],
)
def test_a_function_that_fails_is_named(form: FunctionForm, function: Callable[..., Any], said: str) -> None:
    call = column_function(user_function("f", function, [pa.int64()], pa.int64(), form))
    with pytest.raises(RowError) as raised:
        call(pa.array([0, 1], pa.int64()))
    assert said in str(raised.value)


NANOS = pd.Timestamp("2024-01-01 00:00:00.123456789")
DAY = pd.Timestamp("2024-01-01")
BEYOND = [
    (FunctionForm.ROW, pa.float32(), 1e300),
    (FunctionForm.ROW, pa.list_(pa.float32()), [-1e39]),
    (FunctionForm.ROW, pa.timestamp("us"), NANOS),
    (FunctionForm.ARROW, pa.float32(), pa.array([1e300])),
    (FunctionForm.ARROW, pa.timestamp("us"), pa.array([NANOS.value], pa.timestamp("ns"))),
    (FunctionForm.ARROW, pa.float64(), pa.array([2**53 + 1])),
    (FunctionForm.ARROW, pa.decimal128(5, 2), pa.array([Decimal("1.555")])),
    (FunctionForm.PANDAS, pa.float32(), pd.Series([1e300])),
    (FunctionForm.PANDAS, pa.list_(pa.float32()), pd.Series([[1e300]])),
    (FunctionForm.PANDAS, pa.timestamp("us"), pd.Series([NANOS])),
    (FunctionForm.PANDAS, pa.timestamp("us"), pd.Series([NANOS], dtype=object)),
    (FunctionForm.PANDAS, pa.timestamp("us"), pd.Series([DAY.tz_localize("UTC")])),
    (FunctionForm.PANDAS, pa.timestamp("us", "UTC"), pd.Series([DAY])),
    (FunctionForm.PANDAS, pa.date32(), pd.Series([NANOS])),
    (FunctionForm.PANDAS, pa.int32(), pd.Series([2**40])),
    (FunctionForm.PANDAS, pa.int32(), pd.Series([1.5])),
    (FunctionForm.PANDAS, pa.int32(), pd.Series([1.5], dtype=object)),
    (FunctionForm.PANDAS, pa.int32(), pd.Series([True])),
    (FunctionForm.PANDAS, pa.bool_(), pd.Series([1.5])),
    (FunctionForm.PANDAS, pa.decimal128(5, 2), pd.Series([Decimal("1.555")])),
    (FunctionForm.PANDAS, pa.struct([("a", pa.int32())]), pd.Series([{"a": 1, "b": 2}])),
]


@pytest.mark.parametrize(("form", "returns", "value"), BEYOND)
def test_a_value_that_the_type_cannot_hold_is_an_error(form: FunctionForm, returns: pa.DataType, value: Any) -> None:
    call = column_function(user_function("f", lambda v: value, [pa.int64()], returns, form))
    with pytest.raises(RowError, match="returned what is not declared"):
        call(pa.array([0], pa.int64()))


HELD = [
    (pa.int32(), pd.Series([1.0, None]), [1, None]),
    (pa.int32(), pd.Series([1, None], dtype="Int64"), [1, None]),
    (pa.date32(), pd.Series([DAY, None]), [date(2024, 1, 1), None]),
    (pa.string(), pd.Series(["a", None], dtype="category"), ["a", None]),
    (pa.float32(), pd.Series([float("inf"), 0.5]), [float("inf"), 0.5]),
    (pa.float64(), pd.Series([1, 2]), [1.0, 2.0]),
    (pa.list_(pa.int32()), pd.Series([np.array([1]), None]), [[1], None]),
    (pa.struct([("a", pa.int32())]), pd.Series([{"a": np.int64(1)}, None]), [{"a": 1}, None]),
    (pa.timestamp("us", "UTC"), pd.Series([DAY.tz_localize("UTC")] * 2), [datetime(2024, 1, 1, tzinfo=UTC)] * 2),
]


@pytest.mark.parametrize(("returns", "series", "values"), HELD)
def test_what_pandas_gives_in_another_type_is_taken_if_no_value_is_lost(
    returns: pa.DataType, series: Any, values: list[Any]
) -> None:
    call = column_function(user_function("f", lambda v: series, [pa.int64()], returns, FunctionForm.PANDAS))
    assert call(pa.array([0, 1], pa.int64())).to_pylist() == values


def test_the_error_of_an_expression_has_the_row() -> None:
    declared = user_function("inverse", lambda v: 1 // v, [pa.int64()], pa.int64())
    evaluator = Evaluator()
    evaluator.define([declared])
    rows = pa.record_batch({"v": pa.array([1, 0, 2], pa.int64())})
    with pytest.raises(RowError, match=r"inverse\(\) raised ZeroDivisionError.*v = 0"):
        evaluator.project(rows, Projection((f'{declared.sql_name}("v")',), pa.schema([("i", pa.int64())])))


def test_a_function_that_cannot_be_loaded_is_named() -> None:
    broken = UserFunction("f", (pa.int64(),), pa.int64(), FunctionForm.ROW, b"nothing")
    with pytest.raises(DeclarationError, match=r"the function f\(\) cannot be loaded"):
        Evaluator().define([broken])
