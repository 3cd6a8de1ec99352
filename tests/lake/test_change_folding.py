"""Folding of the change log: a reader gets the same changes, whatever was folded and removed meanwhile."""

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from failing_files_kit import FailingFiles, Interrupted
from hypothesis import given, settings
from hypothesis import strategies as st

from upriver.errors import ChangesGone, CorruptFile, LakeInUse, UnknownView
from upriver.hashing import hash64
from upriver.ids import Epoch
from upriver.lake.change_folding import USUAL_LIMITS, ChangeFolding, FoldLimits, RemovedChanges
from upriver.lake.change_log import COMMITS, FOLDS, ChangeLog, LogRecord, commit_changes, sweep_changes
from upriver.lake.change_parts import ROWS, write_parts
from upriver.lake.lake import LakeRecord, OwnedLake
from upriver.lake.upkeep import collect_changes
from upriver.state.changes import ChangeCommit, ChangePart, part_schema
from upriver.vnodes import VnodeGroup

VIEW = pa.schema([("k", pa.int64()), ("n", pa.float64())])
KEYS = 5
Row = tuple[int, float | None]
Change = tuple[int, float | None, str, int, int]
"""key, value, change, version, seconds since 1970 of the version."""
VALUES = st.one_of(st.none(), st.sampled_from([0.0, 1.0, float("nan")]))
VIEW_ROWS = st.dictionaries(st.integers(0, KEYS - 1), VALUES, max_size=KEYS)


class Written:
    """A log in a lake, and what a reader must find there. Each version is a commit, a second after the one before."""

    def __init__(self, root: str, views: tuple[str, ...] = ("v",), limits: FoldLimits = USUAL_LIMITS) -> None:
        self.lake = OwnedLake(root, LakeRecord(8, (), {}), {})
        self.limits = limits
        self.views = views
        self.now = 0
        self.states: dict[str, dict[int, dict[int, float | None]]] = {view: {} for view in views}
        """By view and version, its rows."""
        self.changes: dict[str, list[Change]] = {view: [] for view in views}
        self.begins = {view: Epoch(1) for view in views}
        self.commits = 0

    def close(self) -> None:
        self.lake.release()

    def folding(self, retention_s: float | None = None) -> ChangeFolding:
        return ChangeFolding(self.lake, retention_s, clock=lambda: float(self.now), limits=self.limits)

    def version(self, rows: dict[int, float | None], workers: int = 1, view: str = "v") -> None:
        """The next version of a view. Each worker writes the changes of its keys; the other views stay."""
        self.now += 1
        version = self.now
        told: list[Change] = []
        for each in self.views:
            after = rows if each == view else self._state(each)
            told = self._told(self._state(each), after, version) if each == view else told
            self.states[each][version] = dict(after)
        self.changes[view] += told
        parts: list[ChangePart] = []
        for worker in range(workers):
            parts += self._parts(view, [change for change in told if change[0] % workers == worker])
        self._commit(version, parts)

    def begin_anew(self, view: str) -> None:
        """The view is declared anew: its log begins with the next version, with no rows."""
        self.now += 1
        self.begins[view] = Epoch(self.now)
        self.changes[view], self.states[view] = [], {self.now: {}}
        self._commit(self.now, [])

    def drop(self, view: str) -> None:
        self.now += 1
        del self.begins[view]
        self._commit(self.now, [])

    def _state(self, view: str) -> dict[int, float | None]:
        versions = self.states[view]
        return versions[max(versions)] if versions else {}

    @staticmethod
    def _told(before: dict[int, float | None], after: dict[int, float | None], version: int) -> list[Change]:
        told: list[Change] = []
        for key in sorted({*before, *after}):
            if key in before and key in after:
                if repr(before[key]) != repr(after[key]):
                    told.append((key, before[key], "update_preimage", version, version))
                    told.append((key, after[key], "update_postimage", version, version))
            elif key in before:
                told.append((key, before[key], "delete", version, version))
            else:
                told.append((key, after[key], "insert", version, version))
        return told

    def _parts(self, view: str, told: list[Change]) -> tuple[ChangePart, ...]:
        keys = pa.array([change[0] for change in told], pa.int64())
        hashes = hash64([keys], len(told))
        rows = pa.Table.from_arrays(
            [
                pa.array(hashes),
                keys,
                pa.array([change[1] for change in told], pa.float64(), from_pandas=False),
                pa.array([change[2] for change in told]),
                pa.array([change[3] for change in told], pa.int64()),
                pa.array([change[4] * 1_000_000 for change in told], pa.timestamp("us", tz="UTC")),
            ],
            schema=part_schema(VIEW),
        )
        return write_parts(
            self.lake, view, "test", rows.take(pa.array(np.argsort(hashes, kind="stable"))), self.limits.part_bytes_max
        )

    def _commit(self, version: int, parts: Any) -> None:
        self.commits += 1
        commit = ChangeCommit(
            number=self.commits,
            through=Epoch(version),
            term=self.lake.term,
            made_at=float(version),
            begins=dict(self.begins),
            parts=tuple(parts),
            first=self.commits,
        )
        records = [
            LogRecord(view=view, begins=begins, key=("k",), schema=VIEW, fingerprint="f")
            for view, begins in self.begins.items()
        ]
        commit_changes(self.lake, commit, records)

    def check(self, log: ChangeLog, view: str = "v") -> None:
        """Every reader that may read finds what was written."""
        first, last = log.first(view), log.last(view)
        assert last == self.now
        base = read(log.changes(view, None, first))
        assert {change[2:4] for change in base} <= {("insert", first)}
        assert Counter((k, repr(n)) for k, n, *_ in base) == Counter(
            (k, repr(n)) for k, n in self.states[view].get(first, {}).items()
        )
        assert all(at <= version for *_, version, at in base)
        for after in range(first, last + 1):
            found = read(log.changes(view, Epoch(after), last))
            assert sorted(map(repr, found)) == sorted(repr(c) for c in self.changes[view] if c[3] > after)
            assert [change[3] for change in found] == sorted(change[3] for change in found)
        stamps = [(c[4], c[3]) for c in [*base, *(c for c in self.changes[view] if c[3] > first)]]
        for second in range(max(first - 2, 1), last + 2):
            later = [version for at, version in stamps if at >= second]
            version = log.version_at(view, datetime.fromtimestamp(second, UTC))
            assert (version and version.version) == (later[0] if later else None)
        folded = log.folded(view)
        assert (folded is None) == (first == self.begins[view])
        if folded is not None:
            assert folded == (first, datetime.fromtimestamp(first, UTC))
            with pytest.raises(ChangesGone):
                read(log.changes(view, Epoch(first - 1), last))


