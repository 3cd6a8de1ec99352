"""Memory budgets: which keys go when there is too much, which stay, and which wait for room; partial.asked_keys_stay
and partial.room_first of partial.md."""

import re
from dataclasses import replace

import pytest
from cone_kit import SQL
from cone_kit import planned as planned_cone
from machines_kit import FLOW, HALVES, applied, asked, assign, opened, planned, read, rows, vnode_map
from sql_kit import local_plan
from upquery_kit import ALSO_HERE, HERE, PARTIAL, ROW_BYTES, THIRD, Weighed, Workers, present, without

from simulator.tables import TABLES
from upriver.errors import BudgetExceeded
from upriver.plan.plan import NOT_WANTED
from upriver.protocol.worker_events import TimeToEvict
from upriver.worker.memory import MemoryBudget, fixed_bytes, require_memory
from upriver.worker.serving import Serving
from upriver.worker.share import FlowShare

EMPTY_VIEW_BYTES_MAX = 16_384
"""Of one view: so that many of them fit into the smallest budget that there is."""


def upqueries_until_answered(workers: Workers, *keys: str, rounds_max: int) -> int:
    """How many upqueries a lookup takes, if there is time to evict whatever may be evicted before each answer."""
    ticket = workers.look_up(0, *keys)
    for rounds in range(rounds_max):
        if ticket in workers.answers:
            return rounds
        workers.step(0, TimeToEvict(keys_max=10))
        workers.answer(0)
    return rounds_max


@pytest.mark.parametrize(("p6", "rounds"), [(True, 1), (False, 20)])
def test_partial_asked_keys_stay_a_lookup_is_answered_under_the_smallest_budget(p6: bool, rounds: int) -> None:
    """Without the rule, the key that is present goes whenever the other one comes: the lookup waits for ever. With
    partial.room_first both would come together."""
    rules = without(partial_room_first=False)
    if not p6:
        rules = without(partial_asked_keys_stay=False, partial_room_first=False)
    workers = Workers(rules=rules, memory_budget=1)
    workers.epoch(HERE, ALSO_HERE)
    workers.fill(0, HERE)
    assert upqueries_until_answered(workers, HERE, ALSO_HERE, rounds_max=20) == rounds


@pytest.mark.parametrize("p9", [True, False])
def test_partial_room_first_keys_are_filled_when_others_have_made_room(p9: bool) -> None:
    """Without the rule, the more is asked for the further a worker gets beyond its budget."""
    workers = Workers(rules=without(partial_room_first=p9), memory_budget=1)
    workers.epoch(HERE, ALSO_HERE, THIRD)
    workers.fill(0, HERE)
    asked = [workers.look_up(0, ALSO_HERE), workers.look_up(0, THIRD)]
    assert len(workers.upqueries[0]) == (0 if p9 else 1)
    workers.step(0, TimeToEvict(keys_max=10))
    assert present(workers, 0)["present"] == 0
    while workers.upqueries[0]:
        workers.answer(0)
        workers.rest(0)
    assert [workers.answers[ticket] for ticket in asked] == [({ALSO_HERE: [1]}, 1), ({THIRD: [1]}, 1)]


def test_partial_room_first_what_was_put_off_is_filled_in_one_go_as_far_as_there_is_room() -> None:
    workers = Workers(memory_budget=4 * ROW_BYTES)
    workers.epoch(*[HERE] * 3, *[ALSO_HERE] * 3)
    workers.fill(0, HERE)
    workers.look_up(0, HERE, ALSO_HERE)
    workers.answer(0)
    assert workers.machines[0].must_evict
    waits = workers.look_up(0, THIRD)
    assert not workers.upqueries[0]
    workers.step(0, TimeToEvict(keys_max=10))
    (asked,) = workers.upqueries[0]
    assert len(asked.upquery.keys) == 1
    workers.answer(0)
    assert workers.answers[waits] == ({}, 1)


