"""Queries and a subscriber that read the changes of a view, and what harms them: workers, the queries, their processes
and the driver are killed, the app is rescaled, another logged view comes and goes, and Kafka's broker restarts. At the
end each change has come once, and their sum is the view. So is the table that is kept equal to it, if there is one, and
what a consumer has counted of a topic to which the changes are published.
"""

import json
import os
import random
import re
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from change_readers_kit import TOKEN, CountedTopic, Subscriber, Told, check_once
from changes_kit import Rows
from cluster_kit import PROGRAM, RunningCluster
from drivers_kit import kill_session, live_processes, session_of
from failure_kit import addresses
from standby_kit import await_that, feeding

from benchmarks.recovery_kill import pid_listening
from upriver.errors import ClusterError, UpriverError

MASTER = "local[8]"
FILES = 3000
PAUSES_S = (0.0, 0.2, 1.0, 3.0, 8.0)
"""Between two steps, in seconds."""
LOOK_S = 0.3
FEED_S = 2.0
"""Seconds between two looks whether the next file may come, at least: the queries need time, too."""
KILLS_MAX = 3
"""Kills of one worker: an app fails when one of its workers is lost too often."""
BATCH_S_MAX = 180.0
REST_S_MAX = 240.0
STEPS = {"worker": 4, "rescale": 4, "query": 3, "source": 2, "extra": 3, "driver": 2, "broker": 2}
"""What is done, and how often."""
SOURCE = "python_streaming_source_runner"
"""In the command line of the process that gives the query its offsets."""
OURS = re.compile(r"AssertionError|upriver\.errors\.(?!ClusterError)")
"""In why a query has failed: it is no kill of a process."""


@dataclass(frozen=True)
class Sinks:
    """What the changes are written to. session: Spark's settings for it. table: the format of a table that is kept.
    broker: of Kafka, to which they are published."""

    session: Mapping[str, str] = field(default_factory=dict)
    table: str | None = None
    broker: Any = None


class ChangesDriver(RunningCluster):
    program = PROGRAM.with_name("changes.py")

    def __init__(self, folder: Path, sinks: Sinks, topic: CountedTopic | None) -> None:
        told: dict[str, Any] = {"session": dict(sinks.session), "format": sinks.table, "topic": None}
        if sinks.table == "iceberg":
            told["table"] = "ice.db.sums"
            told["session"]["spark.sql.catalog.ice.warehouse"] = str(folder / "warehouse")
        else:
            told["table"] = str(folder / "table")
        if topic is not None:
            told |= {"servers": topic.servers, "topic": topic.name}
        self.arguments = (json.dumps(told),)
        super().__init__(
            folder, MASTER, FILES, workers=2, checkpoints={"interval_epochs": 3}, tokens={"operator": TOKEN}
        )


