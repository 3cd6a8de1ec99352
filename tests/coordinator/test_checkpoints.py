"""The coordinator's checkpoints: through a cut of all workers to the lake, and which workers begin with one; rules
checkpoints.all_parts, checkpoints.keys_stay, checkpoints.given_up_when_torn and checkpoints.whole_after_losses."""

from typing import Any

import pytest
from checkpoints_kit import (
    PARTIAL,
    asked_for,
    at,
    checkpointing,
    failed,
    flown,
    found,
    happens,
    in_lake,
    kept,
    next_one,
    not_in_lake,
    not_taken,
    part_of,
    ready,
    restored,
    taken,
    want,
    written,
)
from coordinator_kit import (
    BOTH,
    CHANNEL,
    PLAN,
    anew,
    came,
    coordinator,
    ended,
    finished,
    gone,
    listeners,
    met,
    moved,
    only,
    opened,
    outcomes,
    planned,
    published,
    published_empty,
    said,
    settled,
    wanted,
)
from stages_kit import STAGED
from standbys_kit import Group

from upriver.coordinator.checkpoints import CHAIN_MAX
from upriver.coordinator.coordinator import CoordinatorMachine
from upriver.errors import WorkerLost
from upriver.ids import Epoch, FlowId
from upriver.protocol.coordinator_events import (
    CheckpointReady,
    CoordinatorEvent,
    ForgetCheckpoints,
    PlansTaken,
    PlansWanted,
    PublishCheckpoint,
    RescaleBegun,
    RescaleEnded,
    StopAsked,
    Tell,
)
from upriver.protocol.messages import (
    Assign,
    BeginStage,
    CheckpointWritten,
    DropCheckpoint,
    EpochFinished,
    EpochOver,
    KeepCheckpoint,
    Meet,
    MigrationOrder,
    OpenEpoch,
    PeersLost,
    StageDone,
    TakeCheckpoint,
)
from upriver.protocol.rules import Rules

LOST = "a worker was lost, or all have begun anew"


# From the wish to the lake ------------------------------------------------------------------------------------------


def test_a_checkpoint_is_as_of_the_last_epoch_that_was_opened_and_comes_before_the_next_one() -> None:
    machine = at(1, published(2), published(3))
    actions = happens(machine, finished(1, 2), want(7))
    assert (asked_for(actions), listeners(TakeCheckpoint, actions)) == ([(1, 3, True)] * 2, [1, 2])
    assert machine.step(published(4)) == [*opened(1, 4), *opened(2, 4)]


def test_checkpoints_all_parts_it_is_published_when_every_worker_has_written_its_part_and_then_kept_by_all() -> None:
    machine = at(2, want(7))
    assert machine.step(written(2, keys=3)) == []
    (request,) = machine.step(written(1))
    files = (part_of(1, 1, 1), part_of(2, 1, 3))
    assert request == PublishCheckpoint(flow=FlowId(1), checkpoint=1, epoch=Epoch(2), base=None, files=files)
    actions = machine.step(in_lake(request))
    assert (kept(actions), listeners(KeepCheckpoint, actions)) == ([1, 1], [1, 2])
    assert ready(actions) == [((7,), 2, (2,))]
    assert machine.step(in_lake(request)) == []


def test_a_part_that_comes_twice_is_told_to_the_lake_once() -> None:
    machine = at(1, want(), written(1))
    assert [len(only(PublishCheckpoint, machine.step(event))) for event in (written(2), written(2))] == [1, 0]


def test_what_is_said_of_another_checkpoint_is_no_news() -> None:
    machine = at(1, want(), written(1))
    late: list[CoordinatorEvent] = [written(2, 5), not_taken(2, 5), not_in_lake(5)]
    assert happens(machine, *late) == []
    assert len(only(PublishCheckpoint, machine.step(written(2)))) == 1


def test_none_is_taken_before_a_request_and_one_at_a_time() -> None:
    machine = at(1)
    assert asked_for(happens(machine, *flown(2))) == []
    assert asked_for(happens(machine, want(1), want(2), *flown(3))) == [(1, 2, True)] * 2
    actions = taken(machine, 1)
    assert ready(actions) == [((1,), 2, (2,))]
    assert asked_for(actions) == [(2, 3, False)] * 2
    assert ready(taken(machine, 2)) == [((2,), 3, (3, 2))]


