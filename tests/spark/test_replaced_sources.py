"""A stream continues a table that another source has fed: each row of both is there once, wherever that is killed."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ingest_kit import Drive, Source, assert_exactly_once, driving, epochs, events, in_time

from upriver import App
from upriver.errors import DeclarationError, IngestFailed
from upriver.lake.manifests import Manifest
from upriver.spark.sources import source_digest

ROWS = "k string, n long"


@pytest.fixture
def drive(tmp_path: Path) -> Iterator[Drive]:
    with driving(tmp_path / "lake") as drive:
        yield drive


@pytest.fixture
def old(spark: Any, tmp_path: Path) -> Source:
    return Source(spark, tmp_path / "old")


@pytest.fixture
def new(spark: Any, tmp_path: Path) -> Source:
    source = Source(spark, tmp_path / "new")
    for first in (20, 30):
        source.put(events(first, first + 10))
    return source


def one_by_one(source: Source) -> Any:
    return source.stream(maxFilesPerTrigger=1)


@pytest.mark.spark
@pytest.mark.parametrize("killed_at", [3, pytest.param(4, marks=pytest.mark.long)])
def test_a_stream_takes_the_place_of_another_once(drive: Drive, old: Source, new: Source, killed_at: int) -> None:
    """Both have batches 0 and 1. The driver dies when an epoch is published and Spark does not know it yet."""
    for first in (0, 10):
        old.put(events(first, first + 10))
    drive().stream(one_by_one(old)).drain(in_time)

    def crash(manifest: Manifest) -> None:
        if manifest.epoch == killed_at:
            raise SystemError("the driver dies here")

    with pytest.raises(IngestFailed, match="the driver dies here"):
        drive(crash).stream(one_by_one(new), replaces_others=True).drain(in_time)
    for replaces_others in (True, False, True):
        driver = drive()
        driver.stream(one_by_one(new), replaces_others=replaces_others).drain(in_time)
        assert_exactly_once(driver.lake, events(0, 40))
        assert [manifest.batch for manifest in epochs(driver.lake)] == [0, 1, 0, 1]
    new.put(events(40, 50))
    driver = drive()
    driver.stream(one_by_one(new), replaces_others=True).drain(in_time)
    assert_exactly_once(driver.lake, events(0, 50))


@pytest.mark.spark
def test_a_stream_takes_the_place_of_a_load(spark: Any, drive: Drive, new: Source) -> None:
    drive().load(spark.createDataFrame(events(0, 20), ROWS)).drain(in_time)
    driver = drive()
    with pytest.raises(
        IngestFailed, match=r"give it that one again, declare the table with replace_source=True to add"
    ):
        driver.stream(new.stream()).drain(in_time)
    for _ in range(2):
        driver = drive()
        driver.stream(new.stream(), replaces_others=True).drain(in_time)
        assert_exactly_once(driver.lake, events(0, 40))
    with pytest.raises(IngestFailed, match="it was fed by a stream"):
        drive().load(spark.createDataFrame(events(0, 20), ROWS)).drain(in_time)


@pytest.mark.spark
def test_a_source_whose_checkpoint_is_lost_is_read_anew_if_that_is_asked_for(
    drive: Drive, old: Source, new: Source, tmp_path: Path
) -> None:
    old.put(events(0, 20))
    drive().stream(old.stream()).drain(in_time)
    drive().stop()
    shutil.rmtree(tmp_path / "lake/ingest/events")
    (old.directory / "0.parquet").unlink()
    for first in (20, 30):
        old.put(events(first, first + 10))
    with pytest.raises(IngestFailed, match=r"restore the checkpoint, declare the table with replace_source=True"):
        drive().stream(old.stream()).drain(in_time)
    for _ in range(2):
        driver = drive()
        driver.stream(old.stream(), replaces_others=True).drain(in_time)
        assert_exactly_once(driver.lake, events(0, 40))


@pytest.mark.spark
def test_a_source_is_known_by_its_format_and_its_place(spark: Any, old: Source, new: Source) -> None:
    assert source_digest(old.stream(maxFilesPerTrigger=1).where("n > 3")) == source_digest(old.stream())
    others = [
        new.stream(),
        old.stream().unionByName(new.stream()),
        spark.readStream.schema(ROWS).json(str(old.directory)),
        spark.readStream.format("rate").load(),
        spark.readStream.format("rate").option("rowsPerSecond", 7).load(),
    ]
    assert len({source_digest(each) for each in (old.stream(), *others)}) == 1 + len(others)


@pytest.mark.spark
def test_only_a_stream_replaces_a_source(spark: Any, tmp_path: Path) -> None:
    app = App(spark, root=str(tmp_path / "lake"))
    with pytest.raises(DeclarationError, match="replace_source=True is for a streaming DataFrame"):
        app.table("events", spark.createDataFrame([("a", 1)], ROWS), key="k", replace_source=True)
