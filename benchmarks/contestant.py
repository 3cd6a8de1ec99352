"""One side of the throughput benchmark, in a process of its own: ``python -m benchmarks.contestant TASK.json``.

Both sides read the same files, in micro-batches of the same size, with the same session settings, and keep the same
view. Each compares its own view, row by row, with a batch query of Spark over the same files, after the clock has
stopped.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from benchmarks.contest import with_rows
from benchmarks.events import TABLE, TOTALS, VIEW
from benchmarks.process_tree import available_cores
from upriver.app import App
from upriver.spark.frames import DataFrame, SparkSession, differing_rows
from upriver.spark.session import local_session

RUN_S_MAX = 3600.0
"""Seconds that one side may take for all rows."""
SOURCES = ("files", "rows")
"""Where rows come from: the columns of Parquet files as they are, or beside a column that Spark computes."""
PROGRESS_BATCHES_MAX = 100_000
"""Micro-batches whose progress Spark keeps; the first one's is needed at the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContestTask:
    """What a side is to do. data: directory of Parquet files. work: empty directory for all that it writes.
    result: file for its outcome. cores: processors that its process tree is confined to. warm_up_files: files that it
    takes the whole way once before the run that counts. source: one of ``SOURCES``."""

    side: str
    data: str
    work: str
    result: str
    workers: int
    cores: int
    files_per_trigger: int
    warm_up_files: int
    source: str = "files"


@dataclass(frozen=True, slots=True, kw_only=True)
class ContestOutcome:
    """How a side did. Times are seconds of the epoch: the first micro-batch's start, the last one's end, and when the
    view held all rows. differing: rows that the view or Spark's batch query has and the other has not."""

    first_batch_at: float
    last_batch_at: float
    reflected_at: float
    batches: int
    view_rows: int
    differing: int


def main() -> None:
    """Run the task that the command line names, after a warm-up; its outcome is written as JSON."""
    task = ContestTask(**json.loads(Path(sys.argv[1]).read_text()))
    os.sched_setaffinity(0, available_cores()[: task.cores])
    spark = _session(task.workers if task.side == "upriver" else 0, task.cores)
    run = SIDES[task.side]
    if task.warm_up_files:
        run(spark, _warm_up(task), lambda *_: None)
    outcomes: list[ContestOutcome] = []
    run(spark, task, lambda *ended: outcomes.append(_outcome(spark, task, *ended)))
    Path(task.result).write_text(json.dumps(asdict(outcomes[0])))


def _warm_up(task: ContestTask) -> ContestTask:
    """The same task over the first few of the files, so that what is measured finds compiled code on either side."""
    work = Path(task.work) / "warm-up"
    data = work / "events"
    data.mkdir(parents=True)
    for path in sorted(Path(task.data).glob("*.parquet"))[: task.warm_up_files]:
        (data / path.name).symlink_to(path.resolve())
    return replace(task, data=str(data), work=str(work))


Ended = Callable[[Any, float, DataFrame], None]
"""Told when a view holds all rows, while it can be read: the query's progress, the time, the view."""


def _upriver(spark: SparkSession, task: ContestTask, ended: Ended) -> None:
    with App(spark, f"{task.work}/lake", workers=task.workers) as app:
        app.table(TABLE, _stream(spark, task), key="k")
        app.view(VIEW, TOTALS, key="k", partial=False)
        app.start()
        app.wait(RUN_S_MAX)
        reflected_at = time.time()
        (query,) = spark.streams.active
        ended(query.recentProgress, reflected_at, app.read(VIEW))


def _spark(spark: SparkSession, task: ContestTask, ended: Ended) -> None:
    _stream(spark, task).createOrReplaceTempView(TABLE)
    checkpoint = f"{task.work}/checkpoint"
    writer = spark.sql(TOTALS).writeStream.outputMode("update").format("noop")
    query = writer.option("checkpointLocation", checkpoint).start()
    query.processAllAvailable()
    reflected_at = time.time()
    query.stop()
    state = spark.read.format("statestore").load(checkpoint)
    ended(query.recentProgress, reflected_at, state.selectExpr("key.k AS k", "value.count AS n", "value.sum AS total"))


SIDES: Mapping[str, Callable[[SparkSession, ContestTask, Ended], None]] = {"upriver": _upriver, "spark": _spark}


def _session(workers: int, cores: int) -> SparkSession:
    return local_session(
        workers,
        ingest_slots=cores,
        app_name="upriver-bench",
        **{"spark.sql.streaming.numRecentProgressUpdates": PROGRESS_BATCHES_MAX},
    )


def _stream(spark: SparkSession, task: ContestTask) -> DataFrame:
    schema = spark.read.parquet(task.data).schema
    files = spark.readStream.schema(schema).option("maxFilesPerTrigger", task.files_per_trigger).parquet(task.data)
    return files if task.source == "files" else files.withColumn("v", files.v.bitwiseXOR(0))


def _outcome(
    spark: SparkSession, task: ContestTask, progress: Any, reflected_at: float, view: DataFrame
) -> ContestOutcome:
    batches = with_rows(progress)
    spark.read.parquet(task.data).createOrReplaceTempView("all_events")
    view, expected = view.persist(), spark.sql(TOTALS.replace(TABLE, "all_events")).persist()
    last = batches[-1]
    return ContestOutcome(
        first_batch_at=started_at(batches[0]),
        last_batch_at=started_at(last) + last.durationMs["triggerExecution"] / 1000,
        reflected_at=reflected_at,
        batches=len(batches),
        view_rows=view.count(),
        differing=differing_rows(view, expected),
    )


def started_at(batch: Any) -> float:
    return datetime.fromisoformat(batch.timestamp).timestamp()


if __name__ == "__main__":
    main()
