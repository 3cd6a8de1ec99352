"""Which files are removed, and when; whatever is interrupted, readers find every row, and nothing is left for good."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from failing_files_kit import FailingFiles, Interrupted
from segments_kit import (
    BY_ID,
    BY_K,
    BY_N,
    EVENTS,
    USERS,
    Row,
    compacted,
    named,
    owned,
    publish,
    rows_in,
    rows_through,
    write_run,
)

from upriver.errors import CorruptFile, LakeInUse
from upriver.ids import Epoch
from upriver.lake.collection import RemovedFiles, collect, remove_litter, superseded
from upriver.lake.lake import CommitTimes, Lake, OwnedLake
from upriver.lake.spans import EpochSpan, single

LATER = 10.0**12
"""Seconds since 1970: any segment is older."""
FIRST = EpochSpan(Epoch(1), Epoch(16))
WHOLE = EpochSpan(Epoch(1), Epoch(256))


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[OwnedLake]:
    with owned(tmp_path) as lake:
        yield lake


def publish_some(lake: OwnedLake, epochs: int) -> None:
    """A row for each epoch, and one epoch of another table, whose runs go on as they are."""
    for number in range(epochs):
        if number % 16 == 3:
            publish(lake, USERS, [(number, 1, "Ulm"), (7, number, None)])
        else:
            publish(lake, EVENTS, [(number % 3, number)])


def spans_of(lake: Lake, horizon: int | None = None, made_before: float = LATER) -> list[EpochSpan]:
    return list(superseded(lake, lake.last_epoch() if horizon is None else Epoch(horizon), made_before))


def all_rows(lake: Lake) -> dict[str, list[Row]]:
    return {channel: rows_through(lake, channel) for channel in (BY_K, BY_N, BY_ID)}


def test_what_a_segment_has_is_superseded_up_to_the_horizon_and_after_the_grace(lake: OwnedLake) -> None:
    publish_some(lake, 33)
    assert spans_of(lake) == []
    segments = compacted(lake)
    made_at = segments[0].made_at
    singles = [single(epoch) for epoch in range(1, 33)]
    assert spans_of(lake) == singles
    assert spans_of(lake, 31) == singles[:16]
    assert spans_of(lake, 15) == []
    assert spans_of(lake, made_before=made_at) == []


def test_of_a_young_segment_only_what_older_ones_have_is_superseded(lake: OwnedLake) -> None:
    publish_some(lake, 20)
    while lake.last_epoch() < 256:
        publish(lake, EVENTS, [])
    segments = compacted(lake)
    whole, last = segments[-1], segments[-2]
    assert whole.span == WHOLE
    assert whole.made_at > last.made_at
    assert spans_of(lake, made_before=whole.made_at) == [single(epoch) for epoch in range(1, 257)]
    ordered = spans_of(lake)
    assert ordered == [*map(single, range(1, 257)), *(segment.span for segment in segments[:-1])]
    rows = all_rows(lake)
    collect(lake, ordered)
    assert lake.segments() == {WHOLE}
    assert set(lake.run_paths()) == named(lake)
    assert all_rows(lake) == rows
    assert spans_of(lake) == []


def test_runs_that_a_segment_carries_over_stay_and_all_others_go(lake: OwnedLake) -> None:
    publish_some(lake, 33)
    carried = tuple(replace(run, epoch=4) for run in lake.manifest(Epoch(4)).runs[BY_ID])
    gone = [
        run
        for epoch in range(1, 17)
        if epoch != 4
        for runs in lake.manifest(Epoch(epoch)).runs.values()
        for run in runs
    ]
    compacted(lake)
    rows = all_rows(lake)
    removed = collect(lake, spans_of(lake, 16))
    assert removed == RemovedFiles(16, len(gone), sum(run.bytes for run in gone))
    assert lake.segment(FIRST).runs[BY_ID] == carried
    assert sorted(lake.numbers("epochs")) == list(range(17, 34))
    collect(lake, spans_of(lake))
    assert set(lake.run_paths()) == named(lake)
    assert all_rows(Lake(lake.root)) == rows
    assert lake.last_epoch() == 33
    with pytest.raises(CorruptFile, match=r"000000000005\.json: the file is gone"):
        lake.manifest(Epoch(5))


def test_one_collection_removes_no_more_than_its_bound(lake: OwnedLake) -> None:
    publish_some(lake, 16)
    compacted(lake)
    assert collect(lake, spans_of(lake), most=5).epochs == 5
    assert sorted(lake.numbers("epochs")) == list(range(6, 17))
    assert collect(lake, spans_of(lake)).epochs == 11


def test_a_driver_that_has_lost_the_root_removes_nothing(lake: OwnedLake) -> None:
    publish_some(lake, 16)
    compacted(lake)
    spans, files = spans_of(lake), lake.run_paths()
    lake.release()
    with owned(lake.root):
        with pytest.raises(LakeInUse):
            collect(lake, spans)
        with pytest.raises(LakeInUse):
            remove_litter(lake, files)
    assert lake.run_paths() == files


def compact_and_collect(lake: OwnedLake) -> None:
    compacted(lake)
    collect(lake, spans_of(lake))


def interrupted(root: str, changes: int, work: Callable[[OwnedLake], object]) -> bool:
    """Do some work that ends after so many changes of files; whether it was interrupted."""
    with owned(root) as lake:
        lake.files = FailingFiles(lake.files, changes)
        try:
            work(lake)
        except Interrupted:
            return True
    return False


def test_after_a_crash_at_any_change_all_rows_are_there_and_no_litter_stays(tmp_path: Path) -> None:
    """The work is interrupted again and again, after one change, two changes, and so on."""
    with owned(tmp_path) as lake:
        publish_some(lake, 18)
        rows = all_rows(lake)
    changes = 0
    while interrupted(str(tmp_path), changes := changes + 1, compact_and_collect):
        with owned(tmp_path) as lake:
            assert all_rows(Lake(lake.root)) == rows
            known, before = named(lake), set(lake.run_paths())
            assert known <= before
            removed = remove_litter(lake, sorted(before))
            assert removed.runs == len(before - known)
            assert set(lake.run_paths()) == known
            assert all_rows(Lake(lake.root)) == rows
    assert changes > 5
    with owned(tmp_path) as lake:
        assert all_rows(lake) == rows
        assert sorted(lake.numbers("epochs")) == [17, 18]
        assert set(lake.run_paths()) == named(lake)


def test_runs_that_were_written_since_are_no_litter(lake: OwnedLake) -> None:
    publish_some(lake, 2)
    write_run(lake, EVENTS, ("k",), [(1, 1)])
    suspects = lake.run_paths()
    later = write_run(lake, EVENTS, ("k",), [(2, 2)])
    assert remove_litter(lake, suspects).runs == 1
    assert set(lake.run_paths()) == {later.path} | named(lake)


class Indexed:
    """A lake whose epochs are in a segment, and which has got an index since: only the segment has a supplement."""

    def __init__(self, lake: OwnedLake) -> None:
        self.lake = lake
        for number in range(17):
            publish(lake, EVENTS, [(number % 3, number)], [("k",)])
        compacted(lake)
        for span in lake.spans(lake.last_epoch()):
            rows = [row[1:] for row in rows_in(lake, lake.epochs(span), BY_K)]
            lake.supplement(BY_N, span, [write_run(lake, EVENTS, ("n",), rows)])
        lake.complete("events", ("n",))
        self.rows = [rows_through(lake, channel) for channel in (BY_K, BY_N)]

    def check(self) -> None:
        assert [rows_through(Lake(self.lake.root), channel) for channel in (BY_K, BY_N)] == self.rows


@pytest.fixture
def indexed(tmp_path: Path) -> Iterator[Indexed]:
    with owned(tmp_path, {"events": (("k",),), "users": (("id",),)}) as lake:
        yield Indexed(lake)


def test_epochs_without_a_later_index_are_collected(indexed: Indexed) -> None:
    lake = indexed.lake
    assert remove_litter(lake, lake.run_paths()).runs == 0
    removed = collect(lake, spans_of(lake))
    assert (removed.epochs, removed.runs) == (16, 16)
    indexed.check()
    assert len(lake.run_paths()) == 4
    assert remove_litter(lake, lake.run_paths()).runs == 0


def test_supplements_go_with_their_epochs(tmp_path: Path) -> None:
    with owned(tmp_path, {"events": (("k",),), "users": (("id",),)}) as lake:
        for number in range(17):
            publish(lake, EVENTS, [(number % 3, number)], [("k",)])
            lake.supplement(BY_N, single(number + 1), [write_run(lake, EVENTS, ("n",), [(number % 3, number)])])
        lake.complete("events", ("n",))
        rows = rows_through(lake, BY_N)
        compacted(lake)
        assert collect(lake, spans_of(lake)).runs == 32
        assert lake.supplemented(BY_N) == {single(17)}
        assert rows_through(Lake(lake.root), BY_N) == rows
        assert remove_litter(lake, lake.run_paths()).runs == 0


def test_supplements_of_an_interrupted_collection_are_litter(tmp_path: Path) -> None:
    indexes: dict[str, tuple[tuple[str, ...], ...]] = {"events": (("k",),), "users": (("id",),)}
    with owned(tmp_path, indexes) as lake:
        for number in range(16):
            publish(lake, EVENTS, [(number % 3, number)], [("k",)])
            lake.supplement(BY_N, single(number + 1), [write_run(lake, EVENTS, ("n",), [(number % 3, number)])])
        lake.complete("events", ("n",))
        rows = rows_through(lake, BY_N)
        compacted(lake)
        lake.files = FailingFiles(lake.files, 1)
        with pytest.raises(Interrupted):
            collect(lake, spans_of(lake))
    with owned(tmp_path, {**indexes, "events": (("k",), ("n",))}) as lake:
        assert lake.supplemented(BY_N) == set(map(single, range(1, 17)))
        assert remove_litter(lake, lake.run_paths()).runs == 2
        assert lake.supplemented(BY_N) == set(map(single, range(2, 17)))
        assert rows_through(lake, BY_N) == rows


def test_the_time_of_a_commit_is_known_after_its_epoch_has_become_a_segment(lake: OwnedLake) -> None:
    publish_some(lake, 17)
    compacted(lake)
    collect(lake, list(superseded(lake, lake.last_epoch(), LATER)))
    times = CommitTimes(lake)
    assert [times.of(Epoch(epoch)) for epoch in (15, 16, 17)] == [None, 1016.0, 1017.0]
