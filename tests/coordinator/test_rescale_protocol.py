"""The coordinator runs one rescale at a time, retires leavers in time, and refuses what cannot be."""

import pytest
from migration_kit import ONE, TWO, V1, ZERO, vnode, vnode_map

from upriver.coordinator.rescale_protocol import (
    QUEUE_REQUESTS_MAX,
    AbortRescale,
    Action,
    Announce,
    AskForWorkers,
    PeerGone,
    RegionId,
    RegionSettled,
    RescaleAsked,
    RescaleCoordinator,
    RescaleOver,
    RescaleRefused,
    RetireWorkers,
    Ticket,
    WorkersStarted,
)
from upriver.errors import IllegalEvent, ProtocolError
from upriver.ids import VnodeId, WorkerId
from upriver.migration.events import AbortAsked, RescaleAnnounced

R0, R1 = RegionId(0), RegionId(1)
FIRST, SECOND = Ticket(1), Ticket(2)


def coordinator(*regions: RegionId) -> RescaleCoordinator:
    """Two workers, two vnodes each, in each region."""
    return RescaleCoordinator({region: vnode_map(0, 0, 0, 1, 1) for region in regions or (R0,)}, (ZERO, ONE))


def settled(worker: int, region: RegionId = R0, *kept: VnodeId) -> RegionSettled:
    return RegionSettled(worker=WorkerId(worker), region=region, version=V1, kept=kept)


def announced(actions: tuple[Action, ...]) -> list[tuple[int, int]]:
    return [(a.worker, a.region) for a in actions if isinstance(a, Announce) and isinstance(a.order, RescaleAnnounced)]


def test_joiners_are_started_before_anything_is_announced() -> None:
    made = coordinator(R0, R1)
    assert made.step(RescaleAsked(ticket=FIRST, workers=(ZERO, ONE, TWO))) == (AskForWorkers(workers=(TWO,)),)
    assert announced(made.step(WorkersStarted())) == [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)]


def test_m9_a_second_rescale_waits_for_the_first() -> None:
    made = coordinator()
    made.step(RescaleAsked(ticket=FIRST, moves={vnode(0): ONE}))
    assert made.step(RescaleAsked(ticket=SECOND, moves={vnode(1): ONE})) == ()
    assert made.step(settled(0)) == ()
    over, *second = made.step(settled(1))
    assert isinstance(over, RescaleOver)
    assert (over.ticket, over.maps[R0].owners) == (FIRST, (1, 0, 1, 1))
    (order, _) = [action.order for action in second if isinstance(action, Announce)]
    assert isinstance(order, RescaleAnnounced)
    assert (order.before.owners, order.after.owners, order.version) == ((1, 0, 1, 1), (1, 1, 1, 1), 2)


def test_a_rescale_that_changes_nothing_is_over_at_once() -> None:
    made = coordinator()
    (over,) = made.step(RescaleAsked(ticket=FIRST, workers=(ZERO, ONE)))
    assert over == RescaleOver(ticket=FIRST, maps=made.maps, workers=(ZERO, ONE))


def test_m8_a_leaver_is_retired_once_settled_and_waited_for() -> None:
    made = coordinator(R0, R1)
    made.step(RescaleAsked(ticket=FIRST, workers=(ZERO,)))
    assert made.step(settled(1, R0)) == ()
    assert made.step(settled(1, R1)) == (RetireWorkers(worker=ONE, peers=(ZERO,)),)
    made.step(settled(0, R0))
    assert made.step(settled(0, R1)) == ()
    assert made.step(PeerGone(worker=ZERO, region=R0, leaver=ONE)) == ()
    (over,) = made.step(PeerGone(worker=ZERO, region=R1, leaver=ONE))
    assert isinstance(over, RescaleOver)
    assert over.workers == (ZERO,)


