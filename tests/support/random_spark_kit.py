"""Random queries kept in this process while keys move, beside Spark's batch over the same rows, many at a time."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from random import Random
from typing import Any

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from query_kit import same_rows
from random_spark_sql import SparkGrammar
from random_sql import RandomView, random_views
from random_tables import START, RandomRows, RandomTable, random_tables
from rows_kit import rows_of
from sql_kit import optimizing

from simulator.dataflow_world import DataflowWorld
from upriver.engine.expressions import Evaluator
from upriver.errors import RowError, UserError
from upriver.plan.plan import DataflowPlan
from upriver.spark.analyser import SparkAnalyser
from upriver.spark.leaf_plans import LeafPlans
from upriver.sql.views import declare_view

EPOCHS = 2
TICKS = (0, 240_000_000, 300_000_001, 3_660_000_000, 86_400_000_000)
"""By how many microseconds the clock may move in an epoch."""
Rows = list[tuple[Any, ...]]
FAILED = "failed"
"""In place of the rows of a query on one of whose rows an expression fails."""


class Verdict(Enum):
    """What became of a view. FAILS: an expression cannot be computed from some row, on that side alone."""

    EQUAL = "equal"
    BOTH_FAIL = "both fail"
    REFUSED = "refused"
    WRONG = "wrong"
    OURS_FAILS = "ours alone fails"
    SPARK_FAILS = "Spark alone fails"


@dataclass(frozen=True)
class Judged:
    """A view, and what was found."""

    verdict: Verdict
    view: RandomView
    detail: str = ""


def compare(spark: Any, seed: int, count: int, evaluator: Evaluator) -> list[Judged]:
    """Of so many views over the same tables, drawn with the seed."""
    rng = Random(seed)
    tables = random_tables(rng)
    specs = {table.spec.name: table.spec for table in tables}
    drawn_views = (random_views(tables, rng, grammar=SparkGrammar)[0] for _ in range(count))
    views = [replace(view, name=f"v{number}") for number, view in enumerate(drawn_views)]
    analyser = SparkAnalyser(spark, specs)
    found: list[Judged] = []
    worlds: dict[str, DataflowWorld] = {}
    plans: dict[str, DataflowPlan] = {}
    for view in views:
        try:
            plans[view.name] = declare_view(view.name, view.query.spark, view.key, specs, {}, analyser)
        except UserError as error:
            found.append(Judged(Verdict.REFUSED, view, f"{type(error).__name__}: {error}"))
    for name, plan in plans.items():
        worlds[name] = DataflowWorld(plan, specs, evaluator, Random(seed))
    rows, clock = RandomRows(tables, rng), int(START.timestamp() * 1e6)
    open_views = [view for view in views if view.name in plans]
    for drawn in rows.epochs(EPOCHS):
        clock += rng.choice(TICKS)
        theirs = by_spark(spark, tables, rows, open_views, clock)
        still = []
        for view in open_views:
            ours = _kept(worlds[view.name], drawn, clock if plans[view.name].is_clocked else None)
            one = _judged(view, ours, theirs[view.name])
            found += [one] if one else []
            still += [] if one or ours == FAILED else [view]
        open_views = still
    return [*found, *(Judged(Verdict.EQUAL, view) for view in open_views)]


def _kept(world: DataflowWorld, drawn: Mapping[str, pa.RecordBatch], clock: int | None) -> Rows | str:
    try:
        world.run_epoch(drawn, clock)
    except RowError as error:
        return f"{FAILED}: {error}"
    return rows_of(world.scan())


def _judged(view: RandomView, ours: Rows | str, theirs: Rows | str) -> Judged | None:
    if isinstance(ours, str) or isinstance(theirs, str):
        if isinstance(ours, str) and isinstance(theirs, str):
            return Judged(Verdict.BOTH_FAIL, view, f"{ours} | {theirs}")
        if isinstance(ours, str):
            return Judged(Verdict.OURS_FAILS, view, ours)
        return Judged(Verdict.SPARK_FAILS, view, str(theirs))
    if same_rows(ours, theirs):
        return None
    return Judged(Verdict.WRONG, view, f"ours {ours}\nSpark {theirs}")


def by_spark(
    spark: Any, tables: Sequence[RandomTable], rows: RandomRows, views: Sequence[RandomView], clock: int
) -> dict[str, Rows | str]:
    """What Spark says of each view, with the instant."""
    for table in tables:
        name = table.spec.name
        spark.createDataFrame(rows.all[name], table.ddl).createOrReplaceTempView(f"{name}_rows")
        spark.sql(table.current_sql(f"{name}_rows")).createOrReplaceTempView(name)
    with optimizing(spark):
        return {view.name: _answer(spark, view.query.spark, clock) for view in views}


def _answer(spark: Any, sql: str, clock: int) -> Rows | str:
    try:
        return [tuple(row) for row in LeafPlans(spark).rewritten(spark, spark.sql(sql), {}, clock).collect()]
    except (PySparkException, Py4JJavaError) as error:
        return f"{FAILED}: {str(error).splitlines()[0]}"
