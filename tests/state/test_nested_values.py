"""Structs, arrays and maps as state has them: compared, ordered, hashed, in one form."""

import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from upriver.errors import KeyTypeError
from upriver.hashing import check_hashable, hash64
from upriver.state.columns import canonical, same
from upriver.state.indexes import Entries, comparable
from upriver.state.pair_index import nested_ranks, order_keys, ranks

ELEMENT = pa.field("element", pa.float64())
ARRAY = pa.list_(ELEMENT)
STRUCT = pa.struct([("a", pa.int32()), ("b", pa.string()), ("c", ARRAY)])
DEEP = pa.list_(pa.field("element", STRUCT))
MAP = pa.map_(pa.string(), pa.float64())

_FLOATS = st.sampled_from([None, 0.0, -0.0, math.nan, 1.5, -math.inf])
_ARRAYS = st.none() | st.lists(_FLOATS, max_size=3)
_STRUCTS = st.none() | st.fixed_dictionaries(
    {"a": st.sampled_from([None, 1, -1]), "b": st.sampled_from([None, "", "é", "z"]), "c": _ARRAYS}
)
_MAPS = st.none() | st.lists(st.tuples(st.sampled_from("abc"), _FLOATS), max_size=2, unique_by=lambda pair: pair[0])
_VALUES: dict[pa.DataType, st.SearchStrategy[Any]] = {
    ARRAY: _ARRAYS,
    STRUCT: _STRUCTS,
    DEEP: st.none() | st.lists(_STRUCTS, max_size=2),
    MAP: _MAPS,
}


@st.composite
def arrays(draw: Any, *types: pa.DataType) -> pa.Array:
    """An array of one of the types that begins somewhere in its buffers."""
    type = draw(st.sampled_from(types))
    values = pa.array(draw(st.lists(_VALUES[type], max_size=7)), type)
    return values.slice(draw(st.integers(0, 2)))


@given(arrays(ARRAY, STRUCT, DEEP, MAP), st.data())
def test_nested_values_are_the_same_if_their_texts_are(values: pa.Array, data: Any) -> None:
    others = values.take(pa.array(data.draw(st.permutations(range(len(values)))), pa.int64()))
    pairs = zip(values.to_pylist(), others.to_pylist(), strict=True)
    assert same(values, others).tolist() == [repr(a) == repr(b) for a, b in pairs]


@given(arrays(ARRAY, STRUCT, DEEP, MAP))
def test_nested_values_have_one_form_for_each_number(values: pa.Array) -> None:
    found = canonical(values)
    found.validate(full=True)
    assert found.type == values.type
    assert list(map(comparable, found.to_pylist())) == list(map(comparable, values.to_pylist()))
    assert "-0.0" not in str(found.to_pylist())


@given(arrays(ARRAY, STRUCT, DEEP))
def test_nested_values_are_in_sparks_order(values: pa.Array) -> None:
    forms = [comparable(value) for value in values.to_pylist()]
    in_order = sorted({form for form in forms if form != (0,)})
    found = [0 if form == (0,) else in_order.index(form) + 1 for form in forms]
    assert nested_ranks(values).tolist() == found
    last = len(in_order) + 1
    assert order_keys(values).tolist() == [rank or last for rank in found]
    assert ranks(values, "descending").tolist() == [last - rank if rank else last for rank in found]


@given(arrays(ARRAY, STRUCT, DEEP))
def test_equal_nested_values_have_one_hash_and_one_entry(values: pa.Array) -> None:
    forms = [comparable(value) for value in values.to_pylist()]
    hashes = hash64([values]).tolist()
    by_form = dict(zip(forms, hashes, strict=True))
    assert [by_form[form] for form in forms] == hashes
    entries = Entries(pa.schema([("nested", values.type)]))
    slots = entries.assign([values], len(values))
    assert slots.tolist() == [list(dict.fromkeys(forms)).index(form) for form in forms]
    firsts = values.take(pa.array([forms.index(form) for form in dict.fromkeys(forms)], pa.int64()))
    assert repr(entries.column(0, np.arange(len(firsts))).to_pylist()) == repr(firsts.to_pylist())


def test_a_struct_and_an_array_are_hashed_part_by_part() -> None:
    numbers, texts = pa.array([1, None, 3]), pa.array(["a", "b", None])
    structs = pa.StructArray.from_arrays([numbers, texts], ["n", "t"])
    assert hash64([structs]).tolist() == hash64([numbers, texts]).tolist()
    lists = pa.array([[1, None, 2], [], None, [1, 2]])
    parts = [pa.array([1, None, None, 1]), pa.array([2, None, None, 2])]
    assert hash64([lists]).tolist() == hash64(parts).tolist()


@pytest.mark.parametrize("type", [MAP, pa.struct([("m", MAP)]), pa.list_(MAP), pa.struct([])])
def test_a_map_is_no_key(type: pa.DataType) -> None:
    with pytest.raises(KeyTypeError):
        check_hashable(type, "m")
