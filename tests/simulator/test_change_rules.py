"""The change log in the simulator: nothing is wrong with all rules on, and each rule of docs/internals/changes.md is
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

LOGGED_SHARE = 0.7

DENSE: MadeFor = {
    **BUSY,
    "crash": 0.03,
    "start": 5.0,
    "rescale": 0.3,
    "strategies": tuple(Strategy),
    "checkpoint": 0.5,
    "copy": 3.0,
    "spoil": 0.1,
    "driver": 0.02,
}
REPLANNED: MadeFor = {**DENSE, "replan": 0.5, "store": 1.0}
SLOWLY_COMMITTED: MadeFor = {**DENSE, "publish": 3.0, "hear": 1.0, "store": 0.3}
CALM: MadeFor = {**DENSE, "crash": 0.0, "spoil": 0.0, "driver": 0.0}
SEGMENTED: MadeFor = {
    **DENSE,
    "compact": 6.0,
    "sizes": (0, 1),
    "lookup": 0.3,
    "pace": (6.0,) * PLACES_MAX,
    "read": 3.0,
    "rescale": 0.0,
    "checkpoint": 0.0,
    "crash": 0.1,
}
WRONG = {"changes_add_up_to_the_view", "machines_do_not_fail", "versions_go_on"}
CAUGHT_BY: Mapping[str, tuple[set[str], MadeFor]] = {
    "changes_all_parts": (WRONG, CALM),
    "changes_keys_stay": (WRONG, {**CALM, "rescale": 1.0}),
    "changes_given_up_when_torn": ({*WRONG, "nobody_is_left_waiting"}, {**DENSE, "crash": 0.1}),
    "changes_kept_until_logged": (WRONG, {**DENSE, "spoil": 0.3}),
    "changes_settled_before_views_change": (WRONG, REPLANNED),
    "changes_noted_from_the_cut": (WRONG, SLOWLY_COMMITTED),
    "changes_not_within_a_segment": (WRONG, {**SEGMENTED, "spoil": 0.5, "store": 1.0}),
}
"""By rule: which checkers may see that it is off, and the event weights under which they do."""


@pytest.mark.parametrize("views", [flowing, exchanged])
def test_the_log_is_right_whatever_happens(
    views: Callable[[], tuple[DataflowPlan, ...]], request: pytest.FixtureRequest, database: duckdb.DuckDBPyConnection
) -> None:
    worlds = Worlds(views(), 0.2, database, logged_share=LOGGED_SHARE)
    counters = worlds.counted(repeat(DENSE, seeds(request.config)))
    counters += worlds.counted(repeat({**SEGMENTED, "checkpoint": 0.3}, seeds(request.config)))
    counters += worlds.counted(repeat(REPLANNED, seeds(request.config)))
    counters += worlds.counted(repeat({**SEGMENTED, "replan": 0.5, "store": 1.0}, seeds(request.config)))
    seen = ["changes_logged", "rescales_live", "checkpoints", "segments", "views_changed"]
    assert [what for what in seen if not counters[what]] == []


@pytest.mark.parametrize("rule", CAUGHT_BY)
def test_without_a_rule_some_seed_finds_something_wrong(rule: str, database: duckdb.DuckDBPyConnection) -> None:
    checkers, weights = CAUGHT_BY[rule]
    assert Worlds(flowing(), 0.2, database, logged_share=LOGGED_SHARE).first_wrong(rule, weights) in checkers


def test_every_rule_is_tried() -> None:
    assert set(CAUGHT_BY) == {field.name for field in fields(Rules) if field.name.startswith("changes_")}
