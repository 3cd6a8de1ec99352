"""Random rescales under random schedules: none goes wrong, all that can happen does, each goes again the same way."""

import json
from dataclasses import replace
from typing import Any

import pytest

from simulator.icadd_campaign import icadd_campaign, random_scenario, run
from simulator.icadd_scenario import mended
from simulator.icadd_world import LATE_TRIGGER
from upriver.migration.rules import ALL_RULES

RUNS = 300
SOAK_FACTOR = 50


@pytest.fixture(scope="module")
def campaign(request: pytest.FixtureRequest) -> dict[str, Any]:
    return icadd_campaign(0, RUNS * (SOAK_FACTOR if request.config.getoption("--soak", default=False) else 1))


def test_no_run_goes_wrong(campaign: dict[str, Any]) -> None:
    assert campaign["violations"] == 0, "\n".join([campaign["message"], *campaign["trace"]])
    assert campaign["runs"] >= RUNS
    assert campaign["rescales"] > campaign["runs"]


@pytest.mark.parametrize("case", ["up", "down", "both", "moves"])
def test_every_kind_of_rescale_is_asked_for(campaign: dict[str, Any], case: str) -> None:
    assert campaign["counters"][f"case {case}"] > campaign["runs"] / 10


@pytest.mark.parametrize(
    "happening",
    ["Acquire", "Bye", "Done", "Kept", "Mark", "RelayedMark", "RowsSent"]
    + [f"workers before {count}" for count in (1, 2, 3, 4, 5)]
    + [f"workers after {count}" for count in (1, 2, 3, 4, 5)]
    + [f"regions {count}" for count in (1, 2, 3)]
    + ["a rescale waits for another", "a rescale is aborted", "slow operators", LATE_TRIGGER]
    + [f"rows wait in {phase}" for phase in ("Normal", "Collecting", "Settling")]
    + [f"rule {rule}" for rule in ("N1", "N3", "I1.1", "I1.2", "C1.1", "C3.1", "C3.2")],
)
def test_everything_that_can_happen_does_happen(campaign: dict[str, Any], happening: str) -> None:
    assert campaign["counters"].get(happening, 0) > campaign["runs"] / 40


def test_a_seed_goes_again_the_same_way() -> None:
    assert run(7, random_scenario(7), mended())[0] == run(7, random_scenario(7), mended())[0]
    assert random_scenario(7).inputs != random_scenario(8).inputs


def test_the_number_of_workers_can_be_given() -> None:
    assert len(random_scenario(3, workers=4).workers) == 4


def test_the_published_rules_fail_most_runs_and_the_first_is_told() -> None:
    found = json.loads(json.dumps(icadd_campaign(0, 60, rules="published")))
    assert found["violations"] > 30
    assert found["trace"][-1] == found["message"]
    again = icadd_campaign(found["seed"], 1, rules="published")
    assert again["trace"] == found["trace"]


@pytest.mark.parametrize(
    "rule",
    [
        "icadd_take_from_old_owner_only",
        "icadd_park_behind_marker",
        "icadd_old_owner_first",
        "icadd_early_messages_kept",
        "icadd_leave_after_marks",
        "icadd_one_rescale_at_a_time",
        "icadd_state_before_held_rows",
        "icadd_done_when_both_empty",
    ],
)
def test_random_runs_miss_a_rule_that_is_off(rule: str) -> None:
    broken = mended(replace(ALL_RULES, **{rule: False}))
    assert icadd_campaign(0, 60, rulebook=broken)["violations"] > 0
