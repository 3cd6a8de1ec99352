"""An app that has only just started, answers that say how old they are, and sources that fail, on real Spark."""

import socket
import threading
import time
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
import pytest
from partial_kit import stream, write_file
from pyspark.sql.functions import udf
from rows_kit import rows_of

from upriver.app import App
from upriver.client.client import connect
from upriver.errors import IngestFailed, NotReady, StaleView, UnknownView, WaitTimeout

pytestmark = pytest.mark.spark

EVENTS = pa.schema([("k", pa.int64()), ("v", pa.int64())])
SUMS = "SELECT k, sum(v) AS total FROM events GROUP BY k"
NAMED = "SELECT k, name FROM names"


class Gate:
    """A server that lets its callers go at once, or keeps them waiting."""

    def __init__(self) -> None:
        self._server = socket.create_server(("127.0.0.1", 0))
        self._open = threading.Event()
        self._open.set()
        self.address: tuple[str, int] = self._server.getsockname()

    def opens(self) -> None:
        self._open.set()

    def closes(self) -> None:
        self._open.clear()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                caller, _ = self._server.accept()
                with caller:
                    self._open.wait()

    def __enter__(self) -> Self:
        threading.Thread(target=self._serve, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._open.set()
        self._server.close()


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
        told = "view 'sums' is not ready after 0 s: table 'events': its source has (failed|stalled): .*part-bad"
        with pytest.raises(NotReady, match=told):
            app.lookup("sums", [1], timeout=0)
        assert rows_of(app.lookup("sums", [1], allow_warming=True)) == [(1, 10)]
        assert rows_of(app.lookup("named", [1])) == [(1, "one")]
        assert not app.ready
    with sums_app(spark, tmp_path / "lake", files).start() as app:
        with pytest.raises(IngestFailed, match="table 'events'"):
            app.wait(view="sums")
        assert not app.ready  # the table was never read through: more rows may have been to come
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


def test_an_app_that_was_ready_serves_what_it_had_while_its_sources_catch_up(spark: Any, tmp_path: Path) -> None:
    files, gate = tmp_path / "files", Gate()
    host, port = gate.address

    def through(k):  # type: ignore[no-untyped-def]  # Spark would read the types as a form of vectors
        with socket.create_connection((host, port)) as waiting:
            waiting.recv(1)
        return k

    def declared() -> App:
        app = App(spark, str(tmp_path / "lake"), workers=1, vnodes=16, ingest_tasks=1)
        rows = stream(spark, files, "k long, v long")
        app.table("events", rows.select(udf(through, "long")("k").alias("k"), "v"), key="k")
        app.view("sums", SUMS, key="k", partial=False)
        return app

    write_file(files, 0, EVENTS, [(1, 10)])
    with gate:
        with declared().start(wait=True) as app:
            assert rows_of(app.lookup("sums", [1])) == [(1, 10)]
        gate.closes()
        write_file(files, 1, EVENTS, [(1, 5)])
        with declared().start() as app:
            found = app.lookup("sums", [1])
            assert rows_of(found) == [(1, 10)]
            assert float(found.schema.metadata[b"upriver.age_s"]) > 0
            assert not app.ready
            with pytest.raises(StaleView, match="view 'sums': an answer is"):
                app.lookup("sums", [1], max_age=0)
            gate.opens()
            app.wait()
            assert rows_of(app.lookup("sums", [1])) == [(1, 15)]
            assert app.ready


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
