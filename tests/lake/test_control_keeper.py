"""The thread that writes control records: what the coordinator hears, and what a disk that fails does."""

import queue
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from checkpoint_kit import RECORD, a_lake
from coordinator_kit import PLAN

from upriver.coordinator.freshness import ReadThrough
from upriver.errors import LakeInUse, NotWritten, UpriverError, WaitTimeout
from upriver.ids import Epoch
from upriver.lake.control import ControlRecord, FoundControl, RescaleCost, find_control
from upriver.lake.control_keeper import ControlKeeper
from upriver.lake.files import Files
from upriver.lake.lake import OwnedLake
from upriver.protocol.coordinator_events import (
    ControlUnwritten,
    ControlWritten,
    CoordinatorEvent,
    RescaleBegun,
    RescaleEnded,
    RescaleOutcome,
    WriteControl,
)
from upriver.vnodes import Placement

WAIT_S = 20
AT = 1_700_000_000.0


class Disk:
    """Files of a disk that takes as many new files as there are permits, one at a time, and then fails or waits."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self.fails: Exception | None = None
        self.permits: queue.SimpleQueue[None] | None = None
        self.begun: queue.SimpleQueue[str] = queue.SimpleQueue()

    def create(self, path: str, content: bytes | pa.Buffer) -> None:
        self.begun.put(path)
        if self.permits is not None:
            self.permits.get(timeout=WAIT_S)
        if self.fails is not None:
            raise self.fails
        self._files.create(path, content)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._files, name)


class Driver:
    """A keeper of a lake, and what it tells the coordinator."""

    def __init__(self, lake: OwnedLake) -> None:
        kept = lake.record()
        assert kept is not None
        self.first = Placement.initial(kept.vnodes, 2)
        self.disk = lake.files = Disk(lake.files)
        self.lake = lake
        self.keeper = ControlKeeper(lake, find_control(lake), self.first, lambda: AT)
        self.heard: queue.SimpleQueue[CoordinatorEvent] = queue.SimpleQueue()
        self.keeper.start(self.heard.put)

    def wants(self, number: int, workers: int = 2, begins: int | None = None, ends: int | None = None) -> None:
        begun = None if begins is None else RescaleBegun(ticket=begins, before=2, after=3, vnodes=1)
        ended = None if ends is None else RescaleEnded(ticket=ends, outcome=RescaleOutcome.FINISHED, vnodes=1)
        placement = self.first.resized(workers)
        action = WriteControl(number=number, placement=placement, begins=begun, ends=ended)
        self.keeper.carry_out(action, (PLAN,), "icadd", RescaleCost(seconds=2.0, moved_keys=1, moved_bytes=2))

    def hears(self) -> CoordinatorEvent:
        return self.heard.get(timeout=WAIT_S)

    @property
    def recorded(self) -> ControlRecord:
        found = find_control(self.lake).record
        assert found is not None
        return found


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[Driver]:
    lakes = a_lake(tmp_path)
    driver = Driver(next(lakes))
    yield driver
    driver.disk.permits = None
    driver.keeper.stop()
    driver.lake.release()


def test_a_record_is_written_and_the_coordinator_hears_of_it(driver: Driver) -> None:
    driver.wants(1, workers=3)
    assert driver.hears() == ControlWritten(number=1)
    assert driver.recorded.placement == driver.first.resized(3)
    assert [view.name for view in driver.recorded.views] == ["rows"]
    assert driver.keeper.unwritten() is None
    driver.keeper.wait_written(WAIT_S)


def test_how_far_sources_are_read_is_recorded_for_the_next_driver(driver: Driver) -> None:
    driver.wants(1)
    assert driver.hears() == ControlWritten(number=1)
    driver.keeper.read_through({"orders": ReadThrough(AT, Epoch(3)), "users": ReadThrough(AT, Epoch(2))})
    driver.keeper.read_through({"orders": ReadThrough(AT + 1, Epoch(4))})
    driver.keeper.stop()
    assert driver.heard.empty()  # the coordinator does not wait for it
    marks = {"orders": ReadThrough(AT + 1, Epoch(4)), "users": ReadThrough(AT, Epoch(2))}
    assert driver.recorded.marks == marks
    following = ControlKeeper(driver.lake, find_control(driver.lake), driver.first)
    assert following.marks_but_of(()) == marks
    assert following.marks_but_of(["users"]) == following.marks_but_of(()) == {"orders": marks["orders"]}


def test_a_disk_that_fails_meanwhile_harms_no_record(driver: Driver) -> None:
    driver.disk.fails = NotWritten("full")
    driver.keeper.read_through({"orders": ReadThrough(AT, Epoch(3))})
    driver.disk.begun.get(timeout=WAIT_S)
    driver.disk.fails = None
    driver.wants(1)
    assert driver.hears() == ControlWritten(number=1)
    assert driver.recorded.marks == {"orders": ReadThrough(AT, Epoch(3))}
    assert driver.keeper.unwritten() is None


def test_the_caller_does_not_wait_for_the_lake_and_the_last_record_says_it_all(driver: Driver) -> None:
    driver.disk.permits = queue.SimpleQueue()
    driver.wants(1)
    driver.disk.begun.get(timeout=WAIT_S)
    driver.wants(2, begins=0)
    driver.wants(3, workers=3, ends=0)
    for _ in range(2):
        driver.disk.permits.put(None)
    assert [driver.hears(), driver.hears()] == [ControlWritten(number=1), ControlWritten(number=3)]
    (entry,) = driver.recorded.rescales
    assert (entry.outcome, entry.seconds, entry.strategy, entry.before, entry.after) == ("finished", 2.0, "icadd", 2, 3)
    assert driver.keeper.rescales() == driver.recorded.rescales_to_json()


def test_a_failed_write_is_told_and_the_next_record_is_tried_at_once(driver: Driver) -> None:
    full = NotWritten("the disk is full")
    driver.disk.fails = full
    driver.wants(1)
    assert driver.hears() == ControlUnwritten(number=1, error=full)
    assert driver.keeper.unwritten() == "the disk is full"
    driver.disk.fails = None
    driver.wants(2, workers=3)
    while driver.hears() != ControlWritten(number=2):  # the first may be tried again before
        pass
    assert driver.keeper.unwritten() is None
    assert driver.recorded.placement == driver.first.resized(3)


def test_a_failed_write_is_tried_again(driver: Driver) -> None:
    driver.disk.fails = OSError("odd")
    driver.wants(1)
    unwritten = driver.hears()
    assert isinstance(unwritten, ControlUnwritten)
    assert isinstance(unwritten.error, UpriverError)
    driver.disk.fails = None
    while (heard := driver.hears()) != ControlWritten(number=1):
        assert isinstance(heard, ControlUnwritten)


def test_a_driver_that_was_succeeded_tries_no_write_again(driver: Driver) -> None:
    driver.lake.release()
    successor = OwnedLake(driver.lake.root, RECORD, {})
    driver.wants(1)
    told = driver.hears()
    assert isinstance(told, ControlUnwritten)
    assert isinstance(told.error, LakeInUse)
    driver.keeper.stop()
    assert driver.heard.empty()
    successor.release()


def test_a_start_waits_for_the_first_record_and_raises_its_error(driver: Driver) -> None:
    with pytest.raises(WaitTimeout, match="no control record"):
        driver.keeper.wait_written(0.0)
    driver.disk.fails = NotWritten("the disk is full")
    driver.wants(1)
    with pytest.raises(NotWritten, match="the disk is full"):
        driver.keeper.wait_written(WAIT_S)


def test_at_a_stop_everything_is_written(driver: Driver) -> None:
    driver.disk.permits = queue.SimpleQueue()
    driver.wants(1)
    driver.wants(2, workers=5)
    for _ in range(2):
        driver.disk.permits.put(None)
    driver.keeper.stop()
    assert driver.recorded.placement == driver.first.resized(5)


def test_the_next_driver_goes_on_with_the_history(driver: Driver) -> None:
    driver.wants(1, begins=0)
    assert driver.hears() == ControlWritten(number=1)
    found = find_control(driver.lake)
    assert found.record is not None
    later = ControlKeeper(driver.lake, found, found.record.to_begin_with, lambda: AT)
    assert [entry["outcome"] for entry in later.rescales()] == ["interrupted"]
    assert [view["name"] for view in later.views()] == ["rows"]


def test_damage_is_logged(driver: Driver, caplog: pytest.LogCaptureFixture) -> None:
    ControlKeeper(driver.lake, FoundControl(None, ("cluster/x.json: torn",)), driver.first)
    assert "a control record is skipped, and the one before counts: cluster/x.json: torn" in caplog.text
