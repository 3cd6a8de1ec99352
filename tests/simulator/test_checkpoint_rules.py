"""Checkpoints in the simulator: nothing is wrong with all rules on, and each rule of docs/internals/checkpoints.md is
needed."""

from collections.abc import Callable, Mapping
from dataclasses import fields
from itertools import repeat

import duckdb
import pytest
from worlds_kit import BUSY, MadeFor, Worlds, exchanged, flowing, seeds

from simulator.event_weights import PLACES_MAX
from upriver.plan.plan import DataflowPlan
from upriver.protocol.rules import Rules
from upriver.protocol.strategies import Strategy

PARTIAL_SHARE = 0.2  # views of which there are no checkpoints

DENSE: MadeFor = {
    **BUSY,
    "crash": 0.03,
    "start": 5.0,
    "rescale": 0.5,
    "strategies": tuple(Strategy),
    "checkpoint": 0.5,
    "copy": 1.0,
    "spoil": 0.1,
}
CALM: MadeFor = {**DENSE, "crash": 0.0, "spoil": 0.0}
SEGMENTED: MadeFor = {
    "compact": 6.0,
    "sizes": (0, 1),
    "lookup": 0.3,
    "pace": (6.0,) * PLACES_MAX,
    "read": 3.0,
    "copy": 6.0,
}
CAUGHT_BY: Mapping[str, tuple[set[str], MadeFor]] = {
    "checkpoints_copy_before_change": ({"checkpoints_equal_the_oracle"}, {**CALM, "rescale": 0.0, "copy": 0.3}),
    "checkpoints_all_parts": ({"checkpoints_equal_the_oracle"}, CALM),
    "checkpoints_restore_first": ({"views_equal_the_oracle", "nobody_is_left_waiting", "machines_do_not_fail"}, DENSE),
    "checkpoints_moved_keys_change": ({"checkpoints_equal_the_oracle"}, {**CALM, "rescale": 1.0}),
    "checkpoints_keys_stay": ({"nobody_is_left_waiting", "machines_do_not_fail", "checkpoints_equal_the_oracle"}, CALM),
    "checkpoints_given_up_when_torn": ({"nobody_is_left_waiting"}, {**DENSE, "crash": 0.1}),
    "checkpoints_dropped_have_changed": (
        {"checkpoints_equal_the_oracle"},
        {**CALM, "rescale": 0.0, "spoil": 0.3, "copy": 3.0},
    ),
    "checkpoints_damaged_is_skipped": (
        {"the_river_comes_to_rest", "nobody_is_left_waiting"},
        {**DENSE, "spoil": 0.3, "crash": 0.1},
    ),
    "checkpoints_not_within_a_segment": (
        {"machines_do_not_fail", "views_equal_the_oracle"},
        {**DENSE, **SEGMENTED, "rescale": 0.0, "spoil": 0.3, "crash": 0.1, "driver": 0.1, "checkpoint": 1.0},
    ),
    "checkpoints_kept_while_read": (
        {"files_stay_for_their_readers"},
        {**DENSE, "rescale": 0.0, "spoil": 0.0, "crash": 0.1, "outgrown": 1},
    ),
}
"""By rule: which checkers may see that it is off, and the event weights under which they do."""
FIRST_SEEDS = {
    "checkpoints_damaged_is_skipped": 63,
    "checkpoints_given_up_when_torn": 6,
    "checkpoints_restore_first": 11,
}
"""Seeds before these find nothing without the rule, and are played last."""


@pytest.mark.parametrize("views", [flowing, exchanged])
def test_what_comes_back_is_right_whatever_happens(
    views: Callable[[], tuple[DataflowPlan, ...]], request: pytest.FixtureRequest, database: duckdb.DuckDBPyConnection
) -> None:
    worlds = Worlds(views(), PARTIAL_SHARE, database)
    weights = {**DENSE, "crash": 0.06, "spoil": 0.2, "checkpoint": 1.5, "copy": 3.0, "outgrown": 1}
    counters = worlds.counted(repeat(weights, seeds(request.config)))
    seen = ["checkpoints", "checkpoints_forgotten", "rescales_live"]
    if views is flowing or request.config.getoption("--soak"):  # with exchanges, one seed in thirty restores
        seen += ["restored", "checkpoints_given_up"]
    assert [what for what in seen if not counters[what]] == []


def test_every_rule_is_tried() -> None:
    """checkpoints.whole_after_losses takes keys that are gone without a trace, with the worker that kept them:
    ``tests/coordinator/test_checkpoints.py``."""
    rules = [field.name for field in fields(Rules) if field.name.startswith("checkpoints_")]
    assert {*CAUGHT_BY, "checkpoints_whole_after_losses"} == set(rules)


@pytest.mark.parametrize("rule", CAUGHT_BY)
def test_without_a_rule_some_seed_finds_something_wrong(rule: str, database: duckdb.DuckDBPyConnection) -> None:
    checkers, weights = CAUGHT_BY[rule]
    assert Worlds(flowing(), PARTIAL_SHARE, database).first_wrong(rule, weights, FIRST_SEEDS.get(rule, 0)) in checkers
