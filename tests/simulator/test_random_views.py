"""The oracle in the cluster: views at random, kept by the real machines amid all that can happen, are what DuckDB
says."""

from collections.abc import Iterable
from dataclasses import replace
from random import Random

import pytest
from random_sql import random_views
from random_tables import Kind, RandomTable
from soak import drawn_seed

from simulator.campaign import Simulator
from simulator.checkers import Violated
from simulator.scenarios import HARSH, ClusterScenario
from simulator.shared_analyser import SharedAnalyser
from simulator.tables import TABLES
from upriver.plan.plan import DataflowPlan
from upriver.sql.views import declare_view

VIEWS, LEVELS = 3, 2
SMALL = ClusterScenario(weights={**HARSH, "sizes": (0, 1, 3)}, failing_share=0.0, retained_share=0.0, steps=100)
"""A join of joins makes many rows of few."""
KINDS = {kind.type: kind for kind in Kind}


@pytest.mark.parametrize("seed", range(4))
def test_any_views_are_what_duckdb_says_whatever_happens(seed: int) -> None:
    play([seed])


@pytest.mark.parametrize(
    "seeds", [pytest.param(8, marks=pytest.mark.verify), pytest.param(2_000, marks=pytest.mark.long)]
)
def test_any_views_of_seeds_drawn_anew_are(seeds: int) -> None:
    first = drawn_seed("random views")
    play(range(first, first + seeds))


def play(seeds: Iterable[int]) -> None:
    simulator = Simulator(SMALL)
    for seed in seeds:
        plans = plans_by_lot(Random(seed))
        world = simulator.world(seed, plans)
        try:
            world.run(SMALL.steps)
            simulator.come_to_rest(world)
            world.stop()
        except Violated as error:
            views = "\n".join(f"{plan.name} by {plan.key}: {plan.sql}" for plan in plans)
            trace = "\n".join(world.cluster.trace[-60:])
            pytest.fail(f"play([{seed}]): {error}\n{views}\n{world.cluster.lake.all_rows()}\n{trace}")


def plans_by_lot(rng: Random) -> tuple[DataflowPlan, ...]:
    """Of views over the cluster's tables, each with its query as DuckDB reads it."""
    tables = [RandomTable(table, {field.name: KINDS[field.type] for field in table.schema}) for table in TABLES]
    specs = {table.name: table for table in TABLES}
    views = random_views(tables, rng, VIEWS, LEVELS, may_be_loose=False)
    texts: dict[str, str] = {}
    plans = []
    for view in views:
        plan = declare_view(view.name, view.query.spark, view.key, specs, texts, SharedAnalyser(specs))
        plans.append(replace(plan, sql=view.query.duck))
        texts[view.name] = view.query.spark
    return tuple(plans)
