"""The changes of a view over the end of every process: a query whose sink fails and that is started again, and clients
that subscribe, have each change once, while a worker is killed and the app is rescaled, stopped and started again."""

import asyncio
import os
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from changes_kit import Change, Rows, sum_of
from failure_kit import Feed
from pyspark.errors import PySparkException
from relay_kit import Relay
from standby_kit import await_that

from benchmarks.recovery_kill import pid_listening
from upriver import connect, connect_async
from upriver.app import App
from upriver.client.subscriptions import THROUGH
from upriver.errors import UnknownView
from upriver.ids import Epoch
from upriver.lake.change_log import ChangeLog
from upriver.lake.lake import Lake
from upriver.options import Tokens

pytestmark = pytest.mark.spark

SCHEMA = "k long, v long"
SUMS = "SELECT k, count(*) AS n, sum(v) AS total FROM events GROUP BY k"
TOKEN = "s3cret-t0ken"
FILES = 6
"""Files that are fed, each an epoch."""
WAIT_S = 120.0
STARTS_MAX = 10
NOT_STARTED = "Python worker failed to connect back"
"""Spark gives the Python process of a source 10 s to start, which a busy machine may not do. The query fails then, as
it may at any moment, and is started again."""


class FailingReader:
    """A query with one checkpoint. changes: what its sink has got, once for each batch that it has finished."""

    def __init__(self, folder: Path) -> None:
        self._checkpoint = str(folder / "checkpoint")
        self.changes: list[Change] = []
        self.batches: list[int] = []

    def read(self, app: App, *, fails: bool = False) -> None:
        """Read what there is. fails: the sink does, once it has seen the rows."""

        def sink(rows: Any, batch: int) -> None:
            given = [tuple(row) for row in rows.collect()]
            if fails:
                raise RuntimeError("the sink failed")
            self.batches.append(batch)
            self.changes += given

        query = app.changes("sums").writeStream.foreachBatch(sink).option("checkpointLocation", self._checkpoint)
        for attempt in range(STARTS_MAX):
            try:
                query.trigger(availableNow=True).start().awaitTermination()
            except PySparkException as error:
                if NOT_STARTED not in str(error) or attempt == STARTS_MAX - 1:
                    raise
            else:
                return


def rows_of(batch: pa.RecordBatch) -> list[Change]:
    return [tuple(row.values()) for row in batch.to_pylist()]


def is_last(batch: pa.RecordBatch) -> bool:
    """Whether the changes of all files have come."""
    return int((batch.schema.metadata or {}).get(THROUGH, b"0")) >= FILES


def subscribed(address: str, began: threading.Event) -> list[Change]:
    """All changes. began: set with the first ones."""
    found: list[Change] = []
    with connect(address, TOKEN) as client:
        for batch in client.subscribe("sums", timeout=WAIT_S):
            found += rows_of(batch)
            began.set()
            if is_last(batch):
                break
    return found


def subscribed_async(address: str, began: threading.Event) -> list[Change]:
    """As ``subscribed``, by asyncio."""

    async def read() -> list[Change]:
        found: list[Change] = []
        async with await connect_async(address, TOKEN) as client:
            async for batch in client.subscribe("sums", timeout=WAIT_S):
                found += rows_of(batch)
                began.set()
                if is_last(batch):
                    break
        return found

    return asyncio.run(read())


@contextmanager
def subscribers(address: str) -> Iterator[list[Future[list[Change]]]]:
    """Clients that have the first changes, and read on."""
    with ThreadPoolExecutor(2) as pool:
        reading = []
        for read in (subscribed, subscribed_async):
            began = threading.Event()
            reading.append(pool.submit(read, address, began))
            assert began.wait(WAIT_S)
        yield reading


@contextmanager
def app_on(spark: Any, folder: Path, feed: Feed, relay: Relay) -> Iterator[App]:
    """An app behind a fixed address."""
    rows = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(feed.directory))
    app = App(spark, str(folder / "lake"), workers=2, ingest_tasks=1, tokens=Tokens(operator=TOKEN))
    app.table("events", rows, key="k")
    app.view("sums", SUMS, key="k", changes=True)
    with app.start():
        relay.target = app.address
        yield app
        relay.target = None


def await_log(folder: Path, epoch: Epoch) -> None:
    """Block until the log has this version."""
    log = ChangeLog(Lake(str(folder / "lake")))

    def has_it() -> bool:
        try:
            return log.last("sums") >= epoch
        except UnknownView:  # it has not begun
            return False

    await_that(has_it, lambda: f"version {epoch} is not logged", WAIT_S)


def test_every_reader_has_each_change_once(spark: Any, tmp_path: Path) -> None:
    feed, reader = Feed(tmp_path / "events"), FailingReader(tmp_path)
    feed.feed(2)
    with ExitStack() as stack:
        relay = stack.enter_context(Relay())
        with app_on(spark, tmp_path, feed, relay) as app:
            await_log(tmp_path, app.wait(timeout=WAIT_S))
            reading = stack.enter_context(subscribers(relay.address))
            reader.read(app)
            feed.feed(1)
            os.kill(pid_listening(app.status()["workers"][0]["address"]), signal.SIGKILL)
            feed.feed(1)
            await_log(tmp_path, app.wait(timeout=WAIT_S))
            with pytest.raises(PySparkException, match="the sink failed"):
                reader.read(app, fails=True)
            rescale = app.rescale(3)
            feed.feed(1)
            assert rescale.wait(timeout=WAIT_S)["outcome"] == "finished"
        with app_on(spark, tmp_path, feed, relay) as app:
            feed.feed(1)
            await_log(tmp_path, app.wait(timeout=WAIT_S))
            reader.read(app)
            view = Rows(map(tuple, app.read("sums").collect()))
            by_clients = [each.result(WAIT_S) for each in reading]
    assert feed.fed == FILES
    spark.read.schema(SCHEMA).parquet(str(feed.directory)).createOrReplaceTempView("events")
    assert view == Rows(map(tuple, spark.sql(SUMS).collect()))
    assert reader.batches == sorted(set(reader.batches))
    for changes in (reader.changes, *by_clients):
        assert sum_of(changes) == view
        once = Counter((key, kind, version) for key, _, _, kind, version, _ in changes)
        assert set(once.values()) == {1}
    assert set(map(repr, by_clients[0])) == set(map(repr, by_clients[1]))
