"""An unexpected error of the coordinator ends the app: each caller hears of it, and the workers end. An error that a
worker's message causes ends that worker alone."""

import logging
import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from coordinator_kit import PLAN, vnode_map

from upriver.coordinator.coordinator import CoordinatorMachine
from upriver.errors import ProtocolError, UpriverError
from upriver.ids import Epoch, MapVersion, WorkerId
from upriver.protocol.messages import EpochFinished, Settled, ToWorker
from upriver.protocol.rules import ALL_RULES, Rules
from upriver.runtime.coordinator_loop import CoordinatorLoop

Call = tuple[Callable[..., Any], tuple[Any, ...]]
SECONDS_MAX = 30.0
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

    def tell(self, message: ToWorker) -> None:
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
        self.loop.hear(self.incarnations[0], unasked)

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
        cluster.loop.hear(cluster.incarnations[0], nonsense)
        told = str(sender.given_up.get(timeout=SECONDS_MAX))
        assert "worker 0 reports epoch 7, and was sent 0 (at upriver.coordinator" in told
        cluster.loop.check()
        assert other.given_up.empty()
        cluster.end()
