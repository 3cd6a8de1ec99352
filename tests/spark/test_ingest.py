"""Ingest of streams: from micro-batches to epochs, each row exactly once, whatever is started again or lost."""

import fcntl
import shutil
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from descriptors_kit import no_descriptors
from ingest_kit import (
    Drive,
    Driver,
    Source,
    assert_exactly_once,
    driving,
    epochs,
    events,
    in_time,
    no_time,
    rows_of,
)
from py4j.protocol import Py4JJavaError
from standby_kit import await_that

from upriver.errors import IngestFailed, WaitTimeout
from upriver.lake.manifests import Manifest
from upriver.runtime.source_supervisor import SourceSupervisor
from upriver.spark.ingest import STOPPING, TASK_BYTES
from upriver.spark.session import SessionSetting

LARGE = TASK_BYTES // 16
"""Rows of a batch that is too large for one task."""
FILES_MAX = 40
"""Files of a source that has another one after each batch."""


@pytest.fixture
def drive(tmp_path: Path) -> Iterator[Drive]:
    with driving(tmp_path / "lake") as drive:
        yield drive


@pytest.fixture
def source(spark: Any, tmp_path: Path) -> Source:
    return Source(spark, tmp_path / "source")


@pytest.mark.spark
def test_each_batch_of_a_stream_is_an_epoch(drive: Drive, source: Source) -> None:
    told: list[Manifest] = []
    driver = drive(told.append)
    ingest = driver.stream(source.stream())
    for round in range(3):
        source.put(events(10 * round, 10 * round + 10))
        ingest.drain(in_time)
        assert driver.log.last == driver.lake.last_epoch() == round + 1
        assert rows_of(driver.lake, epochs(driver.lake)[-1]) == events(10 * round, 10 * round + 10)
    assert [manifest.batch for manifest in told] == [0, 1, 2]
    assert told == epochs(driver.lake)
    assert {(manifest.term, manifest.table) for manifest in told} == {(1, "events")}


@pytest.mark.spark
def test_a_stream_goes_on_where_it_was(drive: Drive, source: Source) -> None:
    for restart in range(3):
        source.put(events(10 * restart, 10 * restart + 10))
        driver = drive()
        driver.stream(source.stream()).drain(in_time)
        assert driver.lake.last_epoch() == restart + 1
        assert driver.swept == 0
    assert_exactly_once(driver.lake, events(0, 30))
    assert [manifest.term for manifest in epochs(driver.lake)] == [1, 2, 3]
    assert len({manifest.query for manifest in epochs(driver.lake)}) == 1


@pytest.mark.spark
def test_a_batch_is_an_epoch_however_many_tasks_write_it(drive: Drive, source: Source) -> None:
    """As many as can before anything is known, then as many as the last batch had work for."""
    driver = drive()
    ingest = driver.stream(source.stream().repartition(4))
    bounds = [0, 40, 40 + LARGE, LARGE + 80, LARGE + 120]
    for first, last in pairwise(bounds):
        source.put(events(first, last))
        ingest.drain(in_time)
    found = [rows_of(driver.lake, manifest) for manifest in epochs(driver.lake)]
    assert found == [events(first, last) for first, last in pairwise(bounds)]
    tasks = [{run.task for run in runs} for manifest in epochs(driver.lake) for runs in manifest.runs.values()]
    assert tasks == [{0, 1}, {0, 1}, {0}, {0}, {0, 1}, {0, 1}, {0}, {0}]


def forget_last(directory: Path) -> None:
    """Lose the last file of a Spark log, as a crash before it was written would."""
    last = max((path for path in directory.iterdir() if path.name.isdecimal()), key=lambda path: int(path.name))
    last.unlink()
    (directory / f".{last.name}.crc").unlink()


@pytest.mark.spark
def test_lake_published_is_skipped_a_batch_that_was_published_is_skipped(
    drive: Drive, source: Source, tmp_path: Path
) -> None:
    driver = drive()
    ingest = driver.stream(source.stream())
    for first in (0, 10):
        source.put(events(first, first + 10))
        ingest.drain(in_time)
    driver.stop()
    forget_last(tmp_path / "lake/ingest/events/commits")

    source.put(events(20, 30))
    driver = drive()
    driver.stream(source.stream()).drain(in_time)
    assert [manifest.batch for manifest in epochs(driver.lake)] == [0, 1, 2]
    assert_exactly_once(driver.lake, events(0, 30))


