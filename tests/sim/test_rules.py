"""Each rule of docs/design/0001-river.md and rescale.md is needed: without it, some seed finds something wrong."""

from dataclasses import fields

import pytest

from upriver.machines.rules import Rules
from upriver.sim.campaign import Simulator

STEPS, WORKERS = 200, 3
SEEDS_MAX = 200  # seeds within which the absence of any rule must show

CAUGHT_BY = {
    "w1_each_epoch_once": {"epochs_are_applied_in_order_and_once"},
    "w2_counts_match": {"views_equal_the_oracle", "a_keys_rows_are_in_order", "machines_do_not_fail"},  # C1 notices
    "w3_wait_for_replay": {"lookups_wait_for_the_replay"},
    "w4_own_vnodes_only": {
        "peers_are_spoken_to_over_a_channel",
        "lookups_for_others_are_refused_by_who_is_alone",
    },
    "w5_snapshot_at_cut": {"snapshots_are_consistent_cuts"},
    "w6_wait_until_over": {"lookups_equal_the_oracle", "snapshots_are_consistent_cuts"},
    "w8_own_generation_only": {
        "an_epoch_ends_when_every_worker_has_applied_it",
        "workers_are_not_sent_too_far_ahead",
        "machines_do_not_fail",
    },
    "c1_all_workers_finish": {"an_epoch_ends_when_every_worker_has_applied_it"},
    "c2_current_incarnation_only": {
        "an_epoch_ends_when_every_worker_has_applied_it",
        "the_app_does_not_fail",
        "workers_are_not_sent_too_far_ahead",
        "machines_do_not_fail",
    },
    "c4_cut_ahead_of_all": {"machines_do_not_fail"},  # W5 sees the cut behind it
    "c5_lock_step": {"no_keys_move_while_epochs_flow"},
    "c6_between_epochs": {"no_keys_move_while_epochs_flow", "nobody_is_left_waiting"},
    "c7_still_while_cut": {"snapshots_are_consistent_cuts", "a_key_lives_in_one_place"},
    "c8_leave_when_dry": {"machines_do_not_fail", "views_equal_the_oracle"},  # a worker that has left reads on
    "c9_rows_have_arrived": {"machines_do_not_fail"},  # a stage's rows come when their epoch has ended
    "c10_anew_when_torn": {"every_epoch_ends", "nobody_is_left_waiting", "views_equal_the_oracle"},
    "w9_settle_what_comes_late": {"every_epoch_ends", "nobody_is_left_waiting"},
}


def test_every_rule_is_tried() -> None:
    assert list(CAUGHT_BY) == [field.name for field in fields(Rules)]


@pytest.mark.parametrize("rule", CAUGHT_BY)
def test_without_a_rule_some_seed_finds_something_wrong(rule: str) -> None:
    simulator = Simulator(Rules(**{rule: False}))
    outcomes = (simulator.play(seed, STEPS, WORKERS) for seed in range(SEEDS_MAX))
    found = next((outcome.violation for outcome in outcomes if outcome.violation is not None), None)
    assert found is not None
    assert found.checker in CAUGHT_BY[rule]
