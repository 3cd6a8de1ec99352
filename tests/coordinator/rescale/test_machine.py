"""The coordinator machine's rescales: those that go as wished, and those that are aborted, lose a worker, or end with
the app. Rules coordinator.lock_step, coordinator.between_epochs, coordinator.leave_when_dry and
worker.own_generation_only of docs/internals/rescale.md."""

import re
from collections.abc import Sequence

import pytest
from coordinator_kit import (
    BOTH,
    DOWN,
    OWNERS,
    PLAN,
    UP,
    abort,
    anew,
    came,
    coordinator,
    ended,
    failures,
    finished,
    gone,
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
    said,
    scan,
    settled,
    share,
    tell,
    vnode_map,
    wanted,
)

from upriver.coordinator.flow import EPOCHS_AHEAD_MAX
from upriver.coordinator.rescale.machine import QUEUE_REQUESTS_MAX
from upriver.coordinator.rescale.stages import MEETINGS_AGAIN_MAX
from upriver.errors import DeclarationError, WorkerLost
from upriver.ids import Epoch, FlowId, Incarnation, MapVersion, VnodeId, WorkerId
from upriver.migration.events import AbortAsked, RescaleAnnounced
from upriver.protocol.coordinator_events import (
    CoordinatorAction,
    CoordinatorEvent,
    ReplaceWorker,
    RescaleBegun,
    RescaleEnded,
    RescaleWanted,
    StartWorkers,
    StopAsked,
    Tell,
)
from upriver.protocol.messages import (
    Assign,
    CloseInput,
    EpochOver,
    Meet,
    MigrationOrder,
    OpenEpoch,
    PeersLost,
    ReadVnodes,
    Retire,
    WorkerFailed,
)
from upriver.protocol.strategies import Strategy
from upriver.vnodes import VnodeMap

AT_3 = (0, 1, 0, 2)
"""What three workers own."""
MOVE_0 = wanted(1, moves={0: 1})
MEETING = [*BOTH, MOVE_0]
MOVING = [*MEETING, met(1), met(2)]
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
    assert machine.step(settled(2)) == [*reads, tell(2, CloseInput(flows=(FlowId(1),), peers=(ZERO,)))]


def test_down_a_leaver_is_told_to_retire_only_when_all_it_sent_was_read() -> None:
    machine = coordinator(*DOWN, settled(2))
    assert listeners(Retire, machine.step(settled(1))) == []
    actions = machine.step(left(1, peer=1))
    assert (listeners(Retire, actions), outcomes(actions)) == ([2], [(1, "finished", 2)])
    assert list(machine.cluster.processes) == [ZERO]


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
    begun, *meets = machine.step(MOVE_0)
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
    machine = coordinator(*BOTH, published(1), MOVE_0)
    assert listeners(OpenEpoch, machine.step(published(2))) == [1, 2]
    machine.step(met(1))
    assert listeners(MigrationOrder, machine.step(met(2))) == []
    assert machine.step(published(3)) == []


def test_coordinator_between_epochs_a_rescale_is_announced_when_all_epochs_that_were_opened_have_ended() -> None:
    machine = coordinator(*BOTH, published(1), published(2), MOVE_0, met(1), met(2), published(3))
    for word in (finished(1, 1), finished(1, 2), finished(2, 1)):
        assert listeners(MigrationOrder, machine.step(word)) == []
    actions = machine.step(finished(2, 2))
    assert (listeners(MigrationOrder, actions), listeners(OpenEpoch, actions)) == ([1, 2], [1, 2])


def test_coordinator_between_epochs_a_worker_behind_is_sent_what_others_have_had() -> None:
    epochs = [published(epoch) for epoch in range(1, 7)]
    machine = coordinator(*BOTH, *epochs, finished(1, 1), MOVE_0, met(1), met(2))
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
    assert list(machine.cluster.processes) == [ZERO]


# Rescales that do not go as wished

OPEN = [*BOTH, published(1, rows=2), published(2)]
"""Two epochs are open everywhere; of the first one two rows are expected."""
STARTING = [*BOTH, wanted(1, workers=3)]
DRAINING = [*BOTH, published(1), MOVE_0, met(1), met(2)]
RELOADING = [*BOTH, published(1), finished(1, 1), finished(2, 1), wanted(1, moves={0: 1}, strategy=Strategy.RESTART)]


def orders(actions: Sequence[CoordinatorAction]) -> list[tuple[str, str]]:
    return [(order.region, type(order.order).__name__) for order in only(MigrationOrder, actions)]


# Aborted ------------------------------------------------------------------------------------------------------------


