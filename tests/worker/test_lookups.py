"""The worker machine's lookups: asked here, answered here or at a peer, gathered here; rules worker.wait_for_replay
and worker.own_vnodes_only."""

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa
import pytest
from machines_kit import (
    ALL_MINE,
    HALVES,
    KEYS,
    SEEN,
    VNODES,
    announce,
    answered,
    applied,
    asked,
    assign,
    hashed,
    meet,
    move,
    of_region,
    opened,
    over,
    owners_with,
    question_from,
    read,
    refused,
    rows,
    rows_from,
    said,
    sent,
    worker,
)

from upriver.errors import KeyTypeError, UnknownView, WrongOwner
from upriver.ids import Epoch, FlowId, Incarnation, MapVersion, VnodeId, WorkerId
from upriver.migration.messages import Bye, Mark, RowsSent
from upriver.protocol.messages import CloseInput
from upriver.protocol.peers import ForRegion, PeerLookup, PeerLookupAnswered, PeerLookupRefused, PeerMessage
from upriver.protocol.worker_events import Answer, LookupGivenUp, PeerLost, PeersMet, Refuse, ShareAction, ShareEvent
from upriver.worker.lookups import LOOKUPS_WAITING_MAX

MINE, ALSO_MINE, THEIRS = KEYS[0][0], KEYS[1][0], KEYS[7][0]
"""By the map HALVES, seen from worker 0."""
CHANNELS: list[ShareEvent] = [meet(0, 1), PeersMet(meeting=1)]
ANNOUNCED: list[ShareEvent] = [*CHANNELS, announce(HALVES, HALVES)]
"""All have met, and the rescale to come moves nothing here: there is a channel to worker 1, and it listens."""
MET: list[ShareEvent] = [assign(HALVES), *ANNOUNCED]


def answer(ticket: int, epoch: int, **seen: Sequence[int]) -> PeerLookupAnswered:
    found = pa.RecordBatch.from_pylist([{"k": key, "seen": epochs} for key, epochs in seen.items()], schema=SEEN)
    return PeerLookupAnswered(ticket=ticket, keys=len(seen), rows=found, epoch=Epoch(epoch))


def questions(actions: Sequence[ShareAction]) -> list[tuple[int, int, list[str]]]:
    """Sent to peers: the receiver, the lookup's ticket, and its keys."""
    found: list[tuple[int, int, list[str]]] = []
    for to, message in sent(actions):
        assert isinstance(message, RowsSent)
        assert isinstance(message.rows, PeerLookup)
        found.append((to, message.rows.ticket, message.rows.keys.column(0).to_pylist()))
    return found


def told(actions: Sequence[ShareAction]) -> list[tuple[int, PeerMessage | None, type[Exception] | None]]:
    """Replies to peers: the receiver, the answer, or the kind of error."""
    return [
        (to, None, type(reply.error)) if isinstance(reply, PeerLookupRefused) else (to, reply, None)
        for to, reply in sent(actions)
    ]


def test_worker_wait_for_replay_a_lookup_waits_until_all_is_applied_that_was_published_at_joining() -> None:
    machine = worker(assign(serve_from=2), opened(1), opened(2), rows(1, "a"))
    assert machine.step(asked("a")) == []
    assert answered(machine.step(read(1, 1))) == {}
    machine.step(rows(2, "a", "b"))
    assert answered(machine.step(read(2, 2))) == {1: ({"a": [1, 2]}, 2)}


def test_a_lookup_waits_for_the_epoch_that_it_asks_for() -> None:
    machine = worker(assign(), *applied("a"))
    assert answered(machine.step(asked("a", ticket=1, at_least=1))) == {1: ({"a": [1]}, 1)}
    assert machine.step(asked("a", ticket=2, at_least=2)) == []
    assert machine.step(asked("a", ticket=3, at_least=3)) == []
    machine.step(opened(2))
    assert answered(machine.step(read(2, 0))) == {2: ({"a": [1]}, 2)}


def test_worker_between_epochs_keys_that_are_asked_for_together_wait_for_the_end_of_an_epoch() -> None:
    machine = worker(assign(), *applied("a"), opened(2), rows(2, "a"))
    assert answered(machine.step(asked("a", "b", ticket=1))) == {1: ({"a": [1, 2]}, 1)}
    assert machine.step(asked("a", "b", ticket=2, together=True)) == []
    machine.step(rows(2, "b"))
    assert answered(machine.step(read(2, 2))) == {2: ({"a": [1, 2], "b": [2]}, 2)}
    assert answered(machine.step(asked("a", "b", ticket=3, together=True))) == {3: ({"a": [1, 2], "b": [2]}, 2)}


