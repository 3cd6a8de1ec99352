"""An app whose old epochs become a segment: every answer stays what Spark SQL says, also without checkpoints."""

import shutil
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from partial_kit import stream, write_file
from rows_kit import differing_rows
from standby_kit import await_that

from upriver.app import App
from upriver.lake.lake import Lake
from upriver.lake.spans import FAN_IN
from upriver.options import Checkpoints, Compaction

pytestmark = pytest.mark.spark

WAIT_S_MAX = 120.0
FILES, FILE_ROWS, KEYS = 10, 60, 40
EVENTS = pa.schema([("k", pa.string()), ("n", pa.int64())])
USERS = pa.schema([("k", pa.string()), ("town", pa.string()), ("seq", pa.int64()), ("op", pa.string())])
VIEWS = {
    "counts": "SELECT k, count(*) AS n, sum(n) AS total FROM events GROUP BY k",
    "found": "SELECT k, n FROM events WHERE n % 3 = 0",
    "living": "SELECT k, town FROM users",
}
CURRENT = (
    "SELECT k, town FROM (SELECT *, row_number() OVER (PARTITION BY k ORDER BY seq DESC) AS nth FROM users) "
    "WHERE nth = 1 AND op = 'U'"
)
"""What ``living`` is, of the versions of an upsert table."""


class Case:
    """Two tables of small files, each an epoch, and an app on them."""

    def __init__(self, spark: Any, directory: Path) -> None:
        self.root = directory / "lake"
        self._spark = spark
        self._files = {"events": directory / "events", "users": directory / "users"}
        self._written = 0

    def write(self, files: int) -> None:
        """So many more of each table."""
        for _ in range(files):
            first = self._written * FILE_ROWS
            self._written += 1
            numbers = range(first, first + FILE_ROWS)
            events = [(f"key-{number * 7 % KEYS}", number) for number in numbers]
            users = [
                (f"key-{number * 11 % KEYS}", f"town {number % 9}", number, "UUD"[number % 3]) for number in numbers
            ]
            write_file(self._files["events"], self._written, EVENTS, events)
            write_file(self._files["users"], self._written, USERS, users)

    def app(self) -> App:
        app = App(
            self._spark,
            self.root,
            workers=2,
            vnodes=16,
            ingest_tasks=1,
            checkpoints=Checkpoints(interval_s=None),
            compaction=Compaction(grace_s=0.5),
        )
        events = stream(self._spark, self._files["events"], "k string, n long")
        users = stream(self._spark, self._files["users"], "k string, town string, seq long, op string")
        app.table("events", events, key="k")
        app.table("users", users, key="k", primary_key="k", order_by="seq", deletes="op = 'D'")
        app.view("counts", VIEWS["counts"], key="k", partial=False)
        app.view("found", VIEWS["found"], key="k")
        app.view("living", VIEWS["living"], key="k", partial=False)
        return app

    def check(self, app: App) -> None:
        """Whole views, and all keys that are looked up, are what Spark SQL says of all files."""
        for table, files in self._files.items():
            self._spark.read.parquet(str(files)).createOrReplaceTempView(table)
        keys = [f"key-{number}" for number in range(KEYS)]
        for view, sql in {**VIEWS, "living": CURRENT}.items():
            expected = self._spark.sql(sql)
            assert differing_rows(app.read(view), expected) == 0, view
            assert Counter(map(repr, app.lookup(view, keys).to_pylist())) == Counter(
                repr(row.asDict()) for row in expected.collect()
            ), view


def runs_named(lake: Lake) -> set[str]:
    spans = lake.spans(lake.last_epoch())
    return {run.path for span in spans for runs in lake.epochs(span).runs.values() for run in runs}


def await_collection(app: App) -> None:
    """Wait until this app has made a segment, and removed what that replaces: it has no more to do then."""

    def lake() -> dict[str, Any]:
        found: dict[str, Any] = app.status()["lake"]
        return found

    await_that(lambda: lake()["removed_epochs"] == FAN_IN, lambda: app.status())
    assert (lake()["made"], lake()["due"], lake()["failed"]) == (1, 0, None)


