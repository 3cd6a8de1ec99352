"""Each rule of docs/internals/epochs.md and rescale.md is needed: without it, some seed finds something wrong."""

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from random import Random
from typing import Any

import duckdb
import pytest
from worlds_kit import seeds_from, without

from simulator.campaign import Simulator, compiled_views
from simulator.checkers import Violated
from simulator.event_weights import PLACES_MAX, EventWeights
from simulator.tables import EXCHANGED, SETS_ASIDE, VIEWS, ViewSpec
from simulator.world import World
from upriver.engine.expressions import Evaluator
from upriver.engine.region import Region
from upriver.ids import WorkerId
from upriver.protocol.rules import Rules
from upriver.protocol.strategies import Strategy
from upriver.worker.regions import BuildRegion

STEPS, WORKERS = 200, 3
SEEDS_MAX = 200  # seeds within which the absence of any rule must show

CAUGHT_BY = {
    "worker_each_epoch_once": {"epochs_are_applied_in_order_and_once"},
    "worker_counts_match": {
        "views_equal_the_oracle",
        "a_keys_rows_are_in_order",
        "lookups_are_refused_for_a_reason",
        "views_fail_for_a_reason",
    },  # views.fail_miscounted notices
    "worker_wait_for_replay": {"lookups_wait_for_the_replay"},
    "worker_own_vnodes_only": {
        "peers_are_spoken_to_over_a_channel",
        "lookups_for_others_are_refused_by_who_is_alone",
    },
    "worker_snapshot_at_cut": {"snapshots_are_consistent_cuts"},
    "worker_wait_until_over": {
        "lookups_equal_the_oracle",
        "snapshots_are_consistent_cuts",
        "keys_are_as_of_one_epoch",
    },
    "worker_own_generation_only": {
        "an_epoch_ends_when_every_worker_has_applied_it",
        "workers_are_not_sent_too_far_ahead",
        "machines_do_not_fail",
        "every_epoch_ends",
    },
    "coordinator_all_workers_finish": {"an_epoch_ends_when_every_worker_has_applied_it"},
    "coordinator_current_incarnation_only": {
        "an_epoch_ends_when_every_worker_has_applied_it",
        "the_app_does_not_fail",
        "workers_are_not_sent_too_far_ahead",
        "machines_do_not_fail",
        "lookups_are_refused_for_a_reason",  # views.fail_miscounted notices
        "views_fail_for_a_reason",
    },
    "coordinator_late_reports_change_nothing": {"every_epoch_ends"},
    "coordinator_cut_ahead_of_all": {"machines_do_not_fail"},  # worker.snapshot_at_cut sees the cut behind it
    "coordinator_lock_step": {
        "no_keys_move_while_epochs_flow",
        "views_equal_the_oracle",
        "machines_do_not_fail",
    },  # coordinator.rows_have_arrived notices
    "coordinator_between_epochs": {"no_keys_move_while_epochs_flow", "nobody_is_left_waiting"},
    "coordinator_still_while_cut": {"snapshots_are_consistent_cuts", "a_key_lives_in_one_place"},
    "coordinator_leave_when_dry": {"machines_do_not_fail", "views_equal_the_oracle"},  # a worker that has left reads on
    "coordinator_rows_have_arrived": {  # a stage's rows come when their epoch has ended: views.fail_miscounted notices
        "machines_do_not_fail",
        "lookups_are_refused_for_a_reason",
        "views_fail_for_a_reason",
    },
    "coordinator_anew_when_torn": {"every_epoch_ends", "nobody_is_left_waiting", "views_equal_the_oracle"},
    "coordinator_views_change_between_epochs": {"views_change_between_epochs", "machines_do_not_fail"},  # as keys move
    "coordinator_no_older_snapshot": {"snapshots_have_what_had_ended"},
    "segments_grace": {"files_stay_for_their_readers"},
    "worker_settle_what_comes_late": {"every_epoch_ends", "nobody_is_left_waiting"},
    "worker_set_aside_at_once": {"just_bad_rows_are_set_aside"},
    "worker_between_epochs": {"keys_are_as_of_one_epoch"},
    "worker_whole_stages": {"no_key_is_lost", "views_equal_the_oracle", "machines_do_not_fail"},
    "workers_faults_are_theirs": {"machines_do_not_fail"},
    "workers_failed_are_replaced": {"the_app_does_not_fail"},
    "lookups_one_moment": {"keys_are_as_of_one_epoch", "lookups_equal_the_oracle", "a_keys_rows_are_in_order"},
}
FLOOD = {"publish": 2.0, "sizes": (5, 20), "hear": 6.0, "carry": 4.0, "dial": 4.0}
SWIFT = {"publish": 0.3, "sizes": (0, 1), "pace": (6.0,) * PLACES_MAX, "hear": 6.0, "carry": 4.0, "dial": 0.5}
STEADY = {**FLOOD, "publish": 1.0, "sizes": (1, 3), "pace": (6.0,) * PLACES_MAX, "rescale": 0.0}
UNEVEN = (0.5, 6.0) * (PLACES_MAX // 2)
OF_EXCHANGES: Mapping[str, Mapping[str, Any]] = {
    "worker_wait_until_over": {**FLOOD, "lookup": 3.0, "scan": 1.0, "pace": UNEVEN},
    "coordinator_leave_when_dry": {**FLOOD, "read": 0.1, "rescale": 3.0, "move": 2.0, "strategies": (Strategy.ICADD,)},
    "coordinator_anew_when_torn": {**FLOOD, "crash": 0.3, "notice": 2.0, "start": 5.0},
    "coordinator_no_older_snapshot": {**SWIFT, "scan": 0.3, "crash": 0.03, "notice": 2.0, "start": 5.0},
    "worker_settle_what_comes_late": {**FLOOD, "rescale": 3.0, "move": 2.0, "keys_max": 1, "pace": UNEVEN},
    "worker_whole_stages": {**FLOOD, "rescale": 0.0, "crash": 0.0},
    "coordinator_late_reports_change_nothing": {**STEADY, "echo": 2.0},
    "workers_faults_are_theirs": {**STEADY, "nonsense": 0.1},
    "workers_failed_are_replaced": {**STEADY, "nonsense": 0.1},
}
OF_READS = {"worker_counts_match": {**FLOOD, "torn": 0.2, "rescale": 0.0, "crash": 0.0}}
OF_SEGMENTS: Mapping[str, Mapping[str, Any]] = {
    "segments_grace": {
        **SWIFT,
        "pace": (0.4,) * PLACES_MAX,
        "read": 9.0,
        "compact": 4.0,
        "lookup": 3.0,
        "rescale": 0.0,
    },
}
"""Rules that matter in few clusters, and event weights for them: many die, or every other worker is slow to hear while
keys move fast, or leavers are slow to read, all the time."""

FIRST_SEEDS = {
    "coordinator_anew_when_torn": 23,
    "coordinator_leave_when_dry": 4,
    "coordinator_rows_have_arrived": 36,
    "coordinator_still_while_cut": 16,
    "lookups_one_moment": 29,
    "worker_set_aside_at_once": 10,
    "worker_settle_what_comes_late": 25,
}
"""Seeds before these find nothing without the rule, and are played last."""


def test_every_rule_is_tried() -> None:
    switches = [field.name for field in fields(Rules) if field.type is bool]  # others: test_upquery_rules
    of_machines = ("checkpoints_", "control_", "replication_", "views_", "retention_", "clock_", "changes_")
    # test_checkpoint_rules, test_control_rules, test_standby_rules, test_failing_views, test_retention_rules,
    # test_clock_rules, test_change_rules
    others = (*of_machines, "succession_")  # test_late_writes
    of_a_moment = ("worker_put_off_rows_count",)  # coordinator/test_stages
    of_segments = ("coordinator_none_within_a_segment", "coordinator_rewritten_for_all")
    # coordinator/test_published, test_retention_rules
    assert list(CAUGHT_BY) == [name for name in switches if not name.startswith((*others, *of_segments, *of_a_moment))]


OF_SOME = {**OF_EXCHANGES, **OF_READS, **OF_SEGMENTS}


@pytest.mark.parametrize("rule", [rule for rule in CAUGHT_BY if rule not in OF_SOME])
def test_without_a_rule_some_seed_finds_something_wrong(rule: str) -> None:
    simulator = Simulator(without(rule), partial_share=0.0, standbys_share=0.0, failing_share=0.0, retained_share=0.0)
    outcomes = (simulator.play(seed, STEPS, WORKERS) for seed in seeds_from(FIRST_SEEDS.get(rule, 0), SEEDS_MAX))
    found = next((outcome.violation for outcome in outcomes if outcome.violation is not None), None)
    assert found is not None
    assert found.checker in CAUGHT_BY[rule]


@pytest.mark.parametrize("rule", OF_EXCHANGES)
def test_without_a_rule_of_exchanges_some_seed_finds_something_wrong_in_weather_for_it(rule: str) -> None:
    build_region, first_seed = partial(Region.build, evaluator=Evaluator()), FIRST_SEEDS.get(rule, 0)
    with duckdb.connect() as database, pytest.raises(Violated) as found:
        play_until_wrong(without(rule), OF_EXCHANGES[rule], build_region, database, EXCHANGED, first_seed=first_seed)
    assert found.value.checker in CAUGHT_BY[rule]


@pytest.mark.parametrize("rule", OF_READS)
def test_without_a_rule_of_reads_some_seed_finds_something_wrong_in_weather_for_it(rule: str) -> None:
    build_region = partial(Region.build, evaluator=Evaluator(), sets_aside=SETS_ASIDE)
    with duckdb.connect() as database, pytest.raises(Violated) as found:
        play_until_wrong(without(rule), OF_READS[rule], build_region, database, VIEWS)
    assert found.value.checker in CAUGHT_BY[rule]


@pytest.mark.parametrize("rule", OF_SEGMENTS)
def test_without_a_rule_of_segments_some_seed_finds_something_wrong_in_weather_for_it(rule: str) -> None:
    build_region = partial(Region.build, evaluator=Evaluator(), sets_aside=SETS_ASIDE)
    with duckdb.connect() as database, pytest.raises(Violated) as found:
        play_until_wrong(without(rule), OF_SEGMENTS[rule], build_region, database, VIEWS, partial_share=1.0)
    assert found.value.checker in CAUGHT_BY[rule]


def play_until_wrong(
    rules: Rules,
    made_for: Mapping[str, Any],
    build_region: BuildRegion,
    database: duckdb.DuckDBPyConnection,
    views: Sequence[ViewSpec],
    partial_share: float = 0.0,
    first_seed: int = 0,
) -> None:
    plans, everyone = compiled_views(views), [WorkerId(worker) for worker in range(WORKERS)]
    for seed in seeds_from(first_seed, SEEDS_MAX):
        rng = Random(seed)
        weights = replace(EventWeights.drawn(rng, everyone).calmed(), **made_for)
        world = World(rng, WORKERS, plans, rules, build_region, weights, partial_share, failing_share=0.0)
        world.run(STEPS)
        world.come_to_rest(database)
