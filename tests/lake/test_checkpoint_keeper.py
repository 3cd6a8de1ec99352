"""The driver's part of checkpoints on a real lake: published, swept, asked for in time; and the callers that wait for
one."""

import errno
import queue
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from checkpoint_kit import FIRST, SECOND, Model, a_lake, add_epochs, chunks_of, written
from coordinator_kit import planned

from upriver.errors import LakeError, WaitTimeout
from upriver.ids import Epoch
from upriver.lake.checkpoint_keeper import CheckpointKeeper, fingerprints
from upriver.lake.checkpoints import chain, load
from upriver.lake.files import Files
from upriver.lake.lake import OwnedLake, term_path
from upriver.plan.plan import DataflowPlan
from upriver.protocol.coordinator_events import (
    CheckpointFailed,
    CheckpointPublished,
    CheckpointReady,
    CheckpointUnpublished,
    CheckpointWanted,
    CoordinatorEvent,
    ForgetCheckpoints,
    PublishCheckpoint,
)

WAIT_S = 20
A, B = planned("a"), planned("b", "j")
PLANS = (A, B)
PARTIAL = replace(planned("part"), full_because=None)


class Failing:
    """Files of a disk that fails, when it is told to, with what it is told."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self.create_fails: Exception | None = None
        self.remove_fails: Exception | None = None

    def create(self, path: str, content: bytes | pa.Buffer) -> None:
        if self.create_fails:
            raise self.create_fails
        self._files.create(path, content)

    def remove(self, path: str) -> None:
        if self.remove_fails:
            raise self.remove_fails
        self._files.remove(path)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._files, name)


class Driver:
    """A keeper, and what it tells the coordinator."""

    def __init__(self, lake: OwnedLake, plans: Sequence[DataflowPlan] = PLANS, interval_s: float | None = None) -> None:
        self.lake, self.plans = lake, tuple(plans)
        self.keeper = CheckpointKeeper(lake, self.plans, interval_s)
        self.heard: queue.SimpleQueue[CoordinatorEvent] = queue.SimpleQueue()
        self.hears: Callable[[CoordinatorEvent], None] = self.heard.put

    def start(self) -> "Driver":
        self.keeper.start(lambda event: self.hears(event))
        return self

    def wants(self, action: PublishCheckpoint | CheckpointReady | CheckpointFailed | ForgetCheckpoints) -> None:
        self.keeper.carry_out(action, self.plans)

    def publish(self, epoch: int, base: int | None, model: Model = FIRST) -> CoordinatorEvent:
        """Have a checkpoint published whose files are there; what is told of it. Its number is its epoch."""
        files = written(self.lake, epoch, base, {"a": [chunks_of(model, 2)]}).files
        on = None if base is None else Epoch(base)
        self.wants(PublishCheckpoint(checkpoint=epoch, epoch=Epoch(epoch), base=on, files=files))
        return self.heard.get(timeout=WAIT_S)

    def keep(self, *of_use: int) -> None:
        """These are the chain now."""
        self.wants(CheckpointReady(tickets=(), epoch=Epoch(of_use[0]), chain=tuple(map(Epoch, of_use))))

    def catch_up(self) -> None:
        """Wait until what was wanted before is done."""
        self.wants(PublishCheckpoint(checkpoint=0, epoch=Epoch(1), base=Epoch(1), files=()))
        told = self.heard.get(timeout=WAIT_S)
        assert isinstance(told, CheckpointUnpublished)
        assert "there is none of epoch 1 to build on" in told.error

    def stop(self) -> None:
        """What was wanted before is done then."""
        self.keeper.stop()


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[OwnedLake]:
    yield from a_lake(tmp_path)


@pytest.fixture
def disk(lake: OwnedLake) -> Failing:
    disk = lake.files = Failing(lake.files)
    return disk


@pytest.fixture
def driver(lake: OwnedLake, disk: Failing) -> Iterator[Driver]:
    driver = Driver(lake).start()
    yield driver
    driver.stop()


def there(lake: OwnedLake) -> list[int]:
    return [int(name) for name in lake.files.names("checkpoints")]


def found(lake: OwnedLake, *plans: DataflowPlan) -> list[int]:
    return [checkpoint.epoch for checkpoint in chain(lake, fingerprints(plans or PLANS))]


def full() -> OSError:
    return OSError(errno.ENOSPC, "No space left on device")


# Publishing ---------------------------------------------------------------------------------------------------------


def test_a_checkpoint_is_published_with_the_fingerprints_of_the_plans(lake: OwnedLake, driver: Driver) -> None:
    told = driver.publish(3, None)
    made = load(lake, Epoch(3))
    assert told == CheckpointPublished(checkpoint=3, files=made.files)
    assert (made.base, made.keys, dict(made.regions)) == (None, len(FIRST), fingerprints(PLANS))
    assert isinstance(driver.publish(5, 3, SECOND), CheckpointPublished)
    assert (found(lake), load(lake, Epoch(5)).base) == ([5, 3], 3)


@pytest.mark.parametrize("error", [full(), pa.ArrowInvalid("No space left on device")], ids=["disk", "arrow"])
def test_what_goes_wrong_is_told_and_the_keeper_goes_on(
    lake: OwnedLake, driver: Driver, disk: Failing, error: Exception
) -> None:
    files = written(lake, 3, None, {"a": [chunks_of(FIRST, 2)]}).files
    disk.create_fails = error
    driver.wants(PublishCheckpoint(checkpoint=1, epoch=Epoch(3), base=None, files=files))
    told = driver.heard.get(timeout=WAIT_S)
    assert isinstance(told, CheckpointUnpublished)
    assert (told.checkpoint, "No space left" in told.error, found(lake)) == (1, True, [])
    disk.create_fails = None
    assert isinstance(driver.publish(3, None), CheckpointPublished)


def test_a_checkpoint_whose_files_are_not_there_is_not_published(lake: OwnedLake, driver: Driver) -> None:
    files = written(lake, 3, None, {"a": [chunks_of(FIRST, 2)]}).files
    lake.files.remove(f"checkpoints/000000000003/{files[0].name}")
    driver.wants(PublishCheckpoint(checkpoint=1, epoch=Epoch(3), base=None, files=files))
    told = driver.heard.get(timeout=WAIT_S)
    assert isinstance(told, CheckpointUnpublished)
    assert "were not written" in told.error


def test_lake_one_owner_a_driver_that_has_lost_the_root_publishes_nothing(lake: OwnedLake, driver: Driver) -> None:
    lake.write_record(term_path(type(lake.term)(lake.term + 1)), {"owner": "another"})
    told = driver.publish(3, None)
    assert isinstance(told, CheckpointUnpublished)
    assert "another driver has taken it over" in told.error


# Sweeping -----------------------------------------------------------------------------------------------------------


def test_the_chain_and_the_one_before_it_are_kept(lake: OwnedLake, driver: Driver) -> None:
    for epoch, base in ((1, None), (2, 1), (3, None), (4, 3)):
        driver.publish(epoch, base)
        driver.keep(*({2: (2, 1), 4: (4, 3)}.get(epoch, (epoch,))))
        if epoch == 3:
            written(lake, 2, 1, {"a": [chunks_of(SECOND, 1)]})  # a late part of one that was given up
    written(lake, 5, 4, {"a": [chunks_of(SECOND, 1)]})  # which is being written
    driver.stop()
    assert (there(lake), found(lake)) == ([3, 4, 5], [4, 3])


def test_the_chain_before_is_kept_until_there_is_another_one(lake: OwnedLake, driver: Driver) -> None:
    driver.publish(1, None)
    driver.keep(1)
    driver.publish(2, None)
    driver.keep(2)
    driver.keep(2)
    driver.stop()
    assert there(lake) == [1, 2]


def test_what_is_written_of_the_next_one_is_left_alone(lake: OwnedLake, driver: Driver) -> None:
    driver.publish(2, None)
    written(lake, 1, None, {"a": [chunks_of(SECOND, 1)]})
    (file, *_) = written(lake, 3, 2, {"a": [chunks_of(SECOND, 1)]}).files
    driver.keep(2)
    driver.stop()
    assert (there(lake), lake.files.names("checkpoints/000000000003")) == ([2, 3], [file.name])


def test_a_checkpoint_that_was_given_up_goes_with_the_next_sweep(lake: OwnedLake, driver: Driver) -> None:
    written(lake, 1, None, {"a": [chunks_of(SECOND, 1)]})
    driver.wants(CheckpointFailed(tickets=(), epoch=Epoch(1), why="the disk is full"))
    driver.publish(2, None)
    assert there(lake) == [1, 2]
    driver.keep(2)
    driver.stop()
    assert there(lake) == [2]


def test_when_the_views_are_others_all_go(lake: OwnedLake, driver: Driver) -> None:
    driver.publish(1, None)
    driver.keep(1)
    driver.publish(9, 1)
    driver.wants(ForgetCheckpoints())
    driver.catch_up()
    assert there(lake) == []
    assert isinstance(driver.publish(9, None), CheckpointPublished)
    driver.keep(9)
    driver.stop()
    assert (there(lake), load(lake, Epoch(9)).base) == ([9], None)


def test_what_cannot_be_removed_stays_and_the_keeper_goes_on(lake: OwnedLake, driver: Driver, disk: Failing) -> None:
    for epoch in (1, 2):
        driver.publish(epoch, None)
        driver.keep(epoch)
    driver.publish(3, None)
    disk.remove_fails = OSError(errno.EROFS, "Read-only file system")
    driver.keep(3)
    driver.catch_up()
    assert (there(lake), "Read-only" in driver.keeper.status()["failed"]) == ([1, 2, 3], True)
    disk.remove_fails = None
    driver.publish(5, None)
    driver.keep(5)
    driver.stop()
    assert there(lake) == [3, 5]


# When a driver comes ------------------------------------------------------------------------------------------------


def test_a_driver_finds_what_there_is_and_sweeps_the_rest(lake: OwnedLake) -> None:
    first = Driver(lake).start()
    for epoch, base in ((1, None), (2, None), (4, 2)):
        first.publish(epoch, base)
    written(lake, 6, 4, {"a": [chunks_of(SECOND, 1)]})
    first.stop()
    second = Driver(lake)
    assert [checkpoint.epoch for checkpoint in second.keeper.found] == [4, 2]
    assert there(lake) == [1, 2, 4, 6]
    second.start()
    assert (there(lake), second.keeper.status()) == ([2, 4], {"epoch": 4, "failed": None})
    second.publish(7, None)
    second.keep(7)
    second.stop()
    assert there(lake) == [2, 4, 7]


@pytest.mark.parametrize("plans", [(planned("a", "j"), B), (PARTIAL,), ()], ids=["other views", "partial", "none"])
def test_what_other_views_have_left_is_of_no_use(lake: OwnedLake, plans: tuple[DataflowPlan, ...]) -> None:
    first = Driver(lake).start()
    first.publish(9, None)
    first.stop()
    second = Driver(lake, plans)
    assert (second.keeper.found, second.keeper.status()["epoch"]) == ((), 0)
    second.start().stop()
    assert there(lake) == []


def test_no_event_is_heard_before_the_start(lake: OwnedLake) -> None:
    with pytest.raises(AssertionError, match="CheckpointWanted before the keeper was started"):
        Driver(lake).keeper.take(WAIT_S)
    Driver(lake).stop()


# Fingerprints -------------------------------------------------------------------------------------------------------


def test_fingerprints_are_of_regions_that_keep_all_keys() -> None:
    assert fingerprints([A, B, PARTIAL]).keys() == {"a", "b"}
    assert fingerprints([PARTIAL]) == {}
    assert fingerprints([A, B]) == fingerprints([planned("b", "j"), planned("a")])


@pytest.mark.parametrize("other", [replace(A, sql="SELECT 1"), planned("a", "j"), replace(A, full_because="forced")])
def test_fingerprints_differ_when_views_do(other: DataflowPlan) -> None:
    assert fingerprints([A, B])["a"] != fingerprints([other, B])["a"]
    assert fingerprints([A, B])["b"] == fingerprints([other, B])["b"]


# The callers
# -----------------------------------------------------------------------------------------------------------


def test_a_caller_is_told_the_epoch(driver: Driver) -> None:
    def served(event: CoordinatorEvent) -> None:
        assert isinstance(event, CheckpointWanted)
        driver.wants(CheckpointReady(tickets=(99, event.ticket), epoch=Epoch(7), chain=(Epoch(6), Epoch(5))))

    driver.hears = served
    assert [driver.keeper.take(WAIT_S), driver.keeper.take(WAIT_S)] == [7, 7]
    assert driver.keeper.status() == {"epoch": 6, "failed": None}


def test_a_caller_is_told_why_it_was_given_up(driver: Driver) -> None:
    def refused(event: CoordinatorEvent) -> None:
        assert isinstance(event, CheckpointWanted)
        driver.wants(CheckpointFailed(tickets=(event.ticket,), epoch=Epoch(7), why="a worker was lost"))

    driver.hears = refused
    with pytest.raises(LakeError, match="the checkpoint of epoch 7 was given up: a worker was lost"):
        driver.keeper.take(WAIT_S)
    assert driver.keeper.status() == {"epoch": 0, "failed": "epoch 7: a worker was lost"}
    driver.keep(8)
    assert driver.keeper.status() == {"epoch": 8, "failed": None}


def test_a_caller_that_has_waited_in_vain_is_told_so_and_not_served_later(driver: Driver) -> None:
    with pytest.raises(WaitTimeout, match="no checkpoint in 0 s"):
        driver.keeper.take(0)
    asked = driver.heard.get(timeout=WAIT_S)
    assert isinstance(asked, CheckpointWanted)
    for again in (asked.ticket, asked.ticket):
        driver.wants(CheckpointReady(tickets=(again,), epoch=Epoch(7), chain=(Epoch(7),)))
    assert driver.keeper.status()["epoch"] == 7


def test_when_the_views_are_others_there_is_no_newest_checkpoint(driver: Driver) -> None:
    driver.keep(8)
    driver.wants(ForgetCheckpoints())
    assert driver.keeper.status()["epoch"] == 0


# Time and the end ---------------------------------------------------------------------------------------------------


def test_checkpoints_are_asked_for_in_time_whatever_else_there_is_to_do(lake: OwnedLake) -> None:
    driver = Driver(lake, interval_s=0.001).start()
    tickets = []
    for _ in range(4):
        asked = driver.heard.get(timeout=WAIT_S)
        assert isinstance(asked, CheckpointWanted)
        tickets.append(asked.ticket)
        driver.keep(1)
        assert driver.heard.empty()  # before it is known what has become of the last one
        driver.wants(CheckpointFailed(tickets=(asked.ticket,), epoch=Epoch(1), why="a worker was lost"))
    driver.stop()
    assert len(set(tickets)) == 4


def test_requests_and_the_interval_have_tickets_of_their_own(lake: OwnedLake) -> None:
    driver = Driver(lake, interval_s=0.001).start()
    by_time = driver.heard.get(timeout=WAIT_S)
    driver.stop()
    with pytest.raises(WaitTimeout):
        driver.keeper.take(0)
    tickets = [by_time.ticket] if isinstance(by_time, CheckpointWanted) else []
    while not driver.heard.empty():
        event = driver.heard.get()
        assert isinstance(event, CheckpointWanted)
        tickets.append(event.ticket)
    assert len(tickets) == len(set(tickets)) >= 2


def test_without_an_interval_only_requests_count_and_those_before_the_end_are_served(lake: OwnedLake) -> None:
    driver = Driver(lake).start()
    add_epochs(lake, 10)
    files = written(lake, 10, None, {"a": [chunks_of(FIRST, 2)]}).files
    driver.wants(PublishCheckpoint(checkpoint=1, epoch=Epoch(10), base=None, files=files))
    driver.stop()
    driver.stop()
    assert found(lake) == [10]
    assert driver.heard.get(timeout=WAIT_S) == CheckpointPublished(checkpoint=1, files=files)
    assert driver.heard.empty()
    driver.wants(PublishCheckpoint(checkpoint=2, epoch=Epoch(9), base=None, files=()))
    assert driver.heard.empty()