def test_abort_reaches_those_who_have_not_settled_and_keeps_the_leaver() -> None:
    made = coordinator()
    made.step(RescaleAsked(ticket=FIRST, workers=(ZERO,)))
    orders = made.step(AbortRescale(ticket=FIRST))
    assert orders == tuple(Announce(worker=w, region=R0, order=AbortAsked(version=V1)) for w in (ZERO, ONE))
    kept = (vnode(2), vnode(3))
    assert made.step(settled(1, R0, *kept)) == ()
    (over,) = made.step(settled(0, R0, *kept))
    assert isinstance(over, RescaleOver)
    assert over.workers == (ZERO, ONE)
    assert over.maps[R0] == vnode_map(1, 0, 0, 1, 1)


def test_abort_of_a_rescale_that_waits_refuses_it() -> None:
    made = coordinator()
    made.step(RescaleAsked(ticket=FIRST, moves={vnode(0): ONE}))
    made.step(RescaleAsked(ticket=SECOND, moves={vnode(1): ONE}))
    (refused,) = made.step(AbortRescale(ticket=SECOND))
    assert isinstance(refused, RescaleRefused)
    assert refused.ticket == SECOND
    assert made.queue == ()


def test_abort_while_workers_start_moves_nothing() -> None:
    made = coordinator()
    made.step(RescaleAsked(ticket=FIRST, workers=(ZERO, ONE, TWO)))
    made.step(AbortRescale(ticket=FIRST))
    orders = [action.order for action in made.step(WorkersStarted()) if isinstance(action, Announce)]
    assert {order.after.owners for order in orders if isinstance(order, RescaleAnnounced)} == {(0, 0, 1, 1)}


def test_abort_of_what_is_over_does_nothing() -> None:
    assert coordinator().step(AbortRescale(ticket=FIRST)) == ()


@pytest.mark.parametrize(
    "request_",
    [
        RescaleAsked(ticket=FIRST, workers=()),
        RescaleAsked(ticket=FIRST, workers=(ZERO, ZERO)),
        RescaleAsked(ticket=FIRST, workers=tuple(map(WorkerId, range(5)))),
        RescaleAsked(ticket=FIRST, moves={VnodeId(9): ZERO}),
        RescaleAsked(ticket=FIRST, moves={VnodeId(0): TWO}),
        RescaleAsked(ticket=FIRST, workers=(ZERO,), moves={}),
    ],
    ids=["none", "twice", "more than vnodes", "no such vnode", "no such worker", "leaver keeps vnodes"],
)
def test_what_cannot_be_is_refused_and_changes_nothing(request_: RescaleAsked) -> None:
    made = coordinator()
    (refused,) = made.step(request_)
    assert isinstance(refused, RescaleRefused)
    assert announced(made.step(RescaleAsked(ticket=SECOND, moves={vnode(0): ONE}))) == [(0, 0), (1, 0)]


def test_the_queue_has_a_limit() -> None:
    made = coordinator()
    for number in range(QUEUE_REQUESTS_MAX + 1):
        assert not any(isinstance(a, RescaleRefused) for a in made.step(_move(number)))
    (refused,) = made.step(_move(99))
    assert isinstance(refused, RescaleRefused)


def _move(number: int) -> RescaleAsked:
    return RescaleAsked(ticket=Ticket(number), moves={vnode(number % 2): ONE})


def test_reports_that_were_not_asked_for_are_illegal() -> None:
    with pytest.raises(IllegalEvent):
        coordinator().step(settled(0))
    with pytest.raises(IllegalEvent):
        coordinator().step(WorkersStarted())
    with pytest.raises(IllegalEvent):
        coordinator().step(PeerGone(worker=ZERO, region=R0, leaver=ONE))


def test_workers_that_do_not_agree_are_a_protocol_error() -> None:
    made = coordinator()
    made.step(RescaleAsked(ticket=FIRST, moves={vnode(0): ONE}))
    made.step(settled(0, R0, vnode(0)))
    with pytest.raises(ProtocolError, match="do not agree"):
        made.step(settled(1))
