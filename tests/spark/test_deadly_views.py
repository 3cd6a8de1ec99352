"""A view whose rows kill the worker's process fails, and everything else goes on."""

import logging
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.recovery_kill import pid_listening
from upriver.app import App
from upriver.coordinator.coordinator import DEATHS_MAX
from upriver.errors import ViewCrashed

pytestmark = pytest.mark.spark

WAIT_S = 120.0
CAUSE = "UPRIVER_TEST_CAUSE"
"""In the environment of the workers alone: a file. While it is there, any batch with a column ``poison`` kills its
process, as a crash of a library would."""
DIES = f"""
import os, signal
from upriver.engine.region import Region

apply = Region.apply

def deadly(region, port, batch):
    if "poison" in batch.rows.schema.names and os.path.exists(os.environ["{CAUSE}"]):
        os.kill(os.getpid(), signal.SIGKILL)
    apply(region, port, batch)

Region.apply = deadly
"""


@pytest.fixture
def cause(spark: Any, tmp_path: Path) -> Iterator[Path]:
    """The cause of deaths in all workers that start meanwhile. Python loads a module of this name at its start."""
    program, cause = tmp_path / "program", tmp_path / "cause"
    program.mkdir()
    (program / "sitecustomize.py").write_text(DIES)
    cause.touch()
    environment = spark.sparkContext.environment
    before = dict(environment)
    environment.update({CAUSE: str(cause), "PYTHONPATH": str(program)})
    yield cause
    environment.clear()
    environment.update(before)


def test_a_view_that_kills_its_workers_process_fails_and_the_others_go_on(
    spark: Any, tmp_path: Path, cause: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = spark.range(60).selectExpr("id", "id % 7 AS v")
    poison = spark.range(1).selectExpr("id + 1 AS id", "true AS poison")
    with App(spark, tmp_path / "lake", workers=2, vnodes=4, ingest_tasks=1) as app, caplog.at_level(logging.WARNING):
        app.table("t", rows, key="id")
        app.table("poisoned", poison, key="id")
        app.view("plain", "SELECT id, v FROM t", key="id", partial=False)
        app.start(wait=True, timeout=WAIT_S)
        app.view("deadly", "SELECT id, poison FROM poisoned", key="id", partial=False)
        said = f"has died {DEATHS_MAX} times running while it computed the view"
        with pytest.raises(ViewCrashed, match=said):
            app.lookup("deadly", [1], timeout=WAIT_S)
        told = app.status()
        assert (told["views"]["deadly"]["state"], said in told["views"]["deadly"]["error"]) == ("failed", True)
        assert sorted(worker["restarts"] for worker in told["workers"]) == [0, DEATHS_MAX]
        assert sum("its last process has died" in text for text in caplog.messages) == 1, "the others say the same"
        assert sum(text.startswith("view deadly has failed: ViewCrashed") for text in caplog.messages) == 1
        for worker in told["workers"]:  # whose next process dies as it warms up, and the one after it does not
            os.kill(pid_listening(worker["address"]), signal.SIGKILL)
            assert app.lookup("plain", list(range(60)), timeout=WAIT_S).num_rows == 60
        assert app.status()["views"]["deadly"]["state"] == "failed"
        app.drop_view("deadly")
        cause.unlink()
        app.view("deadly", "SELECT id, poison FROM poisoned", key="id", partial=False)
        app.wait(view="deadly", timeout=WAIT_S)
        assert app.lookup("deadly", [1], timeout=WAIT_S).to_pylist() == [{"id": 1, "poison": True}]
