"""Rescaling on real Spark, while rows stream in and people look keys up: what a user sees."""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rows_kit import differing_rows

import upriver
from upriver.app import App
from upriver.errors import DeclarationError, TooFewSlots

pytestmark = pytest.mark.spark

SCHEMA = pa.schema([("k", pa.string()), ("seq", pa.int64()), ("v", pa.int64())])
COUNTS = "SELECT k, count(*) AS n, sum(v) AS total, max(seq) AS last FROM events GROUP BY k"
TICKS = "SELECT k, seq, v FROM events WHERE v % 3 <> 0"
BY_V = "SELECT v, k, count(*) AS n FROM events GROUP BY v, k"
KEYS = 500
ROWS = 2_000
FIRST_FILES = 3
OLDEST_S = 1_700_000_000


class Feeder:
    """Writes files, one after another; ``seq`` grows over all of them."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._files = 0
        directory.mkdir()

    def write(self) -> None:
        first = self._files * ROWS
        numbers = range(first, first + ROWS)
        columns = [[f"key-{n * 7919 % KEYS}" for n in numbers], list(numbers), [n % 11 for n in numbers]]
        table = pa.table([pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)], SCHEMA)
        hidden = self._directory / f".{self._files:06d}"
        pq.write_table(table, hidden)
        os.utime(hidden, (OLDEST_S + self._files,) * 2)  # Spark takes files in this order
        hidden.rename(self._directory / f"{self._files:06d}.parquet")
        self._files += 1


class Background:
    """Does one thing again and again on a thread of its own, and tells at the end if it has failed."""

    def __init__(self, do: Callable[[], None], pause_s: float) -> None:
        self._do = do
        self._pause_s = pause_s
        self._stop = threading.Event()
        self._error: BaseException | None = None
        self.times = 0
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        try:
            while not self._stop.wait(self._pause_s):
                self._do()
                self.times += 1
        except BaseException as error:
            self._error = error

    @contextmanager
    def going_on(self) -> Iterator["Background"]:
        self._thread.start()
        try:
            yield self
        finally:
            self._stop.set()
            self._thread.join()
        if self._error is not None:
            raise self._error


@pytest.fixture
def cluster(spark: Any, tmp_path: Path) -> Iterator[tuple[App, Feeder]]:
    """An app of two workers over a stream of files, some of them there already."""
    feeder = Feeder(tmp_path / "files")
    for _ in range(FIRST_FILES):
        feeder.write()
    stream = spark.readStream.schema("k string, seq long, v long").option("maxFilesPerTrigger", 2)
    with App(spark, str(tmp_path / "lake"), workers=2, vnodes=64, ingest_tasks=1) as app:
        app.table("events", stream.parquet(str(tmp_path / "files")), key="k", order_by="seq")
        app.view("counts", COUNTS, key="k", partial=False)
        app.view("ticks", TICKS, key="k", partial=False)
        app.view("by_v", BY_V, key="v", partial=False)
        app.start()
        app.wait()
        yield app, feeder


class Prober:
    """Looks keys up and checks each answer against the one before it."""

    def __init__(self, app: App) -> None:
        self._client = upriver.connect(app.address, app.token)
        self._seen: dict[str, int] = {}
        self._turn = 0

    def probe(self) -> None:
        self._turn += 1
        keys = [f"key-{(self._turn * 31 + step) % KEYS}" for step in range(3)]
        for row in self._client.lookup("counts", keys, timeout=30).to_pylist():
            assert row["n"] >= self._seen.get(row["k"], 0), row
            self._seen[row["k"]] = row["n"]
        ticks = self._client.lookup("ticks", keys[:1], timeout=30).column("seq").to_pylist()
        assert ticks == sorted(set(ticks)), "rows of one key are out of order"

    def close(self) -> None:
        self._client.close()


def assert_equals_spark(spark: Any, app: App, files: Path) -> None:
    spark.read.parquet(str(files)).createOrReplaceTempView("events")
    for name, sql in (("counts", COUNTS), ("ticks", TICKS), ("by_v", BY_V)):
        assert differing_rows(app.read(name), spark.sql(sql)) == 0, name


def vnodes_of_workers(app: App) -> dict[int, int]:
    return {worker["worker"]: worker["vnodes"] for worker in app.status()["workers"]}


@pytest.mark.parametrize("strategy", ["icadd", "redistribute", "restart"])
def test_a_stream_goes_on_while_it_is_rescaled_up_and_down(
    spark: Any, tmp_path: Path, cluster: tuple[App, Feeder], strategy: str
) -> None:
    app, feeder = cluster
    prober = Prober(app)
    with Background(feeder.write, 0.2).going_on(), Background(prober.probe, 0.002).going_on() as probing:
        for workers in (4, 3, 1, 2):
            report = app.rescale(workers, strategy=strategy).wait(timeout=120)
            assert (report["outcome"], report["to"], report["error"]) == ("finished", workers, None)
            assert len(vnodes_of_workers(app)) == workers
            assert max(vnodes_of_workers(app).values()) - min(vnodes_of_workers(app).values()) <= 1
    prober.close()
    app.wait(timeout=120)
    assert probing.times > 0
    assert_equals_spark(spark, app, tmp_path / "files")


def test_a_view_is_read_as_of_one_epoch_while_keys_move(spark: Any, cluster: tuple[App, Feeder]) -> None:
    """Each file has every key in it, and each epoch whole files: so keys seen as of two epochs would differ."""
    app, feeder = cluster
    counts = app.read("counts")
    with Background(feeder.write, 0.2).going_on():
        rescales = [app.rescale(workers, keys_max=1) for workers in (4, 2)]
        scans = 0
        while rescales[-1].progress()["state"] in ("queued", "starting", "moving"):
            totals = counts.selectExpr("count(*) AS keys", "sum(n) AS n", "max(last) AS last").first()
            assert totals is not None
            assert totals["keys"] == KEYS
            assert totals["n"] == totals["last"] + 1, "rows of some keys are of another epoch than those of others"
            scans += 1
        assert scans
        assert [rescale.wait()["outcome"] for rescale in rescales] == ["finished", "finished"]


def test_vnodes_are_moved_one_by_one(cluster: tuple[App, Feeder]) -> None:
    app, _ = cluster
    before = vnodes_of_workers(app)
    report = app.rescale(moves={0: 1, 1: 1, 2: 1}).wait()
    assert (report["outcome"], report["moved_vnodes"], report["from"], report["to"]) == ("finished", 3, 2, 2)
    assert vnodes_of_workers(app) == {0: before[0] - 3, 1: before[1] + 3}
    assert app.lookup("counts", [f"key-{n}" for n in range(KEYS)]).num_rows == KEYS


def test_an_aborted_rescale_leaves_a_river_that_goes_on(
    spark: Any, tmp_path: Path, cluster: tuple[App, Feeder]
) -> None:
    app, feeder = cluster
    with Background(feeder.write, 0.2).going_on():
        rescale = app.rescale(4, keys_max=1)
        for progress in rescale.follow():
            if progress["vnodes_moved"]:
                rescale.abort()
        assert rescale.wait()["outcome"] in ("aborted", "finished")
    app.wait()
    assert_equals_spark(spark, app, tmp_path / "files")
    assert app.rescale(3).wait()["outcome"] == "finished"
    assert len(vnodes_of_workers(app)) == 3


def test_rescales_take_turns(cluster: tuple[App, Feeder]) -> None:
    app, _ = cluster
    first, second, third = app.rescale(3), app.rescale(3), app.rescale(2)
    assert third.progress()["state"] in ("queued", "starting", "moving")
    assert [rescale.wait()["outcome"] for rescale in (first, second, third)] == ["finished", "finished", "finished"]
    assert first.report()["moved_keys"] > 0
    assert second.report()["moved_keys"] == 0
    assert sorted(vnodes_of_workers(app)) == [0, 1]


def test_nonsense_is_refused_and_changes_nothing(cluster: tuple[App, Feeder]) -> None:
    app, _ = cluster
    before = vnodes_of_workers(app)
    for workers in (0, -1, 65, True, 2.5):
        with pytest.raises(DeclarationError, match="workers"):
            app.rescale(workers)  # type: ignore[arg-type]
    with pytest.raises(TooFewSlots, match=r"Start it with local\[17"):
        app.rescale(16)
    with pytest.raises(DeclarationError, match="strategy"):
        app.rescale(3, strategy="magic")
    with pytest.raises(DeclarationError, match="keys_max"):
        app.rescale(3, keys_max=0)
    with pytest.raises(DeclarationError, match=r"moves: there is no worker 7: give one of 0, 1, or ask for more"):
        app.rescale(moves={0: 7})
    assert app.rescale(2).wait()["moved_keys"] == 0
    assert vnodes_of_workers(app) == before
