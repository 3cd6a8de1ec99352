"""Rows that leave their tables, in simulated clusters: all goes right, and each rule of docs/internals/retention.md is
needed.

The oracle is one worker that owns everything. At the end DuckDB computes every view from the rows that remain.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import fields
from random import Random

import duckdb
import pytest
from worlds_kit import BUSY, STEPS_WITHOUT_A_RULE_MAX, MadeFor, Worlds, without

from simulator.campaign import Simulator, compiled_views
from simulator.checkers import Violated
from simulator.tables import ORDERED, RETAINS, VIEWS
from simulator.world import World
from upriver.protocol.rules import ALL_RULES, Rules

STEPS, WORKERS = 200, 3
RIGHT_SEEDS = 3
SEEDS_MAX = 100  # seeds within which the absence of any rule must show

CAUGHT_BY = {
    "retention_retract_with_epoch": {"views_equal_sql"},
    "retention_late_rows_stay_out": {"views_equal_sql"},
    "retention_read_what_remains": {"views_equal_the_oracle", "lookups_equal_the_oracle"},
}


def test_every_rule_is_tried() -> None:
    assert list(CAUGHT_BY) == [field.name for field in fields(Rules) if field.name.startswith("retention_")]


@pytest.mark.parametrize("partial_share", [0.0, 1.0], ids=["full", "partial"])
@pytest.mark.parametrize("way", range(len(RETAINS)))
def test_views_equal_sql_over_the_rows_that_remain(way: int, partial_share: float) -> None:
    simulator = Simulator(partial_share=partial_share, retained_share=1.0, retains=[RETAINS[way]])
    outcomes = [simulator.play(seed, STEPS, WORKERS) for seed in range(RIGHT_SEEDS)]
    assert [str(outcome) for outcome in outcomes if outcome.violation is not None] == []


@pytest.mark.parametrize("rule", CAUGHT_BY)
def test_without_a_rule_some_seed_finds_something_wrong(rule: str) -> None:
    rules = without(rule)
    reads = rule == "retention_read_what_remains"
    simulator = Simulator(
        rules,
        views=VIEWS,
        partial_share=float(reads),
        failing_share=0.0,
        retained_share=1.0,
        retains=[RETAINS[1]],
    )
    outcomes = (simulator.play(seed, STEPS, WORKERS) for seed in range(SEEDS_MAX))
    found = next((outcome.violation for outcome in outcomes if outcome.violation is not None), None)
    assert found is not None
    assert found.checker in CAUGHT_BY[rule]


HASTY: MadeFor = {**BUSY, "sizes": (1, 3), "publish": 2.0, "lookup": 0.0, "hear": 9.0, "notice": 6.0, "start": 6.0}
REPLAY_STEPS_MAX = 150
"""Steps for which a worker is awaited that has read only a part of what was rewritten."""


def rewritten_amid_a_replay(worlds: Worlds, seed: int, rules: Rules) -> World:
    """A world where segments are rewritten, and one worker is lost before the coordinator hears of it: another one has
    read some of the epochs by then."""
    world = worlds.of(seed, HASTY, rules, STEPS_WITHOUT_A_RULE_MAX)
    world.run(STEPS)
    cluster, rng = world.cluster, Random(seed)
    rewritten = cluster.rewrite(rng)
    cluster.crash(rng.choice(cluster.running))
    for _ in range(REPLAY_STEPS_MAX):
        stands = [(member.finished, member.sent) for member in cluster.coordinator.members.values() if member.assigned]
        if any(span.last <= finished and sent < span.rewritten for span in rewritten for finished, sent in stands):
            break
        world.step()
    cluster.hear_of_segments()
    return world


@pytest.fixture(scope="module")
def worlds() -> Iterator[Worlds]:
    views = [view for view in VIEWS if view.name not in ORDERED]
    with duckdb.connect(config={"threads": 1}) as database:
        yield Worlds(compiled_views(views, RETAINS[1]), 0.0, database, retains=RETAINS[1])


def test_segments_that_are_rewritten_amid_a_replay_change_no_answer(worlds: Worlds) -> None:
    played = [worlds.play(rewritten_amid_a_replay(worlds, seed, ALL_RULES)) for seed in range(RIGHT_SEEDS)]
    assert all(world.cluster.watcher.counters["epochs_ended"] for world in played)


def test_without_coordinator_rewritten_for_all_a_worker_misses_rows_that_leave(worlds: Worlds) -> None:
    rules = without("coordinator_rewritten_for_all")
    played = (worlds.play(rewritten_amid_a_replay(worlds, seed, rules)) for seed in range(SEEDS_MAX))
    with pytest.raises(Violated) as found:
        deque(played, maxlen=0)
    assert found.value.checker == "views_equal_the_oracle"
