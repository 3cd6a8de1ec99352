"""Random rescales by ``redistribute`` under random schedules: none goes wrong, and all that can happen does."""

import json
from dataclasses import replace
from typing import Any

import pytest

from simulator.redistribute_campaign import redistribute_campaign
from simulator.redistribute_rulebook import redistribute_rulebook
from upriver.migration.rules import ALL_ON

RUNS = 200
SOAK_FACTOR = 100


@pytest.fixture(scope="module")
def campaign(request: pytest.FixtureRequest) -> dict[str, Any]:
    return redistribute_campaign(0, RUNS * (SOAK_FACTOR if request.config.getoption("--soak", default=False) else 1))


def test_no_run_goes_wrong(campaign: dict[str, Any]) -> None:
    assert campaign["violations"] == 0, "\n".join([campaign["message"], *campaign["trace"]])
    assert campaign["protocol"] == "redistribute"
    assert campaign["rescales"] > campaign["runs"] >= RUNS


@pytest.mark.parametrize(
    "happening",
    ["Acquire", "Bye", "Final", "Kept", "Redistribute", "RowsSent", "Scaleup", "Sets", "Shutdown"]
    + [f"rows wait in {phase}" for phase in ("RedistributeCollecting", "RedistributeSettling")]
    + [f"rule {rule}" for rule in ("N1", "I1.1", "I1.2", "C1.1", "C3.2")]
    + [f"case {case}" for case in ("up", "down", "both", "moves")],
)
def test_everything_that_can_happen_does_happen(campaign: dict[str, Any], happening: str) -> None:
    assert campaign["counters"].get(happening, 0) > campaign["runs"] / 40


def test_the_published_rules_fail_most_runs_and_the_first_is_told() -> None:
    found = json.loads(json.dumps(redistribute_campaign(0, 60, "published")))
    assert found["violations"] > 20
    assert found["trace"][-1] == found["message"]
    assert redistribute_campaign(found["seed"], 1, "published")["trace"] == found["trace"]


def test_the_number_of_workers_can_be_given() -> None:
    assert redistribute_campaign(0, 5, workers=3)["counters"]["workers before 3"] == 5


@pytest.mark.parametrize(
    "rule",
    [
        "redistribute_one_copy_of_state",
        "redistribute_straight_rows_wait",
        "redistribute_each_owner_by_itself",
        "redistribute_all_are_final",
        "redistribute_waiting_rows_in_flight",
        "redistribute_settle_when_all_told",
        "redistribute_sets_are_united",
    ],
)
def test_random_runs_miss_a_rule_that_is_off(rule: str) -> None:
    broken = redistribute_rulebook(replace(ALL_ON, **{rule: False}))
    assert redistribute_campaign(0, 60, rulebook=broken)["violations"] > 0
