"""What Spark says of expressions row by row: their types, their values, and the rows on which they raise."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from conformance_kit import ConformanceFile
from expression_kit import query_of, rows_for
from plain_values import RAISES, is_same, json_values
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import functions
from pyspark.sql.classic.column import Column
from pyspark.sql.pandas.types import from_arrow_schema
from recorded_answers import Answer
from sql_kit import optimizing, spec

from upriver.spark.analyser import SparkAnalyser
from upriver.spark.session import ZONE, unlogged

BATCH = 60
"""Expressions of one Spark job."""
OF_MAPS = re.compile(r"map|\bmp\b|\bdm\b|transform_keys")
RAISED = (PySparkException, Py4JJavaError)
ANSI = "spark.sql.ansi.enabled"


def expressions_of_spark(spark: Any, file: ConformanceFile, chosen: Sequence[str]) -> dict[str, Answer]:
    """The answers to those expressions of the file that are chosen, by expression."""
    answers: dict[str, Answer] = {}
    spark = spark.newSession()
    spark.conf.set(ZONE, file.timezone)
    for group in file.expressions:
        rows = file.rows_of(group.table)
        analyser = SparkAnalyser(spark, {"t": spec("t", rows.schema)})
        found: dict[str, Answer] = {}
        for text, values in _all_values(spark, rows, [text for text in group.texts if text in chosen]).items():
            schema = analyser.analysed("v", query_of(text, rows), {}).schema
            found[text] = Answer(pa.schema([schema.field("e")]), values=values)
        if group.are_samples:
            _add_lenient(spark, rows, found)
        answers |= found
    return answers


def _add_lenient(spark: Any, rows: pa.RecordBatch, answers: dict[str, Answer]) -> None:
    """What Spark gives without ANSI mode where it raises; elsewhere it is the same, unless it raises again."""
    with without_ansi(spark):
        lenient = _all_values(spark, rows, list(answers))
    for text, answer in answers.items():
        pairs = list(zip(answer.values or [], lenient[text], strict=True))
        instead = [value for strict, value in pairs if strict == RAISES]
        if RAISES in instead:
            answer.lenient = "raises"
        elif instead:
            answer.lenient = "NULL" if instead.count(None) == len(instead) else "values"
        if answer.lenient != "raises":
            differing = [pair for pair in pairs if pair[0] != RAISES and not is_same(*pair)]
            assert not differing, f"{text} without ANSI mode: {differing[:3]}"


def _all_values(spark: Any, rows: pa.RecordBatch, texts: Sequence[str]) -> dict[str, list[Any]]:
    """By expression, the values over the rows that differ for it, with RAISES where Spark raises."""
    schema = from_arrow_schema(rows.schema, prefer_timestamp_ntz=True)
    spark.createDataFrame(pa.Table.from_batches([rows]), schema).createOrReplaceTempView("t")
    found: dict[str, list[Any]] = {}
    with optimizing(spark), unlogged():
        for first in range(0, len(texts), BATCH):
            found |= _values(spark, rows, texts[first : first + BATCH])
        for text, values in found.items():
            if RAISES in values and OF_MAPS.search(text):
                found[text] = _apart(spark, rows, text)
    return found


def _values(spark: Any, rows: pa.RecordBatch, texts: Sequence[str]) -> dict[str, list[Any]]:
    try:
        table = _table(spark.table("t"), rows, *(_tried(spark, text) for text in texts))
    except RAISED:
        if len(texts) == 1:
            return {texts[0]: _one_by_one(spark, rows, texts[0])}
        half = len(texts) // 2
        return _values(spark, rows, texts[:half]) | _values(spark, rows, texts[half:])
    return {text: _first(text, rows, table.column(f"e{at}")) for at, text in enumerate(texts)}


def _table(frame: Any, rows: pa.RecordBatch, *columns: Column) -> pa.Table:
    """Columns e0, e1, ... over the rows, in their order."""
    key = rows.schema.names[0]
    named = (column.alias(f"e{place}") for place, column in enumerate(columns))
    return frame.select(key, *named).toArrow().sort_by(key).combine_chunks()


def _apart(spark: Any, rows: pa.RecordBatch, text: str) -> list[Any]:
    """Each row in a task of its own: what raises on one leaves Spark's maps in disorder for the next."""
    alone = spark.range(0, rows.num_rows, 1, rows.num_rows).toDF("alone_")
    frame = alone.join(functions.broadcast(spark.table("t")), functions.expr(f"alone_ = {rows.schema.names[0]}"))
    return _first(text, rows, _table(frame, rows, _tried(spark, text)).column("e0"))


def _tried(spark: Any, text: str) -> Column:
    """An array with the value first; NULL where the expression raises. Arrow wants a value that may be NULL."""
    utils = spark._jvm.org.apache.spark.sql.classic.ExpressionUtils
    value = utils.expression(functions.array(functions.expr(text), functions.lit(None))._jc)
    return Column(utils.column(spark._jvm.org.apache.spark.sql.catalyst.expressions.TryEval(value)))


def _first(text: str, rows: pa.RecordBatch, column: pa.ChunkedArray) -> list[Any]:
    arrays = column.chunk(0).take(pa.array(rows_for(text, rows).column(0)))
    values = json_values(pc.list_element(arrays, 0))
    return [value if valid else RAISES for value, valid in zip(values, arrays.is_valid().to_pylist(), strict=True)]


def _one_by_one(spark: Any, rows: pa.RecordBatch, text: str) -> list[Any]:
    """Of an expression that Spark refuses to compute at all, as a constant that fails."""
    key, found = rows.schema.names[0], list[Any]()
    for place in rows_for(text, rows).column(0).to_pylist():
        try:
            (column,) = spark.sql(f"SELECT {text} AS e FROM t WHERE {key} = {place}").toArrow().columns
        except RAISED:
            found.append(RAISES)
        else:
            found += json_values(column.combine_chunks())
    return found


@contextmanager
def without_ansi(spark: Any) -> Iterator[None]:
    spark.conf.set(ANSI, "false")
    try:
        yield
    finally:
        spark.conf.set(ANSI, "true")
