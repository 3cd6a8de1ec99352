"""The table of functions is consistent: names, samples, types; and the page of the documents is made from it."""

from itertools import chain

import pyarrow as pa
import pytest
from awkward_rows import rows
from expression_kit import projection
from function_calls import calls_of
from function_page import PAGE, page
from sql_kit import spec

from simulator.shared_analyser import SharedAnalyser
from upriver.sql.functions.signatures import Function
from upriver.sql.functions.table import CHANGING, REFUSED, TABLE

ALL = [function for functions in TABLE.values() for function in functions]


def test_each_name_belongs_to_one_function() -> None:
    names = list(chain.from_iterable(function.all_names for function in ALL))
    assert len(set(names)) == len(names)
    assert not set(names) & REFUSED.keys()
    assert not [name for name in names if CHANGING.fullmatch(name)]


@pytest.mark.parametrize("function", ALL, ids=lambda function: function.all_names[0])
def test_the_front_end_takes_each_call_of_a_function(function: Function) -> None:
    calls = calls_of(function)
    assert calls
    for call in calls:
        (made,) = projection(call, rows(), SharedAnalyser({"t": spec("t", rows().schema)})).schema
        if isinstance(function.gives, pa.DataType):
            assert any(name in call for name in function.all_names)
            assert made.type == function.gives or f"{function.all_names[0]}(" not in call[: call.find("(") + 1]


def test_the_page_is_made_from_the_table() -> None:
    assert PAGE.read_text() == page(), "run: python tests/support/function_page.py"
