"""Starts that cannot come about in time: what is said, and that nothing stays up."""

import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from upriver.app import App
from upriver.errors import TooFewSlots, WaitTimeout
from upriver.net.server import Listen
from upriver.options import Tokens
from upriver.spark.declared_tables import StartedSource
from upriver.spark.running_app import AppConfig, RunningApp
from upriver.spark.session import taken_slots
from upriver.spark.tables import declared_table

pytestmark = pytest.mark.spark


def block(port: int, _: Iterable[int]) -> list[int]:
    """A task that says that it runs, and ends when it is let go."""
    with socket.create_connection(("127.0.0.1", port)) as held:
        held.sendall(b"x")
        held.recv(1)
    return []


@contextmanager
def taken(spark: Any, slots: int) -> Iterator[None]:
    """So many task slots are taken by another job meanwhile."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        tasks = partial(block, server.getsockname()[1])
        job = threading.Thread(
            target=spark.sparkContext.parallelize(range(slots), slots).mapPartitions(tasks).collect, daemon=True
        )
        job.start()
        held = [server.accept()[0] for _ in range(slots)]
        try:
            for connection in held:
                connection.recv(1)
            while taken_slots(spark) < slots:  # Spark's count lags behind its tasks
                pass
            yield
        finally:
            for connection in held:
                connection.close()
            job.join()


def an_app(spark: Any, root: Path, **settings: Any) -> App:
    app = App(spark, root, workers=2, **settings)
    app.table("t", spark.range(10).withColumnRenamed("id", "k"), key="k")
    return app


def a_river(spark: Any, root: Path, listen: Listen) -> RunningApp:
    rows = spark.range(10).withColumnRenamed("id", "k")
    source = StartedSource(
        table=declared_table("t", rows, key="k", primary_key=(), order_by=(), deletes=None), rows=rows, trigger={}
    )
    config = AppConfig(root=str(root), workers=2, vnodes=8, tokens=Tokens(operator="token"), listen=listen, groups=1)
    return RunningApp(spark, config, [source], [], [])


def check_nothing_is_up(spark: Any, port_of: Callable[[], str] | None = None) -> None:
    tracker = spark.sparkContext._jsc.sc().statusTracker()
    assert list(tracker.getActiveJobIds()) == []
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith("upriver-worker")] == []
    if port_of is not None:
        host, _, port = port_of().rpartition(":")
        with pytest.raises(OSError, match="refused"):
            socket.create_connection((host, int(port)))


def test_no_time_at_all_is_an_error_that_says_what_it_was_at(spark: Any, tmp_path: Path) -> None:
    app = an_app(spark, tmp_path / "lake")
    with pytest.raises(WaitTimeout, match="not up after 0 s: it was looking into the lake"):
        app.start(timeout=0)
    check_nothing_is_up(spark)


def test_slots_that_are_taken_now_are_counted(spark: Any, tmp_path: Path) -> None:
    app = an_app(spark, tmp_path / "lake")
    with (
        taken(spark, 6),
        pytest.raises(TooFewSlots, match=r"3 task slots are needed.* 6 of 8 are taken: by other jobs"),
    ):
        app.start(timeout=1)
    check_nothing_is_up(spark)


def test_what_the_workers_said_stands_in_the_error_and_the_lake_is_free_again(spark: Any, tmp_path: Path) -> None:
    cluster = a_river(spark, tmp_path / "lake", Listen(advertised="nowhere.invalid"))
    with pytest.raises(WaitTimeout, match=r"not up after 6 s: .*worker 0.*: .*nowhere\.invalid:\d+ cannot be reached"):
        cluster.start(6)
    port = cluster.address.rpartition(":")[2]
    check_nothing_is_up(spark, lambda: f"127.0.0.1:{port}")
    again = a_river(spark, tmp_path / "lake", Listen())
    again.start(60)
    again.stop()
