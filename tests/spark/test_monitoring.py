"""What a real app measures, logs, and calls its Spark jobs."""

import io
import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
from typing import Any

import pytest
from metrics_kit import parsed
from standby_kit import await_that

from upriver import progress
from upriver.app import App
from upriver.options import Tokens
from upriver.progress import ProgressPace

pytestmark = pytest.mark.spark

TOKEN = "planted-" + "5ec7e7" * 8
MINE = "what I am doing"
LOOKUPS = 'upriver_lookup_duration_seconds_count{view="sums"}'


def descriptions(spark: Any) -> set[str]:
    """Of all Spark jobs that the session knows of."""
    jobs = spark.sparkContext._jsc.sc().statusStore().jobsList(None)
    found = [jobs.apply(number).description() for number in range(jobs.size())]
    return {each.get() for each in found if each.isDefined()}


@dataclass
class Lived:
    """An app that has lived through all that an app does, and was stopped. log: what it has logged, by logger.
    mine: the description and the job group of the user's thread, after all of it. terminal: what it has shown."""

    metrics: dict[str, float]
    log: dict[str, list[str]]
    described: set[str]
    mine: tuple[str, str]
    terminal: str


@contextmanager
def logged() -> Iterator[dict[str, list[str]]]:
    """All that is logged meanwhile, by logger."""
    lines: dict[str, list[str]] = {}

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.setdefault(record.name, []).append(f"{record.getMessage()} {vars(record)}")

    handler, logger = Keep(), logging.getLogger("upriver")
    logger.addHandler(handler)
    logger.setLevel("DEBUG")
    try:
        yield lines
    finally:
        logger.removeHandler(handler)
        logger.setLevel(logging.NOTSET)


@contextmanager
def job_group(spark: Any, group: str, description: str) -> Iterator[None]:
    spark.sparkContext.setJobGroup(group, description)
    try:
        yield
    finally:
        spark.sparkContext.setLocalProperty("spark.jobGroup.id", None)
        spark.sparkContext.setLocalProperty("spark.job.description", None)


@pytest.fixture(scope="module")
def lived(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Lived:
    root, spark = tmp_path_factory.mktemp("lived"), spark.newSession()  # in another, an app may have warmed up before
    progress.configure(shown=True, pace=ProgressPace(show_after_s=0.0))  # however quick the start is
    with (
        redirect_stderr(io.StringIO()) as terminal,
        logged() as log,
        App(spark, root / "lake", workers=2, vnodes=16, ingest_tasks=1, tokens=Tokens(operator=TOKEN)) as app,
    ):
        app.table("events", spark.createDataFrame([(1, 10), (2, 5), (1, 20)], "k long, v long"), key="k")
        (root / "names").mkdir()
        (root / "names" / "1.json").write_text('{"k": 1, "name": "one"}')
        names = spark.readStream.schema("k long, name string").json(str(root / "names"))
        app.table("names", names, key="k", trigger={"availableNow": True})
        app.view("sums", "SELECT k, sum(v) AS total FROM events GROUP BY k", key="k")
        app.start(wait=True)
        with job_group(spark, "my-group", MINE):
            app.view("bad", "SELECT v, sum(1 / (k - 1)) AS n FROM events GROUP BY v", key="v", partial=False)
            spark.range(3).count()
            context = spark.sparkContext
            mine = context.getLocalProperty("spark.job.description"), context.getLocalProperty("spark.jobGroup.id")
        app.rescale(1).wait(timeout=60)
        app.checkpoint()
        for _ in range(3):
            app.lookup("sums", [1, 2])
        await_that(lambda: app.status()["views"]["bad"]["state"] == "failed", app.status)
        await_that(lambda: parsed(app.metrics()).get(LOOKUPS, 0) >= 3, app.metrics)
        measured = dict(parsed(app.metrics()))
    progress.configure()
    return Lived(measured, log, descriptions(spark), mine, terminal.getvalue())


def test_a_real_app_measures_itself(lived: Lived) -> None:
    found = lived.metrics
    assert found['upriver_ingested_rows_total{table="events"}'] == 3
    assert found['upriver_source_state{state="finished",table="events"}'] == 1
    assert found['upriver_ingested_rows_total{table="names"}'] == 1
    assert found['upriver_table_lag_rows{table="events"}'] == 0
    assert found['upriver_epoch_duration_seconds_count{stage="write"}'] == 2
    assert found['upriver_epoch_duration_seconds_count{stage="end"}'] == 2
    assert found['upriver_upqueries_total{view="sums"}'] >= 1
    assert found['upriver_view_failed{view="bad"}'] == 1
    assert found['upriver_rescales_total{outcome="finished"}'] == 1
    assert found["upriver_checkpoint_epoch"] == 2
    of_workers = [value for name, value in found.items() if name.startswith("upriver_worker_lookups_total")]
    assert sum(of_workers) == found[LOOKUPS]


def test_it_shows_its_progress(lived: Lived) -> None:
    assert re.search(r"Upriver: start: [a-z ]+ \(\d+ s\)", lived.terminal)
    assert re.search(r"Upriver: start(: [a-z ]+)?: done after \d+\.\d s", lived.terminal)


@pytest.mark.parametrize(
    ("logger", "said"),
    [
        ("app", "start: reading the lake's epochs"),
        ("app", "the app is up at 127.0.0.1:"),
        ("app", "the app has stopped"),
        ("sources", "table events: attempt 1 of its source begins"),
        ("sources", "table events: its source is finished, after 3 rows"),
        ("epochs", r"epoch \d is committed: 3 rows"),
        ("epochs", "epoch 1 has ended"),
        ("workers", "worker 1 has registered at "),
        ("views", "the views have changed; there are: sums, bad"),
        ("views", "view bad has failed: RowError: "),
        ("rescales", r"rescale \d+ by icadd begins: 2 to 1 workers, 8 vnodes move"),
        ("rescales", r"rescale \d+ is finished: 8 vnodes and "),
        ("checkpoints", "the checkpoint of epoch 2 is written"),
    ],
)
def test_it_logs_what_it_does(lived: Lived, logger: str, said: str) -> None:
    assert [line for line in lived.log[f"upriver.{logger}"] if re.match(said, line)] != []


def test_no_secret_is_logged(lived: Lived) -> None:
    assert lived.log != {}
    assert [line for lines in lived.log.values() for line in lines if TOKEN in line] == []


@pytest.mark.parametrize(
    "description",
    [
        "Upriver: worker 0",
        "Upriver: worker 1",
        "Upriver: start, warming up",
        "Upriver: load events",
        r"Upriver: ingest events, epoch [12]",
        r"Upriver: ingest names, epoch [12]",
        r"Upriver: backfill events \(v\)",
    ],
)
def test_spark_jobs_are_described(lived: Lived, description: str) -> None:
    assert [each for each in lived.described if re.fullmatch(description, each)] != []


def test_the_users_job_group_stays(lived: Lived) -> None:
    assert lived.mine == (MINE, "my-group")
    assert MINE in lived.described, "the user's own job has it"
