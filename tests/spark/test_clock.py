"""Views that depend on the clock on real Spark: rows come and go by themselves, each time as Spark has them with the
epoch's instant."""

import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from upriver.app import App
from upriver.ids import Epoch
from upriver.lake.lake import Lake
from upriver.spark.leaf_plans import LeafPlans

pytestmark = pytest.mark.spark

VIEWS = {
    "due": ("SELECT k, at, n FROM events WHERE at <= now() AND at > current_timestamp - INTERVAL 1 DAY", "k"),
    "days": ("SELECT k, count(*) AS n FROM events WHERE datediff(current_date(), DATE(at)) < 2 GROUP BY k", "k"),
    "ages": (
        "SELECT n, sum(CASE WHEN at > now() THEN 1 ELSE 0 END) AS ahead, count(*) FILTER (WHERE date_trunc('MONTH', "
        "now()) <= at) AS lately, max(at) >= add_months(current_date, -1) AS active FROM events GROUP BY n",
        "n",
    ),
    "bids": (
        "SELECT k, count(*) AS c, window.start, window.end FROM (SELECT *, current_timestamp() AS p_time FROM events) "
        "GROUP BY k, window(p_time, '10 seconds')",
        "k",
    ),
    "shown": (
        "SELECT k, now() AS t, datediff(current_date(), at) / 2 AS age, year(now()) - 1 AS y, current_date AS today, "
        "date_trunc('WEEK', now()) AS w, CASE WHEN month(at) = month(now()) THEN date_format(now(), 'yyyy-MM') END "
        "AS m FROM events",
        "k",
    ),
}
KEYS = ["k0", "k1"]
AGES_S = (-4_000_000, -90_000, -60, *range(120), 9_000)
DEADLINE_S = 60.0


def test_rows_come_and_go_by_themselves_as_spark_has_them(spark: Any, tmp_path: Path) -> None:
    now = datetime.now(UTC)
    rows = [(KEYS[place % 2], now + timedelta(seconds=age), place % 3) for place, age in enumerate(AGES_S)]
    events = spark.createDataFrame(rows, "k string, at timestamp, n int")
    events.createOrReplaceTempView("events")
    with App(spark, tmp_path / "root", workers=2, vnodes=8, clock_tick=0.5) as app:
        app.table("events", events, key="k")
        for name, (sql, key) in VIEWS.items():
            app.view(name, sql, key, partial=name == "due")
        app.start()
        epoch, deadline = app.wait(), time.monotonic() + DEADLINE_S
        before = due = app.lookup("due", KEYS)
        while len(due) == len(before) and time.monotonic() < deadline:  # no row comes, and time passes with the epochs
            epoch = Epoch(epoch + 1)
            due = app.lookup("due", KEYS, at_least=epoch, timeout=DEADLINE_S)
        assert 1 <= len(before) < len(due)
        assert now.timestamp() < app.status()["clock"]["at"] <= time.time()
        assert app.status()["tables"]["events"]["rows"] == len(rows)
        for name in VIEWS:
            first, answer = app.status()["epoch"], Counter(map(tuple, app.read(name).collect()))
            epochs = range(first, app.status()["published"] + 1)
            assert any(answer == at_epoch(spark, tmp_path / "root", name, epoch) for epoch in reversed(epochs)), name


def at_epoch(spark: Any, root: Path, view: str, epoch: int) -> Counter[Any]:
    """What Spark says of the view with an epoch's instant."""
    clock = Lake(str(root)).clock(Epoch(epoch))
    assert clock is not None
    frame = LeafPlans(spark).rewritten(spark, spark.sql(VIEWS[view][0]), {}, clock)
    return Counter(map(tuple, frame.collect()))
