"""Stateful maps that feed each other, on Spark: the document's own graph, and what a map may be declared with."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from upriver.app import App
from upriver.errors import DeclarationError, RowError, UnknownView, UpriverWarning
from upriver.lake.change_log import ChangeLog
from upriver.lake.lake import Lake
from upriver.state.changes import CHANGE_TYPE

pytestmark = pytest.mark.spark

ORDERS = "customer STRING, item STRING, seq BIGINT, amount BIGINT"
USERS = "name STRING, version BIGINT, town STRING"


def in_tuples(rows: Any) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in rows.to_pylist()]


def write(rows: Any, path: Path) -> None:
    rows.coalesce(1).write.mode("append").parquet(str(path))


def orders(spark: Any, first: int, last: int) -> Any:
    return (
        spark.range(first, last)
        .selectExpr("concat('c', id % 5)", "concat('i', id % 3)", "id", "id * 7 % 11")
        .toDF("customer", "item", "seq", "amount")
    )


def spent(customer: str, order: Any, total: int | None) -> tuple[list[tuple[str, int]], int]:
    """Region A of the document: an order adds to its customer's total, and is told by its item."""
    total = (total or 0) + order.amount
    return [(order.item, total)], total


def seen(item: str, row: Any, state: list[Any] | None) -> tuple[list[tuple[int, str]], list[Any]]:
    """Region B: what an item has seen so far, in order."""
    state = [*(state or []), f"{row.customer}:{row.total}"]
    return [(len(state), ",".join(state))], state


def told(key: str, row: Any, count: int | None) -> tuple[list[tuple[str, str, str]], int]:
    return [(row.source, row.change_type, repr(tuple(row)[2:]))], (count or 0) + 1


def picky(customer: str, row: Any, count: int | None) -> tuple[list[tuple[int, int]], int]:
    if row.total % 10 == 3:
        raise ValueError(f"{row.total} is odd")
    return [((count or 0) + 1, row.total)], (count or 0) + 1


def app_on(spark: Any, path: Path, **more: Any) -> App:
    app = App(spark, str(path / "lake"), workers=2, vnodes=16)
    stream = spark.readStream.schema(ORDERS).option("maxFilesPerTrigger", 1).parquet(str(path / "orders"))
    app.table("orders", stream, key="customer", order_by="seq")
    app.stateful_map("totals", source="orders", key="customer", func=spent, schema="item STRING, total BIGINT", **more)
    return app


def expected(first: int, last: int) -> dict[str, list[str]]:
    """What ``items`` gives for orders in batches of one file, by item: the last row's text. Rows of one epoch come by
    the hash of the customer, which a run of one order at a time does not ask for."""
    totals: dict[str, int] = {}
    lines: dict[str, list[str]] = {}
    for number in range(first, last):
        customer, item = f"c{number % 5}", f"i{number % 3}"
        totals[customer] = totals.get(customer, 0) + number * 7 % 11
        lines.setdefault(item, []).append(f"{customer}:{totals[customer]}")
    return lines


def test_the_documents_graph_goes_on_through_rescales_and_restarts(spark: Any, tmp_path: Path) -> None:
    for number in range(8):
        write(orders(spark, number, number + 1), tmp_path / "orders")
    for turn, workers in enumerate((3, 2)):
        app = app_on(spark, tmp_path)
        app.stateful_map("items", source="totals", key="item", func=seen, schema="n INT, history STRING")
        app.view("longest", "SELECT item, max(n) AS n FROM items GROUP BY item", key="item")
        with app:
            app.start()
            app.rescale(workers)
            last = 8 + 6 * (turn + 1)
            for number in range(last - 6, last):
                write(orders(spark, number, number + 1), tmp_path / "orders")
            app.wait(timeout=120)
            for item, lines in expected(0, last).items():
                rows = app.lookup("items", [item]).to_pylist()
                assert [row["n"] for row in rows] == list(range(1, len(lines) + 1))
                assert rows[-1]["history"] == ",".join(lines)
                assert app.lookup("longest", [item]).to_pylist() == [{"item": item, "n": len(lines)}]
            assert "stateful map items per row of totals by (item)" in app.explain("items")


