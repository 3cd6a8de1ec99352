"""The coordinator machine's snapshots: rules coordinator.cut_ahead_of_all, coordinator.still_while_cut and
coordinator.no_older_snapshot of docs/internals/epochs.md and docs/internals/rescale.md."""

from collections.abc import Sequence

import pytest
from coordinator_kit import (
    BOTH,
    DOWN,
    UP,
    anew,
    came,
    coordinator,
    ended,
    failures,
    finished,
    gone,
    left,
    listeners,
    met,
    moved,
    only,
    opened,
    outcomes,
    published,
    said,
    scan,
    settled,
    still,
    take,
    taken,
    tell,
    wanted,
)

from upriver.coordinator.flow import EPOCHS_AHEAD_MAX
from upriver.coordinator.scans import SCANS_WAITING_MAX, SNAPSHOTS_HELD_MAX
from upriver.errors import RowError, UnknownView, WaitTimeout, WorkerLost
from upriver.ids import Epoch, SnapshotId, WorkerId
from upriver.protocol.coordinator_events import CoordinatorEvent, SnapshotFailed, SnapshotReady
from upriver.protocol.messages import (
    ContinueEpochs,
    DropSnapshot,
    MigrationOrder,
    OpenEpoch,
    PauseEpochs,
    SnapshotNotTaken,
    TakeSnapshot,
)
from upriver.protocol.strategies import Strategy


def ready(ticket: int, snapshot: int, epoch: int, workers: Sequence[int] = (0, 1)) -> SnapshotReady:
    places = tuple(map(WorkerId, workers))
    return SnapshotReady(ticket=ticket, snapshot=SnapshotId(snapshot), epoch=Epoch(epoch), workers=places)


def test_coordinator_cut_ahead_of_all_a_snapshots_cut_is_the_highest_epoch_that_any_worker_has_been_sent() -> None:
    ahead = EPOCHS_AHEAD_MAX
    epochs = [published(epoch) for epoch in range(1, ahead + 3)]
    machine = coordinator(*BOTH, *epochs, finished(1, 1))
    assert machine.step(scan(9)) == [take(1, 1, at=ahead + 1), take(2, 1, at=ahead + 1)]
    assert machine.step(taken(2, 1)) == []
    assert machine.step(taken(1, 1)) == [ready(9, 1, epoch=ahead + 1)]


def test_a_view_that_cannot_be_read_fails_the_snapshot_in_the_workers_words() -> None:
    machine = coordinator(*BOTH)
    machine.step(scan(9))
    machine.step(taken(1, 1))
    not_taken = SnapshotNotTaken(snapshot=SnapshotId(1), error="view 'rows': division by zero")
    actions = machine.step(said(2, not_taken))
    failed = next(action for action in actions if isinstance(action, SnapshotFailed))
    assert (failed.ticket, type(failed.error), str(failed.error)) == (9, RowError, "view 'rows': division by zero")
    assert [action for action in actions if action != failed] == [
        tell(who, DropSnapshot(snapshot=SnapshotId(1))) for who in (1, 2)
    ]
    assert machine.step(said(1, not_taken)) == []


def test_snapshots_do_not_mix() -> None:
    machine = coordinator(*BOTH, scan(8), scan(9))
    assert [machine.step(word) for word in (taken(1, 2), taken(1, 1))] == [[], []]
    assert machine.step(taken(2, 2)) == [ready(9, 2, epoch=0)]
    assert machine.step(taken(2, 1)) == [ready(8, 1, epoch=0)]


@pytest.mark.parametrize("already", [[], [taken(1, 1)]])
def test_a_snapshot_fails_with_any_worker_that_keeps_a_part_of_it(already: Sequence[CoordinatorEvent]) -> None:
    machine = coordinator(*BOTH, scan(8), *already)
    assert failures(machine.step(gone(1))) == {8: WorkerLost}
    assert machine.step(taken(2, 1)) == []


def test_a_snapshot_fails_with_the_worker_whose_place_is_taken() -> None:
    assert failures(coordinator(*BOTH, scan(8)).step(came(1, 3))) == {8: WorkerLost}


def test_a_snapshot_is_refused_while_a_worker_is_missing_or_the_view_is_unknown() -> None:
    (missing,) = only(SnapshotFailed, coordinator(came(0, 1)).step(scan(8)))
    assert str(missing.error) == "workers [1] are not up; scan again when they are"
    (unknown,) = only(SnapshotFailed, coordinator(*BOTH).step(scan(9, view="typo")))
    assert isinstance(unknown.error, UnknownView)
    assert str(unknown.error) == "no view 'typo'; there are: rows"


