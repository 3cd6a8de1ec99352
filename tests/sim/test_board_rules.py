"""Boards in the simulator: nothing wrong is ever found on one, and each rule of docs/design/boards.md is needed."""

from collections.abc import Mapping
from dataclasses import fields

import duckdb
import pytest
from worlds_kit import BUSY, MadeFor, Worlds, flowing, seeds

from simulator.weather import PLACES_MAX
from upriver.protocol.rules import Rules
from upriver.protocol.strategies import Strategy

PARTIAL_SHARE = 0.5
READ: MadeFor = {
    **BUSY,
    "publish": 1.0,
    "sizes": (3, 8),
    "board": 20.0,
    "pace": (6.0,) * PLACES_MAX,
    "crash": 0.0,
    "rescale": 0.0,
    "hear": 6.0,
}
BY_ICADD, ANEW_EACH_TIME = (Strategy.ICADD,), (Strategy.LEARNER, Strategy.RESTART)
MOVING: MadeFor = {**READ, "sizes": (8, 20), "rescale": 3.0, "move": 4.0, "keys_max": 5, "strategies": BY_ICADD}
ANEW: MadeFor = {**READ, "rescale": 1.0, "crash": 0.02, "start": 5.0, "strategies": ANEW_EACH_TIME}
WRONG = {
    "keys_are_as_of_one_epoch",
    "lookups_equal_the_oracle",
    "lookups_never_go_back",
    "lookups_wait_for_the_replay",
}
CAUGHT_BY: Mapping[str, MadeFor] = {
    "b1_changed_keys_are_taken_down": READ,
    "b2_moving_keys_are_taken_down": MOVING,
    "b3_as_of_an_epochs_end": READ,
    "b4_closed_with_its_share": ANEW,
}
"""By rule: weather in which some checker sees that it is off."""
OTHERS = ["b5_filled_keys_are_taken_down"]
"""What it takes to see that these are off, chance brings about too seldom: tests/machines/test_posting.py.
B6 is a rule for the shell."""


def test_every_rule_is_tried() -> None:
    assert [*CAUGHT_BY, *OTHERS] == [field.name for field in fields(Rules) if field.name[0] == "b"]


def test_nothing_wrong_is_found_on_a_board_whatever_happens(
    request: pytest.FixtureRequest, database: duckdb.DuckDBPyConnection
) -> None:
    worlds = Worlds(flowing(), PARTIAL_SHARE, database)
    counters = worlds.counted((READ, MOVING, ANEW)[seed % 3] for seed in range(seeds(request.config)))
    assert all(counters[what] for what in ("boards", "found_on_board", "rescales_live"))


@pytest.mark.parametrize("rule", CAUGHT_BY)
def test_without_a_rule_something_wrong_is_found(rule: str, database: duckdb.DuckDBPyConnection) -> None:
    assert Worlds(flowing(), PARTIAL_SHARE, database).first_wrong(rule, CAUGHT_BY[rule]) in WRONG
