"""Drivers that succeed each other: late writes of the earlier one lose nothing, and it stops. Real processes."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from select import select

import pytest
from s3_kit import S3Server
from segments_kit import BY_K, EVENTS, Row, compacted, named, owned, publish, rows_through

from upriver.errors import CorruptFile, LakeInUse, NotWritten
from upriver.ids import Epoch
from upriver.lake.address import Root
from upriver.lake.change_upkeep import ChangeUpkeep
from upriver.lake.collection import remove_litter
from upriver.lake.files import open_files
from upriver.lake.ingest_history import fence
from upriver.lake.lake import Lake, OwnedLake
from upriver.lake.object_store import open_object_store
from upriver.lake.source_records import SourceRecord, current_source, source_of

PROGRAM = Path(__file__).parents[1] / "support" / "programs" / "lake_driver.py"
WAIT_S = 60.0


class Driver:
    """A driver in a process of its own."""

    def __init__(self, root: str) -> None:
        options = json.dumps(dict(root.options)) if isinstance(root, Root) else ""
        self.process = subprocess.Popen(
            [sys.executable, str(PROGRAM), root, options], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def told(self) -> str:
        """The next line that it says."""
        assert self.process.stdout is not None
        assert select([self.process.stdout], [], [], WAIT_S)[0], "the driver says nothing"
        return self.process.stdout.readline().strip()

    def tell(self, work: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{work}\n")
        self.process.stdin.flush()

    def does(self, work: str) -> str:
        self.tell(work)
        return self.told()


@pytest.fixture
def drive() -> Iterator[Callable[[str], Driver]]:
    started: list[Driver] = []

    def drive(root: str) -> Driver:
        started.append(Driver(root))
        return started[-1]

    yield drive
    for driver in started:
        driver.process.kill()
        driver.process.communicate()


def keys_of(lake: Lake) -> list[Row]:
    return sorted(row[1:] for row in rows_through(lake, BY_K))


# Two drivers on an S3 server --------------------------------------------------------------------------------------


@pytest.mark.verify
def test_a_late_epoch_of_a_succeeded_driver_is_refused(s3: S3Server, drive: Callable[[str], Driver]) -> None:
    root = s3.new_root()
    first = drive(root)
    assert (first.told(), first.does("publish")) == ("1", "done")
    s3.delay("epochs/000000000002.json")
    first.tell("publish")
    s3.wait_held()
    second = drive(root)
    assert (second.told(), second.does("sweep")) == ("2", "done")
    s3.land()
    says = first.told()
    assert "another driver has taken it over; this one must stop" in says
    assert f"The driver of term 2 (process {second.process.pid} on here) owns it" in says
    lake = Lake(root)
    assert set(lake.run_paths()) == named(lake)
    assert second.does("publish") == "done"
    assert "another driver has taken it over" in first.does("publish")
    assert [lake.manifest(Epoch(epoch)).term for epoch in (1, 2, 3)] == [1, 2, 2]
    assert keys_of(lake) == [(0, 0), (2, 2)]  # what the first lost is read again from its source


@pytest.mark.verify
def test_a_late_segment_of_a_succeeded_driver_does_not_count(s3: S3Server, drive: Callable[[str], Driver]) -> None:
    root = s3.new_root()
    first = drive(root)
    assert first.told() == "1"
    assert [first.does("publish") for _ in range(16)] == ["done"] * 16
    s3.delay("segments/000000000016-000000000001@00000001.json")
    first.tell("compact")
    s3.wait_held()
    second = drive(root)
    assert (second.told(), second.does("sweep")) == ("2", "done")
    s3.land()
    assert "another driver has taken it over" in first.told()  # the store has taken it, and the seal does not have it
    lake = Lake(root)
    assert lake.files.names("segments") == ["000000000016-000000000001@00000001.json"]
    assert lake.segments() == frozenset()
    assert keys_of(lake) == [(epoch, epoch) for epoch in range(16)]
    assert second.does("compact") == "done"
    assert len(lake.segments()) == 1
    assert keys_of(lake) == [(epoch, epoch) for epoch in range(16)]
    with owned(root) as third:
        third.sweep()
    assert lake.files.names("segments") == ["000000000016-000000000001@00000002.json"]
    assert keys_of(Lake(root)) == [(epoch, epoch) for epoch in range(16)]


# What a successor does, in one process ----------------------------------------------------------------------------


@pytest.mark.verify
def test_a_first_driver_fences_nothing_and_a_successor_once(s3: S3Server) -> None:
    root = s3.new_root()
    with owned(root) as first:
        for _ in range(14):
            publish(first, EVENTS, [(1, 1)])
        first.sweep()
        assert (first.last_epoch(), first.files.names("seals")) == (14, [])
    for term in (2, 3, 4):
        with owned(root) as lake:
            fence(lake)
            lake.sweep()
            remove_litter(lake, lake.run_paths())
            assert (lake.term, lake.last_epoch()) == (term, 13 + term)
            assert lake.files.names("seals") == [f"{term:08d}.json"]
            assert lake.manifest(lake.last_epoch()).batches == {}
            compacted(lake)
    assert [len(span) for span in Lake(root).spans(Epoch(17))] == [16, 1]
    assert keys_of(Lake(root)) == [(1, 1)] * 14


@pytest.mark.verify
def test_a_start_that_finds_manifests_lost_writes_no_fence_in_their_place(s3: S3Server) -> None:
    root = s3.new_root()
    with owned(root) as first:
        publish(first, EVENTS, [(1, 1)])
        first.files.create("ingest/events/commits/5", b"v1\n{}")
    with owned(root) as second:
        with pytest.raises(CorruptFile, match="the last manifests are gone"):
            fence(second)
        assert second.last_epoch() == 1


@pytest.mark.verify
def test_a_late_source_of_a_succeeded_driver_does_not_count(s3: S3Server) -> None:
    root = s3.new_root()
    with owned(root) as first:
        source_of(first, "events", "topic", None, replaces_others=False)
    with owned(root) as second:
        with owned(root) as third:
            fence(third)
            second.write_record(
                second.own_path("sources/events/2.json"), SourceRecord("another topic", 1, "q").to_json()
            )
            assert current_source(third, "events") == SourceRecord("topic")
            assert source_of(third, "events", "third", None, replaces_others=False) == SourceRecord("third")
        assert current_source(Lake(root), "events") == SourceRecord("third")


@pytest.mark.verify
def test_the_root_is_tried_though_an_answer_is_lost(s3: S3Server) -> None:
    """The second attempt of a create finds the file that it was to find, and does not take it for its own."""
    root, pauses = s3.new_root(), list[float]()

    class Losing:
        """Files that lose the answer to the second create of a term."""

        def __init__(self) -> None:
            self._files, self._creates = open_object_store(root, pauses.append), 0

        def create(self, path: str, content: bytes) -> None:
            self._creates += path.startswith("control/")
            if path.startswith("control/") and self._creates == 2:
                s3.lose_answer(path)
            self._files.create(path, content)

        def __getattr__(self, name: str) -> object:
            return getattr(self._files, name)

    with owned(root) as first:
        record = first.record()
    assert record is not None
    assert OwnedLake(root, record, {}, Losing()).term == 2  # type: ignore[arg-type]
    assert len(pauses) == 1


def test_an_own_commit_that_seemed_to_fail_is_no_reason_to_stop(tmp_path: Path) -> None:
    told: list[LakeInUse] = []
    with owned(tmp_path) as lake:
        lake.on_succeeded(told.append)
        for epoch in range(16):
            publish(lake, EVENTS, [(epoch, epoch)])
        (segment,) = compacted(lake)
        with pytest.raises(NotWritten, match="is there, by an attempt that seemed to fail"):
            lake.publish_segment(segment)
        assert told == []
        lake.release()
        with owned(tmp_path), pytest.raises(LakeInUse, match="The driver of term 2 owns it: stop this app"):
            lake.publish_segment(segment)
    assert [str(error).partition(": ")[0] for error in told] == [str(tmp_path)]


def test_an_idle_driver_learns_that_it_was_succeeded(tmp_path: Path) -> None:
    told = threading.Event()
    with owned(tmp_path) as lake:
        lake.on_succeeded(lambda _: told.set())
        upkeep = ChangeUpkeep(lake, retention_s=0.4, grace_s=0.0)
        lake.release()
        with owned(tmp_path):
            upkeep.start()
            assert told.wait(WAIT_S)
            upkeep.stop()


@pytest.mark.verify
def test_a_root_that_was_copied_from_a_store_goes_on_by_its_seal(s3: S3Server, tmp_path: Path) -> None:
    root = s3.new_root()
    with owned(root) as lake:
        for key in range(15):
            publish(lake, EVENTS, [(key, 0)])
    with owned(root) as lake:
        fence(lake)
        compacted(lake)
    local = open_files(str(tmp_path))
    for path in lake.files.tree(""):
        local.create(path, lake.files.read(path))
    with owned(tmp_path) as here:
        for key in range(15, 31):
            publish(here, EVENTS, [(key, 0)])
        compacted(here)
        here.sweep()
        remove_litter(here, here.run_paths())
        assert [len(span) for span in Lake(str(tmp_path)).spans(Epoch(32))] == [16, 16]
        assert keys_of(here) == [(key, 0) for key in range(31)]


# The lock of a local root -----------------------------------------------------------------------------------------


def test_of_two_processes_that_open_a_local_root_one_owns_it(tmp_path: Path, drive: Callable[[str], Driver]) -> None:
    both = [drive(str(tmp_path)), drive(str(tmp_path))]
    told = [driver.told() for driver in both]
    (owner,) = [driver for driver, term in zip(both, told, strict=True) if term == "1"]
    (refused,) = [term for term in told if term != "1"]
    assert refused.startswith(f"LakeInUse: {tmp_path} is in use by process {owner.process.pid} on ")
    assert owner.does("publish") == "done"


@pytest.mark.verify
def test_a_stopped_owner_keeps_a_local_root_and_a_killed_one_frees_it(
    tmp_path: Path, drive: Callable[[str], Driver]
) -> None:
    owner = drive(str(tmp_path))
    assert (owner.told(), owner.does("publish")) == ("1", "done")
    os.kill(owner.process.pid, signal.SIGSTOP)
    assert drive(str(tmp_path)).told().startswith(f"LakeInUse: {tmp_path} is in use by process {owner.process.pid} on ")
    os.kill(owner.process.pid, signal.SIGCONT)
    assert owner.does("publish") == "done"
    owner.process.kill()
    successor = drive(str(tmp_path))
    assert (successor.told(), successor.does("sweep"), successor.does("publish")) == ("2", "done", "done")
    lake = Lake(str(tmp_path))
    assert [lake.manifest(Epoch(epoch)).term for epoch in (1, 2, 3)] == [1, 1, 2]  # the lock is fence enough
    assert lake.files.names("seals") == []
