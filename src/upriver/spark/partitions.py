"""Rows in the partitions that they name; over Spark Connect, too."""

import numpy as np
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from upriver.hashing import murmur_finished, murmur_mixed

_SHUFFLE_SEED = 42
"""Of the hash by which Spark chooses a row's partition."""


def partitioned_by(rows: DataFrame, count: int, partition: Column) -> DataFrame:
    """The rows in ``count`` partitions, each in the one that its ``partition`` names, an INT from 0."""
    if hasattr(rows, "repartitionById"):
        return rows.repartitionById(count, partition)
    hashed = F.element_at(F.array(*map(F.lit, _numbers_by_partition(count))), partition + 1)
    return rows.repartition(count, hashed)


def _numbers_by_partition(count: int) -> list[int]:
    """For each partition a number that Spark 4.0 puts there, by its hash; since 4.1 a partition has a number itself.
    That none of so many falls into some partition has a chance of ``count`` times e to the power of -32."""
    numbers = np.arange(count * 32, dtype=np.uint32)
    hashes = murmur_finished(murmur_mixed(numbers, np.uint32(_SHUFFLE_SEED)), np.uint32(4)).view(np.int32)
    partitions, firsts = np.unique(hashes.astype(np.int64) % count, return_index=True)
    assert len(partitions) == count
    return [int(first) for first in firsts]
