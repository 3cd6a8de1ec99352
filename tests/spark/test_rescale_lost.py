"""Worker processes killed, stopped or cut off while keys move: nothing is lost, and the cluster says what happened."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from failure_kit import cut_between
from rows_kit import differing_rows

from benchmarks.recovery_kill import pid_listening
from upriver.app import App
from upriver.client.rescale import Rescale
from upriver.errors import ClusterError

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


def places(app: App) -> dict[int, str]:
    return {worker["worker"]: worker["address"] for worker in app.status()["workers"]}


@contextmanager
def harmed_while_keys_move(app: App, rescale: Rescale, victim: int) -> Iterator[int]:
    """A worker's process, as soon as keys move."""
    for progress in rescale.follow():
        if progress["state"] == "moving":
            yield pid_listening(places(app)[victim])
            return
    raise AssertionError("no keys have moved")


def check_all(spark: Any, app: App) -> None:
    """The view is all there, and right, and workers may come and go again."""
    spark.sql(EVENTS).createOrReplaceTempView("events")
    app.wait(timeout=120)
    assert app.lookup("sums", list(range(5000)), timeout=60).num_rows == 5000
    assert differing_rows(app.read("sums"), spark.sql(SUMS)) == 0
    assert app.rescale(3).wait(timeout=120)["outcome"] == "finished"
    assert differing_rows(app.read("sums"), spark.sql(SUMS)) == 0


@pytest.mark.parametrize("victim", [0, pytest.param(3, marks=pytest.mark.long)], ids=["an old owner", "a joiner"])
def test_a_worker_killed_while_keys_move_fails_the_rescale_and_nothing_else(spark: Any, app: App, victim: int) -> None:
    rescale = app.rescale(4, keys_max=1)
    with harmed_while_keys_move(app, rescale, victim) as process:
        os.kill(process, signal.SIGKILL)
        with pytest.raises(ClusterError, match="all workers start anew by the old map"):
            rescale.wait(timeout=120)
    check_all(spark, app)


def test_a_worker_stopped_while_keys_move_is_replaced_and_says_nothing_when_it_wakes(spark: Any, app: App) -> None:
    rescale = app.rescale(4, keys_max=1)
    with harmed_while_keys_move(app, rescale, 1) as process:
        os.kill(process, signal.SIGSTOP)
        try:
            with pytest.raises(ClusterError, match="all workers start anew by the old map"):
                rescale.wait(timeout=120)
        finally:
            with suppress(ProcessLookupError):  # Spark has killed it
                os.kill(process, signal.SIGCONT)
    check_all(spark, app)


def test_a_connection_cut_while_keys_move_fails_the_rescale_and_nothing_else(spark: Any, app: App) -> None:
    before = places(app)
    rescale = app.rescale(4, keys_max=1)
    with harmed_while_keys_move(app, rescale, 0) as process:
        assert cut_between(process, pid_listening(places(app)[1])) > 0
        with pytest.raises(ClusterError, match="all workers start anew by the old map"):
            rescale.wait(timeout=120)
    assert {worker: places(app)[worker] for worker in before} == before
    check_all(spark, app)


def test_a_worker_that_stood_still_for_too_long_is_replaced(spark: Any, app: App) -> None:
    address = places(app)[0]
    process = pid_listening(address)
    os.kill(process, signal.SIGSTOP)
    try:
        assert app.lookup("sums", list(range(5000)), timeout=60).num_rows == 5000  # of its replacement
        assert places(app)[0] != address
    finally:
        with suppress(ProcessLookupError):  # Spark has killed it
            os.kill(process, signal.SIGCONT)
    check_all(spark, app)
    (recovery,) = app.status()["recoveries"]
    assert (recovery["worker"], recovery["served_again_s"] > 0) == (0, True)
