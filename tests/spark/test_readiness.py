"""An app that has only just started, answers that say how old they are, and sources that fail, on real Spark."""

import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from partial_kit import stream, write_file
from rows_kit import rows_of

from upriver.app import App
from upriver.client.client import connect
from upriver.errors import IngestFailed, NotReady, StaleView, UnknownView, WaitTimeout

pytestmark = pytest.mark.spark

EVENTS = pa.schema([("k", pa.int64()), ("v", pa.int64())])
SUMS = "SELECT k, sum(v) AS total FROM events GROUP BY k"
NAMED = "SELECT k, name FROM names"


def sums_app(spark: Any, root: Path, files: Path) -> App:
    app = App(spark, str(root), workers=1, vnodes=16, ingest_tasks=1)
    app.table("events", stream(spark, files, "k long, v long"), key="k")
    app.table("names", spark.createDataFrame([(1, "one"), (2, "two")], "k long, name string"), key="k")
    app.view("sums", SUMS, key="k", partial=False)
    app.view("named", NAMED, key="k")
    return app


def test_an_app_that_is_ready_reflects_what_its_sources_had_at_the_start(spark: Any, tmp_path: Path) -> None:
    began = datetime.now(UTC) - timedelta(seconds=1)
    for number in range(3):
        write_file(tmp_path / "files", number, EVENTS, [(1, 10), (2, number)])
    app = sums_app(spark, tmp_path / "lake", tmp_path / "files")
    assert not app.ready
    with app.start(wait=True), connect(app.address, app.token) as client:
        assert app.ready
        found = app.lookup("sums", [1, 2])
        assert rows_of(found) == [(1, 30), (2, 3)]
        assert rows_of(client.lookup("named", [2])) == [(2, "two")]
        metadata = found.schema.metadata
        assert 3 <= int(metadata[b"upriver.epoch"]) <= app.wait()
        assert began <= datetime.fromisoformat(metadata[b"upriver.committed_at"].decode()) <= datetime.now(UTC)
        assert metadata[b"upriver.sources"] == b"running"
        assert rows_of(client.lookup("sums", [1], max_age=60)) == [(1, 30)]
        assert metadata[b"upriver.age_s"]
        with pytest.raises(
            WaitTimeout, match=r"epoch 999 is not there yet after 0\.1 s: the last that every worker refl"
        ):
            app.lookup("sums", [1], at_least=999, timeout=0.1)
    assert not app.ready


def test_a_source_that_fails_is_named_and_hides_nothing_that_was_there(spark: Any, tmp_path: Path) -> None:
    files = tmp_path / "files"
    write_file(files, 0, EVENTS, [(1, 10)])
    (files / "part-bad.parquet").write_bytes(b"this is no Parquet file")
    with sums_app(spark, tmp_path / "lake", files).start() as app:
        with pytest.raises(IngestFailed):
            app.wait()
        app.wait(view="named")
        told = "view 'sums' is not ready: table 'events': its source has (failed|stalled): .*part-bad"
        with pytest.raises(NotReady, match=told):
            app.lookup("sums", [1])
        assert rows_of(app.lookup("sums", [1], allow_warming=True)) == [(1, 10)]
        assert rows_of(app.lookup("named", [1])) == [(1, "one")]
        assert not app.ready
    with sums_app(spark, tmp_path / "lake", files).start(wait=True) as app:
        with pytest.raises(IngestFailed, match="table 'events'"):
            app.wait(view="sums")
        app.wait(view="named")
        with pytest.raises(UnknownView, match="no view 'name'; there are: named, sums"):
            app.wait(view="name")
        found = app.lookup("sums", [1])
        assert rows_of(found) == [(1, 10)]
        with pytest.raises(
            StaleView, match=r"view 'sums': an answer is .* and at most 0 s are allowed: table 'events'"
        ):
            app.lookup("sums", [1], max_age=0)
        assert rows_of(app.lookup("named", [1], max_age=60)) == [(1, "one")]


def test_a_start_that_waits_in_vain_says_for_what_and_leaves_nothing_up(spark: Any, tmp_path: Path) -> None:
    files = tmp_path / "files"
    files.mkdir()
    (files / "part-bad.parquet").write_bytes(b"this is no Parquet file")
    app = sums_app(spark, tmp_path / "lake", files)
    began = time.monotonic()
    with pytest.raises(NotReady, match=r"the app is not ready after .* s: table 'events': its source"):
        app.start(wait=True, timeout=15)
    assert time.monotonic() - began < 60
    assert not app.ready