def test_a_request_while_a_place_is_empty_waits_until_it_is_filled() -> None:
    machine = at(2, gone(2))
    assert happens(machine, want(1), want(2)) == []
    assert asked_for(machine.step(came(1, 3))) == [(1, 2, True)] * 2
    machine.step(written(1))
    (request,) = only(PublishCheckpoint, happens(machine, finished(3, 1), finished(3, 2), written(3)))
    assert ready(machine.step(in_lake(request))) == [((1, 2), 2, (2,))]


@pytest.mark.parametrize("every", [1, 3])
def test_checkpoints_are_taken_every_so_many_epochs(every: int) -> None:
    machine = at(0, every=every)
    for number in (1, 2):
        actions = [happens(machine, *flown(epoch)) for epoch in range((number - 1) * every + 1, number * every + 1)]
        assert [asked_for(of_one) for of_one in actions[:-1]] == [[]] * (every - 1)
        assert asked_for(actions[-1]) == [(number, number * every, number == 1)] * 2
        assert ready(taken(machine, number))[0][:2] == ((), number * every)


def test_one_that_is_given_up_is_not_due_again_at_once() -> None:
    machine = at(3, every=3)
    assert [asked_for(machine.step(event)) for event in (not_taken(1), *flown(4), *flown(5))] == [[]] * 7
    assert asked_for(machine.step(want())) == [(2, 5, True)] * 2
    assert asked_for(happens(machine, not_taken(1, 2), *flown(6), *flown(7))) == []
    assert asked_for(happens(machine, *flown(8))) == [(3, 8, True)] * 2


def test_when_there_is_nothing_new_a_request_is_served_at_once() -> None:
    machine = at(2, want(1))
    taken(machine, 1)
    assert ready(machine.step(want(2))) == [((2,), 2, (2,))]
    assert asked_for(happens(machine, published(3), want(3))) == [(2, 3, False)] * 2


def test_before_the_first_epoch_there_is_nothing_new() -> None:
    assert ready(at(0).step(want(1))) == [((1,), 0, ())]


def test_where_all_views_are_partial_a_request_is_served_at_once() -> None:
    machine = checkpointing(*BOTH, *flown(1), plans=(PARTIAL,))
    actions = machine.step(want(1))
    assert (asked_for(actions), ready(actions)) == ([], [((1,), 1, ())])
    also = checkpointing(*BOTH, plans=(PARTIAL, planned("other", "j")))
    assert asked_for(happens(also, published(1), want(1))) == [(1, 1, True)] * 2


def test_where_only_what_is_read_is_kept_none_is_due_at_every_step() -> None:
    machine = checkpointing(*BOTH, *flown(1), plans=(PARTIAL,), every=1)
    assert ready(happens(machine, finished(1, 1), published(2))) == []


def test_where_no_checkpoints_are_taken_no_request_is_served() -> None:
    machine = coordinator(*BOTH, *flown(1))
    assert machine.step(want(1)) == []
    assert [assign.chain for assign in only(Assign, happens(coordinator(), *BOTH))] == [None, None]


# Chains -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", [True, False])
def test_checkpoints_whole_after_losses_after_a_worker_has_gone_for_good_it_is_whole(rule: bool) -> None:
    machine = checkpointing(*BOTH, rules=Rules(checkpoints_whole_after_losses=rule))
    assert next_one(machine, 1, keys=100) == (True, (1,))
    assert next_one(machine, 2) == (False, (2, 1))
    machine.cluster.lose_changes()  # as when a leaver retires, or standbys take over from a lost worker
    assert next_one(machine, 3, keys=10) == ((True, (3,)) if rule else (False, (3, 2, 1)))
    assert next_one(machine, 4)[0] is False


def test_the_first_is_whole_and_the_others_build_on_it() -> None:
    machine = at(0)
    assert [next_one(machine, epoch) for epoch in (1, 2)] == [(True, (1,)), (False, (2, 1))]
    happens(machine, *flown(3), want(), written(1, 3))
    (request,) = machine.step(written(2, 3))
    assert isinstance(request, PublishCheckpoint)
    assert (request.epoch, request.base) == (3, 2)


