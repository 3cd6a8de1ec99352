"""Which changes of a function make another definition."""

import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from upriver.spark.definitions import definition_of

BASE = """
    from functools import lru_cache
    from math import floor

    LIMITS = [1, 2, 1]

    class Rate:
        high = 3

        def __init__(self, low):
            self.low = low

        @property
        def width(self):
            return self.high - self.low

    class Fee(Rate):
        pass

    FEE = Fee(1)

    @lru_cache
    def cached(x):
        return x % 7

    def helper(x):
        return x + 1

    def function(key, row, state=0):
        total = helper(row) * 2 + FEE.width + cached(row)
        return [(total > LIMITS[2], {"a", "b"}, floor(total))], state
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
    "value of a name": BASE.replace("[1, 2, 1]", "[1, 2, 2]"),
    "attribute of a class": BASE.replace("high = 3", "high = 4"),
    "property": BASE.replace("self.high - self.low", "self.high + self.low"),
    "attribute of an object": BASE.replace("Fee(1)", "Fee(2)"),
    "function in a cache": BASE.replace("x % 7", "x % 8"),
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
    assert definition_of(closed_over((1, True, 1))) != definition_of(closed_over((1, True, True)))
    itself: list[Any] = []
    itself.append(itself)
    assert definition_of(closed_over(itself)) != definition_of(closed_over([[]]))


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


PROGRAM = """
    from dataclasses import dataclass
    from enum import Enum

    from upriver.spark.definitions import definition_of

    class Kind(Enum):
        ODD = frozenset({"a", "b", "c"})

    @dataclass
    class Rates:
        kinds: frozenset[str] = frozenset({"gold", "red", "blue"})

        def __call__(self, key, row, state):
            return [(row.kind in {"x", "y", "z"}, Kind.ODD, self.kinds)], state

    def closed_over(value):
        return lambda key, row, state: value(key, row, state)

    print(definition_of(closed_over(Rates())), definition_of(Rates()), definition_of(Rates().__call__))
"""


def test_it_is_the_same_in_each_process(tmp_path: Path) -> None:
    """cloudpickle gives a class of the program other bytes in each, and sets have another order."""
    program = tmp_path / "program.py"
    program.write_text(dedent(PROGRAM))
    told = [
        subprocess.check_output([sys.executable, str(program)], env={**os.environ, "PYTHONHASHSEED": seed})
        for seed in ("1", "2")
    ]
    assert told[0] == told[1]
    assert len(set(told[0].split())) == 3
