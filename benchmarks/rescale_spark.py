"""Spark's own way to rescale a stateful query, timed: stop it, rewrite its state, start it again.

The query is the benchmarks' view, a count and a sum by key, with its state in RocksDB: Spark's default state store
refuses to be repartitioned. What is timed is kind to Spark: the query is idle when it is stopped (in the middle of a
micro-batch, repartitioning would be refused), its next rows wait in place, and a small query went the whole way before,
so that the code is loaded and compiled.
"""

import os
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.contest import with_rows
from benchmarks.events import SCHEMA, TABLE, TOTALS
from upriver.errors import ClusterError
from upriver.spark.frames import SparkSession

PROVIDER = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
WARM_UP_KEYS = 1_000
"""Keys of the query that goes the whole way first."""
PARTS = ("stop_ms", "repartition_ms", "restart_ms", "first_batch_ms")

KeyArray = npt.NDArray[np.int64]


def measure_spark(spark: SparkSession, directory: Path, keys: int, partitions: tuple[int, int]) -> dict[str, Any]:
    """Rescale a query with so many keys from the first number of partitions to the second, and ``back``.

    directory: empty or absent. Returns for each way, in ms, its parts and ``pause_ms``: from when the query was idle,
    its last micro-batch committed, until it has committed a micro-batch of new rows.
    Raises ClusterError if Spark's state is not what was fed.
    """
    _both_ways(spark, directory / "warm-up", min(keys, WARM_UP_KEYS), partitions)
    there, back = _both_ways(spark, directory / "measured", keys, partitions)
    return there | {"back": back}


def _both_ways(
    spark: SparkSession, directory: Path, keys: int, partitions: tuple[int, int]
) -> tuple[dict[str, float], dict[str, float]]:
    before, after = partitions
    rng = np.random.default_rng(1)
    query = StatefulQuery(spark, directory, before)
    try:
        query.put(np.arange(keys))
        query.run()
        news = (rng.integers(0, keys, min(keys, WARM_UP_KEYS)) for _ in range(3))
        query.put(next(news))
        query.run()  # so that the last micro-batch before is an ordinary one
        there, back = query.rescale(after, next(news)), query.rescale(before, next(news))
        query.check(keys)
    finally:
        query.stop()
    return there, back


class StatefulQuery:
    """A streaming count and sum by key over the files of a directory, with its state in RocksDB."""

    def __init__(self, spark: SparkSession, directory: Path, partitions: int) -> None:
        self._spark = spark.newSession()
        self._spark.conf.set("spark.sql.streaming.stateStore.providerClass", PROVIDER)
        self._spark.conf.set("spark.sql.shuffle.partitions", partitions)
        self._files, self._checkpoint = directory / "events", directory / "checkpoint"
        self._files.mkdir(parents=True)
        self._staged = directory / "staged.parquet"
        self._fed = np.zeros(0, np.int64)
        self._puts = 0
        self._query = self._start()

    def put(self, keys: KeyArray) -> None:
        """Feed a row of value 1 for each of ``keys``."""
        self._stage(keys)
        self._put_staged()

    def run(self) -> None:
        """Until all that was put is committed."""
        self._query.processAllAvailable()

    def rescale(self, partitions: int, keys: KeyArray) -> dict[str, float]:
        """Stop, repartition, start again, and take a row for each of ``keys``; the parts and their sum, in ms."""
        self._stage(keys)
        marks = [time.time()]
        self._query.stop()
        marks.append(time.time())
        self._put_staged()
        # Not public in Python, though it is in the JVM; ``spark.streams`` does not have it.
        self._spark._streamingCheckpointManager.repartition(str(self._checkpoint), partitions)
        marks.append(time.time())
        self._query = self._start()
        marks.append(time.time())
        self.run()
        first = with_rows(self._query.recentProgress)[0]
        marks.append(_committed_at(first))
        found = first.stateOperators[0].numShufflePartitions
        if found != partitions:
            raise ClusterError(f"Spark was asked for {partitions} partitions of state and has {found}")
        parts = {part: round(spent * 1e3, 1) for part, spent in zip(PARTS, np.diff(marks).tolist(), strict=True)}
        return {"pause_ms": round((marks[-1] - marks[0]) * 1e3, 1)} | parts

    def check(self, keys: int) -> None:
        """Raise ClusterError unless the state holds ``keys`` keys and every row that was fed."""
        state = self._spark.read.format("statestore").load(str(self._checkpoint))
        found = state.selectExpr("count(*) AS keys", "sum(value.count) AS n", "sum(value.sum) AS total").first()
        if found is None or tuple(found) != (keys, len(self._fed), len(self._fed)):
            raise ClusterError(f"Spark's state is {found} after {len(self._fed)} rows of {keys} keys")

    def stop(self) -> None:
        self._query.stop()

    def _stage(self, keys: KeyArray) -> None:
        """Write the rows beside the source: what is put while the clock runs is one rename."""
        self._fed = np.concatenate([self._fed, keys])
        pq.write_table(pa.table([keys, np.ones(len(keys), np.int64)], schema=SCHEMA), self._staged)

    def _put_staged(self) -> None:
        os.rename(self._staged, self._files / f"{self._puts:06d}.parquet")
        self._puts += 1

    def _start(self) -> Any:
        rows = self._spark.readStream.schema("k bigint, v bigint").parquet(str(self._files))
        rows.createOrReplaceTempView(TABLE)
        writer = self._spark.sql(TOTALS).writeStream.outputMode("update").format("noop")
        return writer.option("checkpointLocation", str(self._checkpoint)).start()


def _committed_at(batch: Any) -> float:
    """When Spark had committed a micro-batch, by its own report, in seconds of the epoch."""
    took_ms: int = batch.durationMs["triggerExecution"]
    return datetime.fromisoformat(batch.timestamp).timestamp() + took_ms / 1000
