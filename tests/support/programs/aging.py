"""A driver of its own, of many small epochs, for tests that kill it while it compacts and collects.

usage: aging.py MASTER ROOT EVENTS [SETTINGS]. Follows the Parquet files in EVENTS by three tables: one that grows, one
with a primary key, one with retention. SETTINGS: of the app, as JSON. When all rows are in the views, and nothing is
left to compact or to collect, it compares all views with Spark's own answers, prints one JSON object, and stops.
"""

import json
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from session import options_of, session

from upriver.app import App
from upriver.errors import CorruptFile
from upriver.lake.lake import Lake
from upriver.lake.spans import FAN_IN
from upriver.spark.frames import differing_rows

SCHEMA = "k long, n long"
LAST_N = 300
"""Rows of the table ``recent`` remain while their ``n`` is less than so much below the highest."""
COUNTS = "SELECT k, count(*) AS n, sum(n) AS total FROM {table} GROUP BY k"
SIZES = "SELECT n, count(*) AS keys FROM (SELECT k, count(*) AS n FROM events GROUP BY k) AS counts GROUP BY n"
NEWEST = "SELECT k, n % 7 AS seventh FROM users"
VIEWS = {
    "full": (COUNTS.format(table="events"), "k", False),
    "partial": (COUNTS.format(table="events"), "k", True),
    "cone": (SIZES, "n", True),
    "newest": (NEWEST, "k", False),
    "last": (COUNTS.format(table="recent"), "k", True),
}
"""By name: the SQL, the key, and whether the view is partial."""
TABLES = {
    "events": "SELECT * FROM rows",
    "users": "SELECT k, max(n) AS n FROM rows GROUP BY k",
    "recent": f"SELECT * FROM rows WHERE n > (SELECT max(n) FROM rows) - {LAST_N}",
}
"""By name: the rows that each table has in the end, out of all rows."""
WAIT_S, POLL_S = 200.0, 0.02


def main(master: str, root: str, events: str, settings: str = "{}") -> None:
    spark = session(master)
    app = App(spark, root, ingest_tasks=1, **{"workers": 2, "vnodes": 16, **options_of(json.loads(settings))})
    app.table("events", rows_of(spark, events), key="k")
    app.table("users", rows_of(spark, events), primary_key="k", order_by="n")
    app.table("recent", rows_of(spark, events), key="k", retain=("n", LAST_N))
    for view, (sql, key, partial) in VIEWS.items():
        app.view(view, sql, key=key, partial=partial)
    app.start()
    epochs = len(TABLES) * len(list(Path(events).glob("*.parquet")))
    give_up_at = time.monotonic() + WAIT_S
    while app.wait(WAIT_S) < epochs or not is_tidy(Lake(root)):
        if time.monotonic() > give_up_at:
            print(app.status(), flush=True)
            sys.exit(1)
        threading.Event().wait(POLL_S)
    differing = check(spark, app, events)
    told = app.status()["lake"]
    app.stop()
    spark.stop()
    print(json.dumps({"epochs": epochs, "differing": differing, "lake": told}), flush=True)


def rows_of(spark: SparkSession, events: str) -> Any:
    return spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(events)


def is_tidy(lake: Lake) -> bool:
    """Whether no manifest is left of the epochs that make segments, and no run that nothing names."""
    manifests, last = list(lake.numbers("epochs")), lake.last_epoch()
    try:
        epochs = [lake.epochs(span) for span in lake.spans(last)]
    except CorruptFile:  # it is being collected
        return False
    named = {run.path for each in epochs for runs in each.runs.values() for run in runs}
    return len(manifests) == last % FAN_IN and set(lake.run_paths()) == named


def check(spark: SparkSession, app: App, events: str) -> dict[str, int]:
    """By view: how many rows differ from Spark's own answer."""
    spark.read.schema(SCHEMA).parquet(events).createOrReplaceTempView("rows")
    for table, sql in TABLES.items():
        spark.sql(sql).createOrReplaceTempView(table)
    differing = {}
    for view, (sql, key, partial) in VIEWS.items():
        expected = spark.sql(sql)
        differing[view] = differing_rows(app.read(view), expected)
        if partial:
            rows = [row.asDict() for row in expected.collect()]
            found = app.lookup(view, sorted(row[key] for row in rows), timeout=WAIT_S).to_pylist()
            differing[view] += (Counter(map(repr, found)) - Counter(map(repr, rows))).total()
            differing[view] += (Counter(map(repr, rows)) - Counter(map(repr, found))).total()
    return differing


if __name__ == "__main__":
    main(*sys.argv[1:])
