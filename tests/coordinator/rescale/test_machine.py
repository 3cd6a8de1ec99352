"""The coordinator machine's rescales that go as wished: rules coordinator.lock_step, coordinator.between_epochs and
coordinator.leave_when_dry of docs/internals/rescale.md."""

import re
from collections.abc import Sequence

import pytest
from coordinator_kit import (
    BOTH,
    DOWN,
    PLAN,
    UP,
    anew,
    came,
    coordinator,
    ended,
    finished,
    late,
    left,
    listeners,
    met,
    moved,
    only,
    opened,
    outcomes,
    planned,
    published,
    settled,
    tell,
    vnode_map,
    wanted,
)

from upriver.coordinator.cluster import EPOCHS_AHEAD_MAX
from upriver.coordinator.rescale.machine import QUEUE_REQUESTS_MAX
from upriver.errors import DeclarationError
from upriver.ids import Epoch, Incarnation, VnodeId, WorkerId
from upriver.migration.events import RescaleAnnounced
from upriver.protocol.coordinator_events import (
    CoordinatorEvent,
    RescaleBegun,
    RescaleEnded,
    RescaleWanted,
    StartWorkers,
    Tell,
)
from upriver.protocol.messages import Assign, CloseInput, EpochOver, Meet, MigrationOrder, OpenEpoch, ReadVnodes, Retire
from upriver.protocol.strategies import Strategy
from upriver.vnodes import VnodeMap

AT_3 = (0, 1, 0, 2)
"""What three workers own."""
MOVE_0: dict[int, int] = {0: 1}
MOVING = [*BOTH, wanted(1, moves=MOVE_0), met(1), met(2)]
ZERO, ONE, TWO = map(WorkerId, range(3))


def test_up_the_workers_that_join_are_asked_for_while_everything_goes_on() -> None:
    machine = coordinator(*BOTH)
    begun = RescaleBegun(ticket=1, before=2, after=3, vnodes=1)
    assert machine.step(wanted(1, workers=3)) == [begun, StartWorkers(workers=(TWO,))]
    assert machine.step(published(1)) == [*opened(1, 1), *opened(2, 1)]


def test_it_says_what_it_waits_for_until_keys_move() -> None:
    machine = coordinator(*BOTH, published(1), finished(1, 1))
    said = [machine.rescale_waits_for]
    for event in (wanted(1, workers=3), came(2, 3), met(1), met(2), met(3), finished(2, 1), finished(3, 1)):
        machine.step(event)
        said.append(machine.rescale_waits_for)
    assert said == [
        None,
        "worker 2 to start",
        "workers 0, 1, 2 to reach all other workers",
        "workers 1, 2 to reach all other workers",
        "worker 2 to reach all other workers",
        "workers 1, 2 to finish epoch 1",
        "worker 2 to finish epoch 1",
        None,
    ]


def test_up_a_joiner_is_assigned_nothing_as_of_the_last_epoch_and_meets_the_others() -> None:
    before = [*BOTH, published(1), finished(1, 1), finished(2, 1), wanted(1, workers=3)]
    first, *others = coordinator(*before).step(came(2, 3))
    assign = Assign(
        worker=TWO,
        plans=(PLAN,),
        maps={"rows": vnode_map()},
        reads=(),
        start_at=Epoch(1),
        serve_from=Epoch(1),
        generation=0,
    )
    peers = {WorkerId(worker): (Incarnation(worker + 1), f"host-{worker + 1}") for worker in range(3)}
    meet = Meet(meeting=1, peers=peers, strategy=Strategy.ICADD, keys_max=None)
    assert (first, others) == (tell(3, assign), [tell(incarnation, meet) for incarnation in (1, 2, 3)])


def test_up_the_rescale_is_announced_when_all_have_met() -> None:
    machine = coordinator(*UP[:-1])
    before, after = vnode_map(), vnode_map(AT_3, version=1)
    order = RescaleAnnounced(before=before, after=after, old=(ZERO, ONE), new=(ZERO, ONE, TWO))
    orders = [tell(incarnation, MigrationOrder(region="rows", order=order)) for incarnation in (1, 2, 3)]
    assert machine.step(met(3)) == orders


def test_up_the_rescale_is_over_when_all_have_settled_and_then_joiners_read() -> None:
    machine = coordinator(*UP, settled(3), settled(1))
    *reads, over = machine.step(settled(2))
    assert reads == [tell(2, reading(1)), tell(3, reading(3))], "the first reads what it has read before"
    assert outcomes([over]) == [(1, "finished", 1)]
    assert machine.vnode_map == vnode_map(AT_3, version=1)
    assert listeners(OpenEpoch, machine.step(published(1))) == [1, 2, 3]


