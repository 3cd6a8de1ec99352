"""The log of a view's changes, from real apps: what it adds up to is what the view holds."""

import os
import signal
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from change_log_kit import replayed, versions_of
from partial_kit import stream, write_file
from standby_kit import await_that

from benchmarks.recovery_kill import pid_listening
from upriver.app import App
from upriver.errors import ChangesGone, DeclarationError
from upriver.ids import Epoch
from upriver.lake.change_log import ChangeLog
from upriver.lake.lake import Lake
from upriver.options import Checkpoints, Compaction

pytestmark = pytest.mark.spark

EVENTS = pa.schema([("k", pa.string()), ("seq", pa.int64()), ("v", pa.int64())])
COUNTS = "SELECT k, count(*) AS n, sum(v) AS total FROM events GROUP BY k HAVING count(*) > 1"
SIZES = "SELECT n, count(*) AS keys FROM (SELECT k, count(*) AS n FROM events GROUP BY k) GROUP BY n"
ROWS = 300
LOG_S_MAX = 60.0


class Logged:
    """A table of files, and an app that logs the changes of two views of it: one of one region, one whose rows are
    exchanged."""

    def __init__(self, spark: Any, directory: Path) -> None:
        self.root = str(directory / "lake")
        self._spark = spark
        self._files = directory / "events"
        self._written = 0

    def write(self) -> None:
        first = self._written * ROWS
        self._written += 1
        rows = [(f"key-{seq * 7919 % 200}", seq, seq % 101) for seq in range(first, first + ROWS)]
        write_file(self._files, self._written, EVENTS, rows)

    def app(self, counts: str = COUNTS, **settings: Any) -> App:
        options = {"checkpoints": Checkpoints(interval_s=None), **settings}
        app = App(self._spark, self.root, workers=2, vnodes=64, ingest_tasks=1, **options)
        app.table("events", stream(self._spark, self._files, "k string, seq long, v long"), key="k", order_by="seq")
        app.view("counts", counts, key="k", changes=True)
        app.view("sizes", SIZES, key="n", changes=True)
        app.view("plain", COUNTS, key="k")
        return app

    def check(self, app: App) -> None:
        """The logs add up to what the views hold now, once they are there."""
        epoch, log = app.wait(timeout=120), ChangeLog(Lake(self.root))
        deadline = time.monotonic() + LOG_S_MAX
        while not ({"counts", "sizes"} <= set(log.views()) and log.last("counts") >= epoch <= log.last("sizes")):
            assert time.monotonic() < deadline, f"no log through epoch {epoch}"
            threading.Event().wait(0.05)
        for view in ("counts", "sizes"):
            assert replayed(log, view) == Counter(tuple(row) for row in app.read(view).collect())


@pytest.fixture
def logged(spark: Any, tmp_path: Path) -> Logged:
    made = Logged(spark, tmp_path)
    made.write()
    return made


def test_the_log_is_the_view_over_restarts_rescales_and_lost_workers(logged: Logged) -> None:
    with logged.app().start() as app:
        assert app.changes("counts").columns == [
            "k",
            "n",
            "total",
            "_change_type",
            "_commit_version",
            "_commit_timestamp",
        ]
        logged.check(app)
        assert "its changes are logged" in app.explain("counts")
        begins = ChangeLog(Lake(logged.root)).first("counts")
        logged.write()
        logged.check(app)
        app.checkpoint()
        logged.write()
        app.wait(timeout=120)
        os.kill(pid_listening(app.status()["workers"][0]["address"]), signal.SIGKILL)
        logged.write()
        logged.check(app)
        rescale = app.rescale(3)
        logged.write()
        rescale.wait(120)
        logged.check(app)
    logged.write()
    with logged.app().start() as app:
        logged.check(app)
        log = ChangeLog(Lake(logged.root))
        assert log.first("counts") == begins
        last = log.last("counts")
        logged.write()
        logged.check(app)
        assert all(version > last for version, _ in versions_of(log, "counts", last))


def test_versions_that_are_older_than_the_retention_become_one(logged: Logged) -> None:
    log = ChangeLog(Lake(logged.root))
    with logged.app(compaction=Compaction(changes_retention="1 second", grace_s=0.0)).start() as app:
        logged.check(app)
        begins = log.first("counts")
        logged.write()
        logged.check(app)
        await_that(lambda: log.first("counts") > begins, lambda: app.status()["changes"])
        with pytest.raises(ChangesGone, match=f"after version {begins} are gone"):
            list(log.changes("counts", begins, log.last("counts")))
        logged.write()
        logged.check(app)
        await_that(lambda: app.status()["changes"]["views"]["counts"]["last"] == log.last("counts"))
        assert app.status()["changes"]["failure"] is None
    logged.write()
    with logged.app().start() as app:
        logged.check(app)
        assert log.first("counts") > begins


def test_a_view_that_is_declared_otherwise_begins_a_new_log(logged: Logged) -> None:
    with logged.app().start() as app:
        logged.check(app)
        with pytest.raises(DeclarationError, match="'plain' has no log of its changes: declare it with changes=True"):
            app.changes("plain")
        log = ChangeLog(Lake(logged.root))
        sizes, last = log.first("sizes"), log.last("counts")
        app.drop_view("counts")
        app.view("counts", COUNTS.replace("> 1", "> 2"), key="k", changes=True)
        logged.write()
        logged.check(app)
        assert log.first("sizes") == sizes
        assert log.first("counts") > last
        with pytest.raises(ChangesGone, match="read it from the start"):
            list(log.changes("counts", Epoch(last), log.last("counts")))
