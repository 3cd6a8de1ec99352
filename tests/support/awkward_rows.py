"""Tables of values that are awkward elsewhere and that no SQL text can write, for conformance files."""

from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import cache, partial
from typing import Any

import numpy as np
import pyarrow as pa
from awkward_kit import BYTES, INF, NAN, NANS, awkward, dates, text, times

from upriver.plan.types import array_type, map_type, struct_type
from upriver.state.columns import exact

ROWS = 180
INTEGERS = [0, 1, -1, None, 7, -7, 100, 11, 2]
DATES = [date(1970, 1, 1), date(1969, 12, 31), date(2024, 2, 29), None, date(1, 1, 1), date(9999, 12, 31)]
DATES += [date(2021, 1, 1), date(2024, 12, 30), date(1582, 10, 10), date(2024, 1, 7), date(1900, 3, 1)]
TIMES = [datetime(1970, 1, 1), datetime(1969, 12, 31, 23, 59, 59, 999999), None, datetime(1, 1, 1, 0, 0, 0, 1)]
TIMES += [datetime(2024, 2, 29, 12, 34, 56, 780000), datetime(9999, 12, 31, 23, 59, 59), datetime(1960, 5, 6, 7, 8)]
STRINGS = ["", "a", None, "abc", "ABC", " a b ", "ß", "ÄÖü", "a%b", "a_b", "日本語", "e\u0301x", "😀z", "\t\n"]
STRINGS += ["x'y\"z", "a\\b", "ΑΣ", "ΑΣΒ Σ ΟΔΥΣΣΕΥΣ.", "İstanbul", "a\u00a0", "ǅ", "straße ﬁ", "\u1c89\u1c8a", "0"]
MOMENTS = ["2024-02-29 12:34:56", "2024-02-29T01:02:03.123456", None, "1999-12-31 23:59:59", "2024-2-9 1:2:3"]
MOMENTS += ["2023-02-29", "2024-03-31 02:30:00", "2024-01-01", "1", "2024-10-27 02:30:00.5", " 1970-01-01 00:00:60"]
MOMENTS += ["2024-01-01 24:00:00"]
COLUMNS: dict[str, tuple[pa.DataType, list[Any]]] = {
    # Small integers, with which arithmetic stays in range; then the ends of each range.
    "y": (pa.int8(), [0, 1, -1, None, 7, -7, 10, 11]),
    "h": (pa.int16(), [3, None, -3, 0, 120, 1, 17]),
    "i": (pa.int32(), INTEGERS),
    "j": (pa.int32(), [5, -5, 1, None, 3, -1, 2]),
    "l": (pa.int64(), [0, None, 1, -1, 9007199254740993, 2**40, -(2**40), 86399, -86401]),
    "ymax": (pa.int8(), [127, -128, None]),
    "imax": (pa.int32(), [2**31 - 1, -(2**31), None, 0]),
    "lmax": (pa.int64(), [2**63 - 1, -(2**63), None, 0]),
    "f": (pa.float32(), [0.0, 1.5, None, -0.1, 3.25, NAN, -0.0, 16777217.0]),
    "x": (pa.float64(), [0.0, -0.0, None, 1.5, -1.5, 2.5, NAN, INF, -INF, 0.1, 1e300, -0.4, 0.49999999999999994]),
    "w": (pa.float64(), [1.5, 2.0, None, -0.5, NAN, 3.0, INF]),
    "z": (pa.float64(), [0.0, -0.0, 1.9, -1.9, None, 2147483647.9, -2147483648.9, 127.5]),
    "p": (pa.decimal128(5, 2), [Decimal(v) for v in ("0.00", "1.25", "-1.25", "1.50", "999.99", "-0.01")] + [None]),
    "q": (pa.decimal128(20, 4), [None, *map(Decimal, ("0.0000", "1234567890123456.7891", "-0.5000", "2.5000"))]),
    "b": (pa.bool_(), [True, False, None]),
    "c": (pa.bool_(), [True, True, False, False, None]),
    "s": (pa.string(), STRINGS),
    "u": (pa.string(), ["a", "b", "", None, "abc", "%", "bc"]),
    "d": (pa.date32(), DATES),
    "e": (pa.date32(), [date(2024, 1, 31), date(1970, 1, 1), None, date(1900, 2, 28), date(2024, 2, 29)]),
    "n": (pa.timestamp("us"), TIMES),
    "t": (pa.timestamp("us", tz="UTC"), [None if t is None else t.replace(tzinfo=UTC) for t in TIMES]),
    "digits": (pa.string(), ["1", " 15 ", "+5", "-0", None, "007", "\t-12\n", "127"]),
    "floats": (
        pa.string(),
        ["1", " 1.5 ", "-.5", "5.", None, "1e3", "NaN", "nan", "-Infinity", "inf", "2.5d", "1e400"],
    ),
    "days": (
        pa.string(),
        ["2024-02-29", "2024-2-9", " 2024-01-01 ", None, "1999", "2001-7", "2024-01-02T10", "2020-1-5 x"],
    ),
    "moments": (pa.string(), MOMENTS),
    "truths": (pa.string(), ["true", "F", None, " yes ", "0", "N", "1", "False"]),
}

