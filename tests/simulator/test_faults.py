"""``python -m simulator --faults``: whatever fails, no answer is wrong, and all comes to rest afterwards."""

import json
from collections import Counter
from collections.abc import Sequence

import pytest

from simulator.__main__ import main as simulator
from simulator.campaign import Simulator
from simulator.event_weights import FAULTS

STEPS, WORKERS = 250, 3
SEEDS, SOAK_SEEDS = 12, 100_000
SHOWN_BY = {
    "crash": "crashes",
    "hang": "takeovers",
    "cut": "cuts",
    "driver": "drivers",
    "delay": "PeersMet",
    "duplicate": "repeats",
    "echo": "echoes",
    "nonsense": "nonsense",
    "tear": "torn_reads_noticed",
    "disk": "checkpoints_given_up",
}


def played(kinds: Sequence[str], seeds: range) -> Counter[str]:
    """What has happened in these seeds, in which nothing was wrong."""
    simulator, counters = Simulator(faults=kinds), Counter[str]()
    for seed in seeds:
        outcome = simulator.play(seed, STEPS, WORKERS)
        assert outcome.violation is None, str(outcome)
        counters += Counter(outcome.counters)
    return counters


def test_all_faults_together_do_no_harm(request: pytest.FixtureRequest) -> None:
    counters = played(tuple(FAULTS), range(SOAK_SEEDS if request.config.getoption("--soak") else SEEDS))
    assert SHOWN_BY.keys() == FAULTS.keys()
    assert all(counters[shown] for shown in SHOWN_BY.values())
    assert counters["rescales_live"]
    assert counters["checkpoints"]


@pytest.mark.parametrize("kind", ["cut", "disk", "driver"])
def test_one_kind_of_fault_comes_alone(kind: str) -> None:
    counters = played([kind], range(4))
    assert counters[SHOWN_BY[kind]]
    assert not counters["crashes"]
    assert not counters["repeats"]


def test_the_command_plays_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert simulator(["--faults", "crash,cut", "--runs", "2", "--steps", "60", "--json"]) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (result["runs"], result["violations"]) == (2, 0)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--faults", "crash,flood"], "--faults flood: there are all, none and crash"),
        (["--faults", "all", "--protocol", "icadd"], "--faults is for the cluster"),
    ],
)
def test_what_cannot_be_is_refused(arguments: list[str], problem: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert simulator([*arguments]) == 2
    assert problem in capsys.readouterr().err
