"""Flows beside each other in a whole cluster: what happens to one changes no other."""

from dataclasses import replace
from itertools import count

import pytest

from simulator.campaign import Simulator
from simulator.scenarios import FAIR, SCENARIOS
from simulator.tables import ALL_VIEWS, EXCHANGED, ViewSpec
from simulator.world import World
from upriver.ids import BEGINNING, FlowId
from upriver.protocol.coordinator_events import DrainOverdue, RescaleWanted
from upriver.protocol.strategies import Strategy

SLOW = FlowId(1)
LATE_SEEDS_MAX = 40
TICKET, STEPS_MAX, OVERDUE_STEPS = 1_000_000, 8_000, 200


def world_of_flows(simulator: Simulator) -> World:
    """A cluster with three flows or more."""
    worlds = map(simulator.world, count())
    return next(world for world in worlds if len(world.cluster.view_observer.kept) > 2)


@pytest.mark.parametrize("views", [ALL_VIEWS, EXCHANGED], ids=["views of all kinds", "views with exchanges"])
def test_a_flow_that_is_never_scheduled_holds_no_other_up(views: tuple[ViewSpec, ...]) -> None:
    simulator = Simulator(replace(FAIR, views=views))
    world = world_of_flows(simulator)
    cluster = world.cluster
    world.unscheduled = SLOW
    world.run(2 * FAIR.steps)
    world.calm_down()
    ended = {flow: cluster.watcher.ended_in(flow) for flow in cluster.view_observer.flows}
    assert cluster.lake.published > BEGINNING
    assert ended.pop(SLOW) == BEGINNING
    assert set(ended.values()) == {cluster.lake.published}
    world.unscheduled = None
    simulator.come_to_rest(world)
    world.stop()


@pytest.mark.parametrize("scenario", ["log replanned", "log replanned exchanges"])
def test_what_comes_late_for_a_flow_that_is_gone_comes_at_both_ends(scenario: str) -> None:
    """What it changes is watched by the cluster's checkers."""
    simulator, late = Simulator(SCENARIOS[scenario]), {"late_at_workers", "late_at_the_coordinator"}
    for seed in range(LATE_SEEDS_MAX):
        outcome = simulator.play(seed)
        assert outcome.violation is None, str(outcome)
        late -= outcome.counters.keys()
        if not late:
            return
    assert not late


@pytest.mark.parametrize("strategy", [strategy for strategy in Strategy if strategy is not Strategy.LEARNER])
def test_a_flow_that_is_never_scheduled_holds_no_rescale_up(strategy: Strategy) -> None:
    """Its open epochs are not waited for; it begins anew by the new map."""
    simulator = Simulator(FAIR)
    world = world_of_flows(simulator)
    observer = world.cluster.rescale_observer
    world.unscheduled = SLOW
    world.run(FAIR.steps)
    world.want(RescaleWanted(ticket=TICKET, workers=4, moves=None, strategy=strategy, keys_max=None))
    for _ in range(STEPS_MAX):
        if observer.drains == TICKET and not world.steps % OVERDUE_STEPS:
            world.cluster.step_coordinator(DrainOverdue(ticket=TICKET))
        if TICKET not in observer.waiting:
            break
        world.step()
    assert TICKET not in observer.waiting
    assert len(world.cluster.watcher.places) == 4
    world.unscheduled = None
    simulator.come_to_rest(world)
    world.stop()
