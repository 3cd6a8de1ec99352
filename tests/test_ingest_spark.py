"""Ingest: from Spark's DataFrames to epochs, each row exactly once, whatever is started again or lost."""

import os
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

from upriver.dataflow.plan import TableSpec
from upriver.errors import DeclarationError, IngestFailed, WaitTimeout
from upriver.ids import Epoch
from upriver.shell.lake import Lake, LakeRecord, Manifest
from upriver.shell.owned_lake import OwnedLake
from upriver.spark.ingest import EpochLog, History, Ingest, Layout, LoadIngest, StreamIngest
from upriver.spark.packing import PACK_ROWS_MAX
from upriver.state.runs import run_schema

TABLE = TableSpec("events", pa.schema([("k", pa.string()), ("n", pa.int64())]), ("k",), ("n",))
INDEXES = (("k",), ("n",))
VNODES = 8
Events = list[tuple[str | None, int]]
Listener = Callable[[Manifest], None]


class Driver:
    """What of a driver owns a root and gives epochs. Starts as the app does: by reading all manifests."""

    def __init__(self, root: Path, on_published: Listener = lambda _: None) -> None:
        self.lake = OwnedLake(str(root), LakeRecord(VNODES, (TABLE,), {"events": INDEXES}), {})
        self.layout = Layout(root=str(root), table=TABLE, vnodes=VNODES, groups=2)
        history = History()
        manifests = [self.lake.manifest(Epoch(e)) for e in range(1, self.lake.last_epoch() + 1)]
        for manifest in manifests:
            history.add(manifest)
        self.swept = self.lake.sweep({run.path for m in manifests for runs in m.runs.values() for run in runs})
        self.log = EpochLog(self.lake, history, on_published)
        self.ingests: list[Ingest] = []

    def stream(self, rows: Any, **trigger: Any) -> StreamIngest:
        return self._started(StreamIngest(rows, self.layout, self.log, trigger))

    def load(self, rows: Any, epoch_rows: int = 100) -> LoadIngest:
        return self._started(LoadIngest(rows, self.layout, self.log, self.lake, epoch_rows))

    def _started(self, ingest: Any) -> Any:
        ingest.start()
        self.ingests.append(ingest)
        return ingest

    def stop(self) -> None:
        for ingest in self.ingests:
            ingest.stop()
        self.lake.release()


Drive = Callable[..., Driver]


@pytest.fixture
def drive(tmp_path: Path) -> Iterator[Drive]:
    """Starts a driver on the test's one root, in place of the one before."""
    drivers: list[Driver] = []

    def drive(on_published: Listener = lambda _: None) -> Driver:
        for driver in drivers:
            driver.stop()
        drivers.append(Driver(tmp_path / "lake", on_published))
        return drivers[-1]

    yield drive
    for driver in drivers:
        driver.stop()


class Source:
    """A directory that files are put into; a stream reads each once."""

    def __init__(self, spark: Any, directory: Path) -> None:
        self.directory = directory
        self.directory.mkdir()
        self._spark = spark
        self._files = 0

    def put(self, events: Iterable[tuple[str | None, int]]) -> None:
        keys, numbers = zip(*events, strict=True)
        unseen = self.directory / f".{self._files}"
        pa.parquet.write_table(pa.table({"k": pa.array(keys, pa.string()), "n": pa.array(numbers, pa.int64())}), unseen)
        unseen.rename(self.directory / f"{self._files}.parquet")
        self._files += 1

    def stream(self, **options: Any) -> Any:
        return self._spark.readStream.schema("k string, n long").options(**options).parquet(str(self.directory))


@pytest.fixture
def source(spark: Any, tmp_path: Path) -> Source:
    return Source(spark, tmp_path / "source")


def events(first: int, last: int) -> Events:
    return [(None if n % 7 == 0 else f"k{n % 5}", n) for n in range(first, last)]


def epochs(lake: Lake) -> list[Manifest]:
    return [lake.manifest(Epoch(epoch)) for epoch in range(1, lake.last_epoch() + 1)]


def rows_of(lake: Lake, manifest: Manifest) -> Events:
    """The epoch's rows, which must be the same in every index."""
    in_index = []
    for runs in manifest.runs.values():
        tables = [lake.open_run(run, run_schema(TABLE.schema)) for run in runs]
        in_index.append(sorted(((r["k"], r["n"]) for t in tables for r in t.to_pylist()), key=lambda event: event[1]))
    assert len(in_index) == len(INDEXES)
    assert all(rows == in_index[0] for rows in in_index)
    return in_index[0]


def assert_exactly_once(lake: Lake, expected: Events) -> None:
    found = [event for manifest in epochs(lake) for event in rows_of(lake, manifest)]
    assert sorted(found, key=lambda event: event[1]) == expected
    batches = [(manifest.query, manifest.batch) for manifest in epochs(lake)]
    assert len(set(batches)) == len(batches)


def in_time() -> float:
    return 300.0


def no_time() -> float:
    return 0.0


# Streams --------------------------------------------------------------------------------------------------------


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
def test_a_batch_is_an_epoch_whatever_was_expected_of_its_size(drive: Drive, source: Source) -> None:
    """One task is given a batch that it cannot hold, after a small one."""
    driver = drive()
    ingest = driver.stream(source.stream())
    bounds = [0, 40, 40 + PACK_ROWS_MAX + 1, PACK_ROWS_MAX + 81]
    for first, last in pairwise(bounds):
        source.put(events(first, last))
        ingest.drain(in_time)
    found = [rows_of(driver.lake, manifest) for manifest in epochs(driver.lake)]
    assert found == [events(first, last) for first, last in pairwise(bounds)]
    assert [{len(runs) for runs in manifest.runs.values()} for manifest in epochs(driver.lake)] == [{1}, {2}, {2}]


def forget_last(directory: Path) -> None:
    """Lose the last file of a Spark log, as a crash before it was written would."""
    last = max((path for path in directory.iterdir() if path.name.isdecimal()), key=lambda path: int(path.name))
    last.unlink()
    (directory / f".{last.name}.crc").unlink()


@pytest.mark.spark
def test_i2_a_batch_that_was_published_is_skipped(drive: Drive, source: Source, tmp_path: Path) -> None:
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
def test_i1_a_batch_that_was_not_published_comes_again(drive: Drive, source: Source, tmp_path: Path) -> None:
    """Its runs are there, and nobody has seen them."""
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
def test_i3_another_checkpoint_is_refused(drive: Drive, source: Source, tmp_path: Path) -> None:
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
def test_i4_a_driver_that_was_taken_over_publishes_nothing(drive: Drive, source: Source, tmp_path: Path) -> None:
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
    with pytest.raises(IngestFailed, match=r"(?s)table 'events': its Spark query has failed: .*a bad row"):
        ingest.drain(in_time)
    assert driver.lake.last_epoch() == 0


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


# Loads ----------------------------------------------------------------------------------------------------------


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
    with pytest.raises(DeclarationError, match=f"'events' was loaded from 200 rows and .* now has {len(changed)}, or"):
        driver.load(frame(spark, changed)).drain(in_time)
    assert_exactly_once(driver.lake, events(0, 200))


@pytest.mark.spark
def test_a_stream_and_a_load_do_not_follow_each_other(spark: Any, drive: Drive, source: Source) -> None:
    source.put(events(0, 10))
    drive().stream(source.stream()).drain(in_time)
    with pytest.raises(DeclarationError, match="table 'events' was fed by a stream"):
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
