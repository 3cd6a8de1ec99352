"""The races of partial state with keys that move, and with workers that begin anew; rules partial.own_upquery_only,
partial.ask_where_the_key_goes and partial.read_ahead."""

import pytest
from machines_kit import HALVES, KEYS, PLAN, abort, hashed, over, owners_with
from upquery_kit import HERE, PARTIAL, THERE, Workers, evict_at_once, present, without

from upriver.coordinator.flow import EPOCHS_AHEAD_MAX
from upriver.errors import WrongOwner
from upriver.ids import Epoch, WorkerId
from upriver.plan.plan import DataflowPlan
from upriver.protocol.messages import Settled
from upriver.protocol.rules import Rules
from upriver.protocol.strategies import Strategy
from upriver.protocol.worker_events import KeysRead, LookupGivenUp, PeerLost, SendPeer

MOVES, MOVES_TOO = KEYS[3][:2]
"""Kept by worker 0, in the vnode that moves if any does."""
GIVES_3 = owners_with(HALVES, v3=1)
"""Worker 0 gives vnode 3 to worker 1."""


def moving(workers: Workers, *present: str, rescale: bool = True, strategy: Strategy = Strategy.ICADD) -> None:
    """Two epochs of all keys; then vnode 3 begins to go from worker 0 to worker 1, or is about to."""
    workers.epoch(*{HERE, MOVES, MOVES_TOO, *present})
    workers.epoch(*{HERE, MOVES, MOVES_TOO, *present})
    workers.meet(strategy)
    if present:
        workers.fill(0, *present)
    if rescale:
        workers.rescale(GIVES_3)


def finish(workers: Workers) -> None:
    """The rescale goes on to its end."""
    workers.carry_all()
    while any(machine.can_move for machine in workers.machines):
        for worker, machine in enumerate(workers.machines):
            if machine.can_move:
                workers.move(worker, 10)
        workers.carry_all()
    assert len(reports_of(workers, Settled)) == 2


def reports_of(workers: Workers, kind: type) -> list[object]:
    return [report for report in workers.reports if isinstance(report, kind)]


def test_a_slice_without_present_keys_moves_for_free() -> None:
    workers = Workers()
    moving(workers)
    assert not any(machine.can_move for machine in workers.machines)
    finish(workers)
    ticket = workers.look_up(1, MOVES)
    assert workers.answer(1) == [MOVES]
    assert workers.answers[ticket] == ({MOVES: [1, 2]}, 2)


def test_a_client_is_told_whether_keys_are_about_to_move() -> None:
    """No other client's lookup should have to wait for what becomes of these."""
    workers = Workers()
    moving(workers, HERE, MOVES, rescale=False)
    before = [workers.look_up(0, HERE), workers.look_up(0, MOVES)]
    workers.rescale(GIVES_3)
    during = [workers.look_up(0, HERE), workers.look_up(0, MOVES), workers.look_up(0, HERE, MOVES)]
    finish(workers)
    assert set(workers.answers) >= {*before, *during}
    assert workers.held_up.intersection([*before, *during]) == set(during[1:])


def test_a_present_key_moves_with_what_it_has_and_is_not_read_again() -> None:
    workers = Workers()
    moving(workers, MOVES)
    finish(workers)
    workers.epoch(MOVES, mixed=True)
    ticket = workers.look_up(0, MOVES)
    workers.carry_all()
    assert workers.answers[ticket] == ({MOVES: [1, 2, 3]}, 3)
    assert not any(workers.upqueries)


@pytest.mark.parametrize("under_way", [True, False])
def test_partial_ask_where_the_key_goes_a_key_whose_slice_begins_to_move_is_asked_for_where_it_goes(
    under_way: bool,
) -> None:
    """under_way: the key is pending; else it is wanted, behind an upquery for another."""
    workers = Workers()
    moving(workers, rescale=False)
    if not under_way:
        workers.look_up(0, HERE)
    ticket = workers.look_up(0, MOVES)
    workers.rescale(GIVES_3)
    workers.carry_all()
    workers.epoch(MOVES, mixed=True)
    workers.answer(0)
    workers.carry_all()
    assert ticket not in workers.answers
    assert workers.answer(1) == [MOVES]
    workers.carry_all()
    assert workers.answers[ticket] == ({MOVES: [1, 2, 3]}, 3)
    assert present(workers, 0)["present"] == int(not under_way)
    finish(workers)


def test_keys_of_a_slice_are_evicted_while_it_moves() -> None:
    """The old owner has listed them: it gives away what it has not, and a lookup that asks for one meanwhile finds
    it."""
    workers = Workers()
    moving(workers, MOVES, MOVES_TOO)
    evict_at_once(workers, 0)
    assert workers.machines[0].can_move
    ticket = workers.look_up(0, MOVES)
    assert not workers.answers.keys() & {ticket}
    workers.epoch(MOVES, MOVES_TOO, mixed=True)
    finish(workers)
    workers.answer(0)
    assert present(workers, 0)["present"] == 0
    assert workers.answer(1) == [MOVES]
    workers.carry_all()
    assert workers.answers[ticket] == ({MOVES: [1, 2, 3]}, 3)
    again = workers.look_up(1, MOVES_TOO)
    workers.answer(1)
    assert workers.answers[again] == ({MOVES_TOO: [1, 2, 3]}, 3)


