"""Segments without the rows that have left: which are rewritten, when, and that readers and crashes lose nothing."""

import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from failing_files_kit import FailingFiles, Interrupted
from hypothesis import given, settings
from hypothesis import strategies as st
from soak import examples

from upriver.engine.batch import Batch
from upriver.engine.expressions import Evaluator
from upriver.engine.retention import Retention, retained_after
from upriver.errors import NotWritten
from upriver.hashing import hash64
from upriver.ids import BEGINNING, Epoch, VnodeId
from upriver.lake.collection import collect, remove_litter, superseded
from upriver.lake.compaction import SegmentPlan, SegmentPlanner, merge_runs
from upriver.lake.expiry import Aging
from upriver.lake.history import KeyHistory
from upriver.lake.lake import Lake, LakeRecord, OwnedLake
from upriver.lake.manifests import LakeEpochs, Manifest, Segment
from upriver.lake.reclamation import Reclamation, due_at
from upriver.lake.spans import EpochSpan, newest_rewrite, single
from upriver.lake.upkeep import compact
from upriver.plan.plan import TableSpec, lake_channel, table_of
from upriver.plan.retention import Retain
from upriver.state.runs import RunInfo, describe_run, encode_run, run_schema
from upriver.state.span import TimeSpan

VNODES, INTERVAL, LATER = 4, 20, 10.0**12
ALL = frozenset(map(VnodeId, range(VNODES)))
SCHEMA = pa.schema([("k", pa.int64()), ("at", pa.int64())])
TIMED = pa.schema([("k", pa.int64()), pa.field("at", pa.int64(), nullable=False)])
EVENTS = TableSpec("events", SCHEMA, key=("k",))
ITEMS = TableSpec("items", TIMED, key=("k",), order_by=("at",), primary_key=("k",))
TABLES = {table.name: table for table in (EVENTS, ITEMS)}
CHANNELS = {name: lake_channel(name, ("k",)) for name in TABLES}
RECORD = LakeRecord(VNODES, tuple(TABLES.values()), dict.fromkeys(TABLES, (("k",),)))
Row = tuple[int, int | None]


class Driver:
    """Publishes epochs of tables that retain rows by ``at``."""

    def __init__(self, root: Path | str) -> None:
        self.lake = OwnedLake(str(root), RECORD, {})
        self.retained: dict[str, Retention] = {}
        self.came: dict[str, list[list[Row]]] = {name: [[]] for name in TABLES}
        """By table: the rows by the end of each epoch."""

    def publish(self, rows: Sequence[Row], table: str = "events", tasks: int = 1) -> None:
        """tasks: that write the rows in turns."""
        epoch = Epoch(self.lake.last_epoch() + 1)
        written = [(task, write_run(self.lake, table, rows[task::tasks])) for task in range(tasks)]
        runs = tuple(replace(run, task=task) for task, run in written if run is not None)
        newest = max((run.span for run in runs if run.span is not None), key=lambda span: span.newest, default=None)
        self.retained = retained_after(self.retained, table, Retain("at", INTERVAL, ""), newest)
        manifest = Manifest(
            epoch=epoch,
            term=self.lake.term,
            table=table,
            query="q",
            batch=epoch,
            runs={CHANNELS[table]: runs},
            retained=self.retained,
        )
        self.lake.publish(manifest)
        for name, came in self.came.items():
            came.append([*came[-1], *(rows if name == table else ())])

    def remaining(self, epoch: int, table: str = "events") -> Counter[Row]:
        """As SQL says it."""
        rows = self.came[table][epoch]
        cut = max((at for _, at in rows if at is not None), default=INTERVAL) - INTERVAL
        if TABLES[table].primary_key:
            rows = list({row[0]: row for row in sorted(rows, key=lambda row: row[1] or 0)}.values())
        return Counter((key, at) for key, at in rows if at is None or at > cut)


def write_run(lake: Lake, table: str, rows: Sequence[Row]) -> RunInfo | None:
    if not rows:
        return None
    columns = [pa.array([row[place] for row in rows], pa.int64()) for place in (0, 1)]
    hashes = hash64(columns[:1], len(rows))
    order = np.argsort(hashes, kind="stable")
    whole = pa.table([pa.array(hashes), *columns], schema=run_schema(TABLES[table].schema)).take(pa.array(order))
    encoded, path = encode_run(whole), f"tables/{CHANNELS[table]}/{len(lake.files.names(f'tables/{CHANNELS[table]}'))}"
    lake.files.create(path, encoded)
    return replace(describe_run(path, encoded, hashes[order], VNODES), span=TimeSpan.of(columns[1]))


