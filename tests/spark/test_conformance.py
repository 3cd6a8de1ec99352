"""Conformance: the views of each file are what Spark says after each epoch, whatever is cut and moved.

Rows come in any cuts, keys move between workers at any time, and every row is found by its key, too.
"""

from functools import partial, reduce
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from conformance_kit import ConformanceFile, View, read_file
from function_kit import settled
from pyspark.sql import DataFrame, Row
from pyspark.sql.pandas.types import from_arrow_schema
from query_kit import same_rows
from rows_kit import rows_of

from simulator.dataflow_world import DataflowWorld
from upriver.engine.expressions import Evaluator
from upriver.errors import UserError
from upriver.plan.plan import DataflowPlan
from upriver.spark.typer import SparkTyper
from upriver.sql.queries import declare_view

pytestmark = pytest.mark.spark

FILES = sorted(Path(__file__).parents[1].glob("conformance/*.test"))
VIEWS_OF_A_QUERY = 8
Rows = list[tuple[Any, ...]]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_views_are_what_spark_says_after_each_epoch(spark: Any, path: Path) -> None:
    file = read_file(path)
    typer = SparkTyper(spark, file.tables)
    plans = {view: planned(file, view, typer, path) for view in file.views if view.error is None}
    expected = [by_spark(spark, file, contents, list(plans)) for contents in file.contents]
    evaluator = Evaluator()
    for view, plan in plans.items():
        where = f"{path.name}, line {view.line}: {view.sql}"
        world = DataflowWorld(plan, file.tables, evaluator, Random(view.line))
        for number, changes in enumerate(file.changes):
            world.run_epoch(changes)
            found, wanted = with_one_form(rows_of(world.scan())), with_one_form(expected[number][view])
            assert same_rows(found, wanted), f"{where}\nepoch {number}: {found}\nSpark: {wanted}"
            by_key = with_one_form(looked_up(world, plan, expected[number][view]))
            assert same_rows(by_key, wanted), f"{where}\nepoch {number}, by its key"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_what_is_refused_says_why(spark: Any, path: Path) -> None:
    file = read_file(path)
    typer = SparkTyper(spark, file.tables)
    for view in file.views:
        if view.error is not None:
            with pytest.raises(UserError) as raised:
                declare_view("v", view.sql, "k", file.tables, {}, typer)
            assert view.error in str(raised.value), f"{path.name}, line {view.line}"


def planned(file: ConformanceFile, view: View, typer: SparkTyper, path: Path) -> DataflowPlan:
    try:
        return declare_view("v", view.sql, view.key, file.tables, {}, typer)
    except UserError as error:
        raise AssertionError(f"{path.name}, line {view.line}: {error}") from error


def by_spark(spark: Any, file: ConformanceFile, contents: dict[str, pa.Table], views: list[View]) -> dict[View, Any]:
    """The rows of each view. Several views are one query, whose columns are structs, because each query costs."""
    for name, table in contents.items():
        schema = from_arrow_schema(table.schema, prefer_timestamp_ntz=True)
        spark.createDataFrame(table, schema).createOrReplaceTempView(name)
    found: dict[View, Any] = {}
    for start in range(0, len(views), VIEWS_OF_A_QUERY):
        part = views[start : start + VIEWS_OF_A_QUERY]
        frames = [structs(spark.sql(view.sql), f"v{place}") for place, view in enumerate(part)]
        rows = reduce(partial(DataFrame.unionByName, allowMissingColumns=True), frames).collect()
        for place, view in enumerate(part):
            found[view] = [tuple(map(as_in_arrow, row[place])) for row in rows if row[place] is not None]
    return found


def as_in_arrow(value: Any) -> Any:
    """A value of Spark's as Arrow has it: a struct is a dict, a map a list of pairs."""
    if isinstance(value, Row):
        return {name: as_in_arrow(part) for name, part in value.asDict().items()}
    if isinstance(value, dict):
        return [(as_in_arrow(key), as_in_arrow(part)) for key, part in value.items()]
    return [as_in_arrow(part) for part in value] if isinstance(value, list) else value


def with_one_form(rows: Rows) -> Rows:
    """The rows, with one form of each nested value: maps have no order."""
    return [tuple(settled(value) if isinstance(value, list | dict) else value for value in row) for row in rows]


def structs(frame: DataFrame, name: str) -> DataFrame:
    """Each row as one column."""
    return frame.toDF(*(f"c{place}" for place in range(len(frame.columns)))).selectExpr(f"struct(*) AS {name}")


def looked_up(world: DataflowWorld, plan: DataflowPlan, wanted: Rows) -> Rows:
    """What is found by the keys that Spark's rows have."""
    if not plan.key:
        return rows_of(world.scan())
    places = [plan.schema.get_field_index(name) for name in plan.key]
    keys = {repr(key): key for key in (tuple(row[place] for place in places) for row in wanted)}
    if not keys:
        return []
    columns = [
        pa.array(list(values), field.type)
        for values, field in zip(zip(*keys.values(), strict=True), plan.key_schema, strict=True)
    ]
    return rows_of(world.lookup(pa.RecordBatch.from_arrays(columns, schema=plan.key_schema)))
