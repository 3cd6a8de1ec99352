"""Spark's side of the recovery benchmark, to be killed: ``python -m benchmarks.recovery_contestant TASK.json``.

A streaming count and sum by key over the files of a directory, with its state in RocksDB. It writes a line of JSON to
stdout for each micro-batch that is committed. A line on stdin has it take what is left, compare its state with Spark's
batch query over the same files, say so in a last line, and end. When stdin ends, it ends at once: so it does not
outlive who has started it; and Spark's JVM ends with it.
"""

import json
import os
import sys
import threading
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from benchmarks.contest import with_rows
from benchmarks.events import TABLE, TOTALS
from benchmarks.recovery_feed import stream_of
from benchmarks.rescale_spark import PROVIDER
from upriver.spark.frames import SparkSession, differing_rows
from upriver.spark.session import local_session

POLL_S = 0.05
"""Seconds between two looks at Spark's progress. Times are Spark's own."""
PROGRESS_BATCHES_MAX = 16
"""Micro-batches whose progress Spark keeps: more than can end between two looks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContestantTask:
    """files: directory of the feed. checkpoint: Spark's, absent or of a query that was killed. scratch: directory for
    what Spark writes besides, and a killed process leaves there. slots: for tasks."""

    files: str
    checkpoint: str
    scratch: str
    slots: int


def main() -> None:
    """Run the query of the command line's task until stdin says a word, or ends."""
    task = ContestantTask(**json.loads(Path(sys.argv[1]).read_text()))
    finish = threading.Event()
    threading.Thread(target=_listen, args=(finish,), daemon=True).start()
    conf: dict[str, str | int | bool] = {
        "spark.sql.streaming.stateStore.providerClass": PROVIDER,
        "spark.sql.streaming.numRecentProgressUpdates": PROGRESS_BATCHES_MAX,
        "spark.local.dir": task.scratch,
        "spark.driver.extraJavaOptions": f"-Djava.io.tmpdir={task.scratch}",
    }
    spark = local_session(0, ingest_slots=task.slots, app_name="upriver-bench", **conf)
    stream_of(spark, Path(task.files)).createOrReplaceTempView(TABLE)
    writer = spark.sql(TOTALS).writeStream.outputMode("update").format("noop")
    query = writer.option("checkpointLocation", task.checkpoint).start()
    told = -1
    while not finish.wait(POLL_S):
        told = _tell_progress(query, told)
    query.processAllAvailable()
    _tell_progress(query, told)
    query.stop()
    _say({"differing": _differing(spark, task)})
    spark.stop()


def _listen(finish: threading.Event) -> None:
    if os.read(0, 64):  # not sys.stdin, whose lock this thread would hold when the interpreter ends
        finish.set()
        os.read(0, 64)
    os._exit(1)


def _tell_progress(query: Any, told: int) -> int:
    """Say which micro-batches have been committed since the one that was last told of; returns the last one."""
    if (failure := query.exception()) is not None:
        raise failure
    for batch in with_rows(query.recentProgress):
        if batch.batchId > told:
            told = batch.batchId
            began_at = datetime.fromisoformat(batch.timestamp).timestamp()
            took_s = batch.durationMs["triggerExecution"] / 1e3
            _say({"batch": told, "began_at": began_at, "committed_at": began_at + took_s})
    return told


def _differing(spark: SparkSession, task: ContestantTask) -> int:
    """Rows that the query's state or Spark's batch query has and the other has not."""
    spark.read.parquet(task.files).createOrReplaceTempView("rows_put")
    state = spark.read.format("statestore").load(task.checkpoint)
    ours = state.selectExpr("key.k AS k", "value.count AS n", "value.sum AS total")
    return differing_rows(ours, spark.sql(TOTALS.replace(TABLE, "rows_put")))


def _say(what: dict[str, Any]) -> None:
    print(json.dumps(what), flush=True)


if __name__ == "__main__":
    main()
