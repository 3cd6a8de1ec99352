"""Which changes of a function make another definition."""

from collections.abc import Callable
from functools import partial
from textwrap import dedent
from typing import Any

import pytest

from upriver.spark.definitions import definition_of

BASE = """
    def helper(x):
        return x + 1

    def function(key, row, state=0):
        total = helper(row) * 2
        return [(total, {"a", "b"})], state
"""
SAME = {
    "comments": BASE.replace("total = ", "# twice\n        total = "),
    "elsewhere": "\n\n\n" + BASE,
    "other functions": BASE + "\n    def unused():\n        return 1\n",
}
OTHERS = {
    "constant": BASE.replace("* 2", "* 3"),
    "operator": BASE.replace("* 2", "+ 2"),
    "default": BASE.replace("state=0", "state=1"),
    "helper": BASE.replace("x + 1", "x + 2"),
    "set": BASE.replace('"b"', '"c"'),
}


def function_of(text: str) -> Callable[..., Any]:
    names: dict[str, Any] = {"__name__": "users"}
    exec(compile(dedent(text), "users.py", "exec"), names)
    function: Callable[..., Any] = names["function"]
    return function


@pytest.mark.parametrize("name", SAME)
def test_it_is_the_same_wherever_it_stands(name: str) -> None:
    assert definition_of(function_of(SAME[name])) == definition_of(function_of(BASE))


@pytest.mark.parametrize("name", OTHERS)
def test_it_is_another_if_the_function_may_do_something_else(name: str) -> None:
    assert definition_of(function_of(OTHERS[name])) != definition_of(function_of(BASE))


def closed_over(value: Any) -> Callable[[], Any]:
    return lambda: value


def test_what_a_function_closes_over_counts() -> None:
    assert definition_of(closed_over(1)) == definition_of(closed_over(1))
    assert definition_of(closed_over({"a": [1, 2]})) == definition_of(closed_over({"a": [1, 2]}))
    for one, other in ((1, 2), ([1], [2]), ({"a": 1}, {"a": 2}), (None, 0), (closed_over(1), closed_over(2))):
        assert definition_of(closed_over(one)) != definition_of(closed_over(other))


def test_a_partial_function_is_told_by_its_arguments() -> None:
    assert definition_of(partial(closed_over, 1)) == definition_of(partial(closed_over, 1))
    assert definition_of(partial(closed_over, 1)) != definition_of(partial(closed_over, 2))


def test_a_version_tells_in_place_of_the_code() -> None:
    assert definition_of(function_of(BASE), 1) == definition_of(function_of(OTHERS["constant"]), 1)
    assert definition_of(function_of(BASE), 1) != definition_of(function_of(BASE), 2)
    assert definition_of(function_of(BASE), "1") != definition_of(function_of(BASE), 1)


def test_a_function_that_names_itself_has_a_definition() -> None:
    text = BASE.replace("helper(row) * 2", "function(key, row - 1) if row else 0")
    assert definition_of(function_of(text)) == definition_of(function_of(text))