def test_worker_between_epochs_keys_that_are_asked_for_together_wait_while_rows_of_a_later_epoch_are_here() -> None:
    machine = worker(*MOVING, rows_from(1, 2, FIRST))
    assert machine.step(asked(FIRST, SECOND, ticket=5, together=True)) == []


def test_so_many_lookups_wait_and_one_more_is_refused() -> None:
    machine = worker(assign(serve_from=1), *CHANNELS)
    waiting = [machine.step(asked("a", ticket=ticket)) for ticket in range(LOOKUPS_WAITING_MAX)]
    assert not any(waiting)
    assert refused(machine.step(asked("a", ticket=LOOKUPS_WAITING_MAX))) == {LOOKUPS_WAITING_MAX: WrongOwner}
    assert told(machine.step(question_from(1, "a"))) == [(1, None, WrongOwner)]
    machine.step(opened(1))
    assert len(answered(machine.step(read(1, 0)))) == LOOKUPS_WAITING_MAX


def test_a_lookup_that_was_given_up_waits_no_more() -> None:
    machine = worker(
        assign(serve_from=1), asked("a", ticket=1), asked("a", ticket=2), LookupGivenUp(ticket=1), opened(1)
    )
    assert list(answered(machine.step(read(1, 0)))) == [2]


def test_a_lookup_of_no_keys_is_answered_with_no_rows_in_its_turn() -> None:
    machine = worker(assign(), opened(1))
    assert answered(machine.step(asked(ticket=1))) == {1: ({}, 0)}
    assert machine.step(asked(ticket=2, at_least=1)) == []
    assert answered(machine.step(read(1, 0))) == {2: ({}, 1)}


def test_worker_own_vnodes_only_a_worker_without_channels_refuses_keys_of_another() -> None:
    machine = worker(assign(HALVES))
    assert answered(machine.step(asked(MINE, ALSO_MINE))) == {1: ({}, 0)}
    for foreign in (asked(THEIRS), asked(MINE, THEIRS), asked(THEIRS, at_least=9)):
        assert refused(machine.step(foreign)) == {1: WrongOwner}


def test_worker_own_vnodes_only_a_worker_that_has_not_heard_that_all_have_met_refuses_keys_of_another() -> None:
    assert refused(worker(assign(HALVES), meet(0, 1)).step(asked(THEIRS))) == {1: WrongOwner}


def test_worker_own_vnodes_only_once_all_have_met_a_worker_asks_its_peer() -> None:
    machine = worker(*MET)
    assert questions(machine.step(asked(THEIRS, ticket=5))) == [(1, 5, [THEIRS])]


def test_worker_own_vnodes_only_a_worker_that_has_lost_a_channel_refuses_again_and_refuses_waiting_lookups() -> None:
    machine = worker(*MET, asked(THEIRS, ticket=4), asked(MINE, ticket=5, at_least=1))
    actions = machine.step(PeerLost(why="host-1 is gone"))
    assert refused(actions) == {4: WrongOwner, 5: WrongOwner}
    assert refused(machine.step(asked(THEIRS))) == {1: WrongOwner}
    assert answered(machine.step(asked(MINE))) == {1: ({}, 0)}


def test_worker_own_vnodes_only_a_worker_that_has_lost_a_channel_while_keys_move_refuses_all_keys() -> None:
    machine = worker(assign(HALVES), meet(0, 1), announce(HALVES, owners_with(HALVES, v3=1)), PeerLost(why="gone"))
    assert refused(machine.step(asked(MINE))) == {1: WrongOwner}


def test_a_view_that_is_not_there_is_refused_with_the_names_of_those_that_are() -> None:
    (refuse,) = worker(assign()).step(asked("a", view="typo"))
    assert isinstance(refuse, Refuse)
    assert isinstance(refuse.error, UnknownView)
    assert str(refuse.error) == "no view 'typo'; there are: seen"


@pytest.mark.parametrize(("values", "name"), [([1], "k"), (["a"], "key"), ([b"a"], "k")])
def test_keys_of_another_view_of_that_name_are_refused(values: list[int | str | bytes], name: str) -> None:
    """The client has not heard that the view was declared anew. (Of hash and values, these might find something.)"""
    others = pa.RecordBatch.from_arrays([pa.array(values)], names=[name])
    (refuse,) = worker(assign()).step(replace(asked("a"), keys=others))
    assert isinstance(refuse, Refuse)
    assert isinstance(refuse.error, UnknownView)
    assert str(refuse.error) == f"no view 'seen' with the key ({name} {others.schema.field(0).type})"


def test_a_peers_question_is_answered_to_the_peer() -> None:
    machine = worker(assign(HALVES), *applied([MINE]), *CHANNELS)
    (reply,) = sent(machine.step(question_from(1, MINE, ALSO_MINE, ticket=8)))
    assert reply == (1, replace(answer(8, 1, **{MINE: [1]}), keys=2))