def test_so_many_snapshots_are_held_and_one_more_lets_the_oldest_go() -> None:
    machine = coordinator(*BOTH)
    for snapshot in range(1, SNAPSHOTS_HELD_MAX + 1):
        assert machine.step(scan(snapshot)) == [take(1, snapshot, at=0), take(2, snapshot, at=0)]
        machine.step(taken(1, snapshot))
        machine.step(taken(2, snapshot))
    drop = DropSnapshot(snapshot=SnapshotId(1))
    last = SNAPSHOTS_HELD_MAX + 1
    assert machine.step(scan(last)) == [take(1, last, at=0), take(2, last, at=0), tell(1, drop), tell(2, drop)]


def test_a_snapshot_that_is_pushed_out_before_it_is_ready_fails() -> None:
    machine = coordinator(*BOTH, *map(scan, range(1, SNAPSHOTS_HELD_MAX + 1)), taken(1, 1))
    assert failures(machine.step(scan(SNAPSHOTS_HELD_MAX + 1))) == {1: WaitTimeout}
    assert machine.step(taken(2, 1)) == []


# While a rescale is on ----------------------------------------------------------------------------------------------

MEETING = [*BOTH, wanted(1, moves={0: 1})]
MOVING = [*MEETING, met(1), met(2)]
DRAINING = [*BOTH, published(1), wanted(1, moves={0: 1}), met(1), met(2)]


def test_while_workers_join_a_snapshot_is_taken_at_once_by_the_workers_with_state() -> None:
    machine = coordinator(*BOTH, wanted(1, workers=3))
    assert machine.step(scan(5)) == [take(1, 1, at=0), take(2, 1, at=0)]


def test_while_the_members_meet_a_snapshot_is_taken_at_once() -> None:
    assert coordinator(*MEETING).step(scan(5)) == [take(1, 1, at=0), take(2, 1, at=0)]


def test_while_epochs_are_held_back_a_scan_waits() -> None:
    assert coordinator(*DRAINING).step(scan(5)) == []


def test_a_snapshot_under_way_is_taken_before_keys_move() -> None:
    machine = coordinator(*BOTH, scan(5), taken(1, 1), wanted(1, moves={0: 1}), met(1))
    assert listeners(MigrationOrder, machine.step(met(2))) == []
    actions = machine.step(taken(2, 1))
    assert (actions[0], listeners(MigrationOrder, actions)) == (ready(5, 1, epoch=0), [1, 2])


def test_coordinator_still_while_cut_a_scan_that_has_waited_is_taken_when_all_hold_still() -> None:
    machine = coordinator(*DRAINING, scan(5), finished(1, 1))
    assert listeners(PauseEpochs, machine.step(finished(2, 1))) == [1, 2]
    assert machine.step(still(1)) == []
    assert machine.step(still(2)) == [take(1, 1, at=1), take(2, 1, at=1)]
    assert machine.step(taken(1, 1)) == []
    assert machine.step(taken(2, 1)) == [ready(5, 1, epoch=1), tell(1, ContinueEpochs()), tell(2, ContinueEpochs())]


def test_coordinator_still_while_cut_a_scan_is_not_taken_while_state_is_on_its_way() -> None:
    machine = coordinator(*MOVING, scan(5), still(1, given=3, taken=0))
    assert machine.step(still(2, given=0, taken=1)) == []
    assert machine.step(still(2, given=0, taken=2)) == []
    assert listeners(TakeSnapshot, machine.step(still(2, given=0, taken=3))) == [1, 2]


def test_coordinator_still_while_cut_words_about_a_pause_that_is_over_count_for_nothing() -> None:
    first: list[CoordinatorEvent] = [still(1), scan(5), still(1), still(2), taken(1, 1), taken(2, 1)]
    machine = coordinator(*MOVING, *first, moved(1), scan(6))
    assert machine.step(still(1, pause=1)) == []
    assert machine.step(still(2, pause=1)) == []
    assert machine.step(still(2, pause=2)) == []
    assert listeners(TakeSnapshot, machine.step(still(1, pause=2))) == [1, 2]


def test_coordinator_still_while_cut_a_scan_waits_for_the_open_epoch_and_no_other_is_opened() -> None:
    machine = coordinator(*MOVING, published(1), published(2))
    assert machine.step(scan(5)) == []
    machine.step(finished(1, 1))
    actions = machine.step(finished(2, 1))
    assert (listeners(PauseEpochs, actions), only(OpenEpoch, actions)) == ([1, 2], [])
    machine.step(still(1))
    assert machine.step(still(2)) == [take(1, 1, at=1), take(2, 1, at=1)]
    machine.step(taken(1, 1))
    actions = machine.step(taken(2, 1))
    assert actions == [
        ready(5, 1, epoch=1),
        tell(1, ContinueEpochs()),
        tell(2, ContinueEpochs()),
        *opened(1, 2, mixed=True),
        *opened(2, 2, mixed=True),
    ]