def test_a_map_reads_tables_maps_and_views_together(spark: Any, tmp_path: Path) -> None:
    write(orders(spark, 0, 10), tmp_path / "orders")
    app = app_on(spark, tmp_path)
    users = spark.createDataFrame([("c1", 1, "Ulm"), ("c1", 2, "Bonn")], USERS)
    app.table("users", users, primary_key="name", order_by="version")
    app.view("sums", "SELECT customer AS name, sum(amount) AS sum FROM orders GROUP BY customer", key="name")
    sources = {"orders": "customer", "totals": "customer", "users": "name", "sums": "name"}
    app.stateful_map("all", sources=sources, func=told, schema="src STRING, kind STRING, row STRING", keep=50)
    app.stateful_map(
        "moves",
        source="users",
        key="name",
        func=lambda key, row, state: ([(row.change_type, row.town)], None),
        schema="kind STRING, town STRING",
    )
    with app:
        app.start()
        app.wait(timeout=120)
        assert in_tuples(app.lookup("moves", ["c1"])) == [("c1", "insert", "Bonn")]
        found = [row[1:3] for row in in_tuples(app.lookup("all", ["c1"]))]
        assert sorted(found) == sorted(
            [("orders", "insert")] * 2 + [("totals", "insert")] * 2 + [("sums", "insert"), ("users", "insert")]
        )
        of_orders = [row[3] for row in in_tuples(app.lookup("all", ["c1"])) if row[1] == "orders"]
        assert of_orders[0].startswith("('c1', 'i1', 1, 7, None")
        write(orders(spark, 16, 17), tmp_path / "orders")
        app.wait(timeout=120)
        assert [row[1:3] for row in in_tuples(app.lookup("all", ["c1"]))][-4:] == [
            ("orders", "insert"),
            ("totals", "insert"),
            ("sums", "update_preimage"),
            ("sums", "update_postimage"),
        ]


def test_rows_on_which_a_map_fails_are_set_aside_and_few_rows_are_kept(spark: Any, tmp_path: Path) -> None:
    write(orders(spark, 0, 30), tmp_path / "orders")
    app = app_on(spark, tmp_path, keep=0)
    schema = "n BIGINT, total BIGINT"
    app.stateful_map(
        "good", source="totals", key="customer", func=picky, schema=schema, on_bad_row="set_aside", keep=2, changes=True
    )
    app.stateful_map(
        "recent",
        source="good",
        key="customer",
        func=lambda key, row, state: ([(row.n,)], None),
        schema="n BIGINT",
        keep=("n", 2),
    )
    app.stateful_map("strict", source="totals", key="customer", func=picky, schema=schema)
    with app:
        app.start()
        app.wait(timeout=120)
        totals: dict[str, int] = {}
        good: dict[str, list[int]] = {}
        bad: list[int] = []
        for number in range(30):
            customer = f"c{number % 5}"
            totals[customer] = totals.get(customer, 0) + number * 7 % 11
            (good.setdefault(customer, []) if totals[customer] % 10 != 3 else bad).append(totals[customer])
        assert bad
        rejected = app.rejected("good").collect()
        assert sorted(row["row"]["total"] for row in rejected) == sorted(bad)
        assert {row["view"] for row in rejected} == {"good"}
        (one, *_) = rejected
        assert "ValueError" in one["error"]
        assert one["row"].asDict().keys() == {"customer", "item", "total"}
        for customer, kept in good.items():
            numbered = list(enumerate(kept, start=1))
            assert [row[1:] for row in in_tuples(app.lookup("good", [customer]))] == numbered[-2:]
            assert [row[1] for row in in_tuples(app.lookup("recent", [customer]))] == [n for n, _ in numbered[-2:]]
        with pytest.raises(Exception, match="stateful map 'strict': the function raised ValueError"):
            app.lookup("strict", ["c1"])
        with pytest.raises(UnknownView, match="'totals' keeps no rows, for it has keep=0"):
            app.lookup("totals", ["c1"])
        with pytest.raises(UnknownView, match="'totals' keeps no rows, for it has keep=0"):
            app.read("totals")
        with pytest.raises(UnknownView, match="'totals' keeps no rows, for it has keep=0: name what reads it"):
            app.explain("totals")
        with pytest.raises(
            DeclarationError, match=r"'totals' is read by stateful map 'good', .*drop what reads it first"
        ):
            app.drop_view("totals")
        with pytest.raises(DeclarationError, match=r"'orders' is read by .*stateful map 'totals': drop what reads it"):
            app.drop_table("orders")
        write(orders(spark, 30, 40), tmp_path / "orders")
        app.wait(timeout=120)
    log = ChangeLog(Lake(str(tmp_path / "lake")))
    kinds = [kind for rows in log.changes("good", None, log.last("good")) for kind in rows[CHANGE_TYPE].to_pylist()]
    assert kinds.count("insert") - kinds.count("delete") == sum(min(len(each), 2) for each in good.values()) > 0


