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
from pyspark.sql import functions as F

from upriver.errors import IngestFailed, WaitTimeout
from upriver.lake.manifests import Manifest
from upriver.spark.digests import is_same, rows_digest
from upriver.spark.loads import OnChange


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
@pytest.mark.parametrize("published", [pytest.param(1, marks=pytest.mark.long), 2])
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
    told = f"the DataFrame has other rows than .* .200 rows then, {len(changed)} now.*on_changed_rows='take_in'"
    with pytest.raises(IngestFailed, match=told):
        driver.load(frame(spark, changed)).drain(in_time)
    assert_exactly_once(driver.lake, events(0, 200))


@pytest.mark.spark
def test_rows_that_are_new_are_taken_in_wherever_that_is_interrupted(spark: Any, drive: Drive) -> None:
    drive().load(frame(spark, events(0, 200))).drain(in_time)
    more = frame(spark, events(0, 400))

    def crash(manifest: Manifest) -> None:
        if manifest.epoch == 3:
            raise SystemError("the driver dies here")

    with pytest.raises(IngestFailed, match="the driver dies here"):
        drive(crash).load(more, on_change=OnChange.TAKE_IN).drain(in_time)
    for on_change in (OnChange.TAKE_IN, OnChange.REFUSE):  # what was taken in is what there is from then on
        driver = drive()
        driver.load(more, on_change=on_change, epoch_rows=1).drain(in_time)
        assert_exactly_once(driver.lake, events(0, 400))
        assert driver.lake.last_epoch() == 4


@pytest.mark.spark
@pytest.mark.parametrize("changed", [events(0, 199), [*events(0, 199), ("new", 199)]])
def test_rows_that_are_gone_are_not_taken_in_without_a_primary_key(spark: Any, drive: Drive, changed: Events) -> None:
    drive().load(frame(spark, events(0, 200))).drain(in_time)
    driver = drive()
    with pytest.raises(IngestFailed, match="have changed, or are gone from the DataFrame"):
        driver.load(frame(spark, changed), on_change=OnChange.TAKE_IN).drain(in_time)
    assert_exactly_once(driver.lake, events(0, 200))


@pytest.mark.spark
def test_a_load_from_before_digests_were_kept_goes_on(spark: Any, drive: Drive) -> None:
    rows = frame(spark, events(0, 50))
    drive().load(rows).drain(in_time)
    driver = drive()
    kept = driver.lake.read_record("loads/events.json")
    driver.lake.files.remove("loads/events.json")
    driver.lake.write_record("loads/events.json", {name: kept[name] for name in ("rows", "keys", "slices")})
    driver.load(rows).drain(in_time)
    with pytest.raises(IngestFailed, match="has other rows"):
        drive().load(frame(spark, events(0, 51))).drain(in_time)


A_ROW = "'x' AS s, 1 AS n, 0.5D AS d, array(1, null) AS a, named_struct('p', cast(null AS int), 'q', 2) AS t"
OTHERS = [
    A_ROW.replace("'x'", "'y'"),
    A_ROW.replace("1 AS n", "cast(null AS int) AS n"),
    A_ROW.replace("0.5D", "0.25D"),
    A_ROW.replace("array(1, null)", "array(null, 1)"),
    A_ROW.replace("'p', cast(null AS int), 'q', 2", "'p', 2, 'q', cast(null AS int)"),
]


@pytest.mark.spark
def test_the_digest_sees_every_column_and_no_order(spark: Any) -> None:
    def digest(*rows: str) -> dict[str, int | None]:
        return rows_digest(spark.sql(" UNION ALL ".join(f"SELECT {row}" for row in rows)), F.xxhash64("s"))

    same = digest(A_ROW, A_ROW, OTHERS[0])
    assert is_same(same, digest(OTHERS[0], A_ROW, A_ROW))
    assert not is_same(same, digest(OTHERS[0], OTHERS[0], A_ROW))
    one, two = digest(A_ROW), digest(A_ROW, A_ROW)
    for other in OTHERS:
        assert not is_same(one, digest(other))
        assert not is_same(two, digest(other, other))
    nested = [
        ("map('a', 1, 'b', null)", "map('b', null, 'a', 1)", "map('a', 1, 'b', 2)"),
        ("array(map(1, array('x')), null)", "array(map(1, array('x')), null)", "array(null, map(1, array('x')))"),
        ("named_struct('m', map(date'2026-01-01', 1.5))", None, "named_struct('m', map(date'2026-01-01', 1.6))"),
        ("parse_json('{\"a\": [1]}')", "parse_json('{\"a\":[1]}')", "parse_json('{\"a\": [2]}')"),
        ("map('a', 1)", None, "cast(null AS map<string, int>)"),
    ]
    for first, equal, other in nested:
        kept = digest(A_ROW.replace("1 AS n", f"{first} AS n"))
        assert is_same(kept, digest(A_ROW.replace("1 AS n", f"{equal or first} AS n")))
        assert not is_same(kept, digest(A_ROW.replace("1 AS n", f"{other} AS n")))
        assert is_same({name: kept[name] for name in same}, digest(A_ROW.replace("1 AS n", f"{other} AS n")))  # of 0.2


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
