"""Conformance: Spark still says what is recorded of the queries of the files. ``make record`` records it anew."""

from pathlib import Path
from typing import Any

import pytest
from conformance_kit import read_file, with_one_form
from conformance_spark import answers_of_spark
from query_kit import same_rows
from recorded_answers import read_answers, rows_path, said_text
from soak import a_tenth

pytestmark = pytest.mark.spark

FILES = sorted(Path(__file__).parents[1].glob("conformance/*.test"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_spark_says_what_is_recorded(spark: Any, path: Path) -> None:
    file, recorded = read_file(path), read_answers(rows_path(path))
    for sql, said in answers_of_spark(spark, file, a_tenth(file.views), {}).items():
        known = recorded[sql]
        where = f"{path.name}, Spark {spark.version}: {sql}"
        for asked, answer in said.asked.items():
            assert said_text(known.asked[asked]) == said_text(answer), where
        for epoch, rows in enumerate(said.rows or ()):
            assert known.rows is not None
            wanted, found = with_one_form(known.rows[epoch]), with_one_form(rows)
            assert same_rows(found, wanted), f"{where}\nepoch {epoch}: {found}\nrecorded: {wanted}"
