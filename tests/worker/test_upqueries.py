"""The races of partial state, one test each; rules partial.* of docs/internals/partial.md.

Those of keys that move are in ``tests/worker/test_upqueries_moving.py``. Other systems with partial state
have met races, and holes, that this one cannot have:

- *Parents of a union, or sides of a join, answer at different times, and their answers are mixed up* (unions, chained
  unions, straddled joins): one upquery reads all inputs of a region through the same epoch, and brings one answer.
- *An upquery, or a row, meets a missing key at the other side of a join; an eviction on the looked-up side is not told
  to the keys that depend on it; a left join takes a hole for no match*: all inputs of a region go by one key, which is
  present or missing as a whole. ``tests/partial/test_partial_region.py`` does this with joins.
- *A key that is evicted leaves others behind that were found by a part of it*: a key is asked for as a whole.
- *An eviction overtakes an answer*: pending keys are not evicted, and an answer is here in one step.
- *An answer reaches workers that did not ask; a path is set up twice*: the lake answers who has asked, by number.
- *A full replay begins beside rows that arrive*: nothing is replayed; a view that is added begins with no key present.
- *Part of a range is filled meanwhile*: keys are asked for one by one, and those that are present not again.
"""

from dataclasses import replace

import pytest
from machines_kit import HALVES, hashed
from upquery_kit import (
    ALSO_HERE,
    HERE,
    THERE,
    THIRD,
    Workers,
    evict,
    evict_at_once,
    keys_of_worker_0,
    present,
    without,
)

from upriver.coordinator.flow import EPOCHS_AHEAD_MAX
from upriver.errors import RowError
from upriver.partial.partial_region import UPQUERIES_MAX
from upriver.protocol.messages import EpochFinished, Evicted
from upriver.protocol.rules import ALL_RULES
from upriver.protocol.worker_events import LookupGivenUp, ReadTakesLong, TimeToEvict, TimeToFill, TimeToTakeIn
from upriver.worker.upqueries import CROWD_KEYS, FEW_KEYS

BAD = 99
"""The number of an epoch whose rows no view can be computed from."""


def to_the_epoch(workers: Workers, epoch: int) -> None:
    """Epochs of no rows, up to but without this one."""
    while len(workers.epochs) < epoch - 1:
        workers.epoch()


# Many rows ----------------------------------------------------------------------------------------------------------


def epochs_of_a_hot_key(workers: Workers, epochs: int) -> None:
    workers.epoch(ALSO_HERE)
    for _ in range(epochs):
        workers.epoch(HERE)


@pytest.mark.parametrize("rule", [None, "partial_whole_keys_only"])
def test_a_key_of_many_rows_is_shown_when_the_last_is_in_and_others_meanwhile(rule: str | None) -> None:
    workers = Workers(rules=without(**{rule: False}) if rule else ALL_RULES)
    epochs_of_a_hot_key(workers, 5)
    workers.fill(0, ALSO_HERE)
    hot = workers.look_up(0, HERE)
    workers.answer(0, rows_max=2)
    assert workers.answers[workers.look_up(0, ALSO_HERE)] == ({ALSO_HERE: [1]}, 6)
    if rule is not None:
        assert workers.answers[workers.look_up(0, HERE)] == ({HERE: [2, 3]}, 6)
        return
    assert hot not in workers.answers
    workers.epoch(HERE)
    workers.step(0, TimeToTakeIn(rows_max=2))
    assert workers.answers[workers.look_up(0, ALSO_HERE)] == ({ALSO_HERE: [1]}, 7)
    assert (hot in workers.answers, workers.machines[0].unfilled) == (False, 1)
    workers.step(0, TimeToTakeIn(rows_max=2))
    assert (workers.answers[hot], workers.machines[0].unfilled) == (({HERE: [2, 3, 4, 5, 6, 7]}, 7), 0)


def test_other_keys_are_filled_while_a_long_answer_is_taken_in() -> None:
    workers = Workers()
    epochs_of_a_hot_key(workers, 5)
    hot = workers.look_up(0, HERE)
    other = workers.look_up(0, ALSO_HERE)
    workers.answer(0, rows_max=2)
    workers.epoch(HERE, ALSO_HERE)
    assert workers.answer(0) == [ALSO_HERE]
    assert workers.answers == {other: ({ALSO_HERE: [1, 7]}, 7)}
    workers.step(0, TimeToTakeIn(rows_max=9))
    assert workers.answers[hot] == ({HERE: [2, 3, 4, 5, 6, 7]}, 7)


