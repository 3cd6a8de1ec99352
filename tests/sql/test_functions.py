"""The random queries over awkward values have every function, operator and cast, in every position."""

from itertools import islice, product
from random import Random

import pytest
from awkward_rows import numbers, rows
from random_guards import NESTED, POSITIONS, casts_taken, draws, expressions, guarded
from soak import chance
from sql_kit import local_view, spec

from upriver.sql.expressions import RULES
from upriver.sql.functions.table import TABLE

MADE = {"KnownNotNull", "KnownNullable", "NamedLambdaVariable", "OuterReference", "PreciseTimestampConversion"}
MADE |= {"AtLeastNNonNulls", "PythonUDF", "ScalarSubquery", "TempResolvedColumn", "TimeAdd"}
MADE |= {f"ExtractANSIInterval{part}" for part in ("Hours", "Minutes", "Seconds")} | {
    "SubtractDates",
    "SubtractTimestamps",
}
"""Classes that only Spark writes, of some of its versions, that are no expressions over columns alone, or of intervals,
which have a conformance file of their own."""
OF_NESTED = {"ArraySort", "ArraysZip", "CreateNamedStruct", "ElementAt", "GetArrayItem", "GetArrayStructFields"}
OF_NESTED |= {"GetMapValue", "GetStructField", "ParseUrl", "Sequence", "UrlDecode"}
PLAIN = [one.all_names[0] for topic, functions in TABLE.items() if topic not in NESTED for one in functions]
TABLES = [spec("other", numbers().schema), *(spec(name, rows().schema) for name in ("rows_", "others"))]


@pytest.mark.parametrize("name", sorted({*PLAIN, *RULES} - MADE - OF_NESTED))
def test_every_function_and_operator_has_an_expression_over_columns(name: str) -> None:
    assert expressions().get(name)


def test_every_cast_that_the_front_end_takes_is_among_them() -> None:
    drawn = {one for construct, listed in expressions().items() if " AS " in construct for one in listed}
    assert set(casts_taken()) <= drawn


def test_each_is_drawn_in_each_position() -> None:
    pairs = list(product(expressions(), POSITIONS))
    assert sorted(islice(draws(Random(1)), len(pairs))) == sorted(pairs)


def test_what_is_drawn_can_be_declared() -> None:
    """One expression of each construct, a quarter of them, which the commit chooses."""
    rng = Random(1)
    some = dict(islice(draws(rng), 3000))
    assert some.keys() == expressions().keys()
    texts = [guarded(rng, construct, position) for construct, position in some.items()]
    for text in chance().sample(texts, len(texts) // 4):
        assert local_view(text, *TABLES).relation.schema.names