def test_coordinator_still_while_cut_scans_that_come_during_a_pause_wait_for_the_next_when_keys_have_moved() -> None:
    machine = coordinator(*MOVING, scan(5), scan(6), still(1))
    assert listeners(TakeSnapshot, machine.step(still(2))) == [1, 2, 1, 2]
    assert machine.step(scan(7)) == []
    for word in (taken(1, 1), taken(2, 1), taken(1, 2)):
        assert listeners(ContinueEpochs, machine.step(word)) == []
    actions = machine.step(taken(2, 2))
    assert (listeners(PauseEpochs, actions), listeners(ContinueEpochs, actions)) == ([], [1, 2])
    assert listeners(PauseEpochs, machine.step(moved(1))) == [1, 2]


def test_a_rescale_that_ends_during_a_pause_lets_the_scan_be_taken_and_keys_move_again() -> None:
    machine = coordinator(*MOVING, scan(5), settled(1), still(1))
    actions = machine.step(settled(2))
    assert outcomes(actions) == [(1, "finished", 1)]
    assert (listeners(TakeSnapshot, actions), listeners(ContinueEpochs, actions)) == ([1, 2], [1, 2])
    assert machine.step(still(2)) == []
    machine.step(taken(1, 1))
    assert machine.step(taken(2, 1)) == [ready(5, 1, epoch=0)]


def test_a_pause_does_not_wait_for_a_leaver_that_has_left() -> None:
    machine = coordinator(*DOWN, settled(1), settled(2), scan(5), still(1))
    actions = machine.step(left(1, peer=1))
    assert outcomes(actions) == [(1, "finished", 2)]
    assert (listeners(TakeSnapshot, actions), listeners(ContinueEpochs, actions)) == ([1], [1])
    assert machine.step(taken(1, 1)) == [ready(5, 1, epoch=0, workers=[0])]


def test_a_leaver_whose_input_is_closed_keeps_no_part_of_a_snapshot() -> None:
    machine = coordinator(*DOWN, published(1), finished(1, 1), finished(2, 1), settled(1), settled(2))
    assert only(OpenEpoch, machine.step(published(2))) == [OpenEpoch(epoch=Epoch(2), mixed=True, after=Epoch(1))]
    machine.step(finished(1, 2))
    machine.step(scan(5))
    machine.step(still(1, taken=4))
    assert machine.step(still(2, given=4)) == [take(1, 1, at=2)]


def test_a_joiner_keeps_a_part_of_a_snapshot() -> None:
    machine = coordinator(*UP, scan(5), still(1), still(2))
    assert listeners(TakeSnapshot, machine.step(still(3))) == [1, 2, 3]
    for word in (taken(1, 1), taken(2, 1)):
        machine.step(word)
    assert machine.step(taken(3, 1))[0] == ready(5, 1, epoch=0, workers=[0, 1, 2])


def test_a_restart_fails_no_scan_and_those_that_wait_are_taken_when_all_read_again() -> None:
    machine = coordinator(*BOTH, published(1), wanted(1, moves={0: 1}, strategy=Strategy.RESTART), scan(5))
    machine.step(finished(1, 1))
    actions = machine.step(finished(2, 1))
    assert ended(1)[0] in actions
    assert (failures(actions), listeners(TakeSnapshot, actions)) == ({}, [])
    actions = machine.step(anew(1))
    assert only(TakeSnapshot, actions) == only(TakeSnapshot, [take(1, 1, at=1), take(2, 1, at=1)])


def test_coordinator_no_older_snapshot_when_all_begin_anew() -> None:
    """More epochs than are sent ahead."""
    machine = coordinator(*BOTH)
    for epoch in range(1, EPOCHS_AHEAD_MAX + 3):
        for event in (published(epoch), finished(1, epoch), finished(2, epoch)):
            machine.step(event)
    machine.step(wanted(1, moves={0: 1}, strategy=Strategy.RESTART))
    assert machine.step(scan(5)) == []
    for event in (anew(1), anew(2), finished(1, 1), finished(2, 1)):
        assert listeners(TakeSnapshot, machine.step(event)) == []
    machine.step(finished(1, 2))
    actions = machine.step(finished(2, 2))
    assert only(TakeSnapshot, actions) == only(TakeSnapshot, [take(i, 1, at=EPOCHS_AHEAD_MAX + 2) for i in (1, 2)])


@pytest.mark.parametrize("already", [[], [still(1), still(2)]], ids=["holding still", "being taken"])
def test_a_worker_lost_during_a_pause_ends_it(already: Sequence[CoordinatorEvent]) -> None:
    machine = coordinator(*MOVING, scan(5), *already)
    actions = machine.step(gone(2))
    assert outcomes(actions) == [(1, "failed", 0)]
    assert failures(actions) == {5: WorkerLost}
    assert machine.step(still(1)) == []


def test_so_many_scans_wait_and_one_more_is_refused() -> None:
    machine = coordinator(*DRAINING)
    assert [machine.step(scan(ticket)) for ticket in range(SCANS_WAITING_MAX)] == [[]] * SCANS_WAITING_MAX
    assert failures(machine.step(scan(SCANS_WAITING_MAX))) == {SCANS_WAITING_MAX: WaitTimeout}