def test_a_chain_that_is_as_long_as_it_may_be_begins_anew() -> None:
    machine = at(0)
    next_one(machine, 1, keys=CHAIN_MAX)
    chains = [next_one(machine, epoch) for epoch in range(2, CHAIN_MAX + 3)]
    assert [whole for whole, _ in chains] == [*[False] * (CHAIN_MAX - 1), True, False]
    assert [chain for _, chain in chains[-3:]] == [
        tuple(range(CHAIN_MAX, 0, -1)),
        (CHAIN_MAX + 1,),
        (CHAIN_MAX + 2, CHAIN_MAX + 1),
    ]


def test_a_chain_whose_changes_name_more_keys_than_its_first_has_begins_anew() -> None:
    machine = at(0)
    keys = [3, 2, 1, 1, 5, 1]
    whole = [next_one(machine, epoch, of_one)[0] for epoch, of_one in enumerate(keys, 1)]
    assert whole == [True, False, False, False, True, False]


def test_a_chain_that_was_found_counts() -> None:
    cases: list[tuple[list[int], bool]] = [([4, 2, 2], False), ([4, 2, 3], True), ([99] + [0] * (CHAIN_MAX - 1), True)]
    for keys, whole in cases:
        chain = [found(epoch, epoch - 1 or None, of_one) for epoch, of_one in enumerate(keys, 1)]
        last = len(keys)
        machine = checkpointing(*map(published, range(1, last + 2)), checkpoints=chain[::-1])
        happens(machine, *BOTH, restored(1), restored(2))
        assert asked_for(machine.step(want())) == [(1, last + 1, whole)] * 2


# Given up -----------------------------------------------------------------------------------------------------------


def test_checkpoints_given_up_when_torn_a_checkpoint_is_given_up_when_a_worker_is_lost() -> None:
    machine = at(1, want(7), written(1))
    actions = machine.step(gone(2))
    assert failed(actions) == [((7,), 1, LOST)]
    assert only(DropCheckpoint, actions)[:1] == [DropCheckpoint(checkpoint=1)]
    assert listeners(DropCheckpoint, actions)[0] == 1
    late = happens(machine, came(1, 3), written(1), written(3), finished(3, 1))
    assert (only(PublishCheckpoint, late), asked_for(late)) == ([], [])
    assert asked_for(machine.step(want(8))) == [(2, 1, True)] * 2


def test_leases_write_only_what_may_repeat_the_part_of_a_worker_that_was_given_up_does_not_count() -> None:
    machine = at(1, came(1, 3), finished(3, 1), want(7))
    late = happens(machine, written(2), written(1))  # the second was in the place of the third
    assert only(PublishCheckpoint, late) == []
    (request,) = only(PublishCheckpoint, machine.step(written(3)))
    assert request.files == (part_of(1, 1, 1), part_of(3, 1, 1))


def test_a_worker_that_is_replaced_without_a_word_is_lost() -> None:
    machine = at(1, want(7), written(2))
    assert failed(machine.step(came(1, 3))) == [((7,), 1, LOST)]


def test_a_checkpoint_is_given_up_when_a_worker_cannot_write_and_can_be_asked_for_again() -> None:
    machine = at(1, want(7), written(1))
    actions = machine.step(not_taken(2))
    assert failed(actions) == [((7,), 1, "worker 1: the disk is full")]
    assert listeners(DropCheckpoint, actions) == [1, 2]
    assert happens(machine, not_taken(1), written(2)) == []
    assert asked_for(machine.step(want(8))) == [(2, 1, True)] * 2
    assert ready(taken(machine, 2)) == [((8,), 1, (1,))]


def test_a_checkpoint_is_given_up_when_the_lake_does_not_take_it_and_the_next_builds_on_the_same() -> None:
    machine = at(0)
    next_one(machine, 1, keys=5)
    happens(machine, *flown(2), want(7), written(1, 2), written(2, 2))
    actions = machine.step(not_in_lake(2))
    assert failed(actions) == [((7,), 2, "the disk is gone")]
    assert listeners(DropCheckpoint, actions) == [1, 2]
    assert asked_for(machine.step(want(8))) == [(3, 2, False)] * 2
    assert ready(taken(machine, 3)) == [((8,), 2, (2, 1))]


def test_a_request_meanwhile_is_served_by_the_next_one() -> None:
    machine = at(1, want(1), want(2))
    actions = machine.step(not_taken(1))
    assert failed(actions) == [((1,), 1, "worker 0: the disk is full")]
    assert asked_for(actions) == [(2, 1, True)] * 2
    assert ready(taken(machine, 2)) == [((2,), 1, (1,))]


