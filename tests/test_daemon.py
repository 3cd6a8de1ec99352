"""Spark's Python workers are forked from a process that has loaded what a worker of ours needs."""

import gc
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
import pytest

FEW_OBJECTS = 20_000


def loaded_before(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Whether the task's process had loaded what a worker is made of before it ran anything, and how many objects are
    looked through when garbage is collected after the task."""
    for _ in batches:
        found = "upriver.spark.task" in sys.modules and "upriver.spark.daemon" not in sys.modules
        looked_through = len(gc.get_objects())
        yield pa.RecordBatch.from_pydict({"loaded": [found], "looked_through": [looked_through]})


@pytest.mark.spark
def test_a_task_finds_all_loaded(spark: Any) -> None:
    (row,) = spark.range(0, 1, 1, 1).mapInArrow(loaded_before, "loaded boolean, looked_through long").collect()
    assert row["loaded"]


@pytest.mark.spark
def test_what_is_loaded_is_not_looked_through_for_garbage_after_each_task(spark: Any) -> None:
    (row,) = spark.range(0, 1, 1, 1).mapInArrow(loaded_before, "loaded boolean, looked_through long").collect()
    assert row["looked_through"] < FEW_OBJECTS < gc.get_freeze_count() + len(gc.get_objects())
