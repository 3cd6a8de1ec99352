"""What tests of standbys and learners share: a stream that goes on, and a cluster's states as they follow each
other."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from failure_kit import Feed

AWAIT_S_MAX = 60.0
POLL_S = 0.005

Status = Callable[[], Mapping[str, Any]]
"""As ``App.status`` and ``Client.status``."""


def await_that(
    it_is_so: Callable[[], bool],
    what: Callable[[], object] = lambda: "it does not come to be so",
    seconds: float = AWAIT_S_MAX,
) -> None:
    """Block until it is. what: to be told if it does not come to be so, in so many seconds."""
    paused, give_up_at = threading.Event(), time.monotonic() + seconds
    while not it_is_so():
        if time.monotonic() > give_up_at:
            raise AssertionError(what())
        paused.wait(POLL_S)


@contextmanager
def feeding(feed: Feed, status: Status, pause_s: float = POLL_S) -> Iterator[None]:
    """A file comes whenever the one before it is published. At the end no more come. pause_s: between two looks."""
    is_over = threading.Event()

    def run() -> None:
        while not is_over.is_set():
            if status()["published"] >= feed.fed:
                feed.feed()
            is_over.wait(pause_s)

    thread = threading.Thread(target=run, name="feeder")
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


@dataclass(frozen=True)
class Scene:
    """How many vnodes each worker keeps by which map, and where it serves."""

    version: int
    vnodes: Mapping[int, int]
    addresses: Mapping[int, str | None]

    @classmethod
    def of(cls, status: Mapping[str, Any]) -> "Scene":
        workers = status["workers"]
        vnodes = {worker["worker"]: worker["vnodes"] for worker in workers}
        return cls(status["map_version"], vnodes, {worker["worker"]: worker["address"] for worker in workers})


@dataclass
class Watcher:
    """Notes how the scene changes. scenes: all that were seen, in order."""

    status: Status
    scenes: list[Scene] = field(default_factory=list)

    def look(self) -> Scene:
        scene = Scene.of(self.status())
        if self.scenes[-1:] != [scene]:
            self.scenes.append(scene)
        return scene

    @contextmanager
    def watching(self) -> Iterator["Watcher"]:
        is_over = threading.Event()

        def run() -> None:
            while not is_over.is_set():
                self.look()
                is_over.wait(POLL_S)

        self.look()
        thread = threading.Thread(target=run, name="watcher")
        thread.start()
        try:
            yield self
        finally:
            is_over.set()
            thread.join()


def await_standbys(status: Status) -> None:
    """Until every place is filled and has its share, nothing is being learned, and all standbys are ready."""
    await_that(lambda: stands_by(status()), status)


def stands_by(status: Mapping[str, Any]) -> bool:
    vnodes = [worker["vnodes"] for worker in status["workers"]]
    standbys = status["standbys"]
    is_filled = all(worker["address"] for worker in status["workers"])
    is_even = max(vnodes) - min(vnodes) <= 1
    return is_filled and is_even and not standbys["learners"] and standbys["ready"] == sum(vnodes)


def recoveries_of(status: Status, worker: int) -> list[Mapping[str, Any]]:
    return [told for told in status()["recoveries"] if told["worker"] == worker]


def await_recovery(status: Status, worker: int, before: int) -> float:
    """Seconds from when it was noticed that the worker is lost until its keys are served again. before: of how many of
    its recoveries was told before."""

    def served() -> list[float | None]:
        return [told["served_again_s"] for told in recoveries_of(status, worker)[before:]]

    await_that(lambda: served()[-1:] not in ([], [None]), status)
    (seconds,) = served()
    assert seconds is not None
    return seconds
