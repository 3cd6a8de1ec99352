"""States without declared columns: each plain value comes back as it was, and bytes from anywhere run nothing."""

import json
import math
import pickle
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from enum import Enum
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from upriver.engine.plain_state import DEPTH_MAX, decode_state, encode_state

HASHABLE = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(10**40), 10**40)
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
    | st.decimals(allow_nan=False)
    | st.dates()
    | st.times()
    | st.datetimes()
    | st.datetimes(timezones=st.timezones())
    | st.datetimes(timezones=st.just(timezone(timedelta(hours=-7, minutes=30))))
    | st.timedeltas()
    | st.uuids()
)
VALUES = st.recursive(
    HASHABLE,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.lists(inner, max_size=3).map(deque)
        | st.dictionaries(HASHABLE, inner, max_size=3)
        | st.dictionaries(HASHABLE, inner, max_size=3).map(OrderedDict)
        | st.sets(HASHABLE, max_size=3)
        | st.frozensets(HASHABLE, max_size=3)
        | st.dictionaries(HASHABLE, st.integers(), max_size=3).map(Counter)
    ),
    max_leaves=12,
)


def classes(value: Any) -> Any:
    """The class of a value and of all its parts, in order."""
    if isinstance(value, dict):
        return type(value), [(classes(key), classes(item)) for key, item in value.items()]
    if isinstance(value, list | tuple | deque):
        return type(value), [classes(item) for item in value]
    return type(value)


@given(VALUES)
def test_a_plain_value_is_the_same_back(value: Any) -> None:
    found = decode_state(encode_state(value))
    assert found == value
    assert classes(found) == classes(value)


@pytest.mark.parametrize(
    "value",
    [
        -0.0,
        math.inf,
        "\ud800",
        "\ud83d\ude00",
        "\U0001f600",
        deque([1, 2], maxlen=2),
        datetime(2024, 10, 27, 2, 30, fold=1, tzinfo=ZoneInfo("Europe/Berlin")),
        time(1, 2, tzinfo=UTC),
        Decimal("1E+400"),
        Decimal("-0.00"),
        date.max,
        ["l", "t"],
    ],
)
def test_values_at_the_ends_come_back(value: Any) -> None:
    found = decode_state(encode_state(value))
    assert (found, repr(found), type(found)) == (value, repr(value), type(value))


def test_a_number_of_any_length_comes_back() -> None:
    assert decode_state(encode_state(-(10**5000))) == -(10**5000)


def test_no_number_comes_back() -> None:
    assert math.isnan(decode_state(encode_state(math.nan)))
    assert decode_state(encode_state(Decimal("NaN"))).is_nan()


@pytest.mark.parametrize(
    "value",
    [
        np.int64(7),
        np.float32(1.5),
        np.bool_(True),
        np.datetime64("2024-01-02T03:04:05", "us"),
        np.arange(6, dtype=np.int16).reshape(2, 3)[:, ::-1],
        np.array(["a", "bc"]),
        np.empty((0, 3)),
        np.str_(""),
        np.str_("a\0"),
        np.bytes_(b""),
        np.bytes_(b"a\0"),
        np.array(["", "a"]),
        np.array([], "U0"),
        np.array(0.5),
        np.asfortranarray([[1, 2], [3, 4]]),
        np.array([1, 2], ">i4"),
    ],
)
def test_numpy_s_values_come_back(value: Any) -> None:
    found = decode_state(encode_state([value]))[0]
    assert type(found) is type(value)
    assert found.dtype == value.dtype
    assert np.array_equal(found, value)
    assert repr(found.tobytes()) == repr(value.tobytes())


NESTINGS: list[Callable[[Any], Any]] = [
    lambda inner: [inner],
    lambda inner: (inner,),
    lambda inner: {"a": inner},
    lambda inner: deque([inner]),
    lambda inner: OrderedDict(a=inner),
    lambda inner: frozenset([inner]),
]


