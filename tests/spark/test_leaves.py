"""Tables and views as DataFrames: when they have rows, as of what epoch, and what a view by a DataFrame may read."""

import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from partial_kit import stream, write_file
from pyspark.errors import PySparkException
from pyspark.sql import Observation, Window
from pyspark.sql import functions as F

from upriver.app import App
from upriver.errors import DeclarationError, UnsupportedSql
from upriver.ids import Epoch
from upriver.lake.control import find_control
from upriver.lake.lake import Lake
from upriver.plan.plan import FRAME_OF
from upriver.spark.tables import only_keys
from upriver.spark.view_frames import words_of

pytestmark = pytest.mark.spark

EVENTS = pa.schema([("k", pa.int64()), ("item", pa.string()), ("v", pa.int64())])
EVENTS_SQL = "k long, item string, v long"
ITEMS_SQL = "item string, maker string"
SUMS = "SELECT k, count(*) AS n, sum(v) AS total FROM events GROUP BY k"


def write_events(directory: Path, number: int) -> None:
    write_file(
        directory / "events", number, EVENTS, [(n % 7, f"i{n % 3}", n) for n in range(number * 30, number * 30 + 30)]
    )


class River:
    """An app with two tables and four views, as DataFrames. stateful: a map, too."""

    def __init__(self, spark: Any, directory: Path) -> None:
        self.spark, self.directory = spark, directory
        self.files = count()
        self.write()
        self.app = app = App(spark, str(directory / "lake"), workers=2, vnodes=16, ingest_tasks=1)
        self.events = app.table("events", stream(spark, directory / "events", EVENTS_SQL), key="k")
        items = [(f"i{n}", f"m{n % 2}") for n in range(3)]
        self.items = app.table("items", spark.createDataFrame(items, ITEMS_SQL), key="item")
        self.full = app.view("full", SUMS, key="k", partial=False)
        self.part = app.view("part", SUMS, key="k")
        self.by_item = app.view(
            "by_item", "SELECT item, sum(v) AS total, count(*) AS n FROM events GROUP BY item", "item", partial=False
        )
        self.above = app.view("above", "SELECT k, total FROM full WHERE n > 1", key="k")
        self.mapped = app.stateful_map("mapped", "events", "k", lambda key, row, state: ([(row.v,)], None), "x long")

    def write(self) -> None:
        write_events(self.directory, next(self.files))

    @property
    def named(self) -> dict[str, Any]:
        return {
            "events": self.events, "items": self.items, "full": self.full, "part": self.part, "by_item": self.by_item,
            "above": self.above, "mapped": self.mapped,
        }  # fmt: skip

    def settle(self) -> None:
        """Wait for all rows, and until Spark has told its listeners of all actions."""
        self.app.wait()
        self.spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()