@pytest.mark.spark
def test_lake_manifest_publishes_a_batch_that_was_not_published_comes_again(
    drive: Drive, source: Source, tmp_path: Path
) -> None:
    """Its runs are there, and no reader has seen them."""
    source.put(events(0, 10))
    driver = drive()
    driver.stream(source.stream()).drain(in_time)
    runs = sum(len(runs) for runs in epochs(driver.lake)[0].runs.values())
    driver.stop()
    forget_last(tmp_path / "lake/ingest/events/commits")
    driver.lake.files.remove("epochs/000000000001.json")

    driver = drive()
    assert driver.swept == runs > 0
    driver.stream(source.stream()).drain(in_time)
    assert_exactly_once(driver.lake, events(0, 10))


@pytest.mark.spark
def test_lake_one_spark_checkpoint_another_checkpoint_is_refused(drive: Drive, source: Source, tmp_path: Path) -> None:
    source.put(events(0, 10))
    drive().stream(source.stream()).drain(in_time)
    drive().stop()
    shutil.rmtree(tmp_path / "lake/ingest/events")
    driver = drive()
    ingest = driver.stream(source.stream())
    with pytest.raises(IngestFailed, match=r"table 'events': .* is not the one its rows came from, so they would come"):
        ingest.drain(in_time)
    assert_exactly_once(driver.lake, events(0, 10))


@pytest.mark.spark
def test_lake_one_owner_a_driver_that_was_taken_over_publishes_nothing(
    drive: Drive, source: Source, tmp_path: Path
) -> None:
    driver = drive()
    ingest = driver.stream(source.stream())
    driver.lake.release()
    successor = Driver(tmp_path / "lake")
    source.put(events(0, 10))
    with pytest.raises(IngestFailed, match="another driver has taken it over; this one must stop"):
        ingest.drain(in_time)
    assert successor.lake.last_epoch() == 0
    successor.stop()


@pytest.mark.spark
def test_a_stream_that_fails_says_why(drive: Drive, source: Source) -> None:
    source.put(events(0, 10))
    driver = drive()
    ingest = driver.stream(source.stream().selectExpr("k", "n + raise_error('a bad row')"))
    with pytest.raises(IngestFailed, match=r"(?s)table 'events': its source has failed: .*a bad row"):
        ingest.drain(in_time)
    assert driver.lake.last_epoch() == 0


def state(ingest: SourceSupervisor) -> str:
    return str(ingest.status()["events"]["state"])


@pytest.mark.spark
def test_a_source_goes_on_after_a_failure_that_went_away(drive: Drive, source: Source) -> None:
    source.put(events(0, 10))
    (source.directory / "1.parquet").write_bytes(b"no Parquet")
    driver = drive()
    ingest = driver.stream(source.stream(maxFilesPerTrigger=1))
    with pytest.raises(IngestFailed, match=r"1\.parquet"):
        ingest.drain(in_time)
    (source.directory / "1.parquet").unlink()
    source.put(events(10, 20))
    ingest.restart("events")
    ingest.drain(in_time)
    assert state(ingest) == "running"
    assert_exactly_once(driver.lake, events(0, 20))


@pytest.mark.spark
def test_a_query_that_was_stopped_by_another_is_a_failed_source(spark: Any, drive: Drive, source: Source) -> None:
    ingest = drive().stream(source.stream())
    (query,) = (query for query in spark.streams.active if query.name.startswith("upriver-events-"))
    query.stop()
    with pytest.raises(IngestFailed, match="was stopped by another than the app"):
        ingest.drain(in_time)
    assert ingest.status()["events"]["retry_in_s"] is None
    ingest.restart("events")
    ingest.drain(in_time)
    assert state(ingest) in ("running", "failing", "stalled")  # on a busy machine its next batch may be late


