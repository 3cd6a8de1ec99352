"""Views that depend on the clock, in simulated clusters: all goes right, and each rule of docs/internals/clock.md is
needed.

The oracle is one worker that owns everything. At the end DuckDB computes every view with the last epoch's instant.
"""

from dataclasses import fields

import pytest
from worlds_kit import without

from simulator.campaign import Simulator
from simulator.tables import CLOCKED
from upriver.protocol.rules import Rules

STEPS, WORKERS = 200, 3
RIGHT_SEEDS = 6
SEEDS_MAX = 100  # seeds within which the absence of any rule must show

CAUGHT_BY = {"clock_own_instant": {"no_key_is_lost", "views_equal_the_oracle", "lookups_equal_the_oracle"}}
BY_HAND = {"clock_loads_before_the_end"}
"""See ``tests/worker/test_clock.py``."""


def test_every_rule_is_tried() -> None:
    names = {field.name for field in fields(Rules) if field.name.startswith("clock_")}
    assert CAUGHT_BY.keys() | BY_HAND == names


@pytest.mark.parametrize("partial_share", [0.0, 1.0], ids=["full", "partial"])
def test_views_equal_sql_with_the_instant(partial_share: float) -> None:
    simulator = Simulator(views=CLOCKED, partial_share=partial_share, retained_share=0.0)
    outcomes = [simulator.play(seed, STEPS, WORKERS) for seed in range(RIGHT_SEEDS)]
    assert [str(outcome) for outcome in outcomes if outcome.violation is not None] == []


@pytest.mark.parametrize("rule", CAUGHT_BY)
def test_without_a_rule_some_seed_finds_something_wrong(rule: str) -> None:
    simulator = Simulator(without(rule), views=CLOCKED, partial_share=0.0, failing_share=0.0, retained_share=0.0)
    outcomes = (simulator.play(seed, STEPS, WORKERS) for seed in range(SEEDS_MAX))
    found = next((outcome.violation for outcome in outcomes if outcome.violation is not None), None)
    assert found is not None
    assert found.checker in CAUGHT_BY[rule]
