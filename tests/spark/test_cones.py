"""Partial views whose rows are exchanged, on real Spark: each answer is what Spark SQL says by then."""

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from partial_kit import Files, Sources, app_on, assert_right, rows_by_key, running, stream
from rows_kit import differing_rows

from upriver.app import App

pytestmark = pytest.mark.spark

ITEMS, KINDS, USERS, SHOPS, TOWNS = 500, 60, 400, 90, 50
SCHEMAS = {
    "clicks": pa.schema([("item", pa.string()), ("user", pa.int64()), ("n", pa.int64()), ("seq", pa.int64())]),
    "items": pa.schema([("item", pa.string()), ("kind", pa.string()), ("seq", pa.int64()), ("op", pa.string())]),
    "offers": pa.schema(
        [
            ("shop", pa.int32()),
            ("slot", pa.int32()),
            ("item", pa.string()),
            ("town", pa.string()),
            ("seq", pa.int64()),
            ("op", pa.string()),
        ]
    ),
}
PRIMARY_KEYS = {"items": ("item",), "offers": ("shop", "slot")}
VIEWS = {
    "kinds": (
        "SELECT i.kind, count(*) AS n, sum(c.n) AS total, max(c.seq) AS last"
        " FROM clicks c JOIN items i ON c.item = i.item GROUP BY i.kind",
        "kind",
    ),
    "towns": (
        "SELECT o.town, count(*) AS n, sum(c.n) AS total FROM clicks c JOIN offers o ON c.item = o.item"
        " WHERE c.n > 1 GROUP BY o.town",
        "town",
    ),
    "histories": (
        "SELECT c.user, c.seq, c.item, i.kind FROM clicks c LEFT JOIN items i ON c.item = i.item AND c.n > 0",
        "user",
    ),
}
"""Views and what they are looked up by: over an upsert table; of depth 2, over another; a left join."""
BY_TOWN = "SELECT town, count(*) AS offers, count(DISTINCT shop) AS shops, max(seq) AS last FROM offers GROUP BY town"


class Clicks(Sources):
    """Clicks on items, of which there are offers."""

    def draw(self) -> Files:
        draw = self.rng.randrange
        clicks = [(self._item(), draw(USERS) or None, draw(-2, 9), self.number()) for _ in range(2_000)]
        items = [(self._item(), _named("kind", draw(KINDS)), *self._version()) for _ in range(500)]
        offers = [
            (draw(SHOPS) or None, draw(3), self._item(), _named("town", draw(TOWNS)), *self._version())
            for _ in range(300)
        ]
        drawn: dict[str, list[tuple[Any, ...]]] = {"clicks": clicks, "items": items, "offers": offers}
        for rows in drawn.values():
            self.rng.shuffle(rows)
        return {name: (SCHEMAS[name], rows) for name, rows in drawn.items()}

    def _item(self) -> str | None:
        """A few items have most rows, and the null item has some."""
        return _named("item", int(ITEMS * self.rng.random() ** 2))

    def _version(self) -> tuple[int, str]:
        return self.number(), self.rng.choice("UUUUD")


def _named(what: str, number: int) -> str | None:
    return f"{what}-{number}" if number else None


def asked(rng: Random, view: str, count: int) -> list[Any]:
    """So many different keys at most, among them the null key and one that was never written."""
    if view == "histories":
        return [None, -1, *rng.sample(range(1, USERS), count)]
    what, there_are = ("kind", KINDS) if view == "kinds" else ("town", TOWNS)
    return [None, "nobody", *(f"{what}-{number}" for number in rng.sample(range(1, there_are), min(count, 40)))]


class Truth:
    """What Spark SQL makes of all files that there are."""

    def __init__(self, spark: Any, directory: Path) -> None:
        for table in SCHEMAS:
            rows = spark.read.parquet(str(directory / table))
            if table in PRIMARY_KEYS:
                rows.createOrReplaceTempView(f"versions_of_{table}")
                rows = spark.sql(
                    f"SELECT * FROM (SELECT *, row_number() OVER (PARTITION BY {', '.join(PRIMARY_KEYS[table])}"
                    f" ORDER BY seq DESC) AS nth FROM versions_of_{table}) WHERE nth = 1 AND op = 'U'"
                )
            rows.createOrReplaceTempView(table)
        self._spark = spark
        self._by_key = {name: self.of(sql, key) for name, (sql, key) in VIEWS.items()}

    def of(self, sql: str, key: str) -> Mapping[Any, Any]:
        """The rows of a view, by key."""
        return rows_by_key(self._spark.sql(sql).toArrow(), key)

    def check(self, app: App, rng: Random, count: int) -> None:
        """Of each view some keys at random have the right rows."""
        for name, (_, key) in VIEWS.items():
            assert_right(app, name, key, self._by_key[name], asked(rng, name, count))


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cones")