@pytest.mark.spark
def test_a_source_that_takes_what_there_is_finishes(drive: Drive, source: Source) -> None:
    source.put(events(0, 10))
    driver = drive()
    ingest = driver.stream(source.stream(), availableNow=True)
    ingest.drain(in_time)
    give_up_at = time.monotonic() + 30.0
    while state(ingest) != "finished":  # Spark ends the query after its last epoch is published
        assert time.monotonic() < give_up_at
    assert_exactly_once(driver.lake, events(0, 10))


@pytest.mark.spark
def test_tables_of_one_name_in_one_session(drive: Drive, source: Source, tmp_path: Path) -> None:
    source.put(events(0, 10))
    drive().stream(source.stream()).drain(in_time)
    with driving(tmp_path / "another") as drive_another:
        other = drive_another()
        other.stream(source.stream()).drain(in_time)
        assert_exactly_once(other.lake, events(0, 10))


@pytest.mark.spark
@pytest.mark.parametrize(
    ("path", "text"),
    [("offsets/.0.9f0c.tmp", ""), ("metadata", ""), ("offsets/0", "v1"), ("sources/0/0", 'v1\n{"path":"file:///x"}')],
)
def test_lake_unfinished_files_are_removed_litter_of_a_first_batch_keeps_no_stream_from_starting(
    drive: Drive, source: Source, tmp_path: Path, path: str, text: str
) -> None:
    drive()  # the lake has its record before anything else
    litter = tmp_path / "lake/ingest/events" / path
    litter.parent.mkdir(parents=True)
    litter.write_text(text)
    source.put(events(0, 10))
    driver = drive()
    driver.stream(source.stream()).drain(in_time)
    assert_exactly_once(driver.lake, events(0, 10))


@pytest.mark.spark
def test_drain_waits_for_what_a_source_holds_back(drive: Drive, source: Source) -> None:
    for number in range(3):
        source.put(events(10 * number, 10 * number + 10))
    driver = drive()
    ingest = driver.stream(source.stream(maxFilesPerTrigger=1))
    ingest.drain(in_time)
    assert driver.lake.last_epoch() == 3
    assert_exactly_once(driver.lake, events(0, 30))


@pytest.mark.spark
@pytest.mark.parametrize(
    ("format", "options"),
    [("rate-micro-batch", {"rowsPerBatch": 5, "numPartitions": 1}), ("rate", {"rowsPerSecond": 1000})],
)
def test_drain_returns_beside_a_source_that_never_pauses(
    spark: Any, drive: Drive, format: str, options: dict[str, Any]
) -> None:
    rows = spark.readStream.format(format).options(**options).load()
    driver = drive()
    ingest = driver.stream(rows.selectExpr("cast(value % 3 AS string) AS k", "value AS n"))
    taken = [0]
    while len(taken) < 3:  # there may be nothing yet, which is no reason to wait
        ingest.drain(in_time)
        numbers = sorted(n for manifest in epochs(driver.lake) for _, n in rows_of(driver.lake, manifest))
        assert numbers == list(range(len(numbers)))
        if len(numbers) > taken[-1]:
            taken.append(len(numbers))


@pytest.mark.spark
def test_drain_returns_beside_files_that_never_pause(drive: Drive, source: Source) -> None:
    told: list[Manifest] = []

    def put_another(manifest: Manifest) -> None:
        told.append(manifest)
        if len(told) < FILES_MAX:
            source.put(events(10 * len(told), 10 * len(told) + 10))

    source.put(events(0, 10))
    driver = drive(put_another)
    driver.stream(source.stream()).drain(in_time)
    assert 2 <= len(told) < FILES_MAX


@pytest.mark.spark
def test_drain_gives_up_when_there_is_no_time_left(drive: Drive, source: Source) -> None:
    driver = drive()
    ingest = driver.stream(source.stream(), processingTime="1 hour")
    source.put(events(0, 10))
    with pytest.raises(WaitTimeout, match="table 'events': its source has rows that Spark has not taken yet"):
        ingest.drain(no_time)


