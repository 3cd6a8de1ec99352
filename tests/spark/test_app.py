"""The app on real Spark: what a user sees."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest
from rows_kit import differing_rows

import upriver
from upriver.app import App
from upriver.errors import (
    AccessDenied,
    DeclarationError,
    IngestFailed,
    KeyTypeError,
    LakeInUse,
    RowError,
    TooFewSlots,
    UnknownView,
    UnsupportedSql,
)
from upriver.text import render_status

pytestmark = pytest.mark.spark

ORDERS = "id long, customer string, country string, city string, amount int, at timestamp_ntz"
ROWS = [
    (1, "ada", "UK", "London", 10, "2024-01-01 10:00:00"),
    (2, "bob", "UK", "Leeds", 20, "2024-01-01 11:00:00"),
    (3, "ada", "UK", "London", None, "2024-01-02 10:00:00"),
    (4, None, "FR", None, 5, "2024-01-02 12:00:00"),
    (5, "ada", "FR", "Paris", 7, "2024-01-03 09:00:00"),
    (6, None, None, None, 1, None),
]
TOTALS = "SELECT customer, count(*) AS n, sum(amount) AS total, avg(amount) AS mean FROM orders GROUP BY customer"
PLACES = "SELECT country, city, min(amount) AS least, max(amount) AS most FROM orders GROUP BY country, city"
RECENT = "SELECT id, customer, amount * 2 AS doubled FROM orders WHERE amount > 1"


def orders(spark: Any) -> Any:
    return spark.createDataFrame(
        [(*row[:5], row[5]) for row in ROWS], ORDERS.replace("timestamp_ntz", "string")
    ).selectExpr("id", "customer", "country", "city", "amount", "cast(at AS timestamp_ntz) AS at")


@pytest.fixture(scope="module")
def running(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[App]:
    """One app over ``ROWS``, for all tests that only ask."""
    with App(spark, str(tmp_path_factory.mktemp("app")), workers=2) as app:
        app.table("orders", orders(spark), key="customer", order_by="at")
        app.view("totals", TOTALS, key="customer", partial=False)
        app.view("places", PLACES, key=["country", "city"], partial=False)
        app.view("recent", RECENT, key="customer", partial=False)
        app.start()
        app.wait()
        yield app


def test_lookup_gives_the_rows_of_the_keys_in_the_order_asked(running: App) -> None:
    found = running.lookup("totals", ["bob", "nobody", "ada", "bob"])
    assert found.to_pylist() == [
        {"customer": "bob", "n": 1, "total": 20, "mean": 20.0},
        {"customer": "ada", "n": 3, "total": 17, "mean": 8.5},
    ]


def test_the_null_key_is_a_key(running: App) -> None:
    assert running.lookup("totals", [None]).to_pylist() == [{"customer": None, "n": 2, "total": 6, "mean": 3.0}]


def test_keys_of_several_columns(running: App) -> None:
    found = running.lookup("places", [("UK", "London"), (None, None), ("FR", None)])
    assert found.to_pylist() == [
        {"country": "UK", "city": "London", "least": 10, "most": 10},
        {"country": None, "city": None, "least": 1, "most": 1},
        {"country": "FR", "city": None, "least": 5, "most": 5},
    ]


def test_a_view_of_rows_keeps_their_order(running: App) -> None:
    found = running.lookup("recent", ["ada"])
    assert found.to_pylist() == [
        {"id": 1, "customer": "ada", "doubled": 20},
        {"id": 5, "customer": "ada", "doubled": 14},
    ]


def test_lookup_takes_arrow_and_gives_spark_types(running: App) -> None:
    found = running.lookup("totals", pa.array(["ada"]))
    assert found.schema.types == [pa.string(), pa.int64(), pa.int64(), pa.float64()]
    assert running.lookup("totals", []).schema == found.schema


@pytest.mark.parametrize(("name", "sql"), [("totals", TOTALS), ("places", PLACES), ("recent", RECENT)])
def test_every_view_equals_spark_sql(running: App, spark: Any, name: str, sql: str) -> None:
    orders(spark).createOrReplaceTempView("orders")
    assert differing_rows(running.read(name), spark.sql(sql)) == 0


def test_status_counts_what_is_there(running: App) -> None:
    status = running.status()
    assert status["epoch"] == status["published"] == 1
    assert [worker["epoch"] for worker in status["workers"]] == [1, 1]
    orders = status["tables"]["orders"]
    assert (orders["state"], orders["epoch"], orders["rows"]) == ("finished", 1, 6)
    assert (orders["error"], orders["retry_in_s"], orders["attempts"]) == (None, None, 1)
    assert 0 <= orders["epoch_age_s"] < 3600
    assert status["failure"] is None
    assert status["views"]["totals"]["rows"] == 3
    assert status["views"]["recent"]["rows"] == 4
    assert status["views"]["totals"]["bytes"] > 0
    assert json.loads(json.dumps(status)) == status


def test_explain_tells_key_edge_and_state(running: App) -> None:
    text = running.explain("places")
    for part in ("country, city", "lake edge orders/country,city", "full"):
        assert part in text


def test_unknown_view_names_those_there_are(running: App) -> None:
    for ask in (running.explain, running.read, lambda view: running.lookup(view, ["ada"])):
        with pytest.raises(UnknownView, match="totals"):
            ask("nothing")


@pytest.mark.parametrize("keys", [[1], [("ada", "bob")], [1.5], pa.array([1, 2])])
def test_keys_of_a_wrong_type_are_refused(running: App, keys: Any) -> None:
    with pytest.raises(KeyTypeError, match="customer"):
        running.lookup("totals", keys)


def test_a_wrong_token_is_refused_and_not_repeated(running: App) -> None:
    with pytest.raises(AccessDenied) as refused, upriver.connect(running.address, "not-the-token") as client:
        client.lookup("totals", ["ada"])
    assert "not-the-token" not in str(refused.value)
    assert running.token not in str(refused.value)


def test_a_process_without_spark_looks_up(running: App) -> None:
    program = (
        "import sys, upriver\n"
        "with upriver.connect(sys.argv[1], sys.stdin.read()) as client:\n"
        "    print(client.lookup('totals', ['ada']).to_pylist())\n"
        "assert not any(name.partition('.')[0] == 'pyspark' for name in sys.modules)\n"
    )
    command = [sys.executable, "-c", program, running.address]
    done = subprocess.run(command, input=running.token, capture_output=True, text=True, check=True, timeout=60)
    assert "'n': 3" in done.stdout


def test_a_second_app_on_the_root_is_refused(running: App, spark: Any) -> None:
    with App(spark, running._config.root, workers=1) as second:
        second.table("orders", orders(spark), key="customer", order_by="at")
        with pytest.raises(LakeInUse, match=r"in use by another App of this process: .*replace=True"):
            second.start()
    assert running.lookup("totals", ["bob"]).num_rows == 1


def test_an_app_takes_the_place_of_this_process_s_app_on_its_root(spark: Any, tmp_path: Path) -> None:
    """As when a notebook's cell is run again."""

    def cell(**options: Any) -> App:
        app = App(spark, tmp_path, workers=1, vnodes=16, **options)
        app.table("numbers", spark.createDataFrame([("a", 1)], "k string, v int"), key="k")
        app.view("sums", "SELECT k, sum(v) AS total FROM numbers GROUP BY k", key="k")
        return app

    first = cell().start(wait=True)
    with cell(replace=True) as second:
        second.start(wait=True)
        with pytest.raises(DeclarationError, match="not running"):
            first.lookup("sums", ["a"])
        first.stop()
        assert second.lookup("sums", ["a"]).column("total").to_pylist() == [1]


