"""The coordinator's loop hands control records to their keeper, with what only the loop knows of a rescale.

An unexpected error of the coordinator ends the app: each caller hears of it, and the workers end. An error that a
worker's message causes ends that worker alone.
A caller that follows a rescale hears of each state as soon as it begins.
A snapshot's parts, as the coordinator tells a scan of them: all, or none.
"""

import logging
import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from checkpoint_kit import a_lake
from coordinator_kit import CHANNEL, PLAN, planned, vnode_map

from upriver.coordinator.coordinator import CoordinatorMachine
from upriver.errors import ClusterError, ProtocolError, UpriverError, UserError, WorkerLost
from upriver.ids import Epoch, FlowId, Incarnation, MapVersion, SnapshotId, Term, WorkerId
from upriver.lake.control import find_control
from upriver.lake.control_keeper import ControlKeeper
from upriver.lake.lake import OwnedLake
from upriver.lake.manifests import Manifest
from upriver.protocol.messages import EpochFinished, ForShare, OfShare, Settled, SnapshotTaken, TakeSnapshot, ToWorker
from upriver.protocol.rules import ALL_RULES, Rules
from upriver.protocol.strategies import Strategy
from upriver.runtime.coordinator_loop import CoordinatorLoop, SnapshotParts
from upriver.vnodes import Placement

SECONDS_MAX = 30.0


class Mute:
    """The end of a channel to a worker that says nothing."""

    def tell(self, *messages: ToWorker) -> None:
        pass

    def close(self) -> None:
        pass

    def give_up(self, error: UpriverError) -> None:
        pass


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[OwnedLake]:
    yield from a_lake(tmp_path)


@pytest.fixture
def loop(lake: OwnedLake) -> Iterator[CoordinatorLoop]:
    kept = lake.record()
    assert kept is not None
    first = Placement.initial(kept.vnodes, 2)
    machine = CoordinatorMachine(first.vnode_map, (PLAN,))
    control = ControlKeeper(lake, find_control(lake), first)
    loop = CoordinatorLoop(machine, start_worker=lambda worker: None, control=control)
    loop.start()
    for worker in first.workers:
        loop.register(worker, f"host-{worker}", Mute())
    control.wait_written(SECONDS_MAX)
    yield loop
    loop.stop(0.0)


def test_what_a_rescale_leads_to_is_in_the_lake_when_it_has_begun(loop: CoordinatorLoop, lake: OwnedLake) -> None:
    ticket = loop.rescale(3, None, Strategy.LAZY, None)
    assert loop.rescales.progress(ticket, "queued", SECONDS_MAX)["state"] == "starting"
    record = find_control(lake).record
    assert record is not None
    assert record.target is not None
    assert record.target.workers == (0, 1, 2)
    told = [(entry["strategy"], entry["from"], entry["to"], entry["outcome"]) for entry in loop.rescale_history()]
    assert told == [("lazy", 2, 3, None)]


def test_how_it_has_ended_is_in_the_lake_when_clients_hear_of_it(loop: CoordinatorLoop, lake: OwnedLake) -> None:
    ticket = loop.rescale(3, None, Strategy.LAZY, None)
    loop.rescales.progress(ticket, "queued", SECONDS_MAX)
    loop.rescales.abort(ticket)
    assert loop.rescales.progress(ticket, "starting", SECONDS_MAX)["state"] == "aborted"
    record = find_control(lake).record
    assert record is not None
    assert (record.placement.workers, record.target) == ((WorkerId(0), WorkerId(1)), None)
    (entry,) = record.rescales
    assert entry.outcome == "aborted"
    assert entry.seconds is not None
    assert [view["name"] for view in loop.view_history()] == ["rows"]
    assert loop.status()["unrecorded"] is None


Call = tuple[Callable[..., Any], tuple[Any, ...]]
TOLD = (
    r"^the coordinator has failed, which is a fault of Upriver: IllegalEvent: [^\n]*unasked[^\n]* \(at upriver\."
    r"[\w.]+:\d+\)\. The lake is whole: call stop\(\) and start\(\) again, and please report this line$"
)


@dataclass
class End:
    """The coordinator's end of a channel. told: what the worker was sent. closed: the worker ends."""

    told: "queue.Queue[ToWorker]" = field(default_factory=queue.Queue)
    closed: threading.Event = field(default_factory=threading.Event)
    given_up: "queue.Queue[UpriverError]" = field(default_factory=queue.Queue)

    def tell(self, *messages: ToWorker) -> None:
        for message in messages:
            self.told.put(message)

    def close(self) -> None:
        self.closed.set()

    def give_up(self, error: UpriverError) -> None:
        self.given_up.put(error)


