"""The random queries over awkward values have every function, operator and cast, in every position."""

from itertools import islice, product
from random import Random

import pytest
from awkward_rows import numbers, rows
from random_guards import CASTS, NESTED, POSITIONS, constructs_in, draws, expressions, guarded, is_taken
from sql_kit import local_view, spec

from upriver.sql.function_table import FUNCTIONS, TABLE
from upriver.sql.functions import RULES

REFUSING = {"Anonymous", "Filter"}
"""Rules that only refuse, or that look a function up."""
OF_NESTED = {"Alias", "Bracket", "Dot", "Identifier"}
OF_NESTED |= {name for topic in NESTED for function in TABLE[topic] for name in function.all_names}
TABLES = [spec("other", numbers().schema), *(spec(name, rows().schema) for name in ("rows_", "others"))]


@pytest.mark.parametrize("name", sorted({*FUNCTIONS, *(rule.__name__ for rule in RULES)} - REFUSING - OF_NESTED))
def test_every_function_and_operator_has_an_expression_over_columns(name: str) -> None:
    assert any(name in constructs_in(expression) for expression in expressions().get(name, ()))


def test_every_cast_that_the_front_end_takes_is_among_them() -> None:
    for cast in filter(is_taken, CASTS):
        (pair,) = (name for name in constructs_in(cast) if " AS " in name)
        assert cast in expressions()[pair]


def test_each_is_drawn_in_each_position() -> None:
    pairs = list(product(expressions(), POSITIONS))
    assert sorted(islice(draws(Random(1)), len(pairs))) == sorted(pairs)


def test_what_is_drawn_can_be_declared() -> None:
    rng = Random(1)
    some = dict(islice(draws(rng), 3000))
    assert some.keys() == expressions().keys()
    for construct, position in some.items():
        assert local_view(guarded(rng, construct, position), *TABLES).relation.schema.names