@pytest.fixture(scope="module")
def cluster(spark: Any, directory: Path) -> Iterator[tuple[App, Clicks]]:
    """Three streams and partial views on them; as little memory as can be asked for."""
    sources = Clicks(directory, Random(11))
    sources.write()
    yield from running(declared(spark, directory, VIEWS), sources)


def declared(spark: Any, directory: Path, views: Collection[str]) -> App:
    """An app that is to be started."""
    app = app_on(spark, directory)
    clicks = stream(spark, directory / "clicks", "item string, user long, n long, seq long")
    app.table("clicks", clicks, key="user", order_by="seq")
    columns = {
        "items": "item string, kind string, seq long, op string",
        "offers": "shop int, slot int, item string, town string, seq long, op string",
    }
    for name, primary_key in PRIMARY_KEYS.items():
        rows = stream(spark, directory / name, columns[name])
        app.table(name, rows, key=primary_key[0], primary_key=primary_key, order_by="seq", deletes="op = 'D'")
    for name in views:
        sql, key = VIEWS[name]
        app.view(name, sql, key=key)
    return app


def test_lookups_are_sparks_answers_while_keys_come_go_and_move(
    spark: Any, directory: Path, cluster: tuple[App, Clicks]
) -> None:
    app, sources = cluster
    rng = Random(7)
    Truth(spark, directory).check(app, rng, 20)
    for workers, strategy in [(3, "icadd"), (1, "redistribute"), (2, "lazy"), (3, "restart")]:
        for name in VIEWS:
            app.lookup(name, asked(rng, name, 200), timeout=60)
        rescale = app.rescale(workers, strategy=strategy)
        sources.write()
        app.evict("towns")
        app.evict("histories", asked(rng, "histories", 100))
        app.wait(timeout=120)
        truth = Truth(spark, directory)
        truth.check(app, rng, 15)  # keys may still be on their way
        assert rescale.wait(timeout=120)["outcome"] == "finished"
        truth.check(app, rng, 100)
    for name, (sql, _) in VIEWS.items():
        assert differing_rows(app.read(name), spark.sql(sql)) == 0


def test_it_is_told_how_keys_are_found(cluster: tuple[App, Clicks]) -> None:
    app, _ = cluster
    found_by = {
        "kinds": ["items(kind) -> item"],
        "towns": ["offers(item) -> shop", "offers(town) -> item"],
        "histories": ["clicks(user) -> item"],
    }
    for name, traces in found_by.items():
        explained = app.explain(name)
        assert "state: partial (a key is kept from its first lookup on" in explained
        assert "state: full" not in explained
        for trace in traces:
            assert f"keys are found by {trace}" in explained


def counted(app: App) -> Mapping[str, int]:
    """What the view of kinds says of itself: workers tell their numbers in order, and this eviction evicts nothing."""
    app.evict("kinds", ["nobody's"])
    counts: Mapping[str, int] = app.status()["views"]["kinds"]
    return counts


def test_what_is_kept_and_why_is_counted(spark: Any, directory: Path, cluster: tuple[App, Clicks]) -> None:
    app, _ = cluster
    rows = spark.read.parquet(str(directory / "items")).where("kind = 'kind-1'")
    items = rows.select("item").distinct().count()
    for name in VIEWS:
        app.evict(name)
    before = counted(app)
    assert (before["cached_keys"], before["intermediate_keys"], before["rows"]) == (0, 0, 0)
    app.lookup("kinds", ["kind-1"])
    app.lookup("kinds", ["kind-1"])
    kept = counted(app)
    assert (kept["cached_keys"], kept["intermediate_keys"], kept["keys"]) == (1, items, 1)
    assert (kept["missed"], kept["evicted"]) == (before["missed"] + 1, before["evicted"])
    assert kept["looked_up"] == before["looked_up"] + 2
    app.evict("kinds", ["kind-1", "kind-2"])
    after = counted(app)
    assert (after["cached_keys"], after["intermediate_keys"], after["rows"]) == (0, 0, 0)
    assert (after["missed"], after["evicted"]) == (kept["missed"], kept["evicted"] + 1)


def test_a_view_that_is_added_is_usable_at_once_and_all_are_when_the_app_starts_again(
    spark: Any, directory: Path, cluster: tuple[App, Clicks]
) -> None:
    app, sources = cluster
    app.view("by_town", BY_TOWN, key="town")
    rng = Random(3)
    truth = Truth(spark, directory)
    for _ in range(2):
        assert_right(app, "by_town", "town", truth.of(BY_TOWN, "town"), asked(rng, "towns", 20))
        truth.check(app, rng, 20)
        sources.write()
        app.wait(timeout=60)
        truth = Truth(spark, directory)
    app.stop()
    with declared(spark, directory, VIEWS) as again:
        again.view("by_town", BY_TOWN, key="town")
        again.start(wait=True)
        truth.check(again, rng, 20)
