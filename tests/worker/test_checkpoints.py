"""The worker machine's part of checkpoints: what is copied, as of when, and what it tells; rules
checkpoints.copy_before_change, checkpoints.moved_keys_change and checkpoints.dropped_have_changed."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from copying_kit import A, B, C, Fading, copied, copy, drop, keep, sealed, take
from machines_kit import (
    ALL_MINE,
    HALVES,
    KEYS,
    PLAN,
    announce,
    applied,
    assign,
    meet,
    move,
    of_region,
    opened,
    over,
    owners_with,
    planned,
    read,
    reading,
    reports,
    rows,
    sent,
    vnode_map,
    worker,
)
from stages_kit import OTHER_END, staged, staged_worker
from upquery_kit import PARTIAL, WORKERS, Workers, present

from upriver.errors import ProtocolError
from upriver.ids import Epoch
from upriver.migration.messages import Acquire
from upriver.protocol.messages import (
    BeginStage,
    CheckpointNotTaken,
    CheckpointWritten,
    StartedAnew,
)
from upriver.protocol.rules import ALL_RULES, Rules
from upriver.protocol.worker_events import (
    ForgetState,
    Report,
    SealState,
    StateNotWritten,
    StateWritten,
    TimeToSettle,
    WorkerEvent,
    WriteState,
)
from upriver.state.checkpoint import StateFile
from upriver.worker.worker import WorkerMachine

MINE = assign(chain=())
FILES = (StateFile(name="f", region="seen", keys=1, nbytes=9, spans=(), checksums=()),)
MOVES_0 = owners_with(ALL_MINE, v0=1)


def stages(epoch: int) -> list[BeginStage | TimeToSettle]:
    """All stages of an epoch, and time for them."""
    begin = [BeginStage(epoch=Epoch(epoch), stage=stage) for stage in (0, 1)]
    return [event for stage in begin for event in (stage, TimeToSettle(rows_max=9))]


def at_cut(*epochs: Sequence[str], rules: Rules = ALL_RULES) -> WorkerMachine:
    """A worker that has been asked for all that there is after these epochs, and has copied nothing yet."""
    return worker(MINE, *applied(*epochs), take(1, at=len(epochs), whole=True), rules=rules)


def kept(*epochs: Sequence[str], rules: Rules = ALL_RULES) -> WorkerMachine:
    """The same, and the checkpoint is in the lake."""
    machine = at_cut(*epochs, rules=rules)
    for event in (copy(), StateWritten(checkpoint=1, files=()), keep(1)):
        machine.step(event)
    return machine


def change(machine: WorkerMachine, epoch: int, *keys: str) -> dict[str, list[int]]:
    """These keys have rows in the next epoch; what is copied meanwhile."""
    events: list[WorkerEvent] = [opened(epoch), rows(epoch, *keys), read(epoch, len(keys))]
    return copied([action for event in events for action in machine.step(event)])


# The cut ------------------------------------------------------------------------------------------------------------


def test_a_worker_that_stands_at_the_cut_takes_its_part_at_once_and_copies_it_when_there_is_time() -> None:
    machine = worker(MINE, *applied([A, B]))
    assert not machine.can_copy
    assert copied(machine.step(take(7, at=1, whole=True))) == {}
    assert machine.can_copy
    actions = machine.step(copy())
    assert copied(actions) == {A: [1], B: [1]}
    assert sealed(actions) == [SealState(checkpoint=7, at=Epoch(1))]
    assert all((a.checkpoint, a.at, a.region) == (7, 1, "seen") for a in actions if isinstance(a, WriteState))
    assert (machine.can_copy, machine.step(copy())) == (False, [])


def test_a_part_is_taken_at_the_cut_and_not_before() -> None:
    machine = worker(MINE, opened(1), opened(2), opened(3))
    assert machine.step(take(7, at=2, whole=True)) == []
    assert (machine.step(rows(1, A)), machine.can_copy) == ([], False)
    for event in (read(1, 1), rows(2, B)):
        machine.step(event)
        assert not machine.can_copy
    assert machine.step(read(2, 1))[-1] == reading(3)
    assert machine.can_copy
    assert copied(machine.step(copy())) == {A: [1], B: [2]}


def test_a_cut_that_the_worker_has_passed_is_a_fault() -> None:
    with pytest.raises(ProtocolError, match="the end of epoch 1 is asked for, and 2 is applied"):
        worker(MINE, *applied([A], [A])).step(take(7, at=1))


def test_a_part_of_which_nothing_is_to_be_copied_is_sealed_at_the_cut() -> None:
    machine = kept([A])
    assert sealed(machine.step(take(2, at=1))) == [SealState(checkpoint=2, at=Epoch(1))]
    assert not machine.can_copy


def test_of_views_with_exchange_edges_a_part_is_taken_when_the_epoch_is_over() -> None:
    events: list[WorkerEvent] = [replace(staged(ALL_MINE), chain=()), opened(1, mixed=True), rows(1, A), read(1, 1)]
    machine = staged_worker(*events)
    for event in (take(7, at=1, whole=True), *stages(1)):
        machine.step(event)
        assert not machine.can_copy
    machine.step(over(1))
    assert machine.can_copy
    written = [action for action in machine.step(copy()) if isinstance(action, WriteState)]
    assert {action.region: copied([action]) for action in written} == {"seen/0": {A: [1]}, "seen": {OTHER_END[A]: [1]}}


# What is copied, and as of when -------------------------------------------------------------------------------------


def test_checkpoints_copy_before_change_a_key_that_changes_first_is_copied_as_of_the_cut() -> None:
    machine = at_cut([A, B, C])
    machine.step(opened(2))
    first = machine.step(rows(2, A))
    assert copied(first) == {A: [1]}
    machine.step(read(2, 1))
    assert change(machine, 3, A, B) == {B: [1]}
    last = machine.step(copy())
    assert (copied(last), sealed(last)) == ({C: [1]}, [SealState(checkpoint=1, at=Epoch(1))])
    assert [action.at for action in (*first, *last) if isinstance(action, WriteState)] == [1, 1]


def test_checkpoints_copy_before_change_what_was_copied_when_there_was_time_is_not_copied_before_it_changes() -> None:
    machine = at_cut([A, B])
    assert copied(machine.step(copy(1))) == {A: [1]}
    assert change(machine, 2, A, B) == {B: [1]}
    actions = machine.step(copy())
    assert (copied(actions), len(sealed(actions))) == ({}, 1)


def test_checkpoints_copy_before_change_a_key_is_copied_before_rows_for_it_are_gathered() -> None:
    epoch = [opened(1, mixed=True), rows(1, A), read(1, 1), *stages(1), over(1)]
    machine = staged_worker(replace(staged(ALL_MINE), chain=()), *epoch, take(7, at=1, whole=True))
    machine.step(opened(2, mixed=True))
    assert copied(machine.step(rows(2, A))) == {A: [1]}
    machine.step(read(2, 1))
    actions = [action for event in stages(2) for action in machine.step(event)]
    assert copied(actions) == {OTHER_END[A]: [1]}
    actions = machine.step(copy())
    assert (copied(actions), len(sealed(actions))) == ({}, 1)


def test_so_many_keys_are_copied_at_a_time_over_all_regions() -> None:
    plans, maps = (PLAN, planned("other")), dict.fromkeys(("seen", "other"), vnode_map(ALL_MINE))
    machine = worker(assign(chain=(), plans=plans, maps=maps), *applied([A, B]), take(1, at=1, whole=True))
    found = []
    while machine.can_copy:
        actions = machine.step(copy(3))
        found.append([(action.region, *copied([action])) for action in actions if isinstance(action, WriteState)])
    assert found == [[("seen", A, B), ("other", A)], [("other", B)]]


def test_only_what_has_changed_since_the_last_checkpoint_is_in_the_next_one() -> None:
    machine = kept([A, B])
    assert change(machine, 2, B, C) == {}
    machine.step(take(2, at=2))
    assert copied(machine.step(copy())) == {B: [1, 2], C: [2]}


def test_a_whole_checkpoint_has_what_has_not_changed_too() -> None:
    machine = kept([A, B])
    change(machine, 2, B)
    machine.step(take(2, at=2, whole=True))
    assert copied(machine.step(copy())) == {A: [1], B: [1, 2]}


def test_keys_that_are_gone_are_named_without_rows_and_in_a_whole_checkpoint_not_at_all() -> None:
    machine = WorkerMachine(lambda *_: Fading())
    for event in (MINE, *applied([A, B, C]), take(1, at=1, whole=True), copy(), keep(1)):
        machine.step(event)
    change(machine, 2, A, B)
    machine.step(take(2, at=2))
    assert change(machine, 3, A) == {A: []}
    assert copied(machine.step(copy())) == {B: []}
    machine.step(keep(2))
    machine.step(take(3, at=3, whole=True))
    assert copied(machine.step(copy())) == {A: [3], C: [1]}


def test_what_changes_while_a_checkpoint_is_copied_is_in_the_next_one() -> None:
    machine = at_cut([A, B])
    change(machine, 2, A)
    machine.step(copy())
    machine.step(keep(1))
    machine.step(take(2, at=2))
    assert copied(machine.step(copy())) == {A: [1, 2]}


# Keys that move -----------------------------------------------------------------------------------------------------

HERE = KEYS[0][0]
STAYS = KEYS[1][0]


def after_a_move(rules: Rules = ALL_RULES) -> tuple[WorkerMachine, WorkerMachine]:
    """Worker 0 has given HERE to worker 1, after a checkpoint that has it; both stand at epoch 1."""
    events = [*applied([HERE, STAYS]), take(1, at=1, whole=True), copy(), keep(1)]
    giver = worker(assign(chain=()), *events, meet(0, 1), announce(ALL_MINE, MOVES_0, 0, 1), rules=rules)
    taker = worker(
        assign(me=1, chain=(Epoch(1),), start_at=Epoch(1)), meet(0, 1), announce(ALL_MINE, MOVES_0, 0, 1), rules=rules
    )
    loads = [message for _, message in sent(giver.step(move(9))) if isinstance(message, Acquire)]
    for load in loads:
        taker.step(of_region(0, load))
    assert len(loads) == 1
    return giver, taker


def test_checkpoints_moved_keys_change_a_key_that_has_moved_is_in_the_next_checkpoint_of_its_new_owner() -> None:
    giver, taker = after_a_move()
    taker.step(take(2, at=1))
    assert copied(taker.step(copy())) == {HERE: [1]}
    giver.step(take(2, at=1))
    assert copied(giver.step(copy())) == {HERE: []}


# What becomes of it -------------------------------------------------------------------------------------------------


def test_the_coordinator_is_told_when_the_part_is_in_the_lake() -> None:
    machine = at_cut([A])
    machine.step(copy())
    told = Report(message=CheckpointWritten(checkpoint=1, files=FILES))
    assert machine.step(StateWritten(checkpoint=1, files=FILES)) == [told]


def test_the_coordinator_is_told_when_the_part_cannot_be_written() -> None:
    told = Report(message=CheckpointNotTaken(checkpoint=1, error="the disk is full"))
    assert at_cut([A]).step(StateNotWritten(checkpoint=1, error="the disk is full")) == [told]


@pytest.mark.parametrize("over", [keep(1), drop(1)])
def test_what_comes_late_of_a_checkpoint_that_is_over_is_no_news(over: WorkerEvent) -> None:
    machine = at_cut([A])
    for event in (copy(), over):
        machine.step(event)
    late: list[WorkerEvent] = [StateWritten(checkpoint=1, files=FILES), StateNotWritten(checkpoint=1, error="late")]
    assert [machine.step(event) for event in late] == [[], []]
    change(machine, 2, A)
    machine.step(take(2, at=2))
    assert [machine.step(event) for event in (*late, keep(1), drop(1))] == [[], [], [], []]
    assert copied(machine.step(copy())) == {A: [1, 2]}


def test_checkpoints_dropped_have_changed_what_a_checkpoint_that_is_given_up_was_to_have_is_in_the_next_one() -> None:
    machine = kept([A, B, C])
    change(machine, 2, A, B)
    machine.step(take(2, at=2))
    machine.step(copy(1))
    assert machine.step(drop(2)) == [ForgetState(checkpoint=2)]
    assert (machine.can_copy, machine.step(copy())) == (False, [])
    assert change(machine, 3, A) == {}
    machine.step(take(3, at=3))
    assert copied(machine.step(copy())) == {A: [1, 2, 3], B: [1, 2]}


def test_checkpoints_dropped_have_changed_holds_for_one_that_was_written_already() -> None:
    machine = kept([A, B])
    change(machine, 2, B)
    for event in (take(2, at=2), copy(), StateWritten(checkpoint=2, files=FILES), drop(2), take(3, at=2)):
        machine.step(event)
    assert copied(machine.step(copy())) == {B: [1, 2]}


def test_a_checkpoint_that_is_given_up_before_its_cut_is_never_taken() -> None:
    machine = worker(MINE, take(1, at=1), opened(1), rows(1, A))
    assert machine.step(drop(1)) == []
    assert sealed(machine.step(read(1, 1))) == []
    assert not machine.can_copy
    machine.step(take(2, at=1))
    assert copied(machine.step(copy())) == {A: [1]}


def test_another_one_that_is_given_up_changes_nothing() -> None:
    machine = worker(MINE, take(2, at=1), opened(1), drop(1))
    machine.step(rows(1, A))
    machine.step(read(1, 1))
    assert copied(machine.step(copy())) == {A: [1]}


def test_a_worker_that_begins_anew_in_mid_copy_has_no_part_any_more() -> None:
    machine = at_cut([A, B])
    machine.step(copy(1))
    assert reports(machine.step(assign(chain=(), generation=1))) == [StartedAnew(generation=1)]
    late: list[WorkerEvent] = [copy(), StateWritten(checkpoint=1, files=FILES), keep(1), drop(1)]
    assert [machine.step(event) for event in late] == [[], [], [], []]
    assert not machine.can_copy
    assert change(machine, 1, A) == {}
    machine.step(take(2, at=1))
    assert copied(machine.step(copy())) == {A: [1]}


def test_a_worker_that_begins_anew_before_the_cut_does_not_take_it() -> None:
    machine = worker(MINE, take(1, at=1), assign(chain=(), generation=1), opened(1))
    assert sealed(machine.step(read(1, 0))) == []
    assert not machine.can_copy


def test_where_no_checkpoint_is_ever_taken_nothing_is_noted() -> None:
    machine = worker(assign(), *applied([A, B]))
    assert len(sealed(machine.step(take(1, at=1, whole=True)))) == 1


def test_what_is_kept_because_it_is_read_is_in_no_checkpoint() -> None:
    workers = Workers()
    for each in WORKERS:
        workers.step(each, assign(HALVES, each, plans=(PARTIAL,), chain=()))
    workers.epoch(HERE)
    workers.fill(0, HERE)
    assert present(workers, 0)["keys"] == 1
    assert len(sealed(workers.step(0, take(1, at=1, whole=True)))) == 1
