"""Rescales in the whole cluster, one at a time: under fair odds, given up, in a row, and with a worker lost on the way.

What must hold at each step and at rest is watched by the cluster's checkers; a test adds what it alone knows.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from itertools import count

import pytest

from simulator.campaign import Simulator
from simulator.process import Process
from simulator.scenarios import FAIR
from simulator.world import World
from upriver.ids import VnodeId, WorkerId
from upriver.protocol.coordinator_events import RescaleWanted
from upriver.protocol.messages import MigrationOrder
from upriver.protocol.strategies import Strategy

in_verify = partial(pytest.param, marks=pytest.mark.verify)
STEPS_MAX = 8000
VNODES_MIN, REGIONS_MIN = 8, 2
LIVE = tuple(strategy for strategy in Strategy if strategy not in (Strategy.RESTART, Strategy.LEARNER))


def fair_world(workers: int) -> World:
    """A cluster in which no process dies or is slow, every flow is waited for, and no rescale is requested yet; it has
    run for a while, and all keys are kept, so there are some to move."""
    simulator = Simulator(replace(FAIR, workers=workers, weights={**(FAIR.weights or {}), "overdue": 0.0}))
    worlds = map(simulator.world, count())
    world = next(world for world in worlds if has_much_to_move(world))
    world.run(FAIR.steps)
    return world


def has_much_to_move(world: World) -> bool:
    maps = world.cluster.maps()
    return len(maps) > REGIONS_MIN and len(maps["readers"].owners) >= VNODES_MIN


def wanted(
    workers: int | None = None,
    strategy: Strategy = Strategy.ICADD,
    moves: Mapping[VnodeId, WorkerId] | None = None,
    ticket: int = 1_000_000,
) -> RescaleWanted:
    return RescaleWanted(ticket=ticket, workers=workers, moves=moves, strategy=strategy, keys_max=1)


def run_until(world: World, counter: str, times: int = 1) -> None:
    """Until this has happened so often."""
    for _ in range(STEPS_MAX):
        if world.cluster.watcher.counters[counter] >= times:
            return
        world.step()
    pytest.fail(f"not {times} {counter} within {STEPS_MAX} steps")


def come_to_rest(world: World) -> None:
    Simulator().come_to_rest(world)
    world.stop()


def owners(world: World) -> set[WorkerId]:
    return {worker for vnode_map in world.cluster.maps().values() for worker in vnode_map.workers}


@pytest.mark.parametrize("strategy", Strategy)
@pytest.mark.parametrize(
    ("before", "after"),
    [(1, 3), (3, 1), pytest.param(2, 4, marks=pytest.mark.long), pytest.param(4, 2, marks=pytest.mark.long)],
)
def test_there_are_as_many_workers_as_wanted(before: int, after: int, strategy: Strategy) -> None:
    world = fair_world(before)
    world.want(wanted(after, strategy))
    run_until(world, "rescales_finished")
    counters = world.cluster.watcher.counters
    assert len(world.cluster.watcher.places) == after
    assert (counters["loads"] > 0) == (strategy in LIVE)
    assert (counters["handed_over"] > 0) == (strategy is Strategy.LEARNER)
    come_to_rest(world)


@pytest.mark.parametrize("strategy", LIVE)
def test_vnodes_go_where_they_are_wanted_and_no_other_goes(strategy: Strategy) -> None:
    world = fair_world(3)
    before = world.cluster.maps()["readers"]
    moves = {VnodeId(0): WorkerId(2), VnodeId(3): WorkerId(0)}
    world.want(wanted(strategy=strategy, moves=moves))
    run_until(world, "rescales_finished")
    assert world.cluster.maps()["readers"].owners == before.moved(moves).owners
    come_to_rest(world)


@pytest.mark.parametrize("strategy", LIVE)
@pytest.mark.parametrize(("before", "after"), [(2, 4), (4, 2)])
@pytest.mark.parametrize("loads", [1, in_verify(0), in_verify(3)])
def test_a_rescale_given_up_leaves_one_map_and_no_worker_without_vnodes(
    loads: int, before: int, after: int, strategy: Strategy
) -> None:
    world = fair_world(before)
    wish = wanted(after, strategy)
    world.want(wish)
    run_until(world, "loads", loads)
    world.abort(wish.ticket)
    run_until(world, "rescales_aborted")
    assert world.cluster.watcher.places == owners(world)
    come_to_rest(world)


def test_rescales_take_turns() -> None:
    world = fair_world(2)
    counts = [4, 1, 3, 5, 2]
    for number, (workers, strategy) in enumerate(zip(counts, [*LIVE, Strategy.RESTART, Strategy.LEARNER], strict=True)):
        world.want(wanted(workers, strategy, ticket=1_000_000 + number))
    for turn, workers in enumerate(counts, 1):
        run_until(world, "rescales_finished", turn)
        assert len(world.cluster.watcher.places) == workers
    come_to_rest(world)


@pytest.mark.parametrize("strategy", LIVE)
@pytest.mark.parametrize(("before", "after", "dies"), [(2, 4, 3), (4, 2, 0), in_verify(2, 4, 0), in_verify(4, 2, 3)])
def test_when_a_worker_dies_while_keys_move_all_is_as_before(
    before: int, after: int, dies: int, strategy: Strategy
) -> None:
    world = fair_world(before)
    places, old = set(world.cluster.watcher.places), world.cluster.maps()["readers"]
    world.want(wanted(after, strategy))
    run_until(world, "loads")
    world.cluster.crash(world.cluster.latest[WorkerId(dies)])
    run_until(world, "rescales_failed")
    assert world.cluster.watcher.places == places
    assert world.cluster.maps()["readers"].owners == old.owners
    come_to_rest(world)


@pytest.mark.parametrize("dies", [0, 2])
def test_a_worker_that_dies_before_keys_move_is_waited_for(dies: int) -> None:
    world = fair_world(2)
    met = world.cluster.watcher.counters["PeersMet"]
    world.want(wanted(3))
    run_until(world, "PeersMet", met + 1)
    if any(_is_ordered(process) for process in world.cluster.running):
        pytest.skip("keys move already")
    world.cluster.crash(world.cluster.latest[WorkerId(dies)])
    run_until(world, "rescales_finished")
    assert len(world.cluster.watcher.places) == 3
    come_to_rest(world)


def _is_ordered(process: Process) -> bool:
    return not process.alone or any(isinstance(message, MigrationOrder) for message in process.down)


@pytest.mark.parametrize("strategy", LIVE)
def test_lookups_and_scans_go_on_while_keys_move(strategy: Strategy) -> None:
    world = fair_world(2)
    world.want(wanted(4, strategy))
    run_until(world, "loads")
    run_until(world, "lookups", world.cluster.watcher.counters["lookups"] + 1)
    come_to_rest(world)
    assert world.cluster.watcher.counters["rescales_finished"] == 1
