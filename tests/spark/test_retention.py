"""Retention on real Spark: every view equals Spark SQL over the rows that remain."""

from datetime import datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import pytest
from rows_kit import differing_rows

from upriver.app import App
from upriver.errors import DeclarationError, UnsupportedSql

pytestmark = pytest.mark.spark

EVENTS = "id long, k string, v int, at timestamp"
ITEMS = "id long, seq long, k string, at timestamp"
START = datetime(2026, 1, 1)
DAYS = 10
VIEWS = {
    "counts": ("SELECT k, count(*) AS n, sum(v) AS total, max(v) AS most FROM events GROUP BY k", "k"),
    "sizes": ("SELECT n, count(*) AS keys FROM (SELECT k, count(*) AS n FROM events GROUP BY k) GROUP BY n", "n"),
    "held": ("SELECT k, count(*) AS n FROM items GROUP BY k", "k"),
}
PARTIAL = {
    "looked_up": ("SELECT k, count(*) AS n, min(v) AS least FROM events GROUP BY k", "k"),
    "cone": ("SELECT i.k, count(*) AS n FROM events e JOIN items i ON e.v = i.id GROUP BY i.k", "k"),
}
KEYS = [None, *(f"key-{number}" for number in range(12))]


class Sources:
    """Two streams whose times go on, with some rows that come late or have no time. seen: all rows of both so far."""

    def __init__(self, spark: Any, directory: Path) -> None:
        self._spark = spark
        self._directory = directory
        self._rng = Random(7)
        self._day = 0.0
        self._number = 0

    def write(self, batches: int) -> None:
        for _ in range(batches):
            self._day += 2.5
            self._add(
                "events", EVENTS, [(self._next(), self._key(), self._rng.randint(0, 9), self._at()) for _ in range(60)]
            )
            self._add(
                "items", ITEMS, [(self._rng.randint(0, 9), self._next(), self._key(), self._at()) for _ in range(5)]
            )

    def _add(self, name: str, schema: str, rows: list[Any]) -> None:
        self._spark.createDataFrame(rows, schema).coalesce(1).write.mode("append").parquet(str(self._directory / name))

    def _next(self) -> int:
        self._number += 1
        return self._number

    def _key(self) -> str | None:
        return self._rng.choice(KEYS)

    def _at(self) -> datetime | None:
        if self._rng.random() < 0.05:
            return None
        return START + timedelta(days=self._day - self._rng.choice((0, 1, 5, 20)))

    def stream(self, name: str, schema: str) -> Any:
        return self._spark.readStream.schema(schema).parquet(str(self._directory / name))

    def remain(self, days: float) -> None:
        """Make views of the rows that remain, as a user would say it."""
        for name, schema in (("events", EVENTS), ("items", ITEMS)):
            self._spark.read.schema(schema).parquet(str(self._directory / name)).createOrReplaceTempView(f"all_{name}")
        latest = "SELECT *, row_number() OVER (PARTITION BY id ORDER BY seq DESC) AS nth FROM all_items"
        for name, rows in (("events", "all_events"), ("items", f"({latest}) WHERE nth = 1 AND")):
            where = "" if rows.endswith("AND") else " WHERE"
            cut = f"(SELECT max(at) - INTERVAL {days * 24:.0f} HOURS FROM all_{name})"
            self._spark.sql(f"SELECT * FROM {rows}{where} (at IS NULL OR at > {cut})").createOrReplaceTempView(name)


def declared(spark: Any, root: Path, sources: Sources, retain: Any) -> App:
    app = App(spark, str(root), workers=2, vnodes=16)
    app.table("events", sources.stream("events", EVENTS), key="k", retain=retain)
    app.table("items", sources.stream("items", ITEMS), primary_key="id", order_by="seq", retain=retain)
    for name, (sql, key) in VIEWS.items():
        app.view(name, sql, key=key, partial=False)
    for name, (sql, key) in PARTIAL.items():
        app.view(name, sql, key=key)
    return app


def assert_right(spark: Any, app: App, sources: Sources, days: float) -> None:
    app.wait()
    sources.remain(days)
    different = {name: differing_rows(app.read(name), spark.sql(sql)) for name, (sql, _) in (VIEWS | PARTIAL).items()}
    assert different == dict.fromkeys(VIEWS | PARTIAL, 0)
    for name, (sql, _) in PARTIAL.items():
        found = app.lookup(name, KEYS, at_least=app.wait()).to_pylist()
        assert sorted(map(repr, found)) == sorted(repr(row.asDict()) for row in spark.sql(sql).collect())


def test_every_view_equals_spark_sql_over_the_rows_that_remain(spark: Any, tmp_path: Path) -> None:
    sources = Sources(spark, tmp_path)
    sources.write(3)
    root = tmp_path / "lake"
    with declared(spark, root, sources, ("at", f"{DAYS} days")) as app:
        app.start()
        assert_right(spark, app, sources, DAYS)
        assert f"rows of events are retained by at: {DAYS} days" in app.explain("counts")
        sources.write(2)
        assert_right(spark, app, sources, DAYS)
        app.rescale(3).wait(60)
        sources.write(1)
        assert_right(spark, app, sources, DAYS)
        app.checkpoint()
    with declared(spark, root, sources, ("at", timedelta(days=4))) as app:  # applies at once
        app.start()
        assert_right(spark, app, sources, 4)
        sources.write(1)
        assert_right(spark, app, sources, 4)
    with declared(spark, root, sources, None) as app, pytest.raises(DeclarationError, match=r"retain=\('at', \.\.\.\)"):
        app.start()


def test_a_stateful_map_takes_nothing_back(spark: Any, tmp_path: Path) -> None:
    app = App(spark, str(tmp_path / "lake"))
    app.table("events", spark.createDataFrame([], EVENTS), key="k", retain=("at", "1 day"))
    with pytest.raises(UnsupportedSql, match="over a table with retain"):
        app.stateful_map("m", "events", "k", lambda key, row, state: row, "n int")
