"""Partial views on real Spark: whatever is looked up, evicted and moved, each answer is what Spark SQL says by then."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from partial_kit import Files, Sources, app_on, assert_right, rows_by_key, running, stream
from rows_kit import differing_rows

from upriver.app import App
from upriver.errors import DeclarationError, KeyTypeError, UnknownView
from upriver.settings import MEMORY_BUDGET_MIN

pytestmark = pytest.mark.spark

LOOKS_MAX = 10_000  # at the status, until workers have done what they were told
KEYS = 3_000
EVENTS = pa.schema([("k", pa.string()), ("seq", pa.int64()), ("v", pa.int64())])
NAMES = pa.schema([("k", pa.string()), ("name", pa.string())])
ACCOUNTS = pa.schema(
    [("k", pa.string()), ("part", pa.int32()), ("amount", pa.int64()), ("seq", pa.int64()), ("op", pa.string())]
)
VIEWS = {
    "counts": "SELECT k, count(*) AS n, sum(v) AS total, min(v) AS least, max(seq) AS last FROM events GROUP BY k",
    "named": "SELECT e.k, e.seq, e.v, n.name FROM events e LEFT JOIN names n ON e.k = n.k",
    "balances": "SELECT k, part, amount FROM accounts WHERE amount <> 3",
}
CURRENT = (
    "SELECT k, part, amount FROM (SELECT *, row_number() OVER (PARTITION BY k, part ORDER BY seq DESC) AS nth FROM "
    "accounts) WHERE nth = 1 AND op = 'U' AND amount <> 3"
)
"""What ``balances`` is, of the versions of an upsert table."""
FULL = {
    "sizes": "SELECT n, count(*) AS keys FROM (SELECT k, count(*) AS n FROM names GROUP BY k) GROUP BY n",
    "whole": "SELECT k, count(*) AS n FROM names GROUP BY k",
    "bad": "SELECT k, sum(10 / v) AS share FROM spoilt GROUP BY k",
}


class Events(Sources):
    """Events of keys, names of some, accounts that change."""

    def draw(self) -> Files:
        events = [(self._key(), self.number(), self.rng.randint(-5, 50)) for _ in range(4_000)]
        names = [(self._key(), f"name {self.number()}") for _ in range(400)]
        versions = [(self._key(), self.rng.randint(0, 2), self.rng.randint(0, 9)) for _ in range(3_000)]
        accounts = [(*row, self.number(), self.rng.choice("UUUD")) for row in versions]
        self.rng.shuffle(accounts)
        return {"events": (EVENTS, events), "names": (NAMES, names), "accounts": (ACCOUNTS, accounts)}

    def _key(self) -> str | None:
        """A few keys have most rows, and the null key has some."""
        number = int(KEYS * self.rng.random() ** 3)
        return f"key-{number}" if number else None


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("partial")


@pytest.fixture(scope="module")
def cluster(spark: Any, directory: Path) -> Iterator[tuple[App, Events]]:
    """Three streams, partial views on them, and a few that are full; as little memory as can be asked for."""
    sources = Events(directory, Random(5))
    sources.write()
    yield from running(declared(spark, directory), sources)


def declared(spark: Any, directory: Path) -> App:
    """An app that is to be started."""
    app = app_on(spark, directory)
    app.table("events", stream(spark, directory / "events", "k string, seq long, v long"), key="k", order_by="seq")
    app.table("names", stream(spark, directory / "names", "k string, name string"), key="k")
    accounts = stream(spark, directory / "accounts", "k string, part int, amount long, seq long, op string")
    app.table("accounts", accounts, key="k", primary_key=["k", "part"], order_by="seq", deletes="op = 'D'")
    spoilt = spark.createDataFrame([("a", 5), ("b", 0)], "k string, v int")
    app.table("spoilt", spoilt, key="k", on_bad_row="set_aside")
    for name, sql in VIEWS.items():
        app.view(name, sql, key="k")
    app.view("sizes", FULL["sizes"], key="n")
    app.view("whole", FULL["whole"], key="k", partial=False)
    app.view("bad", FULL["bad"], key="k")
    return app


class Truth:
    """What Spark SQL makes of all files that there are."""

    def __init__(self, spark: Any, directory: Path) -> None:
        for table in ("events", "names", "accounts"):
            spark.read.parquet(str(directory / table)).createOrReplaceTempView(table)
        self.frames = {name: spark.sql(CURRENT if name == "balances" else sql) for name, sql in VIEWS.items()}
        self._by_key = {name: rows_by_key(frame.toArrow(), "k") for name, frame in self.frames.items()}

    def check(self, app: App, keys: Sequence[str | None]) -> None:
        """Each view's rows of these keys are right."""
        for name, by_key in self._by_key.items():
            assert_right(app, name, "k", by_key, keys)


def asked(rng: Random, count: int) -> list[str | None]:
    """So many different keys, among them the null key and one that was never written."""
    return [None, "nobody", *(f"key-{number}" for number in rng.sample(range(1, KEYS), count))]


def kept(app: App) -> dict[str, Mapping[str, int]]:
    """What the views say of themselves."""
    return {name: app.status()["views"][name] for name in VIEWS}