def test_a_worker_lost_before_the_lake_has_answered_does_no_harm() -> None:
    machine = at(1, want(7), written(1))
    (request,) = only(PublishCheckpoint, machine.step(written(2)))
    assert happens(machine, gone(2)) == []
    (assign,) = only(Assign, machine.step(came(1, 3)))
    assert (assign.start_at, assign.chain) == (0, ())
    actions = machine.step(in_lake(request))
    assert (listeners(KeepCheckpoint, actions), ready(actions)) == ([1, 3], [((7,), 1, (1,))])
    happens(machine, finished(3, 1), *flown(2, 1, 3))
    assert asked_for(machine.step(want())) == [(2, 2, False)] * 2


def test_a_worker_lost_before_the_lake_has_refused_does_no_harm() -> None:
    machine = at(1, want(7), written(1), written(2), gone(2))
    actions = happens(machine, not_in_lake(), came(1, 3))
    assert failed(actions) == [((7,), 1, "the disk is gone")]
    assert asked_for(happens(machine, want(8))) == [(2, 1, True)] * 2


def test_when_the_app_stops_no_checkpoint_begins() -> None:
    machine = at(1)
    machine.step(StopAsked())
    assert machine.step(want()) == []


# Rescales and views -------------------------------------------------------------------------------------------------


def test_checkpoints_keys_stay_a_rescale_waits_for_the_checkpoint() -> None:
    machine = at(1, want(7), wanted(1, workers=3))
    assert only(RescaleBegun, happens(machine, written(1), written(2))) == []
    (request,) = [PublishCheckpoint(flow=FlowId(1), checkpoint=1, epoch=Epoch(1), base=None, files=())]
    actions = machine.step(in_lake(request))
    assert (ready(actions), len(only(RescaleBegun, actions))) == ([((7,), 1, (1,))], 1)


def test_checkpoints_keys_stay_a_rescale_begins_when_the_checkpoint_is_given_up() -> None:
    machine = at(1, want(7), wanted(1, workers=3))
    actions = machine.step(not_taken(1))
    assert (len(failed(actions)), len(only(RescaleBegun, actions))) == (1, 1)


def test_checkpoints_keys_stay_a_checkpoint_waits_for_the_rescale() -> None:
    machine = at(1, wanted(1, workers=3), want(7))
    up: list[CoordinatorEvent] = [came(2, 3), met(1), met(2), met(3), moved(2, 3), settled(1), settled(2)]
    assert asked_for(happens(machine, *up)) == []
    actions = machine.step(settled(3))
    assert outcomes(actions) == [(1, "finished", 1)]
    assert (asked_for(actions), listeners(TakeCheckpoint, actions)) == ([(1, 1, True)] * 3, [1, 2, 3])
    assert only(PublishCheckpoint, happens(machine, written(1), written(2))) == []
    assert len(only(PublishCheckpoint, machine.step(written(3)))) == 1


def test_a_rescale_that_fails_has_all_begin_anew_at_the_checkpoint() -> None:
    machine = at(0)
    next_one(machine, 1)
    happens(machine, *flown(2), wanted(1, workers=3), came(2, 3), restored(3), met(1), met(2), met(3))
    actions = happens(machine, gone(2))
    (outcome,) = only(RescaleEnded, actions)
    assert isinstance(outcome.error, WorkerLost)
    assert [(a.worker, a.start_at, a.serve_from, a.chain) for a in only(Assign, actions)] == [(0, 1, 2, (1,))]


def test_a_view_that_is_dropped_has_its_checkpoint_given_up_and_others_go_on() -> None:
    machine = at(1, want(7), written(1))
    actions = machine.step(PlansWanted(ticket=9, plans=(), epochs=published_empty(1)))
    assert (len(only(PlansTaken, actions)), failed(actions)) == (1, [((7,), 1, "its view is dropped")])
    assert only(ForgetCheckpoints, actions) == [ForgetCheckpoints(flow=FlowId(1))]