def test_other_keys_are_read_while_a_long_answer_is_read() -> None:
    workers = Workers()
    epochs_of_a_hot_key(workers, 2)
    hot = workers.look_up(0, HERE)
    other = workers.look_up(0, ALSO_HERE)
    (long,) = workers.upqueries[0]
    workers.step(0, ReadTakesLong(generation=0, region=long.region, number=long.upquery.number))
    assert [read.upquery.keys.tolist() for read in workers.upqueries[0]] == [
        hashed([HERE]).tolist(),
        hashed([ALSO_HERE]).tolist(),
    ]
    workers.upqueries[0].rotate(1)
    assert workers.answer(0) == [ALSO_HERE]
    assert workers.answers == {other: ({ALSO_HERE: [1]}, 3)}
    workers.epoch(HERE)
    assert workers.answer(0) == [HERE]
    assert workers.answers[hot] == ({HERE: [2, 3, 4]}, 4)


def test_keys_wait_while_a_short_answer_is_read_or_too_many_long_ones() -> None:
    workers = Workers()
    workers.epoch(HERE, ALSO_HERE, THIRD)
    keys = keys_of_worker_0(UPQUERIES_MAX + 1)
    for number, key in enumerate(keys, 1):
        workers.look_up(0, key)
        assert len(workers.upqueries[0]) == min(number, UPQUERIES_MAX)
        last = workers.upqueries[0][-1]
        workers.look_up(0, key)
        assert len(workers.upqueries[0]) == min(number, UPQUERIES_MAX), "the key is pending, and its read may be short"
        workers.step(0, ReadTakesLong(generation=0, region=last.region, number=last.upquery.number))
    workers.answer(0)
    assert workers.upqueries[0][-1].upquery.keys.tolist() == hashed([keys[-1]]).tolist()


def test_news_of_a_long_read_that_is_over_or_of_another_generation_change_nothing() -> None:
    workers = Workers()
    epochs_of_a_hot_key(workers, 1)
    workers.fill(0, HERE)
    workers.look_up(0, ALSO_HERE)
    workers.look_up(0, THIRD)
    (asked,) = workers.upqueries[0]
    for generation, number in ((0, asked.upquery.number - 1), (1, asked.upquery.number)):
        workers.step(0, ReadTakesLong(generation=generation, region=asked.region, number=number))
    assert list(workers.upqueries[0]) == [asked]


# A row and an answer ------------------------------------------------------------------------------------------------


def test_rows_of_the_open_epoch_before_the_upquery_are_read_by_it() -> None:
    workers = Workers()
    workers.publish(HERE, ALSO_HERE)
    workers.open(0, 1)
    workers.read(0, HERE)
    ticket = workers.look_up(0, HERE)
    workers.answer(0)
    assert workers.answers == {ticket: ({HERE: [1]}, 0)}
    workers.end(0, HERE)
    assert workers.answers[workers.look_up(0, HERE)] == ({HERE: [1]}, 1)


@pytest.mark.parametrize("answered_first", [True, False])
def test_rows_of_the_open_epoch_after_the_upquery_are_read_by_it(answered_first: bool) -> None:
    workers = Workers()
    workers.epoch(HERE)
    workers.publish(HERE, ALSO_HERE)
    workers.open(0, 2)
    ticket = workers.look_up(0, HERE)
    if answered_first:
        workers.answer(0)
    workers.read(0, HERE)
    workers.end(0, HERE)
    if not answered_first:
        workers.answer(0)
    assert workers.answers[ticket][0] == {HERE: [1, 2]}
    assert workers.answers[workers.look_up(0, HERE, at_least=2)] == ({HERE: [1, 2]}, 2)


