"""Functions that do not return, or that end their process: their view fails, and everything else goes on."""

import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from upriver.app import App
from upriver.errors import FunctionFailed

pytestmark = pytest.mark.spark

WAIT_S = 120.0
TIMEOUT_S = 4.0


def endless(v: int) -> int:
    while v == 5:
        pass
    return v


def deadly(v: int) -> int:
    if v == 5:
        os._exit(3)
    return v


def counting(key: int, row: Any, state: Any) -> Any:
    n = 0 if state is None else state.n
    if key == 3 and n == 0:
        threading.Event().wait(3600)
    return [(n + 1,)], (n + 1,)


def failure_of(app: App, view: str) -> str:
    """Of a view that fails once the first rows come."""
    ends_at = time.monotonic() + WAIT_S
    while time.monotonic() < ends_at:
        try:
            app.lookup(view, [1], timeout=1.0)
        except FunctionFailed as failed:
            return str(failed)
        except Exception as error:  # of any class: the view is not there yet
            print(view, repr(error))
        threading.Event().wait(0.1)
    raise AssertionError(f"{view} has not failed")


def test_a_function_that_does_not_return_or_ends_its_process_fails_its_view_alone(spark: Any, tmp_path: Path) -> None:
    app = App(spark, tmp_path / "lake", workers=2, vnodes=4, ingest_tasks=1, function_timeout=TIMEOUT_S)
    rows = spark.range(60).selectExpr("id", "CAST(id % 7 AS INT) AS v")
    with app:
        app.table("t", rows, key="id")
        app.table("events", rows, key="v")
        for function in (endless, deadly):
            app.function(function.__name__, function, returns="INT", arguments="v INT", deterministic=True)
        app.function("fine", lambda v: v + 1, returns="INT", arguments="v INT", deterministic=True)
        app.view("plain", "SELECT id, v FROM t", key="id", partial=False)
        app.view("good", "SELECT id, fine(v) AS w FROM t", key="id", partial=False)
        app.start(wait=True, timeout=WAIT_S)
        assert app.lookup("good", [5]).to_pylist() == [{"id": 5, "w": 6}]
        app.view("hung", "SELECT id, endless(v) AS w FROM t", key="id", partial=False)
        slowest = 0.0
        ends_at = time.monotonic() + 3 * TIMEOUT_S
        while time.monotonic() < ends_at:
            began = time.monotonic()
            assert app.lookup("plain", [5]).to_pylist() == [{"id": 5, "v": 5}]
            assert app.lookup("good", [5]).to_pylist() == [{"id": 5, "w": 6}]
            slowest = max(slowest, time.monotonic() - began)
        assert slowest < TIMEOUT_S
        assert f"endless() did not return within function_timeout={TIMEOUT_S:g} s" in failure_of(app, "hung")
        app.view("dead", "SELECT id, deadly(v) AS w FROM t", key="id", partial=False)
        assert "the process of the function deadly() ended itself with the exit status 3" in failure_of(app, "dead")
        app.stateful_map("maps", source="events", key="v", func=counting, schema="n INT", state="n INT")
        assert "a call of the function of stateful map 'maps' did not return" in failure_of(app, "maps")
        assert app.lookup("good", [5]).to_pylist() == [{"id": 5, "w": 6}]
        assert {worker["restarts"] for worker in app.status()["workers"]} == {0}
