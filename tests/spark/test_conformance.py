"""Conformance: the views of each file are what Spark says after each epoch, whatever is cut and moved.

Rows come in any cuts, keys move between workers at any time, and every row is found by its key, too. Views that may be
partial are kept as such, too: their keys are read, evicted and read again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial, reduce
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from conformance_kit import ConformanceFile, View, read_file
from function_kit import settled
from partial_world import PartialWorld
from pyspark.sql import DataFrame, Row
from pyspark.sql.pandas.types import from_arrow_schema
from query_kit import same_rows
from rows_kit import rows_of
from soak import examples

from simulator.dataflow_world import DataflowWorld
from upriver.engine.expressions import Evaluator
from upriver.errors import UserError
from upriver.plan.explain import why_full
from upriver.plan.plan import DataflowPlan
from upriver.spark.typer import SparkTyper
from upriver.sql.clock import with_instant
from upriver.sql.queries import declare_view

pytestmark = pytest.mark.spark

FILES = sorted(Path(__file__).parents[1].glob("conformance/*.test"))
VIEWS_OF_A_QUERY = 8
PARTIAL_VIEWS = 4
"""Of each file, as many views are kept as partial ones, too; ten times as many with ``--soak``."""
EVICTED_SHARE = 0.3
"""Of all keys: how many are evicted after each read."""
EVALUATOR = Evaluator()
Rows = list[tuple[Any, ...]]
Keys = Mapping[str, tuple[Any, ...]]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_views_are_what_spark_says_after_each_epoch(spark: Any, path: Path) -> None:
    file = read_file(path)
    typer = SparkTyper(spark, file.tables)
    plans = {view: planned(file, view, typer, path) for view in file.views if view.error is None}
    expected = [by_spark(spark, file, number, list(plans)) for number in range(len(file.contents))]
    for view, plan in plans.items():
        where = f"{path.name}, line {view.line}: {view.sql}"
        world = DataflowWorld(plan, file.tables, EVALUATOR, Random(view.line))
        for number, changes in enumerate(file.changes):
            world.run_epoch(changes, file.instants[number] if plan.is_clocked else None)
            found, wanted = with_one_form(rows_of(world.scan())), with_one_form(expected[number][view])
            assert same_rows(found, wanted), f"{where}\nepoch {number}: {found}\nSpark: {wanted}"
            by_key = with_one_form(looked_up(world, plan, expected[number][view]))
            assert same_rows(by_key, wanted), f"{where}\nepoch {number}, by its key"
    partial_ones = [view for view, plan in plans.items() if plan.key and why_full(plan, True, sets_aside=()) is None]
    for view in Random(path.stem).sample(partial_ones, min(len(partial_ones), examples(PARTIAL_VIEWS))):
        of_view = [of_epoch[view] for of_epoch in expected]
        check_partial(file, plans[view], of_view, f"{path.name}, line {view.line}: {view.sql}")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_what_is_refused_says_why(spark: Any, path: Path) -> None:
    file = read_file(path)
    typer = SparkTyper(spark, file.tables)
    for view in file.views:
        if view.error is not None:
            with pytest.raises(UserError) as raised:
                declare_view("v", view.sql, "k", file.tables, {}, typer)
            assert view.error in str(raised.value), f"{path.name}, line {view.line}"


def check_partial(file: ConformanceFile, plan: DataflowPlan, expected: Sequence[Rows], where: str) -> None:
    """Keys are read and evicted after each epoch: those of any epoch so far, so some are new and some have no rows."""
    world = PartialWorld(replace(plan, full_because=None), file.tables, EVALUATOR, Random(where))
    keys: dict[str, tuple[Any, ...]] = {}
    for number, changes in enumerate(file.changes):
        world.run_epoch(changes, file.instants[number] if plan.is_clocked else None)
        keys |= keys_of(plan, expected[number])
        found = with_one_form(rows_of(world.lookup(as_batch(plan, keys)))) if keys else []
        wanted = with_one_form(expected[number])
        assert same_rows(found, wanted), f"{where}\nepoch {number}, partial: {found}\nSpark: {wanted}"
        world.evict(EVICTED_SHARE)


def planned(file: ConformanceFile, view: View, typer: SparkTyper, path: Path) -> DataflowPlan:
    try:
        return declare_view("v", view.sql, view.key, file.tables, {}, typer)
    except UserError as error:
        raise AssertionError(f"{path.name}, line {view.line}: {error}") from error


def by_spark(spark: Any, file: ConformanceFile, epoch: int, views: list[View]) -> dict[View, Any]:
    """The rows of each view. Several views are one query, whose columns are structs, because each query costs."""
    columns = {name for table in file.tables.values() for name in table.schema.names}
    for name, table in file.contents[epoch].items():
        schema = from_arrow_schema(table.schema, prefer_timestamp_ntz=True)
        spark.createDataFrame(table, schema).createOrReplaceTempView(name)
    found: dict[View, Any] = {}
    for start in range(0, len(views), VIEWS_OF_A_QUERY):
        part = views[start : start + VIEWS_OF_A_QUERY]
        frames = [
            structs(spark.sql(with_instant(view.sql, file.instants[epoch], columns)), f"v{place}")
            for place, view in enumerate(part)
        ]
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
    keys = keys_of(plan, wanted)
    return rows_of(world.lookup(as_batch(plan, keys))) if keys else []


def keys_of(plan: DataflowPlan, rows: Rows) -> Keys:
    """The keys of these rows, each once, by a text that tells them apart."""
    places = [plan.schema.get_field_index(name) for name in plan.key]
    return {repr(key): key for key in (tuple(row[place] for place in places) for row in rows)}


def as_batch(plan: DataflowPlan, keys: Keys) -> pa.RecordBatch:
    columns = [
        pa.array(list(values), field.type)
        for values, field in zip(zip(*keys.values(), strict=True), plan.key_schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=plan.key_schema)