class HarmedQuery:
    """log: what was done, and when, in seconds. done: how often."""

    def __init__(self, folder: Path, seed: int, sinks: Sinks) -> None:
        self.log = [f"seed {seed}"]
        self.done = Counter[str]()
        self._began = time.monotonic()
        self._random = random.Random(seed)
        self._folder = folder
        self.broker = sinks.broker
        self._topic = None if sinks.broker is None else CountedTopic(sinks.broker)
        self._steps = STEPS if sinks.broker is not None else {**STEPS, "broker": 0}
        self.subscriber = Subscriber()
        self.cluster = ChangesDriver(folder, sinks, self._topic)
        self.subscriber.follow(self.cluster.told["address"])
        self._kills = Counter[int]()
        self._queries = [
            "query",
            *["table-query"] * (sinks.table is not None),
            *["topic-query"] * (sinks.broker is not None),
        ]
        self._ended = [0] * len(self._queries)
        """Batches that each query had ended when it was harmed last."""

    def note(self, what: str) -> None:
        self.log.append(f"{time.monotonic() - self._began:8.2f} {what}")
        with (self._folder / "harm.log").open("a") as log:
            log.write(f"{self.log[-1]}\n")

    def run(self, seconds: float) -> None:
        """Harm it for so long, and then let it come to rest."""
        give_up_at = time.monotonic() + seconds
        with feeding(self.cluster.feed, self._status, max(FEED_S, seconds / FILES)):
            while time.monotonic() < give_up_at:
                (step,) = self._random.choices(list(self._steps), list(self._steps.values()))
                with suppress(ClusterError):  # a process has gone, and that is not noticed yet
                    getattr(self, f"_{step}")()
                    self.done[step] += 1
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
        sources = [pid for pid, command in live_processes() if SOURCE in command]
        own = [pid for pid in sources if session_of(pid) == self.cluster.driver.pid]
        for pid in own:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.note(f"kill -9 of {len(own)} sources of queries")

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
        self.subscriber.follow(None)
        self.cluster.start(MASTER)
        self.subscriber.follow(self.cluster.told["address"])
        self._kills.clear()
        self.note("another driver is up")

    def _broker(self) -> None:
        self.broker.restart()
        self.note("the broker of Kafka is killed and started again")

    def _await_batch(self) -> None:
        """Let each query end a batch before it is harmed again, or else it may get nowhere."""
        give_up_at = time.monotonic() + BATCH_S_MAX
        while not all(now > ended for now, ended in zip(self._commits(), self._ended, strict=True)):
            if time.monotonic() > give_up_at:
                break
            threading.Event().wait(LOOK_S)
        self._ended = self._commits()

    def _commits(self) -> list[int]:
        """How many batches each query has ended. Spark keeps the names of the newest only."""
        folders = [self._folder / query / "commits" for query in self._queries]
        return [max((int(path.name) + 1 for path in folder.glob("[0-9]*")), default=0) for folder in folders]

    def _batches(self) -> list[Path]:
        return sorted(self._folder.glob("batches/[0-9]*"))

    # At the end

    def close(self) -> None:
        self.subscriber.close()
        self.cluster.client.close()
        kill_session(self.cluster.driver)
        self.cluster.driver.communicate(timeout=60)

    def changes(self) -> Iterator[Told]:
        """All changes that the query has had, in the order of its batches."""
        for number, path in enumerate(self._batches()):
            assert path.name == f"{number:06d}"
            yield from (tuple(json.loads(line)) for line in path.read_text().splitlines())

    def check(self) -> None:
        fed = self.cluster.feed.fed
        told = self.cluster.ask(f"check {fed}")
        assert (told["differing"], told["differing_of_table"]) == (0, 0)
        self.note(f"{fed} epochs, {len(told['rows'])} keys; the queries have failed {len(told['failures'])} times")
        assert [why for why in told["failures"] if OURS.search(why)] == []
        await_that(lambda: max((row[4] for row in self.changes()), default=0) >= fed, seconds=REST_S_MAX)
        view = Rows(map(tuple, told["rows"]))
        self.note(f"{check_once(self.changes(), view)} changes in {len(self._batches())} batches, each once")
        await_that(lambda: self.subscriber.through >= fed or self.subscriber.fault is not None, seconds=REST_S_MAX)
        self.note(f"{self.subscriber.check(view)} changes by subscription, each once")
        if self._topic is not None:
            counted, repeated = self._topic.check(list(self.changes()), view, REST_S_MAX)
            self.note(f"{counted} messages counted, {repeated} repeated")
        self.note(
            f"done: {dict(self.done)}; batches by query: {dict(zip(self._queries, self._commits(), strict=True))}"
        )


def harm(folder: Path, options: pytest.Config, sinks: Sinks | None = None) -> None:
    """For as long as ``--soak-minutes`` says, with the seed that ``--campaign-seed`` gives, or a random one."""
    given, minutes = options.getoption("--campaign-seed"), options.getoption("--soak-minutes")
    harmed = HarmedQuery(folder, random.randrange(1_000_000) if given is None else given, sinks or Sinks())
    with ExitStack() as at_end:
        at_end.callback(lambda: print("", *harmed.log, sep="\n"))
        at_end.callback(harmed.close)
        try:
            harmed.run(60 * minutes)
            harmed.check()
        except (AssertionError, OSError, UpriverError, ValueError) as error:
            error.add_note("\n".join([*harmed.log, f"the driver's log: {harmed.cluster.log}"]))
            raise
