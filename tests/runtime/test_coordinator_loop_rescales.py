"""A caller that follows a rescale hears of each state as soon as it begins."""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from coordinator_kit import PLAN, vnode_map

from upriver.coordinator.coordinator import CoordinatorMachine
from upriver.errors import ClusterError, UserError
from upriver.protocol.strategies import Strategy
from upriver.runtime.coordinator_loop import CoordinatorLoop

SECONDS_MAX = 30.0
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