UNCONTAINED = replace(ALL_RULES, coordinator_late_reports_change_nothing=False, workers_faults_are_theirs=False)
"""A worker's message can end the coordinator."""


class Cluster:
    """A coordinator, its two workers, which answer nothing, and a thread for each caller."""

    def __init__(self, threads: ThreadPoolExecutor, rules: Rules = UNCONTAINED) -> None:
        self.loop = CoordinatorLoop(CoordinatorMachine(vnode_map(), (PLAN,), rules), start_worker=lambda worker: None)
        self.loop.start()
        self.ends = [End(), End()]
        self.incarnations = [self.loop.register(WorkerId(n), f"host:{n}", end) for n, end in enumerate(self.ends)]
        self._threads = threads

    def call(self, call: Callable[..., Any], *arguments: Any) -> "Future[Any]":
        return self._threads.submit(call, *arguments)

    def break_down(self) -> None:
        """Have the worker say what makes the machine raise."""
        unasked = Settled(region="rows", version=MapVersion(7), kept=())
        self.loop.hear(self.incarnations[0], OfShare(flow=FlowId(1), message=unasked))

    def end(self) -> None:
        for incarnation in self.incarnations:
            self.loop.lost(incarnation)
        assert self.loop.stop(SECONDS_MAX)


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with ThreadPoolExecutor() as threads:
        cluster = Cluster(threads)
        yield cluster
        cluster.end()