def reading(*vnodes: int) -> ReadVnodes:
    return ReadVnodes(vnodes=tuple(map(VnodeId, vnodes)))


def test_a_slice_that_has_moved_is_read_by_its_new_owner_from_the_next_epoch_on() -> None:
    machine = coordinator(*DOWN, published(1), published(2))
    before = machine.vnode_map
    assert machine.step(moved(2, 1)) == []
    assert machine.cluster.lookup_map == before
    machine.step(finished(1, 1))
    first, second, *epochs = machine.step(finished(2, 1))[3:]  # the epoch has ended
    assert (first, second) == (tell(1, reading(0, 1, 2)), tell(2, reading(3)))
    assert epochs == [tell(i, OpenEpoch(epoch=Epoch(2), mixed=True, after=Epoch(1))) for i in (1, 2)]
    assert machine.cluster.lookup_map == VnodeMap(before.version, (ZERO, ZERO, ZERO, ONE)), "and asked for its keys"
    machine.step(finished(1, 2))
    machine.step(published(3))
    assert listeners(ReadVnodes, machine.step(finished(2, 2))) == [], "nothing has moved since"
    assert machine.vnode_map == before


def test_several_joiners_are_waited_for() -> None:
    machine = coordinator(*BOTH)
    assert only(StartWorkers, machine.step(wanted(1, workers=4))) == [StartWorkers(workers=(TWO, WorkerId(3)))]
    assert machine.step(came(3, 3)) == []
    assert listeners(Meet, machine.step(came(2, 4))) == [1, 2, 4, 3]


def test_a_joiner_that_registers_twice_takes_its_own_place() -> None:
    machine = coordinator(*BOTH, wanted(1, workers=4), came(2, 3))
    assert machine.step(came(2, 4)) == [tell(3, Retire())]
    assert listeners(Meet, machine.step(came(3, 5))) == [1, 2, 4, 5]


def test_down_a_leaver_that_has_settled_reads_no_more_and_its_input_is_closed() -> None:
    machine = coordinator(*DOWN)
    reads = [tell(1, ReadVnodes(vnodes=tuple(map(VnodeId, range(4))))), tell(2, ReadVnodes(vnodes=()))]
    assert machine.step(settled(2)) == [*reads, tell(2, CloseInput(peers=(ZERO,)))]


def test_down_a_leaver_is_told_to_retire_only_when_all_it_sent_was_read() -> None:
    machine = coordinator(*DOWN, settled(2))
    assert listeners(Retire, machine.step(settled(1))) == []
    actions = machine.step(left(1, peer=1))
    assert (listeners(Retire, actions), outcomes(actions)) == ([2], [(1, "finished", 2)])
    assert list(machine.members) == [ZERO]


def test_coordinator_leave_when_dry_a_leavers_input_is_closed_when_the_last_epoch_that_it_reads_has_ended() -> None:
    machine = coordinator(*DOWN, published(1))
    assert listeners(CloseInput, machine.step(settled(2))) == []
    machine.step(finished(2, 1))
    actions = machine.step(finished(1, 1))
    assert (listeners(EpochOver, actions), listeners(CloseInput, actions)) == ([1, 2], [2])


def test_coordinator_leave_when_dry_a_worker_that_has_left_is_not_sent_the_next_epoch_and_not_waited_for() -> None:
    machine = coordinator(*DOWN, settled(2), settled(1))
    assert machine.step(published(1)) == opened(1, 1, mixed=True)
    assert ended(1)[0] in machine.step(finished(1, 1))


def test_moves_go_to_workers_that_are_there() -> None:
    machine = coordinator(*BOTH)
    begun, *meets = machine.step(wanted(1, moves=MOVE_0))
    assert begun == RescaleBegun(ticket=1, before=2, after=2, vnodes=1)
    assert listeners(Meet, meets) == [1, 2]
    machine.step(met(1))
    (order, _) = only(MigrationOrder, machine.step(met(2)))
    assert isinstance(order.order, RescaleAnnounced)
    assert order.order.after == vnode_map((1, 1, 0, 1), version=1)


@pytest.mark.parametrize("wanted_rescale", [wanted(7, workers=2), wanted(7, moves={}), wanted(7, moves={0: 0})])
def test_a_request_that_changes_nothing_is_over_at_once(wanted_rescale: RescaleWanted) -> None:
    machine = coordinator(*BOTH)
    actions = machine.step(wanted_rescale)
    assert (outcomes(actions), only(RescaleBegun, actions)) == ([(7, "finished", 0)], [])
    assert machine.vnode_map == vnode_map()