@pytest.fixture(scope="module")
def river(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[River]:
    river = River(spark, tmp_path_factory.mktemp("leaves"))
    yield river
    river.app.stop()


def rows(frame: Any) -> Counter[Any]:
    return Counter(map(tuple, frame.collect()))


def running(river: River) -> App:
    """The app, which a test before has started if all are run."""
    try:
        river.app.status()
    except DeclarationError:
        river.app.start()
    return river.app


def check_not_ready(action: Callable[[], Any]) -> None:
    with pytest.raises(Exception, match="NotReady") as raised:  # of a class of Spark's
        action()
    assert "cannot be read: the app does not run" in str(raised.value)


@pytest.mark.smoke
def test_actions_follow_the_app_through_its_starts_and_stops(spark: Any, river: River, tmp_path: Path) -> None:
    """The same DataFrame objects, some with shuffles and subqueries: Spark keeps rows and errors of these."""
    spark.createDataFrame([(1,)], "own long").createOrReplaceTempView("events")
    before = spark.catalog.listTables()
    app, events, items = river.app, river.events, river.items
    makers = events.join(items, "item").groupBy("maker").agg(F.sum("v").alias("v"), F.count("*").alias("n"))
    broadcast = events.join(F.broadcast(river.full), "k").select("k", "v", "total")
    river.part.createOrReplaceTempView("sums")
    most = spark.sql("SELECT k, total FROM sums WHERE total = (SELECT max(total) FROM sums)")
    spark.catalog.dropTempView("sums")
    made = [makers, broadcast, most]
    actions: list[Callable[[Any], Any]] = [
        lambda frame: frame.collect(),
        lambda frame: frame.toArrow(),
        lambda frame: frame.count(),
        lambda frame: frame.write.mode("overwrite").parquet(str(tmp_path / "written")),
    ]
    for is_last in (False, True):
        for frame in (*river.named.values(), *made):
            check_not_ready(lambda frame=frame: frame.collect())  # type: ignore[misc]  # the loop variable's value
        for action in actions:
            check_not_ready(lambda action=action: action(makers))  # type: ignore[misc]
        app.start()
        for _ in range(1 if is_last else 2):
            river.write()
            river.settle()
            given = spark.read.schema(EVENTS_SQL).parquet(str(river.directory / "events"))
            assert rows(events) == rows(given) == rows(app.read("events"))
            known = given.join(spark.createDataFrame(items.collect(), ITEMS_SQL), "item").groupBy("maker")
            assert rows(makers) == rows(known.agg(F.sum("v"), F.count("*")))
            assert makers.toArrow().num_rows == makers.count() == 2
            actions[-1](makers)
            assert rows(spark.read.parquet(str(tmp_path / "written"))) == rows(makers)
            assert rows(broadcast) == rows(
                given.join(given.groupBy("k").agg(F.sum("v").alias("t")), "k").select("k", "v", "t")
            )
            assert rows(most) == {max(((k, total) for k, _, total in rows(river.part)), key=lambda row: row[1]): 1}
        for name, frame in river.named.items():
            assert rows(frame) == rows(app.read(name)), name
            assert frame.dtypes == app.read(name).dtypes
        if not is_last:
            app.stop()
            spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
    assert spark.catalog.listTables() == before
    assert rows(spark.table("events")) == {(1,): 1}
    spark.catalog.dropTempView("events")


def test_all_leaves_of_an_action_are_of_one_epoch(spark: Any, river: River) -> None:
    full, part, by_item = (
        frame.agg(F.sum("total").alias("v"), F.sum("n").alias("n")) for frame in (river.full, river.part, river.by_item)
    )
    table = river.events.agg(F.sum("v").alias("v"), F.count("*").alias("n"))
    together = full.union(part).union(by_item).union(table)
    running(river).wait()
    is_over = threading.Event()

    def write() -> None:
        while not is_over.wait(0.2):
            river.write()

    writer = threading.Thread(target=write)
    writer.start()
    try:
        seen = [together.collect() for _ in range(6)]
        cached = river.events.cache()
        counts = [(cached.limit(1).count(), cached.join(river.full, "k").agg(F.sum("v"), F.count("*")).first())]
        counts += [(cached.limit(1).count(), cached.join(river.full, "k").agg(F.sum("v"), F.count("*")).first())]
        kept = cached.agg(F.sum("v"), F.count("*")).first()
        cached.unpersist()
    finally:
        is_over.set()
        writer.join()
    for answer in seen:
        assert len(set(map(tuple, answer))) == 1, answer
    assert len({answer[0]["n"] for answer in seen}) > 1
    assert counts == [(1, kept), (1, kept)]  # what is cached stays as it is, and so does what is read beside it


def test_observed_metrics_and_streams_that_read_leaves_work(spark: Any, river: River, tmp_path: Path) -> None:
    running(river)
    river.settle()
    observed = Observation("counted")
    together = river.events.observe(observed, F.count("*").alias("n")).groupBy("k").count()
    assert sum(row["count"] for row in together.collect()) == observed.get["n"] == river.events.count()
    incoming = spark.readStream.schema(EVENTS_SQL).parquet(str(river.directory / "events"))
    seen = incoming.join(river.items, "item").withColumn("at", F.timestamp_seconds("v")).withWatermark("at", "1 second")
    query = seen.groupBy("at").count().writeStream.format("memory").queryName("seen").outputMode("append").start()
    try:
        query.processAllAvailable()
        assert query.lastProgress["eventTime"]["watermark"] > "1970-01-01T00:00:10"
        assert spark.table("seen").count() > 10
    finally:
        query.stop()
        spark.catalog.dropTempView("seen")


def test_equal_names_of_two_apps_are_two_tables(spark: Any, river: River, tmp_path: Path) -> None:
    other = App(spark, str(tmp_path / "lake"), workers=1, vnodes=8)
    given = spark.createDataFrame([(n, "i", n) for n in range(5)], EVENTS_SQL)
    events = other.table("events", given, key="k")
    with pytest.raises(DeclarationError, match="'events' of another app"):
        river.app.view("mixed", river.events.union(events), key="k")
    running(river).wait()
    check_not_ready(events.count)
    with other.start():
        other.wait()
        assert rows(events) == rows(given)
        assert river.events.count() == river.app.read("events").count() > 5
    check_not_ready(events.count)


def test_columns_of_any_name_and_type(spark: Any, tmp_path: Path) -> None:
    given = spark.range(20).selectExpr(
        "id AS `a.b``c`", "timestamp_seconds(id) AS Place", "timestamp_ntz'2024-02-29 12:30:00.000005' AS at",
        "array(named_struct('x', id), null) AS rank", "map('k', cast('v' AS binary)) AS m", "date'1969-12-31' AS day",
        "cast(id AS decimal(20, 3)) AS c0", "make_dt_interval(1, 2) AS span", "cast(null AS string) AS nothing",
    )  # fmt: skip
    with App(spark, str(tmp_path / "lake"), workers=1, vnodes=8) as app:
        odd = app.table("odd", given, key="a.b`c")
        assert odd.columns == given.columns
        app.start().wait()
        shown = [frame.selectExpr("to_json(struct(*))") for frame in (odd, given)]
        assert rows(shown[0]) == rows(shown[1])
        assert odd.dtypes == given.dtypes


# Views by DataFrames ------------------------------------------------------------------------------------------------


def test_what_is_no_table_of_the_app_is_refused_with_its_place(
    spark: Any, river: River, tmp_path: Path, places: None
) -> None:
    own = spark.createDataFrame([(1, "i0", 2)], EVENTS_SQL)
    own.write.parquet(str(tmp_path / "own"))
    files = spark.read.parquet(str(tmp_path / "own"))
    given: list[tuple[Any, str]] = [
        (own, r"it has rows of its own \(LogicalRDD\)"),
        (spark.createDataFrame(pa.table({"k": [1]})), r"it has rows of its own \(LocalRelation\)"),
        (spark.range(3), r"it has rows of its own \(Range\)"),
        (river.events.union(files), r"it reads Relation .* parquet"),
        (river.events.filter(river.events.k.isin(1, 2)).join(files, "k"), "it reads Relation .* parquet"),
    ]
    for frame, said in given:
        with pytest.raises(DeclarationError, match=rf"view 'v', .*test_leaves\.py:\d+: {said}"):
            river.app.view("v", frame, key="k")
    condition = river.events.k == own.k
    own_line = line() - 1
    with pytest.raises(DeclarationError, match=rf"view 'v', .*test_leaves\.py:{own_line}: it has rows of its own"):
        river.app.view("v", river.events.join(own, condition), key="k")
    with pytest.raises(DeclarationError, match="sql=3: give a text"):
        river.app.view("v", 3, key="k")  # type: ignore[arg-type]  # a wrong call


@pytest.fixture
def places(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have PySpark note where columns are made. It decides that once in a process, and without a session against it."""
    monkeypatch.setattr("pyspark.errors.utils._enable_debugging_cache", True, raising=False)


def line() -> int:
    """The line that calls this."""
    return sys._getframe(1).f_lineno


def test_what_was_dropped_or_declared_anew_is_refused(spark: Any, tmp_path: Path) -> None:
    app = App(spark, str(tmp_path / "lake"), workers=1, vnodes=8)
    given = spark.createDataFrame([(1, "a")], "k long, name string")
    first = app.table("names", given, key="k")
    app.drop_table("names")
    with pytest.raises(DeclarationError, match=r"test_leaves\.py:\d+: it reads 'names', which has been dropped"):
        app.view("v", first, key="k")
    app.table("names", given.select("name", "k"), key="k")
    with pytest.raises(DeclarationError, match="it reads 'names' as it was before it was declared anew"):
        app.view("v", first, key="k")


def test_sql_and_dataframes_have_the_same_leaves(spark: Any, river: River) -> None:
    app, before = river.app, spark.catalog.listTables()
    in_sql = app._analyser.frame_of(
        "v", "SELECT e.k, count(*) AS n FROM events e JOIN items USING (item) GROUP BY e.k", {}
    )
    as_frame = river.events.join(river.items, "item").groupBy("k").agg(F.count("*").alias("n"))
    for frame in (in_sql, as_frame):
        assert app._leaves.names_of(frame) == ("events", "items")
        assert not app._leaves.plans.others(frame, app._leaves.app)
    assert spark.catalog.listTables() == before


def test_a_definition_reads_tables_only_and_gives_the_rows_of_any_epoch(spark: Any, river: River) -> None:
    app = river.app
    schemas = {name: plan.schema for name, plan in app._plans.items()}
    frame = river.above.join(river.part, "k").groupBy("n").agg(F.max(river.part.total).alias("t"))
    _, definition = app._frames.given("v", frame.withColumn("day", F.current_date()), schemas)
    assert app._leaves.names_of(definition) == ("events",)
    app._frames.keep("v", definition)
    running(river).wait()
    first, last = Epoch(1), app._running().epoch
    for epoch in (first, last):
        found = app._frames.as_of("v", app.root, epoch, 86_400_000_000, {}, None)
        events = app._frames.as_of("part", app.root, epoch, None, {}, None)
        expected = events.groupBy("n").agg(F.max("total")).selectExpr("*", "date'1970-01-02'")
        assert rows(found) == rows(expected) != {}
        assert found.sparkSession is spark
    app._frames.forget("v")


def test_the_words_of_a_dataframe_are_the_same_each_time(spark: Any, river: River, tmp_path: Path) -> None:
    app = App(spark, str(tmp_path / "lake"), workers=1, vnodes=8)
    events = app.table("events", spark.createDataFrame([], EVENTS_SQL), key="k")
    said = [
        words_of(one._leaves, frame.filter("v > 1").groupBy("k").agg(F.sum("v").alias("total")))
        for one, frame in ((app, events), (river.app, river.events))
    ]
    assert said[0] == said[1]
    assert said[0].splitlines() == [
        FRAME_OF,
        "Aggregate [k#1], [k#1, sum(v#2) AS total#3]",
        "+- Filter (v#2 > cast(1 as bigint))",
        "   +- events [k#1, item#4, v#2]",
    ]


def test_dataframes_are_views(spark: Any, river: River) -> None:
    events, items, app = river.events, river.items, running(river)
    pairs = F.expr("a.k = b.k AND a.v < b.v")
    nth = Window.partitionBy("k").orderBy(F.desc("v"))
    given: dict[str, tuple[Any, Any]] = {
        "joined": (events.join(items, "item").groupBy("maker").agg(F.sum("v").alias("s"), F.count("*")), "maker"),
        "columns": (events.withColumn("w", F.col("v") * 2 + F.expr("k % 3")).filter("w > 10"), "k"),
        "last": (events.withColumn("nth", F.row_number().over(nth)).filter("nth <= 2"), "k"),
        "kinds": (events.select("item").dropDuplicates(), "item"),
        "either": (events.select("k").union(events.selectExpr("v % 5 AS k")), "k"),
        "pivoted": (events.groupBy("k").pivot("item", ["i0", "i1"]).agg(F.sum("v")), "k"),
        "shouted": (events.selectExpr("upper(item) AS name", "v + k AS v"), "name"),
        "paired": (events.alias("a").join(events.alias("b"), pairs).groupBy("a.k").count(), "k"),
        "over_views": (river.above.join(river.part, "k").select("k", river.part.total), "k"),
        "all": (events.agg(F.count("*").alias("n"), F.countDistinct("item").alias("kinds")), []),
    }
    views = {name: app.view(name, frame, key=key) for name, (frame, key) in given.items()}
    top = app.view("top", views["joined"].filter("s > 10"), key="maker")
    river.write()
    river.settle()
    for name, (frame, key) in {**given, "top": (top, "maker")}.items():
        expected = rows(frame) if name != "top" else rows(views["joined"].filter("s > 10"))
        view = views.get(name, top)
        assert rows(view) == rows(app.read(name)) == expected != {}, name
        places = [view.columns.index(one) for one in ([key] if isinstance(key, str) else key)]
        keys = list({row[places[0]] if places else () for row in expected})
        assert Counter(tuple(row.values()) for row in app.lookup(name, keys).to_pylist()) == expected, name
        if app._is_partial(name):
            some = pa.record_batch([[keys[0]]], names=[key])
            of_key = Counter({row: n for row, n in expected.items() if row[places[0]] == keys[0]})
            assert rows(only_keys(app._computed(name, some), some)) == of_key
    assert app.explain("joined").splitlines()[1:3] == [
        f"  | {FRAME_OF}", "  | Aggregate [maker#1], [maker#1, sum(v#2) AS s#3, count(1) AS count(1)#4]"
    ]  # fmt: skip
    before = find_control(Lake(app.root)).record
    app.stop()
    app.start()
    after = find_control(Lake(app.root)).record
    assert before is not None
    assert after is not None
    assert after.views == before.views  # they are declared the same
    assert not after.gone
    app.drop_view("joined")
    app.wait()
    assert rows(top) == rows(app.read("top")) != {}


def test_refusals_of_dataframes_have_their_place(spark: Any, river: River, places: None) -> None:
    condition = F.upper(F.call_function("uuid")) == "x"
    with pytest.raises(UnsupportedSql, match=rf"view 'v', \S*test_leaves\.py:{line() - 1} \(__eq__\): uuid\(\)"):
        river.app.view("v", river.events.filter(condition), key="k")
    with pytest.raises(UnsupportedSql, match=rf"view 'v', \S*test_leaves\.py:{line() + 1}: .*input_file_name"):
        river.app.view("v", river.events.select("k", F.input_file_name()), key="k")
    with pytest.raises(UnsupportedSql, match=r"mapInArrow\(\) is not supported"):
        river.app.view("v", river.events.mapInArrow(lambda batches: batches, river.events.schema), key="k")


def test_views_of_a_stateful_map_are_what_spark_makes_of_its_rows(spark: Any, river: River) -> None:
    """Added while the app runs; each goes on without the map."""
    app = running(river)
    views = {
        "of_map": app.view("of_map", "SELECT x % 3 AS r, count(*) AS n FROM mapped GROUP BY x % 3", key="r"),
        "of_map_frame": app.view("of_map_frame", river.mapped.where("x > 2").groupBy("k").agg(F.sum("x")), key="k"),
        "of_view": app.view("of_view", "SELECT r FROM of_map WHERE n > 1", key="r"),
    }
    river.write()
    river.settle()
    app.read("mapped").createOrReplaceTempView("mapped")
    said = {
        "of_map": spark.sql("SELECT x % 3 AS r, count(*) AS n FROM mapped GROUP BY x % 3"),
        "of_map_frame": spark.sql("SELECT k, sum(x) FROM mapped WHERE x > 2 GROUP BY k"),
        "of_view": spark.sql("SELECT x % 3 AS r FROM mapped GROUP BY x % 3 HAVING count(*) > 1"),
    }
    for name, frame in views.items():
        assert rows(frame) == rows(app.read(name)) == rows(said[name])
    spark.catalog.dropTempView("mapped")
    for name in views:
        app.drop_view(name)


def test_a_task_without_an_action_is_answered(spark: Any, river: River) -> None:
    """Spark gives the jobs of an RDD no id of an execution."""
    with running(river) as app:
        app.wait()
        rdd = river.full.rdd
        assert Counter(map(tuple, rdd.collect())) == rows(app.read("full"))
    with pytest.raises((PySparkException, Exception), match="NotReady"):
        rdd.collect()
