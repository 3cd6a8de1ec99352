"""A seed plays out the same again, to the last line, and a campaign tells what seeds have found."""

import json
from collections import Counter
from dataclasses import replace

import pytest

from simulator.__main__ import main as simulate
from simulator.campaign import Simulator, campaign
from simulator.scenarios import DRAWN
from upriver.errors import DeclarationError
from upriver.protocol.rules import Rules

BROKEN = Rules(coordinator_all_workers_finish=False)


def test_a_seed_plays_out_the_same_again_to_the_last_line_and_seeds_differ() -> None:
    """Those of ``replays.toml`` do in any process."""
    outcomes = [Simulator().play(seed) for seed in (7, 8)]
    assert [Simulator().play(seed) for seed in (7, 8)] == outcomes
    assert outcomes[0].trace != outcomes[1].trace


def test_a_campaign_tells_of_the_first_violation_in_json() -> None:
    simulator = Simulator(rules=BROKEN)
    found = json.loads(json.dumps(campaign(simulator, 0, 3)))
    outcomes = [simulator.play(seed) for seed in range(3)]
    wrong = [outcome for outcome in outcomes if outcome.violation is not None]
    violation = wrong[0].violation
    assert violation is not None
    assert (found["runs"], found["violations"]) == (3, len(wrong))
    assert (found["seed"], found["step"]) == (wrong[0].seed, violation.step)
    assert (found["checker"], found["message"]) == (violation.checker, violation.message)
    assert found["trace"] == list(wrong[0].trace)
    counters: Counter[str] = Counter()
    for outcome in outcomes:
        counters.update(outcome.counters)
    assert found["counters"] == counters
    head, *tail = str(wrong[0]).splitlines()
    assert head == f"seed {found['seed']}, step {found['step']}, {found['checker']}: {found['message']}"
    assert tail == list(wrong[0].trace)[-len(tail) :] != []


@pytest.mark.parametrize("workers", [-1, 0, 257])
def test_a_cluster_without_workers_cannot_be(workers: int) -> None:
    with pytest.raises(DeclarationError, match=f"not {workers}"):
        Simulator(replace(DRAWN, workers=workers)).play(0)


def test_the_command_plays_faults_in_a_scenario(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--scenario", "clock", "--faults", "crash,cut", "--runs", "2", "--steps", "60", "--json"]
    assert simulate(arguments) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert sorted(result) == ["counters", "runs", "violations"]
    assert (result["runs"], result["violations"]) == (2, 0)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--faults", "crash,flood"], "--faults flood: there are all, none and crash"),
        (["--faults", "all", "--protocol", "icadd"], "--faults is for the cluster"),
        (["--scenario", "clock", "--protocol", "icadd"], "--scenario is for the cluster"),
    ],
)
def test_what_cannot_be_is_refused(arguments: list[str], problem: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert simulate(arguments) == 2
    assert problem in capsys.readouterr().err
