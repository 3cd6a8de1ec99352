"""Calls of every function of the table over awkward rows, as they are evaluated here, and as Spark evaluates them."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import pyarrow as pa
from guards_kit import BEYOND
from random_guards import rows as plain_rows
from sql_kit import local_view, projection_of, spec

from upriver.engine.expressions import Evaluator
from upriver.errors import RowError
from upriver.plan.plan import Projection
from upriver.plan.types import array_type, map_type, struct_type


@dataclass(frozen=True)
class Answers:
    """Of one call: its type, our values by row, the rows that fail as Spark's do, and those that only Spark can
    compute."""

    call: str
    type: pa.DataType
    values: Sequence[Any]
    failing: Sequence[int]
    beyond: Sequence[int]


NAN = float("nan")
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
    """Awkward rows with columns of nested values."""
    found = plain_rows()
    for name, values in NESTED.items():
        found = found.append_column(name, values.take(pa.array([row % len(values) for row in range(found.num_rows)])))
    return found


@cache
def projection(call: str) -> Projection:
    table = spec("t", rows().schema)
    view = local_view(f"SELECT r, {call} AS e FROM t", table)
    made = projection_of(view)
    place = made.schema.get_field_index("e")
    return Projection((made.expressions[place],), pa.schema([made.schema.field(place)]))


def answers(evaluator: Evaluator, call: str) -> Answers:
    """Raises UnsupportedSql if the front end refuses the call."""
    one = projection(call)
    values: dict[int, Any] = {}
    failing: list[int] = []
    beyond: list[int] = []
    _fill(evaluator.without_row_text(), one, 0, rows(), values, failing, beyond)
    ordered = [values.get(row) for row in range(rows().num_rows)]
    return Answers(call, one.schema.field(0).type, ordered, failing, beyond)


def _fill(
    evaluator: Evaluator,
    one: Projection,
    first: int,
    part: pa.RecordBatch,
    values: dict[int, Any],
    failing: list[int],
    beyond: list[int],
) -> None:
    """The values of a part of the rows, which is halved until what fails is single rows."""
    try:
        column = evaluator.project(part, one).column(0)
    except RowError as error:
        if part.num_rows == 1:
            (beyond if BEYOND.search(str(error)) else failing).append(first)
            return
        half = part.num_rows // 2
        _fill(evaluator, one, first, part.slice(0, half), values, failing, beyond)
        _fill(evaluator, one, first + half, part.slice(half), values, failing, beyond)
        return
    values.update(enumerate(plain(column), first))


def plain(column: pa.Array) -> list[Any]:
    """The values as Python's, times as numbers: Python's calendar ends earlier."""
    type = column.type
    if pa.types.is_timestamp(type):
        column = column.cast(pa.timestamp("us", type.tz)).view(pa.int64())
    elif pa.types.is_date32(type):
        column = column.view(pa.int32())
    elif pa.types.is_string(type):
        column = column.cast(pa.binary())
    found: list[Any] = column.to_pylist()
    return [settled(value) for value in found] if pa.types.is_nested(type) else found


def settled(value: Any) -> Any:
    """With a word for NaN, and one order of the pairs of a map."""
    if isinstance(value, dict):
        return {name: settled(part) for name, part in value.items()}
    if isinstance(value, list):
        parts = [settled(part) for part in value]
        return sorted(parts, key=repr) if value and isinstance(value[0], tuple) else parts
    if isinstance(value, tuple):
        return tuple(map(settled, value))
    return ("NaN" if value != value else value + 0.0) if isinstance(value, float) else value
