"""Learners and standbys in the simulator: nothing is wrong with all rules on, and each rule of
docs/internals/standbys.md that has a switch is needed."""

from collections.abc import Callable, Mapping
from dataclasses import fields

import duckdb
import pytest
from worlds_kit import BUSY, WORKERS, MadeFor, Worlds, exchanged, flowing, seeds

from simulator.event_weights import PLACES_MAX
from upriver.ids import WorkerId
from upriver.plan.plan import DataflowPlan
from upriver.protocol.rules import Rules
from upriver.protocol.strategies import Strategy

PARTIAL_SHARE = 0.1

DENSE: MadeFor = {
    **BUSY,
    "crash": 0.02,
    "start": 1.0,
    "rescale": 0.3,
    "strategies": (*Strategy, Strategy.LEARNER, Strategy.LEARNER),
    "checkpoint": 0.2,
    "feed": 4.0,
    "lease": 2.0,
    "standbys": 1,
    "warmups": 8,
    "overdue": 0.02,
}
LEARN: MadeFor = {**DENSE, "crash": 0.0, "standbys": 0, "strategies": (Strategy.LEARNER,), "rescale": 1.0}
TAKE_OVER: MadeFor = {**DENSE, "crash": 0.05, "rescale": 0.0, "checkpoint": 0.0}
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
CAUGHT_BY: Mapping[str, tuple[set[str], MadeFor]] = {
    "replication_taken_in_when_over": (
        WRONG,
        {**TAKE_OVER, "sizes": (8, 20), "pace": UNEVEN, "crash": 0.03, "feed": 8.0},
    ),
    "replication_put_back": (WRONG, TAKE_OVER),
    "replication_caught_up": (WRONG, {**TAKE_OVER, "feed": 0.2}),
    "replication_between_epochs": (WRONG, LEARN),
    "replication_unfed_says_so": ({"nobody_is_left_waiting", "standbys_have_caught_up"}, {**LEARN, "cut": 0.1}),
}
"""By rule: which checkers may see that it is off, and the event weights under which they do."""
FIRST_SEEDS = {"replication_unfed_says_so": 13}
"""Seeds before these find nothing without the rule, and are played last."""


@pytest.mark.parametrize("views", [flowing, exchanged])
def test_the_worker_that_takes_over_is_right_whatever_happens(
    views: Callable[[], tuple[DataflowPlan, ...]], request: pytest.FixtureRequest, database: duckdb.DuckDBPyConnection
) -> None:
    worlds = Worlds(views(), PARTIAL_SHARE, database)
    counters = worlds.counted((DENSE, TAKE_OVER)[seed % 2] for seed in range(2 * seeds(request.config)))
    assert all(counters[what] for what in ("handed_over", "taken_over", "feeds", "rescales_live"))


@pytest.mark.parametrize("seed", [79, 88, 92, 116, 135])
def test_a_worker_that_comes_back_has_its_share_again(seed: int, database: duckdb.DuckDBPyConnection) -> None:
    """In these, what it was about to learn is lost on the way, and is to be learned again."""
    worlds = Worlds(flowing(), PARTIAL_SHARE, database)
    world = worlds.play(worlds.of(seed, {**TAKE_OVER, "warmups": 2, "takeover": 0.0, "replan": 0.0}))
    assert world.cluster.watcher.counters["crashes"]
    for vnode_map in world.cluster.maps().values():
        shares = [len(vnode_map.vnodes_of_worker(WorkerId(worker))) for worker in range(WORKERS)]
        assert max(shares) - min(shares) <= 1


def test_every_rule_is_tried() -> None:
    """replication.put_back_has_changed takes two losses, the second before an epoch ends after the first:
    ``tests/worker/test_takeover.py``."""
    rules = {field.name for field in fields(Rules) if field.name.startswith("replication_")}
    assert CAUGHT_BY.keys() | {"replication_put_back_has_changed"} == rules


@pytest.mark.parametrize("rule", CAUGHT_BY)
def test_without_a_rule_some_seed_finds_something_wrong(rule: str, database: duckdb.DuckDBPyConnection) -> None:
    checkers, weights = CAUGHT_BY[rule]
    assert Worlds(flowing(), PARTIAL_SHARE, database).first_wrong(rule, weights, FIRST_SEEDS.get(rule, 0)) in checkers