def rewrite(lake: OwnedLake, as_of: int, bytes_min: int = 0) -> list[Segment]:
    """Rewrite what is due."""
    reclamation = Reclamation(lake, VNODES, bytes_min)
    due = reclamation.due(Epoch(as_of), TABLES)
    return [carry_out(lake, reclamation.plan(span, Epoch(as_of), TABLES)) for span in due]


def make_segments(lake: OwnedLake, through: int) -> None:
    """Make the segments that are due, and rewrite none."""
    plans = SegmentPlanner(lake, VNODES)
    for span in plans.due(Epoch(through)):
        plan = plans.plan(span)
        assert plan is not None
        carry_out(lake, plan)


def carry_out(lake: OwnedLake, plan: SegmentPlan) -> Segment:
    merged = [merge_runs(lake, merge, TABLES[table_of(merge.channel)], VNODES, Evaluator()) for merge in plan.merges]
    segment = plan.segment(merged, lake.term, 5.0)
    lake.publish_segment(segment)
    return segment


def count(here: Counter[Row], changes: Batch) -> None:
    weights = [1] * len(changes) if changes.weight is None else changes.weight.tolist()
    for row, weight in zip(zip(*(c.to_pylist() for c in changes.rows.columns), strict=True), weights, strict=True):
        here[row] += weight


def replayed(lake: Lake, as_of: int) -> Counter[Row]:
    """What a worker has that opens all epochs, from the first on, with segments that were rewritten up to ``as_of``."""
    aging, here = Aging(lake, {CHANNELS["events"]: EVENTS}), Counter[Row]()
    for span in lake.spans(lake.last_epoch(), as_of=Epoch(as_of)):
        epochs = lake.epochs(span)
        for changes, _ in aging.changes(epochs, CHANNELS["events"], ALL, Epoch(as_of)):
            count(here, changes)
            assert min(here.values(), default=0) >= 0
    return +here


def rows_at(lake: Lake, epoch: int, keys: range) -> Counter[Row]:
    here = Counter[Row]()
    hashes = np.unique(hash64([pa.array(keys, pa.int64())], len(keys)))
    count(here, KeyHistory(lake).rows_of(CHANNELS["events"], EVENTS, hashes, Epoch(epoch)))
    return +here


def rows_in_files(lake: Lake, table: str = "events") -> int:
    spans = lake.spans(lake.last_epoch())
    return sum(run.rows for span in spans for run in lake.epochs(span).runs_of(CHANNELS[table]))


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[Driver]:
    driver = Driver(tmp_path)
    yield driver
    driver.lake.release()


def aging_rows(driver: Driver, epochs: int, rows: int = 10) -> None:
    """Epochs whose times go on by 1, with one row each that has no time."""
    for number in range(epochs):
        driver.publish([*((place, driver.lake.last_epoch()) for place in range(rows)), (rows + number, None)])


def test_a_run_is_due_when_half_of_its_rows_have_left() -> None:
    times = TimeSpan.of(pa.array([*range(100, 200), None, None], pa.int64()))
    assert times is not None
    assert times.marks == (112, 124, 137, 149, 162, 174, 187)
    assert [times.old_rows(102, cut) for cut in (99, 112, 149, 150, 198, 199)] == [0, 12, 50, 50, 87, 100]
    assert TimeSpan.from_json(times.to_json()) == times
    run = RunInfo("r", 102, 200_000, "", ((VnodeId(0), 102),), span=times)
    assert due_at(run, of_segment=False) == 162
    small = replace(run, bytes=2_000)
    assert [due_at(small, of_segment=is_one) for is_one in (True, False)] == [199, None]
    for span in (replace(times, nulls=52), TimeSpan.without_times(102)):
        assert due_at(replace(run, span=span), of_segment=True) is None
    assert due_at(replace(small, span=None), of_segment=True) == -(2**63)


def test_a_segment_gives_up_what_has_left_since_its_end(driver: Driver) -> None:
    aging_rows(driver, 60)
    lake = driver.lake
    make_segments(lake, 60)
    assert rows_in_files(lake) > 2 * driver.remaining(60).total()
    made = rewrite(lake, 60)
    assert [segment.span.name for segment in made] == [f"{last:012d}-{last - 15:012d}-{60:012d}" for last in (16, 32)]
    assert Segment.from_json(made[0].to_json()) == made[0] == lake.segment(made[0].span)
    assert rows_in_files(lake) <= 2 * driver.remaining(60).total()
    assert rewrite(lake, 60) == []
    assert replayed(lake, 60) == rows_at(lake, 60, range(70)) == driver.remaining(60)
    collect(lake, list(superseded(lake, Epoch(60), LATER)))
    assert {span for span in lake.segments() if span.bare == made[0].span.bare} == {made[0].span}
    assert remove_litter(lake, lake.run_paths()).runs == 0
    assert replayed(lake, 60) == rows_at(lake, 60, range(70)) == driver.remaining(60)


