"""A share's phases: every event in every one of them, beginning anew, and the end."""

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
    opened,
    question_from,
    read,
    reading,
    refused,
    reports,
    rows,
    said,
    sent,
    worker,
)
from share_events_kit import OF_EACH_KIND, kind

from upriver.errors import IllegalEvent, WrongOwner
from upriver.ids import FlowId
from upriver.protocol import messages, worker_events
from upriver.protocol.peers import PeerLookupRefused
from upriver.state.failure import ViewFailure

BEFORE_ASSIGNMENT = {
    "Assign",
    "Retire",
    "LookupAsked",
    "LookupsAsked",
    "LookupGivenUp",
    "KeysRead",
    "KeysUnread",
    "ReadTakesLong",
    "RowsFetched",
    "RowsUnfetched",
    "BoardGiven",
}
"""The kinds of event that a worker may see before it is told what it keeps."""


REFUSED_OR_OVER = ("LookupAsked", "LookupsAsked", "Retire")


def test_these_are_events_of_each_kind() -> None:
    assert {type(event) for event in OF_EACH_KIND} == set(get_args(worker_events.ShareEvent))


@pytest.mark.parametrize("event", [e for e in OF_EACH_KIND if kind(e) not in BEFORE_ASSIGNMENT], ids=kind)
def test_an_unassigned_worker_has_no_place_for(event: worker_events.ShareEvent) -> None:
    with pytest.raises(IllegalEvent, match=f"{kind(event)} in phase Unassigned"):
        worker().step(event)


def test_an_unassigned_worker_ignores_answers_to_its_predecessor() -> None:
    refusal = PeerLookupRefused(ticket=7, error=WrongOwner("not here"))
    assert worker().step(said(1, refusal)) == []


def test_an_unassigned_worker_owns_nothing_and_may_be_told_to_stop() -> None:
    assert refused(worker().step(asked("a"))) == {1: WrongOwner}
    assert worker().step(worker_events.LookupGivenUp(ticket=1)) == []
    assert worker().step(messages.Retire()) == []
    assert worker().step(assign()) == []


@pytest.mark.parametrize("event", [e for e in OF_EACH_KIND if kind(e) not in REFUSED_OR_OVER], ids=kind)
def test_a_retired_worker_lets_pass(event: worker_events.ShareEvent) -> None:
    assert worker(assign(), messages.Retire()).step(event) == []


@pytest.mark.parametrize("already", [[], [assign()], [assign(), opened(1), rows(1, "a")]])
def test_a_worker_that_is_told_to_retire_stops(already: Sequence[worker_events.ShareEvent]) -> None:
    machine = worker(*already)
    assert machine.step(messages.Retire()) == []
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
        ([announce(ALL_MINE, HALVES, 0, 1)], messages.CloseInput(flows=(FlowId(1),), peers=())),
    ],
)
def test_a_worker_that_follows_has_no_place_for(
    already: Sequence[worker_events.ShareEvent], event: worker_events.ShareEvent
) -> None:
    machine = worker(assign(), *already)
    with pytest.raises(IllegalEvent):
        machine.step(event)


def test_a_bad_row_is_an_error_that_names_the_view_and_the_epoch() -> None:
    bad = replace(rows(99, "a"), epoch=rows(1, "a").epoch)
    (report,) = worker(assign(), opened(1)).step(bad)
    failure = ViewFailure(kind="RowError", error="view 'seen', epoch 1: overflow")
    assert report == worker_events.Report(message=messages.ViewFailed(view="seen", failure=failure))


def test_lookups_that_wait_are_refused_when_the_worker_retires() -> None:
    machine = worker(assign(serve_from=1), asked("a", ticket=3), asked("b", ticket=4))
    actions = machine.step(messages.Retire())
    assert refused(actions) == {3: WrongOwner, 4: WrongOwner}


@pytest.mark.parametrize("end", [messages.Retire(), assign(generation=1)], ids=kind)
def test_what_was_said_before_the_end_is_not_said_again_at_the_end(end: worker_events.ShareEvent) -> None:
    machine = worker(assign(), opened(1))
    assert reports(machine.step(read(1, 0)), messages.EpochFinished)
    assert not reports(machine.step(end), messages.EpochFinished)


def test_a_worker_that_begins_anew_keeps_nothing_and_refuses_waiting_lookups() -> None:
    machine = worker(assign(), *applied("a"), opened(2), asked("a", ticket=5, at_least=2))
    assert refused(machine.step(assign(generation=1))) == {5: WrongOwner}
    assert answered(machine.step(asked("a"))) == {1: ({}, 0)}
    machine.step(opened(1))
    machine.step(rows(1, "a"))
    assert reports(machine.step(read(1, 1)), messages.EpochFinished)[0].read == {CHANNEL: 1}


def test_worker_own_generation_only_only_a_worker_that_begins_anew_says_of_what_it_speaks() -> None:
    machine = worker()
    assert machine.step(assign(generation=3)) == []
    assert reports(machine.step(assign(generation=4))) == [messages.StartedAnew(generation=4)]


def test_a_worker_begins_at_the_epoch_that_it_is_told() -> None:
    machine = worker(assign(start_at=7, serve_from=7))
    assert answered(machine.step(asked("a", at_least=7))) == {1: ({}, 7)}
    assert machine.step(opened(7)) == []
    assert machine.step(opened(8)) == [reading(8)]


def test_a_peers_question_that_waits_is_forgotten_when_the_worker_begins_anew() -> None:
    machine = worker(assign(HALVES), meet(0, 1), question_from(1, KEYS[0][0], at_least=1), assign(generation=1))
    machine.step(opened(1))
    assert sent(machine.step(read(1, 0))) == []
