"""The coordinator machine's workers and epochs: rules coordinator.* of docs/internals/epochs.md; rules
views.fail_miscounted and workers.faults_are_theirs of docs/internals/failures.md."""

from dataclasses import replace

import pytest
from coordinator_kit import (
    BOTH,
    CHANNEL,
    PLAN,
    came,
    coordinator,
    ended,
    finished,
    gone,
    late,
    only,
    opened,
    published,
    said,
    share,
    taken,
    tell,
    vnode_map,
)

from upriver.coordinator.coordinator import FAULTS_MAX
from upriver.coordinator.flow import EPOCHS_AHEAD_MAX
from upriver.errors import ProtocolError
from upriver.ids import Epoch, Incarnation, VnodeId, WorkerId
from upriver.protocol.coordinator_events import AppFailed, EpochEnded, ReplaceWorker, StopAsked, Tell
from upriver.protocol.messages import Assign, EpochOver, FailView, OpenEpoch, Retire, StageDone, WorkerFailed
from upriver.protocol.rules import ALL_RULES, Rules


def test_a_worker_that_comes_is_assigned_its_vnodes_and_all_epochs_so_far() -> None:
    machine = coordinator(published(1), published(2))
    assign = Assign(
        worker=WorkerId(1),
        plans=(PLAN,),
        maps={"rows": vnode_map()},
        reads=(VnodeId(1), VnodeId(3)),
        start_at=Epoch(0),
        serve_from=Epoch(2),
        generation=0,
    )
    assert machine.step(came(1, 5)) == [tell(5, assign), *opened(5, 1, 2)]


def test_an_epoch_is_opened_for_all_workers_that_are_there() -> None:
    assert coordinator(came(1, 7)).step(published(1)) == opened(7, 1)
    assert coordinator(*BOTH).step(published(1)) == [*opened(1, 1), *opened(2, 1)]


@pytest.mark.parametrize("epoch", [1, 3])
def test_epochs_are_published_without_gaps(epoch: int) -> None:
    with pytest.raises(ProtocolError, match=f"epoch {epoch} was published after 1"):
        coordinator(published(1)).step(published(epoch))


def test_coordinator_all_workers_finish_an_epoch_ends_when_every_worker_has_finished_it() -> None:
    machine = coordinator(*BOTH, published(1, rows=3))
    assert machine.step(finished(2, 1, applied=1)) == []
    assert machine.step(finished(1, 1, applied=2)) == ended(1)


def test_coordinator_all_workers_finish_an_empty_place_holds_the_epoch() -> None:
    machine = coordinator(came(0, 1), published(1))
    assert machine.step(finished(1, 1)) == []
    machine.step(came(1, 2))
    assert machine.step(finished(2, 1)) == ended(1)


def test_coordinator_all_workers_finish_a_lost_worker_has_finished_nothing_and_its_successor_does_it_again() -> None:
    machine = coordinator(*BOTH, published(1, rows=3), finished(1, 1, applied=2), gone(1))
    assert machine.step(finished(2, 1, applied=1)) == []
    machine.step(came(0, 3))
    assert machine.step(finished(3, 1, applied=2)) == ended(1)


def test_coordinator_all_workers_finish_an_epoch_that_has_ended_does_not_end_again() -> None:
    machine = coordinator(*BOTH, published(1), finished(1, 1), finished(2, 1), gone(1), came(0, 3))
    assert machine.step(finished(3, 1)) == []


def test_coordinator_all_workers_finish_epochs_end_in_order() -> None:
    machine = coordinator(*BOTH, published(1), published(2), finished(2, 1), finished(2, 2))
    assert machine.step(finished(1, 1)) == ended(1)
    assert machine.step(finished(1, 2)) == ended(2)


@pytest.mark.parametrize("applied", [0, 1, 3])
def test_views_fail_miscounted_rows_that_went_in_and_did_not_come_out_fail_the_view_alone(applied: int) -> None:
    machine = coordinator(*BOTH, published(1, rows=2), finished(1, 1))
    actions = machine.step(finished(2, 1, applied=applied))
    assert only(EpochEnded, actions) == ended(1)
    (failure, _) = only(FailView, actions)
    assert f"epoch 1: {applied} rows have come, and 2 went in (region 'rows')" in failure.failure.error


def test_views_fail_miscounted_rows_of_an_epoch_that_has_ended_fail_the_view_alone() -> None:
    machine = coordinator(*BOTH, published(1), finished(1, 1), finished(2, 1))
    (failure, _) = only(FailView, machine.step(late(2, 1, applied=1)))
    assert "worker 1 has applied more rows of epoch 1, which has ended" in failure.failure.error
    assert only(OpenEpoch, machine.step(published(2))) != []


def test_views_fail_miscounted_switched_off_fails_the_coordinator() -> None:
    rules = replace(ALL_RULES, views_fail_miscounted=False, workers_faults_are_theirs=False)
    machine = coordinator(*BOTH, published(1, rows=2), finished(1, 1), rules=rules)
    with pytest.raises(ProtocolError, match="epoch 1: 0 rows have come, and 2 went in"):
        machine.step(finished(2, 1))


def test_coordinator_late_reports_change_nothing_reports_that_come_again() -> None:
    machine = coordinator(*BOTH, published(1), finished(1, 1), finished(1, 1), finished(2, 1), published(2))
    for again in (finished(1, 1), late(1, 1, applied=0), said(1, StageDone(epoch=Epoch(1), stage=0, stats={}))):
        assert only(FailView, machine.step(again)) == []
    machine.step(finished(2, 2))
    assert machine.step(finished(1, 2)) == ended(2)