def test_views_are_those_of_all_rows_while_epochs_become_segments_and_after_a_start_from_them(
    spark: Any, tmp_path: Path
) -> None:
    """At first one of the epochs' runs is damaged: they become no segment, and views go on, until it is back."""
    case = Case(spark, tmp_path)
    case.write(FILES - 3)
    with case.app().start() as app:
        assert app.wait(timeout=WAIT_S_MAX) < FAN_IN
        run = min(case.root.glob("tables/users/*/*.arrow"))
        content = run.read_bytes()
        run.write_bytes(content[: len(content) // 2])
        case.write(3)
        assert app.wait(timeout=WAIT_S_MAX) == 2 * FILES
        assert app.checkpoint() == 2 * FILES
        await_that(lambda: run.name in str(app.status()["lake"]["failed"]), lambda: app.status())
        assert app.status()["lake"]["made"] == 0
        case.check(app)
        run.write_bytes(content)
        await_collection(app)
        assert set(Lake(str(case.root)).run_paths()) == runs_named(Lake(str(case.root)))
        case.check(app)
    lake = Lake(str(case.root))
    assert sorted(lake.numbers("epochs")) == list(range(FAN_IN + 1, 2 * FILES + 1))
    assert [len(span) for span in lake.spans(lake.last_epoch())] == [FAN_IN, 1, 1, 1, 1]
    shutil.rmtree(case.root / "checkpoints")
    with case.app().start() as app:
        app.wait(timeout=WAIT_S_MAX)
        case.check(app)
        case.write(1)
        assert app.wait(timeout=WAIT_S_MAX) == 2 * FILES + 2
        case.check(app)


VISITS = pa.schema([("k", pa.string()), ("n", pa.int64()), ("at", pa.timestamp("us", "UTC"))])
RETAINED = "SELECT * FROM visits WHERE at > (SELECT max(at) - INTERVAL 10 DAYS FROM visits)"


def test_a_segment_is_rewritten_without_the_rows_that_have_left_its_table(spark: Any, tmp_path: Path) -> None:
    files, root = tmp_path / "visits", tmp_path / "lake"

    def write(number: int, day: int) -> None:
        at = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(days=day)
        write_file(files, number, VISITS, [(f"key-{n % 7}", n, at) for n in range(number * 600, number * 600 + 600)])

    def declared() -> App:
        app = App(
            spark,
            root,
            workers=2,
            vnodes=16,
            checkpoints=Checkpoints(interval_s=None),
            compaction=Compaction(grace_s=0.5),
        )
        visits = stream(spark, files, "k string, n long, at timestamp")
        app.table("visits", visits, key="k", retain=("at", "10 days"))
        app.view("counts", "SELECT k, count(*) AS n, min(n) AS least FROM visits GROUP BY k", key="k", partial=False)
        app.view("found", "SELECT k, n FROM visits", key="k")
        return app

    def check(app: App) -> None:
        app.wait(timeout=WAIT_S_MAX)
        spark.read.parquet(str(files)).createOrReplaceTempView("visits")
        spark.sql(RETAINED).createOrReplaceTempView("retained")
        counts = spark.sql("SELECT k, count(*) AS n, min(n) AS least FROM retained GROUP BY k")
        assert differing_rows(app.read("counts"), counts) == 0
        found = app.lookup("found", [f"key-{n}" for n in range(7)]).to_pylist()
        assert Counter(map(repr, found)) == Counter(
            repr(row.asDict()) for row in spark.sql("SELECT k, n FROM retained").collect()
        )

    for number in range(FAN_IN):
        write(number, day=number // 4)  # in the end, those of the last day remain
    with declared().start() as app:
        check(app)
        await_that(lambda: app.status()["lake"]["made"] == 1, lambda: app.status())
        for number in range(3):
            write(FAN_IN + number, day=12)
        check(app)
        await_that(lambda: app.status()["lake"]["rewritten"] == 1, lambda: app.status())
        check(app)
    with declared().start() as app:
        check(app)
        write(FAN_IN + 3, day=13)
        check(app)