def test_a_table_that_has_stopped_gives_up_its_rows(driver: Driver) -> None:
    aging_rows(driver, 20)
    for number in range(30):
        driver.publish([(number, 20 + number)], "items")
    driver.publish([(1, 100)])
    make_segments(driver.lake, 51)
    rewrite(driver.lake, 51)
    assert rows_in_files(driver.lake) == driver.remaining(51).total() == 21


def test_versions_of_an_upsert_table_go_if_older_ones_cannot_come_back(driver: Driver) -> None:
    for number in range(50):
        driver.publish([(number, number), (0, number)], "items")
    make_segments(driver.lake, 50)
    rewrite(driver.lake, 50)
    assert rows_in_files(driver.lake, "items") < 4 * driver.remaining(50, "items").total()
    nullable = {**TABLES, "items": replace(ITEMS, schema=SCHEMA)}
    assert Reclamation(driver.lake, VNODES, 0).due(Epoch(50), nullable) == []


def test_a_large_epoch_that_is_in_no_segment_is_rewritten_by_itself(driver: Driver) -> None:
    aging_rows(driver, 1, rows=50)
    driver.publish([(1, 100)])
    assert [segment.span for segment in rewrite(driver.lake, 2)] == [EpochSpan(Epoch(1), Epoch(1), Epoch(2))]
    assert replayed(driver.lake, 2) == rows_at(driver.lake, 2, range(60)) == driver.remaining(2)
    assert list(superseded(driver.lake, Epoch(1), LATER)) == []
    assert list(superseded(driver.lake, Epoch(2), LATER)) == [single(1)]
    collect(driver.lake, [single(1)])
    assert driver.lake.last_epoch() == 2
    assert replayed(driver.lake, 2) == rows_at(driver.lake, 2, range(60)) == driver.remaining(2)
    assert any(span.has_within(1) for span in driver.lake.segments())  # no worker begins there
    aging_rows(driver, 14, rows=2)
    list(compact(driver.lake, Epoch(16)))
    assert [len(span) for span in driver.lake.spans(Epoch(16))] == [16]
    assert rows_at(driver.lake, 16, range(60)) == driver.remaining(16)


def test_a_segment_of_rewritten_parts_waits_for_a_later_epoch(driver: Driver) -> None:
    """Its rows lack what its parts lack: so it is as of an epoch at which all of them may be read."""
    aging_rows(driver, 10, rows=50)
    driver.publish([(1, 100)])
    rewrite(driver.lake, 11)
    aging_rows(driver, 7)
    plans = SegmentPlanner(driver.lake, VNODES)
    (first,) = plans.due(Epoch(18))
    plan = plans.plan(first)
    assert plan is not None
    assert plan.span == first
    rewrite(driver.lake, 18)
    assert any(span.rewritten == 18 for span in driver.lake.spans(Epoch(16), as_of=Epoch(18)))
    aging_rows(driver, 2)
    assert plans.plan(first) is None
    plan = plans.plan(first, Epoch(20))
    assert plan is not None
    assert plan.span == replace(first, rewritten=Epoch(20))
    carry_out(driver.lake, plan)
    assert driver.lake.spans(Epoch(16)) != driver.lake.spans(Epoch(20))[:1] == [plan.span]
    assert rows_at(driver.lake, 20, range(60)) == driver.remaining(20)


RUN = st.lists(st.tuples(st.integers(0, 9), st.none() | st.integers(0, 15)), max_size=9)


