"""Conformance: Spark still says what is recorded of the queries and expressions of the files. ``make record`` records
it anew."""

from pathlib import Path
from typing import Any

import pytest
from conformance_kit import read_file, with_one_form
from conformance_spark import answers_of_spark
from expression_spark import expressions_of_spark
from function_calls import function_of_each
from plain_values import is_same
from query_kit import same_rows
from recorded_answers import FOLDER, Answer, read_answers, rows_path, said_text
from soak import a_tenth

pytestmark = pytest.mark.spark

FILES = sorted(FOLDER.glob("*.test"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_spark_says_what_is_recorded(spark: Any, path: Path) -> None:
    file, recorded = read_file(path), read_answers(rows_path(path))
    expressions = a_tenth([text for group in file.expressions for text in group.texts])
    found = answers_of_spark(spark, file, a_tenth(file.views)) | expressions_of_spark(spark, file, expressions)
    for sql, said in found.items():
        check(sql, said, recorded[sql], f"{path.name}, Spark {spark.version}: {sql}")


def check(sql: str, said: Answer, known: Answer, where: str) -> None:
    if said.said is not None:
        assert known.said is not None
        assert said_text(known.said) == said_text(said.said), where
    for epoch, rows in enumerate(said.rows or ()):
        assert known.rows is not None
        wanted, found = with_one_form(known.rows[epoch]), with_one_form(rows)
        assert same_rows(found, wanted), f"{where}\nepoch {epoch}: {found}\nrecorded: {wanted}"
    assert (said.aside, said.good_rows) == (known.aside, known.good_rows), where
    assert said.lenient == known.lenient, where
    function = function_of_each().get(sql)
    for mine, other in zip(said.values or (), known.values or (), strict=True):
        assert is_same(mine, other, function is not None and function.is_rough), f"{where}: {mine}, recorded: {other}"