def test_a_waiting_request_is_aborted_at_once() -> None:
    machine = coordinator(*MOVING, wanted(2, workers=1), wanted(3, moves={1: 0}))
    assert outcomes(machine.step(abort(2))) == [(2, "aborted", 0)]
    machine.step(settled(1))
    assert [begun.ticket for begun in only(RescaleBegun, machine.step(settled(2)))] == [3]


def test_aborted_while_starting_it_is_over_and_joiners_that_come_go_home_again() -> None:
    machine = coordinator(*STARTING)
    assert outcomes(machine.step(abort(1))) == [(1, "aborted", 0)]
    assert listeners(Retire, machine.step(came(2, 3))) == [3]
    assert machine.vnode_map == vnode_map()


@pytest.mark.parametrize("stage", [MEETING, DRAINING], ids=["Meeting", "Draining"])
def test_aborted_before_keys_move_it_is_over_and_everything_goes_on(stage: Sequence[CoordinatorEvent]) -> None:
    machine = coordinator(*stage)
    actions = machine.step(abort(1))
    assert (outcomes(actions), orders(actions)) == ([(1, "aborted", 0)], [])
    assert listeners(OpenEpoch, machine.step(published(2 if stage is DRAINING else 1))) == [1, 2]


def test_aborted_while_meeting_joiners_go_home_with_all_that_they_have_said() -> None:
    machine = coordinator(*UP[:-1], published(1), finished(3, 1), abort(1))
    assert machine.vnode_map == vnode_map()
    machine.step(finished(1, 1))
    assert ended(1)[0] in machine.step(finished(2, 1))
    machine = coordinator(*UP[:-1], published(1), finished(3, 1), abort(1), wanted(2, workers=3), came(2, 4))
    machine.step(finished(1, 1))
    assert ended(1)[0] not in machine.step(finished(2, 1)), "the new joiner has not finished"


def test_aborted_while_keys_move_what_has_moved_stays_moved() -> None:
    machine = coordinator(*BOTH, wanted(1, moves={0: 1, 2: 1}), met(1), met(2))
    told = [order.order for order in only(MigrationOrder, machine.step(abort(1)))]
    assert told == [AbortAsked(version=MapVersion(1))] * 2
    assert machine.step(abort(1)) == []
    machine.step(settled(1, kept=[2]))
    assert outcomes(machine.step(settled(2, kept=[2]))) == [(1, "aborted", 1)]
    assert machine.vnode_map == vnode_map((1, 1, 0, 1), version=1)


def test_aborted_while_keys_move_only_workers_that_have_not_settled_are_told() -> None:
    machine = coordinator(*MOVING, settled(1))
    assert listeners(MigrationOrder, machine.step(abort(1))) == [2]


def test_a_leaver_that_keeps_something_after_an_abort_stays() -> None:
    machine = coordinator(*DOWN, abort(1), settled(1, kept=[3]))
    assert outcomes(machine.step(settled(2, kept=[3]))) == [(1, "aborted", 1)]
    assert list(machine.cluster.processes) == [ZERO, ONE]
    assert machine.vnode_map == vnode_map((0, 0, 0, 1), version=1)


@pytest.mark.parametrize("events", [MOVING, RELOADING, [*MOVING, settled(1), settled(2)]])
def test_an_abort_of_nothing_that_can_be_aborted_does_nothing(events: Sequence[CoordinatorEvent]) -> None:
    other = 9 if events is MOVING else 1
    assert coordinator(*events).step(abort(other)) == []


# A worker lost --------------------------------------------------------------------------------------------------------


def test_lost_while_starting_a_worker_comes_back_and_the_rescale_goes_on() -> None:
    machine = coordinator(*STARTING)
    assert machine.step(gone(1)) == []
    assert machine.step(came(2, 3)) == []
    actions = machine.step(came(0, 4))
    assert (listeners(Assign, actions), listeners(Meet, actions)) == ([4, 3], [4, 2, 3])


@pytest.mark.parametrize("stage", [DRAINING[:-1], DRAINING], ids=["Meeting", "Draining"])
def test_lost_before_keys_move_a_worker_is_waited_for_and_all_meet_again(stage: Sequence[CoordinatorEvent]) -> None:
    machine = coordinator(*stage)
    assert machine.step(gone(1)) == []
    actions = machine.step(came(0, 3))
    assert [meet.meeting for meet in only(Meet, actions)] == [2, 2]
    assert listeners(Meet, actions) == [3, 2]
    for word in (finished(2, 1), finished(3, 1), met(2, meeting=1), met(3, meeting=2)):
        assert listeners(MigrationOrder, machine.step(word)) == []
    assert listeners(MigrationOrder, machine.step(met(2, meeting=2))) == [3, 2]