def test_a_key_that_came_is_evicted_and_read_again_by_its_new_owner() -> None:
    workers = Workers()
    moving(workers, MOVES)
    finish(workers)
    evict_at_once(workers, 1)
    ticket = workers.look_up(1, MOVES)
    workers.answer(1)
    assert workers.answers[ticket] == ({MOVES: [1, 2]}, 2)


@pytest.mark.parametrize("p4", [True, False])
def test_partial_own_upquery_only_an_answer_for_keys_that_were_given_up_does_not_count(p4: bool) -> None:
    """MOVES goes away and comes back, with a row more, while the lake is still busy with it."""
    workers = Workers(rules=without(partial_own_upquery_only=p4))
    moving(workers, rescale=False)
    workers.look_up(0, MOVES)
    late = workers.upqueries[0][0]
    workers.rescale(GIVES_3)
    finish(workers)
    assert present(workers, 0)["pending"] == 0
    workers.answer(0)
    assert present(workers, 0)["present"] == int(not p4)
    assert late.upquery.keys.tolist() == hashed([MOVES]).tolist()
    assert workers.answer(1) == [MOVES]


@pytest.mark.parametrize("asked_for", [True, False])
def test_a_move_is_aborted(asked_for: bool) -> None:
    """The lookups that wait for a pending key of the slice have been sent to the new owner: then the slice is
    finished."""
    workers = Workers()
    moving(workers, MOVES_TOO, rescale=False)
    tickets = [workers.look_up(0, MOVES)] if asked_for else []
    workers.rescale(GIVES_3)
    for worker in (0, 1):
        workers.step(worker, abort())
    finish(workers)
    owner = int(asked_for)
    tickets.append(workers.look_up(0, MOVES, MOVES_TOO))
    workers.carry_all()
    if asked_for:
        workers.answer(0)  # no lookup waits for it any more
    assert workers.answer(owner) == [MOVES]
    workers.carry_all()
    assert [workers.answers[ticket][0][MOVES] for ticket in tickets] == [[1, 2]] * len(tickets)
    assert workers.answers[tickets[-1]] == ({MOVES: [1, 2], MOVES_TOO: [1, 2]}, 2)
    assert (present(workers, owner)["present"], present(workers, 1 - owner)["present"]) == (2, 0)


@pytest.mark.parametrize("strategy", [Strategy.ICADD, Strategy.LAZY])
@pytest.mark.parametrize("sent_on", [False, True])
@pytest.mark.parametrize("ahead", [1, EPOCHS_AHEAD_MAX])
@pytest.mark.parametrize("p7", [True, False])
def test_partial_read_ahead_rows_that_were_dropped_in_epochs_ahead_are_read(
    p7: bool, ahead: int, sent_on: bool, strategy: Strategy
) -> None:
    """So many epochs are open at the old owner, of which the last has a row of the key, and none at the new one yet.
    The old owner has dropped the row; or it has sent it on, and the new one has dropped it."""
    workers = Workers(rules=without(partial_read_ahead=p7))
    moving(workers, rescale=False, strategy=strategy)
    if sent_on:
        workers.rescale(GIVES_3)
        finish(workers)
    epochs = range(3, 3 + ahead)
    for epoch in epochs:
        workers.publish(*([MOVES] if epoch == epochs[-1] else [HERE]))
        workers.open(0, epoch, mixed=True)
    for _ in epochs:
        workers.end(0)
    if not sent_on:
        workers.rescale(GIVES_3)
        finish(workers)
    workers.carry_all()
    ticket = workers.look_up(1, MOVES)
    workers.answer(1)
    for epoch in epochs:
        workers.open(1, epoch, mixed=True)
        workers.end(1)
    for epoch in epochs:
        for worker in (0, 1):
            workers.step(worker, over(epoch))
    workers.carry_all()
    assert ticket in workers.answers
    expected = [1, 2, epochs[-1]] if p7 else [1, 2]
    assert workers.answers[workers.look_up(1, MOVES)] == ({MOVES: expected}, epochs[-1])


@pytest.mark.parametrize("plan", [PARTIAL, PLAN])
@pytest.mark.parametrize("is_on", [True, False])
def test_worker_between_epochs_a_key_from_a_worker_ahead_is_not_shown_beside_one_that_is_not(
    is_on: bool, plan: DataflowPlan
) -> None:
    """The old owner is through epoch 3, of which the new one has not heard, when it gives the key away."""
    workers = Workers(rules=Rules(worker_between_epochs=is_on), plan=plan)
    moving(workers, rescale=False)
    workers.fill(0, MOVES)
    workers.fill(1, THERE)
    workers.rescale(GIVES_3)
    workers.publish(MOVES, THERE)
    workers.open(0, 3, mixed=True)
    workers.end(0)
    finish(workers)
    ticket = workers.look_up(1, MOVES, THERE, together=True)
    early = {} if is_on else {ticket: ({MOVES: [1, 2, 3]}, 2)}
    assert {ticket: workers.answers[ticket] for ticket in workers.answers.keys() & {ticket}} == early
    workers.open(1, 3, mixed=True)
    workers.end(1)
    workers.carry_all()
    for worker in (0, 1):
        workers.step(worker, over(3))
    if is_on:
        assert workers.answers[ticket] == ({MOVES: [1, 2, 3], THERE: [3]}, 3)


