"""One side of the graph benchmark, in a process of its own: ``python -m benchmarks.graph_contestant TASK.json``.

Both sides read the same files, in micro-batches of the same size, through two functions with a state for each key.
Each compares what its second function gives, row by row, with a batch query of Spark, after the clock has stopped.
"""

import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.contest import with_rows
from benchmarks.contestant import RUN_S_MAX, ContestOutcome, started_at
from benchmarks.events import TABLE, VIEW
from benchmarks.graph_model import FACTOR, FIRST, expected_sql, functions, send_by_value
from benchmarks.process_tree import available_cores
from benchmarks.rescale_spark import PROVIDER
from upriver.app import App
from upriver.plan.plan import Per
from upriver.spark.frames import DataFrame, SparkSession, differing_rows
from upriver.spark.session import local_session

SPARK = "spark"
SIDES = (*(str(per) for per in Per), SPARK)
"""Upriver by each form of function, and Spark's two transformWithState, one behind the other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphTask:
    """What a side is to do. side: one of ``SIDES``. data: directory of Parquet files. work: empty directory for all
    that it writes. result: its outcome's file. keys: of each region. cores: that its processes are confined to."""

    side: str
    data: str
    work: str
    result: str
    keys: int
    workers: int
    cores: int


def main() -> None:
    """Run the task that the command line names; its outcome is written as JSON."""
    task = GraphTask(**json.loads(Path(sys.argv[1]).read_text()))
    os.sched_setaffinity(0, available_cores()[: task.cores])
    workers = 0 if task.side == SPARK else task.workers
    spark = local_session(workers, ingest_slots=task.cores, app_name="upriver-bench")
    outcome = _spark(spark, task) if task.side == SPARK else _upriver(spark, task)
    Path(task.result).write_text(json.dumps(asdict(outcome)))


def _upriver(spark: SparkSession, task: GraphTask) -> ContestOutcome:
    send_by_value()
    first, second = functions(task.keys, task.side)
    totals = "n BIGINT, total BIGINT"
    with App(spark, f"{task.work}/lake", workers=task.workers) as app:
        app.table(TABLE, _stream(spark, task), key="k")
        app.stateful_map(
            FIRST,
            source=TABLE,
            key="k",
            func=first,
            schema="j BIGINT, v BIGINT",
            state="n BIGINT",
            per=task.side,
            keep=0,
        )
        app.stateful_map(VIEW, source=FIRST, key="j", func=second, schema=totals, state=totals, per=task.side, keep=1)
        app.start()
        app.wait(RUN_S_MAX)
        reflected_at = time.time()
        (query,) = spark.streams.active
        return _outcome(spark, task, query.recentProgress, reflected_at, app.read(VIEW))


class Sent:
    """The first function as Spark's processor: a count for each key, and each row on by another key."""

    def __init__(self, keys: int) -> None:
        self._keys = keys

    def init(self, handle: Any) -> None:
        self._count = handle.getValueState("count", "n BIGINT")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timers: Any) -> Iterator[Any]:
        (n,) = self._count.get() or (0,)
        for frame in rows:
            n += len(frame)
            yield frame.__class__({"j": frame["k"] * FACTOR % self._keys, "v": frame["v"]})
        self._count.update((n,))

    def close(self) -> None: ...


class Added:
    """The second function: a count and a sum."""

    def init(self, handle: Any) -> None:
        self._totals = handle.getValueState("totals", "n BIGINT, total BIGINT")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timers: Any) -> Iterator[Any]:
        n, total = self._totals.get() or (0, 0)
        for frame in rows:
            n, total = n + len(frame), total + int(frame["v"].sum())
        self._totals.update((n, total))
        yield frame.__class__({"j": [key[0]], "n": [n], "total": [total]})

    def close(self) -> None: ...


def _spark(spark: SparkSession, task: GraphTask) -> ContestOutcome:
    spark.conf.set("spark.sql.streaming.stateStore.providerClass", PROVIDER)
    spark.conf.set("spark.sql.shuffle.partitions", task.cores)
    sent = (
        _stream(spark, task)
        .groupBy("k")
        .transformWithStateInPandas(
            statefulProcessor=Sent(task.keys),  # type: ignore[arg-type]
            outputStructType="j BIGINT, v BIGINT",
            outputMode="Append",
            timeMode="None",
        )
    )
    added = sent.groupBy("j").transformWithStateInPandas(
        statefulProcessor=Added(),  # type: ignore[arg-type]
        outputStructType="j BIGINT, n BIGINT, total BIGINT",
        outputMode="Append",
        timeMode="None",
    )
    checkpoint = f"{task.work}/checkpoint"
    query = added.writeStream.outputMode("append").format("noop").option("checkpointLocation", checkpoint).start()
    query.processAllAvailable()
    reflected_at = time.time()
    query.stop()
    state = spark.read.format("statestore").option("stateVarName", "totals").option("operatorId", 0).load(checkpoint)
    view = state.selectExpr("key.j AS j", "value.n AS n", "value.total AS total")
    return _outcome(spark, task, query.recentProgress, reflected_at, view)


def _stream(spark: SparkSession, task: GraphTask) -> DataFrame:
    schema = spark.read.parquet(task.data).schema
    return spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(task.data)


def _outcome(
    spark: SparkSession, task: GraphTask, progress: Any, reflected_at: float, view: DataFrame
) -> ContestOutcome:
    batches = with_rows(progress)
    spark.read.parquet(task.data).createOrReplaceTempView(TABLE)
    view, expected = view.persist(), spark.sql(expected_sql(task.keys)).persist()
    return ContestOutcome(
        first_batch_at=started_at(batches[0]),
        last_batch_at=started_at(batches[-1]) + batches[-1].durationMs["triggerExecution"] / 1000,
        reflected_at=reflected_at,
        batches=len(batches),
        view_rows=view.count(),
        differing=differing_rows(view, expected),
    )


if __name__ == "__main__":
    main()
