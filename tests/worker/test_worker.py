"""The worker machine's phases: every event in every one of them, beginning anew, and the end."""

from collections.abc import Sequence
from dataclasses import replace
from typing import get_args

import pytest
from machines_kit import (
    ALL_MINE,
    CHANNEL,
    HALVES,
    KEYS,
    abort,
    announce,
    answered,
    applied,
    asked,
    assign,
    meet,
    move,
    opened,
    over,
    question_from,
    read,
    reading,
    refused,
    reports,
    rows,
    rows_from,
    said,
    sent,
    take,
    worker,
)

from upriver.errors import IllegalEvent, LakeError, WrongOwner
from upriver.ids import Epoch, FeedId, SnapshotId, WorkerId
from upriver.protocol.messages import (
    BeginStage,
    ChangesLogged,
    CloseInput,
    ContinueEpochs,
    DropCheckpoint,
    DropSnapshot,
    EpochFinished,
    Evict,
    FailView,
    Follow,
    KeepCheckpoint,
    PauseEpochs,
    Probe,
    ReadVnodes,
    Resume,
    Retire,
    StartedAnew,
    TakeChanges,
    TakeCheckpoint,
    Unfollow,
    ViewFailed,
)
from upriver.protocol.peers import PeerLookupRefused
from upriver.protocol.worker_events import (
    AllStateRead,
    ChangesNotStored,
    ChangesStored,
    KeysRead,
    KeysUnread,
    LookupGivenUp,
    PeerLost,
    PeersMet,
    ReadTakesLong,
    Report,
    RowsFetched,
    RowsUnfetched,
    StateNotWritten,
    StateRead,
    StateUnread,
    StateWritten,
    Stop,
    TimeToAnswer,
    TimeToCopy,
    TimeToEvict,
    TimeToFeed,
    TimeToFill,
    TimeToSettle,
    TimeToTakeIn,
    WorkerEvent,
)
from upriver.state.checkpoint import StateChunk
from upriver.state.failure import ViewFailure
from upriver.state.vectors import NO_KEYS

OF_EACH_KIND: list[WorkerEvent] = [
    assign(),
    opened(1),
    BeginStage(epoch=Epoch(1), stage=0),
    over(1),
    ReadVnodes(vnodes=()),
    meet(0, 1),
    announce(ALL_MINE, HALVES),
    CloseInput(peers=()),
    PauseEpochs(pause=1),
    ContinueEpochs(),
    take(1, at=1),
    DropSnapshot(snapshot=SnapshotId(1)),
    Retire(),
    rows(1, "a"),
    read(1, 0),
    asked("a"),
    LookupGivenUp(ticket=1),
    PeersMet(meeting=1),
    rows_from(1, 1, "a"),
    PeerLost(why="gone"),
    move(),
    KeysRead(generation=0, region="v", number=1, rows=(), through=Epoch(0)),
    ReadTakesLong(generation=0, region="v", number=1),
    KeysUnread(generation=0, region="v", number=1, error=LakeError("torn")),
    RowsFetched(generation=0, view="v", task=1, rows=()),
    RowsUnfetched(generation=0, view="v", task=1, error=LakeError("torn")),
    FailView(view="v", failure=ViewFailure(kind="RowError", error="overflow")),
    TimeToEvict(keys_max=1),
    Evict(eviction=1, view="v", keys=None),
    StateRead(region="v", chunk=StateChunk(NO_KEYS, ())),
    StateUnread(error="torn"),
    AllStateRead(),
    TakeCheckpoint(checkpoint=1, at=Epoch(1), whole=True),
    TimeToCopy(keys_max=1),
    TimeToSettle(rows_max=1),
    StateWritten(checkpoint=1, files=()),
    StateNotWritten(checkpoint=1, error="the disk is full"),
    TakeChanges(taking=1, at=Epoch(1), begins=()),
    ChangesStored(taking=1, parts=()),
    ChangesNotStored(taking=1, error="the disk is full"),
    ChangesLogged(through={}),
    KeepCheckpoint(checkpoint=1),
    DropCheckpoint(checkpoint=1),
    Resume(maps={}, reads=(), at=Epoch(0), serve_from=Epoch(0), generation=1),
    Follow(feed=FeedId(1), owner=WorkerId(1), vnodes=()),
    Unfollow(feed=FeedId(1), vnodes=()),
    Probe(probe=1),
    TimeToFeed(keys_max=1),
    TimeToFill(),
    TimeToTakeIn(rows_max=1),
    TimeToAnswer(rows_max=1),
]
BEFORE_ASSIGNMENT = {
    "Assign",
    "Retire",
    "LookupAsked",
    "LookupGivenUp",
    "KeysRead",
    "KeysUnread",
    "ReadTakesLong",
    "RowsFetched",
    "RowsUnfetched",
    "BoardGiven",
}
"""The kinds of event that a worker may see before it is told what it keeps."""


def kind(event: object) -> str:
    return type(event).__name__


def test_these_are_events_of_each_kind() -> None:
    assert {type(event) for event in OF_EACH_KIND} == set(get_args(WorkerEvent))


