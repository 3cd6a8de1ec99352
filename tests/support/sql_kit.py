"""Compares what our SQL gives with what Spark gives, for the tests of the SQL front end."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema

from simulator.shared_analyser import SharedAnalyser
from upriver.engine.expressions import Evaluator
from upriver.plan.plan import DataflowPlan, FilterOp, LakeEdge, Projection, ProjectOp, TableSpec, ViewStore
from upriver.sql.views import Analyser, CompiledView, compile_view, declare_view


def spec(name: str, schema: pa.Schema) -> TableSpec:
    return TableSpec(name, schema, (schema.names[0],))


def local_plan(sql: str, key: str | Sequence[str], *tables: TableSpec, name: str = "v") -> DataflowPlan:
    """The view's plan, without Spark."""
    declared = {table.name: table for table in tables}
    return declare_view(name, sql, key, declared, {}, SharedAnalyser(declared))


@dataclass(frozen=True)
class Parts:
    """What the one region of a view of one table does: rows of the edge are filtered, computed and kept."""

    key: tuple[str, ...]
    edge: LakeEdge
    filter: str | None
    project: Projection
    store: ViewStore


def parts_of(plan: DataflowPlan) -> Parts:
    """Of a view that is such a region, and nothing else."""
    (region,) = plan.regions
    (entry,) = region.inputs
    *filters, project = (node.op for node in region.nodes)
    assert isinstance(entry.edge, LakeEdge)
    assert isinstance(project, ProjectOp)
    assert region.store is not None
    predicates = [op.predicate for op in filters if isinstance(op, FilterOp)]
    assert len(predicates) == len(filters) <= 1
    return Parts(plan.key, entry.edge, predicates[0] if predicates else None, project.projection, region.store)


def local_view(sql: str, *tables: TableSpec, **views: str) -> CompiledView:
    """The view as a query, without Spark. views: others that it may read."""
    declared = {table.name: table for table in tables}
    return compile_view("v", sql, declared, views, SharedAnalyser(declared))


def projection_of(view: CompiledView) -> Projection:
    """How the columns of a view of rows are computed."""
    assert isinstance(view.relation.op, ProjectOp)
    return view.relation.op.projection


def evaluated(rows: pa.RecordBatch, expressions: Sequence[str], analyser: Analyser) -> pa.RecordBatch:
    """The expressions over ``rows``, the table t whose first column is a key: columns e0, e1, ..."""
    table = spec("t", rows.schema)
    key = rows.schema.names[0]
    listed = ", ".join(f"{text} AS e{number}" for number, text in enumerate(expressions))
    view = compile_view("v", f"SELECT {key}, {listed} FROM t", {"t": table}, {}, analyser)
    return Evaluator().project(rows, projection_of(view))


def by_spark(spark: Any, rows: pa.RecordBatch, expressions: Sequence[str]) -> pa.Table:
    """The same by Spark, in the order of the rows (their first column is their number)."""
    key = rows.schema.names[0]
    schema = from_arrow_schema(rows.schema, prefer_timestamp_ntz=True)
    spark.createDataFrame(pa.Table.from_batches([rows]), schema).createOrReplaceTempView("t")
    listed = ", ".join(f"{text} AS e{number}" for number, text in enumerate(expressions))
    with optimizing(spark):
        return spark.sql(f"SELECT {key}, {listed} FROM t ORDER BY {key}").toArrow()


@contextmanager
def optimizing(spark: Any) -> Iterator[None]:
    """Let Spark optimize queries of rows that are in the plan as those of files: it would compute them before that."""
    rule = "org.apache.spark.sql.catalyst.optimizer.ConvertToLocalRelation"
    settings = ("spark.sql.optimizer.excludedRules", "spark.sql.adaptive.optimizer.excludedRules")
    for name in settings:
        spark.conf.set(name, rule)
    try:
        yield
    finally:
        for name in settings:
            spark.conf.unset(name)


@contextmanager
def generating_code(spark: Any) -> Iterator[None]:
    """Let Spark evaluate as it does by default, and not as in other tests: its code for a filter has an order of its
    own."""
    before = spark.conf.get("spark.sql.codegen.wholeStage")
    spark.conf.set("spark.sql.codegen.wholeStage", "true")
    try:
        yield
    finally:
        spark.conf.set("spark.sql.codegen.wholeStage", before)


def differences(
    ours: pa.RecordBatch, theirs: pa.Table, expressions: Sequence[str], rows: pa.RecordBatch
) -> list[tuple[Any, ...]]:
    """(expression, our value, Spark's, row) for the first row of each expression on which they differ."""
    found: list[tuple[Any, ...]] = []
    for number, text in enumerate(expressions):
        mine, others = ours.column(f"e{number}").to_pylist(), theirs.column(f"e{number}").to_pylist()
        for place, (left, right) in enumerate(zip(mine, others, strict=True)):
            if not same_value(left, right):
                found.append((text, left, right, rows.slice(place, 1).to_pylist()[0]))
                break
    return found


def same_value(left: Any, right: Any) -> bool:
    """Equal as Spark compares: NaN equals itself, 0.0 equals -0.0; but a str is not a number."""
    if isinstance(left, float) and isinstance(right, float) and math.isnan(left):
        return math.isnan(right)
    return type(left) is type(right) and bool(left == right)
