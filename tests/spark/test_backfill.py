"""Indexes for tables that have rows already: every epoch's rows once more, whole or unseen, whatever dies meanwhile."""

import os
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import segments_kit
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from upriver.errors import CorruptFile, IngestFailed, LakeInUse
from upriver.ids import Epoch, VnodeId
from upriver.lake.collection import remove_litter
from upriver.lake.files import Files
from upriver.lake.ingest_history import IngestHistory
from upriver.lake.lake import Lake, LakeRecord, OwnedLake, supplement_path
from upriver.lake.manifests import Manifest
from upriver.lake.spans import EpochSpan, single
from upriver.plan.plan import TableSpec, lake_channel
from upriver.spark.ingest import EpochLog, Layout, publish_batch
from upriver.spark.runs import SparkRows
from upriver.spark.tables import Backfill

pytestmark = pytest.mark.spark

SCHEMA = pa.schema([("k", pa.string()), ("n", pa.int64()), ("at", pa.int32())])
SQL = "k string, n long, at int"
EVENTS = TableSpec("events", SCHEMA, ("k",), ("at",))
OTHERS = TableSpec("others", SCHEMA, ("k",))
RECORD = LakeRecord(8, (EVENTS, OTHERS), {"events": (("k",),), "others": (("k",),)})
INDEX = ("n",)
ADDED = lake_channel("events", INDEX)
ALL = frozenset(VnodeId(vnode) for vnode in range(8))
Row = tuple[str | None, int | None, int | None]


class Driver:
    """What of a driver adds indexes; starts as the app does, but for the workers. wants: the index, from the start."""

    def __init__(self, spark: Any, root: Path, wants: bool = False) -> None:
        self.spark = spark
        self.lake = OwnedLake(str(root), RECORD, {})
        self.layouts = {t.name: Layout(root=str(root), table=t, vnodes=8, groups=2) for t in (EVENTS, OTHERS)}
        self.backfill = Backfill(spark, self.lake, epochs_max=2)
        if wants:
            self.backfill.run(self.layouts["events"], INDEX, self.lake.last_epoch())
        history = IngestHistory()
        for manifest in manifests(self.lake):
            history.add(manifest)
        self.lake.sweep()
        remove_litter(self.lake, self.lake.run_paths())
        self.log = EpochLog(self.lake, history, lambda _: None)

    def publish(self, table: str, rows: list[Row]) -> None:
        frame = self.spark.createDataFrame(rows, SQL)
        publish_batch(SparkRows(frame), self.layouts[table], self.log, "q", self.log.last_batch(table) + 1)

    def add(self) -> None:
        self.backfill.run(self.layouts["events"], INDEX, self.log.keep("events", INDEX))

    def stop(self) -> None:
        self.backfill.stop()
        self.lake.release()


def manifests(lake: Lake) -> list[Manifest]:
    return [lake.manifest(Epoch(epoch)) for epoch in range(1, lake.last_epoch() + 1)]


def some_rows(first: int) -> list[Row]:
    return [(f"k{n % 3}", None if n % 5 == 0 else n % 7, n * 31 % 11) for n in range(first, first + 12)]


HISTORY = [some_rows(0), some_rows(12), [], some_rows(36)]
"""The rows of events of the epochs 1, 2, 4 and 5."""


