"""A worker that comes back after standbys took over gets its share of the vnodes again."""

import pytest

from simulator.campaign import Simulator
from simulator.scenarios import SCENARIOS
from upriver.ids import WorkerId


@pytest.mark.parametrize("seed", [79, *(pytest.param(seed, marks=pytest.mark.verify) for seed in (88, 92, 116, 135))])
def test_a_worker_that_comes_back_has_its_share_again(seed: int) -> None:
    """In these seeds the network loses what the worker was about to learn, and it has to learn that again."""
    scenario = SCENARIOS["taken over one by one"]
    simulator = Simulator(scenario)
    world = simulator.world(seed)
    world.run(scenario.steps)
    simulator.come_to_rest(world)
    assert world.cluster.watcher.counters["crashes"]
    for vnode_map in world.cluster.maps().values():
        shares = [len(vnode_map.vnodes_of_worker(WorkerId(worker))) for worker in range(scenario.workers)]
        assert max(shares) - min(shares) <= 1
