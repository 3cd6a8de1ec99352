"""stddev and variance against DuckDB and Spark, whose algorithms are others: they agree to nine digits."""

import math
from collections.abc import Iterator, Sequence
from decimal import Decimal, localcontext
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from aggregate_kit import MOMENTS, calls_of
from duckdb_kit import by_duckdb
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from state_kit import MANY, batch_of, plain_rows

from upriver.engine.operators.accumulators import floats_of
from upriver.engine.operators.aggregate import Aggregate
from upriver.plan.plan import AggregatePlan

TYPES = (pa.int8(), pa.int64(), pa.float32(), pa.float64(), pa.decimal128(12, 3))


def schema_of(type: pa.DataType) -> pa.Schema:
    return pa.schema([("k", pa.int32()), ("x", type)])


def moments(rows: pa.Table, gone: pa.Table | None = None) -> dict[int, tuple[Any, ...]]:
    """By key, of these rows; ``gone`` come before them and go after them."""
    calls = calls_of([rows.schema.field("x")], MOMENTS)
    aggregate = Aggregate(AggregatePlan(("k",), calls, retracts=gone is not None), rows.schema, ["k"])
    for table, weight in ((gone, 1), (rows, 1), (gone, -1)):
        if table is not None:
            values = [tuple(row.values()) for row in table.to_pylist()]
            aggregate.apply(batch_of(rows.schema, values, ["k"], [weight] * len(values)))
    slots = aggregate.by_hash()
    columns = [aggregate.column(name, slots) for name in aggregate.schema.names]
    return _by_key(plain_rows(pa.RecordBatch.from_arrays(columns, schema=aggregate.schema)))


def _by_key(rows: Sequence[tuple[Any, ...]]) -> dict[int, tuple[Any, ...]]:
    return {row[0]: row[1:] for row in rows}


def assert_agree(found: dict[int, tuple[Any, ...]], wanted: dict[int, tuple[Any, ...]], least: float = 0.0) -> None:
    """least: what is no more than this may be zero."""
    assert found.keys() == wanted.keys()
    for key, row in found.items():
        for one, other in zip(row, wanted[key], strict=True):
            near = isinstance(one, float) and isinstance(other, float)
            assert math.isclose(one, other, rel_tol=1e-9, abs_tol=least) if near else one == other, (key, row, other)


def drawn_tables(rng: np.random.Generator) -> Iterator[pa.Table]:
    """Values of every type: around zero, and far from it in comparison with how they differ."""
    for type in TYPES:
        middle = 0 if type == pa.int8() else 100_000
        numbers = rng.normal(size=400) * 20 + middle * rng.integers(0, 2, 400)
        if type == pa.decimal128(12, 3):
            values = pa.array([Decimal(f"{number:.3f}") for number in numbers.tolist()], type)
        else:
            values = pa.array(numbers.round(0 if pa.types.is_integer(type) else 9)).cast(type)
        nulls = pa.array(rng.random(400) < 0.1)
        values = pc.if_else(nulls, pa.nulls(400, type), values)
        yield pa.table([pa.array(rng.integers(0, 60, 400), pa.int32()), values], schema=schema_of(type))


@pytest.mark.parametrize("seed", range(3))
def test_moments_are_those_of_duckdb(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for table, gone in zip(drawn_tables(rng), drawn_tables(rng), strict=True):
        functions = ", ".join(f"{function}(CAST(x AS DOUBLE))" for function in MOMENTS)
        wanted = _by_key(plain_rows(by_duckdb(f"SELECT k, {functions} FROM t GROUP BY k", t=table)))
        assert_agree(moments(table), wanted, least=1e-9)
        kept = {key: row for key, row in moments(table, gone).items() if key in wanted}
        assert_agree(kept, wanted, least=1e-9)


@MANY
@given(st.lists(st.integers(-(2**50), 2**50), min_size=1, max_size=6), st.integers(0, 20))
def test_moments_of_whole_numbers_are_exact_however_far_from_zero(numbers: list[int], spread: int) -> None:
    """Python's own, in whole numbers."""
    values = [number >> spread for number in numbers]
    count = len(values)
    variance = (count * sum(value * value for value in values) - sum(values) ** 2) / count**2
    (row,) = moments(pa.table({"k": pa.array([1] * count, pa.int32()), "x": pa.array(values, pa.int64())})).values()
    assert row[0] == pytest.approx(variance, rel=1e-15)
    assert row[1] == (None if count == 1 else pytest.approx(variance * count / (count - 1), rel=1e-15))
    assert row[2] == pytest.approx(math.sqrt(variance), rel=1e-15)


ODD_GROUPS: dict[int, list[float | None]] = {
    1: [None],
    2: [1.5, None],
    3: [1e308, 1e308],
    4: [math.nan],
    5: [math.inf, 1.0],
    6: [-math.inf, math.inf],
    7: [1e200],
    8: [1e9, 1e9 + 1, 1e9 + 2],
    9: [-0.0, 0.0],
}


@pytest.mark.spark
def test_moments_are_those_of_spark(spark: SparkSession) -> None:
    odd = [{"k": key, "x": value} for key, values in ODD_GROUPS.items() for value in values]
    for table in (pa.Table.from_pylist(odd, schema_of(pa.float64())), *drawn_tables(np.random.default_rng(9))):
        spark.createDataFrame(table).createOrReplaceTempView("t")
        functions = ", ".join(f"{function}(x)" for function in MOMENTS)
        wanted = spark.sql(f"SELECT k, {functions} FROM t GROUP BY k").toArrow()
        assert_agree(moments(table), _by_key(plain_rows(wanted)), least=1e-9)


@MANY
@given(
    st.data(), st.sampled_from([(38, 38), (38, 30), (38, 0), (30, 25), (18, 17), (16, 2), (15, 15), (15, 2), (1, 0)])
)
def test_a_decimal_becomes_the_nearest_double(data: st.DataObject, size: tuple[int, int]) -> None:
    precision, scale = size
    drawn = data.draw(st.lists(st.integers(-(10**precision) + 1, 10**precision - 1), min_size=1))
    with localcontext(prec=precision):
        values = [Decimal(number).scaleb(-scale) for number in (*drawn, 9 * 10 ** max(scale - 1, 0))]
    found = floats_of(pa.array([*values, Decimal(0)], pa.decimal128(precision, scale)).slice(0, len(values)))
    assert found.tolist() == [float(value) for value in values]
