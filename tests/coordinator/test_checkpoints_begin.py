"""Which workers begin with a checkpoint, and when; and checkpoints of views with exchange edges."""

from typing import Any

import pytest
from checkpoints_kit import (
    asked_for,
    at,
    checkpointing,
    failed,
    flown,
    found,
    happens,
    in_lake,
    next_one,
    ready,
    restored,
    taken,
    want,
    written,
)
from coordinator_kit import (
    BOTH,
    CHANNEL,
    anew,
    came,
    ended,
    finished,
    gone,
    listeners,
    met,
    only,
    opened,
    published,
    said,
    wanted,
)
from stages_kit import STAGED

from upriver.coordinator.coordinator import CoordinatorMachine
from upriver.ids import Epoch
from upriver.protocol.coordinator_events import CoordinatorEvent, PublishCheckpoint, Tell
from upriver.protocol.messages import (
    Assign,
    BeginStage,
    DropCheckpoint,
    EpochFinished,
    EpochOver,
    Meet,
    MigrationOrder,
    OpenEpoch,
    PeersLost,
    StageDone,
    TakeCheckpoint,
)

# Workers that come later
# ----------------------------------------------------------------------------------------------------


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