def test_a_view_that_is_added_changes_no_checkpoint() -> None:
    machine = at(1, want(7), written(1))
    actions = machine.step(PlansWanted(ticket=9, plans=(PLAN, planned("other", "j")), epochs=published_empty(1)))
    assert (len(only(PlansTaken, actions)), failed(actions), only(ForgetCheckpoints, actions)) == (1, [], [])
    (request,) = only(PublishCheckpoint, machine.step(written(2)))
    assert ready(machine.step(in_lake(request))) == [((7,), 1, (1,))]


def test_a_request_is_for_a_checkpoint_of_every_flow() -> None:
    machine = at(1, PlansWanted(ticket=9, plans=(PLAN, planned("other", "j")), epochs=published_empty(1)))
    happens(machine, *(event for who in (1, 2) for event in (anew(who, 0, flow=2), finished(who, 1, flow=2))))
    assert asked_for(machine.step(want(7))) == [(1, 1, True)] * 2 + [(2, 1, True)] * 2
    assert ready(taken(machine, 1)) == [((), 1, (1,))]
    (request,) = only(PublishCheckpoint, happens(machine, *(written(i, 2, flow=2) for i in (1, 2))))
    assert request.flow == 2
    assert ready(machine.step(in_lake(request))) == [((7,), 1, (1,))]


# Workers that come later --------------------------------------------------------------------------------------------


def test_a_later_worker_begins_with_the_chain_while_others_go_on() -> None:
    machine = at(0)
    for epoch in (1, 2, 3):
        next_one(machine, epoch, keys=4 - epoch)
    happens(machine, *flown(4), gone(2))
    actions = machine.step(came(1, 3))
    (assign,) = only(Assign, actions)
    assert (assign.start_at, assign.serve_from, assign.chain, assign.generation) == (3, 4, (3, 2, 1), 0)
    assert actions[1:] == opened(3, 4)
    assert machine.step(published(5)) == [*opened(1, 5), *opened(3, 5)]
    happens(machine, finished(1, 5), restored(3), finished(3, 4))
    assert machine.step(finished(3, 5)) == ended(5)


def test_a_place_is_filled_when_what_is_kept_there_is_restored() -> None:
    machine = at(0)
    next_one(machine, 1)
    assert happens(machine, *flown(2), gone(2), want(7)) == opened(1, 2) + opened(2, 2) + ended(2)
    assert asked_for(machine.step(came(1, 3))) == []
    actions = machine.step(restored(3))
    assert (asked_for(actions), listeners(TakeCheckpoint, actions)) == ([(2, 2, False)] * 2, [1, 3])


def test_a_worker_that_begins_with_nothing_has_nothing_to_restore() -> None:
    machine = at(1, gone(2), want(7))
    assert asked_for(machine.step(came(1, 3))) == [(1, 1, True)] * 2


# A driver that comes later ------------------------------------------------------------------------------------------


def resumed(*events: CoordinatorEvent, epochs: int = 4, **how: Any) -> CoordinatorMachine:
    """It has found a checkpoint of epoch 3 that builds on one of epoch 1, and so many epochs."""
    chain = (found(3, 1), found(1, keys=5))
    lake = [published(epoch) for epoch in range(1, epochs + 1)]
    return checkpointing(*lake, *events, checkpoints=chain, **how)


def test_a_driver_has_workers_begin_with_the_chain_that_it_has_found() -> None:
    machine = resumed()
    actions = happens(machine, *BOTH)
    assigned = [(a.worker, a.start_at, a.serve_from, a.chain) for a in only(Assign, actions)]
    assert assigned == [(0, 3, 4, (3, 1)), (1, 3, 4, (3, 1))]
    assert [action for action in actions if action in [*opened(1, 4), *opened(2, 4)]] == [*opened(1, 4), *opened(2, 4)]


def test_epochs_that_the_checkpoint_has_have_ended_when_all_have_restored() -> None:
    machine = resumed(*BOTH)
    assert machine.step(restored(1)) == []
    assert machine.step(restored(2)) == ended(3)
    assert happens(machine, finished(1, 4), finished(2, 4)) == ended(4)
    assert machine.published == 4


def test_epochs_that_come_while_workers_restore_end_after_those_before() -> None:
    machine = resumed(*BOTH)
    assert happens(machine, restored(1), finished(1, 4)) == []
    assert happens(machine, restored(2)) == ended(3)
    assert machine.step(finished(2, 4)) == ended(4)