AWKWARD: dict[str, pa.Array] = {
    "k": text(BYTES),
    "o": dates([-719_529, 2_932_897, 2**31 - 1, -(2**31), 1 - 2**31, 0, -719_528, None]),
    "ntz": times([-(2**63), 2**63 - 1, -62_167_219_200_000_001, 253_402_300_800_000_000, None, 1]),
    "ltz": times([2**63 - 1, None, -62_167_219_200_000_001, -(2**63), 253_402_300_800_000_000], "UTC"),
    "bin": pa.array([b"\x00\xff", b"", None, b"a", b"\xff" * 3], pa.binary()),
}  # fmt: skip
"""Values that Spark can hold and that are awkward elsewhere: texts that are no UTF-8, and far dates and times."""

URLS = [
    "http://user:pass@host.example.com:8080/a/b?x=1&a=2&a=3#end",
    "https://EXAMPLE.com",
    None,
    "http://1.2.3.4/p?a=",
    "//h/p",
    "mailto:a@b?a=1#f",
    "/a?b#c",
    "?a=1",
    "http://a b",
    "http:///p",
    "http://",
    "http:",
    "1http://h",
    "http://_h_:1/x?y&a=%41",
    "http://ü.de/ä?a=ö#ü",
    "http://h:/p",
    "http://u@:80/",
    "http://h/%zz",
    "a/b:c",
    "a:b",
    "http://h/p?a=1?b#c#d",
    "http://1.2.3/x",
    "http://u@h_h@x/",
    "file:/etc/x?q",
    "http://a-.b/",
    "http://@h/",
    "",
    "http://h\\p",
    "http://us.er:p%20w@h-1.de:80/a/x?k=1&b=#r",
    "http://1.2.3.256/x",
    "http://10.0.0.001:8",
    "http://[::1]:80/x?a=1",
    "s:?a=1",
]
DOCUMENTS = [
    '{"a":1,"b":"x","b c":[1]}',
    '{"a":1.0,"é":"ü"}',
    '[{"a":1e5},{"a":-0},{"b":3}]',
    '{"a":123456789012345678901234567890}',
    '{"a":null}',
    None,
    '{"a":"q\\"uo\\n\\u00e9\\ud83d\\ude00\\u001f"}',
    '{"a":[1,2,{"b":[3,[4,"x"]]}]}',
    "{'a':'s'}",
    "{a:1}",
    '{"a":1} trailing',
    ' {"a" : [ null , {"b": 12345678.25} ] } ',
    '{"a":1,"a":2}',
    "[[1,2],[3,4]]",
    '"str"',
    "12",
    "",
    "null",
    "{",
    '{"a":NaN}',
    '{"a":01}',
    '{"a":"tab\there"}',
    '{"a":{"b":[[1],[[2]]]}}',
    '{"a":[]}',
    '{"a":["😀",true,false,0.001,[]]}',
    '{"b":{bad},"a":1}',
    '{"a":52.52000659999999999}',
    '[{"a":[]},{"a":[1]}]',
]
NESTED: dict[str, pa.Array] = {
    "urls": pa.array(URLS, pa.string()),
    "documents": pa.array(DOCUMENTS, pa.string()),
    "ai": pa.array([[1, 2, None, 2], [], None, [3], [-1, 0, 7, 7, 1], [None]], array_type(pa.int32())),
    "bi": pa.array([[2, 3], None, [None, 7], [], [1, 1]], array_type(pa.int32())),
    "axs": pa.array([[0.0, -0.0, NAN], [1.5], None, [NAN, None, 2.5, -1.0], []], array_type(pa.float64())),
    "texts": pa.array([["b", "a", None], [""], None, ["é", "Z", "a", "a"], []], array_type(pa.string())),
    "lists": pa.array([[[1, 2], None, []], None, [], [[None], [1]]], array_type(array_type(pa.int32()))),
    "st": pa.array(
        [{"a": 1, "b": "x"}, None, {"a": None, "b": None}, {"a": 2, "b": "é"}],
        struct_type(["a", "b"], [pa.int32(), pa.string()]),
    ),
    "sts": pa.array(
        [[{"a": 2, "b": "x"}, None, {"a": None, "b": "y"}], [], None, [{"a": 1, "b": None}, {"a": 1, "b": "a"}]],
        array_type(struct_type(["a", "b"], [pa.int32(), pa.string()])),
    ),
    "mp": pa.array(
        [[("a", 1), ("b", None)], [], None, [("abc", 7), ("", 0), ("a", -1)]], map_type(pa.string(), pa.int32())
    ),
    "dm": pa.array([[(0.0, "z"), (NAN, "n")], None, [(1.5, None)], []], map_type(pa.float64(), pa.string())),
}
"""Nested values, with NULL, NaN and both zeros in them."""