def test_a_peers_question_waits_for_its_epoch() -> None:
    machine = worker(*MET, opened(1))
    assert sent(machine.step(question_from(1, MINE, at_least=1))) == []
    assert sent(machine.step(read(1, 0))) == [(1, replace(answer(1, 1), keys=1))]


def test_a_peers_question_that_the_view_refuses_is_refused_to_the_peer() -> None:
    numbers = pa.RecordBatch.from_arrays([pa.array([1])], names=["k"])
    question = question_from(1, MINE)
    content = question.envelope.content
    assert isinstance(content, ForRegion)
    asks_wrongly = PeerLookup(3, WorkerId(1), Epoch(0), numbers, hashed([MINE]), False)
    wrong = replace(content, message=RowsSent(version=MapVersion(0), rows=asks_wrongly))
    assert told(worker(*MET).step(said(1, wrong))) == [(1, None, KeyTypeError)]


def test_a_lookup_is_gathered_from_all_workers_that_keep_its_keys_as_of_the_earliest_epoch() -> None:
    machine = worker(assign(HALVES), *applied([MINE], []), *ANNOUNCED)
    actions = machine.step(asked(MINE, THEIRS, ticket=6))
    assert (questions(actions), answered(actions)) == ([(1, 6, [THEIRS])], {})
    actions = machine.step(said(1, answer(6, 1, **{THEIRS: [1, 1]})))
    assert answered(actions) == {6: ({MINE: [1], THEIRS: [1, 1]}, 1)}


def test_a_client_is_told_whether_a_peer_had_some_of_the_keys() -> None:
    machine = worker(assign(HALVES), *applied([MINE], []), *ANNOUNCED, asked(MINE, THEIRS, ticket=6))
    (relayed,) = machine.step(said(1, answer(6, 1, **{THEIRS: [1]})))
    (own,) = machine.step(asked(MINE, ticket=7))
    assert isinstance(relayed, Answer)
    assert isinstance(own, Answer)
    assert (relayed.relayed, own.relayed) == (True, False)
    assert (relayed.held_up, own.held_up) == (True, False)


def test_worker_between_epochs_parts_of_several_epochs_are_no_answer_to_keys_that_are_asked_for_together() -> None:
    machine = worker(assign(HALVES), *applied([MINE], []), *ANNOUNCED)
    machine.step(asked(MINE, THEIRS, ticket=6, together=True))
    refusals = refused(machine.step(said(1, answer(6, 3, **{THEIRS: [1, 1]}))))
    assert refusals == {6: WrongOwner}  # the client asks again


def test_a_lookup_that_one_peer_refuses_is_refused_once() -> None:
    thirds = owners_with(HALVES, v7=2)
    met: list[ShareEvent] = [assign(thirds), meet(0, 1, 2), announce(thirds, thirds)]
    machine = worker(*met, asked(KEYS[6][0], THEIRS, ticket=6))
    refusal = PeerLookupRefused(ticket=6, error=KeyTypeError("key k is a string"))
    assert refused(machine.step(said(1, refusal))) == {6: KeyTypeError}
    assert machine.step(said(2, refusal)) == []
    assert machine.step(said(2, answer(6, 0, **{THEIRS: [1]}))) == []


def test_an_answer_to_a_lookup_that_was_given_up_goes_nowhere() -> None:
    machine = worker(*MET, asked(THEIRS, ticket=6), LookupGivenUp(ticket=6))
    assert machine.step(said(1, answer(6, 0, **{THEIRS: [1]}))) == []


def test_worker_own_generation_only_an_answer_from_before_all_began_anew_goes_nowhere() -> None:
    machine = worker(*MET, assign(HALVES, generation=1), *ANNOUNCED, asked(THEIRS, ticket=6))
    assert machine.step(said(1, answer(6, 0, **{THEIRS: [1]}), generation=0)) == []
    assert answered(machine.step(said(1, answer(6, 0, **{THEIRS: [1]}), generation=1))) == {6: ({THEIRS: [1]}, 0)}


# Peers that change ---------------------------------------------------------------------------------------------------

GOODBYE = Bye(version=MapVersion(1))


def test_a_waiting_lookup_is_refused_when_another_has_taken_the_peers_place() -> None:
    machine = worker(*MET, asked(THEIRS, ticket=4))
    again = meet(0, 1, meeting=2)
    another = replace(again, peers={**again.peers, WorkerId(1): (Incarnation(9), "host-9")})
    assert refused(machine.step(another)) == {4: WrongOwner}
    assert refused(machine.step(asked(THEIRS))) == {1: WrongOwner}


