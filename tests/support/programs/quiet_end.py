"""A user's program: an app on a stream and on one that fails, a lookup, and the end.

usage: quiet_end.py DIRECTORY [SIGNAL [MOMENT]]. SIGNAL: what ends it; it stops the app itself otherwise. MOMENT: when
the signal comes: ``start``, ``rescale``, or ``call``, amid one of the program's own calls of Spark; by default while
the program waits. Before a signal it says so on stderr. SIGINT goes to all of its processes, as from a terminal.
"""

import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from session import OUR_DAEMON, session

from upriver import App
from upriver.errors import IngestFailed

KEYS = 2_000
POLL_S = 0.01


def main(directory: Path, ended_by: str | None, moment: str | None) -> None:
    if not (directory / "events").exists():
        for table in ("events", "torn"):
            (directory / table).mkdir()
        events = pa.table({"k": [*range(KEYS), 1], "v": [2] * KEYS + [3]})
        pq.write_table(events, directory / "events" / "1.parquet")
        (directory / "torn" / "1.parquet").write_bytes(b"this is no Parquet file")

    def end() -> None:
        if ended_by is not None:
            print("the signal comes", file=sys.stderr, flush=True)
            number = getattr(signal, ended_by)
            os.killpg(0, number) if number == signal.SIGINT else os.kill(os.getpid(), number)

    spark = session("local[3]", {**OUR_DAEMON, "spark.log.level": "ERROR"})
    app = App(spark, directory / "lake", workers=1, vnodes=16, ingest_tasks=1)
    for table in ("events", "torn"):
        rows = spark.readStream.schema("k long, v long").parquet(str(directory / table))
        app.table(table, rows, key="k")
    app.view("sums", "SELECT k, sum(v) AS total FROM events GROUP BY k", key="k", partial=False)
    if moment == "start":
        as_soon_as(lambda: "upriver-start" in [thread.name for thread in threading.enumerate()], end)
    app.start()
    app.wait(view="sums")
    try:
        app.wait()
    except IngestFailed as error:
        print(type(error).__name__)
    print(app.lookup("sums", [1]).to_pylist(), flush=True)
    if moment == "rescale":
        for progress in app.rescale(2, keys_max=1).follow():
            if progress["state"] == "moving":
                end()
    elif moment == "call":
        spark.sparkContext.setJobGroup("own", "a long query")
        status = spark.sparkContext.statusTracker()
        as_soon_as(lambda: bool(status.getJobIdsForGroup("own")), end)
        spark.range(10**15).selectExpr("sum(id)").collect()
    elif ended_by is not None:
        end()
        threading.Event().wait()
    app.stop()


def as_soon_as(holds: Callable[[], bool], act: Callable[[], None]) -> None:
    """Act on another thread, once the condition holds."""

    def run() -> None:
        while not holds():
            threading.Event().wait(POLL_S)
        act()

    threading.Thread(target=run, daemon=True).start()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *(sys.argv[2:4] + [None] * 2)[:2])