@cache
def rows() -> pa.RecordBatch:
    """Rows that pair the values of all these columns in many ways; ``r`` numbers them."""
    columns = {name: pa.array(values, type) for name, (type, values) in COLUMNS.items()} | AWKWARD | NESTED
    taken = {name: of.take(pa.array([row % len(of) for row in range(ROWS)])) for name, of in columns.items()}
    return pa.record_batch({"r": pa.array(range(ROWS), pa.int32()), **taken})


DECIMALS = ["٣", "1e-400", " 1e-40 ", "٣.٥e١", "0e37", "0.00e39", "-०.५", "1E+2", "5e-3", "4.9999e-3"]
DAYS = ["02024-02-01", "12024-01-01", "-0001-01-01", "+2024-1-1", "2024", "0000-01-01", "5881580-07-10", "0002024-1", "2024-2-9T", "-2024-02-29"]  # fmt: skip  # noqa: E501


def far() -> pa.RecordBatch:
    """The rows of :func:`awkward_kit.awkward`, and columns of far values that DuckDB can hold."""
    days = [-719_529, 2_932_897, -719_528, 0, -800_000, 5_000_000, 2_147_483_646, -719_163, 2_932_896, None]
    micros = [None if day is None else min(day, 106_000_000) * 86_400_000_000 + 10**6 + day % 2 for day in days]
    given = awkward().select(["id", "v", "k", "d", "n", "t"]).combine_chunks()
    more = {
        "s": pa.array(DECIMALS),
        "c": pa.array(DAYS),
        "unix_date_of": exact(given.column("d").chunk(0)),
        "fd": dates(days),
        "fn": times(micros),
        "ft": times(micros, "UTC"),
    }
    return pa.record_batch({**dict(zip(given.column_names, (c.chunk(0) for c in given.columns), strict=True)), **more})


def numbers() -> pa.RecordBatch:
    """The numbers of :func:`rows`."""
    return rows().select(["r"])


def doubles(seed: int) -> pa.RecordBatch:
    """Rows of a DOUBLE and a FLOAT: for Spark all zeros are one, and all NaNs, whatever their bits."""
    draw, values = np.random.default_rng(seed), np.array([0.0, -0.0, *NANS, 1.5, -np.inf])
    places, others, nulls = (draw.integers(0, len(values), 60) for _ in range(3))
    with np.errstate(invalid="ignore"):
        floats = values[others].astype(np.float32)
    return pa.record_batch({"id": np.arange(60), "x": pa.array(values[places], mask=nulls == 0), "f": floats})


MADE: Mapping[str, Callable[[], pa.RecordBatch]] = {
    "rows": rows,
    "numbers": numbers,
    "far": far,
    "doubles_1": partial(doubles, 1),
    "doubles_2": partial(doubles, 2),
}
"""By the name that conformance files have for them; the first column numbers the rows."""