def nested(nest: Callable[[Any], Any], levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = nest(value)
    return value


@pytest.mark.parametrize("nest", NESTINGS)
def test_a_value_of_as_many_levels_as_are_allowed_comes_back_wherever_it_is_read(nest: Callable[[Any], Any]) -> None:
    value = nested(nest, DEPTH_MAX)

    def read_below(calls: int) -> Any:
        return decode_state(encode_state(value)) if not calls else read_below(calls - 1)

    assert read_below(300) == value


@pytest.mark.parametrize("nest", NESTINGS)
@pytest.mark.parametrize("more", [1, 1000])
def test_a_value_of_more_levels_is_refused(nest: Callable[[Any], Any], more: int) -> None:
    with pytest.raises(RecursionError, match="it holds itself, or has more than 100 levels of values within values"):
        encode_state(nested(nest, DEPTH_MAX + more))


def test_a_value_that_holds_itself_is_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(RecursionError, match="it holds itself"):
        encode_state(endless)


class Local(tzinfo):
    """A time zone that has a name, but is not the one of this name in the time zone database."""

    def __init__(self, key: str) -> None:
        self.key = key

    def utcoffset(self, moment: datetime | None) -> timedelta | None:
        return timedelta(hours=5)

    def dst(self, moment: datetime | None) -> timedelta | None:
        return None

    def tzname(self, moment: datetime | None) -> str:
        return self.key


@pytest.mark.parametrize("key", ["Mars/Olympus", "America", "../x", "Europe/Berlin"])
def test_a_time_zone_that_would_be_read_as_another_one_is_refused(key: str) -> None:
    for moment in (datetime(2024, 1, 2, 3, tzinfo=Local(key)), time(3, tzinfo=Local(key))):
        with pytest.raises(TypeError, match=r"a time zone of class .*Local: .* the time zone database"):
            encode_state([moment])


class Named(NamedTuple):
    n: int


class Half(np.float16):
    pass


@pytest.mark.parametrize(
    "value",
    [
        object(),
        Named(1),
        len,
        iter([]),
        np.array([object()]),
        [1, {"a": Named(1)}],
        int,
        Half(0.5),
        np.void(b"a"),
        np.array([(1,)], "i4,"),
        np.ndarray(2, "<U0", b""),
    ],
)
def test_any_other_class_is_refused(value: Any) -> None:
    with pytest.raises(TypeError, match=r"\w+\.\w+"):
        encode_state(value)


class Colour(Enum):
    RED = 1


@dataclass
class Point:
    x: int


class Loud(str):
    pass


@pytest.mark.parametrize(
    ("value", "way_out"),
    [
        (Named(1), r"Named, a named tuple: keep tuple\(x\), or x\._asdict\(\)"),
        (Point(1), r"Point, a dataclass: keep dataclasses\.astuple\(x\), or asdict\(x\)"),
        (Colour.RED, r"Colour, an Enum: keep x\.value"),
        (Loud("a"), r"Loud, a kind of str: keep str\(x\)"),
        (defaultdict(int), r"defaultdict, a kind of dict: keep dict\(x\)"),
        (np.ma.array([1.0, 2.0], mask=[False, True]), r"MaskedArray, an array with a mask: keep \(x\.data, x\.mask\)"),
        (np.ma.masked, r"MaskedConstant, an array with a mask"),
        (np.array([[1]]).view(np.matrix), r"matrix, a kind of array: keep numpy\.asarray\(x\)"),
        (np.array([None]), r"numpy\.ndarray of object: keep x\.tolist\(\)"),
    ],
)
def test_a_class_that_is_nearly_plain_is_told_how_to_become_so(value: Any, way_out: str) -> None:
    with pytest.raises(TypeError, match=way_out):
        encode_state([value])


class Armed:
    """Runs something when it is unpickled."""

    fired = False

    def __reduce__(self) -> Any:
        return (setattr, (Armed, "fired", True))


@pytest.mark.parametrize(
    "encoded",
    [
        pickle.dumps(Armed()),
        b"",
        b"{}x",
        b"[]",
        b'["z"]',
        b'["np","|O",null,""]',
        b'["np","|O8",[1],"AAAAAAAAAAA="]',
        b'["at","x",0,null]',
        b'["at","2024-01-01",0,"../../etc/passwd"]',
        b'["at","2024-01-01",0,"America"]',
        b'["np","<U0",[1099511627776],""]',
        b'["d",1]',
        b'["s",["l"]]',
        b"[" * 100_000,
    ],
)
def test_bytes_that_are_no_state_run_nothing(encoded: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        decode_state(encoded)
    assert not Armed.fired


@given(st.recursive(st.none() | st.text() | st.integers(), lambda inner: st.lists(inner, max_size=4), max_leaves=8))
def test_whatever_is_read_is_plain_or_refused(said: Any) -> None:
    try:
        value = decode_state(json.dumps(said).encode())
    except ValueError:
        return
    assert decode_state(encode_state(value)) == value