# Declaring -----------------------------------------------------------------------------------------------------------


def declared(spark: Any, root: Path, **options: Any) -> App:
    app = App(spark, str(root), **options)
    app.table("orders", orders(spark), key="customer", order_by="at")
    return app


def test_wrong_declarations_are_named(spark: Any, tmp_path: Path) -> None:
    app = declared(spark, tmp_path)
    with pytest.raises(DeclarationError, match=r"'client'.*its columns are id, customer"):
        app.table("others", orders(spark), key="client")
    with pytest.raises(DeclarationError, match="there is a table or a view of that name already"):
        app.table("orders", orders(spark), key="customer")
    with pytest.raises(DeclarationError, match="called 'orders', which is the same name in SQL"):
        app.table("Orders", orders(spark), key="customer")
    with pytest.raises(DeclarationError, match="called 'orders', which is the same name in SQL"):
        app.view("ORDERS", TOTALS, key="customer")
    with pytest.raises(DeclarationError, match=r"view None: a name is letters \(a to z\)"):
        app.view(None, TOTALS, key="customer")  # type: ignore[arg-type]
    with pytest.raises(DeclarationError, match="starts with no digit"):
        app.table("2nd", orders(spark), key="customer")
    with pytest.raises(DeclarationError, match="no_such_column"):
        app.view("v", "SELECT customer, sum(no_such_column) AS s FROM orders GROUP BY customer", key="customer")
    with pytest.raises(UnsupportedSql, match="line 1"):
        app.view("v", "SELECT customer, rand() AS r FROM orders", key="customer")
    with pytest.raises(DeclarationError, match="power of two"):
        App(spark, str(tmp_path), vnodes=100)
    with pytest.raises(DeclarationError, match="workers=0"):
        App(spark, str(tmp_path), workers=0)
    with pytest.raises(KeyTypeError, match="tags"):
        app.table("tagged", spark.createDataFrame([(1, {"a": 1})], "id int, tags map<string, int>"), key="tags")