@settings(max_examples=examples(2), deadline=None)
@given(st.lists(RUN, min_size=17, max_size=20), st.data())
def test_readers_before_and_behind_a_rewrite_find_the_rows_that_remain(
    epochs: list[list[Row]], data: st.DataObject
) -> None:
    """Late rows come, too. A worker begins anew at any time, with what is rewritten by then."""
    driver = Driver(tempfile.mkdtemp())
    lake = driver.lake
    aging, here, as_of = Aging(lake, {CHANNELS["events"]: EVENTS}), Counter[Row](), Epoch(BEGINNING)
    for number, rows in enumerate(epochs):
        driver.publish([(key, None if at is None else 3 * number - at) for key, at in rows])
        epoch = lake.last_epoch()
        if data.draw(st.integers(0, 5)) == 0:
            list(compact(lake, epoch))
            rewrite(lake, epoch)
            as_of = newest_rewrite(lake.segments())
        begins_anew = data.draw(st.integers(0, 7)) == 0
        if begins_anew:
            aging, here = Aging(lake, {CHANNELS["events"]: EVENTS}), Counter[Row]()
        spans: Sequence[EpochSpan] = lake.spans(epoch, as_of=as_of) if begins_anew else [single(epoch)]
        for span in spans:
            epochs_of: LakeEpochs = lake.epochs(span)
            for changes, _ in aging.changes(epochs_of, CHANNELS["events"], ALL, as_of):
                count(here, changes)
        assert +here == driver.remaining(epoch)
    for earlier in [*data.draw(st.lists(st.integers(1, len(epochs)), max_size=3)), len(epochs)]:  # all files are there
        assert rows_at(lake, earlier, range(10)) == driver.remaining(earlier)
    lake.release()


def test_after_a_crash_at_any_change_all_rows_are_there_and_no_litter_stays(tmp_path: Path) -> None:
    driver = Driver(tmp_path)
    aging_rows(driver, 40, rows=3)
    driver.lake.release()
    changes, is_over = 0, False
    while not is_over:
        lake = OwnedLake(str(tmp_path), RECORD, {})
        files, changes = lake.files, changes + 1
        lake.files = FailingFiles(files, changes)
        try:
            list(compact(lake, Epoch(40)))
            rewrite(lake, 40)
            collect(lake, list(superseded(lake, Epoch(40), LATER)))
            is_over = True
        except Interrupted:
            pass
        lake.files = files
        newest = newest_rewrite(lake.segments())
        assert replayed(lake, newest) == rows_at(lake, 40, range(50)) == driver.remaining(40)
        remove_litter(lake, lake.run_paths())
        assert replayed(lake, newest) == rows_at(lake, 40, range(50)) == driver.remaining(40)
        lake.release()
    assert changes > 5
    lake = OwnedLake(str(tmp_path), RECORD, {})
    spans = {*map(single, lake.numbers("epochs")), *lake.segments()}
    named = {run.path for span in spans for runs in lake.epochs(span).runs.values() for run in runs}
    assert set(lake.run_paths()) == named
    assert rows_in_files(lake) <= 2 * driver.remaining(40).total()
    lake.release()


def test_a_segment_is_rewritten_once(driver: Driver) -> None:
    aging_rows(driver, 40)
    make_segments(driver.lake, 40)
    first = Reclamation(driver.lake, VNODES, 0)
    (span, *_) = first.due(Epoch(40), TABLES)
    plan = first.plan(span, Epoch(40), TABLES)
    merged = [merge_runs(driver.lake, merge, EVENTS, VNODES, Evaluator()) for merge in plan.merges]
    rewrite(driver.lake, 40)
    with pytest.raises(NotWritten, match="is there, by an attempt that seemed to fail"):
        driver.lake.publish_segment(plan.segment(merged, driver.lake.term, 6.0))
    assert replayed(driver.lake, 40) == driver.remaining(40)


def test_the_report_knows_how_many_rows_have_left(driver: Driver) -> None:
    aging_rows(driver, 40, rows=20)
    make_segments(driver.lake, 40)
    reclamation = Reclamation(driver.lake, VNODES, 0)
    before = reclamation.expired(Epoch(40), TABLES)["events"]
    gone = rows_in_files(driver.lake) - driver.remaining(40).total()
    assert 0 < before.rows <= gone
    assert before.bytes > 0
    assert before.due == len(rewrite(driver.lake, 40)) > 0
    after = Reclamation(driver.lake, VNODES, 0).expired(Epoch(40), TABLES)["events"]
    assert (after.due, after.rows < before.rows / 2) == (0, True)


def test_a_rewritten_run_stays_that_of_its_task(tmp_path: Path) -> None:
    """So the rows of one key that several tasks have written stay in their order."""
    driver = Driver(tmp_path)
    driver.publish([(key, at) for at in range(30) for key in (1, 2)], "items", tasks=3)
    for at in (45, 46):
        driver.publish([(9, at)], "items")
    make_segments(driver.lake, 3)
    (segment,) = rewrite(driver.lake, 3)
    runs = segment.runs[CHANNELS["items"]]
    assert [(run.task, run.rows) for run in runs] == [(0, 2), (1, 2), (2, 2)]
    read = driver.lake.read(segment, CHANNELS["items"], ALL, ITEMS)
    assert [at for rows in read for at in rows.column("at").to_pylist()] == 2 * [27, 28, 29]
    driver.lake.release()
