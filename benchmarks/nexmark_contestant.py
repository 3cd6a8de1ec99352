"""One side of one NEXMark query, in a process of its own: ``python -m benchmarks.nexmark_contestant TASK.json``.

Both sides read the same files, one of each table to a micro-batch, with the same session settings. Upriver's view is
compared, row by row, with a batch query of Spark over the same files, after the clock has stopped. What Spark's
streaming query puts out is thrown away while the clock runs, and compared in the warm-up, where it is written to files.
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

import pyarrow.parquet as pq

from benchmarks.contest import with_rows
from benchmarks.nexmark_queries import EVENT_TIME, QUERIES, Refused, Streaming
from benchmarks.process_tree import available_cores
from upriver.app import App
from upriver.errors import UpriverError
from upriver.spark.frames import DataFrame, SparkSession, differing_rows
from upriver.spark.session import local_session

RUN_S_MAX = 900.0
"""Seconds that one side may take for all rows of one query."""
PROGRESS_BATCHES_MAX = 100_000
"""Micro-batches whose progress Spark keeps; the first one's is needed at the end."""
VIEW = "answer"
_PROVIDERS = "org.apache.spark.sql.execution.streaming.state"
STATE_STORES: Mapping[str, Mapping[str, str]] = {
    "default": {},
    "rocksdb": {
        "spark.sql.streaming.stateStore.providerClass": f"{_PROVIDERS}.RocksDBStateStoreProvider",
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
        "spark.sql.streaming.join.stateFormatVersion": "3",
    },
}
"""Where Spark's streaming queries may keep their state, with the settings that were found fastest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NexmarkTask:
    """What a side is to do. data: directory of the events. work: empty directory for all that it writes. result: file
    for its outcome. cores: processors that its process tree is confined to. warm_up_files: files of each table that it
    takes the whole way once before the run that counts, at least one. state_store: of Spark's side."""

    side: str
    query: str
    data: str
    work: str
    result: str
    workers: int
    cores: int
    warm_up_files: int
    state_store: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """How a side did. Times are seconds of the epoch: the first micro-batch's start, and when all rows were reflected.

    events: rows of the query's tables. rows: of the answer that was compared. differing: those that it or Spark's
    batch query has and the other has not.
    """

    started_at: float
    reflected_at: float
    events: int
    rows: int
    differing: int


Outcome = Ran | Refused


def main() -> None:
    """Run the task that the command line names; its outcome is written as JSON."""
    task = NexmarkTask(**json.loads(Path(sys.argv[1]).read_text()))
    os.sched_setaffinity(0, available_cores()[: task.cores])
    spark = _session(task)
    Path(task.result).write_text(json.dumps(asdict(SIDES[task.side](spark, task))))


def _session(task: NexmarkTask) -> SparkSession:
    workers = task.workers if task.side == "upriver" else 0
    conf: dict[str, str | int] = {"spark.sql.streaming.numRecentProgressUpdates": PROGRESS_BATCHES_MAX}
    conf.update(STATE_STORES[task.state_store])
    return local_session(workers, ingest_slots=task.cores, app_name="upriver-bench", **conf)


def read_outcome(path: Path) -> Outcome:
    """What :func:`main` has written."""
    fields = json.loads(path.read_text())
    return Refused(**fields) if "why" in fields else Ran(**fields)


def run_upriver(spark: SparkSession, task: NexmarkTask) -> Outcome:
    """The query as a view of an app. That the app refuses it, or fails, is an outcome too."""
    try:
        _keep_view(spark, _warm_up(task))
        return _keep_view(spark, task)
    except UpriverError as error:
        return Refused(f"{type(error).__name__}: {str(error).splitlines()[0]}")


def _keep_view(spark: SparkSession, task: NexmarkTask) -> Ran:
    query = QUERIES[task.query]
    with App(spark, f"{task.work}/lake", workers=task.workers) as app:
        for table, source in query.sources.items():
            app.table(table, _stream(spark, task, table), key=source.key)
        app.view(VIEW, query.sql, key=query.key, partial=False)
        app.start()
        app.wait(RUN_S_MAX)
        reflected_at = time.time()
        started_at = min(_started_at(stream) for stream in spark.streams.active)
        rows, differing = _compare(app.read(VIEW), _expected(spark, task))
    return Ran(started_at=started_at, reflected_at=reflected_at, events=_events(task), rows=rows, differing=differing)