@pytest.mark.parametrize("is_relayed", [True, False])
def test_a_question_without_waiting_lookups_is_kept_nowhere(is_relayed: bool) -> None:
    """It asks for an epoch that is far, of the key's new owner; or of its old, as if one had not heard of that."""
    workers = Workers()
    moving(workers)
    finish(workers)
    ticket = workers.look_up(1 - is_relayed, MOVES, at_least=10**9)
    workers.carry_all()
    assert workers.phase(1).lookups.waiting == 1
    said = workers.step(1 - is_relayed, LookupGivenUp(ticket=ticket))
    assert [type(action) for action in said] == [SendPeer] * is_relayed
    workers.carry_all()
    assert not workers.phase(1).lookups.waiting


def test_nothing_is_kept_of_a_lookup_that_was_refused_when_a_channel_broke() -> None:
    """One of its keys waits for its epoch at either worker."""
    workers = Workers()
    moving(workers)
    finish(workers)
    ticket = workers.look_up(0, HERE, MOVES, at_least=10**9)
    workers.carry_all()
    assert [workers.phase(worker).lookups.waiting for worker in (0, 1)] == [1, 1]
    for worker in (0, 1):
        workers.step(worker, PeerLost(peer=WorkerId(1 - worker), incarnation=None, why="cut"))
    assert isinstance(workers.refusals[ticket], WrongOwner)
    assert not any(workers.phase(worker).lookups.waiting for worker in (0, 1))


# Keys that stay behind ----------------------------------------------------------------------------------------------


def test_with_lazy_what_was_read_is_filled_where_it_goes_before_a_lookup_asks() -> None:
    workers = Workers()
    moving(workers, MOVES, strategy=Strategy.LAZY)
    assert present(workers, 0)["present"] == present(workers, 0)["rows"] == 0
    assert not workers.machines[0].can_move
    workers.carry_all()
    assert workers.answer(1) == [MOVES]
    finish(workers)
    ticket = workers.look_up(1, MOVES)
    assert workers.answers[ticket] == ({MOVES: [1, 2]}, 2)


def test_with_lazy_rows_go_where_the_key_is_filled() -> None:
    """The new owner hears of the key, and of its rows, before it knows that the slice is its own."""
    workers = Workers()
    moving(workers, MOVES, MOVES_TOO, rescale=False, strategy=Strategy.LAZY)
    workers.rescale(GIVES_3, 0)
    workers.carry(0, 1)
    ticket = workers.look_up(0, MOVES)
    workers.rescale(GIVES_3, 1)
    workers.publish(MOVES)
    for worker in (0, 1):
        workers.open(worker, 3, mixed=True)
        workers.end(worker)
    assert workers.answer(1) == sorted([MOVES, MOVES_TOO])
    finish(workers)
    assert workers.answers[ticket] == ({MOVES: [1, 2, 3]}, 2)
    workers.epoch(MOVES, MOVES_TOO, mixed=True)
    assert workers.answers[workers.look_up(1, MOVES, MOVES_TOO)][0] == {MOVES: [1, 2, 3, 4], MOVES_TOO: [1, 2, 4]}


# Other generations --------------------------------------------------------------------------------------------------


def test_an_answer_to_an_older_generation_is_not_listened_to() -> None:
    workers = Workers()
    workers.epoch(HERE)
    ticket = workers.look_up(0, HERE)
    late = workers.upqueries[0].popleft()
    workers.start_anew()
    assert isinstance(workers.refusals[ticket], WrongOwner)
    again = workers.look_up(0, HERE)
    number = late.upquery.number
    assert workers.upqueries[0][0].upquery.number == number, "both are the first of their generation"
    workers.step(0, KeysRead(generation=0, region="seen", number=number, rows=(), through=Epoch(1)))
    assert again not in workers.answers
    workers.answer(0)
    assert workers.answers[again] == ({HERE: [1]}, 1)


def test_all_begin_anew_while_keys_move_and_are_asked_for() -> None:
    workers = Workers()
    moving(workers, MOVES)
    workers.look_up(0, MOVES_TOO)
    workers.carry_all()
    workers.start_anew()
    for upqueries in workers.upqueries:
        upqueries.clear()
    workers.carry_all()  # of the generation that is over
    workers.epoch(MOVES)
    ticket = workers.look_up(0, MOVES, MOVES_TOO)
    workers.answer(0)
    assert workers.answers[ticket] == ({MOVES: [1, 2, 3], MOVES_TOO: [1, 2]}, 3)
