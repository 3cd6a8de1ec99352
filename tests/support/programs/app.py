"""A driver of its own, for tests that kill it or give it another master.

usage: app.py MASTER ROOT EVENTS. Follows the Parquet files in EVENTS; prints ``epoch N`` for each epoch that has
ended. When all are taken it compares the view with Spark's own answer, prints one JSON object, and stops.
"""

import json
import sys
import threading

from session import OUR_DAEMON, session

from upriver.app import App
from upriver.spark.frames import differing_rows

SQL = "SELECT k, count(*) AS n, sum(v) AS total FROM events GROUP BY k"
SCHEMA = "k long, v long"
WAIT_S, POLL_S = 200.0, 0.005


def main(master: str, root: str, events: str) -> None:
    spark = session(master, OUR_DAEMON if master.startswith("local[") else {})  # executors: as Spark has it by default
    app = App(spark, root, workers=2)
    app.table("events", spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(events), key="k")
    app.view("sums", SQL, key="k")
    app.start()
    waiting = threading.Thread(target=app.wait, args=(WAIT_S,))
    waiting.start()
    told = 0
    while waiting.is_alive() or told < app.status()["epoch"]:
        ended = app.status()["epoch"]
        for epoch in range(told + 1, ended + 1):
            print(f"epoch {epoch}", flush=True)
        told = ended
        waiting.join(POLL_S)
    spark.read.schema(SCHEMA).parquet(events).createOrReplaceTempView("events")
    result = {
        "rows": app.read("sums").groupBy().sum("n").collect()[0][0],
        "differing": differing_rows(app.read("sums"), spark.sql(SQL)),
    }
    app.stop()
    spark.stop()
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
