"""The model's coordinator runs one rescale at a time, and aborts it."""

import pytest
from migration_kit import ONE, TWO, V1, ZERO, vnode, vnode_map

from simulator.icadd_coordinator import (
    ModelAction,
    ModelCoordinator,
    ModelRescale,
    RetireModelWorker,
    StartModelWorkers,
    TellDistributor,
)
from upriver.errors import IllegalEvent
from upriver.migration.events import AbortAsked, RescaleAnnounced
from upriver.migration.rules import ALL_RULES

REGION = "region 0"
FIRST, SECOND = ModelRescale(moves={vnode(0): ONE}), ModelRescale(moves={vnode(1): ONE})


def coordinator() -> ModelCoordinator:
    """Two workers, two vnodes each."""
    return ModelCoordinator({REGION: vnode_map(0, 0, 0, 1, 1)}, (ZERO, ONE), ALL_RULES)


def announced(actions: list[ModelAction]) -> list[tuple[int, tuple[int, ...]]]:
    """The workers that hear of a rescale, and its map's owners."""
    orders = [(a.worker, a.order) for a in actions if isinstance(a, TellDistributor)]
    return [(worker, order.after.owners) for worker, order in orders if isinstance(order, RescaleAnnounced)]


def test_icadd_one_rescale_at_a_time_a_second_rescale_waits_for_the_first() -> None:
    made = coordinator()
    assert announced(made.ask(FIRST)) == [(0, (1, 0, 1, 1)), (1, (1, 0, 1, 1))]
    assert made.ask(SECOND) == []
    assert made.settled(ZERO, REGION, V1, ()) == []
    assert announced(made.settled(ONE, REGION, V1, ())) == [(0, (1, 1, 1, 1)), (1, (1, 1, 1, 1))]


def test_joiners_start_before_anything_is_announced() -> None:
    started, *told = coordinator().ask(ModelRescale(workers=(ZERO, ONE, TWO)))
    assert isinstance(started, StartModelWorkers)
    assert started.plan.joining == (TWO,)
    assert [worker for worker, _ in announced(told)] == [0, 1, 2]


def test_a_leaver_retires_once_settled() -> None:
    made = coordinator()
    made.ask(ModelRescale(workers=(ZERO,)))
    assert made.settled(ONE, REGION, V1, ()) == [RetireModelWorker(ONE, (ZERO,))]
    made.settled(ZERO, REGION, V1, ())
    assert set(made.workers) == {ZERO, ONE}, "the leaver's last messages are not read"
    made.peer_left(ZERO, REGION, ONE)
    assert made.workers == (ZERO,)


def test_an_abort_reaches_those_that_have_not_settled() -> None:
    made = coordinator()
    assert made.abort() == []
    made.ask(ModelRescale(workers=(ZERO,)))
    made.settled(ZERO, REGION, V1, (vnode(2), vnode(3)))
    assert made.abort() == [TellDistributor(ONE, REGION, AbortAsked(version=V1))]
    assert made.abort() == []
    assert made.settled(ONE, REGION, V1, (vnode(2), vnode(3))) == []
    assert (made.announced, made.workers) == (None, (ZERO, ONE))


@pytest.mark.parametrize("wish", [ModelRescale(workers=()), ModelRescale(workers=(ZERO, ONE))], ids=["none", "same"])
def test_what_cannot_be_or_changes_nothing_is_over_at_once(wish: ModelRescale) -> None:
    made = coordinator()
    assert made.ask(wish) == []
    assert announced(made.ask(FIRST))


def test_reports_that_are_not_due_are_illegal() -> None:
    with pytest.raises(IllegalEvent):
        coordinator().settled(ZERO, REGION, V1, ())
    with pytest.raises(IllegalEvent):
        coordinator().peer_left(ZERO, REGION, ONE)
