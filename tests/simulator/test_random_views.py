"""The oracle in the cluster: views at random, kept by the real machines amid all that can happen, are what DuckDB
says."""

from dataclasses import replace
from functools import partial
from random import Random

import duckdb
import pytest
from random_sql import random_views
from random_tables import Kind, RandomTable

from simulator.checkers import Violated
from simulator.event_weights import EventWeights
from simulator.local_typer import LocalTyper
from simulator.tables import TABLES
from simulator.world import World
from upriver.engine.expressions import Evaluator
from upriver.engine.region import Region
from upriver.ids import WorkerId
from upriver.plan.plan import DataflowPlan
from upriver.protocol.rules import ALL_RULES
from upriver.sql.queries import declare_view

VIEWS, LEVELS = 3, 2
STEPS, WORKERS = 150, 3
SEEDS, SEEDS_IN_SOAK = 15, 2000
SIZES = (0, 1, 3, 8)
"""Rows of an epoch: a join of joins makes many of few."""
KINDS = {kind.type: kind for kind in Kind}


def test_any_views_are_what_duckdb_says_whatever_happens(request: pytest.FixtureRequest) -> None:
    seeds = SEEDS_IN_SOAK if request.config.getoption("--soak") else SEEDS
    evaluator = Evaluator()
    with duckdb.connect(config={"threads": 1}) as database:
        for seed in range(seeds):
            play(seed, evaluator, database)


def play(seed: int, evaluator: Evaluator, database: duckdb.DuckDBPyConnection) -> None:
    rng = Random(seed)
    plans = plans_by_lot(rng)
    weights = replace(EventWeights.drawn(rng, [WorkerId(worker) for worker in range(WORKERS)]), sizes=SIZES)
    world = World(rng, WORKERS, plans, ALL_RULES, partial(Region.build, evaluator=evaluator), weights)
    try:
        world.run(STEPS)
        world.come_to_rest(database)
        world.stop()
    except Violated as error:
        views = "\n".join(f"{plan.name} by {plan.key}: {plan.sql}" for plan in plans)
        trace = "\n".join(world.cluster.trace[-60:])
        pytest.fail(f"seed {seed}: {error}\n{views}\n{world.cluster.lake.all_rows()}\n{trace}")


def plans_by_lot(rng: Random) -> tuple[DataflowPlan, ...]:
    """Of views over the cluster's tables, each with its query as DuckDB reads it."""
    tables = [RandomTable(table, {field.name: KINDS[field.type] for field in table.schema}) for table in TABLES]
    specs = {table.name: table for table in TABLES}
    views = random_views(tables, rng, VIEWS, LEVELS, may_be_loose=False)
    texts: dict[str, str] = {}
    plans = []
    for view in views:
        plan = declare_view(view.name, view.query.spark, view.key, specs, texts, LocalTyper(specs))
        plans.append(replace(plan, sql=view.query.duck))
        texts[view.name] = view.query.spark
    return tuple(plans)
