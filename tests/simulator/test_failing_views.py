"""Views that fail in the simulator: each fails alone and everywhere, whatever else happens, and each rule about that is
needed; ``docs/internals/failures.md``."""

from collections.abc import Callable, Mapping
from dataclasses import fields
from itertools import cycle, islice

import duckdb
import pytest
from worlds_kit import BUSY, MadeFor, Worlds, exchanged, flowing, seeds

from upriver.plan.plan import DataflowPlan
from upriver.protocol.rules import Rules
from upriver.protocol.strategies import Strategy

PARTIAL_SHARE = 0.3
HARSH: MadeFor = {
    **BUSY,
    "crash": 0.03,
    "start": 5.0,
    "rescale": 0.5,
    "strategies": tuple(Strategy),
    "checkpoint": 0.5,
    "spoil": 0.1,
    "replan": 0.1,
    "driver": 0.01,
}
STANDING_BY: MadeFor = {**HARSH, "standbys": 1, "lease": 1.0, "cut": 0.02, "replan": 0.0}
CAUGHT_BY: Mapping[str, set[str]] = {
    "views_fail_alone": {"machines_do_not_fail"},
    "views_fail_everywhere": {"views_fail_everywhere_or_nowhere"},
    "views_failed_are_recorded": {"checkpoints_equal_the_oracle"},
}
FIRST_SEEDS = {"views_fail_everywhere": 52}
"""Seeds before these find nothing without the rule, and are played last."""


@pytest.mark.parametrize("views", [flowing, exchanged])
def test_a_view_fails_alone_whatever_happens(
    views: Callable[[], tuple[DataflowPlan, ...]], request: pytest.FixtureRequest, database: duckdb.DuckDBPyConnection
) -> None:
    worlds = Worlds(views(), PARTIAL_SHARE, database, failing_share=1.0)
    counters = worlds.counted(islice(cycle([HARSH, STANDING_BY]), seeds(request.config)))
    assert all(counters[what] for what in ("views_failed", "lookups_failed", "lookups", "checkpoints", "rescales_live"))


def test_every_rule_is_tried() -> None:
    """``views_fail_ahead`` is about a moment between two messages: ``tests/worker/test_failed_views.py``. Without
    ``views_fail_miscounted``, ``workers_faults_are_theirs`` hides what is wrong:
    ``tests/coordinator/test_coordinator.py``."""
    rules = [field.name for field in fields(Rules) if field.name.startswith("views_")]
    assert [*CAUGHT_BY, "views_fail_ahead", "views_fail_miscounted"] == rules


@pytest.mark.parametrize("rule", CAUGHT_BY)
def test_without_a_rule_some_seed_finds_something_wrong(rule: str, database: duckdb.DuckDBPyConnection) -> None:
    worlds = Worlds(flowing(), PARTIAL_SHARE, database, failing_share=1.0)
    assert worlds.first_wrong(rule, HARSH, FIRST_SEEDS.get(rule, 0)) in CAUGHT_BY[rule]
