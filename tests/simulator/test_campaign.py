"""The simulator's seeds: none finds anything wrong, all that can happen does, and each plays out the same again."""

import json
import os
import subprocess
import sys
from collections import Counter
from itertools import accumulate

import pytest

from simulator.campaign import RunOutcome, Simulator, campaign, run_seed
from upriver.errors import DeclarationError
from upriver.protocol.rules import Rules

STEPS = 200
SEEDS_BY_WORKERS = {5: 5, 2: 9, 3: 9, 1: 4}
SOAK_FACTOR = 300

HAPPENINGS = (
    "epochs",
    "epochs_ended",
    "segments",
    "rows",
    "lookups",
    "lookups_in_mid_epoch",
    "lookups_refused",
    "snapshots",
    "snapshots_failed",
    "crashes",
    "losses_noticed",
    "late_reports",
    "takeovers",
    "repeats",
    "lookups_given_up",
    "mixed_epochs_ended",
    "loads",
    "rescales_live",
    "restarts",
    "rescales_aborted",
    "rescales_failed",
    "rescales_refused",
    "PeerLost",
    "torn_reads_noticed",
    "views_changed",
    "set_aside",
    "views_failed",
    "lookups_failed",
)


@pytest.fixture(scope="module")
def outcomes(request: pytest.FixtureRequest) -> list[RunOutcome]:
    """Every seed of this run, played out; each number of workers has seeds of its own."""
    factor = SOAK_FACTOR if request.config.getoption("--soak") else 1
    simulator = Simulator()
    counts = [count * factor for count in SEEDS_BY_WORKERS.values()]
    firsts = [0, *accumulate(counts)]
    return [
        simulator.play(seed, STEPS, workers)
        for workers, first, count in zip(SEEDS_BY_WORKERS, firsts, counts, strict=False)
        for seed in range(first, first + count)
    ]


def test_no_seed_finds_anything_wrong(outcomes: list[RunOutcome]) -> None:
    assert len(outcomes) >= sum(SEEDS_BY_WORKERS.values())
    wrong = [outcome for outcome in outcomes if outcome.violation is not None]
    assert not wrong, f"{len(wrong)} seeds find something wrong. {wrong[0]}"


@pytest.mark.parametrize("happening", HAPPENINGS)
def test_everything_that_can_happen_does_happen(outcomes: list[RunOutcome], happening: str) -> None:
    assert sum(outcome.counters.get(happening, 0) > 0 for outcome in outcomes) >= len(outcomes) / 50


def test_seeds_differ(outcomes: list[RunOutcome]) -> None:
    assert len({outcome.trace for outcome in outcomes}) == len(outcomes)


def test_a_seed_plays_out_the_same_again_to_the_last_line(outcomes: list[RunOutcome]) -> None:
    for outcome in outcomes[:5]:
        assert run_seed(outcome.seed, STEPS, next(iter(SEEDS_BY_WORKERS))) == outcome


@pytest.mark.parametrize("hash_seed", ["0", "1"])
def test_a_seed_plays_out_the_same_in_another_process(hash_seed: str) -> None:
    code = f"from simulator.campaign import run_seed; print(*run_seed(7, {STEPS}, 3).trace, sep='\\n')"
    environment = os.environ | {"PYTHONHASHSEED": hash_seed}
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert run.returncode == 0, run.stderr
    assert tuple(run.stdout.splitlines()) == run_seed(7, STEPS, 3).trace


def test_a_violation_plays_out_the_same_again() -> None:
    rules = Rules(coordinator_all_workers_finish=False)
    found = campaign(first_seed=0, runs=3, steps=STEPS, workers=3, rules=rules)
    again = run_seed(found["seed"], STEPS, 3, rules)
    assert again.violation is not None
    assert again.trace == tuple(found["trace"])
    assert (again.violation.step, again.violation.checker) == (found["step"], found["checker"])


def test_a_campaign_is_a_json_object() -> None:
    found = json.loads(json.dumps(campaign(first_seed=11, runs=4, steps=50, workers=2)))
    assert sorted(found) == ["counters", "runs", "violations"]
    assert (found["runs"], found["violations"]) == (4, 0)
    expected: Counter[str] = Counter()
    for seed in range(11, 15):
        expected.update(run_seed(seed, 50, 2).counters)
    assert found["counters"] == expected


def test_a_campaign_with_violations_tells_of_the_first() -> None:
    rules = Rules(coordinator_all_workers_finish=False)
    found = json.loads(json.dumps(campaign(first_seed=0, runs=8, steps=STEPS, workers=3, rules=rules)))
    outcomes = [run_seed(seed, STEPS, 3, rules) for seed in range(8)]
    wrong = [outcome for outcome in outcomes if outcome.violation is not None]
    assert found["violations"] == len(wrong) > 0
    assert found["seed"] == wrong[0].seed
    assert found["trace"] == list(wrong[0].trace)


def test_an_outcome_tells_all_that_is_needed_to_see_what_was_wrong() -> None:
    outcome = run_seed(0, STEPS, 3, Rules(coordinator_all_workers_finish=False))
    assert outcome.violation is not None
    head, *tail = str(outcome).splitlines()
    assert head == f"seed 0, step {outcome.steps}, {outcome.violation.checker}: {outcome.violation.message}"
    assert tail == list(outcome.trace)[-len(tail) :] != []


@pytest.mark.parametrize("workers", [-1, 0, 257])
def test_a_river_without_workers_cannot_be(workers: int) -> None:
    with pytest.raises(DeclarationError, match=f"not {workers}"):
        run_seed(0, STEPS, workers)