def test_workers_faults_are_theirs_the_sender_is_replaced_and_all_begin_anew() -> None:
    machine = coordinator(*BOTH, published(1), finished(1, 1))
    assert [replaced.incarnation for replaced in only(ReplaceWorker, machine.step(finished(2, 7)))] == [2]
    assert only(FailView, machine.step(gone(2))) == []
    assigned = only(Assign, machine.step(came(1, 3)))
    assert [(a.worker, a.start_at, a.generation) for a in assigned] == [(0, 0, 1), (1, 0, 1)]


def test_workers_faults_are_theirs_so_many_times_at_most_before_an_epoch_ends() -> None:
    machine = coordinator(*BOTH, published(1))
    for incarnation in range(2, 2 + FAULTS_MAX):
        assert only(ReplaceWorker, machine.step(finished(incarnation, 7))) != []
        machine.step(came(1, incarnation + 1))
    with pytest.raises(ProtocolError, match="worker 1 reports epoch 7, and was sent 1"):
        machine.step(finished(2 + FAULTS_MAX, 7))


def test_no_worker_is_told_that_an_epoch_is_over_that_was_not_mixed() -> None:
    machine = coordinator(*BOTH, published(1), finished(1, 1))
    assert only(EpochOver, machine.step(finished(2, 1))) == []


def test_coordinator_current_incarnation_only_what_a_lost_worker_reports_is_ignored() -> None:
    machine = coordinator(*BOTH, published(1), gone(1))
    failure = said(1, WorkerFailed(kind="RowError", error="overflow"))
    for word in (finished(1, 1), taken(1, 1), failure):
        assert machine.step(word) == []
    assert machine.step(finished(2, 1)) == []


def test_coordinator_current_incarnation_only_a_new_incarnation_takes_the_place_of_one_that_is_still_there() -> None:
    machine = coordinator(*BOTH, published(1))
    actions = machine.step(came(0, 3))
    assert actions[0] == tell(1, Retire())
    assert actions[-1:] == opened(3, 1)
    machine.step(finished(2, 1))
    assert machine.step(finished(1, 1)) == []
    assert machine.step(gone(1)) == []
    assert machine.step(finished(3, 1)) == ended(1)


def test_coordinator_bounded_epochs_ahead_a_worker_is_sent_only_so_many_epochs_ahead() -> None:
    ahead = EPOCHS_AHEAD_MAX
    machine = coordinator(*(published(epoch) for epoch in range(1, ahead + 3)), came(1, 2))
    assert only(Tell, machine.step(came(0, 1)))[1:] == opened(1, *range(1, ahead + 1))
    assert machine.step(finished(1, 1)) == opened(1, ahead + 1)
    assert machine.step(finished(1, 2)) == opened(1, ahead + 2)
    assert machine.step(finished(1, 3)) == []
    assert machine.step(published(ahead + 3)) == opened(1, ahead + 3)


def test_the_latest_report_of_each_worker_can_be_seen() -> None:
    machine = coordinator(*BOTH, published(1), finished(2, 1))
    shares = [share(machine, WorkerId(worker)) for worker in (0, 1)]
    assert [(of_one.sent, of_one.finished) for of_one in shares] == [(1, 0), (1, 1)]
    assert (machine.published, machine.vnode_map) == (1, vnode_map())


def test_a_worker_that_fails_and_is_not_replaced_fails_the_app() -> None:
    failure = said(2, WorkerFailed(kind="NotWritten", error="the disk is full"))
    machine = coordinator(*BOTH, rules=Rules(workers_failed_are_replaced=False))
    assert machine.step(failure) == [AppFailed(kind="NotWritten", error="the disk is full")]


OF_THE_LAKE = ["NotWritten", "NotRead", "CorruptFile"]
OF_THE_USER = ["RowError", "FunctionFailed", "BudgetExceeded", "DeclarationError"]


@pytest.mark.parametrize("kind", [*OF_THE_LAKE, *OF_THE_USER, "ProtocolError", "IllegalEvent", "WorkerLost", "OSError"])
def test_a_worker_that_fails_is_replaced_and_the_app_goes_on_whatever_it_was(kind: str) -> None:
    failure = said(2, WorkerFailed(kind=kind, error="what it was"))
    machine = coordinator(*BOTH, published(1))
    assert machine.step(failure) == [ReplaceWorker(incarnation=Incarnation(2), error="what it was")]
    machine.step(gone(2))
    assert opened(3, 1)[0] in machine.step(came(1, 3))


def test_a_worker_without_a_place_is_retired() -> None:
    machine = coordinator(*BOTH)
    assert machine.step(came(2, 3)) == [tell(3, Retire())]
    assert machine.step(published(1)) == [*opened(1, 1), *opened(2, 1)]
    assert machine.step(gone(3)) == []


def test_stopping_retires_all_workers_and_those_that_come_later() -> None:
    machine = coordinator(*BOTH)
    assert machine.step(StopAsked()) == [tell(1, Retire()), tell(2, Retire())]
    assert machine.step(came(0, 3)) == [tell(3, Retire())]
    assert only(OpenEpoch, machine.step(published(1))) == []


def test_channels_that_feed_no_view_are_not_counted() -> None:
    event = published(1, rows=1)
    assert set(event.rows) > {CHANNEL}
    assert coordinator(*BOTH, event, finished(1, 1)).step(finished(2, 1, applied=1)) == ended(1)
