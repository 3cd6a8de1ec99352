"""Learners and standbys in the simulator: nothing is wrong with all rules on, and each rule of docs/design/standbys.md
that has a switch is needed."""

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
PARTIAL_SHARE = 0.1

DENSE: Mapping[str, Any] = {
    "publish": 1.0,
    "sizes": (1, 3, 8),
    "lookup": 1.0,
    "pace": (3.0,) * PLACES_MAX,
    "hear": 6.0,
    "carry": 4.0,
    "dial": 4.0,
    "crash": 0.02,
    "notice": 2.0,
    "start": 1.0,
    "rescale": 0.3,
    "move": 2.0,
    "keys_max": 3,
    "strategies": (*Strategy, Strategy.LEARNER, Strategy.LEARNER),
    "checkpoint": 0.2,
    "store": 6.0,
    "feed": 4.0,
    "lease": 2.0,
    "standbys": 1,
    "warmups": 8,
    "overdue": 0.02,
}
LEARN: Mapping[str, Any] = {**DENSE, "crash": 0.0, "standbys": 0, "strategies": (Strategy.LEARNER,), "rescale": 1.0}
TAKE_OVER: Mapping[str, Any] = {**DENSE, "crash": 0.05, "rescale": 0.0, "checkpoint": 0.0}
UNEVEN = (6.0, 1.0) * (PLACES_MAX // 2)
WRONG = {
    "views_equal_the_oracle",
    "views_equal_sql",
    "lookups_equal_the_oracle",
    "standbys_equal_the_oracle",
    "no_key_is_lost",
    "a_key_lives_in_one_place",
    "machines_do_not_fail",
}
CAUGHT_BY: Mapping[str, tuple[set[str], Mapping[str, Any]]] = {
    "s2_taken_in_when_over": (WRONG, {**TAKE_OVER, "sizes": (8, 20), "pace": UNEVEN, "crash": 0.03, "feed": 8.0}),
    "s3_put_back": (WRONG, TAKE_OVER),
    "s4_caught_up": (WRONG, {**TAKE_OVER, "feed": 0.2}),
    "s5_between_epochs": (WRONG, LEARN),
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
def test_whoever_takes_over_is_right_whatever_happens(
    views: str, request: pytest.FixtureRequest, build_region: BuildRegion, database: duckdb.DuckDBPyConnection
) -> None:
    plans, counters = request.getfixturevalue(views), Counter[str]()
    for seed in range(SOAK_SEEDS if request.config.getoption("--soak") else RIGHT_SEEDS):
        world = world_of(seed, plans, ALL_RULES, build_region, (DENSE, TAKE_OVER)[seed % 2])
        try:
            world.run(STEPS)
            world.come_to_rest(database)
            world.stop()
        except Exception as error:
            error.add_note(f"seed {seed}")
            raise
        counters += world.river.watcher.counters
    assert all(counters[what] for what in ("handed_over", "taken_over", "feeds", "rescales_live"))


@pytest.mark.parametrize("seed", [79, 88, 92, 116, 135])
def test_whoever_comes_back_has_its_share_again(
    seed: int, flowing: tuple[DataflowPlan, ...], build_region: BuildRegion, database: duckdb.DuckDBPyConnection
) -> None:
    """In these, what it was about to learn is lost on the way, and is to be learned again."""
    calm = {**TAKE_OVER, "warmups": 2, "takeover": 0.0, "replan": 0.0}
    world = world_of(seed, flowing, ALL_RULES, build_region, calm)
    world.run(STEPS)
    world.come_to_rest(database)
    assert world.river.watcher.counters["crashes"]
    for vnode_map in world.river.maps().values():
        shares = [len(vnode_map.vnodes_of_worker(WorkerId(worker))) for worker in range(WORKERS)]
        assert max(shares) - min(shares) <= 1


def test_every_rule_is_tried() -> None:
    """S6 takes two losses, the second before an epoch ends after the first: ``tests/machines/test_resuming.py``."""
    assert [*CAUGHT_BY, "s6_put_back_has_changed"] == [field.name for field in fields(Rules) if field.name[0] == "s"]


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