def test_each_caller_that_waits_and_each_later_one_gets_the_error(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    loop, ever = cluster.loop, 100 * SECONDS_MAX
    calls: list[Call] = [
        (loop.wait_ended, (Epoch(1), ever)),
        (loop.snapshot, ("rows", ever)),
        (loop.evict, ("rows", None, ever)),
    ]
    waiting = [cluster.call(call, *arguments) for call, arguments in calls]
    with caplog.at_level(logging.ERROR, "upriver"):
        cluster.break_down()
        for told in waiting:
            with pytest.raises(ProtocolError, match=TOLD):
                told.result(SECONDS_MAX)
    calls += [(loop.replan, ((PLAN,), [], ever)), (loop.wait_joined, (ever,)), (loop.check, ())]
    for call, arguments in calls:
        with pytest.raises(ProtocolError, match=TOLD):
            call(*arguments)
    assert loop.status()["failure"].startswith("the coordinator has failed")
    assert len(caplog.messages) == 1
    assert "\n" not in caplog.messages[0]


def test_the_workers_end_and_a_second_error_is_not_told(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR, "upriver"):
        cluster.break_down()
        cluster.break_down()
        assert all(end.closed.wait(SECONDS_MAX) for end in cluster.ends)
        cluster.end()
    assert len(caplog.messages) == 1


def test_a_message_that_cannot_be_ends_its_worker_alone() -> None:
    with ThreadPoolExecutor() as threads:
        cluster = Cluster(threads, ALL_RULES)
        sender, other = cluster.ends
        nonsense = EpochFinished(epoch=Epoch(7), read={}, applied={}, stats={})
        cluster.loop.hear(cluster.incarnations[0], OfShare(flow=FlowId(1), message=nonsense))
        told = str(sender.given_up.get(timeout=SECONDS_MAX))
        assert "worker 0 reports epoch 7, and was sent 0 (at upriver.coordinator" in told
        cluster.loop.check()
        assert other.given_up.empty()
        cluster.end()


@dataclass
class Witness(Mute):
    """The end of a channel. stands: whether a further view reflects epoch 1, each time that its worker is told
    something. The coordinator's thread tells workers before it answers callers."""

    stands: Callable[[], bool]
    seen: "queue.Queue[tuple[ToWorker, bool]]" = field(default_factory=queue.Queue)

    def tell(self, *messages: ToWorker) -> None:
        for message in messages:
            self.seen.put((message, self.stands()))


def test_whoever_has_added_a_view_can_wait_for_it_at_once() -> None:
    machine = CoordinatorMachine(vnode_map((0, 0)), (PLAN,))
    loop = CoordinatorLoop(machine, start_worker=lambda worker: None)
    end, more = Witness(lambda: loop.progress.reflects(Epoch(1), "more")), planned("more")
    loop.start()
    incarnation = loop.register(WorkerId(0), "host", end)
    manifest = Manifest(epoch=Epoch(1), term=Term(1), table="t", query="q", batch=1, runs={CHANNEL: ()})
    loop.published(manifest)
    finished = EpochFinished(epoch=Epoch(1), read={CHANNEL: 0}, applied={"rows": 0}, stats={})
    loop.hear(incarnation, OfShare(flow=FlowId(1), message=finished))
    loop.wait_ended(Epoch(1), SECONDS_MAX)
    loop.replan((PLAN, more), [manifest], SECONDS_MAX)
    assert not loop.progress.reflects(Epoch(1), "more")
    told = [end.seen.get(timeout=SECONDS_MAX) for _ in range(end.seen.qsize())]
    of_it = [stands for message, stands in told if isinstance(message, ForShare) and message.flow != FlowId(1)]
    assert of_it
    assert not any(of_it)
    loop.lost(incarnation)
    assert loop.stop(SECONDS_MAX)


EVER = 10 * SECONDS_MAX
"""A caller that waits so long does not have its answer in ``SECONDS_MAX``, if time alone brings it."""


class Followed:
    """A rescale that waits for a worker that never comes up."""

    def __init__(self, threads: ThreadPoolExecutor) -> None:
        self.loop = CoordinatorLoop(CoordinatorMachine(vnode_map(), (PLAN,)), start_worker=lambda worker: None)
        self.loop.start()
        self.ticket = self.loop.rescale(3, None, Strategy.ICADD, None)
        self._threads = threads
        assert self.loop.rescales.progress(self.ticket, "queued", SECONDS_MAX)["state"] == "starting"

    def follow(self, unless: str) -> "Future[dict[str, Any]]":
        return self._threads.submit(self.loop.rescales.progress, self.ticket, unless, EVER)


@pytest.fixture
def followed() -> Iterator[Followed]:
    with ThreadPoolExecutor() as threads:
        followed = Followed(threads)
        yield followed
        followed.loop.fail(ClusterError("the test is over"))
        followed.loop.stop(SECONDS_MAX)


def test_a_caller_that_knows_the_state_is_told_another_at_once(followed: Followed) -> None:
    told = followed.follow("starting")
    followed.loop.rescales.abort(followed.ticket)
    assert told.result(SECONDS_MAX)["state"] == "aborted"


def test_a_caller_that_knows_another_state_does_not_wait(followed: Followed) -> None:
    assert followed.follow("queued").result(SECONDS_MAX)["state"] == "starting"
    assert followed.loop.rescales.progress(followed.ticket)["state"] == "starting"


def test_time_that_is_over_brings_the_state_as_it_was(followed: Followed) -> None:
    assert followed.loop.rescales.progress(followed.ticket, "starting", 0.001)["state"] == "starting"


def test_a_failure_of_the_app_ends_the_wait(followed: Followed) -> None:
    told = followed.follow("starting")
    followed.loop.fail(ClusterError("worker 1 was lost"))
    with pytest.raises(ClusterError, match="worker 1 was lost"):
        told.result(SECONDS_MAX)


def test_a_rescale_that_is_not_known_is_refused(followed: Followed) -> None:
    with pytest.raises(UserError, match="there is no rescale 99"):
        followed.loop.rescales.progress(99, "starting", EVER)


@dataclass
class SnapshotEnd:
    """The coordinator's end of a channel. asked: the snapshots that the worker is to take. may_go_on: the coordinator's
    thread waits for it with each of them."""

    asked: "queue.Queue[SnapshotId]" = field(default_factory=queue.Queue)
    may_go_on: threading.Event = field(default_factory=threading.Event)

    def tell(self, *messages: ToWorker) -> None:
        for message in messages:
            if isinstance(message, ForShare) and isinstance(message.message, TakeSnapshot):
                self.asked.put(message.message.snapshot)
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
        self.ends = [SnapshotEnd(), SnapshotEnd()]
        names = [self.loop.register(WorkerId(n), f"host:{n}", end) for n, end in enumerate(self.ends)]
        self.incarnations: list[Incarnation] = names
        for end in self.ends:
            end.may_go_on.set()

    def taken(self, worker: int, snapshot: SnapshotId) -> None:
        taken = SnapshotTaken(snapshot=snapshot, rows=1)
        self.loop.hear(self.incarnations[worker], OfShare(flow=FlowId(1), message=taken))


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