@pytest.mark.parametrize(
    "keep", [pytest.param({}, marks=pytest.mark.long, id="kept"), pytest.param({"keep": 0}, id="feeding alone")]
)
def test_a_map_calls_its_function_once_for_all_that_read_it(spark: Any, tmp_path: Path, keep: dict[str, Any]) -> None:
    calls = str(tmp_path / "calls")

    def counted(customer: str, order: Any, total: int | None) -> tuple[list[tuple[str, int]], int]:
        with open(calls, "a") as lines:
            lines.write(f"{order.seq}\n")
        return [(order.item, (total or 0) + order.amount)], (total or 0) + order.amount

    def declared() -> App:
        app = App(spark, str(tmp_path / "lake"), workers=2, vnodes=16)
        stream = spark.readStream.schema(ORDERS).option("maxFilesPerTrigger", 1).parquet(str(tmp_path / "orders"))
        app.table("orders", stream, key="customer", order_by="seq")
        app.stateful_map(
            "totals", source="orders", key="customer", func=counted, schema="item STRING, total BIGINT", **keep
        )
        app.stateful_map("items", source="totals", key="item", func=seen, schema="n INT, history STRING")
        app.view("most", "SELECT item, max(total) AS total FROM totals GROUP BY item", key="item")
        return app

    def calls_of(first: int) -> list[int]:
        return sorted(number for number in map(int, Path(calls).read_text().split()) if number >= first)

    def check(app: App, last: int) -> None:
        app.wait(timeout=120)
        for item, lines in expected(0, last).items():
            assert app.lookup("items", [item]).to_pylist()[-1]["history"] == ",".join(lines)
            most = max(int(line.split(":")[1]) for line in lines)
            assert app.lookup("most", [item]).to_pylist() == [{"item": item, "total": most}]

    for number in range(10):
        write(orders(spark, number, number + 1), tmp_path / "orders")
    with declared() as app:
        app.start()
        check(app, 10)
        assert calls_of(0) == list(range(10))
        assert "[totals] --> [distributor by item] --> [items]" in app.explain("items")
        assert app.status()["views"].keys() >= {"totals", "items", "most"}
        app.drop_view("most")
        assert "most" not in app.status()["views"]
        with pytest.raises(UnknownView):
            app.lookup("most", ["i1"])
        write(orders(spark, 10, 11), tmp_path / "orders")
        app.wait(timeout=120)
        assert calls_of(10) == [10]
        app.view("most", "SELECT item, max(total) AS total FROM totals GROUP BY item", key="item")
        check(app, 11)
        write(orders(spark, 11, 12), tmp_path / "orders")
        check(app, 12)
        assert calls_of(11) == [11, 11], "what is declared later has a copy of the map"
    with declared() as app:
        app.start()
        check(app, 12)
        write(orders(spark, 12, 13), tmp_path / "orders")
        check(app, 13)
        assert calls_of(12) == [12]


def test_what_reads_a_map_fails_with_it(spark: Any, tmp_path: Path) -> None:
    write(orders(spark, 0, 30), tmp_path / "orders")
    app = app_on(spark, tmp_path)
    app.stateful_map("strict", source="totals", key="customer", func=picky, schema="n BIGINT, total BIGINT")
    app.view("counts", "SELECT customer, count(*) AS n FROM strict GROUP BY customer", key="customer")
    with app:
        app.start()
        app.wait(timeout=120)
        with pytest.raises(RowError, match=r"view 'counts' reads 'strict', which has failed: .* is odd"):
            app.lookup("counts", ["c1"])
        states = {name: told["state"] for name, told in app.status()["views"].items()}
        assert states == {"totals": "running", "strict": "failed", "counts": "failed"}
        assert app.lookup("totals", ["c1"]).num_rows == 6


def test_a_start_says_that_a_function_is_another_one(spark: Any, tmp_path: Path) -> None:
    write(orders(spark, 0, 10), tmp_path / "orders")

    def declared(step: int, version: str | None = None, app: App | None = None) -> App:
        """app: one that runs."""
        app = app or app_on(spark, tmp_path)
        app.stateful_map(
            "counts",
            source="totals",
            key="item",
            func=lambda key, row, n: ([((n or 0) + step,)], (n or 0) + step),
            schema="n BIGINT",
            version=version,
        )
        return app

    def warned(app: App, then: Callable[[App], object] | None = None) -> list[str]:
        """then: what is done to the running app in the end."""
        with warnings.catch_warnings(record=True) as caught, app:
            warnings.simplefilter("always")
            app.start()
            app.wait(timeout=120)
            assert max(row["n"] for row in app.lookup("counts", ["i1"]).to_pylist()) in (3, 6)
            if then is not None:
                then(app)
        return [str(each.message) for each in caught if each.category is UpriverWarning]

    def redeclare(app: App) -> None:
        app.drop_view("counts")
        declared(2, app=app)

    assert warned(declared(1)) == []
    assert warned(declared(1), redeclare) == []
    (message,) = warned(declared(1))
    assert message.startswith("stateful map 'counts' has another function than when the app last ran")
    assert len(warned(declared(2, "a"))) == 1
    assert warned(declared(1, "a")) == []