@pytest.mark.parametrize("rule", [None, "partial_pending_keys_retain", "partial_each_row_once"])
def test_rows_of_later_epochs_wait_for_the_answer(rule: str | None) -> None:
    """The answer was read when epoch 1 was the last, and comes late."""
    workers = Workers(rules=without(**{rule: False}) if rule else ALL_RULES)
    workers.epoch(HERE, ALSO_HERE)
    ticket = workers.look_up(0, HERE)
    (upquery,) = workers.upqueries[0]
    last, ahead = EPOCHS_AHEAD_MAX + 3, range(1, EPOCHS_AHEAD_MAX + 2)
    for _ in range(2, last + 1):
        workers.epoch(HERE)
    workers.answer(0)  # by partial.read_ahead with some epochs of those that were retained
    every, twice = [*range(1, last + 1)], [*ahead, *range(2, last + 1)]
    expected = {None: every, "partial_pending_keys_retain": [*ahead], "partial_each_row_once": twice}
    assert upquery.upquery.through == 1
    assert workers.answers[ticket] == ({HERE: expected[rule]}, last)


def test_rows_of_a_missing_key_are_dropped_and_take_nothing() -> None:
    workers = Workers()
    workers.fill(0, HERE)
    before = present(workers, 0)
    for _ in range(5):
        workers.epoch(ALSO_HERE, THIRD)
    assert present(workers, 0) == before
    workers.fill(0, ALSO_HERE)
    assert workers.answers[workers.look_up(0, ALSO_HERE)] == ({ALSO_HERE: [1, 2, 3, 4, 5]}, 5)


def test_a_client_is_told_whether_keys_were_missed() -> None:
    workers = Workers()
    workers.epoch(HERE, ALSO_HERE)
    missed = workers.look_up(0, HERE)
    also_missed = workers.look_up(0, HERE, ALSO_HERE)
    workers.answer(0)
    workers.answer(0)
    found = workers.look_up(0, HERE, ALSO_HERE)
    assert workers.answers[found] == ({HERE: [1], ALSO_HERE: [1]}, 1)
    assert workers.held_up == {missed, also_missed}


def test_an_answer_of_no_rows_is_an_answer() -> None:
    """Else each lookup of a key that is not there would go to the lake."""
    workers = Workers()
    workers.epoch(ALSO_HERE)
    ticket = workers.look_up(0, HERE)
    workers.answer(0)
    assert workers.answers[ticket] == ({}, 1)
    again = workers.look_up(0, HERE)
    assert workers.answers[again] == ({}, 1)
    assert not workers.upqueries[0]
    workers.epoch(HERE)
    assert workers.answers[workers.look_up(0, HERE)] == ({HERE: [2]}, 2)


def test_an_epoch_ends_with_its_rows_counted_whether_they_were_kept_or_not() -> None:
    workers = Workers()
    workers.fill(0, HERE)
    workers.look_up(0, ALSO_HERE)
    workers.epoch(HERE, ALSO_HERE, THIRD, THERE)
    finished = [report for report in workers.reports if isinstance(report, EpochFinished)]
    assert [report.applied for report in finished] == [{"seen": 3}, {"seen": 1}]


# Many lookups -------------------------------------------------------------------------------------------------------


def test_a_key_that_many_ask_for_is_read_once() -> None:
    workers = Workers()
    workers.epoch(HERE, ALSO_HERE)
    tickets = [workers.look_up(0, HERE) for _ in range(3)] + [workers.look_up(0, HERE, ALSO_HERE, HERE)]
    assert workers.answer(0) == [HERE]
    assert workers.answers.keys() == set(tickets[:3])
    workers.rest(0)
    assert workers.answer(0) == [ALSO_HERE]
    assert workers.answers.keys() == set(tickets)
    assert not workers.upqueries[0]


def test_keys_that_are_asked_for_meanwhile_go_together() -> None:
    workers = Workers()
    workers.epoch(HERE, ALSO_HERE, THIRD)
    first = workers.look_up(0, HERE)
    others = [workers.look_up(0, key) for key in (ALSO_HERE, THIRD, ALSO_HERE)]
    assert len(workers.upqueries[0]) == 1
    workers.answer(0)
    assert list(workers.answers) == [first]
    workers.rest(0)
    assert workers.answer(0) == sorted([ALSO_HERE, THIRD])
    assert workers.answers.keys() == {first, *others}