def test_after_a_driver_the_next_checkpoint_builds_on_what_was_found() -> None:
    machine = resumed(*BOTH, restored(1), restored(2), finished(1, 4), finished(2, 4))
    assert asked_for(machine.step(want(7))) == [(1, 4, False)] * 2
    assert ready(taken(machine, 1)) == [((7,), 4, (4, 3, 1))]


def test_a_checkpoint_that_was_found_is_enough_if_there_is_nothing_more() -> None:
    machine = resumed(*BOTH, restored(1), restored(2), epochs=3)
    assert ready(machine.step(want(7))) == [((7,), 3, (3, 1))]


@pytest.mark.parametrize(("epochs", "asked"), [(4, []), (5, [(1, 5, False)] * 2)])
def test_every_so_many_epochs_counts_from_the_checkpoint_that_was_found(epochs: int, asked: list[Any]) -> None:
    machine = resumed(*BOTH, restored(1), restored(2), epochs=epochs, every=2)
    reports = [finished(incarnation, epoch) for epoch in range(4, epochs + 1) for incarnation in (1, 2)]
    assert asked_for(happens(machine, *reports)) == asked


def test_a_rescale_waits_for_a_worker_that_restores() -> None:
    machine = resumed(*BOTH, restored(1), wanted(1, moves={3: 0}), met(1), met(2), finished(1, 4), finished(2, 4))
    assert listeners(MigrationOrder, machine.step(restored(2))) == [1, 2]


# Exchange edges -----------------------------------------------------------------------------------------------------

MET: list[CoordinatorEvent] = [*BOTH, met(1), met(2)]


def staged(*events: CoordinatorEvent, **how: Any) -> CoordinatorMachine:
    return checkpointing(*MET, *events, plans=(STAGED,), **how)


def read(epoch: int, *incarnations: int) -> list[CoordinatorEvent]:
    report = EpochFinished(epoch=Epoch(epoch), read={CHANNEL: 0}, applied={}, stats={})
    return [said(incarnation, report) for incarnation in incarnations]


def gone_through(epoch: int, *incarnations: int) -> list[CoordinatorEvent]:
    """A whole epoch of no rows."""
    stages = [
        said(incarnation, StageDone(epoch=Epoch(epoch), stage=stage, stats={}))
        for stage in (0, 1)
        for incarnation in incarnations or (1, 2)
    ]
    return [*read(epoch, *(incarnations or (1, 2))), *stages]


def whole(*epochs: int) -> list[CoordinatorEvent]:
    return [event for epoch in epochs for event in (published(epoch), *gone_through(epoch))]


def test_a_cut_waits_for_the_end_of_the_epoch() -> None:
    machine = staged(published(1), want(7))
    *before, last = gone_through(1)
    assert asked_for(happens(machine, *before)) == []
    actions = machine.step(last)
    assert asked_for(actions) == [(1, 1, True)] * 2
    told = [type(action.message) for action in actions if isinstance(action, Tell)]
    assert told == [EpochOver, EpochOver, TakeCheckpoint, TakeCheckpoint]


def test_with_exchange_edges_all_are_asked_for_their_part_before_the_next_epoch_is_opened() -> None:
    machine = staged(published(1), published(2), want(7))
    actions = happens(machine, *gone_through(1))
    told = [action.message for action in actions if isinstance(action, Tell)]
    assert [type(message) for message in told][-4:] == [TakeCheckpoint, TakeCheckpoint, OpenEpoch, OpenEpoch]


def kept_at(epoch: int, through: int) -> CoordinatorMachine:
    """There is a checkpoint of this epoch, and epochs have gone on."""
    machine = staged(*whole(*range(1, epoch + 1)), want(7))
    assert ready(taken(machine, 1)) == [((7,), epoch, (epoch,))]
    happens(machine, *whole(*range(epoch + 1, through + 1)))
    return machine


