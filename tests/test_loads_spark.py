"""Ingest of DataFrames that are not streaming: cut into epochs, each row exactly once, wherever it is taken up."""

import os
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from ingest_kit import (
    Drive,
    Events,
    Source,
    assert_exactly_once,
    driving,
    epochs,
    events,
    in_time,
    no_time,
    rows_of,
)

from upriver.errors import IngestFailed, WaitTimeout
from upriver.shell.lake import Manifest


@pytest.fixture
def drive(tmp_path: Path) -> Iterator[Drive]:
    with driving(tmp_path / "lake") as drive:
        yield drive


@pytest.fixture
def source(spark: Any, tmp_path: Path) -> Source:
    return Source(spark, tmp_path / "source")


def frame(spark: Any, rows: Events) -> Any:
    return spark.createDataFrame(rows, "k string, n long").repartition(3)


@pytest.mark.spark
def test_a_load_is_cut_into_epochs(spark: Any, drive: Drive) -> None:
    driver = drive()
    driver.load(frame(spark, [(f"key {n}", n) for n in range(1000)]), epoch_rows=300).drain(in_time)
    assert [(m.query, m.batch) for m in epochs(driver.lake)] == [("load", batch) for batch in range(4)]
    sizes = [len(rows_of(driver.lake, manifest)) for manifest in epochs(driver.lake)]
    assert sum(sizes) == 1000
    assert max(sizes) < 400
    keys = [{k for k, _ in rows_of(driver.lake, manifest)} for manifest in epochs(driver.lake)]
    assert not set.intersection(*keys)


@pytest.mark.spark
def test_a_load_of_nothing_is_an_empty_epoch(spark: Any, drive: Drive) -> None:
    driver = drive()
    driver.load(frame(spark, [])).drain(in_time)
    assert_exactly_once(driver.lake, [])
    assert driver.lake.last_epoch() == 1


@pytest.mark.spark
@pytest.mark.parametrize("published", [1, 2])
def test_a_load_is_taken_up_where_it_was(spark: Any, drive: Drive, published: int) -> None:
    rows = frame(spark, events(0, 400))

    def crash(manifest: Manifest) -> None:
        if manifest.epoch == published:
            raise SystemError("the driver dies here")

    driver = drive(crash)
    with pytest.raises(IngestFailed, match="the driver dies here"):
        driver.load(rows).drain(in_time)
    assert driver.lake.last_epoch() == published

    for _ in range(2):  # a third start has nothing left to do
        driver = drive()
        driver.load(rows, epoch_rows=10).drain(in_time)  # the slices stay as they were
        assert [manifest.batch for manifest in epochs(driver.lake)] == [0, 1, 2, 3]
        assert_exactly_once(driver.lake, events(0, 400))


@pytest.mark.spark
@pytest.mark.parametrize("changed", [events(0, 201), events(0, 199), [*events(0, 199), ("new", 199)]])
def test_a_load_of_other_rows_is_refused(spark: Any, drive: Drive, changed: Events) -> None:
    drive().load(frame(spark, events(0, 200))).drain(in_time)
    driver = drive()
    with pytest.raises(
        IngestFailed, match=f"'events': .*: it was loaded from 200 rows and .* now has {len(changed)}, "
    ):
        driver.load(frame(spark, changed)).drain(in_time)
    assert_exactly_once(driver.lake, events(0, 200))


@pytest.mark.spark
def test_a_stream_and_a_load_do_not_follow_each_other(spark: Any, drive: Drive, source: Source) -> None:
    source.put(events(0, 10))
    drive().stream(source.stream()).drain(in_time)
    with pytest.raises(IngestFailed, match="table 'events': its source has failed: it was fed by a stream"):
        drive().load(frame(spark, events(0, 10))).drain(in_time)


@pytest.mark.spark
def test_a_load_and_a_stream_do_not_follow_each_other(spark: Any, drive: Drive, source: Source) -> None:
    drive().load(frame(spark, events(0, 10))).drain(in_time)
    source.put(events(0, 10))
    with pytest.raises(IngestFailed, match="was loaded from a DataFrame that is not streaming"):
        drive().stream(source.stream()).drain(in_time)


@pytest.mark.spark
def test_what_the_user_has_cached_stays_cached(spark: Any, drive: Drive) -> None:
    rows = frame(spark, events(0, 50)).persist()
    drive().load(rows).drain(in_time)
    assert rows.storageLevel.useMemory
    rows.unpersist()
    drive().load(rows).drain(in_time)
    assert not rows.storageLevel.useMemory


@pytest.mark.spark
def test_a_load_can_be_stopped_at_any_time(spark: Any, drive: Drive, tmp_path: Path) -> None:
    running = tmp_path / "running"
    os.mkfifo(running)

    def stuck(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        running.write_text("")  # returns once it is read
        threading.Event().wait()
        yield from batches

    driver = drive()
    ingest = driver.load(frame(spark, events(0, 10)).mapInArrow(stuck, "k string, n long"))
    running.read_text()
    with pytest.raises(WaitTimeout, match="table 'events' is still being loaded"):
        ingest.drain(no_time)
    ingest.stop()
    ingest.drain(no_time)
    assert driver.lake.last_epoch() == 0