def test_lost_before_keys_move_a_worker_reads_all_that_has_ended_while_nothing_new_is_opened() -> None:
    epochs = range(1, EPOCHS_AHEAD_MAX + 3)
    history = [event for e in epochs for event in (published(e), finished(1, e), finished(2, e))]
    machine = coordinator(*BOTH, *history, MOVE_0, gone(1), came(0, 3), met(2, meeting=2), met(3, meeting=2))
    assert machine.step(published(len(epochs) + 1)) == []
    opened_later = [action for e in epochs[:-1] for action in machine.step(finished(3, e))]
    assert opened_later == opened(3, *epochs[EPOCHS_AHEAD_MAX:])
    assert listeners(MigrationOrder, machine.step(finished(3, epochs[-1]))) == [3, 2]


def test_lost_while_another_is_waited_for_a_joiner_is_waited_for_too() -> None:
    machine = coordinator(*BOTH, wanted(1, workers=3), came(2, 3), gone(1), gone(3))
    assert listeners(Meet, machine.step(came(0, 4))) == []
    actions = machine.step(came(2, 5))
    assert (listeners(Assign, actions), listeners(Meet, actions)) == ([5], [4, 2, 5])


def lost_channel(meeting: int) -> CoordinatorEvent:
    return said(1, PeersLost(meeting=meeting, why="host-2 does not answer"))


def test_a_channel_lost_before_keys_move_is_opened_again_so_many_times() -> None:
    machine = coordinator(*MEETING)
    for meeting in range(1, MEETINGS_AGAIN_MAX + 1):
        met_again = only(Meet, machine.step(lost_channel(meeting)))
        assert [meet.meeting for meet in met_again] == [meeting + 1, meeting + 1]
        assert machine.step(lost_channel(meeting)) == [], "of a meeting that is over"
    assert outcomes(machine.step(lost_channel(MEETINGS_AGAIN_MAX + 1))) == [(1, "failed", 0)]


@pytest.mark.parametrize("strategy", [Strategy.ICADD, Strategy.RESTART])
def test_lost_before_keys_move_a_joiner_is_waited_for_again(strategy: Strategy) -> None:
    machine = coordinator(*BOTH, published(1), wanted(1, workers=3, strategy=strategy), came(2, 3), gone(3))
    machine.step(finished(1, 1))
    assert listeners(Assign, machine.step(finished(2, 1))) == []
    assert 4 in listeners(Assign, machine.step(came(2, 4)))


@pytest.mark.parametrize("stage", [MOVING, [*MOVING, settled(1)]], ids=["Moving", "settling"])
def test_lost_while_keys_move_the_workers_left_begin_anew_by_the_old_map(stage: Sequence[CoordinatorEvent]) -> None:
    machine = coordinator(*stage)
    actions = machine.step(gone(2))
    (over,) = only(RescaleEnded, actions)
    assert (over.ticket, over.outcome, type(over.error)) == (1, "failed", WorkerLost)
    (assign,) = only(Assign, actions)
    assert (assign.worker, assign.generation, assign.start_at) == (0, 1, 0)
    assert assign.maps["rows"] == vnode_map(OWNERS, version=2), "of a version that no worker has seen"
    (again,) = only(Assign, machine.step(came(1, 3)))
    assert (again.generation, again.maps) == (1, assign.maps)


def test_lost_while_keys_move_joiners_go_home() -> None:
    actions = coordinator(*UP).step(gone(1))
    assert (listeners(Retire, actions), listeners(Assign, actions)) == ([3], [2])


def test_lost_while_keys_move_a_joiner_that_comes_again_has_no_place_any_more() -> None:
    machine = coordinator(*UP)
    actions = machine.step(came(2, 4))
    assert (listeners(Retire, actions), listeners(Assign, actions)) == ([3, 4], [1, 2])
    assert list(machine.cluster.processes) == [ZERO, ONE]


def test_lost_while_keys_move_a_leaver_that_has_left_takes_all_with_it() -> None:
    actions = coordinator(*DOWN, settled(2), settled(1)).step(gone(2))
    assert (outcomes(actions), listeners(Assign, actions)) == ([(1, "failed", 0)], [1])


def test_lost_when_all_keys_have_moved_and_an_epoch_is_open_all_begin_anew() -> None:
    machine = coordinator(*MOVING, published(1), settled(1), settled(2))
    actions = machine.step(gone(2))
    assert outcomes(actions) == [(1, "failed", 0)]
    assert only(Assign, actions)[0].maps["rows"] == vnode_map(OWNERS, version=2)