def test_memory_over_the_budget_is_given_back_by_what_was_read_longest_ago() -> None:
    workers = Workers(memory_budget=24 * ROW_BYTES)
    workers.epoch(HERE, ALSO_HERE, THIRD)
    for key in (THIRD, HERE, ALSO_HERE):
        workers.fill(0, key)
    workers.look_up(0, THIRD)
    workers.epoch(HERE, ALSO_HERE, THIRD)
    assert not workers.machines[0].must_evict
    workers.epoch(*[HERE, ALSO_HERE, THIRD] * 3)
    assert workers.machines[0].must_evict
    while workers.machines[0].must_evict:
        workers.step(0, TimeToEvict(keys_max=1))
    assert present(workers, 0)["present"] == 2
    kept = workers.look_up(0, ALSO_HERE, THIRD)
    assert workers.answers[kept] == ({ALSO_HERE: [1, 2, 3, 3, 3], THIRD: [1, 2, 3, 3, 3]}, 3)
    assert workers.look_up(0, HERE) not in workers.answers


def test_where_the_keys_of_the_largest_region_are_waited_for_another_one_gives_room() -> None:
    """partial.asked_keys_stay: a lookup of all keys of the first region waits for an epoch that is far."""
    also = replace(planned("also"), full_because=None)
    workers = Workers(memory_budget=8 * ROW_BYTES)
    maps = dict.fromkeys(("seen", "also"), vnode_map(HALVES))
    workers.step(0, assign(HALVES, plans=(PARTIAL, also), maps=maps))
    workers.epoch(HERE, ALSO_HERE, THIRD)
    for ticket, key in ((100, HERE), (101, THIRD)):  # what was read last stays in any case
        workers.step(0, asked(key, ticket=ticket, view="also"))
        workers.answer(0)
    workers.fill(0, HERE, ALSO_HERE, THIRD)
    workers.look_up(0, HERE, ALSO_HERE, at_least=9)
    workers.look_up(0, THIRD, at_least=9)
    assert (present(workers, 0, "also")["present"], present(workers, 0)["present"]) == (2, 3)
    assert workers.machines[0].must_evict
    workers.step(0, TimeToEvict(keys_max=10))
    assert (present(workers, 0, "also")["present"], present(workers, 0)["present"]) == (1, 3)
    workers.step(0, TimeToEvict(keys_max=10))  # and now all must stay
    assert not workers.machines[0].must_evict


def test_the_largest_view_that_keeps_all_keys_fails_when_they_take_more_than_the_budget() -> None:
    plan = replace(PARTIAL, full_because=NOT_WANTED)
    machine = FlowShare(FLOW, lambda *_: Weighed(), memory=MemoryBudget(2 * ROW_BYTES))
    for event in [assign(plans=(plan,)), *applied([HERE], [HERE])]:
        machine.step(event)
    machine.step(opened(3))
    machine.step(rows(3, HERE))
    said = f"worker 0 keeps every key .* memory_budget={2 * ROW_BYTES:,}: seen {3 * ROW_BYTES:,}"
    machine.step(read(3, 1))
    assert isinstance(machine.phase, Serving)
    failure = machine.phase.regions.failed["seen"].raised()
    assert isinstance(failure, BudgetExceeded)
    assert re.search(said, str(failure))
    assert machine.phase.regions.stats()["seen"]["bytes"] == 0


@pytest.mark.parametrize("view", SQL)
def test_a_view_without_keys_takes_next_to_nothing(view: str) -> None:
    plan = planned_cone(view)
    assert 0 < fixed_bytes([plan])[plan.name] < EMPTY_VIEW_BYTES_MAX


def test_a_budget_without_room_for_the_views_is_refused_and_they_are_named() -> None:
    plans = [local_plan(*SQL[view], *TABLES, name=view) for view in ("fans", "supply")]
    fixed = fixed_bytes(plans)
    total = sum(fixed.values())
    require_memory(plans, total)
    require_memory(plans, None)
    takes = f"supply {fixed['supply']:,}, fans {fixed['fans']:,}"
    said = rf"take {total:,} bytes .* more than memory_budget={total - 1:,}: {takes}\. Give more memory, or keep fewer"
    with pytest.raises(BudgetExceeded, match=said):
        require_memory(plans, total - 1)