def read(batches: Iterable[pa.RecordBatch]) -> list[Change]:
    rows: list[Change] = []
    for batch in batches:
        stamps = batch.column("_commit_timestamp").cast(pa.int64()).to_pylist()
        columns = [batch.column(name).to_pylist() for name in ("k", "n", "_change_type", "_commit_version")]
        rows += [(*row, stamp // 1_000_000) for *row, stamp in zip(*columns, stamps, strict=True)]
    return rows


def fold_all(folding: ChangeFolding) -> int:
    count = 0
    while folding.fold() is not None:
        count += 1
    return count


@pytest.fixture
def written(tmp_path: Path) -> Iterator[Written]:
    with closing(Written(str(tmp_path / "lake"))) as made:
        yield made


@pytest.fixture
def two(tmp_path: Path) -> Iterator[Written]:
    with closing(Written(str(tmp_path / "lake"), ("v", "w"))) as made:
        yield made


def counted(written: Written) -> tuple[int, int, int]:
    """How many commits, folds and parts there are."""
    files = written.lake.files
    return len(files.names(COMMITS)), len(files.names(FOLDS)), len(files.tree(ROWS))


# Any history


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[str, Any]]:
    steps = st.one_of(
        st.tuples(st.just("version"), st.tuples(VIEW_ROWS, st.integers(1, 3))),
        st.tuples(st.just("quiet"), st.integers(1, 9)),
        st.tuples(st.just("fold"), st.sampled_from([None, 0.0, 5.0, 20.0, 100.0])),
        st.tuples(st.just("remove"), st.sampled_from([0.0, 10.0])),
        st.tuples(st.just("anew"), st.none()),
        st.tuples(st.just("crash"), st.integers(0, 3)),
    )
    return draw(st.lists(steps, max_size=12))


@settings(max_examples=25, deadline=None)
@given(histories())
def test_readers_find_every_change_whatever_is_folded(history: list[tuple[str, Any]]) -> None:
    with TemporaryDirectory() as root, closing(Written(root, limits=FoldLimits(fanout=3))) as written:
        log = ChangeLog(written.lake)
        written.version({0: 1.0, 1: None})
        for step, given_to in history:
            _carry_out(written, step, given_to)
        written.check(log)
        written.check(ChangeLog(written.lake))


def _carry_out(written: Written, step: str, given_to: Any) -> None:
    match step:
        case "version":
            written.version(*given_to)
        case "quiet":
            for _ in range(given_to):
                written.version(written.states["v"][written.now])
        case "fold":
            fold_all(written.folding(given_to))
        case "remove":
            written.folding().remove(given_to)
        case "anew":
            written.begin_anew("v")
        case "crash":
            files = written.lake.files
            written.lake.files = FailingFiles(files, given_to)
            folding = written.folding(0.0)
            written.now += 1_000
            try:
                fold_all(folding)
                folding.remove(0.0)
            except Interrupted:
                pass
            written.now -= 1_000
            written.lake.files = files
            sweep_changes(written.lake, ChangeLog(written.lake))


# Merging


def test_a_log_that_grows_has_few_files(written: Written) -> None:
    written.limits = FoldLimits(fanout=4)
    folding = written.folding()
    for number in range(4**3 + 4**2 + 3):
        written.version({0: float(number)})
        fold_all(folding)
        folding.remove(0.0)
    commits, folds, parts = counted(written)
    assert parts == commits + folds
    assert commits + folds == 5  # the log's first rows, which stay as they are, then 64 commits, 16, 1 and 1
    written.check(ChangeLog(written.lake))


def test_a_large_commit_stays_as_it_is(written: Written) -> None:
    written.limits = FoldLimits(merge_bytes_max=1)
    for number in range(2 * USUAL_LIMITS.fanout):
        written.version({0: float(number)})
    assert fold_all(written.folding()) == 0


def test_versions_that_are_kept_are_merged_with_those_that_go_soon_after(written: Written) -> None:
    for number in range(4 * USUAL_LIMITS.fanout):
        written.version({0: float(number)})
    assert fold_all(written.folding(retention_s=2.0 * USUAL_LIMITS.fanout)) == 1  # just those that are older
    assert fold_all(written.folding(retention_s=8.0 * USUAL_LIMITS.fanout)) == 2


# Retention


def test_old_versions_become_the_rows_of_the_last_of_them(written: Written) -> None:
    for number in range(10):
        written.version({0: float(number), 1 + number % 3: None})
    folding, log = written.folding(retention_s=4.5), ChangeLog(written.lake)
    assert fold_all(folding) == 1
    assert log.first("v") == 5
    assert read(log.changes("v", None, Epoch(5))) == [(0, 4.0, "insert", 5, 5), (2, None, "insert", 5, 5)]
    written.check(log)
    assert folding.remove(1.0) == RemovedChanges()
    assert counted(written) == (10, 1, 11)
    written.now += 1
    assert folding.remove(1.0).files == 5
    written.now -= 1
    written.check(log)
    assert counted(written) == (5, 1, 6)


def test_few_old_changes_of_a_large_view_wait_for_more(written: Written) -> None:
    written.version(dict.fromkeys(range(100), 1.0))
    for number in range(30):
        written.version({**dict.fromkeys(range(100), 1.0), 0: float(number)})
    folding = written.folding(0.0)
    written.now += 1
    fold_all(folding)
    assert ChangeLog(written.lake).first("v") == 31  # 60 changes of 100 rows
    written.now -= 1
    written.version({**dict.fromkeys(range(100), 1.0), 0: 7.0})
    written.now += 1
    assert fold_all(folding) == 0
    written.now -= 1
    written.check(ChangeLog(written.lake))


def test_the_log_of_a_quiet_view_stays_beside_one_that_changes(two: Written) -> None:
    written = two
    written.version({0: 1.0}, view="w")
    for number in range(10):
        written.version({0: float(number)})
    written.now += 1
    fold_all(written.folding(0.0))
    written.now -= 1
    log = ChangeLog(written.lake)
    assert (log.first("v"), log.first("w")) == (11, 1)
    written.check(log, "v")
    written.check(log, "w")


def test_a_log_that_has_ended_goes_with_its_versions_and_its_end_is_remembered(two: Written) -> None:
    written = two
    written.version({0: 1.0}, view="w")
    written.drop("w")
    written.version({0: 1.0})
    log = ChangeLog(written.lake)
    assert log.views() == ["v", "w"]
    written.now += 1
    fold_all(written.folding(0.0))
    written.now -= 1
    assert log.views() == ["v"]
    with pytest.raises(UnknownView):
        log.last("w")
    assert log.end().ends == {"v": 3, "w": 1}
    written.check(log)


def test_rows_of_large_views_are_added_up_some_keys_at_a_time(written: Written) -> None:
    written.limits = FoldLimits(net_bytes_max=2_000, part_bytes_max=300)
    for number in range(4):
        written.version({key: float(number + key % 3) for key in range(20 + 10 * number)}, workers=3)
    written.now += 1
    fold_all(written.folding(0.0))
    written.now -= 1
    log = ChangeLog(written.lake)
    assert log.first("v") == 4
    written.check(log)
    (base,) = log.commits()
    assert len(base.parts) > 5
    groups = [read(log.changes("v", None, Epoch(4), group)) for group in VnodeGroup.all(8, 3)]
    assert sorted(row for rows in groups for row in rows) == sorted(read(log.changes("v", None, Epoch(4))))


def test_a_change_of_a_row_that_the_view_did_not_have_is_damage(written: Written) -> None:
    written.version({0: 1.0})
    written.states["v"][1] = {0: 2.0}
    written.version({})
    written.now += 1
    with pytest.raises(CorruptFile, match="the change log of view 'v' removes a row that the view did not have"):
        fold_all(written.folding(0.0))


def test_collection_of_a_stopped_root_removes_what_was_folded(written: Written) -> None:
    for number in range(6):
        written.version({0: float(number)})
    written.now += 1
    fold_all(written.folding(0.0))
    written.lake.files.create(f"{ROWS}/v/litter.arrow", b"of a worker that was lost")
    written.now -= 1
    removed = collect_changes(written.lake, 0.0)
    assert (removed.files, removed.parts) == (6, 6)
    assert counted(written) == (0, 1, 1)
    written.check(ChangeLog(written.lake))


# Readers meanwhile


@pytest.mark.parametrize("retention_s", [None, 3.5])
@pytest.mark.parametrize("pause", [30, 31, 60])  # before the versions that stay, within one, behind them
def test_a_reader_goes_on_over_a_fold(written: Written, retention_s: float | None, pause: int) -> None:
    written.limits = FoldLimits(part_bytes_max=300)
    for number in range(2 * USUAL_LIMITS.fanout):
        written.version({key: float(number) for key in range(12)}, workers=2)
    log, last = ChangeLog(written.lake), Epoch(written.now)
    truth = read(log.changes("v", Epoch(1), last))
    batches = log.changes("v", Epoch(1), last)
    found = [next(batches) for _ in range(pause)]
    folding = written.folding(retention_s)
    assert fold_all(folding)
    assert folding.remove(0.0).parts
    if retention_s is not None and found[-1].column("_commit_version")[-1].as_py() <= log.first("v"):
        with pytest.raises(ChangesGone):
            list(batches)
    else:
        assert read([*found, *batches]) == truth


def test_a_reader_from_the_start_is_told_if_the_start_has_moved(written: Written) -> None:
    written.limits = FoldLimits(part_bytes_max=300)
    written.version(dict.fromkeys(range(40), 1.0), workers=2)
    written.version(dict.fromkeys(range(40), 2.0), workers=2)
    log = ChangeLog(written.lake)
    batches = log.changes("v", None, Epoch(2))
    next(batches)
    written.now += 1
    folding = written.folding(0.0)
    fold_all(folding)
    folding.remove(0.0)
    with pytest.raises(ChangesGone, match=r"after version 1 are gone.*is 2"):
        list(batches)
    written.now -= 1
    written.check(log)


def test_a_part_that_is_gone_is_named(written: Written) -> None:
    written.version({0: 1.0})
    (path,) = written.lake.files.tree(ROWS)
    written.lake.files.remove(path)
    with pytest.raises(CorruptFile, match="a file of the changes of view 'v' is gone"):
        read(ChangeLog(written.lake).changes("v", None, Epoch(1)))


def test_a_driver_that_has_lost_the_root_folds_nothing(written: Written) -> None:
    for number in range(USUAL_LIMITS.fanout + 1):
        written.version({0: float(number)})
    folding = written.folding()
    written.lake.files.create("control/00000002.json", b"")  # another driver's
    with pytest.raises(LakeInUse):
        folding.fold()
    written.lake.files.remove("control/00000002.json")
    written.check(ChangeLog(written.lake))
