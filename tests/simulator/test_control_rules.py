"""Control records in the simulator: whenever the driver dies, the next one begins as clients expect, and each rule of
docs/internals/membership.md is needed."""

from collections.abc import Mapping
from dataclasses import fields
from itertools import repeat

import duckdb
import pytest
from worlds_kit import BUSY, MadeFor, Worlds, flowing, seeds

from upriver.protocol.rules import Rules
from upriver.protocol.strategies import Strategy

SLOW: MadeFor = {
    **BUSY,
    "start": 5.0,
    "rescale": 1.0,
    "abort": 0.3,
    "strategies": tuple(Strategy),
    "driver": 0.1,
    "record": 0.2,
}
"""Drivers die, and the lake takes records slowly."""
CAUGHT_BY: Mapping[str, set[str]] = {
    "control_record_before_begin": {"another_driver_knows_what_clients_have_heard"},
    "control_record_before_end": {"another_driver_knows_what_clients_have_heard"},
}
"""By rule: which checkers may see that it is off."""


def test_the_next_driver_begins_as_clients_expect_whatever_happens(
    request: pytest.FixtureRequest, database: duckdb.DuckDBPyConnection
) -> None:
    worlds = Worlds(flowing(), 0.2, database)
    weights = {**SLOW, "record": 1.0, "spoil": 0.1, "crash": 0.02, "checkpoint": 0.3}
    counters = worlds.counted(repeat(weights, seeds(request.config)))
    assert all(counters[what] for what in ("drivers", "records", "rescales_live", "rescales_aborted"))


def test_every_rule_is_tried() -> None:
    assert list(CAUGHT_BY) == [field.name for field in fields(Rules) if field.name.startswith("control_")]


@pytest.mark.parametrize("rule", CAUGHT_BY)
def test_without_a_rule_some_seed_finds_something_wrong(rule: str, database: duckdb.DuckDBPyConnection) -> None:
    assert Worlds(flowing(), 0.0, database).first_wrong(rule, SLOW) in CAUGHT_BY[rule]