def run_spark(spark: SparkSession, task: NexmarkTask) -> Outcome:
    """The query as one of Spark's streaming queries; one that Spark does not refuse."""
    how = QUERIES[task.query].streaming
    assert isinstance(how, Streaming)
    rows, differing = _check_streaming(spark, _warm_up(task), how)
    writer = _streaming(spark, task, how).writeStream.format("noop")
    stream = writer.option("checkpointLocation", f"{task.work}/checkpoint").start()
    stream.processAllAvailable()
    reflected_at = time.time()
    stream.stop()
    started_at = _started_at(stream)
    return Ran(started_at=started_at, reflected_at=reflected_at, events=_events(task), rows=rows, differing=differing)


SIDES: Mapping[str, Callable[[SparkSession, NexmarkTask], Outcome]] = {"upriver": run_upriver, "spark": run_spark}


def _check_streaming(spark: SparkSession, task: NexmarkTask, how: Streaming) -> tuple[int, int]:
    """Run Spark's streaming query into files; how many rows they have, and how many differ from its batch query."""
    answer = f"{task.work}/answer"
    writer = _streaming(spark, task, how).writeStream.format("parquet")
    stream = writer.option("checkpointLocation", f"{task.work}/checkpoint").start(answer)
    stream.processAllAvailable()
    stream.stop()
    expected = _expected(spark, task)
    if how.window_s is not None:
        watermark = stream.recentProgress[-1].eventTime["watermark"]
        expected = expected.where(f"starttime + INTERVAL '{how.window_s}' SECOND <= TIMESTAMP '{watermark}'")
    return _compare(spark.read.parquet(answer), expected)


def _streaming(spark: SparkSession, task: NexmarkTask, how: Streaming) -> DataFrame:
    query = QUERIES[task.query]
    for table in query.sources:
        rows = _stream(spark, task, table)
        if how.window_s is not None:
            rows = rows.withWatermark(EVENT_TIME, "0 seconds")
        rows.createOrReplaceTempView(table)
    return spark.sql(how.sql or query.sql)


def _stream(spark: SparkSession, task: NexmarkTask, table: str) -> DataFrame:
    path = f"{task.data}/{table}"
    files = spark.readStream.schema(spark.read.parquet(path).schema).option("maxFilesPerTrigger", 1)
    source = QUERIES[task.query].sources[table]
    rows = files.parquet(path).select(*source.columns)
    return rows if source.where is None else rows.where(source.where)


def _expected(spark: SparkSession, task: NexmarkTask) -> DataFrame:
    """What Spark's batch query gives for all rows."""
    query = QUERIES[task.query]
    for table in query.sources:
        spark.read.parquet(f"{task.data}/{table}").createOrReplaceTempView(table)
    return spark.sql(query.sql)


def _compare(answer: DataFrame, expected: DataFrame) -> tuple[int, int]:
    answer, expected = answer.persist(), expected.persist()
    found = answer.count(), differing_rows(answer, expected)
    answer.unpersist()
    expected.unpersist()
    return found


def _events(task: NexmarkTask) -> int:
    paths = (path for table in QUERIES[task.query].sources for path in (Path(task.data) / table).glob("*.parquet"))
    return sum(pq.read_metadata(path).num_rows for path in paths)


def _started_at(stream: Any) -> float:
    """When the first micro-batch began, in seconds of the epoch."""
    first = with_rows(stream.recentProgress)[0]
    return datetime.fromisoformat(first.timestamp).timestamp()


def _warm_up(task: NexmarkTask) -> NexmarkTask:
    """The same task over the first few files of each table, so that what is measured finds compiled code."""
    work = Path(task.work) / "warm-up"
    for table in QUERIES[task.query].sources:
        (work / "data" / table).mkdir(parents=True)
        for path in sorted((Path(task.data) / table).glob("*.parquet"))[: task.warm_up_files]:
            (work / "data" / table / path.name).symlink_to(path.resolve())
    return replace(task, data=str(work / "data"), work=str(work))


if __name__ == "__main__":
    main()
