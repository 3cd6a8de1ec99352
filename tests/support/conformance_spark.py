"""What Spark says of the queries of a conformance file."""

from collections.abc import Sequence
from functools import partial, reduce
from random import Random
from typing import Any

import pyarrow as pa
from conformance_kit import ConformanceFile, View, used_tables
from expression_kit import BEYOND
from guards_kit import kept
from plain_values import json_rows
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row
from pyspark.sql.pandas.types import from_arrow_schema
from recorded_answers import Answer, Rows
from soak import chance
from sql_kit import generating_code, optimizing

from upriver.engine.expressions import Evaluator
from upriver.errors import RowError, UserError
from upriver.spark.analyser import SparkAnalyser
from upriver.spark.leaf_plans import LeafPlans
from upriver.spark.session import unlogged

VIEWS_OF_A_QUERY = 8


def answers_of_spark(spark: Any, file: ConformanceFile, views: Sequence[View]) -> dict[str, Answer]:
    """The answers, by query. Raises UserError for a view that is refused, and should not be."""
    analyser = SparkAnalyser(spark, file.tables)
    answers: dict[str, Answer] = {}
    for view in views:
        answers[view.sql] = Answer()
        try:
            answers[view.sql].said = analyser.analysed("v", view.sql, {}).schema
        except UserError as error:
            answers[view.sql].said = error
            if view.error is None:
                error.add_note(f"line {view.line}: {view.sql}")
                raise
    answered = [view for view in views if view.error is None and not view.sets_aside]
    with optimizing(spark):
        rows = [_rows_of_spark(spark, file, epoch, answered) for epoch in range(len(file.contents))]
    for view in answered:
        answers[view.sql].rows = [of_epoch[view] for of_epoch in rows]
    draws = chance()
    for view in views:
        if view.sets_aside:
            _add_good_rows(spark, file, view, answers[view.sql], draws)
    return answers


def _add_good_rows(spark: Any, file: ConformanceFile, view: View, answer: Answer, draws: Random) -> None:
    """Of a view whose tables set bad rows aside: Spark answers without these rows, and raises if one of them is
    there, unless only Spark can compute it. The bad rows are those of the first table, which numbers them. If several
    rows are at fault together, none is set aside, and Spark raises."""
    table, tables = next(iter(file.tables)), used_tables(file, view)
    for name, rows in tables.items():
        schema = from_arrow_schema(rows.schema, prefer_timestamp_ntz=True)
        frame = spark.createDataFrame(pa.Table.from_batches([rows]), schema)
        frame.createOrReplaceTempView(f"all_{name}")
        spark.sql(f"SELECT * FROM all_{name}").createOrReplaceTempView(name)

    def by_spark(aside: Sequence[int]) -> list[str] | None:
        """The rows without these; ``None`` if Spark raises."""
        number, listed = tables[table].schema.names[0], ", ".join(map(str, aside))
        good = f"WHERE {number} NOT IN ({listed})" if aside else ""
        spark.sql(f"SELECT * FROM all_{table} {good}").createOrReplaceTempView(table)
        try:
            return json_rows(spark.sql(view.sql).toArrow())
        except (PySparkException, Py4JJavaError):
            return None

    with optimizing(spark), generating_code(spark), unlogged():
        try:
            found = kept(view.sql, view.key, tables, Evaluator(), sets_aside=True)
        except RowError as error:
            if BEYOND.search(str(error)) or by_spark([]) is None:
                return
            raise AssertionError(f"Spark answers: {view.sql}") from error
        answer.aside, good_rows = list(found.aside[table]), by_spark(found.aside[table])
        assert good_rows is not None, f"Spark raises without {answer.aside}: {view.sql}"
        answer.good_rows = good_rows
        raising = [row for row in answer.aside if row not in found.beyond[table]]
        for one in draws.sample(raising, min(1, len(raising))):
            answers = by_spark([row for row in answer.aside if row != one]) is not None
            assert not answers, f"Spark answers with row {one}: {view.sql}"


def _rows_of_spark(spark: Any, file: ConformanceFile, epoch: int, views: Sequence[View]) -> dict[View, Rows]:
    """The rows of each view. Several views are one query, whose columns are structs, because each query costs."""
    for name, table in file.contents[epoch].items():
        schema = from_arrow_schema(table.schema, prefer_timestamp_ntz=True)
        spark.createDataFrame(table, schema).createOrReplaceTempView(name)
    found: dict[View, Rows] = {}
    plans = LeafPlans(spark)
    for start in range(0, len(views), VIEWS_OF_A_QUERY):
        part = views[start : start + VIEWS_OF_A_QUERY]
        frames = [
            _structs(plans.rewritten(spark, spark.sql(view.sql), {}, file.instants[epoch]), f"v{place}")
            for place, view in enumerate(part)
        ]
        rows = reduce(partial(DataFrame.unionByName, allowMissingColumns=True), frames).collect()
        for place, view in enumerate(part):
            found[view] = [tuple(map(_as_in_arrow, row[place])) for row in rows if row[place] is not None]
    return found


def _as_in_arrow(value: Any) -> Any:
    """A value of Spark's as Arrow has it: a struct is a dict, a map a list of pairs."""
    if isinstance(value, Row):
        return {name: _as_in_arrow(part) for name, part in value.asDict().items()}
    if isinstance(value, dict):
        return [(_as_in_arrow(key), _as_in_arrow(part)) for key, part in value.items()]
    return [_as_in_arrow(part) for part in value] if isinstance(value, list) else value


def _structs(frame: DataFrame, name: str) -> DataFrame:
    """Each row as one column."""
    return frame.toDF(*(f"c{place}" for place in range(len(frame.columns)))).selectExpr(f"struct(*) AS {name}")
