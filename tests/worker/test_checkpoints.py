"""The worker machine's part of checkpoints: what is copied, as of when, what it tells, and how it begins with what they
have; rules checkpoints.copy_before_change, checkpoints.moved_keys_change, checkpoints.dropped_have_changed and
checkpoints.restore_first."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import pytest
from copying_kit import A, B, C, Fading, copied, copy, drop, keep, sealed, state_read, take
from hypothesis import given, settings
from hypothesis import strategies as st
from machines_kit import (
    ALL_MINE,
    FLOW,
    HALVES,
    KEYS,
    PLAN,
    VNODES,
    announce,
    answered,
    applied,
    asked,
    assign,
    finished,
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
from machines_kit import take as take_snapshot
from stages_kit import OTHER_END, REGIONS, staged, staged_worker
from state_kit import MANY
from upquery_kit import HERE, PARTIAL, WORKERS, Weighed, Workers, present

from upriver.errors import IllegalEvent, ProtocolError
from upriver.ids import Epoch, VnodeId
from upriver.migration.messages import Acquire
from upriver.protocol.messages import (
    Assign,
    BeginStage,
    CheckpointNotTaken,
    CheckpointWritten,
    Restored,
    SnapshotTaken,
    StartedAnew,
)
from upriver.protocol.rules import ALL_RULES, Rules
from upriver.protocol.worker_events import (
    AllStateRead,
    ForgetState,
    ReadKeys,
    ReadState,
    Report,
    SealState,
    ShareEvent,
    StateNotWritten,
    StateWritten,
    TimeToSettle,
    WriteState,
)
from upriver.state.checkpoint import StateFile
from upriver.worker.share import FlowShare

MINE = assign(chain=())
FILES = (StateFile(name="f", region="seen", keys=1, nbytes=9, spans=(), checksums=()),)
MOVES_0 = owners_with(ALL_MINE, v0=1)


def stages(epoch: int) -> list[BeginStage | TimeToSettle]:
    """All stages of an epoch, and time for them."""
    begin = [BeginStage(epoch=Epoch(epoch), stage=stage) for stage in (0, 1)]
    return [event for stage in begin for event in (stage, TimeToSettle(rows_max=9))]


def at_cut(*epochs: Sequence[str], rules: Rules = ALL_RULES) -> FlowShare:
    """A worker that has been asked for all that there is after these epochs, and has copied nothing yet."""
    return worker(MINE, *applied(*epochs), take(1, at=len(epochs), whole=True), rules=rules)


def kept(*epochs: Sequence[str], rules: Rules = ALL_RULES) -> FlowShare:
    """The same, and the checkpoint is in the lake."""
    machine = at_cut(*epochs, rules=rules)
    for event in (copy(), StateWritten(checkpoint=1, files=()), keep(1)):
        machine.step(event)
    return machine


def change(machine: FlowShare, epoch: int, *keys: str) -> dict[str, list[int]]:
    """These keys have rows in the next epoch; what is copied meanwhile."""
    events: list[ShareEvent] = [opened(epoch), rows(epoch, *keys), read(epoch, len(keys))]
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
    events: list[ShareEvent] = [replace(staged(ALL_MINE), chain=()), opened(1, mixed=True), rows(1, A), read(1, 1)]
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
    machine = FlowShare(FLOW, lambda *_: Fading())
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

STAYS = KEYS[1][0]


def after_a_move(rules: Rules = ALL_RULES) -> tuple[FlowShare, FlowShare]:
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
def test_what_comes_late_of_a_checkpoint_that_is_over_is_no_news(over: ShareEvent) -> None:
    machine = at_cut([A])
    for event in (copy(), over):
        machine.step(event)
    late: list[ShareEvent] = [StateWritten(checkpoint=1, files=FILES), StateNotWritten(checkpoint=1, error="late")]
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
    late: list[ShareEvent] = [copy(), StateWritten(checkpoint=1, files=FILES), keep(1), drop(1)]
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


CHAIN = (Epoch(3), Epoch(1))
RESTORING = assign(chain=CHAIN, start_at=Epoch(3), serve_from=Epoch(3))
TOLD = Report(message=Restored())


def vnodes(*numbers: int) -> tuple[VnodeId, ...]:
    return tuple(map(VnodeId, numbers))


def restored(*events: ShareEvent, rules: Rules = ALL_RULES) -> FlowShare:
    """A worker that has begun with A, as of the end of epoch 3, and has then lived through these events."""
    return worker(RESTORING, state_read({A: [1, 3]}), AllStateRead(), *events, rules=rules)


# What is asked for --------------------------------------------------------------------------------------------------


def test_the_slices_of_each_region_are_read_out_of_the_chain() -> None:
    plans, maps = (PLAN, planned("other")), {"seen": vnode_map(HALVES), "other": vnode_map(ALL_MINE)}
    machine = worker()
    expected = {"seen": vnodes(4, 5, 6, 7)}
    assert machine.step(assign(HALVES, me=1, chain=CHAIN, start_at=Epoch(3), plans=plans, maps=maps)) == [
        ReadState(chain=CHAIN, vnodes=expected)
    ]
    expected = {"seen": vnodes(0, 1, 2, 3), "other": vnodes(*range(VNODES))}
    assert worker().step(assign(HALVES, chain=CHAIN, start_at=Epoch(3), plans=plans, maps=maps)) == [
        ReadState(chain=CHAIN, vnodes=expected)
    ]


def test_of_views_with_exchange_edges_all_regions_are_read() -> None:
    machine = staged_worker(replace(staged(HALVES), chain=CHAIN, start_at=Epoch(3)))
    again = machine.step(replace(staged(HALVES), chain=CHAIN, start_at=Epoch(3), generation=1))
    slices = dict.fromkeys(REGIONS, vnodes(0, 1, 2, 3))
    assert again == [Report(message=StartedAnew(generation=1)), ReadState(chain=CHAIN, vnodes=slices)]


@pytest.mark.parametrize("chain", [(), None])
def test_without_a_checkpoint_there_is_nothing_to_be_restored_or_said(chain: tuple[Epoch, ...] | None) -> None:
    machine = worker()
    assert machine.step(assign(chain=chain)) == []
    assert machine.step(opened(1)) == [reading(1)]


@pytest.mark.parametrize(
    "owns_nothing",
    [
        assign(HALVES, me=2, chain=CHAIN, start_at=Epoch(3), serve_from=Epoch(3)),
        assign(chain=CHAIN, plans=(PARTIAL,), start_at=Epoch(3), serve_from=Epoch(3)),
    ],
    ids=["no slices", "only what is read"],
)
def test_a_worker_of_which_checkpoints_have_nothing_says_so_at_once(owns_nothing: Assign) -> None:
    machine = worker()
    assert machine.step(owns_nothing) == [TOLD]
    assert machine.step(opened(4)) == [reading(4, owns_nothing.reads)]


# Before all is restored ---------------------------------------------------------------------------------------------


def test_checkpoints_restore_first_no_epoch_is_read_before_all_state_is_there() -> None:
    machine = worker(RESTORING)
    events: list[ShareEvent] = [opened(4), opened(5), state_read({A: [1, 3]}), state_read({B: [2]})]
    assert [action for event in events for action in machine.step(event)] == []
    assert machine.step(AllStateRead()) == [TOLD, reading(4)]
    machine.step(rows(4, A))
    expected = [Report(message=finished(4, read=1, applied=1, keys=2, total=4)), reading(5)]
    assert machine.step(read(4, 1)) == expected


def test_checkpoints_restore_first_nothing_is_answered_before_all_state_is_there() -> None:
    machine = worker(RESTORING)
    events: list[ShareEvent] = [
        asked(A, ticket=1),
        state_read({A: [1, 3]}),
        asked(B, A, ticket=2, at_least=3),
        asked(A, ticket=3),
    ]
    assert [action for event in events for action in machine.step(event)] == []
    assert answered(machine.step(AllStateRead())) == {
        1: ({A: [1, 3]}, 3),
        2: ({A: [1, 3]}, 3),
        3: ({A: [1, 3]}, 3),
    }


def test_checkpoints_restore_first_what_is_asked_of_a_later_epoch_waits_for_that_one() -> None:
    machine = worker(RESTORING, asked(A, at_least=4), state_read({A: [1, 3]}))
    assert answered(machine.step(AllStateRead())) == {}
    for event in (opened(4), rows(4, A)):
        machine.step(event)
    assert answered(machine.step(read(4, 1))) == {1: ({A: [1, 3, 4]}, 4)}


def test_checkpoints_restore_first_a_worker_that_is_behind_what_was_published_answers_when_it_has_caught_up() -> None:
    machine = worker(replace(RESTORING, serve_from=Epoch(4)), opened(4), asked(A), state_read({A: [1, 3]}))
    assert answered(machine.step(AllStateRead())) == {}
    assert answered(machine.step(read(4, 0))) == {1: ({A: [1, 3]}, 4)}


def test_checkpoints_restore_first_keys_that_are_kept_because_they_are_read_wait_too() -> None:
    part = replace(planned("part"), full_because=None)
    maps = dict.fromkeys(("seen", "part"), vnode_map(ALL_MINE))
    machine = FlowShare(FLOW, lambda *_: Weighed())
    expected = [ReadState(chain=CHAIN, vnodes={"seen": vnodes(*range(VNODES))})]
    assert machine.step(replace(RESTORING, plans=(PLAN, part), maps=maps)) == expected
    assert machine.step(asked(HERE, view="part")) == []
    asks = [action for action in machine.step(AllStateRead()) if isinstance(action, ReadKeys)]
    assert [(action.region, action.upquery.through) for action in asks] == [("part", 3)]


def test_checkpoints_restore_first_a_snapshot_waits_for_all_state() -> None:
    machine = worker(RESTORING)
    assert machine.step(take_snapshot(7, at=3)) == []
    assert machine.step(state_read({A: [1], B: [2]})) == []
    assert [taken.rows for taken in reports(machine.step(AllStateRead()), SnapshotTaken)] == [2]


def test_state_that_was_not_asked_for_is_a_fault() -> None:
    for machine in (worker(assign(chain=())), restored()):
        with pytest.raises(IllegalEvent, match="nothing is being restored"):
            machine.step(state_read({A: [1]}))
        with pytest.raises(IllegalEvent, match="nothing is being restored"):
            machine.step(AllStateRead())


def test_a_worker_that_begins_anew_while_it_restores_begins_with_nothing_of_that() -> None:
    machine = worker(RESTORING, state_read({A: [1, 3]}), opened(4))
    actions = machine.step(replace(RESTORING, generation=1))
    assert reports(actions) == [StartedAnew(generation=1)]
    assert [a.chain for a in actions if isinstance(a, ReadState)] == [CHAIN]
    assert machine.step(opened(4)) == []
    machine.step(state_read({B: [2]}))
    assert machine.step(AllStateRead()) == [TOLD, reading(4)]
    machine.step(read(4, 0))
    assert answered(machine.step(asked(A, B))) == {1: ({B: [2]}, 4)}


# Then ---------------------------------------------------------------------------------------------------------------


def test_the_next_checkpoint_has_what_has_changed_since_the_one_that_was_restored() -> None:
    machine = worker(RESTORING, state_read({A: [1, 3], B: [2]}), AllStateRead())
    assert len(sealed(machine.step(take(1, at=3)))) == 1
    for event in (keep(1), opened(4), rows(4, B, C), read(4, 2), take(2, at=4)):
        machine.step(event)
    assert copied(machine.step(copy())) == {B: [2, 4], C: [4]}


def test_a_whole_checkpoint_has_what_was_restored() -> None:
    machine = restored(take(1, at=3, whole=True))
    assert copied(machine.step(copy())) == {A: [1, 3]}


def test_a_worker_that_was_behind_comes_to_the_cut_of_the_others() -> None:
    machine = restored(opened(4), opened(5))
    assert machine.step(take(1, at=5)) == []
    for event in (rows(4, B), read(4, 1)):
        machine.step(event)
        assert not machine.can_copy
    machine.step(read(5, 0))
    assert copied(machine.step(copy())) == {B: [4]}


Epochs = list[list[str]]
SOME = [of_one[0] for of_one in KEYS]
EPOCHS = st.lists(st.lists(st.sampled_from(range(VNODES)), max_size=5, unique=True).map(sorted), min_size=4, max_size=8)


def fading(*events: ShareEvent) -> FlowShare:
    machine = FlowShare(FLOW, lambda *_: Fading())
    for event in events:
        machine.step(event)
    return machine


def chain_of(epochs: Epochs, cuts: Iterable[int]) -> dict[str, list[int]]:
    """What checkpoints of these epochs have, the newest of each key; later epochs come before there is time to copy."""
    found: dict[str, list[int]] = {}
    machine = fading(assign(chain=()))
    due = sorted(set(cuts))
    for epoch, keys in enumerate(epochs, 1):
        machine.step(opened(epoch))
        before = copied(machine.step(rows(epoch, *keys)))
        events: list[ShareEvent] = [copy(), keep(len(epochs) + epoch - 1), read(epoch, len(keys))]
        for event in events:
            actions = machine.step(event)
            before |= copied(actions)
        found |= before
        if epoch in due:
            machine.step(take(len(epochs) + epoch, at=epoch, whole=epoch == due[0]))
    found |= copied(machine.step(copy()))
    return {key: seen for key, seen in found.items() if seen}


@settings(MANY, max_examples=30)
@given(EPOCHS, st.sets(st.integers(1, 4), min_size=1))
def test_what_is_restored_is_what_was_there_and_goes_on_like_it(places: list[list[int]], cuts: set[int]) -> None:
    epochs = [[SOME[place] for place in of_one] for of_one in places]
    last = max(cuts)
    start = assign(chain=(Epoch(last),), start_at=Epoch(last), serve_from=Epoch(last))
    again = fading(start, state_read(chain_of(epochs, cuts)), AllStateRead())
    straight = fading(assign(chain=()))
    for epoch, keys in enumerate(epochs, 1):
        events: list[ShareEvent] = [opened(epoch), rows(epoch, *keys), read(epoch, len(keys))]
        for event in events:
            straight.step(event)
            if epoch > last:
                again.step(event)
        if epoch >= last:
            everything = asked(*SOME, at_least=epoch)
            assert answered(again.step(everything)) == answered(straight.step(everything))
