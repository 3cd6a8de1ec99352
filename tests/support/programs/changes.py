"""A driver of its own, whose processes a test harms while a query reads the changes of its view.

usage: changes.py MASTER ROOT EVENTS SETTINGS SINKS. Follows the Parquet files in EVENTS. SETTINGS: of the app, as JSON.
SINKS: as ``harmed_query_kit.ChangesDriver`` makes it, in JSON: settings of the Spark session; of the
table that a query keeps equal to the view, the name, and the format, if there is one; and the topic of Kafka to which a
query publishes the changes, if any. The queries' checkpoints and a file for each batch lie beside ROOT, in ``*query``
and ``batches``.

Prints one JSON object for each line that it reads: first, unasked, where it is reached; for ``query``, when the
queries are stopped and begin again; for ``extra``, when one more logged view is declared, or dropped; for ``check
FILES``, when all of so many files are taken, the rows of the view, how many of them differ from Spark's own answer, how
many rows of the table differ from the view once it has had time, and why the queries have failed so far.
"""

import json
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException
from session import OUR_DAEMON, options_of, session

from upriver.app import App
from upriver.errors import UpriverError
from upriver.sinks import keep_equal, publish_to_kafka
from upriver.spark.frames import differing_rows

SCHEMA = "k long, v long"
SUMS = "SELECT k, count(*) AS n, sum(v) AS total FROM events GROUP BY k"
EXTRA = "SELECT k, max(v) AS most FROM events GROUP BY k"
WAIT_S = 120.0
REST_S_MAX = 240.0
START_S_MAX = 30.0
PAUSE_S_MIN, PAUSE_S_MAX = 1.0, 16.0
"""Seconds between two attempts of a query."""


class BatchFiles:
    """A sink with one file for each batch. A batch that is repeated must have the same rows."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(exist_ok=True)

    def __call__(self, rows: Any, batch: int) -> None:
        content = "".join(f"{json.dumps([*row[:5]])}\n" for row in rows.collect())
        path, hidden = self._folder / f"{batch:06d}", self._folder / f".{batch:06d}"
        if path.exists():
            if path.read_text() != content:
                raise AssertionError(f"batch {batch} has other rows than when it was read first")
            return
        hidden.write_text(content)
        hidden.rename(path)


class LastingQuery:
    """A query that begins again from its checkpoint whenever it ends. failures: why it has ended, each time.

    Spark gives the Python process of a source 10 s to start. So one query starts at a time, and pauses if it fails.
    """

    _starting = threading.Lock()

    def __init__(self, app: App, checkpoint: Path, sink: Callable[[Any, int], None]) -> None:
        self._app = app
        self._checkpoint = str(checkpoint)
        self._sink = sink
        self._query: Any = None
        self.failures: list[str] = []
        threading.Thread(target=self._run, name="query", daemon=True).start()

    def _run(self) -> None:
        pause_s, pause = PAUSE_S_MIN, threading.Event()
        while True:
            try:
                with self._starting:
                    self._start()
                self._query.awaitTermination()
                pause_s = PAUSE_S_MIN
            except (PySparkException, UpriverError) as error:
                self.failures.append(str(error))
                has_progressed = self._query is not None and self._query.lastProgress is not None
                pause_s = PAUSE_S_MIN if has_progressed else min(2 * pause_s, PAUSE_S_MAX)
                pause.wait(pause_s)

    def _start(self) -> None:
        """Start it, and wait until it has looked for a batch."""
        writer = self._app.changes("sums").writeStream.foreachBatch(self._sink)
        self._query = writer.option("checkpointLocation", self._checkpoint).start()
        give_up_at, pause = time.monotonic() + START_S_MAX, threading.Event()
        while self._query.isActive and self._query.lastProgress is None and time.monotonic() < give_up_at:
            pause.wait(0.3)

    def stop(self) -> None:
        if self._query is not None:
            self._query.stop()


def main(master: str, root: str, events: str, settings: str, given: str) -> None:
    sinks = json.loads(given)
    spark = session(master, {**OUR_DAEMON, "spark.sql.streaming.stopTimeout": "60s", **sinks["session"]})
    app = App(spark, root, ingest_tasks=1, **options_of(json.loads(settings)))
    app.table("events", spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(events), key="k")
    app.view("sums", SUMS, key="k", changes=True)
    app.start(wait=True)
    folder, has_extra = Path(root).parent, False
    queries = [LastingQuery(app, folder / "query", BatchFiles(folder / "batches"))]
    table, kind = sinks["table"], sinks["format"]
    if kind is not None:
        queries.append(LastingQuery(app, folder / "table-query", keep_equal(table, key="k", format=kind)))
    if (topic := sinks["topic"]) is not None:
        queries.append(LastingQuery(app, folder / "topic-query", publish_to_kafka(sinks["servers"], topic, key="k")))
    say({"address": app.address, "token": app.token})
    for line in sys.stdin:
        try:
            match line.split():
                case ["query"]:
                    for query in queries:
                        query.stop()
                    say({})
                case ["extra"]:
                    if has_extra:
                        app.drop_view("extra")
                    else:
                        app.view("extra", EXTRA, key="k", changes=True)
                    has_extra = not has_extra
                    say({"extra": has_extra})
                case "check", files:
                    checked = check(spark, app, events, int(files))
                    differing = 0 if kind is None else differing_of_table(spark, app, table, kind)
                    failures = [why for query in queries for why in query.failures]
                    say({**checked, "differing_of_table": differing, "failures": failures})
                case _:
                    break
        except (UpriverError, PySparkException) as error:
            say({"error": str(error)})
    app.stop()
    spark.stop()


def check(spark: Any, app: App, events: str, files: int) -> dict[str, Any]:
    while app.wait(WAIT_S) < files:
        pass
    spark.read.schema(SCHEMA).parquet(events).createOrReplaceTempView("events")
    rows = [list(row) for row in app.read("sums").collect()]
    return {"rows": rows, "differing": differing_rows(app.read("sums"), spark.sql(SUMS))}


def differing_of_table(spark: Any, app: App, table: str, kind: str) -> int:
    give_up_at, pause = time.monotonic() + REST_S_MAX, threading.Event()
    while differing := differing_rows(spark.read.format(kind).load(table), app.read("sums")):
        if time.monotonic() > give_up_at:
            break
        pause.wait(1.0)
    return differing


def say(what: dict[str, Any]) -> None:
    print(json.dumps(what), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
