"""Spark's Python workers are forked from a process that has loaded what a worker of ours needs."""

import gc
import sys
from collections.abc import Iterable, Iterator
from typing import Any
from zipimport import zipimporter

import pyarrow as pa
import pytest

FEW_OBJECTS = 20_000
FEW_ARCHIVES = 4
"""Those of the search path, and no package in any of them."""
OF_ITS_OWN = "UPRIVER_TEST_DAEMON"
"""In the environment of these tasks alone."""


def loaded_before(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Whether the task's process had loaded what a worker is made of before it ran anything, how many objects are
    looked through when garbage is collected after the task, and how many archives were when it began."""
    for _ in batches:
        found = "upriver.spark.host" in sys.modules and "upriver.spark.daemon" not in sys.modules
        looked_through = len(gc.get_objects())
        archives = sum(isinstance(finder, zipimporter) for finder in sys.path_importer_cache.values())
        yield pa.RecordBatch.from_pydict(
            {"loaded": [found], "looked_through": [looked_through], "archives": [archives]}
        )


@pytest.fixture(scope="module")
def seen(spark: Any) -> Any:
    """By the first task of a process: Spark gives the processes of one environment to no task of another, and what
    earlier tasks have loaded is not what is asked for here."""
    schema = "loaded boolean, looked_through long, archives long"
    environment = spark.sparkContext.environment
    environment[OF_ITS_OWN] = "1"
    try:
        (row,) = spark.range(0, 1, 1, 1).mapInArrow(loaded_before, schema).collect()
    finally:
        del environment[OF_ITS_OWN]
    return row


@pytest.mark.spark
def test_a_task_finds_all_loaded(seen: Any) -> None:
    assert seen["loaded"]


@pytest.mark.spark
def test_what_is_loaded_is_not_looked_through_for_garbage_after_each_task(seen: Any) -> None:
    assert seen["looked_through"] < FEW_OBJECTS < gc.get_freeze_count() + len(gc.get_objects())


@pytest.mark.spark
def test_no_package_of_an_archive_is_looked_through_when_a_task_begins(seen: Any) -> None:
    assert seen["archives"] <= FEW_ARCHIVES
