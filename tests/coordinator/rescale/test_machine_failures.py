"""The coordinator machine's rescales that do not go as wished: aborted, a worker lost, the app stopped; rule
worker.own_generation_only."""

from collections.abc import Sequence

import pytest
from coordinator_kit import (
    BOTH,
    DOWN,
    OWNERS,
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
    only,
    opened,
    outcomes,
    published,
    said,
    scan,
    settled,
    tell,
    vnode_map,
    wanted,
)

from upriver.coordinator.cluster import EPOCHS_AHEAD_MAX
from upriver.coordinator.rescale.stages import MEETINGS_AGAIN_MAX
from upriver.errors import WorkerLost
from upriver.ids import Incarnation, MapVersion, VnodeId, WorkerId
from upriver.migration.events import AbortAsked
from upriver.protocol.coordinator_events import (
    CoordinatorAction,
    CoordinatorEvent,
    ReplaceWorker,
    RescaleBegun,
    RescaleEnded,
    StartWorkers,
    StopAsked,
)
from upriver.protocol.messages import Assign, Meet, MigrationOrder, OpenEpoch, PeersLost, Retire, WorkerFailed
from upriver.protocol.strategies import Strategy

MOVE_0 = wanted(1, moves={0: 1})
OPEN = [*BOTH, published(1, rows=2), published(2)]
"""Two epochs are open everywhere; of the first one two rows are expected."""
STARTING = [*BOTH, wanted(1, workers=3)]
DRAINING = [*BOTH, published(1), MOVE_0, met(1), met(2)]
MEETING = [*BOTH, MOVE_0]
MOVING = [*MEETING, met(1), met(2)]
RELOADING = [*BOTH, published(1), finished(1, 1), finished(2, 1), wanted(1, moves={0: 1}, strategy=Strategy.RESTART)]
ZERO, ONE = WorkerId(0), WorkerId(1)


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
    assert list(machine.members) == [ZERO, ONE]
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
    assert list(machine.members) == [ZERO, ONE]


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
    assert machine.members[ZERO].finished == 0
    machine.step(anew(1))
    machine.step(finished(1, 1, applied=1))
    assert ended(1)[0] in machine.step(finished(3, 1, applied=1))


def test_worker_own_generation_only_a_worker_is_listened_to_again_when_it_speaks_of_the_latest_beginning() -> None:
    machine = coordinator(*MOVING, gone(2), came(1, 3), MOVE_0, anew(1), met(1, meeting=2), met(3, meeting=2), gone(3))
    machine.step(published(1))
    for word in (anew(1, generation=1), finished(1, 1)):
        assert machine.step(word) == []
        assert machine.members[ZERO].finished == 0
    machine.step(anew(1, generation=2))
    machine.step(finished(1, 1))
    assert machine.members[ZERO].finished == 1


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