@pytest.mark.parametrize(
    ("wanted_rescale", "error"),
    [
        (wanted(7, workers=0), "one worker or more"),
        (wanted(7, workers=5), "4 vnodes can be spread over 1 to 4 workers"),
        (wanted(7, moves={4: 0}), "there is no vnode 4"),
        (wanted(7, moves={0: 2}), r"workers \[2\] would own vnodes"),
        (wanted(7, moves={0: -1}), "a worker id is 0 or more"),
    ],
)
def test_a_request_that_cannot_be_met_is_refused_and_nothing_changes(wanted_rescale: RescaleWanted, error: str) -> None:
    machine = coordinator(*BOTH)
    (refusal,) = machine.step(wanted_rescale)
    assert isinstance(refusal, RescaleEnded)
    assert (refusal.ticket, refusal.outcome) == (7, "refused")
    assert isinstance(refusal.error, DeclarationError)
    assert re.search(error, str(refusal.error))
    assert machine.step(published(1)) == [*opened(1, 1), *opened(2, 1)]


def test_coordinator_lock_step_while_keys_move_an_epoch_is_opened_when_the_one_before_has_ended_everywhere() -> None:
    machine = coordinator(*MOVING)
    assert machine.step(published(1, rows=2)) == [*opened(1, 1, mixed=True), *opened(2, 1, mixed=True)]
    assert machine.step(published(2)) == []
    assert machine.step(finished(1, 1, applied=1)) == []
    assert machine.step(finished(2, 1)) == [], "a row is on its way"
    actions = machine.step(late(1, 1, applied=2))
    over = [tell(incarnation, EpochOver(epoch=Epoch(1))) for incarnation in (1, 2)]
    assert actions == [*ended(1), *over, *opened(1, 2, mixed=True), *opened(2, 2, mixed=True)]


def test_coordinator_lock_step_epochs_that_have_piled_up_are_opened_together() -> None:
    machine = coordinator(*MOVING, *map(published, range(1, EPOCHS_AHEAD_MAX + 3)), finished(1, 1))
    together = range(2, EPOCHS_AHEAD_MAX + 2)
    actions = machine.step(finished(2, 1))
    assert [action for action in actions if isinstance(action, Tell) and isinstance(action.message, OpenEpoch)] == [
        told for epoch in together for told in (*opened(1, epoch, mixed=True), *opened(2, epoch, mixed=True))
    ]
    for epoch in together[:-1]:
        assert machine.step(finished(1, epoch)) == []
        assert listeners(EpochOver, machine.step(finished(2, epoch))) == [1, 2], "each ends by itself"
    machine.step(finished(1, together[-1]))
    assert listeners(OpenEpoch, machine.step(finished(2, together[-1]))) == [1, 2]


def test_coordinator_lock_step_the_rescale_is_over_when_the_epoch_that_is_open_has_ended() -> None:
    machine = coordinator(*MOVING, published(1), published(2), settled(1))
    assert machine.step(settled(2)) == []
    machine.step(finished(1, 1))
    actions = machine.step(finished(2, 1))
    assert outcomes(actions) == [(1, "finished", 1)]
    assert listeners(EpochOver, actions) == [1, 2]
    assert actions[-3:-1] == [*opened(1, 2), *opened(2, 2)], "while the end is recorded"


def test_coordinator_between_epochs_everything_goes_on_until_all_have_met_and_then_no_new_epoch_is_opened() -> None:
    machine = coordinator(*BOTH, published(1), wanted(1, moves=MOVE_0))
    assert listeners(OpenEpoch, machine.step(published(2))) == [1, 2]
    machine.step(met(1))
    assert listeners(MigrationOrder, machine.step(met(2))) == []
    assert machine.step(published(3)) == []


def test_coordinator_between_epochs_a_rescale_is_announced_when_all_epochs_that_were_opened_have_ended() -> None:
    machine = coordinator(*BOTH, published(1), published(2), wanted(1, moves=MOVE_0), met(1), met(2), published(3))
    for word in (finished(1, 1), finished(1, 2), finished(2, 1)):
        assert listeners(MigrationOrder, machine.step(word)) == []
    actions = machine.step(finished(2, 2))
    assert (listeners(MigrationOrder, actions), listeners(OpenEpoch, actions)) == ([1, 2], [1, 2])