def test_a_waiting_lookup_waits_on_when_the_same_meet_again() -> None:
    machine = worker(*MET, asked(THEIRS, ticket=4))
    assert refused(machine.step(meet(0, 1, 2, meeting=2))) == {}
    assert answered(machine.step(said(1, answer(4, 0, **{THEIRS: [1]})))) == {4: ({THEIRS: [1]}, 0)}


def test_a_peer_to_which_no_channel_is_open_is_not_answered() -> None:
    assert sent(worker(assign(HALVES), meet(0, 1)).step(question_from(1, MINE))) == []


def test_a_peer_in_whose_place_another_is_to_be_met_is_not_answered() -> None:
    again = meet(0, 1, meeting=2)
    another = replace(again, peers={**again.peers, WorkerId(1): (Incarnation(9), "host-9")})
    machine = worker(*MET, opened(1), question_from(1, MINE, at_least=1), another)
    assert sent(machine.step(read(1, 0))) == []


def test_a_peer_that_has_left_is_not_answered() -> None:
    machine = worker(*MET, opened(1), question_from(1, MINE, at_least=1), of_region(1, GOODBYE))
    assert sent(machine.step(read(1, 0))) == []


def test_a_worker_that_has_left_keeps_nothing_and_asks_no_peer() -> None:
    machine = worker(
        assign(me=2),
        meet(0, 2),
        announce(ALL_MINE, ALL_MINE, 0, 2),
        CloseInput(flows=(FlowId(1),), peers=(WorkerId(0),)),
    )
    assert refused(machine.step(asked(MINE))) == {1: WrongOwner}


def test_a_lookup_for_an_epoch_at_a_leaver_is_to_wait_where_the_keys_are() -> None:
    marks = [of_region(1, Mark(version=MapVersion(1), vnode=VnodeId(vnode))) for vnode in range(VNODES)]
    machine = worker(assign(), asked(FIRST, ticket=7, at_least=2), meet(0, 1), announce(ALL_MINE, (1,) * VNODES))
    assert not any(answered(machine.step(mark)) for mark in marks)
    actions = machine.step(CloseInput(flows=(FlowId(1),), peers=(WorkerId(1),)))
    assert [type(message) for _, message in sent(actions)] == [RowsSent, Bye]
    assert answered(machine.step(said(1, replace(answer(7, 2), keys=1)))) == {7: ({}, 2)}


# While keys move -----------------------------------------------------------------------------------------------------

FIRST, SECOND = KEYS[0][:2]
MOVES_0 = owners_with(ALL_MINE, v0=1)
MOVING: list[ShareEvent] = [
    assign(),
    *applied([FIRST, SECOND, ALSO_MINE]),
    meet(0, 1),
    announce(ALL_MINE, MOVES_0, 0, 1),
]
"""Worker 0 gives vnode 0 to worker 1; it has two keys there, and has given none."""


def test_while_keys_move_a_lookup_is_answered_here_until_the_keys_state_has_gone() -> None:
    machine = worker(*MOVING)
    assert answered(machine.step(asked(FIRST))) == {1: ({FIRST: [1]}, 1)}
    machine.step(move(1))
    assert questions(machine.step(asked(FIRST, SECOND, ticket=2))) == [(1, 2, [FIRST])]
    assert answered(machine.step(asked(SECOND, ALSO_MINE, ticket=3))) == {3: ({SECOND: [1], ALSO_MINE: [1]}, 1)}


def test_while_keys_move_a_peers_question_follows_the_key() -> None:
    machine = worker(*MOVING, move(1))
    assert questions(machine.step(question_from(1, FIRST, ticket=9, version=1))) == [(1, 9, [FIRST])]


def test_a_lookup_that_waits_for_an_epoch_follows_its_key_when_that_has_moved() -> None:
    machine = worker(*MOVING, asked(FIRST, SECOND, ticket=7, at_least=2), move(1), opened(2, mixed=True), read(2, 0))
    assert questions(machine.step(over(2))) == [(1, 7, [FIRST])]
    answers = answered(machine.step(said(1, answer(7, 2, **{FIRST: [1]}))))
    assert answers == {7: ({FIRST: [1], SECOND: [1]}, 2)}


def test_an_answer_names_the_map_by_which_the_keys_are_kept_and_while_they_move_the_one_before() -> None:
    versions = []
    machine = worker(assign())
    orders: list[ShareEvent] = [
        announce(ALL_MINE, ALL_MINE, 0, 1),
        announce(ALL_MINE, MOVES_0, 0, 1, version=1),
        of_region(1, Mark(version=MapVersion(2), vnode=VnodeId(0))),
    ]
    for event in (meet(0, 1), *orders):
        machine.step(event)
        versions += [action.version for action in machine.step(asked(ALSO_MINE)) if isinstance(action, Answer)]
    assert versions == [0, 1, 1, 2]
