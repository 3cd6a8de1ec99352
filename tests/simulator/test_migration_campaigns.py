"""Random rescales under random schedules: none goes wrong, all that can happen does, each goes again the same way."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from soak import drawn_seed

from simulator.icadd_campaign import icadd_campaign, random_scenario, run
from simulator.icadd_scenario import mended
from simulator.icadd_world import LATE_TRIGGER
from simulator.redistribute_campaign import redistribute_campaign

RUNS, DRAWN_RUNS, SOAK_RUNS = 120, 200, 20_000

CAMPAIGNS: dict[str, Callable[..., dict[str, Any]]] = {"icadd": icadd_campaign, "redistribute": redistribute_campaign}
OF_BOTH = (
    *(f"case {case}" for case in ("up", "down", "both", "moves")),
    *("Acquire", "Bye", "Kept", "RowsSent"),
    *(f"workers before {count}" for count in (1, 2, 3, 4, 5)),
    *(f"workers after {count}" for count in (1, 2, 3, 4, 5)),
    *(f"regions {count}" for count in (1, 2, 3)),
    *("a region feeds another", "a rescale waits for another", "a rescale is aborted", "slow operators"),
    *(f"rule {rule}" for rule in ("N1", "I1.1", "I1.2", "C1.1", "C3.2")),
)
HAPPENINGS = {
    "icadd": (
        *OF_BOTH,
        *("Done", "Mark", "RelayedMark", LATE_TRIGGER, "rule N3", "rule C3.1"),
        *(f"rows wait in {phase}" for phase in ("Normal", "Collecting", "Settling")),
    ),
    "redistribute": (
        *OF_BOTH,
        *("Final", "Redistribute", "Scaleup", "Sets", "Shutdown"),
        *(f"rows wait in {phase}" for phase in ("RedistributeCollecting", "RedistributeSettling")),
    ),
}


def check(protocol: str, first_seed: int, runs: int) -> dict[str, Any]:
    found = CAMPAIGNS[protocol](first_seed, runs)
    again = f"python -m simulator --protocol {protocol} --seed {found.get('seed')}"
    assert not found["violations"], "\n".join([*found["trace"], again])
    assert found["protocol"] == protocol
    return found


@pytest.mark.parametrize("protocol", CAMPAIGNS)
def test_no_run_goes_wrong_and_everything_that_can_happen_does(protocol: str) -> None:
    found = check(protocol, 0, RUNS)
    assert found["rescales"] > found["runs"] == RUNS
    assert [seen for seen in HAPPENINGS[protocol] if found["counters"].get(seen, 0) <= RUNS / 60] == []


@pytest.mark.parametrize("protocol", CAMPAIGNS)
@pytest.mark.parametrize(
    "runs",
    [pytest.param(DRAWN_RUNS, marks=pytest.mark.verify), pytest.param(SOAK_RUNS, marks=pytest.mark.long)],
)
def test_no_run_from_a_seed_drawn_anew_goes_wrong(protocol: str, runs: int) -> None:
    assert check(protocol, drawn_seed(protocol), runs)["runs"] == runs


def test_a_seed_goes_again_the_same_way() -> None:
    assert run(7, random_scenario(7), mended())[0] == run(7, random_scenario(7), mended())[0]
    assert random_scenario(7).inputs != random_scenario(8).inputs


@pytest.mark.parametrize("protocol", CAMPAIGNS)
def test_the_number_of_workers_can_be_given(protocol: str) -> None:
    assert CAMPAIGNS[protocol](0, 5, workers=3)["counters"]["workers before 3"] == 5


@pytest.mark.parametrize("protocol", CAMPAIGNS)
def test_the_published_rules_fail_most_runs_and_the_first_is_told(protocol: str) -> None:
    found = json.loads(json.dumps(CAMPAIGNS[protocol](0, 30, rules="published")))
    assert found["violations"] > 10
    assert found["trace"][-1] == found["message"]
    assert CAMPAIGNS[protocol](found["seed"], 1, rules="published")["trace"] == found["trace"]
