"""A query that reads the changes of a view, and what harms it: workers, the query, its processes and the driver are
killed, the app is rescaled, and another logged view comes and goes. At the end each change has come once, their sum is
the view, and so is the Delta table that is kept equal to it, if there is one.
"""

import json
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any

from changes_kit import Rows
from cluster_kit import PROGRAM, RunningCluster
from drivers_kit import kill_session, live_processes, session_of
from failure_kit import addresses
from standby_kit import await_that, feeding

from benchmarks.recovery_kill import pid_listening
from upriver.errors import ClusterError, UpriverError

MASTER = "local[8]"
FILES = 3000
"""More than can be fed."""
SOAK_S = 900.0
PAUSES_S = (0.0, 0.2, 1.0, 3.0, 8.0)
"""Between two steps, in seconds."""
FEED_S = 0.3
"""Seconds between two looks whether the next file may come."""
KILLS_MAX = 3
"""Kills of one worker: an app fails when one of its workers is lost too often."""
BATCH_S_MAX = 60.0
REST_S_MAX = 240.0
STEPS = {"worker": 4, "rescale": 4, "query": 3, "source": 2, "extra": 3, "driver": 2}
"""What is done, and how often."""
SOURCE = "python_streaming_source_runner"
"""In the command line of the process that gives the query its offsets."""
COMES = {"insert": 1, "update_postimage": 1, "update_preimage": -1, "delete": -1}


class ChangesDriver(RunningCluster):
    program = PROGRAM.with_name("changes.py")

    def __init__(self, folder: Path, delta: Mapping[str, str]) -> None:
        self.arguments = (json.dumps(dict(delta)),)
        super().__init__(folder, MASTER, FILES, workers=2, checkpoint_interval_epochs=3)


class HarmedQuery:
    """log: what was done, and when, in seconds. delta: Spark's settings with which a Delta table is kept, if any."""

    def __init__(self, folder: Path, seed: int, delta: Mapping[str, str] = MappingProxyType({})) -> None:
        self.log = [f"seed {seed}"]
        self._began = time.monotonic()
        self._random = random.Random(seed)
        self._folder = folder
        self.cluster = ChangesDriver(folder, delta)
        self._kills = Counter[int]()
        self._ended = 0
        """Batches of the query that had ended when it was harmed last."""

    def note(self, what: str) -> None:
        self.log.append(f"{time.monotonic() - self._began:8.2f} {what}")

    def run(self, seconds: float) -> None:
        """Harm it for so long, and then let it come to rest."""
        give_up_at = time.monotonic() + seconds
        with feeding(self.cluster.feed, self._status, FEED_S):
            while time.monotonic() < give_up_at:
                (step,) = self._random.choices(list(STEPS), list(STEPS.values()))
                with suppress(ClusterError):  # a process has gone, and that is not noticed yet
                    getattr(self, f"_{step}")()
                threading.Event().wait(self._random.choice(PAUSES_S))

    def _status(self) -> dict[str, Any]:
        try:
            return self.cluster.client.status()
        except ClusterError:  # the driver is killed
            return {"published": -1}

    def _worker(self) -> None:
        worker, address = self._random.choice(sorted(addresses(self.cluster.client).items()))
        if address is not None and self._kills[worker] < KILLS_MAX:
            self._kills[worker] += 1
            os.kill(pid_listening(address), signal.SIGKILL)
            self.note(f"kill -9 of worker {worker}")

    def _rescale(self) -> None:
        workers, strategy = self._random.randint(1, 3), self._random.choice(("icadd", "redistribute", "restart"))
        self.cluster.client.rescale(workers, strategy=strategy)
        self.note(f"rescale to {workers} by {strategy}")

    def _query(self) -> None:
        self._await_batch()
        self.note(f"the query is stopped: {self.cluster.ask('query')}")

    def _source(self) -> None:
        self._await_batch()
        for pid, command in live_processes():
            if SOURCE in command and session_of(pid) == self.cluster.driver.pid:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                    self.note("kill -9 of the query's source")

    def _extra(self) -> None:
        self.note(f"another view: {self.cluster.ask('extra')}")

    def _driver(self) -> None:
        self._await_batch()
        if self._random.random() < 0.5:
            self.cluster.driver.kill()
        else:
            kill_session(self.cluster.driver)
        self.note("kill -9 of the driver")
        self.cluster.driver.communicate(timeout=60)
        self.cluster.client.close()
        self.cluster.start(MASTER)
        self._kills.clear()
        self.note("another driver is up")

    def _await_batch(self) -> None:
        """Let the query end a batch before it is harmed again, or else it may get nowhere."""
        give_up_at = time.monotonic() + BATCH_S_MAX
        while len(self._batches()) <= self._ended and time.monotonic() < give_up_at:
            threading.Event().wait(FEED_S)
        self._ended = len(self._batches())

    def _batches(self) -> list[Path]:
        return sorted(self._folder.glob("batches/[0-9]*"))

    # At the end

    def close(self) -> None:
        self.cluster.client.close()
        kill_session(self.cluster.driver)
        self.cluster.driver.communicate(timeout=60)

    def changes(self) -> Iterator[list[Any]]:
        """All changes, once for each batch: the columns, type and version."""
        for number, path in enumerate(self._batches()):
            assert path.name == f"{number:06d}"
            yield from map(json.loads, path.read_text().splitlines())

    def check(self) -> None:
        fed = self.cluster.feed.fed
        told = self.cluster.ask(f"check {fed}")
        assert (told["differing"], told["differing_of_table"]) == (0, 0)
        self.note(f"{fed} epochs, {len(told['rows'])} keys; the query has failed {len(told['failures'])} times")
        assert [why for why in told["failures"] if "upriver.errors" in why or "AssertionError" in why] == []
        await_that(lambda: max((row[4] for row in self.changes()), default=0) >= fed, seconds=REST_S_MAX)
        total, once = Rows(), Counter[tuple[int, int, str]]()
        newest: dict[int, int] = {}
        for key, n, value, kind, version in self.changes():
            total[key, n, value] += COMES[kind]
            once[key, version, kind] += 1
            assert version >= newest.get(key, 0), (key, version)
            newest[key] = version
        assert {each: times for each, times in once.items() if times > 1} == {}
        assert {row: times for row, times in total.items() if times} == Rows(map(tuple, told["rows"]))
        self.note(f"{once.total()} changes in {len(self._batches())} batches, each once")


def harm(folder: Path, given: int | None, delta: Mapping[str, str] = MappingProxyType({})) -> None:
    """given: the seed; ``None`` for a random one."""
    harmed = HarmedQuery(folder, random.randrange(1_000_000) if given is None else given, delta)
    with ExitStack() as at_end:
        at_end.callback(lambda: print("", *harmed.log, sep="\n"))
        at_end.callback(harmed.close)
        try:
            harmed.run(SOAK_S)
            harmed.check()
        except (AssertionError, OSError, UpriverError, ValueError) as error:
            error.add_note("\n".join([*harmed.log, f"the driver's log: {harmed.cluster.log}"]))
            raise
