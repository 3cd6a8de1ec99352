"""stddev and variance are exact; tests/conformance/aggregates.test has what Spark says of them."""

import math
from collections.abc import Sequence
from decimal import Decimal, localcontext
from typing import Any

import pyarrow as pa
import pytest
from aggregate_kit import MOMENTS, calls_of
from hypothesis import given
from hypothesis import strategies as st
from state_kit import MANY, batch_of

from upriver.engine.operators.accumulators import floats_of
from upriver.engine.operators.aggregate import Aggregate
from upriver.plan.plan import AggregatePlan

SCHEMA = pa.schema([("k", pa.int32()), ("x", pa.int64())])
NUMBERS = st.lists(st.integers(-(2**50), 2**50), min_size=1, max_size=6)
CALLS = calls_of([SCHEMA.field("x")], MOMENTS)


def moments(values: Sequence[int], gone: Sequence[int]) -> tuple[Any, ...]:
    """Of these values; ``gone`` come before them and go after them."""
    aggregate = Aggregate(AggregatePlan(("k",), CALLS, retracts=True), SCHEMA, ["k"])
    for numbers, weight in ((gone, 1), (values, 1), (gone, -1)):
        aggregate.apply(batch_of(SCHEMA, [(1, number) for number in numbers], ["k"], [weight] * len(numbers)))
    slots = aggregate.by_hash()
    return tuple(aggregate.column(call.output, slots)[0].as_py() for call in CALLS)


@MANY
@given(NUMBERS, st.integers(0, 20), NUMBERS)
def test_moments_of_whole_numbers_are_exact_however_far_from_zero(
    numbers: list[int], spread: int, gone: list[int]
) -> None:
    """Python's own, in whole numbers."""
    values = [number >> spread for number in numbers]
    count = len(values)
    variance = (count * sum(value * value for value in values) - sum(values) ** 2) / count**2
    row = moments(values, gone)
    assert row[0] == pytest.approx(variance, rel=1e-15)
    assert row[1] == (None if count == 1 else pytest.approx(variance * count / (count - 1), rel=1e-15))
    assert row[2] == pytest.approx(math.sqrt(variance), rel=1e-15)


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
