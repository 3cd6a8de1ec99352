"""Parts of JSON documents as Spark gives them; tests/conformance/functions.rows has more."""

import json

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from upriver.engine.json_parts import DEPTH_MAX, parts_at, read_path

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=8,
)


def part(document: str, path: str) -> str | None:
    found: str | None = parts_at(pa.array([document]), path)[0].as_py()
    return found


@given(VALUES, st.sampled_from(["a", "b"]), st.booleans())
def test_a_part_is_the_json_of_the_value_there(value: object, name: str, is_ascii: bool) -> None:
    given = json.dumps({"a": value, "b": [0, value]}, ensure_ascii=is_ascii, indent=1)
    found = part(given, "$.a" if name == "a" else "$.b[1]")
    if value is None:
        assert found == (None if name == "a" else "null")
    elif isinstance(value, str):
        assert found == value
    else:
        assert found is not None
        assert json.loads(found) == value


@pytest.mark.parametrize(
    ("document", "path", "found"),
    [
        ('{"a":1,"a":2}', "$", '{"a":1,"a":2}'),
        ('{"a":1,"a":2}', "$.a", "1"),
        ('{"a":1e5,"b":[1.0,-0.0,-0]}', "$", '{"a":100000.0,"b":[1.0,-0.0,0]}'),
        ('{"a":12345678.5}', "$.a", "1.23456785E7"),
        ('{"a":[{"b":1}]}', "$.a[*].b", "1"),
        ('{"a":[{"b":1},{"b":[2]}]}', "$.a[*].b", "[1,[2]]"),
        ("[[1,[2]],[3]]", "$[*][*]", "[1,2,3]"),
        ('{"a":[{"b":[1]},{"b":[]}]}', "$.a[*].b[*]", "[1],[]"),
        ('{"a":"😀"}', "$", '{"a":"\\uD83D\\uDE00"}'),
        ('{"a":1} x', "$.a", "1"),
        ('{"a":1,}', "$.a", None),
        ('{"a":NaN}', "$.a", None),
        ("", "$", None),
    ],
)
def test_parts_are_written_as_spark_writes_them(document: str, path: str, found: str | None) -> None:
    assert part(document, path) == found


@pytest.mark.parametrize(
    "document",
    ["{'a':1}", '{"a":0.12345678901234567}', "[" * 101 + "]" * 101, f"[{'1' * 1001}]", '{"a":"\\ud83d"}', "12 x"],
)
def test_what_spark_may_read_in_another_way_is_an_error(document: str) -> None:
    with pytest.raises(ValueError, match=r"JSON .*too far to compute with"):
        part(document, "$")


def test_deep_documents_are_read_up_to_a_bound() -> None:
    deep = "[" * DEPTH_MAX + "]" * DEPTH_MAX
    assert part(deep, "$") == deep
    assert part('{"a":"' + "[" * 1000 + '"}', "$.a") == "[" * 1000


@pytest.mark.parametrize("path", ["a", "$a", "$.", "$..a", "$.*", "$[a]", "$[-1]", '$["a"]', "$. a", "$.a[0", ""])
def test_other_paths_are_none(path: str) -> None:
    assert read_path(path) is None