def test_an_app_that_does_not_run_says_so(spark: Any, tmp_path: Path) -> None:
    app = declared(spark, tmp_path)
    for ask in (app.status, app.wait, lambda: app.lookup("totals", ["ada"])):
        with pytest.raises(DeclarationError, match="start"):
            ask()
    with pytest.raises(DeclarationError, match="declare a table"):
        App(spark, str(tmp_path)).start()


def test_too_few_slots_are_refused_with_numbers(spark: Any, tmp_path: Path) -> None:
    app = declared(spark, tmp_path, workers=8)
    with pytest.raises(TooFewSlots, match=r"9 task slots are needed .* has 8"):
        app.start()


# Streams and restarts ------------------------------------------------------------------------------------------------


def add_file(directory: Path, spark: Any, first: int, rows: int) -> None:
    """One more file of events: key ``id % 7`` (null for every 7th), value ``id``."""
    frame = spark.range(first, first + rows).selectExpr("nullif(id % 7, 6) AS k", "id AS v")
    frame.coalesce(1).write.mode("append").parquet(str(directory))


def event_app(spark: Any, root: Path, directory: Path) -> App:
    stream = spark.readStream.schema("k long, v long").option("maxFilesPerTrigger", 1).parquet(str(directory))
    app = App(spark, str(root), workers=2)
    app.table("events", stream, key="k")
    app.view("sums", "SELECT k, count(*) AS n, sum(v) AS total FROM events GROUP BY k", key="k", partial=False)
    return app


def assert_equals_spark(app: App, spark: Any, directory: Path) -> None:
    spark.read.schema("k long, v long").parquet(str(directory)).createOrReplaceTempView("events")
    expected = spark.sql("SELECT k, count(*) AS n, sum(v) AS total FROM events GROUP BY k")
    assert differing_rows(app.read("sums"), expected) == 0


def test_a_stream_is_followed_and_taken_up_again_after_a_restart(spark: Any, tmp_path: Path) -> None:
    events, root = tmp_path / "events", tmp_path / "lake"
    for first in (0, 100, 200):
        add_file(events, spark, first, 100)
    with event_app(spark, root, events) as app:
        app.start()
        assert app.wait() == 3
        add_file(events, spark, 300, 1)
        assert app.wait() == 4
        assert_equals_spark(app, spark, events)
    add_file(events, spark, 301, 50)
    with event_app(spark, root, events) as app:
        app.start()
        assert app.wait() == 5
        assert_equals_spark(app, spark, events)
        assert app.lookup("sums", [None]).num_rows == 1


def test_another_declaration_on_the_same_root_is_refused(spark: Any, tmp_path: Path) -> None:
    events = tmp_path / "events"
    add_file(events, spark, 0, 10)
    with event_app(spark, tmp_path / "lake", events) as app:
        app.start()
        app.wait()
    stream = spark.readStream.schema("k long, v long").parquet(str(events))
    other = App(spark, str(tmp_path / "lake"))
    other.table("events", stream, key="v")
    with pytest.raises(DeclarationError, match=r"key .*'k'.* not .*'v'"):
        other.start()


def test_a_bad_row_fails_its_view_with_its_reason_and_a_corrected_one_takes_its_place(
    spark: Any, tmp_path: Path
) -> None:
    rows = spark.createDataFrame([("a", 1), ("b", 0)], "k string, v int")
    told = r"(?i)view 'shares', epoch 1: table 'numbers': .*division by zero.* in the row \(k = b, v = 0\)\."
    shares = "SELECT k, sum({}) AS share FROM numbers GROUP BY k"
    with App(spark, str(tmp_path), workers=2) as app:
        app.table("numbers", rows, key="k")
        app.view("sums", "SELECT k, sum(v) AS total FROM numbers GROUP BY k", key="k", partial=False)
        app.view("shares", shares.format("10 / v"), key="k", partial=False)
        app.start()
        app.wait()
        for ask in (
            lambda: app.lookup("shares", ["a", "b"]),
            lambda: app.read("shares").count(),
            lambda: app.wait(view="shares"),
        ):
            with pytest.raises(RowError, match=told):
                ask()
        views = app.status()["views"]
        assert (views["sums"]["state"], views["shares"]["state"]) == ("running", "failed")
        assert re.search(told, views["shares"]["error"])
        assert "view shares has failed: RowError: view 'shares'" in render_status(app.status())
        assert app.lookup("sums", ["a", "b"]).column("total").to_pylist() == [1, 0]
        app.checkpoint()
        app.rescale(1).wait(timeout=60)
        app.stateful_map("broken", "numbers", "k", lambda key, row, state: sys.exit("enough"), "n int")
        app.wait(view="sums")
        assert app.lookup("sums", ["a", "b"]).column("total").to_pylist() == [1, 0]
        with pytest.raises(RowError, match="SystemExit: enough"):
            app.lookup("broken", ["a"])
        app.drop_view("shares", timeout=30)
        app.view("shares", shares.format("try_divide(10, v)"), key="k", partial=False, timeout=30)
        assert app.lookup("shares", ["a", "b"]).column("share").to_pylist() == [10.0, None]
        assert app.status()["views"]["broken"]["state"] == "failed"


