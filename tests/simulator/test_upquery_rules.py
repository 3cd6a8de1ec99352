"""Each rule of docs/internals/partial.md is needed: without it, some seed finds something wrong.

For four rules there is nothing to see, or it would take too many seeds; tests of the machines show what happens without
them:

- partial.asked_keys_stay, without which a lookup may wait for ever: for that, an eviction has to come between each
  upquery and its answer. Here evictions come at random, and so every lookup is answered sooner or later. See
  ``worker/test_upqueries.py``.
- partial.read_ahead, without which a row may be lost: an epoch that has the row must be open at a key's old owner and
  not at its new one, the key must be on its way between them, and be asked for at once. See
  ``worker/test_upqueries_moving.py``.
- partial.room_first, without which a worker takes more memory than it may, though all answers are right. See
  ``worker/test_upqueries.py``.
- cones.never_back, without which a lookup may go back in time: a key's old owner must have shown it as of an epoch
  that the new one has not come to, and the key be filled and asked for there before it does. See
  ``worker/test_cones_moving.py``.

Three rules may be caught in more than one way:

- partial.missing_is_not_empty: the rows of a missing key are seen at the end of their epoch, unless rows still wait by
  then; the watcher looks again when the view has new rows. A lookup may ask before that, and its upquery adds all rows
  to those that are there.
- partial.own_upquery_only: of a key that was given up, rows are taken in some at a time. Until the last is in there is
  state of a missing key, and then the key is in two places.
- partial.ask_where_the_key_goes: the old owner fills a key that has moved. While the new owner does not have the key,
  or has only a part of it, the key is in one place, which is the wrong one: it is in a slice of another worker, and
  lacks the rows that go there.
"""

from dataclasses import fields, replace

import pytest
from worlds_kit import seeds_from

from simulator.campaign import Simulator
from simulator.tables import CLOCKED, TRACED, VIEWS
from upriver.partial.rules import ALL_RULES as ALL_UPQUERY_RULES
from upriver.partial.rules import UpqueryRules
from upriver.protocol.rules import ALL_RULES

STEPS, WORKERS = 200, 3
SEEDS_MAX = 300  # seeds within which the absence of any rule must show
BUDGET_SEEDS = 5
RESTS_SEEDS = 8

CAUGHT_BY = {
    "partial_missing_is_not_empty": {"views_equal_the_oracle", "lookups_equal_the_oracle"},
    "partial_pending_keys_retain": {"views_equal_the_oracle", "lookups_equal_the_oracle"},
    "partial_each_row_once": {"views_equal_the_oracle", "lookups_equal_the_oracle", "a_keys_rows_are_in_order"},
    "partial_own_upquery_only": {"a_key_lives_in_one_place", "views_equal_the_oracle"},
    "partial_ask_where_the_key_goes": {
        "a_key_lives_in_one_place",
        "a_worker_holds_only_keys_of_its_vnodes",
        "views_equal_the_oracle",
    },
    "partial_rows_before_lookups": {"lookups_equal_the_oracle"},
    "partial_whole_keys_only": {"lookups_equal_the_oracle", "views_equal_the_oracle"},
    "partial_clock_of_the_answer": {"views_equal_the_oracle", "lookups_equal_the_oracle"},
    "cones_keep_what_keys_rest_on": {"views_equal_the_oracle", "lookups_equal_the_oracle"},
    "cones_catch_up_first": {"views_equal_the_oracle", "lookups_equal_the_oracle"},
    "cones_join_between_epochs": {"views_equal_the_oracle", "lookups_equal_the_oracle"},
}
FIRST_SEEDS = {
    "partial_ask_where_the_key_goes": 7,
    "partial_pending_keys_retain": 36,
    "partial_own_upquery_only": 15,
    "cones_catch_up_first": 4,
    "cones_join_between_epochs": 89,
}
"""Seeds before these find nothing without the rule, and are played last."""
BY_HAND = {
    "partial_asked_keys_stay",
    "partial_read_ahead",
    "partial_room_first",
    "cones_never_back",
}
UNDER_FAULTS = {"cones_join_between_epochs"}
"""Rules whose absence shows sooner if processes die and messages are late."""
OF_CONES = {"cones_keep_what_keys_rest_on", "cones_catch_up_first", "cones_join_between_epochs"}
"""Rules of views whose rows are exchanged."""


OF_THE_CLOCK = {"partial_clock_of_the_answer"}
"""Rules of views that depend on the clock."""


def test_every_rule_is_tried() -> None:
    assert CAUGHT_BY.keys() | BY_HAND == {field.name for field in fields(UpqueryRules)}


@pytest.mark.parametrize("rule", CAUGHT_BY)
def test_without_a_rule_some_seed_finds_something_wrong(rule: str) -> None:
    rules = replace(ALL_RULES, upqueries=replace(ALL_UPQUERY_RULES, **{rule: False}))
    views = TRACED if rule in OF_CONES else CLOCKED if rule in OF_THE_CLOCK else VIEWS
    faults = None if rule in UNDER_FAULTS else ()
    simulator = Simulator(rules, views=views, partial_share=1.0, faults=faults, retained_share=0.0)
    outcomes = (simulator.play(seed, STEPS, WORKERS) for seed in seeds_from(FIRST_SEEDS.get(rule, 0), SEEDS_MAX))
    found = next((outcome.violation for outcome in outcomes if outcome.violation is not None), None)
    assert found is not None
    assert found.checker in CAUGHT_BY[rule]


def test_under_budgets_of_any_size_all_lookups_are_answered_and_nothing_is_wrong() -> None:
    """Two of three of these clusters have one."""
    simulator = Simulator(ALL_RULES, views=TRACED, partial_share=1.0)
    outcomes = [simulator.play(seed, STEPS, WORKERS) for seed in range(BUDGET_SEEDS)]
    assert [str(outcome) for outcome in outcomes if outcome.violation is not None] == []
    assert sum(outcome.counters.get("evictions", 0) for outcome in outcomes) > BUDGET_SEEDS


def test_upqueries_that_rest_keep_no_lookup_waiting() -> None:
    simulator = Simulator(ALL_RULES, views=VIEWS, partial_share=1.0)
    outcomes = [simulator.play(seed, STEPS, WORKERS) for seed in range(RESTS_SEEDS)]
    assert [str(outcome) for outcome in outcomes if outcome.violation is not None] == []
    assert any(outcome.counters.get("fills") for outcome in outcomes)
