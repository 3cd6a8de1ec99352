"""A driver of its own, whose processes a test harms.

usage: failures.py MASTER ROOT EVENTS. Follows the Parquet files in EVENTS. Prints one JSON object for each line that it
reads: first, unasked, where it is reached; for ``check FILES``, when all of so many files are taken, how many keys the
view has and how many rows of it differ from Spark's own answer.
"""

import json
import os
import sys

import pyspark

os.environ["PYSPARK_PYTHON"] = sys.executable
os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
os.environ.setdefault("SPARK_HOME", os.path.dirname(pyspark.__file__))

from pyspark.sql import SparkSession

from upriver.app import App
from upriver.spark.compare import differing_rows

SQL = "SELECT k, count(*) AS n, sum(v) AS total FROM events GROUP BY k"
SCHEMA = "k long, v long"
WAIT_S = 120.0


def main(master: str, root: str, events: str) -> None:
    spark = (
        SparkSession.builder.master(master)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.python.daemon.module", "upriver.spark.daemon")
        .config("spark.python.task.killTimeout", "1h")  # a stopped worker is to come back, not to be killed
        .getOrCreate()
    )
    app = App(spark, root, workers=2, ingest_tasks=1)
    app.table("events", spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(events), key="k")
    app.view("sums", SQL, key="k", partial=False)
    app.start()
    print(json.dumps({"address": app.address, "token": app.token}), flush=True)
    for line in sys.stdin:
        command, _, files = line.partition(" ")
        if command != "check":
            break
        while app.wait(WAIT_S) < int(files):
            pass
        spark.read.schema(SCHEMA).parquet(events).createOrReplaceTempView("events")
        differing = differing_rows(app.read("sums"), spark.sql(SQL))
        print(json.dumps({"keys": app.read("sums").count(), "differing": differing}), flush=True)
    app.stop()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