def test_lookups_are_sparks_answers_while_keys_come_go_and_move(
    spark: Any, directory: Path, cluster: tuple[App, Events]
) -> None:
    app, sources = cluster
    rng = Random(7)
    Truth(spark, directory).check(app, asked(rng, 40))
    for workers, strategy in [(3, "icadd"), (1, "redistribute"), (2, "lazy")]:
        app.lookup("counts", asked(rng, KEYS // 2), timeout=60)
        rescale = app.rescale(workers, strategy=strategy)
        sources.write()
        app.evict("named")
        app.evict("counts", asked(rng, 500))
        app.wait(timeout=120)
        truth = Truth(spark, directory)
        truth.check(app, asked(rng, 40))  # keys may still be on their way
        assert rescale.wait(timeout=120)["outcome"] == "finished"
        truth.check(app, asked(rng, 300))
    for name, frame in truth.frames.items():
        assert differing_rows(app.read(name), frame) == 0
    truth.check(app, asked(rng, 10))


def is_near_budget(views: Mapping[str, Mapping[str, int]], evicted_before: int) -> bool:
    """Whether far fewer keys are present than were looked up."""
    evicted = sum(view["evicted"] for view in views.values()) - evicted_before
    return evicted > KEYS and sum(view["cached_keys"] for view in views.values()) < 2 * KEYS


@pytest.mark.long
def test_memory_stays_near_the_budget_and_nothing_is_lost_by_it(
    spark: Any, directory: Path, cluster: tuple[App, Events]
) -> None:
    app, _ = cluster
    truth = Truth(spark, directory)
    everything = [None, *(f"key-{number}" for number in range(1, KEYS))]
    before = kept(app)
    for start in range(0, KEYS, 500):
        truth.check(app, everything[start : start + 500])
    evicted_before = sum(before[name]["evicted"] for name in VIEWS)
    assert any(is_near_budget(kept(app), evicted_before) for _ in range(LOOKS_MAX))  # workers evict bit by bit
    truth.check(app, asked(Random(1), 100))


def asked_and_missed(app: App) -> tuple[int, int]:
    """Keys, up to now: workers tell the coordinator of their numbers in order, and this eviction evicts nothing."""
    app.evict("counts", ["nobody's"])
    numbers = kept(app)["counts"]
    return numbers["looked_up"], numbers["missed"]


def test_evictions_at_will(cluster: tuple[App, Events]) -> None:
    app, _ = cluster
    app.evict("counts")
    assert kept(app)["counts"]["cached_keys"] == 0
    app.lookup("counts", ["key-1", "key-2"])
    asked, missed = asked_and_missed(app)
    app.lookup("counts", ["key-2", "key-1"])
    assert asked_and_missed(app) == (asked + 2, missed)
    assert kept(app)["counts"]["cached_keys"] == 2
    app.evict("counts", ["key-1"])
    assert kept(app)["counts"]["cached_keys"] == 1
    assert app.lookup("counts", ["key-1", "key-2"]).num_rows == 2
    assert asked_and_missed(app) == (asked + 4, missed + 1)


def test_what_cannot_be_evicted(cluster: tuple[App, Events]) -> None:
    app, _ = cluster
    with pytest.raises(UnknownView, match="typo"):
        app.evict("typo")
    with pytest.raises(UnknownView, match="typo"):
        app.evict("typo", ["key-1"])
    with pytest.raises(KeyTypeError):
        app.evict("counts", [1.5])
    for name in FULL:
        with pytest.raises(DeclarationError, match=f"view '{name}' keeps every key"):
            app.evict(name)


def test_explain_says_which_views_are_partial_and_why_others_are_not(cluster: tuple[App, Events]) -> None:
    app, _ = cluster
    for name in VIEWS:
        assert "state: partial (a key is kept from its first lookup on" in app.explain(name)
    assert "cannot be found by (count(*)): count(*) is computed" in app.explain("sizes")
    assert "declared with partial=False" in app.explain("whole")
    assert "bad rows of spoilt are set aside" in app.explain("bad")
    for name in FULL:
        assert "state: full" in app.explain(name)
        assert "state: partial" not in app.explain(name)


def test_full_views_beside_them_are_read_as_ever(spark: Any, directory: Path, cluster: tuple[App, Events]) -> None:
    app, _ = cluster
    spark.read.parquet(str(directory / "names")).createOrReplaceTempView("names")
    for name in ("sizes", "whole"):
        assert differing_rows(app.read(name), spark.sql(FULL[name])) == 0
    assert app.lookup("bad", ["a", "b"]).to_pylist() == [{"k": "a", "share": 2.0}]
    taken = {name: view["bytes"] for name, view in app.status()["views"].items()}
    assert taken["sizes"] > taken["whole"] / 2  # its first region counts the same rows by the same keys


@pytest.mark.parametrize("budget", [0, -1, MEMORY_BUDGET_MIN - 1, True, 2.5e9, "1 GB"])
def test_a_budget_that_is_none_is_refused(spark: Any, tmp_path: Path, budget: Any) -> None:
    with pytest.raises(DeclarationError, match=r"memory_budget=.*at least 1,048,576"):
        App(spark, str(tmp_path / "lake"), memory_budget=budget)
