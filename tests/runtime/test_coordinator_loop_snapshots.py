"""A snapshot's parts, as the coordinator tells a scan of them: all, or none."""

import queue
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from coordinator_kit import PLAN, vnode_map

from upriver.coordinator.coordinator import CoordinatorMachine
from upriver.errors import UpriverError, WorkerLost
from upriver.ids import Incarnation, SnapshotId, WorkerId
from upriver.protocol.messages import SnapshotTaken, TakeSnapshot, ToWorker
from upriver.runtime.coordinator_loop import CoordinatorLoop, SnapshotParts

SECONDS_MAX = 30.0


@dataclass
class End:
    """The coordinator's end of a channel. asked: the snapshots that the worker is to take. may_go_on: the coordinator's
    thread waits for it with each of them."""

    asked: "queue.Queue[SnapshotId]" = field(default_factory=queue.Queue)
    may_go_on: threading.Event = field(default_factory=threading.Event)

    def tell(self, message: ToWorker) -> None:
        if isinstance(message, TakeSnapshot):
            self.asked.put(message.snapshot)
            assert self.may_go_on.wait(SECONDS_MAX)

    def close(self) -> None:
        pass

    def give_up(self, error: UpriverError) -> None:
        pass


class Asking(threading.Thread):
    """Asks for a snapshot. said: what came of it."""

    def __init__(self, loop: CoordinatorLoop) -> None:
        super().__init__()
        self._loop = loop
        self.said: SnapshotParts | Exception | None = None
        self.start()

    def run(self) -> None:
        try:
            self.said = self._loop.snapshot("rows", SECONDS_MAX)
        except WorkerLost as error:
            self.said = error


class Place:
    """A coordinator and two workers that are up."""

    def __init__(self) -> None:
        self.loop = CoordinatorLoop(CoordinatorMachine(vnode_map(), (PLAN,)))
        self.loop.start()
        self.ends = [End(), End()]
        names = [self.loop.register(WorkerId(n), f"host:{n}", end) for n, end in enumerate(self.ends)]
        self.incarnations: list[Incarnation] = names
        for end in self.ends:
            end.may_go_on.set()

    def taken(self, worker: int, snapshot: SnapshotId) -> None:
        self.loop.hear(self.incarnations[worker], SnapshotTaken(snapshot=snapshot, rows=1))


@pytest.fixture
def place() -> Iterator[Place]:
    made = Place()
    yield made
    for incarnation in made.incarnations:
        made.loop.lost(incarnation)
    made.loop.stop(SECONDS_MAX)


def test_a_scan_is_told_of_every_part(place: Place) -> None:
    asking = Asking(place.loop)
    for worker, end in enumerate(place.ends):
        place.taken(worker, end.asked.get(timeout=SECONDS_MAX))
    asking.join(SECONDS_MAX)
    assert isinstance(asking.said, SnapshotParts)
    assert asking.said.addresses == ("host:0", "host:1")


def test_a_worker_that_is_lost_when_the_last_part_is_taken_is_not_left_out(place: Place) -> None:
    """The coordinator is busy with another snapshot when it happens, and hears of the loss behind the last part."""
    first, other = place.ends
    asking = Asking(place.loop)
    snapshot = first.asked.get(timeout=SECONDS_MAX)
    place.taken(0, snapshot)
    other.asked.get(timeout=SECONDS_MAX)
    other.may_go_on.clear()
    later = Asking(place.loop)
    other.asked.get(timeout=SECONDS_MAX)
    place.taken(1, snapshot)
    place.loop.lost(place.incarnations[0])
    other.may_go_on.set()
    for thread in (asking, later):
        thread.join(SECONDS_MAX)
        assert isinstance(thread.said, WorkerLost)
