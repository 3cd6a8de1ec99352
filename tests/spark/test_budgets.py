"""Budgets of memory and of time on real Spark: what does not fit into them."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from upriver.app import App
from upriver.errors import BudgetExceeded, WaitTimeout
from upriver.net.server import Listen
from upriver.options import Tokens
from upriver.plan.plan import DataflowPlan, TableSpec
from upriver.settings import MEMORY_BUDGET_MIN
from upriver.spark.analyser import SparkAnalyser
from upriver.spark.declared_tables import StartedSource
from upriver.spark.running_app import AppConfig, RunningApp
from upriver.sql.views import declare_view
from upriver.worker.memory import fixed_bytes

pytestmark = pytest.mark.spark

ROWS = 100_000
SQL = "SELECT k, count(*) AS n, sum(v) AS total FROM numbers GROUP BY k"


def declared(spark: Any, root: Path, partial: bool) -> App:
    """An app that has one view, of more keys than go into its memory; one key is null."""
    app = App(spark, str(root), workers=2, vnodes=8, ingest_tasks=1, memory_budget=MEMORY_BUDGET_MIN)
    app.table("numbers", spark.range(ROWS).selectExpr("nullif(id div 2, 7) AS k", "id AS v"), key="k")
    app.view("totals", SQL, key="k", partial=partial)
    return app


def test_a_full_view_that_takes_more_than_the_budget_fails(spark: Any, tmp_path: Path) -> None:
    said = r"worker \d keeps every key .* more bytes than memory_budget=1,048,576: totals [\d,]+\. Give more memory"
    with declared(spark, tmp_path, partial=False) as app:
        app.start().wait(timeout=120)
        with pytest.raises(BudgetExceeded, match=said):
            app.lookup("totals", [1])
        assert app.status()["views"]["totals"]["state"] == "failed"


def test_spark_computes_what_was_not_filled_in_time(spark: Any, tmp_path: Path) -> None:
    with declared(spark, tmp_path, partial=True) as app:
        app.start()
        epoch = app.wait(timeout=120)
        assert app.lookup("totals", range(100, 120), timeout=60).num_rows == 20  # every worker is reached
        asked = pa.table({"k": pa.array([9, None, ROWS, 5, 9], pa.int64())})
        rows = [{"k": 9, "n": 2, "total": 37}, {"k": None, "n": 2, "total": 29}, {"k": 5, "n": 2, "total": 21}]
        assert app.lookup("totals", asked, timeout=0.0, else_compute=True).to_pylist() == rows
        assert app.lookup("totals", asked, timeout=60, at_least=epoch).to_pylist() == rows
        with pytest.raises(WaitTimeout):
            app.lookup("totals", asked, timeout=0.0, at_least=epoch + 1, else_compute=True)
        with pytest.raises(WaitTimeout):
            app.lookup("totals", [1], timeout=0.0)


def test_views_that_do_not_fit_without_a_key_are_refused_and_what_runs_goes_on(spark: Any, tmp_path: Path) -> None:
    first, second = (planned(spark, name) for name in ("first", "second"))
    room = sum(fixed_bytes([first]).values())
    with pytest.raises(BudgetExceeded, match=r"memory_budget=1: first [\d,]+\. Give more memory"):
        river_of(spark, tmp_path / "lake", 1, first).start(120)
    cluster = river_of(spark, tmp_path / "lake", room, first)
    cluster.start(120)
    try:
        with pytest.raises(BudgetExceeded, match=rf"memory_budget={room:,}: (first|second) [\d,]+, "):
            cluster.replan([first, second], 120)
        cluster.wait(120)
        (view,), (worker,) = cluster.status()["views"].items(), cluster.status()["workers"]
    finally:
        cluster.stop()
    assert view[0] == "first"
    assert worker["bytes"] == view[1]["bytes"] == room


NUMBERS = TableSpec("numbers", pa.schema([("k", pa.int64()), ("v", pa.int64())]), ("k",))


def planned(spark: Any, name: str) -> DataflowPlan:
    """A partial view."""
    tables = {NUMBERS.name: NUMBERS}
    plan = declare_view(name, SQL, "k", tables, {}, SparkAnalyser(spark, tables))
    return DataflowPlan(plan.name, plan.sql, plan.key, plan.schema, plan.regions, full_because=None)


def river_of(spark: Any, root: Path, budget: int, *plans: DataflowPlan) -> RunningApp:
    """One worker with so many bytes."""
    rows = spark.range(10).selectExpr("id AS k", "id AS v")
    config = AppConfig(
        root=str(root),
        workers=1,
        vnodes=8,
        tokens=Tokens(operator="token"),
        listen=Listen(),
        groups=1,
        memory_budget=budget,
    )
    return RunningApp(spark, config, [StartedSource(table=NUMBERS, rows=rows, trigger={})], plans, plans)