def test_coordinator_between_epochs_a_worker_behind_is_sent_what_others_have_had() -> None:
    epochs = [published(epoch) for epoch in range(1, 7)]
    machine = coordinator(*BOTH, *epochs, finished(1, 1), wanted(1, moves=MOVE_0), met(1), met(2))
    for epoch in range(2, 6):
        machine.step(finished(1, epoch))
    assert machine.step(finished(2, 1)) == [*ended(1), *opened(2, 5)]
    for epoch in range(2, 5):
        assert listeners(OpenEpoch, machine.step(finished(2, epoch))) == []
    assert listeners(MigrationOrder, machine.step(finished(2, 5))) == [1, 2]


def test_words_about_another_meeting_count_for_nothing() -> None:
    machine = coordinator(*MOVING[:-2], met(1, meeting=7))
    assert machine.step(met(2)) == []
    assert listeners(MigrationOrder, machine.step(met(1))) == [1, 2]


def test_coordinator_late_reports_change_nothing_a_worker_that_settles_once_the_rescale_is_over_is_ignored() -> None:
    assert coordinator(*BOTH).step(settled(1)) == []


def test_coordinator_late_reports_change_nothing_a_worker_settles_twice() -> None:
    machine = coordinator(*MOVING, settled(1), settled(1))
    assert outcomes(machine.step(settled(2))) == [(1, "finished", 1)]


def test_rescales_take_turns() -> None:
    machine = coordinator(*MOVING, wanted(2, moves={1: 0}), wanted(3, moves={0: 0}), settled(1))
    actions = machine.step(settled(2))
    assert (outcomes(actions), [begun.ticket for begun in only(RescaleBegun, actions)]) == ([(1, "finished", 1)], [2])
    assert [meet.meeting for meet in only(Meet, actions)] == [2, 2]
    for word in (met(1, meeting=2), met(2, meeting=2), settled(1, version=2)):
        machine.step(word)
    assert [begun.ticket for begun in only(RescaleBegun, machine.step(settled(2, version=2)))] == [3]


@pytest.mark.parametrize("at_once", [wanted(2, workers=2), wanted(2, workers=0)], ids=["nothing to do", "refused"])
def test_a_request_that_ends_at_once_does_not_hold_up_the_next(at_once: RescaleWanted) -> None:
    machine = coordinator(*MOVING, at_once, wanted(3, moves={1: 0}), settled(1))
    assert [begun.ticket for begun in only(RescaleBegun, machine.step(settled(2)))] == [3]


def test_so_many_requests_wait_and_one_more_is_refused() -> None:
    requests = [wanted(ticket, moves={1: 0}) for ticket in range(2, QUEUE_REQUESTS_MAX + 2)]
    machine = coordinator(*MOVING)
    assert [machine.step(request) for request in requests] == [[]] * QUEUE_REQUESTS_MAX
    assert outcomes(machine.step(wanted(99, workers=3))) == [(99, "refused", 0)]


def test_each_view_is_settled_by_itself() -> None:
    twins = (PLAN, planned(name="twin"))
    machine = coordinator(*MOVING[:-1], plans=twins)
    assert sorted(order.region for order in only(MigrationOrder, machine.step(met(2)))) == [
        "rows",
        "rows",
        "twin",
        "twin",
    ]
    for word in (settled(1), settled(2), settled(1, view="twin")):
        assert outcomes(machine.step(word)) == []
    assert outcomes(machine.step(settled(2, view="twin"))) == [(1, "finished", 1)]


# Restart ------------------------------------------------------------------------------------------------------------

RESTART: Sequence[CoordinatorEvent] = [*BOTH, published(1), finished(1, 1), finished(2, 1)]


def test_restart_all_begin_anew_by_the_new_map_and_read_everything_again() -> None:
    machine = coordinator(*RESTART, wanted(1, workers=3, strategy=Strategy.RESTART))
    actions = machine.step(came(2, 3))
    assigned = only(Assign, actions)
    assert [(a.worker, a.generation, a.start_at, a.serve_from) for a in assigned] == [(w, 1, 0, 1) for w in range(3)]
    assert assigned[0].maps == {"rows": vnode_map(AT_3, version=1)}
    assert (listeners(Meet, actions), listeners(OpenEpoch, actions)) == ([], [1, 2, 3])


def test_restart_is_over_when_all_have_caught_up() -> None:
    machine = coordinator(*RESTART, published(2), finished(1, 2), finished(2, 2))
    machine.step(wanted(1, workers=1, strategy=Strategy.RESTART))
    machine.step(anew(1, 1))
    assert outcomes(machine.step(finished(1, 1))) == []
    assert outcomes(machine.step(finished(1, 2))) == [(1, "finished", 2)]
    assert list(machine.members) == [ZERO]
