"""Views and tables of a running app as Spark reads them: by groups of vnodes, by keys, at one epoch."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from partial_kit import stream, write_file
from pyspark.errors import PySparkException
from rows_kit import differing_rows

from upriver.app import App
from upriver.errors import DeclarationError, KeyTypeError, UnknownView
from upriver.hashing import hash64
from upriver.spark.scan import UpriverDataSource
from upriver.vnodes import VnodeGroup, vnodes_of

pytestmark = pytest.mark.spark

VNODES = 16
EVENTS = pa.schema([("k", pa.int64()), ("item", pa.string()), ("v", pa.int64())])
ITEMS = "item string, maker string, at int, gone boolean"
SOURCES = {
    "sums": ("SELECT k, count(*) AS n, sum(v) AS total FROM events GROUP BY k", "k"),
    "made": (
        "SELECT maker, count(*) AS n, max(v) AS most FROM events JOIN items ON events.item = items.item GROUP BY maker",
        "maker",
    ),
}
"""The second one crosses a shuffle."""
KEYS: dict[str, tuple[str, ...]] = {
    "sums": ("k",), "sums_full": ("k",), "made": ("maker",), "events": ("k",), "items": ("item",)
}  # fmt: skip
SOME: dict[str, list[Any]] = {
    "sums": [3, 99, None], "sums_full": [3, 99, None], "made": ["m1", None], "events": [3, 99], "items": ["i1", "i0"]
}  # fmt: skip


@pytest.fixture(scope="module")
def app(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[App]:
    directory = tmp_path_factory.mktemp("reads")
    for number in range(4):
        write_events(directory, number)
    versions = [(f"i{n % 5}", f"m{n % 3}" if n % 7 else None, n, n == 23) for n in range(24)]
    app = App(spark, str(directory / "lake"), workers=2, vnodes=VNODES, ingest_tasks=1)
    app.table("events", stream(spark, directory / "events", "k long, item string, v long"), key="k")
    app.table(
        "items", spark.createDataFrame(versions, ITEMS), key="maker", primary_key="item", order_by="at", deletes="gone"
    )
    for name, (sql, key) in SOURCES.items():
        app.view(name, sql, key=key)
    app.view("sums_full", SOURCES["sums"][0], key="k", partial=False)
    spark.read.schema("k long, item string, v long").parquet(str(directory / "events")).createOrReplaceTempView(
        "events"
    )
    spark.createDataFrame(versions, ITEMS).createOrReplaceTempView("versions")
    spark.sql(
        "SELECT * EXCEPT (nth) FROM (SELECT *, row_number() OVER (PARTITION BY item ORDER BY at DESC) AS nth "
        "FROM versions) WHERE nth = 1 AND NOT gone"
    ).createOrReplaceTempView("items")
    app.start()
    app.wait()
    yield app
    app.stop()
    for view in ("events", "items", "versions"):
        spark.catalog.dropTempView(view)


def write_events(directory: Path, number: int) -> None:
    rows = [(n % 37 if n % 11 else None, f"i{n % 7}", n) for n in range(number * 50, number * 50 + 50)]
    write_file(directory / "events", number, EVENTS, rows)


def expected(spark: Any, name: str) -> Any:
    return spark.sql(SOURCES[name.removesuffix("_full")][0]) if name not in ("events", "items") else spark.table(name)


def load(spark: Any, app: App, name: str, **options: str) -> Any:
    spark.dataSource.register(UpriverDataSource)
    given = {"address": app.address, "token": app.token, "view": name, **options}
    return spark.read.format("upriver").options(**given).load()


def check_partitions(rows: Any, key: tuple[str, ...], partitions: int) -> None:
    """Each partition has rows of its vnodes alone."""
    assert rows.rdd.getNumPartitions() == partitions
    found = rows.selectExpr("spark_partition_id() AS part", *(f"`{name}`" for name in key)).toArrow()
    groups = VnodeGroup.all(VNODES, partitions)
    vnodes = vnodes_of(hash64([found.column(name) for name in key]), VNODES).tolist()
    for part, vnode in zip(found.column("part").to_pylist(), vnodes, strict=True):
        assert groups[part].first <= vnode < groups[part].behind


@pytest.mark.parametrize("name", KEYS)
def test_all_rows_are_there_each_in_the_partition_of_its_vnode(spark: Any, app: App, name: str) -> None:
    loaded = [load(spark, app, name, partitions="5")] if name == "made" else []
    for rows in (app.read(name, partitions=5), *loaded):
        assert differing_rows(rows, expected(spark, name)) == 0
        check_partitions(rows, KEYS[name], 5)
    check_partitions(app.read(name), KEYS[name], 2)


@pytest.mark.smoke
@pytest.mark.parametrize("name", KEYS)
def test_keys_have_their_rows_and_no_others(spark: Any, app: App, name: str) -> None:
    (key,) = KEYS[name]
    wanted = pa.table({key: pa.array(SOME[name], pa.string() if isinstance(SOME[name][0], str) else pa.int64())})
    some = spark.createDataFrame(wanted).withColumnRenamed(key, "wanted")
    theirs = expected(spark, name)
    theirs = theirs.join(some, theirs[key].eqNullSafe(some["wanted"]), "left_semi")
    assert theirs.count() > 0
    rows = app.read(name, keys=SOME[name], partitions=VNODES)
    assert differing_rows(rows, theirs) == 0
    if name != "made":
        return
    text = "[" + ", ".join("null" if each is None else f'"{each}"' for each in SOME[name]) + "]"
    assert differing_rows(load(spark, app, name, keys=text), theirs) == 0
    assert app.read(name, keys=[]).count() == 0


def test_what_cannot_be_read_is_refused_at_the_call(spark: Any, app: App) -> None:
    with pytest.raises(UnknownView, match="no view 'nothing'"):
        app.read("nothing")
    with pytest.raises(DeclarationError, match="17 partitions: there are 1 to 16"):
        app.read("sums", partitions=17)
    with pytest.raises(KeyTypeError, match="view 'events': key column 'k'"):
        app.read("events", keys=["three"])
    with pytest.raises(PySparkException, match="UnknownView: no view 'nothing'; there are: events, items, made, sums"):
        load(spark, app, "nothing")


def test_reads_are_right_while_the_app_rescales(spark: Any, app: App) -> None:
    """Keys move, and a table's rows do not."""
    rows = {name: app.read(name) for name in ("sums_full", "events")}
    rescale = app.rescale(workers=1)
    while (state := rescale.progress()["state"]) in ("queued", "starting", "moving"):
        for name, frame in rows.items():
            assert differing_rows(frame, expected(spark, name)) == 0
    assert state == "finished"
    for name, frame in rows.items():
        assert differing_rows(frame, expected(spark, name)) == 0


def test_spark_has_no_way_to_learn_how_a_python_source_divides_its_rows(spark: Any, app: App) -> None:
    """So a join of two reads that are divided alike shuffles. Should this fail, Spark can be told, and we should."""
    load = spark._jvm.java.lang.Class.forName
    scan = load("org.apache.spark.sql.execution.datasources.v2.python.PythonScan")
    reports = load("org.apache.spark.sql.connector.read.SupportsReportPartitioning")
    assert not reports.isAssignableFrom(scan)
    partition = load("org.apache.spark.sql.execution.datasources.v2.python.PythonInputPartition")
    assert not load("org.apache.spark.sql.connector.read.HasPartitionKey").isAssignableFrom(partition)