@pytest.fixture(scope="module")
def history(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A lake that has rows."""
    root = tmp_path_factory.mktemp("history") / "lake"
    driver = Driver(spark, root)
    for table, rows in [("events", 0), ("events", 1), ("others", 0), ("events", 2), ("events", 3)]:
        driver.publish(table, HISTORY[rows])
    driver.stop()
    return root


Drive = Callable[..., Driver]


@pytest.fixture
def drive(spark: Any, history: Path, tmp_path: Path) -> Iterator[Drive]:
    """Starts a driver on the test's one root, in place of the one before."""
    drivers: list[Driver] = []
    shutil.copytree(history, tmp_path / "lake")

    def drive(wants: bool = False) -> Driver:
        for driver in drivers:
            driver.stop()
        drivers.append(Driver(spark, tmp_path / "lake", wants))
        return drivers[-1]

    yield drive
    for driver in drivers:
        driver.stop()


def assert_complete(lake: Lake, *more: list[Row]) -> None:
    """Each epoch of events has its rows in both orders, as often as they were published: as a worker reads them."""
    record = lake.record()
    assert record is not None
    assert record.indexes["events"] == (("k",), INDEX)
    of_events = [manifest for manifest in manifests(lake) if manifest.table == "events"]
    for manifest, rows in zip(of_events, [*HISTORY, *more], strict=True):
        for channel in (lake_channel("events", ("k",)), ADDED):
            found = [row for batch in lake.read(manifest, channel, ALL, EVENTS) for row in batch.to_pylist()]
            assert sorted(repr((row["k"], row["n"], row["at"])) for row in found) == sorted(map(repr, rows))
            order = [(row["hash64"], row["at"]) for row in found]
            assert order == sorted(order)
            assert manifest.rows_of(channel, ALL) == len(rows)


def test_every_epoch_gets_the_index(drive: Drive) -> None:
    driver = drive()
    others = driver.lake.manifest(Epoch(3))
    driver.add()
    driver.publish("events", some_rows(5))
    assert_complete(driver.lake, some_rows(5))
    assert driver.lake.supplemented(ADDED) == set(map(single, (1, 2, 4, 5)))
    assert driver.lake.manifest(Epoch(3)) == others
    before = manifests(driver.lake)
    driver.add()  # it is there already
    assert manifests(driver.lake) == before


def test_an_index_is_kept_after_a_restart(drive: Drive) -> None:
    drive(wants=True)
    driver = drive()
    driver.publish("events", some_rows(5))
    assert_complete(driver.lake, some_rows(5))
    assert driver.lake.supplemented(ADDED) == set(map(single, (1, 2, 4, 5)))


def test_a_table_without_rows_gets_an_index_at_once(spark: Any, tmp_path: Path) -> None:
    driver = Driver(spark, tmp_path / "empty")
    driver.add()
    record = driver.lake.record()
    assert record is not None
    assert record.indexes["events"] == (("k",), INDEX)
    driver.publish("events", some_rows(0))
    assert driver.lake.manifest(Epoch(1)).rows_of(ADDED, ALL) == 12
    assert driver.lake.supplemented(ADDED) == set()
    driver.stop()


# Deaths ---------------------------------------------------------------------------------------------------------


class Dying:
    """Files whose process dies when it creates one more than ``creates`` files."""

    def __init__(self, files: Files, creates: int) -> None:
        self._files = files
        self._creates = creates

    def create(self, path: str, content: bytes | pa.Buffer) -> None:
        if not self._creates:
            raise SystemError("the driver dies here")
        self._creates -= 1
        self._files.create(path, content)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._files, name)


@pytest.mark.parametrize(
    ("writes", "wants"),
    [
        *((writes, True) for writes in (0, 2, 4)),
        (4, False),
        *(pytest.param(*case, marks=pytest.mark.long) for case in ((1, True), (3, True), (1, False))),
    ],
)
def test_lake_supplement_once_it_may_die_between_any_two_writes(drive: Drive, writes: int, wants: bool) -> None:
    """Four supplements in two jobs, and the record: a reader sees the lake as it was, until all of it is there.

    wants: whether the app that starts next still wants the index.
    """
    driver = drive()
    before = manifests(driver.lake)
    driver.lake.files = Dying(driver.lake.files, writes)
    with pytest.raises(
        IngestFailed, match=r"table 'events': its index \(n\) is not complete: SystemError: the driver dies here"
    ):
        driver.add()
    reader = Lake(driver.lake.root)
    assert reader.record() == RECORD
    assert manifests(reader) == before
    done = supplements(reader)
    assert len(done) == writes

    driver = drive(wants)
    assert set(supplements(driver.lake)) == (set(map(single, (1, 2, 4, 5))) if wants else set())
    assert not wants or supplements(driver.lake).items() >= done.items()
    driver.publish("events", some_rows(5))
    driver.add()
    driver.publish("events", some_rows(6))
    assert_complete(driver.lake, some_rows(5), some_rows(6))


def supplements(lake: Lake) -> dict[EpochSpan, str]:
    """What is kept of the index, complete or not, by epoch."""
    paths = {span: supplement_path(ADDED, span) for span in lake.supplemented(ADDED)}
    return {span: repr(lake.read_record(path)) for span, path in paths.items()}


def test_lake_one_owner_a_driver_that_was_taken_over_adds_no_index(drive: Drive, spark: Any) -> None:
    driver = drive()
    driver.lake.release()
    successor = Driver(spark, Path(driver.lake.root))
    with pytest.raises(LakeInUse, match="another driver has taken it over"):
        driver.add()
    assert successor.lake.record() == RECORD
    successor.stop()


def test_a_damaged_run_is_named_and_nothing_is_lost(drive: Drive) -> None:
    driver = drive()
    (run, *_) = driver.lake.manifest(Epoch(5)).runs[lake_channel("events", ("k",))]
    path = Path(driver.lake.root, run.path)
    content = path.read_bytes()
    path.write_bytes(content[:-1])
    with pytest.raises(CorruptFile, match=f"{run.path}: .* where the manifest says"):
        driver.add()
    path.write_bytes(content)
    driver.add()
    assert_complete(driver.lake)


