"""The demo's views over real flights of three days, while keys move. The demo itself is run by `make demo`."""

from random import Random

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from duckdb_kit import by_duckdb
from query_kit import same_rows
from state_kit import plain_rows

from simulator.dataflow_world import DataflowWorld
from upriver import demo_data
from upriver.demo_views import TABLE_KEYS, VIEWS
from upriver.engine.expressions import Evaluator
from upriver.plan.plan import DataflowPlan, TableSpec
from upriver.sql.local_typer import LocalTyper
from upriver.sql.queries import declare_view

EPOCHS = 3
IN_THE_BLIZZARD = {"snow", "rain", "fog", "wind", "fair"}


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> dict[str, pa.Table]:
    """From Parquet, as the demo has them; but of February, and of its flights those of the three days of a blizzard."""
    paths = demo_data.write_tables(tmp_path_factory.mktemp("tables"))
    tables = {name: pq.read_table(path) for name, path in paths.items()}
    flights, weather = demo_data.flights(), tables["weather"]
    days = pc.and_(pc.equal(flights["month"], 2), pc.is_in(flights["day"], pa.array([7, 8, 9], pa.int32())))
    return tables | {"flights": flights.filter(days), "weather": weather.filter(pc.equal(weather["month"], 2))}


def planned(name: str, tables: dict[str, pa.Table]) -> tuple[DataflowPlan, dict[str, TableSpec]]:
    specs = {table: TableSpec(table, rows.schema, TABLE_KEYS[table]) for table, rows in tables.items()}
    return declare_view(name, VIEWS[name].sql, VIEWS[name].key, specs, {}, LocalTyper(specs)), specs


@pytest.mark.parametrize("name", VIEWS)
def test_a_view_of_the_demo_is_what_duckdb_says_while_keys_move(name: str, tables: dict[str, pa.Table]) -> None:
    plan, specs = planned(name, tables)
    world = DataflowWorld(plan, specs, Evaluator(), Random(1))
    for epoch in range(EPOCHS):  # some flights come before what they are joined with, some after it
        world.run_epoch({table: rows[epoch::EPOCHS].combine_chunks().to_batches()[0] for table, rows in tables.items()})
    found = world.scan()
    wanted = by_duckdb(VIEWS[name].sql, **tables)
    assert found.num_rows > 0
    assert same_rows(plain_rows(found), plain_rows(wanted.cast(found.schema)))


def test_flights_meet_planes_and_weather_and_airports(tables: dict[str, pa.Table]) -> None:
    model_weather = by_duckdb(VIEWS["model_weather"].sql, **tables)
    assert set(model_weather["conditions"].to_pylist()) == IN_THE_BLIZZARD
    assert 1000 < pc.sum(model_weather["flights"]).as_py() < tables["flights"].num_rows  # not all planes are known
    routes = by_duckdb(VIEWS["routes"].sql, **tables)
    assert pc.sum(routes["flights"]).as_py() == tables["flights"].num_rows
    unknown = routes.filter(pc.is_null(routes["destination"]))["dest"].unique().to_pylist()
    assert set(unknown) <= {"BQN", "PSE", "SJU", "STT"}  # in the Caribbean, and not in the table of airports
    assert unknown


def test_only_what_no_index_can_serve_goes_from_worker_to_worker(tables: dict[str, pa.Table]) -> None:
    depths = {name: planned(name, tables)[0].depth for name in VIEWS}
    assert depths == {"aircraft": 0, "carrier_days": 0, "routes": 1, "model_weather": 2}
