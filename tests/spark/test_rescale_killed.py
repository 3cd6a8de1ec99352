"""A worker's process is killed in each stage of a rescale: views stay right, and the rescale ends as it says it does.

Most stages last milliseconds. Each is made to last here by a worker that is stopped and cannot do its part of it, and
goes on when another one has been killed. While keys move it takes no help; see test_rescale_lost.py for more of that.
"""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from failure_kit import KEYS, Feed, probing
from rows_kit import differing_rows

import upriver
from benchmarks.recovery_kill import pid_listening
from upriver.app import App
from upriver.errors import ClusterError

pytestmark = pytest.mark.spark

SCHEMA = "k long, v long"
SUMS = "SELECT k, count(*) AS n, sum(v) AS total FROM events GROUP BY k"
WORKERS = 4
SILENCE_S = 10.0
"""Seconds: long enough for a worker that is stopped to be still waited for when a stage has come."""
STAGE_S_MAX = 30.0
STOPPED = 1
"""The worker that is stopped; the last one would leave."""


class RescaledCluster:
    """An app, what feeds it, and harm to its workers."""

    def __init__(self, spark: Any, app: App, feed: Feed) -> None:
        self.app, self._spark, self._feed = app, spark, feed

    def feed(self) -> None:
        """One more epoch, which need not be over when this returns."""
        self._feed.feed()
        await_that(lambda: self.app.status()["published"] == self._feed.fed)

    @property
    def workers(self) -> int:
        return len(self.app.status()["workers"])

    def address(self, worker: int) -> str | None:
        """``None`` if the place is empty. A place that is to join is reported only while it is filled."""
        addresses = {there["worker"]: there["address"] for there in self.app.status()["workers"]}
        return addresses.get(worker)

    def process(self, worker: int) -> int:
        address = self.address(worker)
        assert address is not None
        return pid_listening(address)

    def kill(self, worker: int) -> None:
        """Returns when it is noticed."""
        address = self.address(worker)
        os.kill(self.process(worker), signal.SIGKILL)
        await_that(lambda: self.address(worker) != address)

    @contextmanager
    def stopped(self, worker: int) -> Iterator[None]:
        address, process = self.address(worker), self.process(worker)
        os.kill(process, signal.SIGSTOP)
        try:
            yield
            assert self.address(worker) == address, "it was given up: the stage may have been another"
        finally:
            os.kill(process, signal.SIGCONT)

    def await_stage(self, stage: str) -> None:
        """No user is told of it, so this looks where it is."""
        app: Any = self.app
        rescales = app._running_app._running._machine._rescales
        await_that(lambda: type(rescales.stage).__name__ == stage)

    @contextmanager
    def checked(self) -> Iterator[None]:
        """Lookups are right all the while, and at the end there are new rows, and the view is what Spark says."""
        with upriver.connect(self.app.address, self.app.token) as client, probing(client, self._feed):
            yield
            self.feed()
            client.lookup("sums", list(range(KEYS)), at_least=self._feed.fed, timeout=60)
        self.app.wait(timeout=60)
        self._spark.read.schema(SCHEMA).parquet(str(self._feed.directory)).createOrReplaceTempView("events")
        assert differing_rows(self.app.read("sums"), self._spark.sql(SUMS)) == 0


def await_that(it_is_so: Callable[[], bool]) -> None:
    """Block until it is."""
    paused = threading.Event()
    for _ in range(int(STAGE_S_MAX / 0.005)):
        if it_is_so():
            return
        paused.wait(0.005)
    raise AssertionError("it does not come to be so")


@pytest.fixture(scope="module")
def cluster(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RescaledCluster]:
    """Most of the tests leave it with a worker less."""
    directory = tmp_path_factory.mktemp("killed")
    feed = Feed(directory / "events")
    feed.feed(2)
    rows = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(feed.directory))
    with App(spark, str(directory / "lake"), workers=WORKERS, ingest_tasks=1, worker_silence_s=SILENCE_S) as app:
        app.table("events", rows, key="k")
        app.view("sums", SUMS, key="k", partial=False)
        app.start()
        app.wait()
        yield RescaledCluster(spark, app, feed)


def test_killed_while_a_rescale_is_starting(cluster: RescaledCluster) -> None:
    """Two are: the place of the first is empty until its lease has run out, and so long it starts."""
    with cluster.checked():
        cluster.kill(0)
        rescale = cluster.app.rescale(cluster.workers + 1)
        cluster.await_stage("Starting")
        cluster.kill(2)
        assert rescale.progress()["state"] == "starting"
        assert rescale.wait(timeout=120)["outcome"] == "finished"


def test_killed_while_all_are_meeting(cluster: RescaledCluster) -> None:
    with cluster.checked():
        with cluster.stopped(STOPPED):
            rescale = cluster.app.rescale(cluster.workers - 1)
            cluster.await_stage("Meeting")
            cluster.kill(0)
        assert rescale.wait(timeout=120)["outcome"] == "finished"


@pytest.mark.long
def test_killed_while_an_epoch_is_draining(cluster: RescaledCluster) -> None:
    """It is one that is to leave."""
    with cluster.checked():
        with cluster.stopped(STOPPED):
            cluster.feed()
            rescale = cluster.app.rescale(cluster.workers - 1, strategy="restart")
            cluster.await_stage("Draining")
            cluster.kill(cluster.workers - 1)
        assert rescale.wait(timeout=120)["outcome"] == "finished"


@pytest.mark.parametrize(
    ("stage", "strategy"), [("Meeting", "icadd"), pytest.param("Draining", "restart", marks=pytest.mark.long)]
)
def test_one_that_joins_is_killed_before_anything_has_moved(
    cluster: RescaledCluster, stage: str, strategy: str
) -> None:
    """Another comes for its place, and the rescale goes on with that one."""
    joiner = cluster.workers
    with cluster.checked():
        with cluster.stopped(STOPPED):
            cluster.feed()
            rescale = cluster.app.rescale(joiner + 1, strategy=strategy)
            cluster.await_stage(stage)
            cluster.kill(joiner)
        assert rescale.wait(timeout=120)["outcome"] == "finished"
    assert cluster.workers == joiner + 1
    cluster.app.rescale(joiner).wait(timeout=120)


@pytest.mark.long
def test_killed_while_a_restart_is_reloading(cluster: RescaledCluster) -> None:
    with cluster.checked():
        with cluster.stopped(STOPPED):
            rescale = cluster.app.rescale(cluster.workers - 1, strategy="restart")
            cluster.await_stage("Reloading")
            cluster.kill(0)
        assert rescale.wait(timeout=120)["outcome"] == "finished"


def test_one_that_leaves_is_killed_while_its_keys_are_moving(cluster: RescaledCluster) -> None:
    workers = cluster.workers
    leaver = cluster.process(workers - 1)
    with cluster.checked():
        rescale = cluster.app.rescale(workers - 1, keys_max=1)
        cluster.await_stage("Moving")
        os.kill(leaver, signal.SIGKILL)
        with pytest.raises(ClusterError, match="all workers start anew by the old map"):
            rescale.wait(timeout=120)
    assert cluster.workers == workers
