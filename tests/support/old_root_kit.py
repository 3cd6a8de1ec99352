"""An app that old versions of Upriver have run, too. ``tests/support/old_roots`` has the roots that they left.

Made in a checkout of the version's commit (0.1: 7774f89, 0.2: dee46b9), with its ``src`` on the path::

    python old_root_kit.py DIRECTORY

and packed from ``DIRECTORY/lake``, with the last record of a driver and without Hadoop's checksums. The stream's files
are not in it: Spark reads only files that it has not seen.
"""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from upriver import app as upriver_app
from upriver.app import App
from upriver.spark.session import local_session

ON_REQUEST: dict[str, Any] = {"checkpoint_interval_s": None}
if hasattr(upriver_app, "Checkpoints"):
    ON_REQUEST = {"checkpoints": upriver_app.Checkpoints(interval_s=None)}
"""No checkpoints, as the version spells it."""
OLD_ROOTS = Path(__file__).with_name("old_roots")
VNODES, FILES, FILE_ROWS, KEYS = 4, 3, 12, 5
NEWEST_S = 1_795_800_000
"""Seconds since 1970: a few hours after all files that the old roots have read. Spark forgets, and reads again, files
that are a week older than the newest."""
EVENTS = pa.schema([("k", pa.string()), ("g", pa.int64()), ("n", pa.int64())])
USERS = pa.schema([("k", pa.string()), ("town", pa.string()), ("seq", pa.int64()), ("op", pa.string())])
PRICES = [(number, number * 1.5) for number in range(3)]
STREAMS = {
    "events": (EVENTS, "k string, g long, n long"),
    "users": (USERS, "k string, town string, seq long, op string"),
}
KEY = {"counts": "k", "found": "g", "living": "k", "priced": "k", "totals": "k"}
"""Of each view."""
VIEWS = {
    "counts": "SELECT k, count(*) AS n, sum(n) AS total FROM events GROUP BY k",
    "found": "SELECT g, k, n FROM events",
    "living": "SELECT k, town FROM users",
    "priced": "SELECT e.k, e.n, p.price FROM events e JOIN prices p ON e.g = p.g",
}
PARTIAL = "found"
EXPECTED = {
    **VIEWS,
    "living": "SELECT k, town FROM (SELECT k, max_by(town, seq) AS town, max_by(op, seq) AS op FROM users GROUP BY k) "
    "WHERE op = 'U'",
    "totals": "SELECT k, sum(n) OVER (PARTITION BY k ORDER BY n) AS total FROM events",
}
"""Each view as Spark says it, of the streams' rows."""


def rows_of(table: str, file: int) -> list[tuple[Any, ...]]:
    """Of a file of a stream."""
    return list(_events(file) if table == "events" else _users(file))


def _events(file: int) -> Iterator[tuple[Any, ...]]:
    for number in range(file * FILE_ROWS, (file + 1) * FILE_ROWS):
        yield f"key {number % KEYS}", number % 4, number


def _users(file: int) -> Iterator[tuple[Any, ...]]:
    for number in range(file * FILE_ROWS, (file + 1) * FILE_ROWS):
        yield f"key {number * 3 % KEYS}", f"town {number % 7}", number, "UUD"[number % 3]


def write_file(directory: Path, table: str, file: int) -> None:
    schema, _ = STREAMS[table]
    columns = [
        pa.array(column, field.type)
        for column, field in zip(zip(*rows_of(table, file), strict=True), schema, strict=True)
    ]
    (directory / table).mkdir(exist_ok=True)
    hidden = directory / table / f".{file}"
    pq.write_table(pa.table(columns, schema=schema), hidden)
    os.utime(hidden, (NEWEST_S + file,) * 2)  # the stream reads them in this order
    hidden.rename(directory / table / f"{file}.parquet")


def declared_app(spark: Any, root: Path, directory: Path, **settings: Any) -> App:
    """The app, not started, in whatever version of Upriver is on the path. directory: of the streams' files."""
    app = App(spark, root, workers=2, vnodes=VNODES, ingest_tasks=1, **ON_REQUEST, **settings)

    def running_total(key: str, row: Any, state: int | None) -> tuple[list[tuple[int]], int]:
        total = (state or 0) + row.n
        return [(total,)], total

    def stream(table: str) -> Any:
        read = spark.readStream.schema(STREAMS[table][1]).option("maxFilesPerTrigger", 1)
        return read.parquet(str(directory / table))

    app.table("events", stream("events"), key="k")
    app.table("users", stream("users"), key="k", primary_key="k", order_by="seq", deletes="op = 'D'")
    app.table("prices", spark.createDataFrame(PRICES, "g long, price double"), key="g")
    for view, sql in VIEWS.items():
        app.view(view, sql, key=KEY[view], partial=view == PARTIAL)
    app.stateful_map("totals", "events", "k", running_total, "total long", order_by=["n"])
    return app


def main(directory: Path) -> None:
    """Make a root, with a checkpoint amid its epochs."""
    spark = local_session(2)
    for file in range(FILES):
        for table in STREAMS:
            write_file(directory, table, file)
        with declared_app(spark, directory / "lake", directory) as app:
            app.start()
            app.wait(timeout=120)
            if file == 1:
                app.checkpoint()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
