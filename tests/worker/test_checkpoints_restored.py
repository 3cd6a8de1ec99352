"""The worker machine begins with what checkpoints have: rule checkpoints.restore_first, and what it says when it is
through."""

from collections.abc import Iterable
from dataclasses import replace

import pytest
from copying_kit import A, B, C, Fading, copied, copy, keep, sealed, state_read, take
from hypothesis import given, settings
from hypothesis import strategies as st
from machines_kit import (
    ALL_MINE,
    HALVES,
    KEYS,
    PLAN,
    VNODES,
    answered,
    asked,
    assign,
    finished,
    opened,
    planned,
    read,
    reading,
    reports,
    rows,
    vnode_map,
    worker,
)
from machines_kit import take as take_snapshot
from stages_kit import REGIONS, staged, staged_worker
from state_kit import MANY
from upquery_kit import HERE, PARTIAL, Weighed

from upriver.errors import IllegalEvent
from upriver.ids import Epoch, VnodeId
from upriver.protocol.messages import Assign, Restored, SnapshotTaken, StartedAnew
from upriver.protocol.rules import ALL_RULES, Rules
from upriver.protocol.worker_events import AllStateRead, ReadKeys, ReadState, Report, WorkerEvent
from upriver.worker.worker import WorkerMachine

CHAIN = (Epoch(3), Epoch(1))
RESTORING = assign(chain=CHAIN, start_at=Epoch(3), serve_from=Epoch(3))
TOLD = Report(message=Restored())


def vnodes(*numbers: int) -> tuple[VnodeId, ...]:
    return tuple(map(VnodeId, numbers))


def restored(*events: WorkerEvent, rules: Rules = ALL_RULES) -> WorkerMachine:
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


# checkpoints.restore_first
# -----------------------------------------------------------------------------------------------------------------


def test_checkpoints_restore_first_no_epoch_is_read_before_all_state_is_there() -> None:
    machine = worker(RESTORING)
    events: list[WorkerEvent] = [opened(4), opened(5), state_read({A: [1, 3]}), state_read({B: [2]})]
    assert [action for event in events for action in machine.step(event)] == []
    assert machine.step(AllStateRead()) == [TOLD, reading(4)]
    machine.step(rows(4, A))
    expected = [Report(message=finished(4, read=1, applied=1, keys=2, total=4)), reading(5)]
    assert machine.step(read(4, 1)) == expected


def test_checkpoints_restore_first_nothing_is_answered_before_all_state_is_there() -> None:
    machine = worker(RESTORING)
    events: list[WorkerEvent] = [
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
    machine = WorkerMachine(lambda *_: Weighed())
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


def fading(*events: WorkerEvent) -> WorkerMachine:
    machine = WorkerMachine(lambda *_: Fading())
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
        events: list[WorkerEvent] = [copy(), keep(len(epochs) + epoch - 1), read(epoch, len(keys))]
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
        events: list[WorkerEvent] = [opened(epoch), rows(epoch, *keys), read(epoch, len(keys))]
        for event in events:
            straight.step(event)
            if epoch > last:
                again.step(event)
        if epoch >= last:
            everything = asked(*SOME, at_least=epoch)
            assert answered(again.step(everything)) == answered(straight.step(everything))