@pytest.mark.parametrize("event", [e for e in OF_EACH_KIND if kind(e) not in BEFORE_ASSIGNMENT], ids=kind)
def test_an_unassigned_worker_has_no_place_for(event: WorkerEvent) -> None:
    with pytest.raises(IllegalEvent, match=f"{kind(event)} in phase Unassigned"):
        worker().step(event)


def test_an_unassigned_worker_ignores_answers_to_its_predecessor() -> None:
    refusal = PeerLookupRefused(ticket=7, error=WrongOwner("not here"))
    assert worker().step(said(1, refusal)) == []


def test_an_unassigned_worker_owns_nothing_and_may_be_told_to_stop() -> None:
    assert refused(worker().step(asked("a"))) == {1: WrongOwner}
    assert worker().step(LookupGivenUp(ticket=1)) == []
    assert worker().step(Retire()) == [Stop()]
    assert worker().step(assign()) == []


@pytest.mark.parametrize("event", [e for e in OF_EACH_KIND if kind(e) not in ("LookupAsked", "Retire")], ids=kind)
def test_a_retired_worker_lets_pass(event: WorkerEvent) -> None:
    assert worker(assign(), Retire()).step(event) == []


@pytest.mark.parametrize("already", [[], [assign()], [assign(), opened(1), rows(1, "a")]])
def test_a_worker_that_is_told_to_retire_stops(already: Sequence[WorkerEvent]) -> None:
    machine = worker(*already)
    assert machine.step(Retire()) == [Stop()]
    assert refused(machine.step(asked("a"))) == {1: WrongOwner}
    assert not machine.can_move


@pytest.mark.parametrize(
    ("already", "event"),
    [
        ([], rows(1, "a")),
        ([], read(1, 0)),
        ([opened(1), opened(2)], rows(2, "a")),
        ([opened(1), opened(2)], read(2, 0)),
        (applied("a"), rows(1, "a")),
        (applied("a"), read(1, 1)),
        ([opened(1)], rows(1, "a", channel="other/k")),
        ([], abort()),
        ([announce(ALL_MINE, HALVES, 0, 1)], announce(ALL_MINE, HALVES, 0, 1)),
        ([announce(ALL_MINE, HALVES, 0, 1)], abort(version=2)),
        ([announce(ALL_MINE, HALVES, 0, 1)], CloseInput(peers=())),
    ],
)
def test_a_worker_that_follows_has_no_place_for(already: Sequence[WorkerEvent], event: WorkerEvent) -> None:
    machine = worker(assign(), *already)
    with pytest.raises(IllegalEvent):
        machine.step(event)


def test_a_bad_row_is_an_error_that_names_the_view_and_the_epoch() -> None:
    bad = replace(rows(99, "a"), epoch=rows(1, "a").epoch)
    (report,) = worker(assign(), opened(1)).step(bad)
    failure = ViewFailure(kind="RowError", error="view 'seen', epoch 1: overflow")
    assert report == Report(message=ViewFailed(view="seen", failure=failure))


def test_lookups_that_wait_are_refused_when_the_worker_retires() -> None:
    machine = worker(assign(serve_from=1), asked("a", ticket=3), asked("b", ticket=4))
    actions = machine.step(Retire())
    assert refused(actions) == {3: WrongOwner, 4: WrongOwner}
    assert actions[-1] == Stop()


@pytest.mark.parametrize("end", [Retire(), assign(generation=1)], ids=kind)
def test_what_was_said_before_the_end_is_not_said_again_at_the_end(end: WorkerEvent) -> None:
    machine = worker(assign(), opened(1))
    assert reports(machine.step(read(1, 0)), EpochFinished)
    assert not reports(machine.step(end), EpochFinished)


def test_a_worker_that_begins_anew_keeps_nothing_and_refuses_waiting_lookups() -> None:
    machine = worker(assign(), *applied("a"), opened(2), asked("a", ticket=5, at_least=2))
    assert refused(machine.step(assign(generation=1))) == {5: WrongOwner}
    assert answered(machine.step(asked("a"))) == {1: ({}, 0)}
    machine.step(opened(1))
    machine.step(rows(1, "a"))
    assert reports(machine.step(read(1, 1)), EpochFinished)[0].read == {CHANNEL: 1}


def test_worker_own_generation_only_only_a_worker_that_begins_anew_says_of_what_it_speaks() -> None:
    machine = worker()
    assert machine.step(assign(generation=3)) == []
    assert reports(machine.step(assign(generation=4))) == [StartedAnew(generation=4)]


def test_a_worker_begins_at_the_epoch_that_it_is_told() -> None:
    machine = worker(assign(start_at=7, serve_from=7))
    assert answered(machine.step(asked("a", at_least=7))) == {1: ({}, 7)}
    assert machine.step(opened(7)) == []
    assert machine.step(opened(8)) == [reading(8)]


def test_a_peers_question_that_waits_is_forgotten_when_the_worker_begins_anew() -> None:
    machine = worker(assign(HALVES), meet(0, 1), question_from(1, KEYS[0][0], at_least=1), assign(generation=1))
    machine.step(opened(1))
    assert sent(machine.step(read(1, 0))) == []
