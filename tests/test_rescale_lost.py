"""Worker processes killed while keys move: nothing is lost, and the river says what has happened."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.process_kit import pid_listening
from upriver.app import App
from upriver.errors import ClusterError, WaitTimeout, WorkerLost
from upriver.spark.compare import differing_rows

pytestmark = pytest.mark.spark

EVENTS = "SELECT cast(id * 7919 % 5000 AS long) AS k, id AS v FROM range(40000)"
SUMS = "SELECT k, count(*) AS n, sum(v) AS total FROM events GROUP BY k"


@pytest.fixture
def app(spark: Any, tmp_path: Path) -> Iterator[App]:
    with App(spark, str(tmp_path / "lake"), workers=2, ingest_tasks=1) as app:
        app.table("events", spark.sql(EVENTS), key="k")
        app.view("sums", SUMS, key="k", partial=False)
        app.start()
        app.wait()
        yield app


@pytest.mark.parametrize("victim", [0, 3], ids=["an old owner", "a joiner"])
def test_a_worker_killed_while_keys_move_fails_the_rescale_and_nothing_else(spark: Any, app: App, victim: int) -> None:
    rescale = app.rescale(4, keys_max=1)
    for progress in rescale.follow():
        if progress["state"] == "moving":
            addresses = {worker["worker"]: worker["address"] for worker in app.status()["workers"]}
            os.kill(pid_listening(addresses[victim]), signal.SIGKILL)
            break
    with pytest.raises(ClusterError, match="all workers start anew by the old map"):
        rescale.wait(timeout=120)
    spark.sql(EVENTS).createOrReplaceTempView("events")
    app.wait(timeout=120)
    assert app.lookup("sums", list(range(5000)), timeout=60).num_rows == 5000
    assert differing_rows(app.read("sums"), spark.sql(SUMS)) == 0
    assert app.rescale(3).wait(timeout=120)["outcome"] == "over"
    assert differing_rows(app.read("sums"), spark.sql(SUMS)) == 0


@pytest.mark.long
def test_a_worker_that_stood_still_for_too_long_is_replaced(spark: Any, app: App) -> None:
    address = app.status()["workers"][0]["address"]
    process = pid_listening(address)
    os.kill(process, signal.SIGSTOP)
    try:
        with pytest.raises((WorkerLost, WaitTimeout)):
            app.lookup("sums", list(range(5000)), timeout=40)  # in which time it comes to count as lost
    finally:
        os.kill(process, signal.SIGCONT)
    app.wait(timeout=120)
    assert app.status()["workers"][0]["address"] != address
    assert app.lookup("sums", list(range(5000)), timeout=60).num_rows == 5000
    spark.sql(EVENTS).createOrReplaceTempView("events")
    assert differing_rows(app.read("sums"), spark.sql(SUMS)) == 0