def test_all_begin_anew_at_the_checkpoint_when_one_is_lost() -> None:
    machine = kept_at(2, through=3)
    assert happens(machine, published(4), gone(2)) == [*opened(1, 4, mixed=True), *opened(2, 4, mixed=True)]
    actions = machine.step(came(1, 3))
    assigned = [(a.worker, a.start_at, a.serve_from, a.chain, a.generation) for a in only(Assign, actions)]
    assert assigned == [(0, 2, 4, (2,), 1), (1, 2, 4, (2,), 1)]
    assert listeners(Meet, happens(machine, anew(1), restored(1), restored(3))) == [1, 3]
    machine.step(met(1, 2))
    assert machine.step(met(3, 2)) == [*opened(1, 3, mixed=True), *opened(3, 3, mixed=True)]
    actions = happens(machine, *gone_through(3, 1, 3))
    assert [stage.stage for stage in only(BeginStage, actions)] == [0, 0, 1, 1]
    assert ended(3)[0] not in actions
    assert ended(4)[0] in happens(machine, *gone_through(4, 1, 3))


def test_what_was_said_of_restoring_before_all_began_anew_does_not_count() -> None:
    machine = kept_at(2, through=3)
    assert listeners(Meet, happens(machine, gone(2), came(1, 3), restored(3), restored(1), anew(1))) == []
    assert listeners(Meet, machine.step(restored(1))) == [1, 3]


def test_checkpoints_given_up_when_torn_a_checkpoint_is_given_up_when_all_begin_anew() -> None:
    machine = staged(*whole(1), want(7), published(2))
    actions = machine.step(said(1, PeersLost(meeting=1, why="cut")))
    assert failed(actions) == [((7,), 1, "a worker was lost, or all have begun anew")]
    assert (listeners(DropCheckpoint, actions), listeners(Assign, actions)) == ([1, 2], [1, 2])
    names = [type(a.message).__name__ for a in actions if hasattr(a, "message")]
    assert names.index("DropCheckpoint") < names.index("Assign")


def test_no_checkpoint_is_as_of_an_epoch_before_the_last_that_has_ended() -> None:
    machine = kept_at(1, through=3)
    happens(machine, gone(2), want(8), came(1, 3), anew(1), restored(1), restored(3), met(1, 2), met(3, 2))
    assert asked_for(happens(machine, *gone_through(2, 1, 3))) == []
    assert asked_for(happens(machine, *gone_through(3, 1, 3))) == [(2, 3, False)] * 2


def test_a_driver_goes_on_from_the_checkpoint_that_it_has_found() -> None:
    lake = [published(1), published(2)]
    machine = checkpointing(*lake, *BOTH, plans=(STAGED,), checkpoints=(found(1),))
    assert machine.step(restored(1)) == []
    actions = machine.step(restored(2))
    assert (actions[:1], listeners(Meet, actions)) == (ended(1), [1, 2])
    assert happens(machine, met(1), met(2)) == [*opened(1, 2, mixed=True), *opened(2, 2, mixed=True)]


def test_a_checkpoint_that_was_published_is_kept_though_all_begin_anew() -> None:
    machine = staged(*whole(1), want(7), written(1))
    (request,) = only(PublishCheckpoint, machine.step(written(2)))
    happens(machine, gone(2), came(1, 3))
    assert ready(machine.step(in_lake(request))) == [((7,), 1, (1,))]


# Workers that standbys take over from -------------------------------------------------------------------------------


def all_written(group: Group, checkpoint: int) -> PublishCheckpoint:
    """All workers have written their parts."""
    requests = [group.says(worker, CheckpointWritten(checkpoint=checkpoint, files=())) for worker in group.workers]
    (request,) = only(PublishCheckpoint, requests[-1])
    return request


@pytest.mark.parametrize("in_lake_first", [True, False], ids=["it was published", "it is being published"])
def test_checkpoints_whole_after_losses_a_worker_lost_after_a_checkpoint_knew_what_has_changed_since(
    in_lake_first: bool,
) -> None:
    """The checkpoint is of what was before, be it whole."""
    group = Group()
    group.epoch()
    assert [ask.whole for ask in only(TakeCheckpoint, group.happens(want()))] == [True] * 3
    request = all_written(group, 1)
    if in_lake_first:
        group.happens(in_lake(request))
    group.epoch()
    group.lose(0)
    group.lease_over(1)
    assert group.workers == (1, 2)
    if not in_lake_first:
        assert only(CheckpointReady, group.happens(in_lake(request)))
    group.come(0)
    asked = only(TakeCheckpoint, group.happens(want()))
    assert {ask.whole for ask in asked} == {True}
    group.happens(in_lake(all_written(group, 2)))
    group.epoch()
    assert {ask.whole for ask in only(TakeCheckpoint, group.happens(want()))} == {False}