def test_a_lost_channel_is_as_bad_as_a_lost_worker() -> None:
    lost = said(1, PeersLost(meeting=1, why="host-2 does not answer"))
    actions = coordinator(*MOVING).step(lost)
    assert (outcomes(actions), listeners(Assign, actions)) == ([(1, "failed", 0)], [1, 2])
    assert "worker 0: host-2 does not answer" in str(only(RescaleEnded, actions)[0].error)
    assert coordinator(*BOTH).step(lost) == []


def test_lost_while_keys_move_an_open_epoch_is_read_again_and_stays_where_it_is_read() -> None:
    machine = coordinator(*MOVING, published(1, rows=2), finished(1, 1, applied=2))
    actions = machine.step(gone(2))
    assert [action for action in actions if action in opened(1, 1)] == opened(1, 1)
    machine.step(anew(1))
    assert machine.step(finished(1, 1, applied=1)) == []
    machine.step(came(1, 3))
    assert machine.step(finished(3, 1, applied=1)) == ended(1)


def test_lost_while_keys_move_the_next_request_has_its_turn() -> None:
    machine = coordinator(*MOVING, wanted(2, workers=3))
    actions = machine.step(gone(2))
    assert (outcomes(actions), len(only(StartWorkers, actions))) == ([(1, "failed", 0)], 1)


def test_lost_while_reading_again_a_worker_is_waited_for() -> None:
    machine = coordinator(*RELOADING, anew(1), anew(2), gone(2))
    assert outcomes(machine.step(finished(1, 1))) == []
    machine.step(came(1, 3))
    assert outcomes(machine.step(finished(3, 1))) == [(1, "finished", 1)]


STALE = [
    finished(1, 1, applied=2),
    late(1, 1, applied=1),
    settled(1),
    left(1, peer=1),
    said(1, PeersLost(meeting=1, why="gone")),
]


@pytest.mark.parametrize("word", STALE, ids=lambda word: type(word.message).__name__)
def test_worker_own_generation_only_what_was_said_before_all_began_anew_is_not_listened_to(
    word: CoordinatorEvent,
) -> None:
    machine = coordinator(*MOVING, published(1, rows=2), gone(2), came(1, 3), wanted(2, moves={1: 0}))
    assert machine.step(word) == []
    assert share(machine, ZERO).finished == 0
    machine.step(anew(1))
    machine.step(finished(1, 1, applied=1))
    assert ended(1)[0] in machine.step(finished(3, 1, applied=1))


def test_worker_own_generation_only_a_worker_is_listened_to_again_when_it_speaks_of_the_latest_beginning() -> None:
    machine = coordinator(*MOVING, gone(2), came(1, 3), MOVE_0, anew(1), met(1, meeting=2), met(3, meeting=2), gone(3))
    machine.step(published(1))
    for word in (anew(1, generation=1), finished(1, 1)):
        assert machine.step(word) == []
        assert share(machine, ZERO).finished == 0
    machine.step(anew(1, generation=2))
    machine.step(finished(1, 1))
    assert share(machine, ZERO).finished == 1


def test_worker_own_generation_only_a_worker_that_cannot_go_on_is_heard_in_any_case() -> None:
    failure = said(1, WorkerFailed(kind="RowError", error="overflow"))
    replaced = ReplaceWorker(incarnation=Incarnation(1), error="overflow")
    assert coordinator(*MOVING, gone(2)).step(failure) == [replaced]


# Stopped ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stage", "incarnations"),
    [(STARTING, [1, 2]), ([*STARTING, came(2, 3)], [1, 2, 3]), (DRAINING, [1, 2]), (MOVING, [1, 2]), (UP, [1, 2, 3])],
)
def test_stopped_in_any_stage_all_retire_and_are_told_nothing_more(
    stage: Sequence[CoordinatorEvent], incarnations: list[int]
) -> None:
    machine = coordinator(*stage)
    assert machine.step(StopAsked()) == [tell(incarnation, Retire()) for incarnation in incarnations]
    later: list[CoordinatorEvent] = [published(2 if stage is DRAINING else 1), came(2, 9), *map(gone, incarnations)]
    for event in later:
        actions = machine.step(event)
        assert listeners(Assign, actions) == listeners(OpenEpoch, actions) == []
        assert outcomes(actions) == []


def test_stopped_a_snapshot_that_loses_a_worker_fails_all_the_same() -> None:
    assert failures(coordinator(*BOTH, scan(5), StopAsked()).step(gone(1))) == {5: WorkerLost}


def test_the_vnodes_that_a_restart_moves_are_read_by_their_new_owner() -> None:
    assigned = only(Assign, coordinator(*RELOADING[:-1]).step(RELOADING[-1]))
    assert [assign.reads for assign in assigned] == [(VnodeId(2),), (VnodeId(0), VnodeId(1), VnodeId(3))]
