"""Checkpoints on real Spark: what comes back from them is what Spark SQL says, after restarts and lost workers."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from partial_kit import stream, write_file
from rows_kit import differing_rows

from benchmarks.recovery_kill import pid_listening
from upriver.app import App
from upriver.options import Checkpoints

pytestmark = pytest.mark.spark

EVENTS = pa.schema([("k", pa.string()), ("seq", pa.int64()), ("v", pa.int64())])
COUNTS = "SELECT k, count(*) AS n, sum(v) AS total, max(seq) AS last FROM events GROUP BY k"
SIZES = "SELECT n, count(*) AS keys FROM (SELECT k, count(*) AS n FROM events GROUP BY k) GROUP BY n"
KEYS = 2_000


class Events:
    """A table of files, and an app that keeps two views of it: one of one region, one whose rows are exchanged."""

    def __init__(self, spark: Any, directory: Path) -> None:
        self.lake = directory / "lake"
        self._spark = spark
        self._files = directory / "events"
        self._written = 0

    def write(self, rows: int = 5_000) -> None:
        first = self._written * rows
        made = [(f"key-{seq * 7919 % KEYS}", seq, seq % 101) for seq in range(first, first + rows)]
        self._written += 1
        write_file(self._files, self._written, EVENTS, made)

    def app(self, counts: str = COUNTS) -> App:
        checkpoints = Checkpoints(interval_s=None)
        app = App(self._spark, str(self.lake), workers=2, vnodes=64, ingest_tasks=1, checkpoints=checkpoints)
        app.table("events", stream(self._spark, self._files, "k string, seq long, v long"), key="k", order_by="seq")
        app.view("counts", counts, key="k", partial=False)
        app.view("sizes", SIZES, key="n", partial=False)
        return app

    def read(self, app: App) -> None:
        """Start an app, and wait until its views are there."""
        with app.start():
            app.wait(timeout=120)

    def check(self, app: App, counts: str = COUNTS) -> None:
        """Both views are what Spark SQL makes of all files."""
        app.wait(timeout=120)
        self._spark.read.parquet(str(self._files)).createOrReplaceTempView("events")
        assert differing_rows(app.read("counts"), self._spark.sql(counts)) == 0
        assert differing_rows(app.read("sizes"), self._spark.sql(SIZES)) == 0

    def forget_before(self, epoch: int) -> None:
        """Remove the rows of these epochs from the lake: a worker that needs them fails."""
        for number in range(1, epoch + 1):
            manifest = json.loads((self.lake / f"epochs/{number:012d}.json").read_text())["record"]
            for runs in manifest["runs"].values():
                for run in runs:
                    (self.lake / run["path"]).unlink()


@pytest.fixture
def events(spark: Any, tmp_path: Path) -> Events:
    made = Events(spark, tmp_path)
    made.write()
    made.write()
    return made


def test_what_is_in_a_checkpoint_is_not_read_again_by_a_later_worker(events: Events) -> None:
    with events.app().start() as app:
        app.wait(timeout=120)
        assert app.status()["checkpoint"] == {"epoch": 0, "failed": None, "views": {"counts": 0, "sizes": 0}}
        assert app.checkpoint() == 2
        events.write()
        app.wait(timeout=120)
        assert app.checkpoint() == 3  # which has but the keys of the third file
        events.forget_before(3)
        events.write()
        app.wait(timeout=120)
        lost = app.status()["workers"][0]["address"]
        os.kill(pid_listening(lost), signal.SIGKILL)
        events.write()
        events.check(app)
        assert app.status()["workers"][0]["address"] != lost
        rescale = app.rescale(3)
        events.write()
        assert rescale.wait(timeout=120)["outcome"] == "finished"
        events.check(app)
        assert app.checkpoint() == app.status()["epoch"]
    with events.app().start() as app:
        assert app.status()["checkpoint"]["epoch"] == 6
        events.check(app)
        assert app.lookup("counts", ["key-0"]).num_rows == 1


def test_views_that_are_others_by_now_are_computed_anew(events: Events) -> None:
    with events.app().start() as app:
        app.wait(timeout=120)
        app.checkpoint()
    fewer = COUNTS.replace("FROM events", "FROM events WHERE v > 50")
    with events.app(fewer).start() as app:
        assert app.status()["checkpoint"]["epoch"] == 0
        events.check(app, fewer)
        app.drop_view("sizes")
        assert app.checkpoint() == 2
        app.view("sizes", SIZES, key="n", partial=False)
        app.wait(timeout=120)
        assert app.checkpoint() == 2
    with events.app(fewer).start() as app:
        assert app.status()["checkpoint"]["epoch"] == 2
        events.forget_before(2)
        events.check(app, fewer)


def test_a_damaged_checkpoint_is_told_and_done_without(events: Events) -> None:
    with events.app().start() as app:
        app.wait(timeout=120)
        app.checkpoint()
    state = max(events.lake.glob("checkpoints/*/*/*.arrows"), key=lambda file: file.stat().st_size)
    manifest = state.parent / "manifest.json"
    whole = state.read_bytes()
    state.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with events.app().start() as app:
        events.check(app)
        assert state.name in app.status()["checkpoint"]["failed"]
    state.unlink()
    with events.app().start() as app:
        events.check(app)
        assert f"{state.name}: the file is gone" in app.status()["checkpoint"]["failed"]
    manifest.write_text(manifest.read_text().replace("regions", "reasons"))
    with events.app().start() as app:
        events.check(app)
        assert "manifest.json" in app.status()["checkpoint"]["failed"]


def test_an_app_takes_checkpoints_by_itself(spark: Any, tmp_path: Path) -> None:
    with App(spark, str(tmp_path), workers=2, ingest_tasks=1, checkpoints=Checkpoints(interval_epochs=1)) as app:
        app.table("numbers", spark.range(1000), key="id")
        app.view("ids", "SELECT id, count(*) AS n FROM numbers GROUP BY id", key="id", partial=False)
        app.start()
        app.wait()
        assert app.checkpoint() == app.status()["checkpoint"]["epoch"] == 1
