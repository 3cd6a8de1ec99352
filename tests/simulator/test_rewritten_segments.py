"""Segments that are rewritten without rows that have left, while a worker has read some of their epochs."""

from dataclasses import replace
from random import Random

import pytest

from simulator.campaign import Simulator
from simulator.checkers import Violated
from simulator.replays import STEPS_TO_REST_MAX, without
from simulator.scenarios import BUSY, FLOWING, ClusterScenario
from simulator.tables import VIEWS
from simulator.world import World

HASTY: ClusterScenario = replace(
    FLOWING,
    views=VIEWS,
    retained_share=1.0,
    ways=(1,),
    weights={**BUSY, "sizes": (1, 3), "publish": 2.0, "lookup": 0.0, "hear": 9.0, "notice": 6.0, "start": 6.0},
)
STEPS = 200
REPLAY_STEPS_MAX = 150
"""Steps for which a worker is awaited that has read only a part of what was rewritten."""


def rewritten_amid_a_replay(simulator: Simulator, seed: int) -> World:
    """A world where segments are rewritten, and one worker is lost before the coordinator hears of it: another one has
    read some of the epochs by then."""
    world = simulator.world(seed)
    world.run(STEPS)
    cluster, rng = world.cluster, Random(seed)
    rewritten = cluster.rewrite(rng)
    cluster.crash(rng.choice(cluster.running))
    for _ in range(REPLAY_STEPS_MAX):
        members = [member for flow in cluster.coordinator.cluster for member in flow.by_worker()]
        stands = [(member.finished, member.sent) for member in members]
        if any(span.last <= finished and sent < span.rewritten for span in rewritten for finished, sent in stands):
            break
        world.step()
    cluster.hear_of_segments()
    world.run(HASTY.steps)
    simulator.come_to_rest(world)
    return world


@pytest.mark.parametrize("seed", range(2))
def test_segments_that_are_rewritten_amid_a_replay_change_no_answer(seed: int) -> None:
    assert rewritten_amid_a_replay(Simulator(HASTY), seed).cluster.watcher.counters["epochs_ended"]


def test_without_coordinator_rewritten_for_all_a_worker_misses_rows_that_leave() -> None:
    simulator = Simulator(HASTY, without("coordinator_rewritten_for_all"), steps_to_rest_max=STEPS_TO_REST_MAX)
    with pytest.raises(Violated) as found:
        rewritten_amid_a_replay(simulator, seed=21)
    assert found.value.checker == "views_equal_the_oracle"
