"""Checkpoints in the simulator: nothing is wrong with all rules on, and each rule of docs/design/checkpoints.md is
needed."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, replace
from functools import partial
from random import Random
from typing import Any

import duckdb
import pytest

from upriver.dataflow.expressions import Evaluator
from upriver.dataflow.graph import DataflowPlan
from upriver.dataflow.running import Region
from upriver.ids import WorkerId
from upriver.machines.following import BuildRegion
from upriver.machines.rules import ALL_RULES, Rules
from upriver.machines.strategies import Strategy
from upriver.sim.campaign import SETS_ASIDE, compiled_views
from upriver.sim.checkers import Violated
from upriver.sim.tables import ALL_VIEWS, EXCHANGED
from upriver.sim.weather import PLACES_MAX, Weather
from upriver.sim.world import World

STEPS, WORKERS = 300, 3
SEEDS_MAX = 150  # seeds within which the absence of any rule must show
RIGHT_SEEDS, SOAK_SEEDS = 12, 2_000
PARTIAL_SHARE = 0.2  # views of which there are no checkpoints

DENSE: Mapping[str, Any] = {
    "publish": 1.0,
    "sizes": (1, 3, 8),
    "lookup": 1.0,
    "pace": (3.0,) * PLACES_MAX,
    "hear": 6.0,
    "carry": 4.0,
    "dial": 4.0,
    "crash": 0.03,
    "notice": 2.0,
    "start": 5.0,
    "rescale": 0.5,
    "move": 2.0,
    "keys_max": 3,
    "strategies": tuple(Strategy),
    "checkpoint": 0.5,
    "copy": 1.0,
    "store": 6.0,
    "spoil": 0.1,
}
CALM: Mapping[str, Any] = {**DENSE, "crash": 0.0, "spoil": 0.0}
CAUGHT_BY: Mapping[str, tuple[set[str], Mapping[str, Any]]] = {
    "v1_copy_before_change": ({"checkpoints_equal_the_oracle"}, {**CALM, "rescale": 0.0, "copy": 0.3}),
    "v2_all_parts": ({"checkpoints_equal_the_oracle"}, CALM),
    "v3_restore_first": ({"views_equal_the_oracle", "nobody_is_left_waiting", "machines_do_not_fail"}, DENSE),
    "v4_moved_keys_change": ({"checkpoints_equal_the_oracle"}, {**CALM, "rescale": 1.0}),
    "v5_keys_stay": ({"nobody_is_left_waiting", "machines_do_not_fail", "checkpoints_equal_the_oracle"}, CALM),
    "v6_given_up_when_torn": ({"nobody_is_left_waiting"}, {**DENSE, "crash": 0.1}),
    "v8_dropped_have_changed": ({"checkpoints_equal_the_oracle"}, {**CALM, "rescale": 0.0, "spoil": 0.3, "copy": 3.0}),
}
"""By rule: which checkers may see that it is off, and weather in which they do."""


@pytest.fixture(scope="module")
def database() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect(config={"threads": 1}) as connection:
        yield connection


@pytest.fixture(scope="module")
def build_region() -> BuildRegion:
    return partial(Region.build, evaluator=Evaluator(), sets_aside=SETS_ASIDE)


@pytest.fixture(scope="module")
def flowing() -> tuple[DataflowPlan, ...]:
    return tuple(plan for plan in compiled_views(ALL_VIEWS) if not plan.depth)


@pytest.fixture(scope="module")
def exchanged() -> tuple[DataflowPlan, ...]:
    return compiled_views(EXCHANGED)


def world_of(
    seed: int, plans: tuple[DataflowPlan, ...], rules: Rules, build_region: BuildRegion, made_for: Mapping[str, Any]
) -> World:
    lots, everyone = Random(seed), [WorkerId(worker) for worker in range(WORKERS)]
    weather = replace(Weather.drawn(lots, everyone).calmed(), **made_for)
    return World(lots, WORKERS, plans, rules, build_region, weather, PARTIAL_SHARE)


@pytest.mark.parametrize("views", ["flowing", "exchanged"])
def test_what_comes_back_is_right_whatever_happens(
    views: str, request: pytest.FixtureRequest, build_region: BuildRegion, database: duckdb.DuckDBPyConnection
) -> None:
    plans, counters = request.getfixturevalue(views), Counter[str]()
    for seed in range(SOAK_SEEDS if request.config.getoption("--soak") else RIGHT_SEEDS):
        world = world_of(seed, plans, ALL_RULES, build_region, DENSE)
        try:
            world.run(STEPS)
            world.come_to_rest(database)
            world.stop()
        except Exception as error:
            error.add_note(f"seed {seed}")
            raise
        counters += world.river.watcher.counters
    assert all(counters[what] for what in ("checkpoints", "restored", "checkpoints_given_up", "rescales_live"))


def test_every_rule_is_tried() -> None:
    """V9 takes keys that are gone without a trace, with who kept them: ``tests/machines/test_checkpoints.py``."""
    assert [*CAUGHT_BY, "v9_whole_after_losses"] == [field.name for field in fields(Rules) if field.name[0] == "v"]


@pytest.mark.parametrize("rule", CAUGHT_BY)
def test_without_a_rule_some_seed_finds_something_wrong(
    rule: str,
    flowing: tuple[DataflowPlan, ...],
    build_region: BuildRegion,
    database: duckdb.DuckDBPyConnection,
) -> None:
    checkers, weather = CAUGHT_BY[rule]
    worlds = (world_of(seed, flowing, Rules(**{rule: False}), build_region, weather) for seed in range(SEEDS_MAX))
    with pytest.raises(Violated) as found:
        play_until_wrong(worlds, database)
    assert found.value.checker in checkers


def play_until_wrong(worlds: Iterable[World], database: duckdb.DuckDBPyConnection) -> None:
    for world in worlds:
        world.run(STEPS)
        world.come_to_rest(database)