def test_upqueries_rest_when_a_crowd_has_asked_meanwhile() -> None:
    workers = Workers()
    first, *crowd, late = keys_of_worker_0(CROWD_KEYS + 2)
    workers.epoch(first, *crowd, late)
    tickets = [workers.look_up(0, key) for key in (first, *crowd)]
    workers.answer(0)
    assert workers.machines[0].can_fill
    tickets.append(workers.look_up(0, late))
    workers.epoch(first)
    assert not workers.upqueries[0]
    workers.step(0, TimeToFill())
    assert not workers.machines[0].can_fill
    assert workers.answer(0) == sorted([*crowd, late])
    assert workers.answers.keys() == set(tickets)


def test_a_few_questions_wait_for_no_rest() -> None:
    workers = Workers()
    first, *others = keys_of_worker_0(CROWD_KEYS)
    workers.epoch(first, *others)
    for key in (first, *others):
        workers.look_up(0, key)
    assert workers.answer(0) == [first]
    assert not workers.machines[0].can_fill
    assert workers.answer(0) == sorted(others)


def test_many_keys_wait_for_no_rest() -> None:
    workers = Workers()
    for key in keys_of_worker_0(FEW_KEYS + 1):
        workers.look_up(0, key)
    workers.answer(0)
    assert workers.machines[0].can_fill
    (upquery,) = workers.upqueries[0]
    assert len(upquery.upquery.keys) == FEW_KEYS


def test_of_a_lookup_only_what_is_missing_is_read() -> None:
    workers = Workers()
    workers.epoch(HERE, ALSO_HERE)
    workers.fill(0, HERE)
    ticket = workers.look_up(0, HERE, ALSO_HERE)
    assert workers.answer(0) == [ALSO_HERE]
    assert workers.answers[ticket] == ({HERE: [1], ALSO_HERE: [1]}, 1)


def test_no_lookup_need_wait_for_what_was_asked_for() -> None:
    workers = Workers()
    workers.epoch(HERE)
    ticket = workers.look_up(0, HERE)
    workers.step(0, LookupGivenUp(ticket=ticket))
    workers.answer(0)
    assert not workers.answers
    assert workers.answers[workers.look_up(0, HERE)] == ({HERE: [1]}, 1)


def test_a_lookup_waits_for_its_epoch_and_then_for_its_key() -> None:
    workers = Workers()
    ticket = workers.look_up(0, HERE, at_least=2)
    workers.epoch(HERE)
    assert not workers.upqueries[0]
    workers.epoch(HERE)
    assert workers.answer(0) == [HERE]
    assert workers.answers[ticket] == ({HERE: [1, 2]}, 2)


def test_a_lookup_at_a_peer_waits_there_for_its_key() -> None:
    workers = Workers()
    workers.meet()
    workers.rescale(HALVES)
    workers.carry_all()
    workers.epoch(HERE, THERE)
    ticket = workers.look_up(0, HERE, THERE)
    workers.carry_all()
    workers.answer(0)
    assert not workers.answers
    workers.answer(1)
    workers.carry_all()
    assert workers.answers[ticket] == ({HERE: [1], THERE: [1]}, 1)


# Evictions ----------------------------------------------------------------------------------------------------------


def test_a_pending_key_is_not_evicted() -> None:
    workers = Workers()
    workers.epoch(HERE)
    ticket = workers.look_up(0, HERE)
    workers.epoch(HERE, HERE)
    evict_at_once(workers, 0)
    evict_at_once(workers, 0, HERE)
    workers.step(0, TimeToEvict(keys_max=10))
    workers.answer(0)
    assert workers.answers[ticket] == ({HERE: [1, 2, 2]}, 2)


def test_a_key_that_was_evicted_is_read_again_and_has_all_its_rows() -> None:
    workers = Workers()
    workers.epoch(HERE)
    workers.fill(0, HERE)
    workers.publish(HERE, ALSO_HERE)
    workers.open(0, 2)
    workers.read(0, HERE)
    evict_at_once(workers, 0, HERE)
    assert present(workers, 0)["rows"] == present(workers, 0)["present"] == 0
    ticket = workers.look_up(0, HERE)
    workers.answer(0)
    workers.end(0, HERE)
    assert workers.answers[ticket] == ({HERE: [1, 2]}, 1)
    assert workers.answers[workers.look_up(0, HERE)] == ({HERE: [1, 2]}, 2)


