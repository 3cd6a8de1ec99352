"""A user's function over columns: what it takes and gives in each form, and what is said when it fails."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

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
        (FunctionForm.PANDAS, lambda v: pd.Series(["a", "b"]), "f() raised"),
        (FunctionForm.ROW, lambda v: exec("raise SystemExit"), "f() raised SystemExit"),
    ],
)
def test_a_function_that_fails_is_named(form: FunctionForm, function: Callable[..., Any], said: str) -> None:
    call = column_function(user_function("f", function, [pa.int64()], pa.int64(), form))
    with pytest.raises(RowError) as raised:
        call(pa.array([0, 1], pa.int64()))
    assert said in str(raised.value)


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
