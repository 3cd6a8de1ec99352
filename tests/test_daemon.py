"""Spark's Python workers are forked from a process that has loaded what a worker of ours needs."""

import sys
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
import pytest


def loaded_before(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Whether the task's process had loaded what a worker is made of before it ran anything."""
    for batch in batches:
        found = "upriver.spark.task" in sys.modules and "upriver.spark.daemon" not in sys.modules
        yield pa.RecordBatch.from_pydict({"loaded": [found] * batch.num_rows})


@pytest.mark.spark
def test_a_task_finds_all_loaded(spark: Any) -> None:
    loaded = spark.range(1).mapInArrow(loaded_before, "loaded boolean").collect()
    assert [row["loaded"] for row in loaded] == [True]
