"""Rows that leave their tables, in simulated clusters: all goes right, and each rule of docs/internals/retention.md is
needed.

The oracle is one worker that owns everything. At the end DuckDB computes every view from the rows that remain.
"""

from dataclasses import fields

import pytest
from worlds_kit import without

from simulator.campaign import Simulator
from simulator.tables import ALL_VIEWS, ORDERED, RETAINS, VIEWS
from upriver.protocol.rules import Rules

STEPS, WORKERS = 200, 3
RIGHT_SEEDS = 3
SEEDS_MAX = 100  # seeds within which the absence of any rule must show

CAUGHT_BY = {
    "retention_retract_with_epoch": {"views_equal_sql"},
    "retention_late_rows_stay_out": {"views_equal_sql"},
    "retention_read_what_remains": {"views_equal_the_oracle", "lookups_equal_the_oracle"},
}
UNORDERED = tuple(view for view in ALL_VIEWS if view.name not in ORDERED)
"""Rows that may leave have no order."""


def test_every_rule_is_tried() -> None:
    assert list(CAUGHT_BY) == [field.name for field in fields(Rules) if field.name.startswith("retention_")]


@pytest.mark.parametrize("partial_share", [0.0, 1.0], ids=["full", "partial"])
@pytest.mark.parametrize("way", range(len(RETAINS)))
def test_views_equal_sql_over_the_rows_that_remain(way: int, partial_share: float) -> None:
    simulator = Simulator(views=UNORDERED, partial_share=partial_share, retains=RETAINS[way])
    outcomes = [simulator.play(seed, STEPS, WORKERS) for seed in range(RIGHT_SEEDS)]
    assert [str(outcome) for outcome in outcomes if outcome.violation is not None] == []


@pytest.mark.parametrize("rule", CAUGHT_BY)
def test_without_a_rule_some_seed_finds_something_wrong(rule: str) -> None:
    rules = without(rule)
    views = tuple(view for view in VIEWS if view.name not in ORDERED)
    reads = rule == "retention_read_what_remains"
    simulator = Simulator(rules, views=views, partial_share=float(reads), failing_share=0.0, retains=RETAINS[1])
    outcomes = (simulator.play(seed, STEPS, WORKERS) for seed in range(SEEDS_MAX))
    found = next((outcome.violation for outcome in outcomes if outcome.violation is not None), None)
    assert found is not None
    assert found.checker in CAUGHT_BY[rule]