@pytest.mark.spark
def test_many_threads_may_drain(drive: Drive, source: Source) -> None:
    source.put(events(0, 10))
    driver = drive()
    ingest = driver.stream(source.stream())
    threads = [threading.Thread(target=ingest.drain, args=(in_time,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert_exactly_once(driver.lake, events(0, 10))


@pytest.mark.spark
@pytest.mark.parametrize("is_load", [True, False])
def test_an_attempt_that_does_not_end_keeps_the_next_from_beginning(
    spark: Any, drive: Drive, source: Source, is_load: bool
) -> None:
    """Two attempts at one time would commit rows twice."""
    may_go_on, hangs = threading.Event(), threading.Event()

    def hang(_: Manifest) -> None:
        hangs.set()
        may_go_on.wait(in_time())

    driver = drive(hang)
    source.put(events(0, 10))
    stopping = SessionSetting(STOPPING.name, "1s")
    ingest = (
        driver.loading(spark.read.parquet(str(source.directory)), stop_s_max=0.5)
        if is_load
        else driver.streaming(source.stream(), stopping=stopping)
    )
    ingest.start(1)
    assert hangs.wait(in_time())
    await_that(lambda: not ingest.has_jobs())
    with pytest.raises((WaitTimeout, Py4JJavaError), match=r"a load has not ended in 0.5 s|failed to stop within 1000"):
        ingest.stop()
    with pytest.raises(IngestFailed, match="attempt 1 was to end, and has not") as told:
        ingest.start(2)
    assert not ingest.failure_of(told.value).is_permanent
    assert ingest.look().attempt == 1
    may_go_on.set()
    await_that(lambda: driver.lake.last_epoch() == 1)

    def begins() -> bool:
        with suppress(IngestFailed):
            ingest.start(2)
        return ingest.look().attempt == 2

    await_that(begins)
    ingest.drain(time.time(), in_time)
    ingest.stop()
    assert_exactly_once(driver.lake, events(0, 10))


@pytest.mark.spark
@pytest.mark.parametrize("is_load", [True, False])
def test_a_job_of_spark_is_work_of_the_attempt(
    spark: Any, drive: Drive, source: Source, tmp_path: Path, is_load: bool
) -> None:
    """Of a source whose tasks wait for a lock on a file."""
    path = str(tmp_path / "lock")

    def wait(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with open(path) as waiting:
            fcntl.flock(waiting, fcntl.LOCK_SH)
        yield from batches

    driver = drive()
    source.put(events(0, 10))
    rows = spark.read.parquet(str(source.directory)) if is_load else source.stream()
    waiting = rows.mapInArrow(wait, rows.schema)
    ingest = driver.loading(waiting) if is_load else driver.streaming(waiting)
    with open(path, "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        ingest.start(1)
        await_that(ingest.has_jobs)
    await_that(lambda: ingest.look().is_over or ingest.look().is_idle)
    assert not ingest.has_jobs()
    ingest.stop()


@pytest.mark.spark
def test_ingest_is_back_after_a_time_without_descriptors(drive: Drive, source: Source) -> None:
    driver = drive()
    ingest = driver.stream(source.stream())
    source.put(events(0, 10))
    ingest.drain(in_time)
    late = source.hide(events(10, 20))
    with no_descriptors() as take:
        late.rename(source.directory / "late.parquet")

        def was_tried_again() -> bool:
            take()
            return bool(ingest.status()["events"]["attempts"] > 1)

        await_that(was_tried_again)
    await_that(lambda: driver.lake.last_epoch() == 2)
    assert_exactly_once(driver.lake, events(0, 20))


@pytest.mark.spark
def test_a_dead_callback_server_is_replaced(
    spark: Any, drive: Drive, source: Source, caplog: pytest.LogCaptureFixture
) -> None:
    drive().stream(source.stream())  # from now on there is one
    driver = drive()
    server = spark.sparkContext._gateway._callback_server
    dead = server.thread
    with socket.socket() as caller, no_descriptors():
        caller.connect(server.server_socket.getsockname())
        dead.join(in_time())
    assert server.thread is dead
    source.put(events(0, 10))
    driver.stream(source.stream()).drain(in_time)
    assert server.thread is not dead
    assert_exactly_once(driver.lake, events(0, 10))
    assert "the JVM's calls" in caplog.text
