"""Each function of the table over awkward rows gives what Spark gives, and fails where Spark raises.

With ANSI mode off, which no app runs with, Spark agrees wherever the function does not fail; elsewhere it gives what
the table says.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from expressions_kit import calls_of
from function_kit import Answers, answers, plain, rows
from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import from_arrow_schema
from sql_kit import optimizing, same_value

from upriver.engine.expressions import Evaluator
from upriver.plan.types import spark_name
from upriver.spark.session import unlogged
from upriver.sql.function_table import TABLE
from upriver.sql.signatures import RAISES, Function

pytestmark = pytest.mark.spark

RAISING = 25
"""Calls that fail on some row, and of which Spark is asked for that row."""
BATCH = 120
"""Calls of one Spark job."""


@cache
def ours() -> Sequence[tuple[Function, Answers]]:
    evaluator = Evaluator()
    found = [
        (function, answers(evaluator, call))
        for functions in TABLE.values()
        for function in functions
        for call in calls_of(function)
    ]
    evaluator.close()
    return found


@contextmanager
def ansi(spark: Any, enabled: bool) -> Iterator[None]:
    spark.conf.set("spark.sql.ansi.enabled", str(enabled).lower())
    schema = from_arrow_schema(rows().schema, prefer_timestamp_ntz=True)
    spark.createDataFrame(pa.Table.from_batches([rows()]), schema).createOrReplaceTempView("t")
    try:
        with optimizing(spark):
            yield
    finally:
        spark.conf.set("spark.sql.ansi.enabled", "true")


def guarded(one: Answers, away: Sequence[int]) -> str:
    """The call, for other rows than these."""
    return f"CASE WHEN r IN ({', '.join(map(str, away))}) THEN NULL ELSE {one.call} END" if away else one.call


def by_spark(spark: Any, calls: Sequence[str]) -> list[tuple[str, list[Any]]]:
    """The type of each call, and its values in the order of the rows."""
    found: list[tuple[str, list[Any]]] = []
    for first in range(0, len(calls), BATCH):
        part = calls[first : first + BATCH]
        listed = ", ".join(f"{call} AS e{number}" for number, call in enumerate(part))
        frame = spark.sql(f"SELECT r, {listed} FROM t ORDER BY r")
        columns = frame.toArrow().combine_chunks().to_batches()[0].columns[1:]
        found += [(type, plain(column)) for (_, type), column in zip(frame.dtypes[1:], columns, strict=True)]
    return found


def agree(function: Function, mine: Any, theirs: Any) -> bool:
    """Whether both are the same, to the last digit unless the table says otherwise."""
    if function.is_rough and isinstance(mine, float) and isinstance(theirs, float):
        return mine == pytest.approx(theirs, rel=1e-15, abs=0, nan_ok=True)
    return same_value(mine, theirs)


def test_functions_equal_spark(spark: Any) -> None:
    with ansi(spark, True):
        theirs = by_spark(spark, [guarded(one, [*one.failing, *one.beyond]) for _, one in ours()])
    wrong: list[tuple[Any, ...]] = []
    for (function, one), (type, values) in zip(ours(), theirs, strict=True):
        if type.lower() != spark_name(one.type).lower().replace(" ", ""):
            wrong.append((one.call, type, spark_name(one.type)))
        away = {*one.failing, *one.beyond}
        for row, (mine, spark_s) in enumerate(zip(one.values, values, strict=True)):
            if row not in away and not agree(function, mine, spark_s):
                wrong.append((one.call, mine, spark_s, rows().slice(row, 1).to_pydict()))
                break
    assert wrong == []


def test_functions_fail_where_spark_raises(spark: Any) -> None:
    failing = [(function, one) for function, one in ours() if one.failing]
    assert [one.call for function, one in failing if not function.fails] == []
    draw, silent = Random(1), []
    with ansi(spark, True), unlogged():
        for _, one in draw.sample(failing, RAISING):
            row = draw.choice(one.failing)
            try:
                spark.sql(f"SELECT CASE WHEN r = {row} THEN {one.call} END AS e FROM t").toArrow()
            except PySparkException:
                continue
            silent.append((one.call, rows().slice(row, 1).to_pydict()))
    assert silent == []


def test_functions_without_ansi_mode_are_as_the_table_says(spark: Any) -> None:
    asked = [(f, one) for f, one in ours() if f.lenient != RAISES or not one.failing]
    with ansi(spark, False):
        theirs = by_spark(spark, [guarded(one, one.beyond) for _, one in asked])
    wrong = []
    for (function, one), (_, values) in zip(asked, theirs, strict=True):
        away = {*one.failing, *one.beyond}
        pairs = enumerate(zip(one.values, values, strict=True))
        wrong += [one.call for row, (mine, spark_s) in pairs if row not in away and not agree(function, mine, spark_s)][
            :1
        ]
        if function.lenient == "NULL":
            wrong += [f"NULL: {one.call}" for row in one.failing if values[row] is not None][:1]
    assert wrong == []
