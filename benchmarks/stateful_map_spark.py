"""Spark's own Python function with state, timed: transformWithStateInPandas, with its state in RocksDB.

One streaming query takes micro-batches that grow until its time is used up. What counts is its best one, by Spark's own
report: from the start of the trigger until the commit. The first one, in which Python is started and code is compiled,
does not count.
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.contest import with_rows
from benchmarks.rescale_spark import PROVIDER
from upriver.spark.frames import SparkSession

NEEDED = "protobuf"
GROWTH = 4
"""Times that a micro-batch is as long as the one before."""
STATE = "totals"
COLUMNS = "n BIGINT, total BIGINT"


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Rows, and the seconds that Spark took for them."""

    rows: int
    seconds: float

    @property
    def rows_per_s(self) -> float:
        return self.rows / self.seconds


def why_not() -> str | None:
    """Why Spark cannot run it here; ``None`` if it can."""
    if find_spec("google") is None or find_spec("google.protobuf") is None:
        return f"Spark's transformWithStateInPandas needs the package {NEEDED}, which is not installed"
    return None


class Totals:
    """A count and a sum by key: the processor that Spark calls for each key of a micro-batch."""

    def init(self, handle: Any) -> None:
        self._totals = handle.getValueState(STATE, COLUMNS)

    def handleInputRows(self, key: Any, rows: Iterator[Any], timers: Any) -> Iterator[Any]:
        n, total = self._totals.get() or (0, 0)
        for frame in rows:
            n, total = n + len(frame), total + int(frame["v"].sum())
        self._totals.update((n, total))
        yield frame.__class__({"k": [key[0]], "n": [n], "total": [total]})  # pandas, which has no types

    def close(self) -> None: ...


class SparkTotals:
    """The query over the files of a directory. A context manager: it runs inside."""

    def __init__(self, spark: SparkSession, directory: Path, partitions: int) -> None:
        """directory: empty or absent. partitions: of the shuffle."""
        self._spark = spark.newSession()
        self._spark.conf.set("spark.sql.streaming.stateStore.providerClass", PROVIDER)
        self._spark.conf.set("spark.sql.shuffle.partitions", partitions)
        self._files, self._checkpoint = directory / "events", directory / "checkpoint"
        self._files.mkdir(parents=True)
        self._staged = directory / "staged.parquet"

    def __enter__(self) -> "SparkTotals":
        rows = self._spark.readStream.schema("k BIGINT, v BIGINT").parquet(str(self._files))
        totals = rows.groupBy("k").transformWithStateInPandas(
            statefulProcessor=Totals(),  # type: ignore[arg-type]
            outputStructType=f"k BIGINT, {COLUMNS}",
            outputMode="Update",
            timeMode="None",
        )
        writer = totals.writeStream.outputMode("update").format("noop")
        self._query = writer.option("checkpointLocation", str(self._checkpoint)).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._query.stop()

    def take(self, rows: pa.Table) -> MicroBatch:
        """Feed the rows as one micro-batch, and wait until it is committed."""
        number = len(os.listdir(self._files))
        pq.write_table(rows, self._staged)
        os.rename(self._staged, self._files / f"{number:06d}.parquet")
        self._query.processAllAvailable()
        last = with_rows(self._query.recentProgress)[-1]
        return MicroBatch(rows.num_rows, last.durationMs["triggerExecution"] / 1000)

    def totals(self) -> Mapping[int, tuple[int, int]]:
        """What the state holds: of each key the count and the sum."""
        state = self._spark.read.format("statestore").option("stateVarName", STATE).load(str(self._checkpoint))
        rows = state.selectExpr("key.k AS k", "value.n AS n", "value.total AS total").toArrow()
        return {k: (n, total) for k, n, total in zip(*(column.to_pylist() for column in rows.columns), strict=True)}
