"""Tables that are declared and dropped while an app runs: their views are Spark's answers, and nothing else notices."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest
from pyspark.sql import functions as F

from upriver import App
from upriver.client.client import connect
from upriver.errors import DeclarationError, IngestFailed, RowError, UnknownView

pytestmark = pytest.mark.spark

PAID = "SELECT customer, count(*) AS n, sum(amount) AS amount FROM payments GROUP BY customer"
SUMS = "SELECT customer, sum(amount) AS amount FROM orders GROUP BY customer"
JOINED = "SELECT region, sum(amount) AS amount FROM orders JOIN customers ON customer = name GROUP BY region"
ORDERS = [(number, f"c{number % 5}", number * 3) for number in range(100)]
CUSTOMERS = [(f"c{number}", "north" if number % 2 else "south") for number in range(6)]

REPORTED_S = 2.5
"""Seconds after which workers have reported what they had counted."""


class Payments:
    """A directory of Parquet files, which a stream reads, each once."""

    def __init__(self, spark: Any, directory: Path) -> None:
        directory.mkdir()
        self._spark, self._directory = spark, directory
        self.put(0, 50)

    def put(self, first: int, last: int) -> None:
        numbers = range(first, last)
        rows = {"id": list(numbers), "customer": [f"c{n % 7}" for n in numbers], "amount": [n * 2 for n in numbers]}
        hidden = self._directory / f".{first}"
        pa.parquet.write_table(pa.table(rows), hidden)
        hidden.rename(self._directory / f"{first}.parquet")

    def stream(self) -> Any:
        return self._spark.readStream.schema("id LONG, customer STRING, amount LONG").parquet(str(self._directory))

    def rows(self) -> Any:
        return self._spark.read.parquet(str(self._directory))


@pytest.fixture
def payments(spark: Any, tmp_path: Path) -> Payments:
    return Payments(spark, tmp_path / "payments")


def orders(spark: Any) -> Any:
    return spark.createDataFrame(ORDERS, "id INT, customer STRING, amount INT")


def customers(spark: Any) -> Any:
    return spark.createDataFrame(CUSTOMERS, "name STRING, region STRING")


def declared(spark: Any, root: Path) -> App:
    """Of one table and its partial view."""
    app = App(spark, str(root), workers=2, vnodes=16, ingest_tasks=1)
    app.table("orders", orders(spark), key="id")
    app.view("sums", SUMS, key="customer")
    return app


@pytest.fixture
def app(spark: Any, tmp_path: Path) -> Iterator[App]:
    with declared(spark, tmp_path / "lake") as app:
        app.start(wait=True)
        yield app


def assert_is_sparks(spark: Any, app: App, view: str, sql: str, **tables: Any) -> None:
    for name, rows in tables.items():
        rows.createOrReplaceTempView(name)
    app.wait(view=view)
    assert sorted(map(repr, app.read(view).collect())) == sorted(map(repr, spark.sql(sql).collect()))


@contextmanager
def looked_up(app: App) -> Iterator[None]:
    """Lookups of ``sums`` go on meanwhile: each is right, and the coldest takes no upquery."""
    over, wrong, times = threading.Event(), list[Any](), 0
    expected = {
        f"c{place}": sum(amount for _, customer, amount in ORDERS if customer == f"c{place}") for place in (1, 4)
    }
    app.lookup("sums", list(expected))
    before, since = upqueries(app), time.monotonic()
    while not before or time.monotonic() < since + REPORTED_S:
        over.wait(0.1)
        if (now := upqueries(app)) != before:
            before, since = now, time.monotonic()

    def run() -> None:
        nonlocal times
        with connect(app.address, app.token) as client:
            while not over.is_set():
                try:
                    found = client.lookup("sums", list(expected), timeout=2.0).to_pylist()
                except Exception as error:
                    wrong.append(error)
                    return
                if {row["customer"]: row["amount"] for row in found} != expected:
                    wrong.append(found)
                times += 1

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
        over.wait(REPORTED_S)
    finally:
        over.set()
        thread.join()
    assert wrong == []
    assert times
    assert upqueries(app) == before


def upqueries(app: App) -> list[str]:
    return [line for line in app.metrics().splitlines() if line.startswith('upriver_upqueries_total{view="sums"')]


def test_tables_are_added_and_nothing_else_notices(spark: Any, app: App, payments: Payments) -> None:
    with looked_up(app):
        app.table("payments", payments.stream(), key="id", order_by="id")
        app.table("customers", customers(spark), primary_key="name", order_by="region")
        assert app.ready
        app.view("paid", PAID, key="customer", partial=False)
        app.view("joined", JOINED, key="region", partial=False)
        assert_is_sparks(spark, app, "paid", PAID, payments=payments.rows())
        assert_is_sparks(spark, app, "joined", JOINED, orders=orders(spark), customers=customers(spark))
        payments.put(50, 70)
        app.wait()
        assert_is_sparks(spark, app, "paid", PAID, payments=payments.rows())
    tables = app.status()["tables"]
    assert {name: told["rows"] for name, told in tables.items()} == {"orders": 100, "payments": 70, "customers": 6}
    assert tables["payments"]["state"] == "running"
    assert 'upriver_table_lag_rows{table="payments"} 0.0' in app.metrics()
    assert app.read("payments").count() == 70
    assert app.read("customers").count() == 6


def test_a_table_is_dropped_unless_a_view_reads_it(spark: Any, app: App, payments: Payments) -> None:
    app.table("payments", payments.stream(), key="id", order_by="id")
    app.view("paid", PAID, key="customer")
    app.view("rich", "SELECT customer FROM paid WHERE amount > 10", key="customer", partial=False)
    app.stateful_map("seen", "payments", "customer", seen, "n INT", order_by="id")
    with pytest.raises(DeclarationError) as refused:
        app.drop_table("payments")
    named = "view 'paid', view 'rich', stateful map 'seen'"
    assert str(refused.value) == f"table 'payments' is read by {named}: drop what reads it first"
    for view in ("rich", "seen", "paid"):
        app.drop_view(view)
    with looked_up(app), connect(app.address, app.token) as client:
        app.drop_table("payments")
        assert list(app.status()["tables"]) == ["orders"]
        assert 'table="payments"' not in app.metrics()
        assert app.ready
        for name in ("payments", "nothing"):
            with pytest.raises(UnknownView, match=f"no view '{name}'"):
                app.read(name)
            with pytest.raises(UnknownView):
                client.scan(name)
        with pytest.raises(DeclarationError, match="no table 'payments'; there are: orders"):
            app.drop_table("payments")
        with pytest.raises(DeclarationError, match="no table or view 'payments' is declared; there are: orders, sums"):
            app.view("paid", PAID, key="customer")
    assert [query for query in spark.streams.active if "payments" in (query.name or "")] == []
    app.wait()


def seen(customer: str, row: Any, count: int | None) -> tuple[list[tuple[int]], int]:
    return [((count or 0) + 1,)], (count or 0) + 1


def test_a_dropped_table_goes_on_where_it_was(spark: Any, tmp_path: Path, payments: Payments) -> None:
    root = tmp_path / "lake"
    with declared(spark, root) as app:
        app.start(wait=True)
        app.table("payments", payments.stream(), key="id")
        app.wait()
        app.drop_table("payments")
        payments.put(50, 60)
        app.table("payments", payments.stream(), key="id")
        app.wait()
        assert (app.status()["tables"]["payments"]["rows"], app.read("payments").count()) == (60, 60)
        app.view("paid", PAID, key="customer", partial=False)
        assert_is_sparks(spark, app, "paid", PAID, payments=payments.rows())
        app.table("names", customers(spark), key="name")
        app.wait()
        app.drop_table("names")
        with pytest.raises(IngestFailed, match=r"^table 'names' is not declared: .* has other rows than were loaded"):
            app.table("names", customers(spark).limit(2), key="name")
        with pytest.raises(DeclarationError, match=r"kept in .* with key"):
            app.table("names", customers(spark), key="region")
        added = spark.createDataFrame([("c9", "west", "new")], "name STRING, region STRING, note STRING")
        more = customers(spark).withColumn("note", F.lit(None).cast("string")).union(added)
        app.table("names", more, key="name", on_changed_rows="take_in")
        app.wait()
        assert sorted(map(repr, app.read("names").collect())) == sorted(map(repr, more.collect()))
    with declared(spark, root) as again:
        again.table("payments", payments.stream(), key="id")
        again.table("names", more, key="name", on_changed_rows="take_in")
        again.view("paid", PAID, key="customer", partial=False)
        again.start(wait=True)
        assert (again.read("payments").count(), again.read("names").count()) == (60, 7)
        assert_is_sparks(spark, again, "paid", PAID, payments=payments.rows())


def test_a_source_of_another_kind_takes_its_place_only_if_it_may(spark: Any, app: App, payments: Payments) -> None:
    app.table("payments", payments.rows(), key="id")
    app.wait()
    app.drop_table("payments")
    with pytest.raises(IngestFailed, match=r"^table 'payments' is not declared: .*loaded from a DataFrame"):
        app.table("payments", payments.stream(), key="id")
    assert list(app.status()["tables"]) == ["orders"]
    app.table("payments", payments.stream(), key="id", replace_source=True)
    app.wait()
    assert app.read("payments").count() == 100


def test_a_table_that_cannot_be_added_leaves_nothing_behind(spark: Any, app: App, payments: Payments) -> None:
    rows, before = customers(spark), app.status()["published"]

    bad = payments.stream().withColumn("customer", F.expr("IF(id >= 0, raise_error('no such name'), customer)"))
    with pytest.raises(
        IngestFailed, match=r"^table 'payments' is not declared: its source has failed at once: .*no such"
    ):
        app.table("payments", bad, key="customer")
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"name": "orders"}, "table 'orders': there is a table or a view of that name already"),
        ({"name": "Sums"}, "table 'Sums': there is a table or a view called 'sums'"),
        ({"key": "nothing"}, "table 'names': key names 'nothing'"),
        ({"rows": "SELECT 1"}, "table 'names': give a Spark DataFrame, not a str"),
        ({"replace_source": True}, "table 'names': replace_source=True is for a streaming DataFrame"),
        ({"timeout": "soon"}, "timeout='soon': give a number of seconds"),
    ]
    for given, words in wrong:
        with pytest.raises(DeclarationError) as error:
            app.table(**{"name": "names", "rows": rows, "key": "name", **given})
        assert str(error.value).startswith(words)
    assert (list(app.status()["tables"]), app.status()["published"]) == (["orders"], before)
    assert app.ready
    app.table("payments", payments.stream(), key="id")  # by another key: the lake knows nothing of the first
    app.wait()
    assert app.read("payments").count() == 50


def test_bad_rows_of_an_added_table_are_set_aside(spark: Any, app: App) -> None:
    sql = "SELECT k, CAST(v AS INT) AS v FROM texts"
    rows = spark.createDataFrame([(1, "1"), (2, "two"), (3, "3")], "k INT, v STRING")
    app.table("texts", rows, key="k", on_bad_row="set_aside")
    app.view("numbers", sql, key="k", partial=False)
    app.wait(view="numbers")
    assert sorted(tuple(row) for row in app.read("numbers").collect()) == [(1, 1), (3, 3)]
    assert app.rejected("texts").select("row.k").collect() == [(2,)]
    app.drop_view("numbers")
    app.drop_table("texts")
    app.table("texts", rows, key="k")
    app.view("numbers", sql, key="k", partial=False)
    with pytest.raises(RowError, match="two"):
        app.wait(view="numbers")


def test_rows_leave_an_added_table(spark: Any, app: App) -> None:
    rows = spark.createDataFrame([(number, number) for number in range(20)], "k INT, at INT")
    app.table("kept", rows, key="k")
    app.wait()
    app.drop_table("kept")
    app.table("kept", rows, key="k", retain=("at", 4))
    app.wait()
    assert sorted(row.k for row in app.read("kept").collect()) == [16, 17, 18, 19]
    app.drop_table("kept")
    with pytest.raises(DeclarationError, match="rows have left it by the column 'at'"):
        app.table("kept", rows, key="k")
    assert list(app.status()["tables"]) == ["orders"]


def test_threads_that_declare_at_once_take_turns(spark: Any, app: App) -> None:
    rows, errors = customers(spark), list[Exception]()

    def declare(number: int) -> None:
        try:
            app.table(f"names{number}", rows, key="name")
            app.view(
                f"regions{number}", f"SELECT region, count(*) AS n FROM names{number} GROUP BY region", key="region"
            )
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=declare, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert sorted(app.status()["views"]) == ["regions0", "regions1", "regions2", "sums"]
    app.wait()
    for number in range(3):
        assert app.lookup(f"regions{number}", ["north"])["n"].to_pylist() == [3]


def test_the_last_table_goes_and_another_one_comes(spark: Any, app: App) -> None:
    app.drop_view("sums")
    app.drop_table("orders")
    assert (app.status()["tables"], app.ready) == ({}, True)
    app.table("customers", customers(spark), key="name")
    app.view("names", "SELECT name, region FROM customers", key="name")
    app.wait()
    assert app.lookup("names", ["c1"]).to_pylist() == [{"name": "c1", "region": "north"}]


def test_a_table_is_dropped_before_the_start(spark: Any, tmp_path: Path) -> None:
    app = declared(spark, tmp_path / "lake")
    app.table("customers", customers(spark), key="name")
    with pytest.raises(DeclarationError, match="'orders' is read by view 'sums'"):
        app.drop_table("orders")
    for name in ("customers", "nothing"):
        if name == "customers":
            app.drop_table(name)
        with pytest.raises(DeclarationError, match=f"no table '{name}'; there are: orders"):
            app.drop_table(name)
    app.table("customers", orders(spark), key="id")
    app.view("ids", "SELECT id FROM customers", key="id")
