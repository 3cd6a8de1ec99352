"""Real operators that fail on a row, and joins whose condition could, amid rescales, lost workers and reports that come
again: each view fails alone, at the epoch whose rows it cannot be computed from, and all others are right."""

from collections.abc import Sequence

import duckdb
import pytest
from worlds_kit import BUSY, MadeFor, Worlds

from simulator.campaign import compiled_views
from simulator.event_weights import PLACES_MAX
from simulator.tables import EXCHANGED, OPERATORS, UNSURE, VIEWS, ViewSpec
from upriver.protocol.strategies import Strategy

HARSH: MadeFor = {
    **BUSY,
    "pace": (0.5, 6.0) * (PLACES_MAX // 2),
    "rescale": 1.0,
    "strategies": tuple(Strategy),
    "keys_max": 1,
    "crash": 0.01,
    "start": 5.0,
    "echo": 1.0,
    "nonsense": 0.01,
}
GROUPS = [tuple(OPERATORS)[first::5] for first in range(5)]


def worlds(views: Sequence[ViewSpec], database: duckdb.DuckDBPyConnection) -> Worlds:
    return Worlds(compiled_views(views), 0.0, database)


@pytest.mark.parametrize("names", GROUPS, ids="-".join)
def test_a_view_whose_operator_fails_fails_alone(names: Sequence[str], database: duckdb.DuckDBPyConnection) -> None:
    broken = [ViewSpec(name, OPERATORS[name], ("page",)) for name in names]
    counters = worlds([*broken, VIEWS[0], EXCHANGED[0]], database).counted([HARSH])
    assert counters["views_failed"]
    assert counters["lookups"]


def test_joins_whose_condition_could_fail_are_right(database: duckdb.DuckDBPyConnection) -> None:
    counters = worlds(UNSURE, database).counted([HARSH])
    assert all(counters[what] for what in ("lookups", "rescales_live", "echoes", "nonsense"))
