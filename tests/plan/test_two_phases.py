"""Aggregates over all rows in two phases: what is split, and with which types."""

from typing import Any

import pyarrow as pa
import pytest

from upriver.plan.plan import ALL_ALIKE, ALL_ALIKE_SQL, ALL_ALIKE_TYPE, SLOTS, AggregateCall, AggregatePlan, Projection
from upriver.plan.two_phases import TwoPhases, in_two_phases

BELOW = pa.schema([("id", pa.int64()), ("money", pa.decimal128(15, 2)), ("wide", pa.decimal128(38, 2))])
INPUT = Projection(
    (ALL_ALIKE_SQL, '"money"', '"wide"', '"id"'),
    pa.schema([(ALL_ALIKE, ALL_ALIKE_TYPE), *((name, BELOW.field(name).type) for name in ("money", "wide", "id"))]),
)


def phases(*calls: AggregateCall, group: str = ALL_ALIKE) -> TwoPhases | None:
    return in_two_phases(AggregatePlan((group,), calls, retracts=True), INPUT, BELOW)


def call(function: str, argument: str | None, type: pa.DataType, **more: Any) -> AggregateCall:
    return AggregateCall(function, argument, f"{function} of {argument}", type, **more)


def test_rows_are_spread_by_their_values_and_the_slots_are_added_up() -> None:
    found = phases(call("count_star", None, pa.int64()), call("max", "id", pa.int64()))
    assert found is not None
    assert found.salt.slots == SLOTS
    assert {"id", "money"} & set(found.salt.columns)
    assert found.slots.group == (found.salt.column,)
    assert found.slots.retracts
    assert [each.function for each in found.whole.calls] == ["sum", "max"]
    assert found.whole.retracts, "the result of a slot replaces the one before"
    assert found.output.schema.names == [ALL_ALIKE, "count_star of None", "max of id"]


def test_a_sum_of_decimals_gets_the_type_that_spark_gives_it() -> None:
    found = phases(call("sum", "money", pa.decimal128(25, 2)), call("sum", "wide", pa.decimal128(38, 2)))
    assert found is not None
    assert found.whole_schema.types[1:] == [pa.decimal128(35, 2), pa.decimal128(38, 2)]
    assert found.output.expressions[1:] == ('CAST("sum of money" AS DECIMAL(25, 2))', '"sum of wide"')


def test_an_average_of_whole_numbers_is_a_sum_of_doubles_divided_by_the_count() -> None:
    found = phases(call("avg", "id", pa.float64()))
    assert found is not None
    assert found.rows.expressions[-1] == 'CAST("id" AS DOUBLE)'
    assert [each.function for each in found.slots.calls] == ["sum", "count"]


def test_an_average_of_decimals_is_a_sum_of_decimals_divided_by_the_count() -> None:
    found = phases(call("avg", "money", pa.decimal128(19, 6)))
    assert found is not None
    assert [each.type for each in found.slots.calls] == [pa.decimal128(25, 2), pa.int64()]
    assert found.whole_schema.types[1:] == [pa.decimal128(35, 2), pa.int64()]
    assert found.output.expressions[1].startswith("kernel_decimal_divide_25_2_20_0_19_6(")


@pytest.mark.parametrize(
    "whole",
    [
        call("count", "id", pa.int64(), distinct=True),
        call("stddev_samp", "id", pa.float64()),
    ],
)
def test_a_query_with_a_function_that_cannot_be_split_has_one_phase(whole: AggregateCall) -> None:
    assert phases(call("count_star", None, pa.int64()), whole) is None


def test_groups_have_one_phase() -> None:
    assert phases(call("count_star", None, pa.int64()), group="id") is None
