"""What tests of learners and standbys in one process share: an app with three kinds of views, and rescales of it."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from failure_kit import KEYS, Feed, Prober, Truth, asking, check_lookup
from rows_kit import differing_rows
from standby_kit import feeding

import upriver
from benchmarks.recovery_kill import pid_listening
from upriver.app import App
from upriver.client.rescale import Rescale

SCHEMA = "k long, v long"
SUMS = "SELECT k, count(*) AS n, sum(v) AS total FROM events GROUP BY k"
SIZES = "SELECT n, count(*) AS keys FROM (SELECT k, count(*) AS n FROM events GROUP BY k) AS counts GROUP BY n"
VNODES = 32
FILES = 600
"""More than the tests can feed."""
SIZE_KEYS = list(range(1, 4 * FILES))


class RunningCluster:
    """An app with a view that keeps every key, one that keeps those that are read, and one whose rows are exchanged."""

    def __init__(self, spark: Any, directory: Path, **settings: Any) -> None:
        self._spark = spark
        self.feed = Feed(directory / "events", FILES)
        self.feed.feed(2)
        rows = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(self.feed.directory))
        self.app = App(spark, str(directory / "lake"), vnodes=VNODES, ingest_tasks=1, **settings)
        self.app.table("events", rows, key="k")
        self.app.view("sums", SUMS, key="k", partial=False)
        self.app.view("read", SUMS, key="k")
        self.app.view("sizes", SIZES, key="n", partial=False)
        self.app.start()
        self.app.wait()

    @contextmanager
    def checked(self) -> Iterator[None]:
        """Files come, lookups are right all the while, and at the end all keys are there, as of a file that came after
        what was done inside."""
        truths: dict[str, Truth] = {"sums": self.feed.view, "read": self.feed.view, "sizes": self.feed.sizes}
        some = {"sums": list(range(0, KEYS, 25)), "read": list(range(0, KEYS, 25)), "sizes": SIZE_KEYS}
        every = {"sums": list(range(KEYS)), "read": list(range(KEYS)), "sizes": SIZE_KEYS}
        with upriver.connect(self.app.address, self.app.token) as client:
            probers = [Prober(client, view, truth, some[view]) for view, truth in truths.items()]
            with feeding(self.feed, self.app.status), asking(*probers):
                yield
            self.feed.feed()
            for view, truth in truths.items():
                check_lookup(client, view, truth, every[view], self.feed.fed)

    def equals_spark(self) -> None:
        """Each view is what Spark SQL says."""
        self.app.wait(timeout=60)
        self._spark.read.schema(SCHEMA).parquet(str(self.feed.directory)).createOrReplaceTempView("events")
        for view, sql in (("sums", SUMS), ("read", SUMS), ("sizes", SIZES)):
            assert differing_rows(self.app.read(view), self._spark.sql(sql)) == 0, view

    def vnodes(self) -> list[int]:
        return [worker["vnodes"] for worker in self.app.status()["workers"]]

    def process_of(self, worker: int) -> int:
        return pid_listening(self.app.status()["workers"][worker]["address"])

    def kill(self, worker: int) -> None:
        os.kill(self.process_of(worker), signal.SIGKILL)


def amid(rescale: Rescale) -> None:
    """Block until some slices have been taken over, and others have not; or all have."""
    for progress in rescale.follow():
        if progress["vnodes_moved"]:
            return


def over(rescale: Rescale, what: str) -> dict[str, Any]:
    report = rescale.wait(timeout=120)
    assert (report["outcome"], report["error"]) == ("finished", None)
    print(f"\n{what}: {report['moved_vnodes']} vnodes and {report['moved_keys']} keys in {report['seconds']:.2f} s")
    return report