def test_a_bad_row_of_a_partial_view_fails_the_lookups_of_its_key(spark: Any, tmp_path: Path) -> None:
    rows = spark.createDataFrame([("a", 1), ("b", 0)], "k string, v int")
    with App(spark, str(tmp_path), workers=2) as app:
        app.table("numbers", rows, key="k")
        app.view("shares", "SELECT k, sum(10 / v) AS share FROM numbers GROUP BY k", key="k")
        app.start()
        app.wait()
        with pytest.raises(RowError, match=r"(?i)division by zero"):
            app.lookup("shares", ["a", "b"])
        assert app.lookup("shares", ["a"]).column("share").to_pylist() == [10.0]
        while not (told := app.status()["views"]["shares"])["unfillable"]:
            pass  # the status is what the workers last reported
        assert (told["state"], told["unfillable"]) == ("running", 1)
        assert "view shares: 1 keys cannot be filled" in render_status(app.status())


def test_a_function_that_takes_other_arguments_is_refused(spark: Any, tmp_path: Path) -> None:
    app = App(spark, str(tmp_path))
    app.table("numbers", spark.range(3), key="id")
    told = r"its function takes \(key, row\), and with per='row' it is called with \(key, row, state\): too many"
    with pytest.raises(DeclarationError, match=told):
        app.stateful_map("n", "numbers", "id", lambda key, row: ([], None), "n int")


def test_a_failed_source_is_told_and_is_started_again_while_all_else_goes_on(spark: Any, tmp_path: Path) -> None:
    events = tmp_path / "events"
    add_file(events, spark, 0, 10)
    (events / "part-bad.parquet").write_bytes(b"this is no Parquet file")
    with event_app(spark, tmp_path / "lake", events) as app:
        app.table("others", spark.createDataFrame([(1, 2)], "k long, v long"), key="k")
        app.view("seconds", "SELECT k, max(v) AS v FROM others GROUP BY k", key="k")
        app.start()
        told = r"table 'events': its source has failed: [^\n]*part-bad\.parquet[^\n]*Repair or restore the file[^\n]*"
        with pytest.raises(IngestFailed) as failed:
            app.wait()
        assert re.fullmatch(told + "tried again in [0-9]+ s[^\n]*", str(failed.value))
        assert failed.value.__cause__ is None
        status = app.status()
        assert status["tables"]["events"]["state"] in ("failed", "failing")
        assert re.fullmatch(told, status["failure"])
        while not (epoch := app.status()["tables"]["others"]["epoch"]):
            pass
        assert app.lookup("seconds", [1], at_least=epoch, allow_warming=True).to_pylist() == [{"k": 1, "v": 2}]
        with pytest.raises(DeclarationError, match="no table 'nothing'; there are: events, others"):
            app.restart_source("nothing")
        pa.parquet.write_table(pa.table({"k": [1], "v": [100]}), tmp_path / "good")
        (tmp_path / "good").rename(events / "part-bad.parquet")
        app.restart_source("events")
        app.wait()
        assert app.status()["tables"]["events"]["state"] == "running"
        assert app.status()["failure"] is None
        assert_equals_spark(app, spark, events)


def test_an_empty_source_gives_empty_views(spark: Any, tmp_path: Path) -> None:
    with App(spark, str(tmp_path), workers=2) as app:
        app.table("events", spark.createDataFrame([], "k long, v long"), key="k")
        app.view("sums", "SELECT k, sum(v) AS total FROM events GROUP BY k", key="k", partial=False)
        app.start()
        app.wait()
        assert app.lookup("sums", [1, None]).num_rows == 0
        assert app.read("sums").count() == 0
