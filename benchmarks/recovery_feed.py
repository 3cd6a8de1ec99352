"""The rows of the recovery benchmark: files of seeded rows, put one by one where a stream of Spark finds them.

Every file becomes one micro-batch, and so one epoch: file 1 epoch 1, and so on. So a reader that knows the seed knows
what any view of the rows is as of any epoch.
"""

import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.events import SCHEMA, VALUES_MAX
from upriver.spark.frames import DataFrame, SparkSession

BASE_ROWS_MAX = 1_000_000
"""Rows of a file of those that bring the view its keys."""
OLDEST_S = 1_700_000_000
"""What the modification times of the files count from: a stream takes the oldest first, and each must have its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedSpec:
    """keys: from 0 up to but without it; the first files have a row for each. epoch_rows: of every later file, of
    random keys."""

    keys: int
    epoch_rows: int
    seed: int = 1

    @property
    def base_files(self) -> int:
        """The files that bring the view its keys."""
        return -(-self.keys // BASE_ROWS_MAX)

    def rows(self, file: int) -> pa.Table:
        """The rows of one file, from 1 up; they depend on the seed and the file's number alone."""
        rng = np.random.default_rng([self.seed, file])
        if file <= self.base_files:
            keys = np.arange((file - 1) * BASE_ROWS_MAX, min(file * BASE_ROWS_MAX, self.keys))
        else:
            keys = rng.integers(0, self.keys, self.epoch_rows)
        return pa.table([keys, rng.integers(-VALUES_MAX, VALUES_MAX, len(keys))], schema=SCHEMA)


class RecoveryFeed:
    """Puts one file after the other into a directory. ``put`` may be called by any thread."""

    def __init__(self, directory: Path, spec: FeedSpec) -> None:
        """directory: absent."""
        self.spec = spec
        self.directory = directory
        self.put_at: list[float] = []
        """Of each file, when it was in place, in seconds of the epoch."""
        self._lock = threading.Lock()
        directory.mkdir(parents=True)

    def put_base(self) -> None:
        """Put the files that bring the view its keys."""
        for _ in range(self.spec.base_files):
            self.put()

    def put(self) -> int:
        """Put the next file; returns its number."""
        with self._lock:
            number = len(self.put_at) + 1
            hidden = self.directory / f".{number}"  # Spark passes over names that start with a dot
            pq.write_table(self.spec.rows(number), hidden)
            os.utime(hidden, (OLDEST_S + number, OLDEST_S + number))
            hidden.rename(self.directory / f"{number:06d}.parquet")
            self.put_at.append(time.time())
            return number

    def stream(self, spark: SparkSession) -> DataFrame:
        """The rows as a stream, a file to a micro-batch."""
        return stream_of(spark, self.directory)

    def rows(self, spark: SparkSession) -> DataFrame:
        """The rows of all files that were put."""
        return spark.read.parquet(str(self.directory))


def stream_of(spark: SparkSession, directory: Path) -> DataFrame:
    """The rows of a feed's directory as a stream, a file to a micro-batch."""
    rows = spark.readStream.schema("k bigint, v bigint").option("maxFilesPerTrigger", 1)
    return rows.parquet(str(directory))
