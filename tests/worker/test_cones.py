"""Cones on two workers: a key that moves is not shown as of an earlier epoch by its new owner (rule cones.never_back),
and the state of what an evicted key has rested on goes a few keys at a time."""

from collections.abc import Mapping

import pytest
from cone_kit import trade, visit
from cone_workers_kit import GIVES_3, OTHER_PAGE, PAGE, PLAN, WORKERS, Workers
from machines_kit import hashed, meet
from upquery_kit import without

from upriver.protocol.messages import Counted, Evict, Evicted
from upriver.protocol.rules import ALL_RULES, Rules
from upriver.protocol.worker_events import TimeToEvict


def ahead(rules: Rules = ALL_RULES) -> Workers:
    """Both workers have applied the first epoch, and met; worker 0 alone has applied the second, and shown the page as
    of its end."""
    workers = Workers(rules)
    workers.lake.publish(visit(PAGE, 1), trade("X", 1))
    workers.lake.publish(trade("Y", 1))
    for worker in WORKERS:
        workers.open(worker, 1)
        workers.step(worker, meet(*WORKERS))
    first = workers.look_up(0, PAGE)
    workers.fetch(0)
    assert workers.answers[first] == ([(PAGE, 1)], 1)
    workers.open(0, 2)
    workers.fetch(0)
    assert workers.answers[workers.look_up(0, PAGE)] == ([(PAGE, 2)], 2)
    return workers


@pytest.mark.parametrize("looked_up_at", WORKERS)
def test_cones_catch_up_first_a_key_that_moved_is_not_shown_as_of_an_earlier_epoch(looked_up_at: int) -> None:
    workers = ahead()
    workers.rescale(GIVES_3)
    assert workers.present(0) == []
    ticket = workers.look_up(looked_up_at, PAGE)
    workers.carry_all()
    workers.fetch(1)
    workers.carry_all()
    assert workers.present(1) == hashed([PAGE]).tolist(), "as of the first epoch"
    assert ticket not in workers.answers
    workers.open(1, 2)
    workers.fetch(1)
    workers.carry_all()
    rows, _ = workers.answers[ticket]
    assert rows == [(PAGE, 2)]


def test_keys_that_were_read_lately_are_filled_where_they_go_before_a_lookup_asks() -> None:
    workers = ahead()
    workers.open(1, 2)
    workers.rescale(GIVES_3)
    workers.fetch(1)
    assert workers.present(1) == hashed([PAGE]).tolist()
    assert workers.answers[workers.look_up(1, PAGE)] == ([(PAGE, 2)], 2)
    assert workers.present(0) == []


def test_partial_ask_where_the_key_goes_a_key_whose_slice_moves_while_it_is_filled_is_filled_where_it_goes() -> None:
    workers = Workers()
    workers.lake.publish(visit(PAGE, 1), trade("X", 1))
    for worker in WORKERS:
        workers.open(worker, 1)
        workers.step(worker, meet(*WORKERS))
    ticket = workers.look_up(0, PAGE)
    workers.rescale(GIVES_3)
    workers.fetch(0)
    assert workers.present(0) == []
    workers.fetch(1)
    workers.carry_all()
    assert workers.answers[ticket] == ([(PAGE, 1)], 1)
    assert workers.present(1) == hashed([PAGE]).tolist()


# Evictions

TIMES = 9
"""Different times that the page was visited for: the keys that it rests on."""


def with_a_page(rules: Rules = ALL_RULES, memory_budget: int | None = None) -> Workers:
    """Worker 0 keeps one key, which rests on several others."""
    workers = Workers(rules, memory_budget)
    workers.lake.publish(*(visit(PAGE, ms) for ms in range(TIMES)), *(trade("X", ms) for ms in range(TIMES)))
    workers.open(0, 1)
    ticket = workers.look_up(0, PAGE)
    workers.fetch(0)
    assert workers.answers[ticket] == ([(PAGE, TIMES)], 1)
    assert stats(workers)["resting"] == TIMES
    return workers


def stats(workers: Workers) -> Mapping[str, int]:
    return workers.phase(0).regions.stats()[PLAN.name]


def evict(workers: Workers, keys_max: int) -> int:
    """How many keys a slice of an eviction was about."""
    workers.step(0, TimeToEvict(keys_max=keys_max))
    return workers.machines[0].evicted


def evictions_over(workers: Workers) -> int:
    return sum(isinstance(report, Evicted) for report in workers.reports)


def test_an_eviction_is_over_when_all_that_its_keys_rested_on_is_gone() -> None:
    workers = with_a_page()
    workers.step(0, Evict(eviction=1, view=PLAN.name, keys=None))
    assert evict(workers, 4) == 1
    assert workers.present(0) == []
    assert stats(workers)["resting"] == 0
    for keys in (4, 4, 1):
        assert workers.machines[0].must_evict
        assert evictions_over(workers) == 0
        held = stats(workers)["held"]
        assert evict(workers, 4) == keys
        assert stats(workers)["held"] <= held - keys
    assert stats(workers)["held"] == 0
    assert evictions_over(workers) == 1
    assert not workers.machines[0].must_evict


def test_a_page_that_is_wanted_again_meanwhile_is_right() -> None:
    workers = with_a_page()
    workers.step(0, Evict(eviction=1, view=PLAN.name, keys=None))
    evict(workers, 4)
    evict(workers, 4)
    workers.lake.publish(trade("Y", 0), trade("Y", 8))
    ticket = workers.look_up(0, PAGE)
    workers.open(0, 2)
    workers.fetch(0)
    while workers.machines[0].must_evict:
        evict(workers, 4)
    again = workers.look_up(0, PAGE)
    assert workers.answers[ticket] == ([(PAGE, TIMES)], 1)
    assert workers.answers[again] == ([(PAGE, TIMES + 2)], 2)
    assert stats(workers)["resting"] == TIMES
    assert evictions_over(workers) == 1


def test_over_budget_what_is_left_of_a_key_goes_before_other_keys_do() -> None:
    workers = with_a_page(without(partial_room_first=False), memory_budget=1)
    workers.look_up(0, OTHER_PAGE)
    workers.fetch(0)
    assert evict(workers, 4) == 1, "the page; the other one was read last"
    for keys in (4, 4, 1):
        assert workers.present(0) == hashed([OTHER_PAGE]).tolist()
        assert workers.machines[0].must_evict
        assert evict(workers, 4) == keys
    assert isinstance(workers.reports[-1], Counted)


def test_partial_room_first_a_page_is_filled_when_what_is_left_of_another_one_has_gone() -> None:
    workers = with_a_page(memory_budget=1)
    ticket = workers.look_up(0, OTHER_PAGE)
    for keys in (1, 4, 4, 1):
        assert not workers.fetches[0]
        assert evict(workers, 4) == keys
    workers.fetch(0)
    assert workers.answers[ticket] == ([], 1)
    assert workers.present(0) == hashed([OTHER_PAGE]).tolist()
