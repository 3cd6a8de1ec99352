"""The short way of a key finds what the long way finds, for every type of key and every value, or is not taken."""

import datetime
import decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from client_kit import VNODES
from hypothesis import given
from hypothesis import strategies as st

from upriver.client.key_plans import SHORT_CHARS_MAX, KeyPlan
from upriver.client.keys import key_columns
from upriver.client.lookups import KeySet
from upriver.errors import KeyTypeError
from upriver.hashing import hash64
from upriver.ids import Epoch, WorkerId
from upriver.plan.schemas import EVERYTHING_KEY
from upriver.protocol.lookups import Routing, ViewRoute
from upriver.vnodes import VnodeMap, vnodes_of

SHORT = (pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.string())
LONG = (
    pa.bool_(),
    pa.float32(),
    pa.float64(),
    pa.binary(),
    pa.date32(),
    pa.timestamp("us"),
    pa.timestamp("us", "UTC"),
    pa.duration("us"),
    pa.decimal128(10, 2),
    pa.decimal128(38, 2),
    pa.list_(pa.int64()),
    pa.struct([("a", pa.int64())]),
)
VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-200, 200),
    st.integers(-(2**70), 2**70),
    st.sampled_from([2**7, -(2**7) - 1, 2**15, -(2**15), 2**31 - 1, 2**31, -(2**31), 2**63 - 1, 2**63, -(2**63)]),
    st.floats(),
    st.text(),
    st.text(st.characters(codec=None)),  # surrogates, too, which are no text
    st.binary(),
    st.dates(),
    st.datetimes(),
    st.decimals(allow_nan=False, places=2, min_value=-1000, max_value=1000),
    st.integers(-100, 100).map(np.int64),
    st.just([1]),
    st.just({"a": 1}),
    st.just(("a",)),
)
WORKERS = [WorkerId(number) for number in range(3)]


def plan_of(*types: pa.DataType) -> KeyPlan:
    columns = [pa.field(f"k{place}", type) for place, type in enumerate(types)]
    route = ViewRoute(tuple(field.name for field in columns), pa.schema([*columns, pa.field("v", pa.int64())]))
    return KeyPlan(route, Routing(VnodeMap.initial(VNODES, WORKERS), {}, {"v": route}, Epoch(0)))


def check(plan: KeyPlan, key: Any) -> bool:
    """Returns whether the key goes the short way, and is found there as on the long way."""
    schema, short = plan.route.key_schema, plan.short(key)
    try:
        columns = key_columns("v", schema, [key])
    except KeyTypeError:
        assert short is None
        return False
    if short is None:
        return False
    long = KeySet.of(pa.RecordBatch.from_arrays(columns, schema=schema))
    assert KeySet.of_short(short, schema).keys.equals(long.keys)
    assert [short.hash] == long.hash64.tolist() == hash64(columns).tolist()
    owners = VnodeMap.initial(VNODES, WORKERS).owners_of(vnodes_of(long.hash64, VNODES))
    assert [plan.owner_of(short)] == owners.tolist()
    return True


@pytest.mark.parametrize("type", [*SHORT, *LONG], ids=str)
@given(value=VALUES)
def test_a_key_of_one_column_is_found_as_on_the_long_way(type: pa.DataType, value: Any) -> None:
    check(plan_of(type), value)


@given(st.lists(st.tuples(st.sampled_from(SHORT), VALUES), min_size=2, max_size=4))
def test_so_is_one_of_several_columns(columns: list[tuple[pa.DataType, Any]]) -> None:
    plan = plan_of(*(type for type, _ in columns))
    check(plan, tuple(value for _, value in columns))
    check(plan, [value for _, value in columns])
    check(plan, {f"k{place}": value for place, (_, value) in enumerate(columns)})


@pytest.mark.parametrize(
    ("types", "key"),
    [
        ([pa.int64()], 7),
        ([pa.int64()], None),
        ([pa.int8()], -128),
        ([pa.string()], ""),
        ([pa.string()], "x" * SHORT_CHARS_MAX),
        ([pa.string(), pa.int32()], ("a", 1)),
        ([pa.string(), pa.int32()], (None, None)),
    ],
)
def test_plain_keys_take_the_short_way(types: list[pa.DataType], key: Any) -> None:
    assert check(plan_of(*types), key)


@pytest.mark.parametrize(
    ("types", "key"),
    [
        ([pa.int64()], True),
        ([pa.int64()], np.int64(7)),
        ([pa.int64()], {"k0": 7}),
        ([pa.int8()], 128),
        ([pa.string()], "x" * (SHORT_CHARS_MAX + 1)),
        ([pa.string()], "\ud800"),
        ([pa.float64()], 0.0),
        ([pa.date32()], datetime.date(2026, 1, 1)),
        ([pa.decimal128(10, 2)], decimal.Decimal(1)),
        ([pa.string(), pa.int32()], {"k0": "a", "k1": 1}),
        ([pa.string(), pa.int32()], ("a",)),
        ([pa.string(), pa.int32()], "ab"),
    ],
)
def test_other_keys_do_not(types: list[pa.DataType], key: Any) -> None:
    assert not check(plan_of(*types), key)


def test_a_view_without_a_key_has_no_short_way() -> None:
    route = ViewRoute((), pa.schema([("n", pa.int64())]))
    assert route.key_schema == EVERYTHING_KEY
    plan = KeyPlan(route, Routing(VnodeMap.initial(VNODES, WORKERS), {}, {"v": route}, Epoch(0)))
    assert plan.short(()) is None


def test_with_one_vnode_its_owner_has_every_key() -> None:
    route = ViewRoute(("k",), pa.schema([("k", pa.int64())]))
    plan = KeyPlan(route, Routing(VnodeMap.initial(1, [WorkerId(0)]), {}, {"v": route}, Epoch(0)))
    short = plan.short(5)
    assert short is not None
    assert plan.owner_of(short) == 0