def test_a_key_that_is_evicted_under_a_lookup_is_asked_for_again_by_it() -> None:
    workers = Workers()
    workers.epoch(HERE, ALSO_HERE)
    workers.fill(0, HERE)
    ticket = workers.look_up(0, HERE, ALSO_HERE)
    evict_at_once(workers, 0, HERE)
    workers.answer(0)
    assert ticket not in workers.answers
    assert workers.answer(0) == [HERE]
    assert workers.answers[ticket] == ({HERE: [1], ALSO_HERE: [1]}, 1)


def evictions_over(workers: Workers) -> list[int]:
    return [report.eviction for report in workers.reports if isinstance(report, Evicted)]


def test_evictions_take_some_keys_at_a_time_in_the_order_of_the_requests() -> None:
    workers = Workers()
    workers.epoch(HERE, ALSO_HERE, THIRD)
    workers.fill(0, HERE, ALSO_HERE, THIRD)
    workers.step(0, evict(eviction=1))
    workers.step(0, evict(HERE, eviction=2))
    for left in (2, 1, 0):
        assert evictions_over(workers) == []
        workers.step(0, TimeToEvict(keys_max=1))
        assert present(workers, 0)["present"] == left
    assert evictions_over(workers) == [1]
    workers.fill(0, HERE)
    workers.step(0, TimeToEvict(keys_max=1))
    assert evictions_over(workers) == [1, 2]
    assert present(workers, 0)["present"] == 0
    assert not workers.machines[0].must_evict


def test_an_eviction_of_no_keys_is_done_at_once() -> None:
    workers = Workers()
    workers.step(0, evict())
    workers.step(0, replace(evict(HERE, eviction=2), view="gone"))
    assert evictions_over(workers) == [1, 2]
    assert not workers.machines[0].must_evict


def test_a_worker_that_starts_anew_has_forgotten_what_was_to_be_forgotten() -> None:
    workers = Workers()
    workers.epoch(HERE, ALSO_HERE)
    workers.fill(0, HERE, ALSO_HERE)
    workers.step(0, evict())
    workers.step(0, TimeToEvict(keys_max=1))
    workers.start_anew()
    assert evictions_over(workers) == [1]
    assert not workers.machines[0].must_evict


# Bad rows -----------------------------------------------------------------------------------------------------------


def test_a_bad_row_refuses_the_lookups_of_its_key_and_no_others() -> None:
    workers = Workers()
    workers.epoch(HERE, ALSO_HERE, THIRD)
    to_the_epoch(workers, BAD)
    workers.epoch(HERE)
    waits = workers.look_up(0, THIRD)
    bad, good = workers.look_up(0, HERE), workers.look_up(0, ALSO_HERE)
    both, again = workers.look_up(0, ALSO_HERE, HERE), workers.look_up(0, HERE)
    later = workers.look_up(0, HERE, at_least=BAD + 1)
    workers.answer(0)
    workers.rest(0)
    workers.answer(0)
    assert workers.answers == {waits: ({THIRD: [1]}, BAD), good: ({ALSO_HERE: [1]}, BAD)}
    assert {ticket: type(error) for ticket, error in workers.refusals.items()} == dict.fromkeys(
        [bad, both, again, later], RowError
    )
    assert "view 'seen': overflow" in str(workers.refusals[bad])
    assert present(workers, 0)["rows"] == present(workers, 0)["present"] == 2
    workers.epoch(HERE, ALSO_HERE)
    assert workers.answers[workers.look_up(0, ALSO_HERE)] == ({ALSO_HERE: [1, BAD + 1]}, BAD + 1)


def test_a_bad_row_is_told_to_a_peer_that_asked() -> None:
    workers = Workers()
    workers.meet()
    workers.rescale(HALVES)
    workers.carry_all()
    to_the_epoch(workers, BAD)
    workers.epoch(THERE)
    ticket = workers.look_up(0, THERE)
    workers.carry_all()
    workers.answer(1)
    workers.carry_all()
    assert isinstance(workers.refusals[ticket], RowError)


def test_a_bad_row_that_was_retained_is_as_bad_as_any_row_of_its_epoch() -> None:
    workers = Workers(rules=without(partial_read_ahead=False))
    to_the_epoch(workers, BAD)
    ticket = workers.look_up(0, HERE)
    workers.epoch(HERE)
    for _ in range(2):
        workers.answer(0)
    assert isinstance(workers.refusals[ticket], RowError)
    assert present(workers, 0)["unfillable"] == 1