# Beside ingest --------------------------------------------------------------------------------------------------


def test_lake_no_epoch_lacks_the_index_a_batch_that_was_begun_before_gets_the_index_too(
    drive: Drive, spark: Any, tmp_path: Path
) -> None:
    """Its runs are written in the old order alone, and the index is complete before they are published."""
    driver, running, go_on = drive(), tmp_path / "running", tmp_path / "go on"
    os.mkfifo(running)
    os.mkfifo(go_on)

    def held(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        running.write_text("")  # returns once it is read
        go_on.read_text()
        yield from batches

    frame = spark.createDataFrame(some_rows(5), SQL).coalesce(1).mapInArrow(held, SQL)
    publishing = threading.Thread(
        target=publish_batch, args=(SparkRows(frame), driver.layouts["events"], driver.log, "q", 4)
    )
    publishing.start()
    running.read_text()
    driver.add()
    assert driver.lake.last_epoch() == 5
    assert_complete(driver.lake)
    go_on.write_text("")
    publishing.join()
    assert_complete(driver.lake, some_rows(5))
    assert driver.lake.supplemented(ADDED) == set(map(single, (1, 2, 4, 5)))


def test_what_is_under_way_can_be_stopped(drive: Drive) -> None:
    driver = drive()
    (run, *_) = driver.lake.manifest(Epoch(1)).runs[lake_channel("events", ("k",))]
    path = Path(driver.lake.root, run.path)
    path.rename(path.with_suffix(".kept"))
    os.mkfifo(path)  # a process that opens it waits for ever
    failures: list[Exception] = []

    def add() -> None:
        try:
            driver.add()
        except IngestFailed as error:
            failures.append(error)

    adding = threading.Thread(target=add)
    adding.start()
    driver.backfill.stop()
    adding.join()
    assert [str(failure) for failure in failures] == [
        "table 'events': its index (n) is not complete: the app was stopped"
    ]
    path.with_suffix(".kept").replace(path)
    drive(wants=True)
    assert_complete(Lake(driver.lake.root))


def test_a_segment_made_meanwhile_gets_the_index_with_the_rows_of_a_key_in_the_order_of_epochs(
    spark: Any, tmp_path: Path
) -> None:
    """Views with a function per key see the order. The segment's own runs have other keys side by side."""
    by_k = (("k",),)
    with segments_kit.owned(tmp_path, {"events": by_k, "users": (("id",),)}) as lake:
        for number in range(16):
            segments_kit.publish(lake, segments_kit.EVENTS, [(number * 7 % 16, number % 2)], by_k)
        (segment,) = segments_kit.compacted(lake)
        layout = Layout(root=str(tmp_path), table=segments_kit.EVENTS, vnodes=8, groups=1)
        Backfill(spark, lake).run(layout, ("n",), Epoch(9))
        assert lake.supplemented(segments_kit.BY_N) == {segment.span}
        rows = segments_kit.rows_in(lake, lake.segment(segment.span), segments_kit.BY_N)
    for n in (0, 1):
        assert [k for _, k, found in rows if found == n] == [number * 7 % 16 for number in range(n, 16, 2)]


ROWS = st.lists(
    st.tuples(
        st.none() | st.sampled_from("abc"),
        st.none() | st.integers(-3, 3) | st.sampled_from([2**63 - 1, -(2**63)]),
        st.none() | st.integers(0, 4),
    ),
    max_size=12,
)


@settings(derandomize=True, max_examples=3, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(before=st.lists(ROWS, min_size=1, max_size=3), after=st.lists(ROWS, max_size=1))
def test_it_is_as_if_the_index_had_been_kept_from_the_start(
    spark: Any, tmp_path_factory: pytest.TempPathFactory, before: list[list[Row]], after: list[list[Row]]
) -> None:
    late, early = (Driver(spark, tmp_path_factory.mktemp(name)) for name in ("late", "early"))
    early.log.keep("events", INDEX)
    for driver in (early, late):
        for number, rows in enumerate([*before, *after]):
            if driver is late and number == len(before):
                driver.add()
            driver.publish("events", rows)
    late.add()
    for manifest, expected in zip(manifests(late.lake), manifests(early.lake), strict=True):
        assert manifest.rows() == expected.rows()
        for vnode in ALL:
            assert content_of(late.lake, manifest, vnode) == content_of(early.lake, expected, vnode)
    late.stop()
    early.stop()


def content_of(lake: Lake, manifest: Manifest, vnode: VnodeId) -> list[str]:
    """A vnode's rows in the new order; those that tie in it come in any order."""
    batches = lake.read(manifest, ADDED, frozenset([vnode]), EVENTS)
    return sorted(repr(tuple(row.values())) for batch in batches for row in batch.to_pylist())
