"""Leases under all faults: no process speaks for a slot that another has. docs/internals/failures.md, leases.*,
leases.takeover_after_lease."""

from collections import Counter
from random import Random

import pytest
from lease_world import LeaseWorld, Rules

from simulator.checkers import Violated

STEPS = 600
SEEDS = 150
SOAK_SEEDS = 20_000
ALL_RULES = Rules()


def played(seed: int, rules: Rules = ALL_RULES) -> Counter[str]:
    world = LeaseWorld(Random(f"leases {seed}"), rules)
    try:
        world.run(STEPS)
    except Violated as violated:
        raise Violated(violated.checker, f"seed {seed}: {violated.problem}") from None
    return world.counters


def all_played(seeds: int, rules: Rules = ALL_RULES) -> Counter[str]:
    return sum((played(seed, rules) for seed in range(seeds)), Counter[str]())


def test_no_worker_speaks_for_a_place_that_another_has(pytestconfig: pytest.Config) -> None:
    seeds = SOAK_SEEDS if pytestconfig.getoption("--soak") else SEEDS
    counters = all_played(seeds)
    seen = ("spoken", "kept_silent", "spoken_after_its_loss", "entered", "taken_over", "given_up", "stops")
    assert min(counters[what] for what in (*seen, "driver_stops", "kills", "cuts", "ends")) > 5, counters


@pytest.mark.parametrize("rule", Rules.__dataclass_fields__)
def test_a_rule_switched_off_is_caught(rule: str) -> None:
    with pytest.raises(Violated, match=r"seed \d+: #\d+ speaks, and has been replaced"):
        all_played(SEEDS, Rules(**{rule: False}))


def test_a_seed_goes_again_the_same_way() -> None:
    assert played(7) == played(7)
