"""Every function over awkward values in every position: a row is set aside exactly if Spark would raise on it.

The queries are drawn anew. Those that are recorded are in ``tests/conformance/random_guards.test``.
"""

from itertools import islice
from random import Random
from typing import Any

import pytest
from conformance_kit import View, read_file, used_tables
from conformance_spark import answers_of_spark
from guards_kit import kept
from plain_values import json_rows
from random_guards import draws, guarded
from recorded_answers import FOLDER

from upriver.engine.expressions import Evaluator

QUERIES = 800


@pytest.mark.spark
@pytest.mark.long
def test_rows_are_set_aside_exactly_where_spark_raises(spark: Any, request: pytest.FixtureRequest) -> None:
    given: int | None = request.config.getoption("--sql-seed")
    seed = Random().randrange(10**6) if given is None else given
    print(f"again with --sql-seed {seed}")
    rng, evaluator, file = Random(seed), Evaluator(), read_file(FOLDER / "random_guards.test")
    for number, (construct, position) in enumerate(islice(draws(rng), QUERIES)):
        view = View(("r",), guarded(rng, construct, position), None, number, sets_aside=True)
        answer = answers_of_spark(spark, file, [view])[view.sql]
        if answer.aside is not None:
            found = kept(view.sql, view.key, used_tables(file, view), evaluator, sets_aside=True)
            assert json_rows(found.rows) == answer.good_rows, view.sql
