"""A user's program: an app on a stream and on one that fails, a lookup, and the end.

usage: quiet_end.py DIRECTORY [SIGNAL]. SIGNAL: what ends it; it stops the app itself otherwise.
"""

import os
import signal
import sys
import threading
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from session import OUR_DAEMON, session

from upriver import App
from upriver.errors import IngestFailed


def main(directory: Path, ended_by: str | None) -> None:
    if not (directory / "lake").exists():
        for table in ("events", "torn"):
            (directory / table).mkdir()
        pq.write_table(pa.table({"k": [1, 1], "v": [2, 3]}), directory / "events" / "1.parquet")
        (directory / "torn" / "1.parquet").write_bytes(b"this is no Parquet file")
    spark = session("local[2]", OUR_DAEMON)
    app = App(spark, directory / "lake", workers=1, vnodes=16, ingest_tasks=1)
    for table in ("events", "torn"):
        rows = spark.readStream.schema("k long, v long").parquet(str(directory / table))
        app.table(table, rows, key="k")
    app.view("sums", "SELECT k, sum(v) AS total FROM events GROUP BY k", key="k", partial=False)
    app.start()
    app.wait(view="sums")
    try:
        app.wait()
    except IngestFailed as error:
        print(type(error).__name__)
    print(app.lookup("sums", [1]).to_pylist(), flush=True)
    if ended_by is not None:
        os.kill(os.getpid(), getattr(signal, ended_by))
        threading.Event().wait()
    app.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else None)
