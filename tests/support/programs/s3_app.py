"""A driver of its own on a root in S3, for tests that kill it.

usage: s3_app.py ROOT EVENTS JARS. The settings of the store are in the environment; JARS is the directory of Spark's
connector. Follows the Parquet files in EVENTS, one a batch. Says ``up``, and then answers lines of input: ``finish``
waits for all rows, rescales to two workers, compares the view with Spark's own answer, and prints one JSON object.
"""

import json
import sys
from pathlib import Path

from session import session

from upriver.app import App
from upriver.spark.frames import differing_rows

SQL = "SELECT k, count(*) AS n, sum(v) AS total FROM events GROUP BY k"
SCHEMA = "k long, v long"
WAIT_S = 200.0


def main(root: str, events: str, jars: str) -> None:
    spark = session("local[4]", {"spark.jars": ",".join(map(str, Path(jars).glob("*.jar")))})
    with App(spark, root, workers=1) as app:
        rows = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(events)
        app.table("events", rows, key="k")
        app.view("sums", SQL, key="k", partial=False)
        app.start(timeout=WAIT_S)
        print("up", flush=True)
        sys.stdin.readline()
        epoch = app.wait(WAIT_S)
        app.rescale(2).wait(WAIT_S)
        spark.read.schema(SCHEMA).parquet(events).createOrReplaceTempView("events")
        differing = differing_rows(app.read("sums"), spark.sql(SQL))
        workers = len(app.status()["workers"])
    spark.stop()
    print(json.dumps({"epoch": epoch, "differing": differing, "workers": workers}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
